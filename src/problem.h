/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A checked call. check.c turns the caller's descriptor into this: defaults filled in, strides set,
 * heads grouped, sizes proven not to overflow. Backends read only this and never the descriptor.
 * What kernels need of it compiles as C11 and as CUDA.
 */
#ifndef ATTN_PROBLEM_H
#define ATTN_PROBLEM_H

#include <stdbool.h>
#include <stdint.h>

#include "attn/attn.h"
#include "mask.h"
#include "place.h"

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
    ATTN_USES_DLSE,
    ATTN_USES_DBIAS,
    ATTN_USES_DSINK,
    ATTN_FEATURES
};
#define ATTN_BIT(feature) (UINT32_C(1) << (feature))

/* The descriptor's name for a feature. */
const char *attn_feature_name(enum attn_feature feature);

/* The arrays of integers that lead to rows, pages and elements. */
enum attn_array {
    ATTN_QUERY_CU,
    ATTN_QUERY_USED,
    ATTN_KEY_CU,
    ATTN_KEY_USED,
    ATTN_KEY_TABLE,
    ATTN_BIAS_OFFSET,
    ATTN_PREFIX,
    ATTN_ARRAYS
};

/* The descriptor's name for one (check_lengths.c). */
const char *attn_array_name(enum attn_array array);

/* The tokens of one side. Lengths are read through attn_axis_start() and attn_axis_len(). */
struct attn_axis {
    const void *cu;   /* packed: B + 1 offsets; null when padded or paged */
    const void *used; /* B lengths that override the others; may be null, but not when paged */
    bool cu64, used64; /* 64-bit entries, else 32 */
    const void *table; /* paged: [B][max_pages] numbers of pages, null where only the shape is
                          asked for; null otherwise */
    bool table64;
    int64_t pages, max_pages, page_size; /* paged; 0 otherwise */
    int64_t room;     /* padded: S; paged: what the table's entries have room for */
    int64_t rows;     /* padded: B * S; packed: T; paged: B * room */
    int64_t max;      /* the longest length that takes part; of lengths that the host cannot
                         read, a bound */
    int64_t span;     /* extent of this axis in score tensors: S, or max_seqlen, or max */
};

static inline ATTN_HD int64_t attn_index_at(const void *data, bool is64, int64_t n)
{
    return is64 ? ((const int64_t *)data)[n] : ((const int32_t *)data)[n];
}

/* Row of the tensor where sequence b starts: 0 when padded, where the batch stride leads to it. */
static inline ATTN_HD int64_t attn_axis_start(const struct attn_axis *a, int64_t b)
{
    return a->cu ? attn_index_at(a->cu, a->cu64, b) : 0;
}

/* Rows that sequence b has in the tensor, used or not. */
static inline ATTN_HD int64_t attn_axis_room(const struct attn_axis *a, int64_t b)
{
    return a->cu ? attn_index_at(a->cu, a->cu64, b + 1) - attn_index_at(a->cu, a->cu64, b)
                 : a->room;
}

/* nq or nk of sequence b. */
static inline ATTN_HD int64_t attn_axis_len(const struct attn_axis *a, int64_t b)
{
    return a->used ? attn_index_at(a->used, a->used64, b) : attn_axis_room(a, b);
}

/* A tensor [batch][token][head][...]; strides in elements, all of them set, batch 0 when packed.
 * data is never written through for inputs. Null: not given. */
struct attn_view {
    char *data;
    int64_t batch, token, head;
};

/* A tensor over (sequence, head, query, key); strides in elements. Null: not given. */
struct attn_score_view {
    char *data;
    int64_t batch, head, query, key;
};

/* Integers of the caller's, one per token or per sequence. Null: not given. */
struct attn_integers {
    const void *data;
    bool is64;
};

/* Bytes per token of one side, [B, S] or [T]. Null: not given. */
struct attn_token_bytes {
    const uint8_t *data;
    int64_t batch; /* from sequence to sequence; 0 when packed */
};

/* Dropout on the probabilities; see philox.h. */
struct attn_dropout {
    bool on;
    uint64_t least;  /* kept if the draw, 32 bits, is at least this; 2^32: none is */
    double scale;    /* of what is kept, 1 / (1 - p); 0 where p is 1 */
    uint64_t seed;
    uint32_t offset;
    int64_t first_sequence;
};

struct attn_problem {
    attn_pass pass;
    attn_dtype dtype; /* of q, k, v and out */
    struct attn_place place; /* of the tensors; the host's where it is that of all arguments */
    const char *far;         /* else the name of one that the host cannot reach */
    int64_t batch, heads_q, heads_kv;
    int64_t group; /* heads_q / heads_kv; 0 if there are no heads */
    int64_t head_dim, head_dim_v;
    struct attn_axis query, key;

    struct attn_view q, k, v, out;
    struct attn_view lse; /* f32, or f64 for f64 */
    struct attn_score_view probs; /* q's type */
    attn_probs_fn probs_fn;
    void *probs_user;
    struct attn_view key_sums; /* as lse, over keys and query heads; by sequence when paged */

