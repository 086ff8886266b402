/* SPDX-License-Identifier: BSD-3-Clause */
/* AVX2 with FMA: 16 registers of 256 bits. See vec.h for what each name means. */
#include <immintrin.h>

enum { MR = 4, NV = 3 };

#if REAL_BITS == 32
typedef float real;
typedef __m256 vec;
typedef __m256 vmask;
#define VEC_N 8

INLINE vec vec_load(const real *p) { return _mm256_loadu_ps(p); }
INLINE void vec_store(real *p, vec a) { _mm256_storeu_ps(p, a); }
#define VEC_HALVES
INLINE void vec_store_low(real *p, vec a) { _mm_storeu_ps(p, _mm256_castps256_ps128(a)); }
INLINE void vec_store_high(real *p, vec a) { _mm_storeu_ps(p, _mm256_extractf128_ps(a, 1)); }
INLINE vec vec_set(real a) { return _mm256_set1_ps(a); }
INLINE vec vec_add(vec a, vec b) { return _mm256_add_ps(a, b); }
INLINE vec vec_sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
INLINE vec vec_mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
INLINE vec vec_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vec vec_fms(vec a, vec b, vec c) { return _mm256_fmsub_ps(a, b, c); }
INLINE vec vec_div(vec a, vec b) { return _mm256_div_ps(a, b); }
INLINE vec vec_max(vec a, vec b) { return _mm256_max_ps(a, b); }
INLINE vmask vec_le(vec a, vec b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
INLINE vmask vec_lt(vec a, vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
INLINE vec vec_select(vmask m, vec a, vec b) { return _mm256_blendv_ps(b, a, m); }
INLINE vec vec_unless(vmask m, vec a) { return _mm256_andnot_ps(m, a); }
INLINE vmask vmask_and(vmask a, vmask b) { return _mm256_and_ps(a, b); }
INLINE int vmask_all(vmask m) { return _mm256_movemask_ps(m) == 0xff; }

INLINE vmask vmask_of(uint32_t bits)
{
    const __m256i lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i given = _mm256_and_si256(_mm256_set1_epi32((int)bits), lanes);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(given, lanes));
}

INLINE vec vec_round(vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT); }

INLINE vec vec_ldexp(vec a, vec n)
{
    n = _mm256_min_ps(vec_set(127), n);
    const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(e, 23)));
}

INLINE vec vec_from_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

INLINE void vec_to_f16(uint16_t *p, vec a)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

INLINE vec vec_from_bf16(const uint16_t *p)
{
    const __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

INLINE void vec_to_bf16(uint16_t *p, vec a)
{
    const __m256i u = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const vec nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
    const __m256i h = _mm256_srli_epi32(
        _mm256_blendv_epi8(up, quiet, _mm256_castps_si256(nan)), 16);
    const __m128i low = _mm256_castsi256_si128(h), high = _mm256_extracti128_si256(h, 1);
    _mm_storeu_si128((__m128i *)(void *)p, _mm_packus_epi32(low, high));
}

INLINE void vec_transpose(vec r[VEC_N])
{
    vec t[VEC_N];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int h = 0; h < 2; h++) {
            r[i + 2 * h] = _mm256_shuffle_ps(t[i + h], t[i + 2 + h], 0x44);
            r[i + 2 * h + 1] = _mm256_shuffle_ps(t[i + h], t[i + 2 + h], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    for (int i = 0; i < 8; i++)
        r[i] = t[i];
}

/* The halves of a vector: four numbers of each row. */
INLINE vec two_rows(const void *const *at, int64_t skip)
{
    const float *a = (const void *)((const char *)at[0] + skip);
    const float *b = (const void *)((const char *)at[4] + skip);
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a)), _mm_loadu_ps(b), 1);
}

#define VEC_FOURS
INLINE void vec_fours(vec r[4], const void *const at[VEC_N], int64_t skip)
{
    __m256d t[4];
    UNROLL for (int i = 0; i < 4; i += 2) {
        const vec a = two_rows(at + i, skip), b = two_rows(at + i + 1, skip);
        t[i] = _mm256_castps_pd(_mm256_unpacklo_ps(a, b));
        t[i + 1] = _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
    }
    UNROLL for (int i = 0; i < 2; i++) {
        r[2 * i] = _mm256_castpd_ps(_mm256_unpacklo_pd(t[i], t[i + 2]));
        r[2 * i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(t[i], t[i + 2]));
    }
}

INLINE vec vec_sums(const vec r[VEC_N])
{
    vec a[4], b[2];
    UNROLL for (int i = 0; i < 4; i++) {
        const vec x = r[4 * (i % 2) + i / 2], y = r[4 * (i % 2) + i / 2 + 2];
        a[i] = vec_add(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y));
    }
    UNROLL for (int i = 0; i < 2; i++)
        b[i] = vec_add(_mm256_unpacklo_ps(a[i], a[i + 2]), _mm256_unpackhi_ps(a[i], a[i + 2]));
    return vec_add(_mm256_permute2f128_ps(b[0], b[1], 0x20),
                   _mm256_permute2f128_ps(b[0], b[1], 0x31));
}

