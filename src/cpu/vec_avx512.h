/* SPDX-License-Identifier: BSD-3-Clause */
/* AVX-512 (F, BW, DQ, VL): 32 registers of 512 bits. See vec.h for what each name means. */
#include <immintrin.h>

enum { MR = 8, NV = WIDE_BLOCKS ? 3 : 2 };

#if REAL_BITS == 32
typedef float real;
typedef __m512 vec;
typedef __mmask16 vmask;
#define VEC_N 16

INLINE vec vec_load(const real *p) { return _mm512_loadu_ps(p); }
INLINE void vec_store(real *p, vec a) { _mm512_storeu_ps(p, a); }
#define VEC_HALVES
INLINE void vec_store_low(real *p, vec a) { _mm256_storeu_ps(p, _mm512_castps512_ps256(a)); }
INLINE void vec_store_high(real *p, vec a) { _mm256_storeu_ps(p, _mm512_extractf32x8_ps(a, 1)); }
INLINE vec vec_set(real a) { return _mm512_set1_ps(a); }

#define VEC_SPREAD
INLINE vec vec_spread(const real *p)
{
    int bits;
    memcpy(&bits, p, sizeof bits);
    return _mm512_castsi512_ps(_mm512_set1_epi32(bits));
}

INLINE vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
INLINE vec vec_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
INLINE vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
INLINE vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vec vec_fms(vec a, vec b, vec c) { return _mm512_fmsub_ps(a, b, c); }
INLINE vec vec_div(vec a, vec b) { return _mm512_div_ps(a, b); }
INLINE vec vec_max(vec a, vec b) { return _mm512_max_ps(a, b); }
INLINE vmask vec_le(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
INLINE vmask vec_lt(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
INLINE vec vec_select(vmask m, vec a, vec b) { return _mm512_mask_blend_ps(m, b, a); }
INLINE vec vec_unless(vmask m, vec a) { return _mm512_maskz_mov_ps((vmask)~m, a); }
INLINE vmask vmask_and(vmask a, vmask b) { return (vmask)(a & b); }
INLINE int vmask_all(vmask m) { return m == 0xffff; }
INLINE vmask vmask_of(uint32_t bits) { return (vmask)bits; }
INLINE vec vec_round(vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT); }

/* NaN stays. */
INLINE vec vec_ldexp(vec a, vec n)
{
    const vmask above = _mm512_cmp_ps_mask(n, _mm512_set1_ps(EXP2_LOW), _CMP_NLE_UQ);
    return _mm512_maskz_scalef_ps(above, a, n);
}

INLINE vec vec_from_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

INLINE void vec_to_f16(uint16_t *p, vec a)
{
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

INLINE vec vec_from_bf16(const uint16_t *p)
{
    const __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

INLINE void vec_to_bf16(uint16_t *p, vec a)
{
    const __m512i u = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    const __m512i h = _mm512_srli_epi32(_mm512_mask_blend_epi32(nan, up, quiet), 16);
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(h));
}

INLINE void vec_transpose(vec r[VEC_N])
{
    vec t[VEC_N];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int h = 0; h < 2; h++) {
            const __m512d a = _mm512_castps_pd(t[i + h]), b = _mm512_castps_pd(t[i + 2 + h]);
            r[i + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            r[i + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    }
}

/* The quarters of a vector: four numbers of each row. */
INLINE vec four_rows(const void *const *at, int64_t skip)
{
    __m256 half[2];
    UNROLL for (int i = 0; i < 2; i++) {
        const float *a = (const void *)((const char *)at[8 * i] + skip);
        const float *b = (const void *)((const char *)at[8 * i + 4] + skip);
        half[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a)), _mm_loadu_ps(b), 1);
    }
    return _mm512_insertf32x8(_mm512_castps256_ps512(half[0]), half[1], 1);
}

#define VEC_FOURS
INLINE void vec_fours(vec r[4], const void *const at[VEC_N], int64_t skip)
{
    __m512d t[4];
    UNROLL for (int i = 0; i < 4; i += 2) {
        const vec a = four_rows(at + i, skip), b = four_rows(at + i + 1, skip);
        t[i] = _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
        t[i + 1] = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
    }
    UNROLL for (int i = 0; i < 2; i++) {
        r[2 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(t[i], t[i + 2]));
        r[2 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(t[i], t[i + 2]));
    }
}

/* Two vectors' 128-bit quarters, pairwise added: the first one's two sums, then the second's. */
INLINE vec add_quarters(vec a, vec b)
{
    return vec_add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

INLINE vec vec_sums(const vec r[VEC_N])
{
    vec a[8], b[4];
    UNROLL for (int i = 0; i < 8; i++) { /* r[x], r[x + 2] of the order that comes out below */
        const vec x = r[4 * (i % 4) + i / 4], y = r[4 * (i % 4) + i / 4 + 2];
        a[i] = vec_add(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y));
    }
    UNROLL for (int i = 0; i < 4; i++)
        b[i] = vec_add(_mm512_unpacklo_ps(a[i], a[i + 4]), _mm512_unpackhi_ps(a[i], a[i + 4]));
    return add_quarters(add_quarters(b[0], b[1]), add_quarters(b[2], b[3]));
}

#define EXP2_BITS 5
INLINE vec vec_power(vec i, vec n, int lift)
{
    static const float roots[] = {
        0x1p+0f, 0x1.059b0ep+0f, 0x1.0b5586p+0f, 0x1.11301ep+0f, 0x1.172b84p+0f, 0x1.1d4874p+0f,
        0x1.2387a6p+0f, 0x1.29e9ep+0f, 0x1.306fep+0f, 0x1.371a74p+0f, 0x1.3dea64p+0f,
        0x1.44e086p+0f, 0x1.4bfdaep+0f, 0x1.5342b6p+0f, 0x1.5ab07ep+0f, 0x1.6247ecp+0f,
        0x1.6a09e6p+0f, 0x1.71f75ep+0f, 0x1.7a1148p+0f, 0x1.82589ap+0f, 0x1.8ace54p+0f,
        0x1.93737cp+0f, 0x1.9c4918p+0f, 0x1.a5503cp+0f, 0x1.ae89fap+0f, 0x1.b7f77p+0f,
        0x1.c199bep+0f, 0x1.cb720ep+0f, 0x1.d5818ep+0f, 0x1.dfc974p+0f, 0x1.ea4afap+0f,
        0x1.f50766p+0f};
    const vec one = vec_set(lift > 0 ? WEIGHT_ONE : 1);
    const vec low = vec_mul(one, _mm512_loadu_ps(roots));
    const vec high = vec_mul(one, _mm512_loadu_ps(roots + 16));
    return vec_ldexp(_mm512_permutex2var_ps(low, _mm512_castps_si512(i), high), n);
}

/* The roots times EXP2_FACTOR, to which two constants in vec.h belong, without their index, which
 * lies at the top of the fraction once the exponent is in its place. */
#define EXP2_FACTOR 0x1.ebfc02p-1f
INLINE vec vec_power_times_factor(vec i)
{
    enum { SHIFT = 23 - EXP2_BITS, MOST = 0x48400000 + ((128 - WEIGHT_BITS) << EXP2_BITS) };
    static const int roots[] = { /* and times WEIGHT_ONE */
        0x4b75fe01, 0x4b7760f4, 0x4b78710d, 0x4b77410d, 0x4b7620d2, 0x4b7510b3, 0x4b74110a,
        0x4b732235, 0x4b724491, 0x4b71787f, 0x4b70be61, 0x4b70169c, 0x4b6f8197, 0x4b6effbb,
        0x4b6e9172, 0x4b6e372c, 0x4b6df158, 0x4b6dc069, 0x4b6da4d4, 0x4b6d9f10, 0x4b6daf98,
        0x4b6dd6e9, 0x4b6e1583, 0x4b6e6be8, 0x4b6eda9d, 0x4b6f622b, 0x4b70031d, 0x4b70be02,
        0x4b71936b, 0x4b7283ec, 0x4b73901d, 0x4b74b89a};
    const __m512i k = _mm512_min_epi32(_mm512_castps_si512(i), _mm512_set1_epi32(MOST));
    const __m512i root = _mm512_permutex2var_epi32(_mm512_loadu_si512(roots), k,
                                                   _mm512_loadu_si512(roots + 16));
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(k, SHIFT), root));
}

