/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Cosines and sines of the rotary embedding, accurate to a few units in the last place of a double
 * at any position below 2^53: frequencies and angles are sums of two doubles. They are functions of
 * position and frequency alone, whatever was asked for before. What kernels need compiles as C11
 * and as CUDA.
 */
#ifndef ATTN_ANGLES_H
#define ATTN_ANGLES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "attn/attn.h"
#include "mask.h"

enum {
    ATTN_ANGLE_PAIRS = 64, /* pairs at a time: those of a head of 128 */
    ATTN_ANGLE_NEAR = 16   /* a power of two */
};

/* A number of about 100 bits: hi + lo, lo being at most about a unit in the last place of hi. */
struct attn_twofold {
    double hi, lo;
};

/* A point of the circle. */
struct attn_turn {
    double cos, sin;
};

/* The place of a position on the circle of one pair. */
static inline ATTN_HD struct attn_turn attn_turn_to(int64_t position, struct attn_twofold frequency)
{
    const double p = (double)position;
    const double hi = p * frequency.hi;
    const double lo = fma(p, frequency.hi, -hi) + p * frequency.lo;
    const bool small = fabs(lo) < 0x1p-27; /* then its square is none of the last digits */
    const double c = cos(hi), s = sin(hi);
    const double cos_lo = small ? 1 : cos(lo), sin_lo = small ? lo : sin(lo);
    struct attn_turn t;
    t.cos = c * cos_lo - s * sin_lo;
    t.sin = s * cos_lo + c * sin_lo;
    return t;
}

/* A position is a multiple of ATTN_ANGLE_NEAR and this rest. */
static inline ATTN_HD int64_t attn_angle_rest(int64_t position)
{
    return position & (ATTN_ANGLE_NEAR - 1);
}

/* Of both together. */
static inline ATTN_HD struct attn_turn attn_turn_sum(struct attn_turn far, struct attn_turn near,
                                                     bool inverse)
{
    const double way = inverse ? -1 : 1;
    struct attn_turn t;
    t.cos = far.cos * near.cos - far.sin * near.sin;
    t.sin = way * (far.sin * near.cos + far.cos * near.sin);
    return t;
}

/* A pair turned. */
static inline ATTN_HD double attn_turned_first(struct attn_turn by, double a, double b)
{
    return a * by.cos - b * by.sin;
}
static inline ATTN_HD double attn_turned_second(struct attn_turn by, double a, double b)
{
    return b * by.cos + a * by.sin;
}

struct attn_circle {
    double cos[ATTN_ANGLE_PAIRS], sin[ATTN_ANGLE_PAIRS];
};

/*
 * The angles of up to ATTN_ANGLE_PAIRS pairs. The sine and cosine of a multiple of ATTN_ANGLE_NEAR
 * and of a rest are kept, and their products give those of the sum: a token costs a sine in few
 * cases.
 */
struct attn_angles {
    const attn_rotation *rotation; /* defaults filled in */
    bool inverse;
    struct attn_twofold ratio, next; /* of neighbouring frequencies; of the next pair */
    int64_t first, pairs;            /* those at hand */
    struct attn_twofold frequency[ATTN_ANGLE_PAIRS];
    bool far_known, at_known;
    uint32_t near_known; /* a bit for each */
    int64_t far_position, at_position;
    struct attn_circle far, near[ATTN_ANGLE_NEAR];
    struct attn_circle at; /* at_position */
};

/* Elements from one pair to the next, and from the first of a pair to its second. */
static inline ATTN_HD int64_t attn_pair_step(const attn_rotation *r)
{
    return r->pairing == ATTN_INTERLEAVED ? 2 : 1;
}
static inline ATTN_HD int64_t attn_pair_partner(const attn_rotation *r)
{
    return r->pairing == ATTN_INTERLEAVED ? 1 : r->dim / 2;
}

/* Before the first pairs. The rotation has to stay. */
void attn_angles_begin(struct attn_angles *a, const attn_rotation *rotation, bool inverse);

/* Goes on to the next pairs; false if there are none. */
bool attn_angles_next(struct attn_angles *a);

/* Cosines and sines at a position. */
const struct attn_circle *attn_angles_at(struct attn_angles *a, int64_t position);

#endif
