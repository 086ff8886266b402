/* SPDX-License-Identifier: BSD-3-Clause */
/* vec_words_mul() of vec.h for eight words: those of a vector of f32 with AVX2, and of f64 with
 * AVX-512. */
INLINE void vec_words_mul(void *high, void *low, const void *x, uint32_t by)
{
    const __m256i a = _mm256_loadu_si256(x), b = _mm256_set1_epi32((int)by);
    const __m256i even = _mm256_mul_epu32(a, b);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b);
    _mm256_storeu_si256(high, _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa));
    _mm256_storeu_si256(low, _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa));
}