#else
typedef double real;
typedef __m512d vec;
typedef __mmask8 vmask;
#define VEC_N 8

INLINE vec vec_load(const real *p) { return _mm512_loadu_pd(p); }
INLINE void vec_store(real *p, vec a) { _mm512_storeu_pd(p, a); }
INLINE vec vec_set(real a) { return _mm512_set1_pd(a); }

#define VEC_SPREAD
INLINE vec vec_spread(const real *p)
{
    long long bits;
    memcpy(&bits, p, sizeof bits);
    return _mm512_castsi512_pd(_mm512_set1_epi64(bits));
}

INLINE vec vec_add(vec a, vec b) { return _mm512_add_pd(a, b); }
INLINE vec vec_sub(vec a, vec b) { return _mm512_sub_pd(a, b); }
INLINE vec vec_mul(vec a, vec b) { return _mm512_mul_pd(a, b); }
INLINE vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_pd(a, b, c); }
INLINE vec vec_fms(vec a, vec b, vec c) { return _mm512_fmsub_pd(a, b, c); }
INLINE vec vec_div(vec a, vec b) { return _mm512_div_pd(a, b); }
INLINE vec vec_max(vec a, vec b) { return _mm512_max_pd(a, b); }
INLINE vmask vec_le(vec a, vec b) { return _mm512_cmp_pd_mask(a, b, _CMP_LE_OQ); }
INLINE vmask vec_lt(vec a, vec b) { return _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ); }
INLINE vec vec_select(vmask m, vec a, vec b) { return _mm512_mask_blend_pd(m, b, a); }
INLINE vec vec_unless(vmask m, vec a) { return _mm512_maskz_mov_pd((vmask)~m, a); }
INLINE vmask vmask_and(vmask a, vmask b) { return (vmask)(a & b); }
INLINE int vmask_all(vmask m) { return m == 0xff; }
INLINE vmask vmask_of(uint32_t bits) { return (vmask)bits; }
INLINE vec vec_round(vec a) { return _mm512_roundscale_pd(a, _MM_FROUND_TO_NEAREST_INT); }

