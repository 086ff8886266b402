/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Between the host side and the kernels: which kernels compute a problem, how large their grids are
 * and what they are called with. Compiles as C11 and as CUDA.
 *
 * A sequence's rows are its pairs of a query and a head of the group, as on the CPU. It takes one
 * of two forms, by its number of rows: the short one is for decoding, a few rows whose keys are
 * shared out among the warps of a block; the tall one is for all else. Where a sequence has few
 * rows its keys are split over blocks as well, and a last kernel combines their partial results.
 * Form and splits follow the sequence's own lengths.
 */
#ifndef ATTN_CUDA_FORWARD_H
#define ATTN_CUDA_FORWARD_H

#include "cuda/tensor_map.h"
#include "problem.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ATTN_CUDA_SHORT, ATTN_CUDA_TALL, ATTN_CUDA_FORMS };
enum { ATTN_CUDA_LAUNCHES = 4 }; /* at most */

/* Sizes and numbers of blocks that are larger count as this many, which no device has. */
#define ATTN_CUDA_TOO_MANY (INT64_C(1) << 58)

/* A part of a sequence that a block computes for one key/value head. */
struct attn_cuda_item {
    int32_t sequence;
    int32_t tile;        /* of its rows */
    int32_t slot;        /* of partial results; -1: the keys are not split */
    int64_t first, past; /* keys that the rows may see, of the split; none if past <= first */
};

/* A form's sizes and its part of the workspace, offsets in bytes. */
struct attn_cuda_form {
    int64_t rows;      /* of a tile */
    int64_t chunk;     /* keys: a split has at least as many for each tile of rows */
    int64_t most;      /* room for so many items */
    int64_t items;     /* offset of them, [most] */
    int64_t heads;     /* key/value heads whose keys and values a device's cache holds, at least 1 */
    int64_t count;     /* offset of two ints: the number of items; how many numbers of pairs of an
                          item and a head blocks have been given, beyond their own */
    int64_t slots;     /* room for so many partial results */
    int64_t slot_rows; /* rows in each of them */
    int64_t partials;  /* offset, [slots][heads_kv][slot_rows][2 + head_dim_v] of the computing type:
                          largest score, sum of weights, weighted sums of values */
    int64_t firsts;    /* offset of each sequence's first slot, int[batch]; -1: none */
};

/* Tensors as bulk copies take them, axes (column, head, token, sequence), in boxes of a panel of
 * columns and a tile of keys, or of rows: queries and the heads of a group. Not `given`: they do
 * not lie as a map needs it. */
enum { ATTN_CUDA_KEYS, ATTN_CUDA_VALUES, ATTN_CUDA_QUERIES, ATTN_CUDA_MAPS };
struct attn_cuda_boxes {
    struct attn_cuda_tensor_map map[ATTN_CUDA_MAPS];
    bool given[ATTN_CUDA_MAPS];
};

/* What every kernel is called with, by value. */
struct attn_cuda_args {
    struct attn_problem p; /* whatever it points to lies where the kernel runs; lengths and tables
                              are sound and within the bounds of the axes */
    char *workspace;
    struct attn_cuda_form form[ATTN_CUDA_FORMS];
    int32_t which; /* the form that this launch is for */
    struct attn_cuda_boxes boxes; /* where the launch is of a kernel that takes them */
};

typedef void (*attn_cuda_function)(struct attn_cuda_args);

/* An instance of the forward kernel, for one form. */
struct attn_cuda_instance {
    attn_cuda_function function;
    int32_t columns;    /* of out that a block computes */
    int32_t rows, keys; /* of a tile */
    int32_t threads;    /* of a block */
    int32_t shared;     /* bytes of shared memory */
    int32_t panel;      /* columns of the boxes in which it takes tensors, 32 or 64; 0: it takes
                           none */
    bool stays;         /* its blocks take items as long as there are some */
};

/* Those that compute a problem together. */
struct attn_cuda_pair {
    const char *name; /* null at the end of a table */
    int32_t head_dim, head_dim_v; /* at most these; 0: any */
    const struct attn_cuda_instance *form[ATTN_CUDA_FORMS];
};

/* One launch: a grid of `blocks` along x. */
struct attn_cuda_launch {
    attn_cuda_function function;
    int64_t blocks; /* at least 1 */
    bool stays;     /* no more of them are launched than the device has multiprocessors */
    int32_t threads, shared;
    int32_t which;
    const struct attn_cuda_instance *boxed; /* whose kernel it is, where that takes boxes */
};

/* Launches one after another, in this order, on one stream. */
struct attn_cuda_forward {
    int32_t count;
    struct attn_cuda_launch launch[ATTN_CUDA_LAUNCHES];
    size_t workspace; /* bytes, aligned to 64; need not be cleared; ATTN_CUDA_TOO_MANY or more: it
                         cannot be had */
    struct attn_cuda_form form[ATTN_CUDA_FORMS];
};

/* The pair for a problem on a device of a capability (90: 9.0) that gives a block `shared` bytes at
 * most (99 KB on sm_86, 163 on sm_80, 227 on sm_90); null if there is none. Every device since
 * sm_80 has one for all types and head sizes. */
const struct attn_cuda_pair *attn_cuda_pick(const struct attn_problem *p, int32_t capability,
                                            int64_t shared);

/* What it launches, of which blocks may be more than a grid has, INT32_MAX. Reads no tensor, length
 * or table. Rows without a query are left as they are. */
void attn_cuda_plan_forward(const struct attn_problem *p, const struct attn_cuda_pair *pair,
                            struct attn_cuda_forward *f);

/* What launch n is called with; p and the workspace are the device's. */
void attn_cuda_forward_args(const struct attn_cuda_forward *f, int n, const struct attn_problem *p,
                            void *workspace, struct attn_cuda_args *args);

/* The pairs of each type, the best ones first (fwd_bf16.cu and so on); what goes before and after
 * them (around.cu): the list of items, partial results by type. */
extern const struct attn_cuda_pair attn_cuda_bf16[], attn_cuda_f16[], attn_cuda_f32[],
    attn_cuda_f64[];
/* Those with kernels for sm_90a, which run on nothing else; built where ATTN_HAVE_SM90. The short
 * forms that they share with the others: of head sizes up to 64, 128 and 256. */
extern const struct attn_cuda_pair attn_cuda_bf16_sm90[], attn_cuda_f16_sm90[];
extern const struct attn_cuda_instance attn_cuda_bf16_low[], attn_cuda_f16_low[];
extern const attn_cuda_function attn_cuda_list, attn_cuda_combine[4];

#ifdef __cplusplus
}
#endif

#endif
