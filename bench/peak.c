/* SPDX-License-Identifier: BSD-3-Clause */
#include "peak.h"

#include <stddef.h>
#include <string.h>

/* 16-bit numbers are computed in f32, except where a set multiplies them as they are. A set whose
 * instructions are those of `base`, and one with its own: */
#define SAME_ROW(isa, base) {#isa, {[ATTN_F32] = peak_f32_##base, [ATTN_F64] = peak_f64_##base, \
                                    [ATTN_F16] = peak_f32_##base, [ATTN_BF16] = peak_f32_##base}}
#define ROW(isa) SAME_ROW(isa, isa)
/* Such a set, and the one that it extends. */
#define DOT_ROW(dot, isa) {#dot, {[ATTN_F32] = peak_f32_##isa, [ATTN_F64] = peak_f64_##isa, \
                                  [ATTN_F16] = peak_f32_##isa, [ATTN_BF16] = peak_bf16_##dot}}
static const struct {
    const char *isa;
    bench_peak_fn run[ATTN_BOOL]; /* by element type */
} peaks[] = {
#if ATTN_HAVE_SCALAR
    ROW(scalar),
#endif
#if ATTN_HAVE_NEON
    ROW(neon),
#endif
#if ATTN_HAVE_NEONBF16
    DOT_ROW(neonbf16, neon),
#endif
#if ATTN_HAVE_AVX2
    ROW(avx2),
#endif
#if ATTN_HAVE_AVX512
    ROW(avx512),
#endif
#if ATTN_HAVE_AVX512WIDE
    SAME_ROW(avx512wide, avx512),
#endif
#if ATTN_HAVE_AVX512BF16
    DOT_ROW(avx512bf16, avx512),
#endif
#if ATTN_HAVE_AMXBF16
    DOT_ROW(amxbf16, avx512),
#endif
};

bench_peak_fn bench_peak(const char *isa, attn_dtype dtype)
{
    for (size_t n = 0; n < sizeof peaks / sizeof peaks[0]; n++)
        if (strcmp(peaks[n].isa, isa) == 0 && dtype < ATTN_BOOL)
            return peaks[n].run[dtype];
    return NULL;
}
