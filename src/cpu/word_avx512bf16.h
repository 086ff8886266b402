/* SPDX-License-Identifier: BSD-3-Clause */
/* Words of two bf16 numbers, multiplied and added in f32 by one instruction. See word_bf16.h. */
#include "cpu/word_avx512dot.h"

INLINE vec word_pack(const vec a[2])
{
    /* The instruction puts a[0] into the lower half; a word takes one number from each. */
    static const uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                       21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                       11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(a[1], a[0]);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_loadu_si512(order), halves));
}

#include "cpu/word_bf16.h"