/* The roots of 2 without their index, which lies at the top of the fraction once the exponent is in
 * its place. Too large an exponent gives infinity. */
#define EXP2_BITS 3
INLINE vec vec_power(vec i, vec n, int lift)
{
    enum { SHIFT = 23 - EXP2_BITS, ZERO = 0x49c00000 }; /* i of 2^0 */
    const __m256i roots = _mm256_setr_epi32(0x3f800000, 0x3f7b95c2, 0x3f7837f0, 0x3f75fed7,
                                            0x3f7504f3, 0x3f75672a, 0x3f7744fd, 0x3f7ac0c7);
    const __m256i most = _mm256_set1_epi32(ZERO + ((128 - lift) << EXP2_BITS));
    const __m256i k = _mm256_min_epi32(_mm256_castps_si256(i), most);
    const __m256i power = _mm256_add_epi32(
        _mm256_slli_epi32(k, SHIFT),
        _mm256_permutevar8x32_epi32(_mm256_add_epi32(roots, _mm256_set1_epi32(lift << 23)), k));
    const vec above = _mm256_cmp_ps(n, vec_set(EXP2_LOW), _CMP_NLE_UQ);
    return _mm256_and_ps(above, _mm256_castsi256_ps(power));
}

/* The same for roots times EXP2_FACTOR and WEIGHT_ONE; too large an exponent gives NaN. */
#define EXP2_FACTOR 0x1.c6a038p+1f
INLINE vec vec_power_times_factor(vec i)
{
    enum { SHIFT = 23 - EXP2_BITS, MOST = 0x48c00000 + ((127 - WEIGHT_BITS) << EXP2_BITS) };
    const __m256i roots = _mm256_setr_epi32(0x4c63501c, 0x4c67e2f2, 0x4c67293c, 0x4c6364ea,
                                            0x4c60bc09, 0x4c5f4840, 0x4c5f2589, 0x4c607266);
    const __m256i k = _mm256_min_epi32(_mm256_castps_si256(i), _mm256_set1_epi32(MOST));
    const __m256i root = _mm256_permutevar8x32_epi32(roots, k);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(k, SHIFT), root));
}

/* 12 sums, 3 vectors and a broadcast fill the registers: with anything else between columns,
 * compilers keep some of the sums in memory. */
#if defined(__x86_64__) && !defined(__ILP32__)
#define VEC_COLUMN
#define TIMES_ROW(row, a, b, c)                                                                    \
    "vbroadcastss " row ", %%ymm15\n\t"                                                            \
    "vfmadd231ps %%ymm12, %%ymm15, %" #a "\n\t"                                                    \
    "vfmadd231ps %%ymm13, %%ymm15, %" #b "\n\t"                                                    \
    "vfmadd231ps %%ymm14, %%ymm15, %" #c "\n\t"
INLINE void vec_column(vec s[MR][NV], const real *k, int64_t step, const real *q)
{
    __asm__("vmovups (%12), %%ymm12\n\t"
            "vmovups 32(%12), %%ymm13\n\t"
            "vmovups 64(%12), %%ymm14\n\t"
            TIMES_ROW("(%13)", 0, 1, 2)
            TIMES_ROW("(%13,%14)", 3, 4, 5)
            TIMES_ROW("(%13,%14,2)", 6, 7, 8)
            TIMES_ROW("(%15)", 9, 10, 11)
            : "+x"(s[0][0]), "+x"(s[0][1]), "+x"(s[0][2]), "+x"(s[1][0]), "+x"(s[1][1]),
              "+x"(s[1][2]), "+x"(s[2][0]), "+x"(s[2][1]), "+x"(s[2][2]), "+x"(s[3][0]),
              "+x"(s[3][1]), "+x"(s[3][2])
            : "r"(q), "r"(k), "r"(step * (int64_t)sizeof *k), "r"(k + 3 * step)
            : "xmm12", "xmm13", "xmm14", "xmm15", "memory");
}
#endif

#else
typedef double real;
typedef __m256d vec;
typedef __m256d vmask;
#define VEC_N 4

INLINE vec vec_load(const real *p) { return _mm256_loadu_pd(p); }
INLINE void vec_store(real *p, vec a) { _mm256_storeu_pd(p, a); }
INLINE vec vec_set(real a) { return _mm256_set1_pd(a); }
INLINE vec vec_add(vec a, vec b) { return _mm256_add_pd(a, b); }
INLINE vec vec_sub(vec a, vec b) { return _mm256_sub_pd(a, b); }
INLINE vec vec_mul(vec a, vec b) { return _mm256_mul_pd(a, b); }
INLINE vec vec_fma(vec a, vec b, vec c) { return _mm256_fmadd_pd(a, b, c); }
INLINE vec vec_fms(vec a, vec b, vec c) { return _mm256_fmsub_pd(a, b, c); }
INLINE vec vec_div(vec a, vec b) { return _mm256_div_pd(a, b); }
INLINE vec vec_max(vec a, vec b) { return _mm256_max_pd(a, b); }
INLINE vmask vec_le(vec a, vec b) { return _mm256_cmp_pd(a, b, _CMP_LE_OQ); }
INLINE vmask vec_lt(vec a, vec b) { return _mm256_cmp_pd(a, b, _CMP_LT_OQ); }
INLINE vec vec_select(vmask m, vec a, vec b) { return _mm256_blendv_pd(b, a, m); }
INLINE vec vec_unless(vmask m, vec a) { return _mm256_andnot_pd(m, a); }
INLINE vmask vmask_and(vmask a, vmask b) { return _mm256_and_pd(a, b); }
INLINE int vmask_all(vmask m) { return _mm256_movemask_pd(m) == 0xf; }

