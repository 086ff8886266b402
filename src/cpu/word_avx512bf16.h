/* SPDX-License-Identifier: BSD-3-Clause */
/* Words of two bf16 numbers, multiplied and added in f32 by one instruction. See word_bf16.h. */
INLINE __m512bh as_pairs(vec w) { return (__m512bh)_mm512_castps_si512(w); }

INLINE vec low_half(vec w)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(w), 16));
}

INLINE vec high_half(vec w)
{
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(w), _mm512_set1_epi32((int)0xffff0000)));
}

INLINE vec vec_mac(vec a, vec b, vec c) { return _mm512_dpbf16_ps(c, as_pairs(a), as_pairs(b)); }
INLINE vec word_load(const elem *p) { return _mm512_castsi512_ps(_mm512_loadu_si512(p)); }

INLINE vec word_zip(const elem *const row[2])
{
    const void *first = row[0], *second = row[1];
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(first));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(second));
    return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}

INLINE vec word_pack(const vec a[2])
{
    /* The instruction puts a[0] into the lower half; a word takes one number from each. */
    static const uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                       21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                       11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(a[1], a[0]);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_loadu_si512(order), halves));
}

INLINE vec word_seen(vec w, const vmask seen[2])
{
    const __m512i low = _mm512_maskz_set1_epi32(seen[0], 0xffff);
    const __m512i high = _mm512_maskz_set1_epi32(seen[1], (int)0xffff0000);
    const __m512i all = _mm512_or_si512(low, high);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(w), all));
}

INLINE vec word_negate(vec w)
{
    const __m512i signs = _mm512_set1_epi32((int)0x80008000);
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(w), signs));
}

#include "cpu/word_bf16.h"
