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

attn_status attn_place_unknown(const char *name, struct attn_place place, struct attn_message *m)
{
    return place.unknown ? attn_say(m, ATTN_DEVICE_ERROR, "%s: where it lies cannot be told: %s",
                                    name, place.unknown)
                         : ATTN_OK;
}

struct attn_place attn_place_of(const void *data)
{
#if ATTN_HAVE_CUDA
    return attn_cuda_place(data);
#else
    (void)data;
    return (struct attn_place){ATTN_HOST, true, NULL};
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