INLINE vmask vmask_of(uint32_t bits)
{
    const __m256i lanes = _mm256_setr_epi64x(1, 2, 4, 8);
    const __m256i given = _mm256_and_si256(_mm256_set1_epi64x(bits), lanes);
    return _mm256_castsi256_pd(_mm256_cmpeq_epi64(given, lanes));
}

INLINE vec vec_round(vec a) { return _mm256_round_pd(a, _MM_FROUND_TO_NEAREST_INT); }

/* Adding 1.5 * 2^52 leaves n in the low bits. */
INLINE vec vec_ldexp(vec a, vec n)
{
    n = _mm256_min_pd(vec_set(1023), n);
    const __m256i bits = _mm256_castpd_si256(vec_add(n, vec_set(0x1.8p52)));
    const __m256i e = _mm256_add_epi64(bits, _mm256_set1_epi64x(1023));
    return _mm256_mul_pd(a, _mm256_castsi256_pd(_mm256_slli_epi64(e, 52)));
}

INLINE void vec_transpose(vec r[VEC_N])
{
    const vec a = _mm256_unpacklo_pd(r[0], r[1]), b = _mm256_unpackhi_pd(r[0], r[1]);
    const vec c = _mm256_unpacklo_pd(r[2], r[3]), d = _mm256_unpackhi_pd(r[2], r[3]);
    r[0] = _mm256_permute2f128_pd(a, c, 0x20);
    r[1] = _mm256_permute2f128_pd(b, d, 0x20);
    r[2] = _mm256_permute2f128_pd(a, c, 0x31);
    r[3] = _mm256_permute2f128_pd(b, d, 0x31);
}

INLINE vec vec_sums(const vec r[VEC_N])
{
    const vec a = vec_add(_mm256_unpacklo_pd(r[0], r[1]), _mm256_unpackhi_pd(r[0], r[1]));
    const vec b = vec_add(_mm256_unpacklo_pd(r[2], r[3]), _mm256_unpackhi_pd(r[2], r[3]));
    return vec_add(_mm256_permute2f128_pd(a, b, 0x20), _mm256_permute2f128_pd(a, b, 0x31));
}
#endif

INLINE void vec_keep(vec *a) { __asm__("" : "+x"(*a)); }
INLINE void vec_spill(vec *a) { __asm__("" : "+m"(*a)); }

/* Words of 32 bits, and the half of one that may be left: in one store, as what is loaded right
 * behind two waits for both to leave. */
#define VEC_LOAD_SOME
INLINE void vec_load_some(void *to, const void *from, int64_t n)
{
    const __m256i number = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i words = _mm256_set1_epi32((int)(n / 4));
    __m256i some = _mm256_maskload_epi32(from, _mm256_cmpgt_epi32(words, number));
    if (n % 4 != 0) {
        uint16_t half;
        memcpy(&half, (const char *)from + n / 4 * 4, sizeof half);
        const __m256i last = _mm256_and_si256(_mm256_cmpeq_epi32(words, number),
                                              _mm256_set1_epi32(half));
        some = _mm256_or_si256(some, last);
    }
    _mm256_storeu_si256(to, some);
}

#define VEC_WORDS_MUL
INLINE void vec_words_mul(void *to, const void *x, uint32_t by)
{
#if REAL_BITS == 32
    const __m256i b = _mm256_set1_epi32((int)by);
    _mm256_storeu_si256(to, _mm256_mul_epu32(_mm256_loadu_si256(x), b));
#else
    const __m128i b = _mm_set1_epi32((int)by);
    _mm_storeu_si128(to, _mm_mul_epu32(_mm_loadu_si128(x), b));
#endif
}

/* Numbers with a sign compare as those without one do whose highest bit is the other. */
#define VEC_WORDS_ABOVE
INLINE uint32_t vec_words_above(const uint32_t *x, uint32_t limit)
{
    const int other = (int)(limit ^ 1u << 31);
#if REAL_BITS == 32
    const __m256i words = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(const void *)x),
                                           _mm256_set1_epi32(INT32_MIN));
    const __m256i above = _mm256_cmpgt_epi32(words, _mm256_set1_epi32(other));
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(above));
#else
    const __m128i words = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(const void *)x),
                                        _mm_set1_epi32(INT32_MIN));
    const __m128i above = _mm_cmpgt_epi32(words, _mm_set1_epi32(other));
    return (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(above));
#endif
}
