/* SPDX-License-Identifier: BSD-3-Clause */
#include "truth.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "element.h"
#include "memory.h"
#include "rng.h"

bool truth_visible(const struct truth_seq *s, int64_t i, int64_t j)
{
    /* How far key j lies behind (positive: after) the position of query i. */
    const int64_t after = j - i - (s->align == ATTN_BOTTOM_RIGHT ? s->nk - s->nq : 0);

    if (s->key_mask && !s->key_mask[j])
        return false;
    if (s->causal && after > 0)
        return false;
    if (s->window && s->left >= 0 && -after > s->left)
        return false;
    if (s->window && s->right >= 0 && after > s->right)
        return false;
    return true;
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

/* The keys that query i sees, in the order in which they are summed. Returns how many. */
static int64_t visible_keys(const struct truth_seq *s, int64_t i, struct rng *r, int64_t *see)
{
    int64_t n = 0;

    for (int64_t j = 0; j < s->nk; j++)
        if (truth_visible(s, i, j))
            see[n++] = j;
    if (r)
        shuffle(see, n, r);
    return n;
}

/* What plain loops leave open besides the order of sums: whether a product is rounded before it is
 * added, whether the probabilities or their products are divided by the sum, whether the scale goes
 * to the scores or to the query, whether all keys' scores are summed in one order (as a GEMM's are
 * not at its edges: equal keys then differ), and whether scores and exponentials come out a random
 * part of a unit in the last place away, as another product of the same number of roundings or
 * another library's exponential would. */
enum {
    STYLE_FUSED = 1,
    STYLE_LATE = 2,
    STYLE_SCALED_QUERY = 4,
    STYLE_OWN_ORDER = 8,
    STYLE_JITTER = 16,
    STYLES = 32
};

struct how {
    long double range; /* of scores */
    attn_dtype kept;   /* a 16-bit type: probabilities and results are rounded to it */
    struct rng *r;     /* for orders and jitter; null: everything as it comes */
    int style;
};

#define REAL float
#define EXP expf
#define LOG logf
#define SQRT sqrtf
#define FMA fmaf
#define LOOPS(name) name##_float
#include "truth_loops.h"
#undef REAL
#undef EXP
#undef LOG
#undef SQRT
#undef FMA
#undef LOOPS

#define REAL double
#define EXP exp
#define LOG log
#define SQRT sqrt
#define FMA fma
#define LOOPS(name) name##_double
#include "truth_loops.h"
#undef REAL
#undef EXP
#undef LOG
#undef SQRT
#undef FMA
#undef LOOPS

#define REAL long double
#define EXP expl
#define LOG logl
#define SQRT sqrtl
#define FMA fmal
#define LOOPS(name) name##_long
#include "truth_loops.h"

void truth_compute(const struct truth_seq *s, struct truth_values *values)
{
    if (s->dtype == ATTN_F64)
        attend_long(s, &(struct how){DBL_MAX, ATTN_F64, NULL, 0}, values);
    else
        attend_double(s, &(struct how){FLT_MAX, ATTN_F32, NULL, 0}, values);
}

void truth_eager_in_type(const struct truth_seq *s, int order, struct truth_values *values)
{
    struct rng r = rng_seeded((uint64_t)order);
    const struct how how = {s->dtype == ATTN_F64 ? DBL_MAX : FLT_MAX, s->dtype, order ? &r : NULL,
                            order % STYLES};

    if (s->dtype == ATTN_F64)
        attend_double(s, &how, values);
    else
        attend_float(s, &how, values);
}