INLINE vec vec_ldexp(vec a, vec n)
{
    const vmask above = _mm512_cmp_pd_mask(n, _mm512_set1_pd(EXP2_LOW), _CMP_NLE_UQ);
    return _mm512_maskz_scalef_pd(above, a, n);
}

INLINE void vec_transpose(vec r[VEC_N])
{
    vec t[VEC_N];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm512_unpacklo_pd(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_pd(r[i], r[i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        r[i] = _mm512_shuffle_f64x2(t[i], t[i + 2], 0x88);
        r[i + 2] = _mm512_shuffle_f64x2(t[i], t[i + 2], 0xdd);
        r[i + 4] = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0x88);
        r[i + 6] = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f64x2(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f64x2(r[i], r[i + 4], 0xdd);
    }
    for (int i = 0; i < 8; i++)
        r[i] = t[i];
}

INLINE vec add_quarters(vec a, vec b)
{
    return vec_add(_mm512_shuffle_f64x2(a, b, 0x88), _mm512_shuffle_f64x2(a, b, 0xdd));
}

INLINE vec vec_sums(const vec r[VEC_N])
{
    vec a[4];
    UNROLL for (int i = 0; i < 4; i++)
        a[i] = vec_add(_mm512_unpacklo_pd(r[2 * i], r[2 * i + 1]),
                       _mm512_unpackhi_pd(r[2 * i], r[2 * i + 1]));
    return add_quarters(add_quarters(a[0], a[1]), add_quarters(a[2], a[3]));
}

#define EXP2_BITS 4
INLINE vec vec_power(vec i, vec n, int lift)
{
    static const double roots[] = {
        0x1p+0, 0x1.0b5586cf9890fp+0, 0x1.172b83c7d517bp+0, 0x1.2387a6e756238p+0,
        0x1.306fe0a31b715p+0, 0x1.3dea64c123422p+0, 0x1.4bfdad5362a27p+0, 0x1.5ab07dd485429p+0,
        0x1.6a09e667f3bcdp+0, 0x1.7a11473eb0187p+0, 0x1.8ace5422aa0dbp+0, 0x1.9c49182a3f09p+0,
        0x1.ae89f995ad3adp+0, 0x1.c199bdd85529cp+0, 0x1.d5818dcfba487p+0, 0x1.ea4afa2a490dap+0};
    const vec one = vec_set(lift > 0 ? WEIGHT_ONE : 1);
    const vec low = vec_mul(one, _mm512_loadu_pd(roots));
    const vec high = vec_mul(one, _mm512_loadu_pd(roots + 8));
    return vec_ldexp(_mm512_permutex2var_pd(low, _mm512_castpd_si512(i), high), n);
}
#endif

INLINE void vec_keep(vec *a) { __asm__("" : "+v"(*a)); }

#define VEC_LOAD_SOME
INLINE void vec_load_some(void *to, const void *from, int64_t n)
{
    _mm512_storeu_si512(to, _mm512_maskz_loadu_epi8(((__mmask64)1 << n) - 1, from));
}

#define VEC_WORDS_MUL
INLINE void vec_words_mul(void *to, const void *x, uint32_t by)
{
#if REAL_BITS == 32
    const __m512i b = _mm512_set1_epi32((int)by);
    _mm512_storeu_si512(to, _mm512_mul_epu32(_mm512_loadu_si512(x), b));
#else
    const __m256i b = _mm256_set1_epi32((int)by);
    _mm256_storeu_si256(to, _mm256_mul_epu32(_mm256_loadu_si256(x), b));
#endif
}

#define VEC_WORDS_ABOVE
INLINE uint32_t vec_words_above(const uint32_t *x, uint32_t limit)
{
#if REAL_BITS == 32
    return _mm512_cmpgt_epu32_mask(_mm512_loadu_si512(x), _mm512_set1_epi32((int)limit));
#else
    const __m256i words = _mm256_loadu_si256((const __m256i *)(const void *)x);
    return _mm256_cmpgt_epu32_mask(words, _mm256_set1_epi32((int)limit));
#endif
}
