/* SPDX-License-Identifier: BSD-3-Clause */
/* conformance.h for what sm_90a adds (cuda/device_sm90.h): one block of a warpgroup. */
#ifndef EMULATOR_CONFORMANCE_SM90_H
#define EMULATOR_CONFORMANCE_SM90_H

#include "cuda/device_sm90.h"
#include "emulator/product_sm90.h"

namespace conformance_sm90 {

enum { THREADS = 128, WORDS = 128, ALL = THREADS * WORDS }; /* words of a result */
enum { TILE = ALL * 4, SHARED_BYTES = TILE + 64 };

enum result {
    PHASES,       /* of an mbarrier: words handed from warp to warp */
    ELECT,
    BULK,         /* bytes side by side, there and back */
    LOAD_PLAIN,   /* boxes of tensors, by swizzle and by axes */
    LOAD_32,
    LOAD_64,
    LOAD_128,
    LOAD_3D,
    LOAD_4D,
    STORE_2D,
    STORE_3D,
    STORE_4D,
    BF16_16,      /* products of integers, by columns; the depth of b side by side */
    BF16_32,
    BF16_64,
    BF16_96,
    BF16_128,
    BF16_192,
    BF16_256,
    F16_64,
    DEEP_PLAIN,   /* by swizzle */
    DEEP_32,
    DEEP_64,
    WIDE_PLAIN,   /* with the columns of b side by side */
    WIDE_32,
    WIDE_64,
    WIDE_128,
    HELD_BF16,    /* with a in registers */
    HELD_F16,
    BF16_NUMBERS, /* products of any numbers: to a rounding of each step */
    F16_NUMBERS,
    WHOLE,        /* product_sm90.h, which passes registers on as well */
    RESULTS
};

enum input { BITS, INTEGERS_BF16, INTEGERS_F16, NUMBERS_BF16, NUMBERS_F16, INPUTS };

const char *difference(int r, const uint32_t *got, const uint32_t *expected);
const char *name(int r);
void draw_inputs(uint32_t *inputs, uint64_t seed); /* [INPUTS][ALL] */

/* Tensors of 16-bit numbers of the sizes X Y Z W, 2 or 3 of the axes made of these: inputs BITS and
 * results STORE_*. */
enum { X = 80, Y = 20, Z = 3, W = 2 };
enum { MAPS = STORE_4D - LOAD_PLAIN + 1 };

struct arguments {
    dev::tensor_map map[MAPS]; /* of LOAD_PLAIN and so on */
    product_sm90::tensors product;
    const uint32_t *inputs;
    uint32_t *results;
};

/* For memory of the one who encodes; false if it can make no map of a tensor. */
bool find_arguments(attn_cuda_encode encode, const uint32_t *inputs, uint32_t *results,
                    struct arguments *a);

/* The emulator's results; why it ended, if it did not get there. */
const char *emulate(const uint32_t *inputs, uint32_t *results, uint64_t seed);

DEVICE uint32_t *row(const struct arguments &a, int r) { return a.results + r * ALL; }

DEVICE void fill(const uint32_t *from)
{
    uint32_t *const to = (uint32_t *)dev::shared();
    dev::sync();
    for (int n = dev::thread(); n < ALL; n += THREADS)
        to[n] = from[n];
    dev::fence_async();
    dev::sync();
}

/* Words go from warp to warp, each of which waits for the phase before. */
DEVICE void hand_round(uint32_t *to, uint64_t *barrier, const uint32_t *x)
{
    uint32_t *const memory = (uint32_t *)dev::shared();
    if (dev::thread() == 0) {
        dev::mbarrier_init(barrier, 32);
        dev::fence_async();
    }
    dev::sync();
    for (int phase = 0; phase < 4; phase++) {
        if (dev::warp() == phase) {
            const uint32_t before = phase ? memory[(phase - 1) * 32 + 31 - dev::lane()] : 0;
            memory[phase * 32 + dev::lane()] = before * 3 + x[dev::thread()];
            dev::mbarrier_arrive(barrier);
        }
        dev::mbarrier_wait(barrier, phase % 2);
        to[dev::thread() * WORDS + phase] = memory[phase * 32 + dev::lane()];
        dev::sync(); /* nobody is left two phases behind */
    }
    if (dev::thread() == 0)
        dev::mbarrier_invalidate(barrier);
    dev::sync();
}

/* Something of x: where a box begins, outside the tensor now and then; multiples of `each`. */
DEVICE int begin_of(uint32_t x, int size, int each = 1)
{
    const int before = size > 9 * each ? 2 : 1;
    return ((int)(x % (uint32_t)(size / each + before)) - before) * each;
}

struct box {
    int axes, bytes;
};
DEVICE struct box box_of(int r)
{
    return r == LOAD_PLAIN                   ? box{2, 24 * 8 * 2}
           : r <= LOAD_128                   ? box{2, 8 * 2 * 16 * (1 << (r - LOAD_PLAIN))}
           : r == LOAD_3D || r == STORE_3D   ? box{3, 16 * 5 * 2 * 2}
           : r == LOAD_4D || r == STORE_4D   ? box{4, 32 * 3 * 2 * 2 * 2}
                                             : box{2, 64 * 16 * 2};
}

/* Load boxes become a result as they lie in shared memory. */
DEVICE void load(const struct arguments &a, int r, uint64_t *barrier)
{
    const uint32_t *const x = a.inputs + r * 8;
    const struct box b = box_of(r);
    const dev::tensor_map *const map = &a.map[r - LOAD_PLAIN];
    void *const to = dev::shared();
    fill(a.inputs);
    if (dev::thread() == 0) {
        const int at[4] = {begin_of(x[0], X, 8), begin_of(x[1], Y), begin_of(x[2], Z),
                           begin_of(x[3], W)};
        dev::mbarrier_init(barrier, 1);
        dev::fence_async();
        dev::mbarrier_expect(barrier, b.bytes);
        if (b.axes == 2)
            dev::load_tensor(to, map, barrier, at[0], at[1]);
        else if (b.axes == 3)
            dev::load_tensor(to, map, barrier, at[0], at[1], at[2]);
        else
            dev::load_tensor(to, map, barrier, at[0], at[1], at[2], at[3]);
    }
    dev::sync();
    dev::mbarrier_wait(barrier, 0);
    for (int n = dev::thread(); n < b.bytes / 4; n += THREADS)
        row(a, r)[n] = ((uint32_t *)to)[n];
    dev::sync();
    if (dev::thread() == 0)
        dev::mbarrier_invalidate(barrier);
}

/* Store boxes are what shared memory has; some end outside the tensor. */
DEVICE void store(const struct arguments &a, int r)
{
    const uint32_t *const x = a.inputs + r * 8;
    const dev::tensor_map *const map = &a.map[r - LOAD_PLAIN];
    const void *const from = dev::shared();
    fill(a.inputs);
    if (dev::thread() == 0) {
        const int at[4] = {(int)(x[0] % (X / 8)) * 8, (int)(x[1] % Y), (int)(x[2] % Z),
                           (int)(x[3] % W)};
        if (box_of(r).axes == 2)
            dev::store_tensor(map, from, at[0], at[1]);
        else if (box_of(r).axes == 3)
            dev::store_tensor(map, from, at[0], at[1], at[2]);
        else
            dev::store_tensor(map, from, at[0], at[1], at[2], at[3]);
        dev::commit_stores();
        dev::wait_stores<0>();
    }
    dev::sync();
}

DEVICE void bulk(const struct arguments &a, uint64_t *barrier)
{
    char *const memory = (char *)dev::shared();
    if (dev::thread() == 0) {
        dev::mbarrier_init(barrier, 1);
        dev::fence_async();
        dev::mbarrier_expect(barrier, 4096 + 16);
        dev::load_bulk(memory, a.inputs, 4096, barrier);
        dev::load_bulk(memory + 8192, a.inputs + 2048, 16, barrier);
        dev::mbarrier_wait(barrier, 0);
        dev::store_bulk(row(a, BULK), memory + 2048, 1024);
        dev::store_bulk(row(a, BULK) + 1024, memory + 8192, 16);
        dev::commit_stores();
        dev::wait_stores_read<0>();
        dev::wait_stores<0>();
        dev::mbarrier_invalidate(barrier);
    }
    dev::sync();
}

/* c = a b + a' b', of matrices in the two halves of shared memory: patterns one after the other,
 * with room between those of one depth where columns are side by side. */
template <int SWIZZLE, bool ROWS> DEVICE uint64_t matrix(int half, int rows, int step)
{
    constexpr int PATTERN = 128 << SWIZZLE;
    const char *const p = (const char *)dev::shared() + half * TILE / 2;
    if (ROWS)
        return SWIZZLE ? dev::matrix_at<SWIZZLE>(p + step * PATTERN * 16, 4 * PATTERN, PATTERN)
                       : dev::matrix_at<SWIZZLE>(p + step * 512, 128, 256);
    return dev::matrix_at<SWIZZLE>(p + step * (SWIZZLE > 1 ? 32 : 2048), rows * 16, PATTERN);
}

struct bf16 {
    template <int N, bool ROWS, class A> static DEVICE void go(float *c, A a, uint64_t b, bool add)
    {
        dev::wg_multiply_bf16<N, ROWS>(c, a, b, add);
    }
};
struct f16 {
    template <int N, bool ROWS, class A> static DEVICE void go(float *c, A a, uint64_t b, bool add)
    {
        dev::wg_multiply_f16<N, ROWS>(c, a, b, add);
    }
};

template <class T, int N, bool ROWS, int SWIZZLE, bool HELD>
DEVICE void multiply(const struct arguments &x, int r, int input)
{
    const uint32_t *const numbers = x.inputs + input * ALL;
    float c[N / 2];
    uint32_t held[2][4];
    fill(numbers);
    UNROLLED for (int n = 0; n < N / 2; n++)
        c[n] = 77; /* is not looked at */
    UNROLLED for (int n = 0; n < 8; n++)
        held[n / 4][n % 4] = numbers[dev::thread() * 8 + n];
    dev::hold<N / 2>(c);
    dev::wg_begin();
    UNROLLED for (int step = 0; step < 2; step++) {
        const uint64_t b = matrix<SWIZZLE, ROWS>(1, N, step);
        if (HELD)
            T::template go<N, ROWS, const uint32_t *>(c, held[step], b, step > 0);
        else
            T::template go<N, ROWS, uint64_t>(c, matrix<SWIZZLE, false>(0, 64, step), b, step > 0);
    }
    dev::wg_commit();
    dev::wg_wait<0>();
    dev::hold<N / 2>(c);
    UNROLLED for (int n = 0; n < N / 2; n++)
        memcpy(row(x, r) + dev::thread() * WORDS + n, &c[n], sizeof c[n]);
}

KERNEL_OF(THREADS) exercise(GRID_CONSTANT const struct arguments a)
{
    uint64_t *const barrier = (uint64_t *)((char *)dev::shared() + TILE);
    hand_round(row(a, PHASES), barrier, a.inputs);
    row(a, ELECT)[dev::thread()] = (uint32_t)__builtin_popcount(dev::ballot(dev::elect()));
    dev::sync();
    bulk(a, barrier);
    for (int r = LOAD_PLAIN; r <= LOAD_4D; r++)
        load(a, r, barrier);
    for (int r = STORE_2D; r <= STORE_4D; r++)
        store(a, r);
    multiply<bf16, 16, false, 3, false>(a, BF16_16, INTEGERS_BF16);
    multiply<bf16, 32, false, 3, false>(a, BF16_32, INTEGERS_BF16);
    multiply<bf16, 64, false, 3, false>(a, BF16_64, INTEGERS_BF16);
    multiply<bf16, 96, false, 3, false>(a, BF16_96, INTEGERS_BF16);
    multiply<bf16, 128, false, 3, false>(a, BF16_128, INTEGERS_BF16);
    multiply<bf16, 192, false, 3, false>(a, BF16_192, INTEGERS_BF16);
    multiply<bf16, 256, false, 3, false>(a, BF16_256, INTEGERS_BF16);
    multiply<f16, 64, false, 3, false>(a, F16_64, INTEGERS_F16);
    multiply<bf16, 64, false, 0, false>(a, DEEP_PLAIN, INTEGERS_BF16);
    multiply<bf16, 64, false, 1, false>(a, DEEP_32, INTEGERS_BF16);
    multiply<bf16, 64, false, 2, false>(a, DEEP_64, INTEGERS_BF16);
    multiply<bf16, 128, true, 0, false>(a, WIDE_PLAIN, INTEGERS_BF16);
    multiply<bf16, 128, true, 1, false>(a, WIDE_32, INTEGERS_BF16);
    multiply<bf16, 128, true, 2, false>(a, WIDE_64, INTEGERS_BF16);
    multiply<bf16, 128, true, 3, false>(a, WIDE_128, INTEGERS_BF16);
    multiply<bf16, 128, true, 3, true>(a, HELD_BF16, INTEGERS_BF16);
    multiply<f16, 128, false, 3, true>(a, HELD_F16, INTEGERS_F16);
    multiply<bf16, 128, false, 3, false>(a, BF16_NUMBERS, NUMBERS_BF16);
    multiply<f16, 128, false, 3, false>(a, F16_NUMBERS, NUMBERS_F16);
}

/* The kernel of WHOLE. */
enum { PRODUCT_BLOCKS = 2 };
KERNEL_OF(product_sm90::THREADS) exercise_all(GRID_CONSTANT const struct arguments a)
{
    product_sm90::compute<product_sm90::SOUND, true, 3, false>(a.product);
}

} // namespace conformance_sm90

#endif
