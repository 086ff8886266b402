/* SPDX-License-Identifier: BSD-3-Clause */
#include "truth.h"

#include <math.h>
#include <stdlib.h>

#include "element.h"
#include "memory.h"
#include "rng.h"

bool truth_in_band(const struct truth_seq *s, int64_t i, int64_t j)
{
    /* How far key j lies behind (positive: after) the position of query i. */
    const int64_t after = j - i - (s->align == ATTN_BOTTOM_RIGHT ? s->nk - s->nq : 0);

    if (s->causal && after > 0 && !(s->has_prefix && j < s->prefix))
        return false;
    if (s->window && s->left >= 0 && -after > s->left)
        return false;
    return !(s->window && s->right >= 0 && after > s->right);
}

bool truth_allowed(const struct truth_seq *s, int64_t h, int64_t i, int64_t j)
{
    if (s->key_mask && !s->key_mask[j])
        return false;
    if (s->query_mask && !s->query_mask[i])
        return false;
    if (s->query_docs && s->query_docs[i] != s->key_docs[j])
        return false;
    if (s->mask.x && truth_plane_at(&s->mask, h, i, j) == 0)
        return false;
    if (s->block.x && truth_plane_at(&s->block, h, i / s->block_q, j / s->block_k) == 0)
        return false;
    return truth_in_band(s, i, j);
}

bool truth_visible(const struct truth_seq *s, int64_t h, int64_t i, int64_t j)
{
    return truth_allowed(s, h, i, j) &&
           !(s->bias.x && truth_plane_at(&s->bias, h, i, j) == -INFINITY);
}

bool truth_by_head(const struct truth_seq *s)
{
    return (s->mask.x && s->mask.head) || (s->block.x && s->block.head) ||
           (s->bias.x && s->bias.head);
}

/* Philox4x32-10 as its paper defines it (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as
 * easy as 1, 2, 3", SC11). x: the counter, which becomes the four draws. */
static void philox(uint32_t x[4], uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < 10; round++) {
        const uint64_t m0 = UINT64_C(0xd2511f53) * x[0], m1 = UINT64_C(0xcd9e8d57) * x[2];
        const uint32_t x1 = x[1], x3 = x[3];

        x[0] = (uint32_t)(m1 >> 32) ^ x1 ^ k0;
        x[1] = (uint32_t)m1;
        x[2] = (uint32_t)(m0 >> 32) ^ x3 ^ k1;
        x[3] = (uint32_t)m0;
        k0 += UINT32_C(0x9e3779b9); /* the golden ratio */
        k1 += UINT32_C(0xbb67ae85); /* the square root of 3, less 1 */
    }
}

bool truth_kept(const struct truth_seq *s, int64_t h, int64_t i, int64_t j)
{
    uint32_t x[4] = {(uint32_t)(j >> 2), (uint32_t)i, (uint32_t)(s->number * s->hq + h),
                     s->dropout_offset};

    philox(x, (uint32_t)s->dropout_seed, (uint32_t)(s->dropout_seed >> 32));
    return (double)x[j & 3] >= round(s->dropout * 0x1p32);
}

static void shuffle(int64_t *x, int64_t n, struct rng *r)
{
    for (int64_t i = n - 1; i > 0; i--) {
        const int64_t j = rng_below(r, i + 1), t = x[i];
        x[i] = x[j];
        x[j] = t;
    }
}

/* 0 .. n - 1, shuffled unless r is null. */
static int64_t *order_of(int64_t n, struct rng *r)
{
    int64_t *order = test_alloc((size_t)n * sizeof *order);

    for (int64_t i = 0; i < n; i++)
        order[i] = i;
    if (r)
        shuffle(order, n, r);
    return order;
}

/* The keys that query i of head h sees, in the order in which they are summed. Returns how many. */
static int64_t visible_keys(const struct truth_seq *s, int64_t h, int64_t i, struct rng *r,
                            int64_t *see)
{
    int64_t n = 0;

    for (int64_t j = 0; j < s->nk; j++)
        if (truth_visible(s, h, i, j))
            see[n++] = j;
    if (r)
        shuffle(see, n, r);
    return n;
}

