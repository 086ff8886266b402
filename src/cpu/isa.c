/* SPDX-License-Identifier: BSD-3-Clause */
/* Detection, by features that both the processor and the operating system offer, and the table. */
#include "cpu/isa.h"

#include <stdatomic.h>
#include <stddef.h>

#if ATTN_HAVE_AMXBF16
#include <cpuid.h>
#include <errno.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#if ATTN_HAVE_NEONBF16 && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "cpu/softmax.h"

/* Kernels that are built, as src/cpu/meson.build names them: element type and instruction set. */
#define KERNEL(elem, isa) extern const struct attn_cpu_kernel attn_fwd_##elem##_##isa;
#define BACKWARD(elem, isa) extern const struct attn_cpu_backward attn_bwd_##elem##_##isa;
#define SOFTMAX(type, isa) extern const struct attn_softmax attn_softmax_##type##_##isa;
#define KERNELS(isa) KERNEL(f32, isa) KERNEL(f64, isa) KERNEL(f16, isa) KERNEL(bf16, isa) \
    BACKWARD(f32, isa) BACKWARD(f64, isa) BACKWARD(f16, isa) BACKWARD(bf16, isa) \
    SOFTMAX(f32, isa) SOFTMAX(f64, isa)

/* A set, whose kernels are those of `isa`, in the forward pass of bf16 those of bf16_isa; what has
 * to allow these, if not null; and kernels with wide blocks. */
