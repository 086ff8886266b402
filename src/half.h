/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The 16-bit types, one number at a time, in integer arithmetic: widening is exact, narrowing
 * rounds to nearest with ties to even, a NaN stays a NaN. Compiles as C11 and as CUDA.
 */
#ifndef ATTN_HALF_H
#define ATTN_HALF_H

#include <stdint.h>
#include <string.h>

#include "mask.h"

static inline ATTN_HD uint32_t attn_bits_of(float a)
{
    uint32_t u;
    memcpy(&u, &a, sizeof u);
    return u;
}

static inline ATTN_HD float attn_from_bits(uint32_t u)
{
    float a;
    memcpy(&a, &u, sizeof a);
    return a;
}

static inline ATTN_HD float attn_bf16_to_f32(uint16_t h)
{
    return attn_from_bits((uint32_t)h << 16);
}

static inline ATTN_HD uint16_t attn_f32_to_bf16(float a)
{
    const uint32_t u = attn_bits_of(a);
    if ((u & 0x7fffffff) > 0x7f800000) /* NaN: quiet, so that no payload rounds to infinity */
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline ATTN_HD float attn_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) /* infinity, NaN */
        return attn_from_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13 |
                              (rest > 0x7c00 ? 0x400000 : 0));
    if (rest >= 0x400)
        return attn_from_bits(sign | (rest + ((127 - 15) << 10)) << 13);
    /* Denormal, in units of 2^-24. */
    return attn_from_bits(sign | attn_bits_of((float)rest * 0x1p-24f));
}

static inline ATTN_HD uint16_t attn_f32_to_f16(float a)
{
    const uint32_t u = attn_bits_of(a), rest = u & 0x7fffffff;
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    if (rest > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    if (rest >= 0x477ff000) /* 65520 and up round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (rest < 0x38800000) /* below 2^-14: adding 1/2 leaves units of 2^-24 in the low bits */
        return (uint16_t)(sign | (attn_bits_of(attn_from_bits(rest) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | (rest - ((127 - 15) << 23) + 0xfff + (rest >> 13 & 1)) >> 13);
}

#endif
