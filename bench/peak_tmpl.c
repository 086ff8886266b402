/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Multiply-adds at full rate, built once per instruction set and element type like the kernels
 * (ATTN_ISA, ATTN_ELEM, REAL_BITS). More independent chains than latency times issue width, and
 * few enough to stay in registers.
 */
#include "peak.h"

#if REAL_BITS == 32
typedef float real;
#else
typedef double real;
#endif

#if defined(__AVX512F__)
enum { VEC_BYTES = 64, CHAINS = 24 };
#elif defined(__AVX__)
enum { VEC_BYTES = 32, CHAINS = 12 };
#elif defined(__aarch64__)
enum { VEC_BYTES = 16, CHAINS = 24 };
#else
enum { VEC_BYTES = 16, CHAINS = 12 };
#endif
typedef real vec __attribute__((vector_size(VEC_BYTES)));
enum { LANES = VEC_BYTES / sizeof(real) };

#if DOT_BF16
#if defined(__aarch64__)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif
enum { PRODUCTS = 2 }; /* to a lane */
static inline vec multiply_add(vec a, vec b, vec c)
{
#if defined(__aarch64__)
    return (vec)vbfdotq_f32((float32x4_t)c, (bfloat16x8_t)a, (bfloat16x8_t)b);
#else
    return (vec)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#endif
}
#else
enum { PRODUCTS = 1 };
static inline vec multiply_add(vec a, vec b, vec c) { return a * b + c; }
#endif

#define PASTE(elem, isa) peak_##elem##_##isa
#define NAME(elem, isa) PASTE(elem, isa)

double NAME(ATTN_ELEM, ATTN_ISA)(int64_t steps)
{
    volatile real factor = 0.5, term = 0.5; /* unknown to the compiler */
    const vec a = factor - (vec){0}, b = term - (vec){0};
    vec chain[CHAINS];
    vec sum = {0};

#pragma GCC unroll 24
    for (int n = 0; n < CHAINS; n++)
        chain[n] = (real)n - (vec){0};
    for (int64_t s = 0; s < steps; s++)
#pragma GCC unroll 24
        for (int n = 0; n < CHAINS; n++)
            chain[n] = PRODUCTS == 1 ? multiply_add(chain[n], a, b) : multiply_add(a, b, chain[n]);
#pragma GCC unroll 24
    for (int n = 0; n < CHAINS; n++)
        sum += chain[n];
    real total = 0;
    for (int lane = 0; lane < LANES; lane++)
        total += sum[lane];
    term = total; /* so that nothing is left out */
    return 2.0 * PRODUCTS * (double)steps * CHAINS * LANES;
}
