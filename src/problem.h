/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A checked call. check.c turns the caller's descriptor into this: defaults filled in, strides set,
 * heads grouped, sizes proven not to overflow. Backends read only this and never the descriptor.
 */
#ifndef ATTN_PROBLEM_H
#define ATTN_PROBLEM_H

#include <stdbool.h>
#include <stdint.h>

#include "attn/attn.h"
#include "mask.h"

/* What a call may ask for beyond the plain product. A backend names the ones it offers; check.c
 * sets those that are used; names.c holds their names, which are the descriptor's fields. */
enum attn_feature {
    ATTN_USES_SOFTCAP,
    ATTN_USES_BIAS,
    ATTN_USES_BIAS_OFFSET,
    ATTN_USES_ALIBI,
    ATTN_USES_SINK,
    ATTN_USES_CAUSAL,
    ATTN_USES_WINDOW,
    ATTN_USES_KEY_MASK,
    ATTN_USES_QUERY_MASK,
    ATTN_USES_MASK,
    ATTN_USES_DOCS,
    ATTN_USES_PREFIX,
    ATTN_USES_BLOCK_MASK,
    ATTN_USES_DROPOUT,
    ATTN_USES_LSE,
    ATTN_USES_PROBS,
    ATTN_USES_PROBS_FN,
    ATTN_USES_KEY_SUMS,
    ATTN_USES_SEQUSED,
    ATTN_USES_PACKED,
    ATTN_USES_PAGED,
    ATTN_USES_GQA,
    ATTN_USES_BACKWARD,
    ATTN_FEATURES
};
#define ATTN_BIT(feature) (UINT32_C(1) << (feature))

/* The descriptor's name for a feature. */
const char *attn_feature_name(enum attn_feature feature);

/* The tokens of one side. Lengths are read through attn_axis_start() and attn_axis_len(). */
struct attn_axis {
    const void *cu;   /* packed: B + 1 offsets; null when padded */
    const void *used; /* B lengths that override the others; may be null */
    bool cu64, used64; /* 64-bit entries, else 32 */
    int64_t room;     /* padded: S */
    int64_t rows;     /* padded: B * S; packed: T */
    int64_t max;      /* the longest length that takes part */
    int64_t span;     /* extent of this axis in score tensors: S, or max_seqlen, or max */
};

static inline int64_t attn_index_at(const void *data, bool is64, int64_t n)
{
    return is64 ? ((const int64_t *)data)[n] : ((const int32_t *)data)[n];
}

/* Row of the tensor where sequence b starts: 0 when padded, where the batch stride leads to it. */
static inline int64_t attn_axis_start(const struct attn_axis *a, int64_t b)
{
    return a->cu ? attn_index_at(a->cu, a->cu64, b) : 0;
}

/* Rows that sequence b has in the tensor, used or not. */
static inline int64_t attn_axis_room(const struct attn_axis *a, int64_t b)
{
    return a->cu ? attn_index_at(a->cu, a->cu64, b + 1) - attn_index_at(a->cu, a->cu64, b)
                 : a->room;
}

/* nq or nk of sequence b. */
static inline int64_t attn_axis_len(const struct attn_axis *a, int64_t b)
{
    return a->used ? attn_index_at(a->used, a->used64, b) : attn_axis_room(a, b);
}

/* A tensor [batch][token][head][...]; strides in elements, all of them set, batch 0 when packed.
 * data is never written through for inputs. Null: not given. */
struct attn_view {
    char *data;
    int64_t batch, token, head;
};

/* A tensor over (sequence, head, query, key); strides in elements. */
struct attn_score_view {
    char *data;
    int64_t batch, head, query, key;
};

struct attn_problem {
    attn_pass pass;
    attn_dtype dtype; /* of q, k, v and out */
    int64_t batch, heads_q, heads_kv;
    int64_t group; /* heads_q / heads_kv; 0 if there are no heads */
    int64_t head_dim, head_dim_v;
    struct attn_axis query, key;

    struct attn_view q, k, v, out;
    struct attn_view lse; /* f32, or f64 for f64 */
    struct attn_score_view probs; /* q's type */

    double scale;
    struct attn_mask_rule rule;  /* causal and window */
    const uint8_t *key_mask;     /* non-zero = attend; null: all */
    int64_t key_mask_batch;      /* stride from sequence to sequence; 0 when packed */

    uint32_t features; /* ATTN_BIT of each feature that is used */
};

/* "f32"; "?" for values outside the enumeration. */
const char *attn_dtype_name(attn_dtype dtype);

/* Bytes of an element. */
static inline int64_t attn_dtype_size(attn_dtype t)
{
    switch (t) {
    case ATTN_F64: return 8;
    case ATTN_F32: return 4;
    case ATTN_F16:
    case ATTN_BF16: return 2;
    default: return 1;
    }
}

/* The type that scores and LSE are computed in. */
static inline attn_dtype attn_compute_dtype(attn_dtype t)
{
    return t == ATTN_F64 ? ATTN_F64 : ATTN_F32;
}

/* Address of token t of sequence b, head h; `axis` is the side the tensor belongs to and `size`
 * its element's bytes. */
static inline char *attn_view_at(const struct attn_view *v, const struct attn_axis *axis, int64_t b,
                                 int64_t t, int64_t h, int64_t size)
{
    const int64_t row = attn_axis_start(axis, b) + t;
    return v->data + (b * v->batch + row * v->token + h * v->head) * size;
}

/* Key mask bytes of sequence b, one per key; null: every key is attended. */
static inline const uint8_t *attn_key_mask_of(const struct attn_problem *p, int64_t b)
{
    return p->key_mask ? p->key_mask + b * p->key_mask_batch + attn_axis_start(&p->key, b) : NULL;
}

/* Writes what belongs to rows of out and lse without a query: 0 and -inf (rows.c). */
void attn_clear_unused_rows(const struct attn_problem *p);

#endif
