/* SPDX-License-Identifier: BSD-3-Clause */
/* What the backward pass has besides the forward call: gradients, in and out. */
#include <math.h>
#include <string.h>

#include "gen.h"
#include "sequences.h"

/* dq, dk and dv apart, or as slices of one buffer. */
static void place_gradients(struct problem *p, struct rng *r)
{
    if (gen_fused(p, r))
        return;
    p->grad_q = gen_output(p, BUFFER_DQ, p->dtype, &p->query, p->hq, p->d, r);
    p->grad_k = gen_output(p, BUFFER_DK, p->dtype, &p->key, p->hkv, p->d, r);
    p->grad_v = gen_output(p, BUFFER_DV, p->dtype, &p->key, p->hkv, p->dv, r);
}

/* The bias' own axes, some of them, or any. */
static void place_dbias(struct problem *p, struct rng *r)
{
    const int64_t nq = side_span(&p->query, p->batch), nk = side_span(&p->key, p->batch);
    const bool mine[] = {p->bias.batch, p->bias.head, p->bias.query, p->bias.key};
    const int fewer = rng_chance(r, 40) ? 30 : 0, more = p->smooth || fewer ? 0 : 20;
    bool axes[4];

    p->has_dbias = true;
    p->dbias.dtype = p->bias.dtype;
    if (p->bias_by_offset) {
        problem_buffer(p, BUFFER_DBIAS, element_size(p->bias.dtype), p->bias_start[p->batch]);
        return;
    }
    for (int n = 0; n < 4; n++)
        axes[n] = mine[n] ? !rng_chance(r, fewer) : rng_chance(r, more);
    p->dbias = gen_plane_over(p, BUFFER_DBIAS, p->bias.dtype, nq, nk, axes, r);
}

static void place_dsink(struct problem *p, struct rng *r)
{
    const int64_t stride = 1 + rng_below(r, 3);

    p->has_dsink = true;
    p->dsink = (struct tensor){.buffer = BUFFER_DSINK, .dtype = element_computing(p->dtype),
                               .offset = rng_below(r, 4), .head = stride, .heads = p->hq,
                               .width = 1, .given = {0, 0, stride}};
    if (rng_chance(r, 40))
        p->dsink.head = 1, p->dsink.given[2] = 0; /* told none */
    problem_buffer(p, BUFFER_DSINK, element_size(p->dsink.dtype),
                   p->dsink.offset + p->hq * p->dsink.head + 1);
}

void gen_gradients(struct problem *p, struct rng *r)
{
    p->backward = true;
    p->has_dlse = rng_chance(r, 50);
    p->dout = gen_input(p, BUFFER_DOUT, p->dtype, &p->query, p->hq, p->dv, r);
    if (p->has_dlse)
        p->dlse = gen_numbers(p, BUFFER_DLSE, r);
    place_gradients(p, r);
    if (p->has_bias && rng_chance(r, 80))
        place_dbias(p, r);
    if (p->has_sink && rng_chance(r, 80))
        place_dsink(p, r);
    for (int n = BUFFER_DOUT; n < BUFFERS; n++)
        p->buffers[n].shift = (int)(rng_chance(r, 50) ? rng_below(r, 16) : 0);
}

/* Sets the first element of a query, and lowers the rest of it by so many powers of two; once,
 * where several rows have the same. */
static void lift_query(struct problem *p, int64_t at, double first, int lower)
{
    void *image = p->buffers[p->q.buffer].image;

    if (element_get(p->dtype, image, at) == first)
        return;
    element_set(p->dtype, image, at, first);
    for (int64_t c = 1; c < p->d; c++)
        element_set(p->dtype, image, at + c, ldexp(element_get(p->dtype, image, at + c), -lower));
}

/* Scores of -inf among others: products beyond the range at some keys, or products that leave it
 * when they are scaled, by a scale that the rest of the query makes up for. */
static void holes(struct problem *p, struct rng *r)
{
    static const int power[] = {[ATTN_F32] = 60, [ATTN_F64] = 550, [ATTN_BF16] = 60};
    static const int near[] = {[ATTN_F32] = 60, [ATTN_F64] = 460, [ATTN_BF16] = 60};
    const bool scaled = rng_chance(r, 50);
    const int lift = scaled ? 30 : 0, share = rng_chance(r, 50) ? 30 : 90;
    const struct tensor *t = &p->k;
    const double far = ldexp(p->scale < 0 ? 1 : -1, scaled ? near[p->dtype] : 2 * power[p->dtype]);

    if (scaled)
        p->scale = ldexp(p->scale != 0 ? p->scale : 1 / sqrt((double)p->d), lift);
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t i = 0; i < p->query.used[b]; i++)
            for (int64_t h = 0; h < p->hq; h++) {
                const int64_t at = tensor_at(&p->q, &p->query, b, i, h);
                if (p->buffers[p->q.buffer].role[at] == ROLE_Q)
                    lift_query(p, at, ldexp(1, power[p->dtype]), lift);
            }
        for (int64_t j = 0; j < p->key.used[b]; j++)
            for (int64_t g = 0; g < p->hkv; g++) {
                const int64_t at = tensor_at(t, &p->key, b, j, g);
                if (p->buffers[t->buffer].role[at] != ROLE_UNSEEN)
                    element_set(p->dtype, p->buffers[t->buffer].image, at,
                                rng_chance(r, share) ? far : 0);
            }
    }
}

