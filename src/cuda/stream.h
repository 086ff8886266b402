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

/* The arrays by which kernels find rows, pages and elements. */
struct attn_cuda_guides {
    struct attn_axis query, key;
    struct attn_integers prefix, bias_offset;
};

/* Sound guides from given ones that may hold anything: as they are where they are sound, and
 * otherwise such that nobody who follows them leaves the tensors. Of sides that have `used` in
 * `sound` and not in `given` the lengths are written there. A sequence whose bias would leave
 * bias_elements has no queries left. */
struct attn_cuda_soundness {
    struct attn_cuda_guides given, sound; /* arrays may be the same memory; cu that is, is sound */
    int64_t batch;
    int64_t bias_heads, bias_elements; /* of bias_offset: heads in a sequence's part; in all */
    uint64_t *report; /* becomes ATTN_CUDA_SOUND, or the least of what is wrong: the array, or one
                         of attn_cuda_bound, times 2^ATTN_CUDA_FIELD_SHIFT, plus the number of
                         its entry */
};
enum attn_cuda_bound { ATTN_CUDA_QUERY_MAX = ATTN_ARRAYS, ATTN_CUDA_KEY_MAX, ATTN_CUDA_FIELDS };
enum { ATTN_CUDA_FIELD_SHIFT = 56 };
#define ATTN_CUDA_SOUND UINT64_MAX
cudaError_t attn_cuda_make_sound(const struct attn_cuda_soundness *s, cudaStream_t stream);

/* Further, of what joins a cache: the query's lengths become such that they have room behind the
 * key's, and pages that are none are noted. After attn_cuda_make_sound(); s->sound has lengths of
 * both sides, and the table is the given one. */
cudaError_t attn_cuda_fit_append(const struct attn_cuda_soundness *s, cudaStream_t stream);

/* Writes rows of out and lse that belong to no query: 0 and -inf. */
cudaError_t attn_cuda_clear_rows(const struct attn_problem *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
