/* SPDX-License-Identifier: BSD-3-Clause */
/* device_sm90.h on a GPU: compiles for sm_90a and nothing else. */
#ifndef ATTN_CUDA_DEVICE_PTX_SM90_H
#define ATTN_CUDA_DEVICE_PTX_SM90_H

namespace dev {

/* ---- Barriers that count bytes -------------------------------------------------------------- */

DEVICE void mbarrier_init(uint64_t *b, int n)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(n)
                 : "memory");
}
DEVICE void mbarrier_invalidate(uint64_t *b)
{
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(b)) : "memory");
}
DEVICE void mbarrier_arrive(uint64_t *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
DEVICE void mbarrier_expect(uint64_t *b, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
                 "r"(bytes) : "memory");
}
DEVICE void mbarrier_wait(uint64_t *b, int parity)
{
    uint32_t ended = 0;
    while (!ended)
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(ended) : "r"(shared_address(b)), "r"(parity) : "memory");
}

/* ---- Bulk copies ---------------------------------------------------------------------------- */

DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define TENSOR "cp.async.bulk.tensor."
#define LOAD ".shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {"
#define STORE ".global.shared::cta.bulk_group [%0, {"

DEVICE void load_tensor(void *to, const tensor_map *map, uint64_t *b, int x, int y)
{
    asm volatile(TENSOR "2d" LOAD "%3, %4}], [%2];" ::"r"(shared_address(to)), "l"(map),
                 "r"(shared_address(b)), "r"(x), "r"(y) : "memory");
}
DEVICE void load_tensor(void *to, const tensor_map *map, uint64_t *b, int x, int y, int z)
{
    asm volatile(TENSOR "3d" LOAD "%3, %4, %5}], [%2];" ::"r"(shared_address(to)), "l"(map),
                 "r"(shared_address(b)), "r"(x), "r"(y), "r"(z) : "memory");
}
DEVICE void load_tensor(void *to, const tensor_map *map, uint64_t *b, int x, int y, int z, int w)
{
    asm volatile(TENSOR "4d" LOAD "%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)), "l"(map),
                 "r"(shared_address(b)), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
DEVICE void store_tensor(const tensor_map *map, const void *from, int x, int y)
{
    asm volatile(TENSOR "2d" STORE "%2, %3}], [%1];" ::"l"(map), "r"(shared_address(from)),
                 "r"(x), "r"(y) : "memory");
}
DEVICE void store_tensor(const tensor_map *map, const void *from, int x, int y, int z)
{
    asm volatile(TENSOR "3d" STORE "%2, %3, %4}], [%1];" ::"l"(map), "r"(shared_address(from)),
                 "r"(x), "r"(y), "r"(z) : "memory");
}
DEVICE void store_tensor(const tensor_map *map, const void *from, int x, int y, int z, int w)
{
    asm volatile(TENSOR "4d" STORE "%2, %3, %4, %5}], [%1];" ::"l"(map), "r"(shared_address(from)),
                 "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
#undef TENSOR
#undef LOAD
#undef STORE

DEVICE void load_bulk(void *to, const void *from, int bytes, uint64_t *b)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared_address(to)), "l"(from), "r"(bytes),
                 "r"(shared_address(b)) : "memory");
}
DEVICE void store_bulk(void *to, const void *from, int bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(from)), "r"(bytes) : "memory");
}
DEVICE void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int n> DEVICE void wait_stores_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(n) : "memory");
}
template <int n> DEVICE void wait_stores()
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(n) : "memory");
}

/* ---- Products of warpgroups ----------------------------------------------------------------- */

DEVICE void wg_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wg_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int n> DEVICE void wg_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}
template <int n> DEVICE void hold(float *c)
{
    UNROLLED for (int i = 0; i < n; i++)
        asm volatile("" : "+f"(c[i])::"memory");
}
template <int n> DEVICE void hold(uint32_t *a)
{
    UNROLLED for (int i = 0; i < n; i++)
        asm volatile("" : "+r"(a[i])::"memory");
}

/* The names of a product's operands: sums first, then a, b, whether to add, and b's form. */
#define TEN(t)                                                                                     \
    "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %"  \
    #t "9, "
#define EIGHT "%0, %1, %2, %3, %4, %5, %6, %7"
#define NAMES_16 EIGHT
#define NAMES_32 EIGHT ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_64 EIGHT ", %8, %9, " TEN(1) TEN(2) "%30, %31"
#define TENS_3 EIGHT ", %8, %9, " TEN(1) TEN(2) TEN(3)
#define TENS_8 TENS_3 TEN(4) TEN(5) TEN(6) TEN(7) TEN(8)
#define NAMES_96 TENS_3 "%40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_128 TENS_3 TEN(4) TEN(5) "%60, %61, %62, %63"
#define NAMES_192 TENS_8 "%90, %91, %92, %93, %94, %95"
#define NAMES_256 TENS_8 TEN(9) TEN(10) TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127"

