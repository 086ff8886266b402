/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The error budget, stated here and nowhere else. For one sequence and one query head:
 *
 *     err     = max |x - truth|
 *     allowed = 2 err(plain loops in the element type) + 2 ulp of that type at max |truth|
 *
 * for `out` over [nq][dv], and likewise for the LSE over [nq], where the floor is 2 ulp at
 * max(1, |truth|): an absolute error of the LSE is a relative one of all weights. The LSE of 16-bit
 * types is an f32, with the ulp of f32; that of bf16 may instead be off by 1e-5 max(1, |truth|),
 * because its kernels use a shorter exponential.
 *
 * The same for the probabilities over [nq][nk] and for the sums of their columns over [nk]. `probs`
 * is of the element type; the tiles of `probs_fn` and the sums are of the computing type, and so is
 * their ulp. Where the truth of these is 0 (hidden, dropped, or past a length) they are 0.
 *
 * The same for gradients: dq over [nq][d] of a query head, dk over [nk][d] and dv over [nk][dv] of
 * a key head, all of the element type; dbias, of the bias' type, and dsink, of the computing type,
 * over all that there is of them. They are exactly 0 where nothing is added. Where the truth comes
 * near the end of the type's range, any result is right: a sum on the way may have left it.
 *
 * Where the truth is not finite the result has to be of the same kind: NaN where NaN, the same
 * infinity in the LSE, anything not finite where an infinite value is seen, and in gradients.
 * Whatever is not within the budget counts, NaN included; what the truth leaves open does not.
 */
#ifndef TESTS_COMPARE_H
#define TESTS_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "attn/attn.h"

#define BUDGET_FACTOR 2
#define BUDGET_ULPS 2
#define BUDGET_BF16_LSE 1e-5L

/*
 * The error of the plain loops is a matter of chance where few values make the maximum: plain loops
 * in one order miss a budget made from those in another, twice as often as a kernel does. So it is
 * the largest over this many plain computations, which differ in what "plain" leaves open (see
 * truth_eager_in_type()).
 */
#define BUDGET_ORDERS 64

enum compare_what {
    COMPARE_OUT,
    COMPARE_LSE,
    COMPARE_PROBS, /* probs */
    COMPARE_TILES, /* probs_fn */
    COMPARE_SUMS,  /* key_sums */
    COMPARE_DQ,
    COMPARE_DK,
    COMPARE_DV,
    COMPARE_DBIAS,
    COMPARE_DSINK,
    COMPARES
};
extern const char *const compare_names[COMPARES];

struct compare_fault {
    int64_t index; /* the first bad one */
    double got;
    long double expected, error, allowed;
};

/* One unit in the last place of the type at |x|. */
long double compare_ulp(attn_dtype type, long double x);

/* What the budget allows for n values of a problem of that type (dbias: of that bias), going by one
 * run of the plain loops. */
long double compare_allowed(enum compare_what what, attn_dtype type, const long double *truth,
                            const long double *eager, int64_t n);

/* Whether all of got[n] are within `allowed` of the truth; otherwise *fault tells the first that is
 * not. *worst (may be null) becomes the largest error relative to `allowed`, where that is more. */
bool compare_values(enum compare_what what, const long double *truth, long double allowed,
                    const double *got, int64_t n, double *worst, struct compare_fault *fault);

/* The first of n where a and b differ in a bit, or -1. NaNs are all alike. */
int64_t compare_bits(const double *a, const double *b, int64_t n);

#endif
