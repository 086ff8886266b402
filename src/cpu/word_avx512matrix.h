/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What comes between products of matrices of bf16 numbers. Nothing goes on beside it, and while
 * these are under way one of two vector units rests: what counts is how many operations there are.
 * Included by a word_<set>.h, which gives vec_mac().
 */
#define MATRIX 16

/* The instruction of AVX512-BF16 and a permutation take as many operations, most of them on the one
 * port that moves numbers from lane to lane. */
INLINE vec word_pack(const vec a[2])
{
    enum { AND_OR = 0xec }; /* (a & c) | b */
    const __m512i half = _mm512_set1_epi32(1 << 15);
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
    const __m512i first = _mm512_add_epi32(_mm512_castps_si512(a[0]), half);
    const __m512i second = _mm512_add_epi32(_mm512_castps_si512(a[1]), half);
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(second, _mm512_srli_epi32(first, 16), high, AND_OR));
}

/* 2^f of the exponent's fraction f, 0 to 1, by a polynomial, minimax to 2^-23.3 of it with 2^0
 * exactly 1. */
INLINE vec word_weigh(vec x, struct exponent c)
{
    enum { DOWN = 1 }; /* to the integer below */
    static const real poly[] = {1,
                                0x1.62e4bap-1f,
                                0x1.ebdb56p-3f,
                                0x1.c91ce6p-5f,
                                0x1.277856p-7f,
                                0x1.e974fap-10f};
    const vec exponent = vec_mul(x, vec_set(c.by)), f = _mm512_reduce_ps(exponent, DOWN);
    const vmask some = _mm512_cmp_ps_mask(exponent, vec_set(EXP2_LOW), _CMP_NLE_UQ);
    vec q = vec_set(WEIGHT_ONE * poly[5]);
    UNROLL for (int i = 4; i >= 0; i--)
        q = vec_fma(q, f, vec_set(WEIGHT_ONE * poly[i]));
    return _mm512_maskz_scalef_ps(some, q, exponent);
}

#include "cpu/word_bf16.h"