#define SUMS_8(i)                                                                                  \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]),    \
        "+f"(c[i + 6]), "+f"(c[i + 7])
#define SUMS_16 SUMS_8(0)
#define SUMS_32 SUMS_16, SUMS_8(8)
#define SUMS_64 SUMS_32, SUMS_8(16), SUMS_8(24)
#define SUMS_96 SUMS_64, SUMS_8(32), SUMS_8(40)
#define SUMS_128 SUMS_96, SUMS_8(48), SUMS_8(56)
#define SUMS_192 SUMS_128, SUMS_8(64), SUMS_8(72), SUMS_8(80), SUMS_8(88)
#define SUMS_256 SUMS_192, SUMS_8(96), SUMS_8(104), SUMS_8(112), SUMS_8(120)

#define PRODUCT(n, type, a, b, add, rows)                                                          \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\n"                                               \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" NAMES_##n "}, " a ", " b  \
    ", p, 1, 1, " rows ";\n}"

/* N columns, a in shared memory or in registers; p0 and on are the numbers after the sums'. */
#define FROM_SHARED(n, type, p0, p1, p2, p3)                                                       \
    if constexpr (N == n)                                                                          \
        asm volatile(PRODUCT(n, type, "%" #p0, "%" #p1, "%" #p2, "0, %" #p3)                       \
                     : SUMS_##n : "l"(a), "l"(b), "r"((int)add), "n"((int)ROWS));
#define FROM_REGISTERS(n, type, p0, p1, p2, p3, p4, p5, p6)                                        \
    if constexpr (N == n)                                                                          \
        asm volatile(PRODUCT(n, type, "{%" #p0 ", %" #p1 ", %" #p2 ", %" #p3 "}", "%" #p4,         \
                             "%" #p5, "%" #p6)                                                     \
                     : SUMS_##n                                                                    \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add),          \
                       "n"((int)ROWS));
#define WG_MULTIPLY(name, type)                                                                    \
    template <int N, bool ROWS> DEVICE void name(float *c, uint64_t a, uint64_t b, bool add)       \
    {                                                                                              \
        static_assert(N == 16 || N == 32 || N == 96 || (N % 64 == 0 && N != 0 && N < 257), "N");   \
        FROM_SHARED(16, type, 8, 9, 10, 11)                                                        \
        FROM_SHARED(32, type, 16, 17, 18, 19)                                                      \
        FROM_SHARED(64, type, 32, 33, 34, 35)                                                      \
        FROM_SHARED(96, type, 48, 49, 50, 51)                                                      \
        FROM_SHARED(128, type, 64, 65, 66, 67)                                                     \
        FROM_SHARED(192, type, 96, 97, 98, 99)                                                     \
        FROM_SHARED(256, type, 128, 129, 130, 131)                                                 \
    }                                                                                              \
    template <int N, bool ROWS>                                                                    \
    DEVICE void name(float *c, const uint32_t *a, uint64_t b, bool add)                            \
    {                                                                                              \
        static_assert(N == 16 || N == 32 || N == 96 || (N % 64 == 0 && N != 0 && N < 257), "N");   \
        FROM_REGISTERS(16, type, 8, 9, 10, 11, 12, 13, 14)                                         \
        FROM_REGISTERS(32, type, 16, 17, 18, 19, 20, 21, 22)                                       \
        FROM_REGISTERS(64, type, 32, 33, 34, 35, 36, 37, 38)                                       \
        FROM_REGISTERS(96, type, 48, 49, 50, 51, 52, 53, 54)                                       \
        FROM_REGISTERS(128, type, 64, 65, 66, 67, 68, 69, 70)                                      \
        FROM_REGISTERS(192, type, 96, 97, 98, 99, 100, 101, 102)                                   \
        FROM_REGISTERS(256, type, 128, 129, 130, 131, 132, 133, 134)                               \
    }
WG_MULTIPLY(wg_multiply_bf16, "bf16")
WG_MULTIPLY(wg_multiply_f16, "f16")
#undef WG_MULTIPLY
#undef FROM_REGISTERS
#undef FROM_SHARED
#undef PRODUCT
#undef EIGHT
#undef TEN

/* ---- Registers, lanes ----------------------------------------------------------------------- */

template <int n> DEVICE void raise_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n> DEVICE void lower_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}

DEVICE bool elect()
{
    uint32_t is_it;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 ".reg .b32 lane;\n"
                 "elect.sync lane|p, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(is_it));
    return is_it != 0;
}

} // namespace dev

#endif
