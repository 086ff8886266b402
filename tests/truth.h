/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What attention is, by plain loops: one sequence at a time, every (query, key) pair asked by
 * itself whether it is visible. Shares nothing with the library but the names of element types.
 *
 * The truth is computed in long double for f64 and in double for all others. The same loops run in
 * the element type itself give the error of a straightforward computation, which the budget is made
 * of: in a 16-bit type everything is f32, with the probabilities rounded to the type before they
 * meet the values (their sum is taken before that) and the results rounded to it once.
 */
#ifndef TESTS_TRUTH_H
#define TESTS_TRUTH_H

#include <stdbool.h>
#include <stdint.h>

#include "attn/attn.h"

/* One sequence. The arrays are dense and hold elements of `dtype` as doubles. */
struct truth_seq {
    attn_dtype dtype;
    int64_t nq, nk, hq, hkv, d, dv;
    double scale; /* 0: 1 / sqrt(d) */

    bool causal, window;
    attn_align align;
    int64_t left, right; /* of the window; negative: unlimited */
    uint8_t *key_mask;   /* [nk], non-zero = attend; null: no mask */

    double *q;  /* [hq][nq][d] */
    double *kt; /* [hkv][d][nk] */
    double *v;  /* [hkv][nk][dv] */
};

/* [hq][nq][dv] and [hq][nq]. In the truth, an infinity in `out` stands for "not finite": an
 * infinite value that a row sees makes its column infinite or NaN, by the weight it gets. */
struct truth_values {
    long double *out, *lse;
};

/* Whether query i attends to key j, scores aside. */
bool truth_visible(const struct truth_seq *s, int64_t i, int64_t j);

void truth_compute(const struct truth_seq *s, struct truth_values *values);

/* The same loops in the element type. Order 0 takes all sums as they come; any other number names
 * one shuffled order of the head's elements and of the keys, with multiply-adds fused or not, the
 * division by the sum before or after the values and the scale on the scores or on the query, and
 * one order for all keys or one for each, all of which is as plain and as good. */
void truth_eager_in_type(const struct truth_seq *s, int order, struct truth_values *values);

#endif
