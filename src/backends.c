/* SPDX-License-Identifier: BSD-3-Clause */
#include "on_device.h"

const struct attn_backend_ops *const attn_backends[] = {
#if ATTN_HAVE_CUDA
    &attn_backend_cuda,
#endif
    &attn_backend_cpu,
#if ATTN_HAVE_BLAS
    &attn_backend_eager,
#endif
    NULL,
};

#if ATTN_HAVE_CUDA
const struct attn_device_ops *const attn_device_ops = &attn_cuda_device_ops;
#else
const struct attn_device_ops *const attn_device_ops = NULL;
#endif

struct attn_place attn_place_of(const void *data)
{
#if ATTN_HAVE_CUDA
    return attn_cuda_place(data);
#else
    (void)data;
    return attn_host_place();
#endif
}

void attn_ferry_release(struct attn_ferry *ferry)
{
#if ATTN_HAVE_CUDA
    attn_cuda_ferry_release(ferry);
#else
    (void)ferry;
#endif
}
