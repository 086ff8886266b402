/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Checks of the descriptors of building blocks: rotary, merge, cache. Each function is one step for
 * one field under the name that the caller knows it by; it returns ATTN_OK or says what is wrong.
 */
#ifndef ATTN_CHECK_BLOCKS_H
#define ATTN_CHECK_BLOCKS_H

#include "check_inner.h"

enum { ATTN_BLOCK_NAMES = 20 }; /* more than the fields of two sides */

/* A check under way. Steps of attn_check() that are shared with it see a descriptor in which
 * nothing but the batch is set, and leave the tensors' place in a problem of nothing else. */
struct attn_block_check {
    struct attn_check_state c;
    attn_desc desc;
    struct attn_problem problem;
    char names[ATTN_BLOCK_NAMES][40]; /* of the fields of sides */
    int32_t named;
};

void attn_block_begin(struct attn_block_check *k, int64_t batch, struct attn_message *m);

/* least to 2^60 - 1. */
attn_status attn_block_extent(struct attn_block_check *k, const char *name, int64_t value,
                              int64_t least);

/* 0 or 1. */
attn_status attn_block_flag(struct attn_block_check *k, const char *name, int32_t value);

/* An element type that is `want`, or any real one if `want` is ATTN_BOOL. */
attn_status attn_block_dtype(struct attn_block_check *k, const char *name, attn_dtype dtype,
                             attn_dtype want);

/* A side and its arrays, which join the operands. A prefix such as "query" names its fields. Arrays
 * that the host cannot read become bits of k->problem.unread: those of keys where the side may be
 * paged, else of queries. */
attn_status attn_block_side(struct attn_block_check *k, const char *name, const attn_side *s,
                            bool may_be_paged, struct attn_axis *axis);

/* Memory for what is wrong with those, which joins the operands; may be null. */
attn_status attn_block_report(struct attn_block_check *k, void *report);

/* An array of [rows, width] integers; *to is left as it is if there is none. */
attn_status attn_block_index(struct attn_block_check *k, const char *name, attn_index a,
                             int64_t rows, int64_t width, struct attn_integers *to);

/* The shape of a tensor. */
struct attn_block_shape {
    int64_t extent[3]; /* batch or pages, tokens, heads */
    int64_t run;       /* elements side by side */
    bool heads_first;  /* contiguous means [batch, heads, tokens] */
    bool packed;       /* the batch stride is not looked at */
};
struct attn_block_shape attn_block_shape_of(const attn_side *s, int64_t batch, int64_t heads,
                                            int64_t run);

/* *view = the tensor with its strides set. Null data is wrong if there are elements. */
attn_status attn_block_view(struct attn_block_check *k, const char *name, attn_input x,
                            const struct attn_block_shape *shape, struct attn_view *view);

/* The tensor joins the operands. */
attn_status attn_block_add(struct attn_block_check *k, const char *name, bool written,
                           const struct attn_view *view, const struct attn_block_shape *shape,
                           int64_t size);

/* Whether both are the same elements at the same places. */
bool attn_block_same(const struct attn_view *a, const struct attn_view *b,
                     const struct attn_block_shape *shape);

static inline attn_input attn_block_output(attn_output o)
{
    return (attn_input){o.data, o.dtype, o.batch_stride, o.token_stride, o.head_stride};
}

#endif
