/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Vectors of one instruction set and computing type: the build names a vec_<set>.h, which gives
 *
 *   real, vec, vmask      element, vector and mask of a comparison; VEC_N elements in a vector
 *   MR, NV                shape of the register block: MR broadcast operands by NV vectors
 *   vec_load, vec_store   any alignment
 *   vec_set, vec_add, vec_sub, vec_mul, vec_div
 *   vec_fma, vec_fms      a b + c, a b - c; in one rounding if the set can, vec_fms always so for
 *                         products that nearly are c
 *   vec_max(a, b)         b wherever one of them is NaN
 *   vec_le, vec_lt        false wherever one of them is NaN
 *   vec_select(m, a, b)   a where m, else b
 *   vmask_and, vmask_all
 *   vec_round             to the nearest integer
 *   vec_ldexp(a, n)       a 2^n for an integer n from EXP2_LOW on, where it is 0; n above the
 *                         range of exponents may count as the largest
 *   vec_from_f16, vec_to_f16, vec_from_bf16, vec_to_bf16
 *                         VEC_N 16-bit numbers, as half.h converts them (f32 only)
 *   vec_transpose         VEC_N vectors as a square matrix, in place
 *   vec_sums(r)           lane i: the sum of all lanes of r[i], i < VEC_N
 *   vec_keep              keeps a loaded vector in a register, so that the compiler does not fold
 *                         the load into each use: the arithmetic would then wait for load ports
 *
 * Each function is the instruction it names: nothing here depends on the algorithm.
 */
#ifndef ATTN_CPU_VEC_H
#define ATTN_CPU_VEC_H

#include <stdint.h>

#include "half.h"

#define INLINE static inline __attribute__((always_inline, unused))
#define NOINLINE __attribute__((noinline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#include VEC_H

#ifndef EXP2_DEGREE
#define EXP2_DEGREE 6 /* of the f32 polynomial: 6 or 4 */
#endif

INLINE vec vec_zero(void) { return vec_set(0); }

/* What multiplies differences of scores to give exponents of 2: hi + lo; and the difference, below
 * 0, at which the result is 0. */
struct exponent {
    real hi, lo, low;
};

/* 2^(x c). The exponent's fraction is made from x in one rounding, so that the error does not grow
 * with it; -inf gives 0, NaN stays. The polynomials are minimax in the relative error of 2^f on
 * [-1/2, 1/2] with 2^0 exactly 1: degree 6 for f32, to 2^-28, so that their roundings are all that
 * is left; degree 4, to 2^-18, where probabilities are rounded to 8 bits and lo does not count;
 * degree 11 for f64, to 2^-58. */
INLINE vec vec_exp2(vec x, struct exponent c)
{
#if REAL_BITS == 32 && EXP2_DEGREE == 4
    static const real poly[] = {1, 0x1.62dfcap-1f, 0x1.ebf1b4p-3f, 0x1.ca9008p-5f, 0x1.409102p-7f};
#elif REAL_BITS == 32
    static const real poly[] = {1, 0x1.62e432p-1f, 0x1.ebfbe2p-3f, 0x1.c6ae72p-5f, 0x1.3b270ep-7f,
                                0x1.5f7276p-10f, 0x1.470b48p-13f};
#else
    static const real poly[] = {1, 0x1.62e42fefa39efp-1, 0x1.ebfbdff82c5adp-3,
                                0x1.c6b08d7049fd1p-5, 0x1.3b2ab6fb9f413p-7, 0x1.5d87fe78cf260p-10,
                                0x1.43091310bf66dp-13, 0x1.ffcbfba7bc9a1p-17,
                                0x1.62bfc3c1d2153p-20, 0x1.b5267882d5309p-24,
                                0x1.e620fb67ac6ddp-28, 0x1.e7aa1c12faa3cp-32};
#endif
    enum { DEGREE = sizeof poly / sizeof poly[0] - 1 };
    x = vec_max(vec_set(c.low), x);
    const vec n = vec_round(vec_mul(x, vec_set(c.hi)));
    vec f = vec_fms(x, vec_set(c.hi), n);
#if EXP2_DEGREE != 4
    f = vec_fma(x, vec_set(c.lo), f);
#endif
    vec p = vec_set(poly[DEGREE]);
    for (int i = DEGREE - 1; i >= 0; i--)
        p = vec_fma(p, f, vec_set(poly[i]));
    return vec_ldexp(p, n);
}

#endif
