/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Vectors of one instruction set and computing type: the build names a vec_<set>.h, which gives
 *
 *   real, vec, vmask      element, vector and mask of a comparison; VEC_N elements in a vector
 *   MR, NV                shape of the register block: MR broadcast operands by NV vectors
 *   vec_load, vec_store   any alignment
 *   VEC_LOAD_SOME, vec_load_some(to, from, n)
 *                         where it is short: copies n bytes, less than a vector's, and 0 after
 *                         them up to the end of a vector; reads no others
 *   VEC_HALVES, vec_store_low, vec_store_high
 *                         the same for the first and the last half of a vector's numbers
 *   vec_set, vec_add, vec_sub, vec_mul, vec_div
 *   VEC_SPREAD, vec_spread(p)
 *                         where it is more than vec_set(*p): the number at p in all lanes, by an
 *                         instruction that leaves all arithmetic units to others
 *   vec_fma, vec_fms      a b + c, a b - c; in one rounding if the set can, vec_fms always so for
 *                         products that nearly are c
 *   vec_max(a, b)         b wherever one of them is NaN
 *   vec_le, vec_lt        false wherever one of them is NaN
 *   vec_select(m, a, b)   a where m, else b
 *   vec_unless(m, a)      0 where m, else a
 *   vmask_and, vmask_all
 *   vmask_of(bits)        lane i is set where bit i is
 *   vec_round             to the nearest integer
 *   vec_ldexp(a, n)       a 2^n for an integer n from EXP2_LOW on, or, where there is a vec_power,
 *                         above it; n above the range of exponents may count as the largest
 *   EXP2_BITS, vec_power(i, n, lift)
 *                         where a register holds a table of roots of 2: 2^(n + lift) for a multiple
 *                         n of 2^-EXP2_BITS, and 0 for n up to EXP2_LOW; above the range of
 *                         exponents it is infinite or NaN. The lowest bits of i's representation
 *                         count these multiples; lift: a constant, 0 or WEIGHT_BITS
 *   EXP2_FACTOR, vec_power_times_factor(i)
 *                         where exponentials go on beside products (f32 with EXP2_BITS 5 or 3
 *                         only): WEIGHT_ONE EXP2_FACTOR 2^n for n from EXP2_LOW on, made
 *                         without a multiplication; above the range of exponents a large number or
 *                         NaN; i as for vec_power
 *   vec_from_f16, vec_to_f16, vec_from_bf16, vec_to_bf16
 *                         VEC_N 16-bit numbers, as half.h converts them (f32 only)
 *   VEC_WORDS_MUL, vec_words_mul(to, x, by)
 *                         where it is short: the low 32 bits of vec_pairs, VEC_N / 2 numbers of
 *                         64 bits, each times `by`; all in memory
 *   VEC_WORDS_ABOVE, vec_words_above(x, limit)
 *                         where it is short: lanes, as bits, whose number of the VEC_N ones of 32
 *                         bits at x is above `limit`
 *   vec_transpose         VEC_N vectors as a square matrix, in place
 *   VEC_FOURS, vec_fours(r, at, skip)
 *                         where a vector's 128-bit parts hold four numbers: r[i], i < 4: lane j is
 *                         number i of those that lie `skip` bytes behind at[j]
 *   vec_sums(r)           lane i: the sum of all lanes of r[i], i < VEC_N
 *   vec_keep              keeps a loaded vector in a register, so that the compiler does not fold
 *                         the load into each use: the arithmetic would then wait for load ports
 *   vec_spill             leaves a vector in memory until it is used (AVX2 only)
 *   VEC_COLUMN, vec_column(s, k, step, q)
 *                         where compilers need it written out: s[r][v] += k[r step] times vector v
 *                         of q, r < MR, v < NV
 *
 * Each function is the instruction it names, or the few that make it: nothing here depends on the
 * algorithm.
 */
#ifndef ATTN_CPU_VEC_H
#define ATTN_CPU_VEC_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "half.h"

