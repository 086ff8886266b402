/* SPDX-License-Identifier: BSD-3-Clause */
/* Random numbers that a seed gives again (SplitMix64). */
#ifndef EXAMPLES_DRAW_H
#define EXAMPLES_DRAW_H

#include <stdint.h>

static inline uint64_t draw_bits(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z;
}

static inline float draw(uint64_t *state) /* uniform, -1 to 1 */
{
    return (float)(draw_bits(state) >> 40) * 0x1p-23F - 1;
}

#endif
