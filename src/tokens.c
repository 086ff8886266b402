/* SPDX-License-Identifier: BSD-3-Clause */
#include "tokens.h"

#include <string.h>

#include "angles.h"
#include "context.h"
#include "parallel.h"

#define TEMPLATE "tokens_tmpl.h"
#include "each_type.h"

/* The pairs at hand of a head x, turned, to out, which may be x. */
typedef void (*turn_fn)(const void *x, void *out, int64_t step, int64_t partner,
                        const struct attn_circle *by, int64_t pairs);
static const turn_fn turn_head[] = ATTN_EACH_TYPE(turn);

/* A thread's part of the work. */
struct share {
    const struct attn_tokens *t;
    struct attn_angles angles;
    struct attn_range tokens; /* counted over all sequences */
};

const char *attn_tokens_array(enum attn_array array)
{
    switch (array) {
    case ATTN_QUERY_CU: return "tokens.cu_seqlens";
    case ATTN_QUERY_USED: return "tokens.seqused";
    case ATTN_KEY_CU: return "cache.cu_seqlens";
    case ATTN_KEY_USED: return "cache.seqused";
    default: return "cache.block_table";
    }
}

int64_t attn_tokens_total(const struct attn_axis *axis, int64_t batch)
{
    int64_t total = 0;
    for (int64_t b = 0; b < batch; b++)
        total += attn_axis_len(axis, b);
    return total;
}

static void turn_token(struct share *s, int64_t b, int64_t i, const char *x, char *out)
{
    const struct attn_tokens *t = s->t;
    const int64_t size = attn_dtype_size(t->dtype), first = s->angles.first;
    const int64_t step = attn_pair_step(&t->rotation), partner = attn_pair_partner(&t->rotation);
    const struct attn_circle *by = attn_angles_at(&s->angles, attn_token_position(t, b, i));
    for (int64_t h = 0; h < t->heads; h++)
        turn_head[t->dtype](x + (h * t->x.head + first * step) * size,
                            out + (h * t->out.head + first * step) * size, step, partner, by,
                            s->angles.pairs);
}

/* What of a token is not turned. */
static void copy_token(const struct attn_tokens *t, const char *x, char *out)
{
    const int64_t size = attn_dtype_size(t->dtype), dim = t->rotation.dim;
    if (x == out || dim == t->head_dim)
        return;
    for (int64_t h = 0; h < t->heads; h++)
        memcpy(out + (h * t->out.head + dim) * size, x + (h * t->x.head + dim) * size,
               (size_t)((t->head_dim - dim) * size));
}

/* Each token of the share, turned by the pairs at hand; with the first of them it is copied. */
static void move_share(struct share *s)
{
    const struct attn_tokens *t = s->t;
    const int64_t size = attn_dtype_size(t->dtype);
    int64_t before = 0;
    for (int64_t b = 0; b < t->batch && before < s->tokens.hi; b++) {
        const int64_t n = attn_axis_len(&t->from, b), shift = attn_given_at(t->shift, b);
        const int64_t lo = s->tokens.lo > before ? s->tokens.lo - before : 0;
        const int64_t hi = s->tokens.hi - before < n ? s->tokens.hi - before : n;
        for (int64_t i = lo; i < hi; i++) {
            const char *x = attn_view_at(&t->x, &t->from, b, i, 0, size);
            char *out = attn_view_at(&t->out, &t->to, b, shift + i, 0, size);
            if (s->angles.pairs > 0)
                turn_token(s, b, i, x, out);
            if (s->angles.first == 0)
                copy_token(t, x, out);
        }
        before += n;
    }
}

static void move_part(void *arg, int32_t thread, int32_t team)
{
    const struct attn_tokens *t = arg;
    struct share s;
    s.t = t;
    s.tokens = attn_share(attn_tokens_total(&t->from, t->batch), thread, team);
    attn_angles_begin(&s.angles, &t->rotation, t->inverse);
    if (!attn_angles_next(&s.angles)) {
        move_share(&s);
        return;
    }
    do
        move_share(&s);
    while (attn_angles_next(&s.angles));
}

void attn_tokens_move(const struct attn_call *call, const struct attn_tokens *t)
{
    const int64_t bytes = attn_product(attn_tokens_total(&t->from, t->batch),
                                       t->heads * t->head_dim * attn_dtype_size(t->dtype));
    if (bytes > 0)
        attn_parallel(attn_threads_worth(bytes, call->settings->threads), move_part, (void *)t);
}