#define SET(name, usable, isa, bf16_isa, allowed, wide) \
    {#name, usable, allowed, \
     {[ATTN_F32] = &attn_fwd_f32_##isa, [ATTN_F64] = &attn_fwd_f64_##isa, \
      [ATTN_F16] = &attn_fwd_f16_##isa, [ATTN_BF16] = &attn_fwd_bf16_##bf16_isa}, \
     wide, \
     {[ATTN_F32] = &attn_bwd_f32_##isa, [ATTN_F64] = &attn_bwd_f64_##isa, \
      [ATTN_F16] = &attn_bwd_f16_##isa, [ATTN_BF16] = &attn_bwd_bf16_##isa}, \
     {[ATTN_F32] = &attn_softmax_f32_##isa, [ATTN_F64] = &attn_softmax_f64_##isa}}
#define PLAIN(isa, usable) SET(isa, usable, isa, isa, NULL, NONE)
#define NONE {NULL}

static bool always(void) { return true; }
#if ATTN_HAVE_SCALAR
KERNELS(scalar)
#endif

#if ATTN_HAVE_NEON
KERNELS(neon) /* no AArch64 processor that runs a common system lacks it */
#endif

#if ATTN_HAVE_NEONBF16
static bool has_neonbf16(void)
{
#if defined(HWCAP2_BF16)
    return getauxval(AT_HWCAP2) & HWCAP2_BF16;
#else
    return false; /* nothing here tells */
#endif
}
KERNEL(bf16, neonbf16)
#endif

#if ATTN_HAVE_AVX2
static bool has_avx2(void)
{
#if defined(__clang__) /* does not know the name; every CPU with AVX2 has it */
    const bool f16c = true;
#else
    const bool f16c = __builtin_cpu_supports("f16c");
#endif
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
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

#if ATTN_HAVE_AVX512WIDE
KERNEL(f32, avx512wide) KERNEL(f64, avx512wide) KERNEL(f16, avx512wide) KERNEL(bf16, avx512wide)
/* Those of all types, but for bf16 the given one, or NULL beside matrices. */
#define WIDE_KERNELS(bf16_kernel) \
    {[ATTN_F32] = &attn_fwd_f32_avx512wide, [ATTN_F64] = &attn_fwd_f64_avx512wide, \
     [ATTN_F16] = &attn_fwd_f16_avx512wide, [ATTN_BF16] = bf16_kernel}
#else
#define WIDE_KERNELS(bf16_kernel) NONE
#endif

#if ATTN_HAVE_AVX512BF16 || ATTN_HAVE_AMXBF16
static bool has_avx512bf16(void) { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

#if ATTN_HAVE_AVX512BF16
KERNEL(bf16, avx512bf16)
#endif

#if ATTN_HAVE_AMXBF16
static bool find_amxbf16(void)
{
    enum { BF16 = 1 << 22, TILES = 1 << 24, SAVED = 3 << 17 };
    unsigned a, b, c, d, kept, above;
    if (!has_avx512bf16() || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & BF16) ||
        !(d & TILES))
        return false;
    __asm__("xgetbv" : "=a"(kept), "=d"(above) : "c"(0)); /* what the system saves of a thread */
    return (kept & SAVED) == SAVED;
}

static bool has_amxbf16(void)
{
    static atomic_int found; /* 0: not yet known */
    if (found == 0)
        found = find_amxbf16() ? 1 : -1;
    return found > 0;
}

/* A process may use tiles once it has asked Linux, from then on and in all its threads; it is
 * refused where a thread's stack for signals has no room for them. */
static bool ask_for_tiles(void)
{
#if defined(__linux__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 };
    static atomic_int answer; /* 0: not yet asked */
    const int before = errno; /* a refusal is no error of the call */
    if (answer == 0)
        answer = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 ? 1 : -1;
    errno = before;
    return answer > 0;
#else
    return false;
#endif
}
KERNEL(bf16, amxbf16)
#endif

#if ATTN_HAVE_AMXBF16_EMULATED
KERNEL(bf16, amxbf16_emulated)
#endif

/* Slowest first, but see set_at(). */
static const struct set {
    const char *name;
    bool (*usable)(void);
    bool (*allowed)(void);
    const struct attn_cpu_kernel *kernel[ATTN_BOOL], *wide[ATTN_BOOL]; /* by element type */
    const struct attn_cpu_backward *backward[ATTN_BOOL];
    const struct attn_softmax *softmax[ATTN_F64 + 1]; /* by computing type */
} sets[] = {
#if ATTN_HAVE_SCALAR
    PLAIN(scalar, always),
#endif
#if ATTN_HAVE_AMXBF16_EMULATED
    SET(amxbf16_emulated, has_avx512, avx512, amxbf16_emulated, NULL, NONE),
#endif
#if ATTN_HAVE_NEON
    PLAIN(neon, always),
#endif
#if ATTN_HAVE_NEONBF16
    SET(neonbf16, has_neonbf16, neon, neonbf16, NULL, NONE),
#endif
#if ATTN_HAVE_AVX2
    PLAIN(avx2, has_avx2),
#endif
#if ATTN_HAVE_AVX512WIDE /* known to be faster on processors with AMX, whose set has its blocks */
    SET(avx512wide, has_avx512, avx512, avx512, NULL, WIDE_KERNELS(&attn_fwd_bf16_avx512wide)),
#endif
#if ATTN_HAVE_AVX512
    PLAIN(avx512, has_avx512),
#endif
#if ATTN_HAVE_AVX512BF16 /* directly behind that of AVX-512, which set_at() may give its place */
    SET(avx512bf16, has_avx512bf16, avx512, avx512bf16, NULL, NONE),
#endif
#if ATTN_HAVE_AMXBF16
    SET(amxbf16, has_amxbf16, avx512, amxbf16, ask_for_tiles, WIDE_KERNELS(NULL)),
#endif
};

enum { SETS = sizeof sets / sizeof sets[0] };

#if ATTN_HAVE_AVX512BF16
/* On Intel's processors the dot products of AVX512-BF16 have half the rate of f32's multiply-adds,
 * which AVX-512 uses, and its set comes behind that one. */
static bool has_slow_dots(void) { return __builtin_cpu_is("intel"); }
#endif

/* The n-th one on this machine. */
static const struct set *set_at(int32_t n)
{
#if ATTN_HAVE_AVX512BF16
    const struct attn_cpu_kernel *const dots = &attn_fwd_bf16_avx512bf16;
    if (n > 0 && sets[n].kernel[ATTN_BF16] == dots && has_slow_dots())
        return &sets[n - 1];
    if (n + 1 < SETS && sets[n + 1].kernel[ATTN_BF16] == dots && has_slow_dots())
        return &sets[n + 1];
#endif
    return &sets[n];
}

const char *attn_isa_name(int32_t n, int32_t *usable)
{
    if (n < 0 || n >= (int32_t)SETS)
        return NULL;
    if (usable)
        *usable = set_at(n)->usable();
    return set_at(n)->name;
}

int32_t attn_isa_best(void)
{
    int32_t n = SETS - 1;
    while (!set_at(n)->usable())
        n--;
    return n;
}

int32_t attn_isa_allowed(int32_t n, attn_dtype dtype)
{
    while (dtype == ATTN_BF16 && set_at(n)->allowed && !set_at(n)->allowed())
        do
            n--;
        while (!set_at(n)->usable());
    return n;
}

const struct attn_cpu_kernel *attn_isa_kernel(int32_t n, attn_dtype dtype)
{
    return set_at(n)->kernel[dtype];
}

const struct attn_cpu_kernel *attn_isa_wide(int32_t n, attn_dtype dtype)
{
    return set_at(n)->wide[dtype];
}

const struct attn_cpu_backward *attn_isa_backward(int32_t n, attn_dtype dtype)
{
    return set_at(n)->backward[dtype];
}

const struct attn_softmax *attn_isa_softmax(int32_t n, attn_dtype computing)
{
    return set_at(n)->softmax[computing];
}

enum attn_asks attn_isa_asks(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_is("amd")) /* VP2INTERSECT: Zen 5, not its forerunners */
        return __builtin_cpu_supports("avx512vp2intersect") ? ATTN_ASKS_IN_ORDER : ATTN_ASKS_SECOND;
#endif
    return ATTN_ASKS_FIRST;
}

bool attn_isa_third_is_slow(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_is("intel");
#else
    return false;
#endif
}
