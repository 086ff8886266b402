/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Cosines and sines of the rotary embedding, accurate to a few units in the last place of a double
 * at any position below 2^53: frequencies and angles are sums of two doubles. They are functions of
 * position and frequency alone, whatever was asked for before.
 */
#ifndef ATTN_ANGLES_H
#define ATTN_ANGLES_H

#include <stdbool.h>
#include <stdint.h>

#include "attn/attn.h"

enum {
    ATTN_ANGLE_PAIRS = 64, /* pairs at a time: those of a head of 128 */
    ATTN_ANGLE_NEAR = 16   /* a power of two */
};

/* A number of about 100 bits: hi + lo, lo being at most about a unit in the last place of hi. */
struct attn_twofold {
    double hi, lo;
};

struct attn_circle {
    double cos[ATTN_ANGLE_PAIRS], sin[ATTN_ANGLE_PAIRS];
};

/*
 * The angles of up to ATTN_ANGLE_PAIRS pairs. A position is a multiple of ATTN_ANGLE_NEAR and a
 * rest below it; the sine and cosine of each are kept, and their products give those of the sum: a
 * token costs a sine in few cases.
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

/* Before the first pairs. The rotation has to stay. */
void attn_angles_begin(struct attn_angles *a, const attn_rotation *rotation, bool inverse);

/* Goes on to the next pairs; false if there are none. */
bool attn_angles_next(struct attn_angles *a);

/* Cosines and sines at a position. */
const struct attn_circle *attn_angles_at(struct attn_angles *a, int64_t position);

#endif
