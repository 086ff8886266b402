/* SPDX-License-Identifier: BSD-3-Clause */
/* device.h on a GPU, sm_80 and later. */
#ifndef ATTN_CUDA_DEVICE_PTX_H
#define ATTN_CUDA_DEVICE_PTX_H

#define DEVICE __device__ __forceinline__
#define KERNEL static __global__ void
#define KERNEL_OF(threads) static __global__ void __launch_bounds__(threads, 1) /* on its own */
#define GRID_CONSTANT __grid_constant__ /* of a kernel's parameter: it is not copied */
#define UNROLLED _Pragma("unroll")      /* so that arrays stay in registers */
#define ROLLED _Pragma("unroll 1")

namespace dev {

DEVICE int thread() { return (int)threadIdx.x; }
DEVICE int lane() { return (int)(threadIdx.x % 32); }
DEVICE int warp() { return (int)(threadIdx.x / 32); }
DEVICE int block() { return (int)blockIdx.x; }
DEVICE int blocks() { return (int)gridDim.x; }

DEVICE void *shared()
{
    extern __shared__ __align__(1024) unsigned char memory[];
    return memory;
}

DEVICE void sync() { __syncthreads(); }
DEVICE void sync_some(int id, int n)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}
DEVICE void arrive(int id, int n)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n) : "memory");
}
DEVICE void sync_warp() { __syncwarp(); }

template <class T> DEVICE T shuffle(T x, int from) { return __shfl_sync(0xffffffffu, x, from); }
template <class T> DEVICE T shuffle_xor(T x, int mask)
{
    return __shfl_xor_sync(0xffffffffu, x, mask);
}
DEVICE uint32_t ballot(bool p) { return __ballot_sync(0xffffffffu, p); }

DEVICE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

template <int bytes> DEVICE void copy_async(void *to, const void *from, bool valid)
{
    static_assert(bytes == 4 || bytes == 8 || bytes == 16, "sizes that there are");
    const int size = valid ? bytes : 0;
    if (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)),
                     "l"(from), "n"(bytes), "r"(size) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)),
                     "l"(from), "n"(bytes), "r"(size) : "memory");
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int n> DEVICE void wait_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

DEVICE void load_matrices(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)) : "memory");
}
DEVICE void load_transposed(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)) : "memory");
}

#define MULTIPLY(name, type)                                                                       \
    DEVICE void name(float c[4], const uint32_t a[4], const uint32_t b[2])                         \
    {                                                                                              \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                \
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"             \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));          \
    }
MULTIPLY(multiply_bf16, "bf16")
MULTIPLY(multiply_f16, "f16")
#undef MULTIPLY

DEVICE uint32_t round_tf32(float x)
{
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}
DEVICE void multiply_tf32(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEVICE void multiply_f64(double c[2], double a, double b)
{
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(c[0]), "+d"(c[1]) : "d"(a), "d"(b));
}

/* cvt takes the upper half first. */
DEVICE uint32_t pack_bf16(float low, float high)
{
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
DEVICE uint32_t pack_f16(float low, float high)
{
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

template <class T> DEVICE T load_16(const void *from)
{
    static_assert(sizeof(T) == sizeof(uint4), "16 bytes");
    const uint4 bits = *(const uint4 *)from;
    T x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

DEVICE float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float exp(float x) { return ::expf(x); }
DEVICE double exp(double x) { return ::exp(x); }
DEVICE int add_atomic(int *p, int x) { return atomicAdd(p, x); }
DEVICE void least_atomic(uint64_t *p, uint64_t x)
{
    static_assert(sizeof *p == sizeof(unsigned long long), "the type that atomicMin has");
    atomicMin((unsigned long long *)p, (unsigned long long)x);
}
DEVICE void max_atomic(int64_t *p, int64_t x) { atomicMax((long long *)p, (long long)x); }
DEVICE int count_bits(uint32_t x) { return __popc(x); }

} // namespace dev

#endif