/* The name of what an object exports, made of its element type and instruction set. */
#define PASTE3_(a, b, c) a##_##b##_##c
#define PASTE3(a, b, c) PASTE3_(a, b, c)
#define KERNEL(name) PASTE3(name, ATTN_ELEM, ATTN_ISA)

/* A set of wide blocks has kernels for blocks of more rows than those of the set that it extends,
 * BASE_ISA, beside which they are used; everything else is that set's. */
#ifdef BASE_ISA
#define WIDE_BLOCKS 1
#else
#define WIDE_BLOCKS 0
#define BASE_ISA ATTN_ISA
#endif
#define BASE_KERNEL(name) PASTE3(name, ATTN_ELEM, BASE_ISA)

#define INLINE static inline __attribute__((always_inline, unused))
#define NOINLINE __attribute__((noinline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define UNROLL_BY(n) PRAGMA(clang loop unroll_count(n))
#else
#define UNROLL _Pragma("GCC unroll 16")
#define UNROLL_BY(n) PRAGMA(GCC unroll n)
#endif
#define PRAGMA(text) _Pragma(#text)

/* Where 2^x counts as 0: powers are never denormal, with which processors may take a hundred times
 * as long. Where they are the weights of values, 2^0 is WEIGHT_ONE, which a row's sum makes up for:
 * then products with values are not denormal, either, and sums that are come to nothing. */
#if REAL_BITS == 32
#define EXP2_LOW (-126)
#define LEAST_NORMAL 0x1p-126f
#define WEIGHT_BITS 24
#define WEIGHT_ONE 0x1p24f
#else
#define EXP2_LOW (-1022)
#define LEAST_NORMAL 0x1p-1022
#define WEIGHT_BITS 53
#define WEIGHT_ONE 0x1p53
#endif

#include VEC_H

#ifndef EXP2_BITS
#define EXP2_BITS 0
#endif
#ifdef EXP2_FACTOR
#define EXP2_BESIDE EXP2_BITS /* which form of exponentials goes on beside products; 0: none */
#else
#define EXP2_BESIDE 0
#endif

INLINE vec vec_zero(void) { return vec_set(0); }

/* VEC_N words of 32 bits, two and two. */
typedef uint64_t vec_pairs __attribute__((vector_size(4 * VEC_N)));

#ifndef VEC_WORDS_MUL
INLINE void vec_words_mul(void *to, const void *x, uint32_t by)
{
    vec_pairs a;
    memcpy(&a, x, sizeof a);
    for (int i = 0; i < VEC_N / 2; i++)
        a[i] = (a[i] & UINT32_MAX) * by;
    memcpy(to, &a, sizeof a);
}
#endif

#ifndef VEC_WORDS_ABOVE
INLINE uint32_t vec_words_above(const uint32_t *x, uint32_t limit)
{
    uint32_t lanes = 0;
    for (int i = 0; i < VEC_N; i++)
        lanes |= (uint32_t)(x[i] > limit) << i;
    return lanes;
}
#endif

#ifndef VEC_SPREAD
INLINE vec vec_spread(const real *p) { return vec_set(*p); }
#endif

#ifndef VEC_LOAD_SOME
INLINE void vec_load_some(void *to, const void *from, int64_t n)
{
    memset(to, 0, sizeof(vec));
    memcpy(to, from, (size_t)n);
}
#endif

#ifndef VEC_HALVES
INLINE void vec_store_low(real *p, vec a) { memcpy(p, &a, sizeof a / 2); }
INLINE void vec_store_high(real *p, vec a) { memcpy(p, (char *)&a + sizeof a / 2, sizeof a / 2); }
#endif

/* What multiplies differences of scores to give exponents of 2; and the difference, below 0, at
 * which the result is 0. */
struct exponent {
    real by, low;
};

static const double LOG2E = 0x1.71547652b82fep+0;

