/* SPDX-License-Identifier: BSD-3-Clause */
/* The softmax of a row, for one instruction set and computing type. See softmax.h. */
#include "cpu/softmax.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "cpu/vec.h"

/* Vectors taken together, to have several sums on the way at once. */
enum { RUN = 4 };

/* The last n < VEC_N scores, and -inf. */
INLINE vec load_tail(const real *s, int64_t n)
{
    real part[VEC_N];
    vec_store(part, vec_set(-INFINITY));
    memcpy(part, s, (size_t)n * sizeof *s);
    return vec_load(part);
}

INLINE void store_tail(real *s, vec a, int64_t n)
{
    real part[VEC_N];
    vec_store(part, a);
    memcpy(s, part, (size_t)n * sizeof *s);
}

/* The largest of n scores that are not NaN. */
static real largest(const real *s, int64_t n)
{
    vec most[RUN];
    real part[VEC_N];
    int64_t j = 0;
    UNROLL for (int r = 0; r < RUN; r++)
        most[r] = vec_set(-INFINITY);
    for (; j + RUN * VEC_N <= n; j += RUN * VEC_N)
        UNROLL for (int r = 0; r < RUN; r++)
            most[r] = vec_max(vec_load(s + j + r * VEC_N), most[r]);
    for (; j + VEC_N <= n; j += VEC_N)
        most[0] = vec_max(vec_load(s + j), most[0]);
    most[1] = vec_max(load_tail(s + j, n - j), most[1]);
    vec_store(part, vec_max(vec_max(most[0], most[1]), vec_max(most[2], most[3])));
    for (int i = 1; i < VEC_N; i++)
        part[0] = part[i] > part[0] ? part[i] : part[0];
    return part[0];
}

static bool any_nan(const real *s, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        if (isnan(s[j]))
            return true;
    return false;
}

/* How the row is weighed: by 2^(x scale.by) (1 + x rest), x the difference from the reference. The
 * rest is what rounding took from the scale, so that weights far below 1 are as good as others. */
struct weighing {
    vec reference, rest;
    struct exponent scale;
};

static struct weighing weighing_of(double scale, real reference)
{
    static const double LN2 = 0x1.62e42fefa39efp-1;
    struct weighing w = {.reference = vec_set(reference), .scale = exponent_of(scale)};
    w.rest = vec_set((real)(exponent_lost(scale) * LN2));
    return w;
}

/* n weights, n at most VEC_N, in place of their scores. */
INLINE vec weigh_some(real *s, int64_t n, const struct weighing *w)
{
    const vec score = n < VEC_N ? load_tail(s, n) : vec_load(s);
    const vec x = exp2_argument(vec_sub(score, w->reference), w->scale);
    const vec p = vec_exp2(x, w->scale, 0), q = vec_fma(p, vec_mul(x, w->rest), p);
    if (n < VEC_N)
        store_tail(s, q, n);
    else
        vec_store(s, q);
    return q;
}

static double weigh(void *row, int64_t n, double scale, double *max)
{
    real *s = row, part[VEC_N];
    const real most = largest(s, n);
    *max = (double)most;
    if (isinf(most))
        return most > 0 || any_nan(s, n) ? (double)NAN : 0;

    const struct weighing w = weighing_of(scale, most);
    vec sums[RUN];
    int64_t j = 0;
    UNROLL for (int r = 0; r < RUN; r++)
        sums[r] = vec_zero();
    for (; j + RUN * VEC_N <= n; j += RUN * VEC_N)
        UNROLL for (int r = 0; r < RUN; r++)
            sums[r] = vec_add(sums[r], weigh_some(s + j + r * VEC_N, VEC_N, &w));
    for (; j < n; j += VEC_N)
        sums[0] = vec_add(sums[0], weigh_some(s + j, n - j < VEC_N ? n - j : VEC_N, &w));
    vec_store(part, vec_add(vec_add(sums[0], sums[1]), vec_add(sums[2], sums[3])));
    double sum = 0;
    for (int i = 0; i < VEC_N; i++)
        sum += (double)part[i];
    return sum;
}

static void multiply(void *row, int64_t n, double by)
{
    real *s = row;
    const vec factor = vec_set((real)by);
    int64_t j = 0;
    for (; j + VEC_N <= n; j += VEC_N)
        vec_store(s + j, vec_mul(vec_load(s + j), factor));
    for (; j < n; j++)
        s[j] *= (real)by;
}

extern const struct attn_softmax KERNEL(attn_softmax);
const struct attn_softmax KERNEL(attn_softmax) = {weigh, multiply};
