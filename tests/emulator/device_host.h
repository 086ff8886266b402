/* SPDX-License-Identifier: BSD-3-Clause */
/* device.h on the host: what the PTX ISA says of each instruction. */
#ifndef EMULATOR_DEVICE_HOST_H
#define EMULATOR_DEVICE_HOST_H

#include <math.h>
#include <string.h>

#include "emulator/machine.h"
#include "half.h"

#define DEVICE inline
#define KERNEL static __attribute__((unused)) void
#define KERNEL_OF(threads) KERNEL
#define GRID_CONSTANT
#define UNROLLED
#define ROLLED

namespace dev {

DEVICE int thread() { return emulator::thread_index(); }
DEVICE int lane() { return thread() % 32; }
DEVICE int warp() { return thread() / 32; }
DEVICE int block() { return emulator::block_index(); }
DEVICE int blocks() { return emulator::grid_blocks(); }
DEVICE void *shared() { return emulator::shared_memory(); }

DEVICE void sync() { emulator::barrier_wait(0, emulator::block_threads()); }
DEVICE void sync_some(int id, int n) { emulator::barrier_wait(id, n); }
DEVICE void arrive(int id, int n) { emulator::barrier_arrive(id, n); }

DEVICE void sync_warp()
{
    emulator::collective("sync_warp", [](void *const *) {}, nullptr);
}

/* ---- Between lanes -------------------------------------------------------------------------- */

template <class T> struct exchange {
    T value, got;
    int from;
};

template <class T> DEVICE T shuffle(T x, int from)
{
    exchange<T> e = {x, x, from & 31};
    emulator::collective("shuffle", [](void *const *operands) {
        for (int i = 0; i < 32; i++) {
            exchange<T> *const to = (exchange<T> *)operands[i];
            to->got = ((exchange<T> *)operands[to->from])->value;
        }
    }, &e);
    return e.got;
}

template <class T> DEVICE T shuffle_xor(T x, int mask) { return shuffle(x, lane() ^ mask); }

DEVICE uint32_t ballot(bool p)
{
    struct vote {
        bool yes;
        uint32_t all;
    } v = {p, 0};
    emulator::collective("ballot", [](void *const *operands) {
        uint32_t all = 0;
        for (int i = 0; i < 32; i++)
            all |= (uint32_t)((vote *)operands[i])->yes << i;
        for (int i = 0; i < 32; i++)
            ((vote *)operands[i])->all = all;
    }, &v);
    return v.all;
}

/* ---- Copies --------------------------------------------------------------------------------- */

template <int bytes> DEVICE void copy_async(void *to, const void *from, bool valid)
{
    static_assert(bytes == 4 || bytes == 8 || bytes == 16, "sizes that there are");
    emulator::copy_begin(to, from, bytes, valid);
}
DEVICE void commit_copies() { emulator::copies_commit(); }
template <int n> DEVICE void wait_copies() { emulator::copies_wait(n); }

/* ---- Matrices ------------------------------------------------------------------------------- */

struct matrices {
    const void *row;
    uint32_t *r;
    bool transposed;
};

/* Lane l holds elements 2 (l % 4) and the one after it of row l / 4 of each matrix; transposed: of
 * column l / 4. Eight rows of 16 bytes come from all 32 banks, unless two begin in the same four.
 */
DEVICE void load_all(void *const *operands)
{
    for (int matrix = 0; matrix < 4; matrix++) {
        uint16_t x[8][8];
        int seen[8] = {0};
        long most = 0;
        for (int r = 0; r < 8; r++) {
            const void *const row = ((matrices *)operands[8 * matrix + r])->row;
            const int bank = (int)((uintptr_t)row / 16 % 8);
            memcpy(x[r], row, sizeof x[r]);
            most = ++seen[bank] > most ? seen[bank] : most;
        }
        emulator::count_bank_conflicts(most - 1);
        for (int l = 0; l < 32; l++) {
            const matrices *const to = (matrices *)operands[l];
            const int a = l / 4, b = l % 4 * 2;
            const uint16_t low = to->transposed ? x[b][a] : x[a][b];
            const uint16_t high = to->transposed ? x[b + 1][a] : x[a][b + 1];
            to->r[matrix] = (uint32_t)low | (uint32_t)high << 16;
        }
    }
}

DEVICE void load_matrices(uint32_t r[4], const void *row)
{
    matrices m = {row, r, false};
    if ((uintptr_t)row % 16 != 0)
        emulator::fault("load_matrices: a row at %p", row);
    emulator::collective("load_matrices", load_all, &m);
}

DEVICE void load_transposed(uint32_t r[4], const void *row)
{
    matrices m = {row, r, true};
    if ((uintptr_t)row % 16 != 0)
        emulator::fault("load_transposed: a row at %p", row);
    emulator::collective("load_transposed", load_all, &m);
}

/* Fragments, g = lane / 4, t = lane % 4: a[0], a[1] hold columns 2t, 2t + 1 of rows g, g + 8 of A,
 * a[2], a[3] columns 2t + 8, 2t + 9; b[0], b[1] rows 2t, 2t + 1 and 2t + 8, 2t + 9 of column g of
 * B; c[0], c[1] columns 2t, 2t + 1 of row g of C, c[2], c[3] of row g + 8. */
struct fragments {
    float *c;
    const uint32_t *a, *b;
};

template <float (*number)(uint16_t)> DEVICE void multiply_all(void *const *operands)
{
    double a[16][16], b[16][8];
    for (int l = 0; l < 32; l++) {
        const fragments *const f = (fragments *)operands[l];
        const int g = l / 4, t = l % 4;
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < 4; i++)
                a[g + 8 * (i % 2)][2 * t + 8 * (i / 2) + half] =
                    (double)number((uint16_t)(f->a[i] >> 16 * half));
            for (int i = 0; i < 2; i++)
                b[2 * t + 8 * i + half][g] = (double)number((uint16_t)(f->b[i] >> 16 * half));
        }
    }
    for (int l = 0; l < 32; l++) {
        const fragments *const f = (fragments *)operands[l];
        for (int i = 0; i < 4; i++) {
            const int row = l / 4 + 8 * (i / 2), column = 2 * (l % 4) + i % 2;
            double sum = (double)f->c[i];
            for (int k = 0; k < 16; k++)
                sum += a[row][k] * b[k][column];
            f->c[i] = (float)sum;
        }
    }
}

