/* SPDX-License-Identifier: BSD-3-Clause */
/* Tokens moved from one tensor to another, or within one, their heads turned on the way. */
#ifndef ATTN_TOKENS_H
#define ATTN_TOKENS_H

#include "context.h"
#include "problem.h"

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
};

/* Tokens that take part. */
int64_t attn_tokens_total(const struct attn_axis *axis, int64_t batch);

void attn_tokens_move(const struct attn_call *call, const struct attn_tokens *t);

#endif
