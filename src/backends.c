/* SPDX-License-Identifier: BSD-3-Clause */
#include "backend.h"

const struct attn_backend_ops *const attn_backends[] = {
    &attn_backend_cpu,
#if ATTN_HAVE_BLAS
    &attn_backend_eager,
#endif
    NULL,
};