DEVICE void multiply_bf16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    fragments f = {c, a, b};
    emulator::collective("multiply_bf16", multiply_all<attn_bf16_to_f32>, &f);
}

DEVICE void multiply_f16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    fragments f = {c, a, b};
    emulator::collective("multiply_f16", multiply_all<attn_f16_to_f32>, &f);
}

DEVICE uint32_t round_tf32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return isfinite(x) ? (bits + 0x1000) & ~0x1fffu : isnan(x) ? 0x7fffffffu : bits;
}

/* a[0], a[1]: column t of rows g, g + 8; a[2], a[3]: column t + 4; b[0], b[1]: rows t, t + 4 of
 * column g. What follows the first 10 bits is not looked at. */
DEVICE double tf32_to_f64(uint32_t bits)
{
    float x;
    bits &= ~0x1fffu;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

DEVICE void multiply_tf32(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    fragments f = {c, a, b};
    emulator::collective("multiply_tf32", [](void *const *operands) {
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 4; i++) {
                float *const to = ((fragments *)operands[l])->c + i;
                double sum = (double)*to;
                for (int k = 0; k < 8; k++)
                    sum += tf32_to_f64(((fragments *)operands[l / 4 * 4 + k % 4])
                                           ->a[i / 2 + k / 4 * 2]) *
                           tf32_to_f64(((fragments *)operands[(l % 4 * 2 + i % 2) * 4 + k % 4])
                                           ->b[k / 4]);
                *to = (float)sum;
            }
    }, &f);
}

/* Lane l holds row l / 4, column l % 4 of A, row l % 4, column l / 4 of B, and columns 2 (l % 4)
 * and the one after it of row l / 4 of C. */
struct fragments_f64 {
    double *c, a, b;
};

DEVICE void multiply_f64(double c[2], double a, double b)
{
    fragments_f64 f = {c, a, b};
    emulator::collective("multiply_f64", [](void *const *operands) {
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 2; i++) {
                double *const sum = ((fragments_f64 *)operands[l])->c + i;
                for (int k = 0; k < 4; k++)
                    *sum = fma(((fragments_f64 *)operands[l / 4 * 4 + k])->a,
                               ((fragments_f64 *)operands[(l % 4 * 2 + i) * 4 + k])->b, *sum);
            }
    }, &f);
}

template <class T> DEVICE T load_16(const void *from)
{
    static_assert(sizeof(T) == 16, "16 bytes");
    T x;
    if ((uintptr_t)from % 16 != 0)
        emulator::fault("load_16: from %p", from);
    memcpy(&x, from, sizeof x);
    return x;
}

/* ---- Numbers -------------------------------------------------------------------------------- */

DEVICE uint32_t pack_bf16(float low, float high)
{
    return attn_f32_to_bf16(low) | (uint32_t)attn_f32_to_bf16(high) << 16;
}

DEVICE uint32_t pack_f16(float low, float high)
{
    return attn_f32_to_f16(low) | (uint32_t)attn_f32_to_f16(high) << 16;
}

DEVICE float exp2_fast(float x)
{
    const float y = exp2f(fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x);
    return fpclassify(y) == FP_SUBNORMAL ? 0 : y;
}

DEVICE float exp(float x) { return ::expf(x); }
DEVICE double exp(double x) { return ::exp(x); }

DEVICE int add_atomic(int *p, int x)
{
    const int before = *p;
    *p = before + x;
    emulator::yield();
    return before;
}

DEVICE void least_atomic(uint64_t *p, uint64_t x)
{
    if (x < *p)
        *p = x;
    emulator::yield();
}

DEVICE void max_atomic(int64_t *p, int64_t x)
{
    *p = x > *p ? x : *p;
    emulator::yield();
}

DEVICE int count_bits(uint32_t x) { return __builtin_popcount(x); }

} // namespace dev

#endif
