/* SPDX-License-Identifier: BSD-3-Clause */
/* Words of two bf16 numbers in vectors of AVX-512: what needs no instructions for bf16. See
 * word_bf16.h. */
INLINE vec low_half(vec w)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(w), 16));
}

INLINE vec high_half(vec w)
{
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(w), _mm512_set1_epi32((int)0xffff0000)));
}

INLINE vec word_load(const elem *p) { return _mm512_castsi512_ps(_mm512_loadu_si512(p)); }

INLINE vec word_zip(const elem *const row[2])
{
    const void *first = row[0], *second = row[1];
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(first));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(second));
    return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
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

/* The larger sizes, number by number, as integers; and whether all are those of finite numbers. */
INLINE vec word_largest(vec a, vec b)
{
    const __m512i size = _mm512_and_si512(_mm512_castps_si512(b), _mm512_set1_epi16(0x7fff));
    return _mm512_castsi512_ps(_mm512_max_epu16(_mm512_castps_si512(a), size));
}

INLINE bool word_all_finite(vec sizes)
{
    return _mm512_cmplt_epu16_mask(_mm512_castps_si512(sizes), _mm512_set1_epi16(0x7f80)) ==
           UINT32_MAX;
}
