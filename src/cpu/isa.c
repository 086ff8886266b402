/* SPDX-License-Identifier: BSD-3-Clause */
/* Detection, by features that both the processor and the operating system offer, and the table. */
#include "cpu/isa.h"

#include <stdbool.h>
#include <stddef.h>

/* Kernels that are built, as src/cpu/meson.build names them: element type and instruction set. */
#define KERNEL(elem, isa) extern const struct attn_cpu_kernel attn_fwd_##elem##_##isa;
#define KERNELS(isa) KERNEL(f32, isa) KERNEL(f64, isa)

#define SET(isa, usable) {#isa, usable, {[ATTN_F32] = &attn_fwd_f32_##isa, \
                                         [ATTN_F64] = &attn_fwd_f64_##isa}}

static bool always(void) { return true; }
KERNELS(scalar)

#if ATTN_HAVE_AVX2
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); /* F16C came before */
}
KERNELS(avx2)
#endif

#if ATTN_HAVE_AVX512
static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
KERNELS(avx512)
#endif

/* Slowest first. */
static const struct {
    const char *name;
    bool (*usable)(void);
    const struct attn_cpu_kernel *kernel[ATTN_BOOL]; /* by element type */
} sets[] = {
    SET(scalar, always),
#if ATTN_HAVE_AVX2
    SET(avx2, has_avx2),
#endif
#if ATTN_HAVE_AVX512
    SET(avx512, has_avx512),
#endif
};

enum { SETS = sizeof sets / sizeof sets[0] };

const char *attn_isa_name(int32_t n, int32_t *usable)
{
    if (n < 0 || n >= (int32_t)SETS)
        return NULL;
    if (usable)
        *usable = sets[n].usable();
    return sets[n].name;
}

int32_t attn_isa_best(void)
{
    int32_t n = SETS - 1;
    while (!sets[n].usable())
        n--;
    return n;
}

const struct attn_cpu_kernel *attn_isa_kernel(int32_t n, attn_dtype dtype)
{
    return sets[n].kernel[dtype];
}
