/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random
 * numbers: as easy as 1, 2, 3" (SC11), and what dropout draws from it. Compiles as C11 and as CUDA.
 */
#ifndef ATTN_PHILOX_H
#define ATTN_PHILOX_H

#include <stdint.h>

#include "mask.h"

struct attn_philox {
    uint32_t word[4];
};

static inline ATTN_HD struct attn_philox attn_philox4x32(struct attn_philox counter, uint32_t key0,
                                                         uint32_t key1)
{
    struct attn_philox x = counter;
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)x.word[0] * 0xd2511f53u, b = (uint64_t)x.word[2] * 0xcd9e8d57u;
        const struct attn_philox y = {{(uint32_t)(b >> 32) ^ x.word[1] ^ key0, (uint32_t)b,
                                       (uint32_t)(a >> 32) ^ x.word[3] ^ key1, (uint32_t)a}};
        x = y;
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return x;
}

/* The draws of keys 4 n to 4 n + 3 for query i of row of heads bh, (first_sequence + b) Hq + h. */
static inline ATTN_HD struct attn_philox attn_draws(uint64_t seed, uint32_t offset, int64_t bh,
                                                    int64_t i, int64_t n)
{
    const struct attn_philox counter = {{(uint32_t)n, (uint32_t)i, (uint32_t)bh, offset}};
    return attn_philox4x32(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
}

#endif
