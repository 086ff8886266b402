/* SPDX-License-Identifier: BSD-3-Clause */
/* What the host side puts on a stream, kernels first of all (stream.cu). */
#ifndef ATTN_CUDA_STREAM_H
#define ATTN_CUDA_STREAM_H

#include "cuda/forward.h"
#include "cuda/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A launch of forward.h. */
cudaError_t attn_cuda_start(const struct attn_cuda_launch *l, const struct attn_cuda_args *args,
                            cudaStream_t stream);

/* Up to ATTN_CUDA_PUT_BYTES bytes, a multiple of 4, of host memory to the device's, as the argument
 * of a kernel: no host memory is looked at once the call returns, not even where a graph is
 * captured. */
enum { ATTN_CUDA_PUT_BYTES = 3840 }; /* arguments have 4 KiB in all */
cudaError_t attn_cuda_put(void *to, const void *from, size_t bytes, cudaStream_t stream);

/* Writes rows of out and lse that belong to no query: 0 and -inf. */
cudaError_t attn_cuda_clear_rows(const struct attn_problem *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