/* What plain loops leave open besides the order of sums: whether a product is rounded before it is
 * added (the slope's with the distance too), whether the probabilities or their products are
 * divided by the sum and probabilities that are asked for come from the LSE, whether the scale goes
 * to the scores or to the query, whether all keys' scores are summed in one order (as a GEMM's are
 * not at its edges: equal keys then differ), whether sums are taken in parts that are then added
 * (of equal terms, no other order makes a difference) and a 16-bit type then rounds weights, if
 * they are not divided yet, relative to one of each part, and whether the scale, scores, each step
 * to them and exponentials with their arguments come out a random part of a unit in the last place
 * away, as another product of the same number of roundings or another library's function would, and
 * exponentials below the normal numbers as 0. */
enum {
    STYLE_FUSED = 1,
    STYLE_LATE = 2,
    STYLE_SCALED_QUERY = 4,
    STYLE_OWN_ORDER = 8,
    STYLE_JITTER = 16,
    STYLE_PARTS = 32,
    STYLES = 64
};

struct how {
    long double range; /* of scores */
    attn_dtype kept;   /* a 16-bit type: probabilities and results are rounded to it */
    struct rng *r;     /* for orders and jitter; null: everything as it comes */
    int style;
    bool given;        /* gradients from the given out and LSE */
};

/* Whether a scale or softcap may lie outside a type, or take what it multiplies there. */
static bool extreme(double x)
{
    return x != 0 && !(fabs(x) >= 0x1p-100 && fabs(x) <= 0x1p100);
}

/* What has been added to, and is one of the marks of truth.h, or a number. `open`: y is one. */
static long double marked(long double x, long double y, bool open)
{
    if (isnan(x) || isnan(y))
        return (long double)NAN;
    return open || x == TRUTH_OPEN ? TRUTH_OPEN : y;
}

void truth_none(long double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = TRUTH_NONE;
}

#define REAL float
#define EXP expf
#define LOG logf
#define SQRT sqrtf
#define TANH tanhf
#define FMA fmaf
#define LOOPS(name) name##_float
#include "truth_loops.h"
#include "truth_grad_loops.h"
#undef REAL
#undef EXP
#undef LOG
#undef SQRT
#undef TANH
#undef FMA
#undef LOOPS

#define REAL double
#define EXP exp
#define LOG log
#define SQRT sqrt
#define TANH tanh
#define FMA fma
#define LOOPS(name) name##_double
#include "truth_loops.h"
#include "truth_grad_loops.h"
#undef REAL
#undef EXP
#undef LOG
#undef SQRT
#undef TANH
#undef FMA
#undef LOOPS

#define REAL long double
#define EXP expl
#define LOG logl
#define SQRT sqrtl
#define TANH tanhl
#define FMA fmal
#define LOOPS(name) name##_long
#include "truth_loops.h"
#include "truth_grad_loops.h"

static const struct how how_true[] = {{.range = FLT_MAX, .kept = ATTN_F32},
                                      {.range = DBL_MAX, .kept = ATTN_F64}};

static struct how how_in_type(const struct truth_seq *s, int order, struct rng *r)
{
    const int style = order % STYLES & ~(s->exact ? STYLE_JITTER : 0);

    return (struct how){s->dtype == ATTN_F64 ? DBL_MAX : FLT_MAX, s->dtype, order ? r : NULL, style,
                        true};
}

void truth_compute(const struct truth_seq *s, struct truth_values *values)
{
    if (s->dtype == ATTN_F64)
        attend_long(s, &how_true[1], values);
    else
        attend_double(s, &how_true[0], values);
}

void truth_eager_in_type(const struct truth_seq *s, int order, struct truth_values *values)
{
    struct rng r = rng_seeded((uint64_t)order);
    const struct how how = how_in_type(s, order, &r);

    if (s->dtype == ATTN_F64)
        attend_double(s, &how, values);
    else
        attend_float(s, &how, values);
}

void truth_gradients(const struct truth_seq *s, struct truth_gradients *g)
{
    if (s->dtype == ATTN_F64)
        gradients_long(s, &how_true[1], g);
    else
        gradients_double(s, &how_true[0], g);
}

void truth_gradients_in_type(const struct truth_seq *s, int order, struct truth_gradients *g)
{
    struct rng r = rng_seeded((uint64_t)order);
    const struct how how = how_in_type(s, order, &r);

    if (s->dtype == ATTN_F64)
        gradients_double(s, &how, g);
    else
        gradients_float(s, &how, g);
}
