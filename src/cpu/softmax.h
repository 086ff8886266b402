/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The softmax of a row of scores in memory, built once per instruction set and computing type. For
 * backends that hold whole rows; those that go through the keys in tiles have their own.
 */
#ifndef ATTN_CPU_SOFTMAX_H
#define ATTN_CPU_SOFTMAX_H

#include <stdint.h>

#include "attn/attn.h"

struct attn_softmax {
    /* s[j] = exp(scale (s[j] - *max)) for the n scores s, in the computing type, *max being the
     * largest of them; returns their sum. -inf is a key without weight. Where one is NaN or +inf it
     * returns NaN and where all are -inf 0, and s is as before or NaN in places. 2^-100 <= scale <=
     * 2^100. */
    double (*weigh)(void *s, int64_t n, double scale, double *max);
    /* s[j] *= by, in the computing type. */
    void (*multiply)(void *s, int64_t n, double by);
};

/* That of instruction set n, as attn_isa_name() counts, for f32 or f64. */
const struct attn_softmax *attn_isa_softmax(int32_t n, attn_dtype computing);

#endif