/* That of differences of scores which a scale, above 0, is still to be applied to. */
INLINE struct exponent exponent_of(double scale)
{
    const double c = scale * LOG2E;
    const struct exponent e = {(real)c, (real)(EXP2_LOW / c)};
    return e;
}

/* What its rounding takes from exponent_of(scale).by. */
INLINE double exponent_lost(double scale)
{
    static const double LOG2E_REST = 0x1.777d0ffda0d24p-56;
    const double c = scale * LOG2E;
    return c - (double)(real)c + fma(scale, LOG2E, -c) + scale * LOG2E_REST;
}

/* The argument of vec_exp2() or exp2_begin() for an x that may be -inf, or so far below 0 that its
 * multiple is; only where there is a vec_power it is needed. */
INLINE vec exp2_argument(vec x, struct exponent c) { return vec_max(vec_set(c.low), x); }

/* 2^(x c.by + lift), and 0 for x from c.low down, or, where there is a vec_power, one root above:
 * 2^n, n a multiple of 2^-EXP2_BITS, times a polynomial in the rest f. The rest is made from x in
 * one rounding, so that the error does not grow with it. NaN stays; -inf gives NaN where there is a
 * vec_power, else 0. The polynomials are minimax in the relative error of 2^f, with 2^0 exactly 1:
 * to 2^-24.1 for f32, which is about the result's own rounding, and 2^-54.7 for f64, or better.
 * lift: a constant, 0 or WEIGHT_BITS. */
INLINE vec vec_exp2(vec x, struct exponent c, int lift)
{
    const vec by = vec_set(c.by);
#if EXP2_BITS
#if REAL_BITS == 32
    enum { DIGITS = 23 };
#if EXP2_BITS >= 5
    static const real poly[] = {0x1.62e584p-1f, 0x1.ebfbdep-3f};
#else
    static const real poly[] = {0x1.62e432p-1f, 0x1.ec0c36p-3f, 0x1.c6ap-5f};
#endif
#else
    enum { DIGITS = 52 };
    static const real poly[] = {0x1.62e42fefa39f3p-1, 0x1.ebfbdff82c590p-3, 0x1.c6b08d6f2a289p-5,
                                0x1.3b2ab6fb41213p-7, 0x1.5d897e525c216p-10, 0x1.430a1d08ec681p-13};
#endif
    /* Added to n, leaves n 2^EXP2_BITS in the low bits. */
    const vec shift = vec_set((real)((int64_t)3 << (DIGITS - 1 - EXP2_BITS)));
    const vec shifted = vec_fma(x, by, shift), n = vec_sub(shifted, shift);
    const vec f = vec_fms(x, by, n), power = vec_power(shifted, n, lift);
#elif REAL_BITS == 32
    static const real poly[] = {0x1.62e43p-1f, 0x1.ebfbdap-3f, 0x1.c6aeeap-5f, 0x1.3b2d4cp-7f,
                                0x1.5f3e5ap-10f, 0x1.41fc46p-13f};
    const vec n = vec_round(vec_mul(x, by)), f = vec_fms(x, by, n);
#else
    static const real poly[] = {0x1.62e42fefa39efp-1, 0x1.ebfbdff82c5adp-3, 0x1.c6b08d7049fd1p-5,
                                0x1.3b2ab6fb9f413p-7, 0x1.5d87fe78cf260p-10, 0x1.43091310bf66dp-13,
                                0x1.ffcbfba7bc9a1p-17, 0x1.62bfc3c1d2153p-20,
                                0x1.b5267882d5309p-24, 0x1.e620fb67ac6ddp-28,
                                0x1.e7aa1c12faa3cp-32};
    const vec n = vec_round(vec_mul(x, by)), f = vec_fms(x, by, n);
#endif
    const real one = EXP2_BITS == 0 && lift > 0 ? WEIGHT_ONE : 1;
    vec q = vec_set(one * poly[sizeof poly / sizeof poly[0] - 1]);
    for (int i = (int)(sizeof poly / sizeof poly[0]) - 2; i >= 0; i--)
        q = vec_fma(q, f, vec_set(one * poly[i]));
#if EXP2_BITS
    return vec_fma(power, vec_mul(f, q), power);
#else
    return vec_unless(vec_le(x, vec_set(c.low)), vec_ldexp(vec_fma(q, f, vec_set(one)), n));
#endif
}

