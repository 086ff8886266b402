/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Portable: vectors of 16 bytes in the compiler's own notation, no intrinsics and no instruction
 * set asked for. See vec.h for what each name means.
 */
#include <string.h>

enum { MR = 4, NV = 2 };

#if REAL_BITS == 32
typedef float real;
typedef int32_t bits;
#define VEC_N 4
enum { EXP_BIAS = 127, MANTISSA = 23 };
#define ROUNDER 0x1.8p23f /* adding it leaves an integer in the low bits */
#else
typedef double real;
typedef int64_t bits;
#define VEC_N 2
enum { EXP_BIAS = 1023, MANTISSA = 52 };
#define ROUNDER 0x1.8p52
#endif

typedef real vec __attribute__((vector_size(16)));
typedef bits vmask __attribute__((vector_size(16)));

INLINE vec vec_load(const real *p)
{
    vec a;
    memcpy(&a, p, sizeof a);
    return a;
}

INLINE void vec_store(real *p, vec a) { memcpy(p, &a, sizeof a); }
INLINE vec vec_set(real a) { return a - (vec){0}; }
INLINE vec vec_add(vec a, vec b) { return a + b; }
INLINE vec vec_sub(vec a, vec b) { return a - b; }
INLINE vec vec_mul(vec a, vec b) { return a * b; }
INLINE vec vec_fma(vec a, vec b, vec c) { return a * b + c; }

/* The larger half of a's digits: products of halves are exact. */
INLINE vec upper_half(vec a)
{
    const vmask digits = (vmask){0} + ~(((bits)1 << (MANTISSA + 2) / 2) - 1);
    return (vec)((vmask)a & digits);
}

INLINE vec vec_fms(vec a, vec b, vec c)
{
    const vec a1 = upper_half(a), a0 = a - a1, b1 = upper_half(b), b0 = b - b1;
    return (((a1 * b1 - c) + a1 * b0) + a0 * b1) + a0 * b0;
}

INLINE vec vec_div(vec a, vec b) { return a / b; }
INLINE vmask vec_le(vec a, vec b) { return a <= b; }
INLINE vmask vec_lt(vec a, vec b) { return a < b; }
INLINE vec vec_select(vmask m, vec a, vec b) { return (vec)(((vmask)a & m) | ((vmask)b & ~m)); }
INLINE vec vec_unless(vmask m, vec a) { return (vec)((vmask)a & ~m); }
INLINE vec vec_max(vec a, vec b) { return vec_select(a > b, a, b); }
INLINE vmask vmask_and(vmask a, vmask b) { return a & b; }

INLINE vmask vmask_of(uint32_t given)
{
    vmask m = {0};
    for (int i = 0; i < VEC_N; i++)
        m[i] = -(bits)(given >> i & 1);
    return m;
}

INLINE int vmask_all(vmask m)
{
    bits all = -1;
    for (int i = 0; i < VEC_N; i++)
        all &= m[i];
    return all != 0;
}

INLINE vec vec_round(vec a) { return (a + ROUNDER) - ROUNDER; }

INLINE vec vec_ldexp(vec a, vec n)
{
    n = vec_select(n > vec_set(EXP_BIAS), vec_set(EXP_BIAS), n);
    const vmask e = (vmask)(n + ROUNDER) + EXP_BIAS;
    return a * (vec)(e << MANTISSA);
}

#if REAL_BITS == 32
INLINE vmask widen(const uint16_t *p)
{
    uint16_t a __attribute__((vector_size(VEC_N * sizeof(uint16_t))));
    memcpy(&a, p, sizeof a);
    return __builtin_convertvector(a, vmask);
}

/* attn_f16_to_f32() of each, without a branch. */
INLINE vec vec_from_f16(const uint16_t *p)
{
    const vmask h = widen(p), rest = h & 0x7fff, sign = (h ^ rest) << 16;
    const vmask special = rest > 0x7bff, quiet = (rest > 0x7c00) & 0x400000;
    const vmask normal = (rest + 0x1c000 + (special & 0x1c000)) << 13;
    const vec denormal = __builtin_convertvector(rest, vec) * 0x1p-24f;
    const vec size = vec_select(rest < 0x400, denormal, (vec)(normal | quiet));
    return (vec)((vmask)size | sign);
}

INLINE vec vec_from_bf16(const uint16_t *p) { return (vec)(widen(p) << 16); }

INLINE void vec_to_f16(uint16_t *p, vec a)
{
    for (int i = 0; i < VEC_N; i++)
        p[i] = attn_f32_to_f16(a[i]);
}

INLINE void vec_to_bf16(uint16_t *p, vec a)
{
    for (int i = 0; i < VEC_N; i++)
        p[i] = attn_f32_to_bf16(a[i]);
}
#endif

INLINE void vec_transpose(vec r[VEC_N])
{
    real t[VEC_N][VEC_N];
    for (int i = 0; i < VEC_N; i++)
        for (int j = 0; j < VEC_N; j++)
            t[j][i] = r[i][j];
    for (int i = 0; i < VEC_N; i++)
        r[i] = vec_load(t[i]);
}

INLINE vec vec_sums(const vec r[VEC_N])
{
    vec sums = {0};
    for (int i = 0; i < VEC_N; i++)
        for (int j = 0; j < VEC_N; j++)
            sums[i] += r[i][j];
    return sums;
}

INLINE void vec_keep(vec *a) { (void)a; }
