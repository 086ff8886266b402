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
 * because its kernels use a shorter exponential. Where the truth is not finite the result has to be
 * of the same kind: NaN where NaN, the same infinity in the LSE, anything not finite where an
 * infinite value is seen. Whatever is not within the budget counts, NaN included.
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

enum compare_what { COMPARE_OUT, COMPARE_LSE };

struct compare_fault {
    int64_t index; /* the first bad one */
    double got;
    long double expected, error, allowed;
};

/* One unit in the last place of the type at |x|. */
long double compare_ulp(attn_dtype type, long double x);

/* What the budget allows for n values of a problem of that type, going by one run of the plain
 * loops. */
long double compare_allowed(enum compare_what what, attn_dtype type, const long double *truth,
                            const long double *eager, int64_t n);

/* Whether all of got[n] are within `allowed` of the truth; otherwise *fault tells the first that is
 * not. *worst (may be null) becomes the largest error relative to `allowed`, where that is more. */
bool compare_values(enum compare_what what, const long double *truth, long double allowed,
                    const double *got, int64_t n, double *worst, struct compare_fault *fault);

/* The first of n where a and b differ in a bit, or -1. NaNs are all alike. */
int64_t compare_bits(const double *a, const double *b, int64_t n);

#endif
