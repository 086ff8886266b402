/* SPDX-License-Identifier: BSD-3-Clause */
/* What goes into scores besides products: softcap, bias, slopes and sinks. */
#include <math.h>

#include "gen.h"

enum bias { SMALL, STEPS, LARGE, SOME_HIDDEN, MOST_HIDDEN, ODD, BIASES };

static double draw_bias(enum bias kind, attn_dtype type, struct rng *r)
{
    const double x = rng_normal(r);

    switch (kind) {
    case STEPS: return rint(2 * x);
    case LARGE: return (type == ATTN_F16 ? 1e3 : 1e4) * x;
    case SOME_HIDDEN: return rng_chance(r, 20) ? -INFINITY : x;
    case MOST_HIDDEN: return rng_chance(r, 95) ? -INFINITY : x;
    default: return x;
    }
}

/* A NaN or +inf here and there: NaN in the rows that see it. */
static void spoil_bias(struct problem *p, struct rng *r)
{
    struct buffer *b = &p->buffers[BUFFER_BIAS];

    for (int64_t n = 1 + rng_below(r, 3); n > 0 && b->count > 0; n--)
        element_set(p->bias.dtype, b->image, rng_below(r, b->count),
                    rng_chance(r, 60) ? NAN : INFINITY);
}

static void fill_bias(struct problem *p, struct rng *r)
{
    static const uint8_t kinds[] = {SMALL, SMALL, SMALL, STEPS, LARGE, SOME_HIDDEN, SOME_HIDDEN,
                                    MOST_HIDDEN, ODD};
    struct buffer *b = &p->buffers[BUFFER_BIAS];
    const enum bias drawn = (enum bias)RNG_PICK(r, kinds);
    const enum bias kind = p->smooth && (drawn == LARGE || drawn == ODD) ? SMALL : drawn;

    for (int64_t n = 0; n < b->count; n++)
        element_set(p->bias.dtype, b->image, n, draw_bias(kind, p->bias.dtype, r));
    if (kind == ODD)
        spoil_bias(p, r);
}

/* Biases of sequences at offsets, with room between them. */
static void draw_offsets(struct problem *p, struct rng *r)
{
    p->bias_by_offset = true;
    p->bias_by_head = rng_chance(r, 60);
    p->offset_type = rng_chance(r, 50) ? ATTN_I64 : ATTN_I32;
    p->bias_start[0] = rng_chance(r, 30) ? rng_below(r, 9) : 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t n = p->query.used[b] * p->key.used[b] * (p->bias_by_head ? p->hq : 1);
        p->bias_start[b + 1] = p->bias_start[b] + n + (rng_chance(r, 30) ? rng_below(r, 9) : 0);
    }
    problem_buffer(p, BUFFER_BIAS, element_size(p->bias.dtype), p->bias_start[p->batch]);
    problem_integers(p, BUFFER_BIAS_OFFSET, p->offset_type, p->bias_start, p->batch + 1);
}

static int64_t pairs_of(const struct problem *p)
{
    int64_t pairs = 0;

    for (int64_t b = 0; b < p->batch; b++)
        pairs += p->query.used[b] * p->key.used[b];
    return pairs * p->hq;
}

static void gen_bias(struct problem *p, struct rng *r)
{
    const attn_dtype type = rng_chance(r, 50) || p->smooth ? p->dtype : ATTN_F32;

    p->has_bias = true;
    p->bias.dtype = type;
    if (pairs_of(p) <= 300000 && rng_chance(r, 30))
        draw_offsets(p, r);
    else
        p->bias = gen_plane(p, BUFFER_BIAS, type, side_span(&p->query, p->batch),
                            side_span(&p->key, p->batch), r);
    fill_bias(p, r);
}

/* One number per head, or per sequence and head; told no strides, or some, or none that move. */
static struct tensor draw_heads(struct problem *p, enum buffer_name name, bool by_batch,
                                struct rng *r)
{
    struct tensor t = {.buffer = name, .dtype = element_computing(p->dtype), .head = 1,
                       .heads = p->hq, .width = 1};

    if (by_batch || rng_chance(r, 50)) {
        t.head = rng_chance(r, 20) ? 0 : 1 + rng_below(r, 3);
        t.batch = by_batch ? p->hq * t.head + 1 + rng_below(r, 3) : 0;
        t.offset = rng_below(r, 4);
        t.given[0] = t.batch;
        t.given[2] = t.head || t.batch ? t.head : ATTN_BROADCAST;
    }
    problem_buffer(p, name, element_size(t.dtype),
                   t.offset + p->batch * t.batch + p->hq * t.head + 1);
    return t;
}

static void gen_slopes(struct problem *p, struct rng *r)
{
    const int64_t kind = rng_below(r, 5);

    p->has_alibi = true;
    p->alibi = draw_heads(p, BUFFER_ALIBI, rng_chance(r, 40), r);
    for (int64_t n = 0; n < p->buffers[BUFFER_ALIBI].count; n++) {
        double x = pow(2, -8 * rng_uniform(r)); /* as models have them */
        if (kind == 0)
            x = rng_chance(r, 50) ? 0 : x;
        if (kind == 1)
            x = 3 * rng_normal(r); /* negative too */
        element_set(p->alibi.dtype, p->buffers[BUFFER_ALIBI].image, n, x);
    }
}

static void gen_sinks(struct problem *p, struct rng *r)
{
    static const double odd[] = {-INFINITY, -INFINITY, -INFINITY, INFINITY, NAN};
    const double width = rng_chance(r, 30) ? 40 : 2;
    const bool some_odd = rng_chance(r, 25) && !p->smooth;

    p->has_sink = true;
    p->sink = draw_heads(p, BUFFER_SINK, false, r);
    for (int64_t n = 0; n < p->buffers[BUFFER_SINK].count; n++)
        element_set(p->sink.dtype, p->buffers[BUFFER_SINK].image, n,
                    some_odd && rng_chance(r, 40) ? RNG_PICK(r, odd) : width * rng_normal(r));
}

void gen_scores(struct problem *p, struct rng *r)
{
    static const double caps[] = {50, 30, 20, 5, 1, 0.01, 1e6};

    if (rng_chance(r, 20))
        p->softcap = rng_chance(r, 70) ? RNG_PICK(r, caps) : 1 + 99 * rng_uniform(r);
    if (rng_chance(r, 35))
        gen_bias(p, r);
    if (rng_chance(r, 25))
        gen_slopes(p, r);
    if (rng_chance(r, 20))
        gen_sinks(p, r);
}