    /* The backward pass; out and lse are inputs then. */
    struct attn_view dout, dlse, dq, dk, dv; /* as out, lse, q, k and v */
    struct attn_view dsink;                  /* as sink */
    struct attn_score_view dbias;            /* as bias, of its type; stride 0: summed over */

    /* Scores, in this order. */
    double scale;
    double softcap; /* 0: none */
    struct attn_score_view bias; /* with bias_offset: head is nq * nk of the sequence, or 0 */
    attn_dtype bias_dtype;
    struct attn_integers bias_offset; /* B + 1 */
    bool bias_per_head;               /* with bias_offset: [Hq, nq, nk], else [nq, nk] */
    int64_t bias_elements;            /* with bias_offset: in all */
    struct attn_view alibi; /* slopes by batch and head, in the computing type */
    struct attn_view sink;  /* by head, in the computing type */

    /* Visibility. */
    struct attn_mask_rule rule; /* causal and window */
    struct attn_integers prefix; /* B */
    struct attn_token_bytes key_mask, query_mask; /* non-zero = attend, computed */
    struct attn_score_view mask; /* bytes */
    struct attn_integers query_docs, key_docs; /* per token */
    struct attn_score_view block_mask; /* bytes; query and key count blocks */
    int64_t block_q, block_k;

    struct attn_dropout dropout;

    uint32_t features; /* ATTN_BIT of each feature that is used */
    uint32_t unread;   /* ATTN_BIT of each attn_array that the host cannot read: it lies on the
                          device, and may hold anything */
};

/* "f32"; "?" for values outside the enumeration. */
const char *attn_dtype_name(attn_dtype dtype);

/* Bytes of an element. */
static inline ATTN_HD int64_t attn_dtype_size(attn_dtype t)
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
static inline ATTN_HD attn_dtype attn_compute_dtype(attn_dtype t)
{
    return t == ATTN_F64 ? ATTN_F64 : ATTN_F32;
}

/* Address of token t of sequence b, head h; `axis` is the side the tensor belongs to and `size`
 * its element's bytes. The tokens of a sequence lie v->token apart, except from one page to the
 * next. */
static inline ATTN_HD char *attn_view_at(const struct attn_view *v, const struct attn_axis *axis,
                                         int64_t b, int64_t t, int64_t h, int64_t size)
{
    int64_t outer = b, row = attn_axis_start(axis, b) + t;
    if (axis->table) {
        outer = attn_index_at(axis->table, axis->table64,
                              b * axis->max_pages + t / axis->page_size);
        row = t % axis->page_size;
    }
    return v->data + (outer * v->batch + row * v->token + h * v->head) * size;
}

/* Elements from v->data to the number of token t of sequence b, head h, in a tensor that has one
 * number per token and no pages: lse, key_sums. */
static inline ATTN_HD int64_t attn_number_index(const struct attn_view *v,
                                                const struct attn_axis *axis, int64_t b, int64_t t,
                                                int64_t h)
{
    return b * v->batch + (attn_axis_start(axis, b) + t) * v->token + h * v->head;
}

/* Bytes of sequence b, one per token; null: not given. */
static inline ATTN_HD const uint8_t *attn_token_bytes_of(const struct attn_token_bytes *m,
                                                 const struct attn_axis *axis, int64_t b)
{
    return m->data ? m->data + b * m->batch + attn_axis_start(axis, b) : NULL;
}

/* Index of token 0 of sequence b in an array with an integer per token, [B, S] or [T]. */
static inline ATTN_HD int64_t attn_token_of(const struct attn_axis *axis, int64_t b)
{
    return axis->cu ? attn_axis_start(axis, b) : b * axis->span;
}

/* Keys of sequence b that causal does not hide. */
static inline ATTN_HD int64_t attn_prefix_of(const struct attn_problem *p, int64_t b)
{
    return p->prefix.data ? attn_index_at(p->prefix.data, p->prefix.is64, b) : 0;
}

/* Which keys the queries of sequence b see by their places. */
static inline ATTN_HD struct attn_band attn_band_at(const struct attn_problem *p, int64_t b)
{
    return attn_band_of(p->rule, attn_axis_len(&p->query, b), attn_axis_len(&p->key, b),
                        attn_prefix_of(p, b));
}

/* Whether the counters that dropout draws by have 32 bits per word. Otherwise says in `reason`, of
 * `size` bytes, what is too large (dropout.c). */
bool attn_dropout_fits(const struct attn_problem *p, char *reason, size_t size);

/* Writes what belongs to rows of out and lse without a query, 0 and -inf, and to key sums of keys
 * that take no part or whose sequence has no query, 0; in the backward pass to rows of dq, dk and
 * dv without a query or key, 0 (rows.c). */
void attn_clear_unused_rows(const struct attn_problem *p);

#endif
