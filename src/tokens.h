/* SPDX-License-Identifier: BSD-3-Clause */
/* Tokens moved from one tensor to another, or within one, their heads turned on the way. What
 * kernels need compiles as C11 and as CUDA. */
#ifndef ATTN_TOKENS_H
#define ATTN_TOKENS_H

#include "problem.h"

struct attn_call;

/* Everything has been checked. Token i of sequence b goes to place shift[b] + i there. */
struct attn_tokens {
    attn_dtype dtype;
    int64_t batch, heads, head_dim;
    struct attn_axis from, to;
    struct attn_view x, out;
    struct attn_integers shift;     /* B; not given: 0 */
    struct attn_integers positions; /* per token; not given: offsets[b] + i */
    struct attn_integers offsets;   /* B; not given: 0 */
    attn_rotation rotation;         /* defaults filled in; dim 0: nothing is turned */
    bool inverse;
    uint32_t unread;  /* ATTN_BIT of each array that the host cannot read: those of `from` as the
                         query's, of a cache that is `to` as the key's */
    uint64_t *report; /* the device's, for what is wrong with them; may be null */
};

/* Checked new tokens for a cache. */
struct attn_append {
    struct attn_tokens k, v;
    bool values;
    int64_t pages;
    void *lengths; /* of the type of k.to.used; may be null */
};

/* Entry n; 0 where they are not given. */
static inline ATTN_HD int64_t attn_given_at(struct attn_integers a, int64_t n)
{
    return a.data ? attn_index_at(a.data, a.is64, n) : 0;
}

/* What token i of sequence b is turned by. */
static inline ATTN_HD int64_t attn_token_position(const struct attn_tokens *t, int64_t b, int64_t i)
{
    return t->positions.data ? attn_given_at(t->positions, attn_token_of(&t->from, b) + i)
                             : attn_given_at(t->offsets, b) + i;
}

/* What the caller calls one of `unread`: "tokens.seqused", "cache.block_table". */
const char *attn_tokens_array(enum attn_array array);

/* Tokens that take part. */
int64_t attn_tokens_total(const struct attn_axis *axis, int64_t batch);

void attn_tokens_move(const struct attn_call *call, const struct attn_tokens *t);

#endif
