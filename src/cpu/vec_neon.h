/* SPDX-License-Identifier: BSD-3-Clause */
/* Advanced SIMD of AArch64: 32 registers of 128 bits. See vec.h for what each name means. */
#include <arm_neon.h>

/* 16 sums and 8 operands. 24 sums would leave too few registers: compilers load all the broadcasts
 * of a step before they use them. */
enum { MR = 4, NV = 4 };

#if REAL_BITS == 32
typedef float real;
typedef float32x4_t vec;
typedef uint32x4_t vmask;
#define VEC_N 4

INLINE vec vec_load(const real *p) { return vld1q_f32(p); }
INLINE void vec_store(real *p, vec a) { vst1q_f32(p, a); }
INLINE vec vec_set(real a) { return vdupq_n_f32(a); }
INLINE vec vec_add(vec a, vec b) { return vaddq_f32(a, b); }
INLINE vec vec_sub(vec a, vec b) { return vsubq_f32(a, b); }
INLINE vec vec_mul(vec a, vec b) { return vmulq_f32(a, b); }
INLINE vec vec_fma(vec a, vec b, vec c) { return vfmaq_f32(c, a, b); }
INLINE vec vec_fms(vec a, vec b, vec c) { return vfmaq_f32(vnegq_f32(c), a, b); }
INLINE vec vec_div(vec a, vec b) { return vdivq_f32(a, b); }
INLINE vmask vec_le(vec a, vec b) { return vcleq_f32(a, b); }
INLINE vmask vec_lt(vec a, vec b) { return vcltq_f32(a, b); }
INLINE vec vec_select(vmask m, vec a, vec b) { return vbslq_f32(m, a, b); }
INLINE vec vec_unless(vmask m, vec a)
{
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(a), m));
}
INLINE vmask vmask_and(vmask a, vmask b) { return vandq_u32(a, b); }
INLINE int vmask_all(vmask m) { return vminvq_u32(m) != 0; }

INLINE vmask vmask_of(uint32_t bits)
{
    static const uint32_t lanes[] = {1, 2, 4, 8};
    return vtstq_u32(vdupq_n_u32(bits), vld1q_u32(lanes));
}

INLINE vec vec_round(vec a) { return vrndnq_f32(a); }

INLINE vec vec_ldexp(vec a, vec n)
{
    n = vminq_f32(vec_set(127), n);
    const int32x4_t e = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
    return vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32(e, 23)));
}

INLINE vec vec_from_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

INLINE void vec_to_f16(uint16_t *p, vec a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a))); }
INLINE vec vec_from_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}

INLINE void vec_to_bf16(uint16_t *p, vec a)
{
    const uint32x4_t u = vreinterpretq_u32_f32(a);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    const uint32x4_t up = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
    vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(a, a), up, quiet), 16));
}

INLINE void vec_transpose(vec r[VEC_N])
{
    vec t[VEC_N]; /* 2 x 2 squares, transposed */
    UNROLL for (int i = 0; i < 4; i += 2) {
        t[i] = vtrn1q_f32(r[i], r[i + 1]);
        t[i + 1] = vtrn2q_f32(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < 2; i++) {
        const float64x2_t a = vreinterpretq_f64_f32(t[i]), b = vreinterpretq_f64_f32(t[i + 2]);
        r[i] = vreinterpretq_f32_f64(vtrn1q_f64(a, b));
        r[i + 2] = vreinterpretq_f32_f64(vtrn2q_f64(a, b));
    }
}

INLINE vec vec_sums(const vec r[VEC_N])
{
    return vpaddq_f32(vpaddq_f32(r[0], r[1]), vpaddq_f32(r[2], r[3]));
}

#else
typedef double real;
typedef float64x2_t vec;
typedef uint64x2_t vmask;
#define VEC_N 2

INLINE vec vec_load(const real *p) { return vld1q_f64(p); }
INLINE void vec_store(real *p, vec a) { vst1q_f64(p, a); }
INLINE vec vec_set(real a) { return vdupq_n_f64(a); }
INLINE vec vec_add(vec a, vec b) { return vaddq_f64(a, b); }
INLINE vec vec_sub(vec a, vec b) { return vsubq_f64(a, b); }
INLINE vec vec_mul(vec a, vec b) { return vmulq_f64(a, b); }
INLINE vec vec_fma(vec a, vec b, vec c) { return vfmaq_f64(c, a, b); }
INLINE vec vec_fms(vec a, vec b, vec c) { return vfmaq_f64(vnegq_f64(c), a, b); }
INLINE vec vec_div(vec a, vec b) { return vdivq_f64(a, b); }
INLINE vmask vec_le(vec a, vec b) { return vcleq_f64(a, b); }
INLINE vmask vec_lt(vec a, vec b) { return vcltq_f64(a, b); }
INLINE vec vec_select(vmask m, vec a, vec b) { return vbslq_f64(m, a, b); }
INLINE vec vec_unless(vmask m, vec a)
{
    return vreinterpretq_f64_u64(vbicq_u64(vreinterpretq_u64_f64(a), m));
}
INLINE vmask vmask_and(vmask a, vmask b) { return vandq_u64(a, b); }
INLINE int vmask_all(vmask m) { return vminvq_u32(vreinterpretq_u32_u64(m)) != 0; }

INLINE vmask vmask_of(uint32_t bits)
{
    static const uint64_t lanes[] = {1, 2};
    return vtstq_u64(vdupq_n_u64(bits), vld1q_u64(lanes));
}

INLINE vec vec_round(vec a) { return vrndnq_f64(a); }

INLINE vec vec_ldexp(vec a, vec n)
{
    n = vminq_f64(vec_set(1023), n);
    const int64x2_t e = vaddq_s64(vcvtq_s64_f64(n), vdupq_n_s64(1023));
    return vmulq_f64(a, vreinterpretq_f64_s64(vshlq_n_s64(e, 52)));
}

INLINE void vec_transpose(vec r[VEC_N])
{
    const vec a = r[0], b = r[1];
    r[0] = vtrn1q_f64(a, b);
    r[1] = vtrn2q_f64(a, b);
}

INLINE vec vec_sums(const vec r[VEC_N]) { return vpaddq_f64(r[0], r[1]); }
#endif

/* The instruction that has an extremum of its own gives NaN, not b. */
INLINE vec vec_max(vec a, vec b) { return vec_select(vec_lt(b, a), a, b); }

/* No instruction loads what it multiplies, and one that takes a lane needs no broadcast. */
INLINE void vec_keep(vec *a) { (void)a; }

#define VEC_WORDS_MUL
INLINE void vec_words_mul(void *to, const void *x, uint32_t by)
{
#if REAL_BITS == 32
    vst1q_u64(to, vmull_n_u32(vmovn_u64(vld1q_u64(x)), by));
#else
    vst1_u64(to, vget_low_u64(vmull_n_u32(vld1_u32(x), by)));
#endif
}

#define VEC_WORDS_ABOVE
INLINE uint32_t vec_words_above(const uint32_t *x, uint32_t limit)
{
    static const uint32_t bit[] = {1, 2, 4, 8};
#if REAL_BITS == 32
    return vaddvq_u32(vandq_u32(vcgtq_u32(vld1q_u32(x), vdupq_n_u32(limit)), vld1q_u32(bit)));
#else
    return vaddv_u32(vand_u32(vcgt_u32(vld1_u32(x), vdup_n_u32(limit)), vld1_u32(bit)));
#endif
}
