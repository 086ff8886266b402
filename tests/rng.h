/* SPDX-License-Identifier: BSD-3-Clause */
/* A small seeded generator (splitmix64): the same numbers on every machine and compiler. */
#ifndef TESTS_RNG_H
#define TESTS_RNG_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

struct rng {
    uint64_t state;
};

static inline uint64_t rng_next(struct rng *r)
{
    uint64_t x = r->state += UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Neighbouring seeds give unrelated sequences. */
static inline struct rng rng_seeded(uint64_t seed)
{
    struct rng r = {seed ^ UINT64_C(0x5851f42d4c957f2d)};

    r.state = rng_next(&r);
    return r;
}

/* 0 .. n - 1, n >= 1. */
static inline int64_t rng_below(struct rng *r, int64_t n)
{
    return (int64_t)(rng_next(r) % (uint64_t)n);
}

static inline bool rng_chance(struct rng *r, int percent) { return rng_below(r, 100) < percent; }

static inline double rng_uniform(struct rng *r) { return (double)(rng_next(r) >> 11) * 0x1p-53; }

/* Close to normal, mean 0, variance 1, within +-3.5: four 16-bit uniforms summed. */
static inline double rng_normal(struct rng *r)
{
    const uint64_t x = rng_next(r);
    const double sum = (double)(x & 0xffff) + (double)(x >> 16 & 0xffff) +
                       (double)(x >> 32 & 0xffff) + (double)(x >> 48);

    return (sum * 0x1p-16 - 2.0) * 1.7320508075688772 + (double)(x % 127) * 0x1p-22;
}

#define RNG_PICK(r, table) ((table)[rng_below((r), (int64_t)(sizeof(table) / sizeof *(table)))])

#endif