enum kind { NORMAL, INTEGERS, SPARSE, LARGE, TINY, NOT_FINITE };

static double draw_gradient(enum kind kind, attn_dtype type, struct rng *r)
{
    const double x = rng_normal(r), most = type == ATTN_F16 ? 8 : 1e6;

    switch (kind) {
    case INTEGERS: return rint(2 * x);
    case SPARSE: return rng_chance(r, 90) ? 0 : x;
    case LARGE: return x * most;
    case TINY: return x / most;
    default: return x;
    }
}

/* Numbers at every place that matters, and a few that are none. */
static void fill(struct problem *p, const struct tensor *t, enum kind kind, double scale,
                 struct rng *r)
{
    struct buffer *b = &p->buffers[t->buffer];

    for (int64_t n = 0; n < b->count; n++)
        if (b->role[n] == ROLE_FIXED)
            element_set(t->dtype, b->image, n, scale * draw_gradient(kind, p->dtype, r));
    for (int64_t n = kind == NOT_FINITE ? 1 + rng_below(r, 3) : 0; n > 0 && b->count; n--) {
        const int64_t at = rng_below(r, b->count);
        if (b->role[at] == ROLE_FIXED)
            element_set(t->dtype, b->image, at, rng_chance(r, 70) ? NAN : INFINITY);
    }
}

void gen_gradient_values(struct problem *p, struct rng *r)
{
    static const enum kind kinds[] = {NORMAL, NORMAL, NORMAL, NORMAL, INTEGERS, SPARSE, LARGE, TINY,
                                      NOT_FINITE};
    enum kind kind = p->smooth ? NORMAL : (enum kind)RNG_PICK(r, kinds);
    const bool tiny = p->scale != 0 && fabs(p->scale) < 0x1p-120 &&
                      strcmp(p->values, "integers") == 0;
    double scale = 1;

    /* What comes of large values stays in the range of f16. */
    if (p->dtype == ATTN_F16 && strcmp(p->values, "large-v") == 0)
        scale = 0x1p-8;
    /* What a scale below the range of f32 leaves stays within it. */
    if (p->dtype != ATTN_F16 && tiny)
        scale = 0x1p80;

    if (p->dtype != ATTN_F16 && strcmp(p->values, "normal") == 0 && !p->smooth &&
        p->v.buffer != p->k.buffer && p->softcap == 0 && rng_chance(r, 10) &&
        (p->scale == 0 || (fabs(p->scale) > 0x1p-90 && fabs(p->scale) < 0x1p90))) {
        p->values = "holes";
        holes(p, r);
        if (rng_chance(r, 40)) /* which does not show where scores are -inf */
            kind = NOT_FINITE;
    }
    const bool spoilt = kind == NOT_FINITE && p->has_dlse && rng_chance(r, 50);
    fill(p, &p->dout, spoilt ? NORMAL : kind, scale, r);
    if (p->has_dlse)
        fill(p, &p->dlse, kind == NOT_FINITE && !spoilt ? NORMAL : kind, scale, r);
}

/* out and LSE of the rows that matter, of one sequence. */
static void put_results(struct problem *p, int64_t b, const struct truth_seq *s)
{
    struct buffer *out = &p->buffers[p->out.buffer], *lse = &p->buffers[p->lse.buffer];

    for (int64_t h = 0; h < p->hq; h++)
        for (int64_t i = 0; i < s->nq; i++) {
            const int64_t o = tensor_at(&p->out, &p->query, b, i, h), row = h * s->nq + i;
            const int64_t l = tensor_at(&p->lse, &p->query, b, i, h);
            if (lse->role[l] == ROLE_FIXED)
                element_set(p->lse.dtype, lse->image, l, s->lse[row]);
            for (int64_t c = 0; out->role[o] == ROLE_FIXED && c < p->dv; c++)
                element_set(p->out.dtype, out->image, o + c, s->out[row * p->dv + c]);
        }
}

void gen_results(struct problem *p)
{
    struct batch n = batch_of(p);

    batch_results(&n);
    for (int64_t b = 0; b < p->batch; b++)
        put_results(p, b, &n.seq[b]);
    batch_free(&n);
}