/*
 * WEIGHT_ONE 2^(x c.by), and 0 where the power is 2^EXP2_LOW or less, in steps that leave room for
 * other work between them. NaN stays, 2^0 is exact; where the exponent is below -2^60 it may be
 * NaN, too. Without an EXP2_FACTOR the first step makes it all.
 *
 * With it there are few multiplications, as what goes on beside products should have. With 5 bits
 * half of the exponent is n / 2 + u, n a multiple of 2^-EXP2_BITS and u made from x in one
 * rounding, as above, and 2^(2 u) is EXP2_FACTOR times (u + c)^2 + d, minimax to 2^-24.2 of it; 2^n
 * has the factor in it already. With 3 bits a quarter of it is n / 4 + u, and 2^(4 u) the factor
 * times ((u + c) u + d) u + e, to 2^-25.2. All roundings together come to 2^-22. rough: the
 * exponent is rounded, too, to 2^-24 of it, which takes a multiplication less: for what becomes
 * numbers of 16 bits, with 5 bits.
 */
struct exp2_steps {
    vec power; /* 2^n with the factor; with 3 bits 0 where the result is */
    vec rest;  /* n / 2 and a shift; u + c; its square and d. With 3 bits u */
    /* With 5 bits only: */
    vec x;      /* x, or half of the exponent where it is rounded */
    vmask none; /* lanes that are 0, whatever the rest is */
};

#if EXP2_BESIDE == 5
/* Added to n / 2, leaves n 2^EXP2_BITS in the low bits. */
static const real EXP2_SHIFT = (real)((int64_t)3 << (21 - EXP2_BITS));
/* These two belong to EXP2_FACTOR: they are minimax with it only. */
static const real EXP2_C = (real)0x1.7155cp-1, EXP2_D = (real)0x1.0a684cp-1;

INLINE void exp2_begin(struct exp2_steps *e, vec x, struct exponent c, bool rough)
{
    const vec by = vec_set(c.by / 2), shift = vec_set(EXP2_SHIFT);
    e->x = rough ? vec_mul(x, by) : x;
    e->rest = rough ? vec_add(e->x, shift) : vec_fma(x, by, shift);
    vec_keep(&e->x); /* or a compiler would move steps together */
    vec_keep(&e->rest);
}

INLINE void exp2_split(struct exp2_steps *e, struct exponent c, bool rough)
{
    const vec by = vec_set(c.by / 2), half = vec_sub(e->rest, vec_set(EXP2_SHIFT));
    e->none = vec_le(half, vec_set((real)EXP2_LOW / 2));
    e->power = vec_power_times_factor(e->rest);
    e->rest = rough ? vec_sub(e->x, half) : vec_fms(e->x, by, half);
    e->rest = vec_add(e->rest, vec_set(EXP2_C));
    vec_keep(&e->rest);
    vec_keep(&e->power);
}

INLINE void exp2_square(struct exp2_steps *e)
{
    e->rest = vec_fma(e->rest, e->rest, vec_set(EXP2_D));
    vec_keep(&e->rest);
}

/* One multiplication with a mask, so that a power that is denormal where the result is 0 costs no
 * processor anything. */
INLINE vec exp2_end(const struct exp2_steps *e)
{
    return vec_unless(e->none, vec_mul(e->power, e->rest));
}

#else
INLINE void exp2_split(struct exp2_steps *e, struct exponent c, bool rough)
{
    (void)e, (void)c, (void)rough;
}

INLINE void exp2_square(struct exp2_steps *e) { (void)e; }

