/* SPDX-License-Identifier: BSD-3-Clause */
/* Kernels of the calls around attention: what they are given, and how they are put on a stream
 * (helpers.cu). helpers.c is their host side. */
#ifndef ATTN_CUDA_HELPERS_H
#define ATTN_CUDA_HELPERS_H

#include "angles.h"
#include "batch_rules.h"
#include "cuda/runtime.h"
#include "merge.h"
#include "tokens.h"

/* The same number of units of 1 to 16 bytes for each of many rows, by threads of a block. */
struct attn_cuda_spread {
    int32_t unit;  /* bytes, a power of two */
    int32_t shift; /* 2^shift threads to a row */
    int64_t units; /* of a row */
    int64_t parts; /* blocks to a row */
};

/* Row n of `to` becomes row source[n] of `from`, or 0 where that is none of them. */
struct attn_cuda_copy {
    struct attn_cuda_spread spread;
    const char *from;
    char *to;
    const int64_t *source;
    int64_t rows, sources;  /* of `to`, of `from` */
    const int64_t *rows_at; /* rows, but no more than `rows`, stand here; null: it is all of them */
};

/* inverse[r] = the last n below count with indices[n] == r, -1 without one, for r below rows. */
struct attn_cuda_invert {
    const int64_t *indices;
    int64_t *inverse;
    int64_t rows, count;
};

/* A packing. A unit is some tokens of one sequence; a warp works on it. */
struct attn_cuda_pack {
    struct attn_kept kept;
    int64_t chunks, units; /* units of a sequence, at least 1; of all */
    int64_t *starts;       /* [units + 1]: kept tokens of a unit, then those before it */
    int64_t *indices;      /* these may be null */
    int32_t *cu_seqlens, *lengths;
};
enum { ATTN_CUDA_CHUNK = 512 }; /* tokens of a unit */

/* One pass of a stable sort of 0 .. count - 1 by 8 bits of the rows that their indices name; what
 * names no row counts as the row past them all. A tile is one warp's. */
struct attn_cuda_sort {
    const int64_t *indices;
    const int64_t *from; /* null: in their order */
    int64_t *to;
    int64_t *starts; /* [ATTN_CUDA_DIGITS][tiles], one more: how many, then where the first goes */
    int64_t count, rows, tiles;
    int32_t shift;
};
enum { ATTN_CUDA_DIGITS = 256, ATTN_CUDA_TILE = 4096 };

/* Sums of rows; starts is not used. */
struct attn_cuda_sum {
    struct attn_sums sums;
    struct attn_cuda_spread spread; /* units are elements */
};

/* Tokens moved; pointers are the device's. */
struct attn_cuda_move {
    struct attn_tokens tokens;            /* its rotation.frequency is null */
    const struct attn_twofold *frequency; /* [rotation.dim / 2] */
    bool clear;                           /* rows that belong to no token become 0 */
    int32_t unit;                         /* bytes that are copied at a time */
    int64_t heads, run; /* of what is not turned: heads, bytes of each; all of a token may be one */
};

/* Lengths after an append. */
struct attn_cuda_lengths {
    struct attn_append append;
};

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t attn_cuda_copy_rows(const struct attn_cuda_copy *c, cudaStream_t stream);
cudaError_t attn_cuda_invert_indices(const struct attn_cuda_invert *v, cudaStream_t stream);
cudaError_t attn_cuda_count_kept(const struct attn_cuda_pack *p, cudaStream_t stream);
cudaError_t attn_cuda_fill_packing(const struct attn_cuda_pack *p, cudaStream_t stream);

/* x[n] = the sum of those before it, for n up to count: it has an entry more. */
cudaError_t attn_cuda_scan(int64_t *x, int64_t count, cudaStream_t stream);

cudaError_t attn_cuda_count_digits(const struct attn_cuda_sort *s, cudaStream_t stream);
cudaError_t attn_cuda_place_digits(const struct attn_cuda_sort *s, cudaStream_t stream);
cudaError_t attn_cuda_sum_rows(const struct attn_cuda_sum *s, cudaStream_t stream);

/* `rows`: how many there are at most, -1 where that is not known. */
cudaError_t attn_cuda_put_positions(const struct attn_positions *p, int64_t rows,
                                    cudaStream_t stream);

cudaError_t attn_cuda_move_tokens(const struct attn_cuda_move *m, cudaStream_t stream);
cudaError_t attn_cuda_put_lengths(const struct attn_cuda_lengths *l, cudaStream_t stream);
cudaError_t attn_cuda_merge_rows(const struct attn_partials *m, cudaStream_t stream);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