#if EXP2_BESIDE == 3
/* Added to n / 4, leaves n 2^EXP2_BITS in the low bits. */
static const real EXP2_SHIFT = (real)((int64_t)3 << (20 - EXP2_BITS));
/* These three belong to EXP2_FACTOR. */
static const real EXP2_C = (real)0x1.15127cp+0, EXP2_D = (real)0x1.8faddp-1,
                  EXP2_E = (real)0x1.204eb2p-2;

INLINE void exp2_begin(struct exp2_steps *e, vec x, struct exponent c, bool rough)
{
    const vec by = vec_set(c.by / 4), shift = vec_set(EXP2_SHIFT);
    const vec shifted = vec_fma(x, by, shift), quarter = vec_sub(shifted, shift);
    (void)rough;
    e->rest = vec_fms(x, by, quarter);
    const vmask none = vec_le(quarter, vec_set((real)EXP2_LOW / 4));
    e->power = vec_unless(none, vec_power_times_factor(shifted));
}

INLINE vec exp2_end(const struct exp2_steps *e)
{
    vec q = vec_add(e->rest, vec_set(EXP2_C));
    q = vec_fma(q, e->rest, vec_set(EXP2_D));
    q = vec_fma(q, e->rest, vec_set(EXP2_E));
    return vec_mul(q, e->power);
}

#else
INLINE void exp2_begin(struct exp2_steps *e, vec x, struct exponent c, bool rough)
{
    (void)rough;
    e->rest = vec_exp2(exp2_argument(x, c), c, WEIGHT_BITS);
}

INLINE vec exp2_end(const struct exp2_steps *e) { return e->rest; }
#endif
#endif

/* All steps. */
INLINE vec exp2_all_steps(vec x, struct exponent c, bool rough)
{
    struct exp2_steps e;
    exp2_begin(&e, x, c, rough);
    exp2_split(&e, c, rough);
    exp2_square(&e);
    return exp2_end(&e);
}

/* All steps, for any x. */
INLINE vec exp2_by_steps(vec x, struct exponent c, bool rough)
{
    return exp2_all_steps(exp2_argument(x, c), c, rough);
}

/* tanh x = E / (E + 2), E = e^(2 x) - 1. E is 2^n e + (2^n - 1), e = e^r - 1 by its series in the
 * rest r of 2 x to n ln 2, so that it is as exact near 0 as anywhere. What the series leaves out is
 * less than 2^-25 of e, in f64 2^-55. */
INLINE vec vec_tanh(vec x)
{
#if REAL_BITS == 32
    enum { TERMS = 7 };
    const vec high = vec_set(-0x1.62e4p-1f), low = vec_set(-0x1.7f7d1cp-20f);
#else
    enum { TERMS = 13 };
    const vec high = vec_set(-0x1.62e42fefp-1), low = vec_set(-0x1.473de6af278edp-34);
#endif
    const vec one = vec_set(1), most = vec_set(40); /* beyond it the result is 1, or -1 */
    const vec twice = vec_add(x, x), below = vec_select(vec_lt(most, twice), most, twice);
    const vec y = vec_max(vec_sub(vec_zero(), most), below); /* NaN stays */
    const vec n = vec_round(vec_mul(y, vec_set((real)0x1.71547652b82fep+0)));
    const vec r = vec_fma(n, low, vec_fma(n, high, y));
    double factorial = 1;
    real coefficient[TERMS + 1];
    UNROLL for (int i = 2; i <= TERMS; i++) {
        factorial *= i;
        coefficient[i] = (real)(1 / factorial);
    }
    vec q = vec_set(coefficient[TERMS]);
    UNROLL for (int i = TERMS - 1; i >= 2; i--)
        q = vec_fma(q, r, vec_set(coefficient[i]));
    const vec e = vec_fma(vec_mul(r, r), q, r), power = vec_ldexp(one, n);
    const vec big = vec_fma(power, e, vec_sub(power, one));
    return vec_div(big, vec_add(big, vec_set(2)));
}

#endif
