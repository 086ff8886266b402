/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * product.h for sm_90a: the product of two matrices of bf16 by bulk tensor copies, mbarriers and
 * products of warpgroups, with faults to be planted. A warpgroup copies, two multiply; a block
 * takes one tile of the result after another.
 */
#ifndef EMULATOR_PRODUCT_SM90_H
#define EMULATOR_PRODUCT_SM90_H

#include "cuda/device_sm90.h"

namespace product_sm90 {

enum fault {
    SOUND,
    NO_FULL_WAIT,       /* products begin before the copies are there */
    WRONG_FULL_PHASE,   /* they wait for the phase before */
    NO_EMPTY_WAIT,      /* copies begin before the products are done */
    WRONG_EMPTY_PHASE,
    EARLY_RELEASE,      /* a stage is given back before its products have been waited for */
    NO_RELEASE,         /* or never */
    FEW_BYTES,          /* too few are expected, */
    MANY_BYTES,         /* too many, */
    FEW_ARRIVALS,       /* of too few warps */
    NO_BARRIER_FENCE,   /* bulk copies may not know their mbarrier */
    NO_FENCE,           /* or what has been stored for them */
    NO_SYNC,            /* nor has it been, perhaps */
    NO_READ_WAIT,       /* what they read is stored over */
    NO_END_WAIT,        /* or is nobody's any more */
    WRONG_STRIDE,       /* descriptors: the next 8 rows are elsewhere, */
    WRONG_LEAD,         /* the next columns, */
    WRONG_STEP,         /* the next of depth */
    WRONG_SWIZZLE,      /* and in another order than copies have them */
    WRONG_MAJOR,        /* columns for rows */
    NO_PRODUCT_WAIT,    /* sums are read too early, */
    CHANGED_SUMS,       /* changed, */
    CHANGED_OPERAND,    /* or what they come from is */
    NO_BEGIN,           /* without the fence before products */
    LEFT_OUT,           /* a warp that does not multiply */
    NO_REGISTERS,       /* nobody gives up what others take */
    FAULTS
};

enum { GROUPS = 2, THREADS = 128 * (1 + GROUPS), STAGES = 2 };
enum { ROWS = 64 * GROUPS, COLUMNS = 128, DEPTH = 64 };
enum { A_BYTES = ROWS * DEPTH * 2, B_BYTES = COLUMNS * DEPTH * 2, STAGE = A_BYTES + B_BYTES };
enum { RESULT = 64 * COLUMNS * 4 }; /* of a warpgroup */
enum { BARRIERS = STAGES * STAGE + GROUPS * RESULT };
enum { SHARED_BYTES = BARRIERS + 2 * STAGES * 8 };

/* a [m][k], b [n][k] or, transposed, [k][n]; c [m][n] in f32, without a swizzle. */
struct tensors {
    dev::tensor_map a, b, c;
    int m, n, k;
};

/* Columns of a box, which copies bring one of beside the other, for a swizzle. */
template <int SWIZZLE> constexpr int WIDTH = 8 << SWIZZLE;

struct phase {
    int stage = 0, parity = 0;
    DEVICE void next()
    {
        stage = (stage + 1) % STAGES;
        parity ^= stage == 0;
    }
};

/* The boxes of one step of depth. */
template <int planted, bool transposed, int SWIZZLE>
DEVICE void copy_step(const tensors &t, char *to, uint64_t *full, int row0, int column0, int k0)
{
    constexpr int W = WIDTH<SWIZZLE>;
    const int bytes = STAGE + (planted == FEW_BYTES ? -128 : planted == MANY_BYTES ? 128 : 0);
    dev::mbarrier_expect(full, bytes);
    UNROLLED for (int i = 0; i < DEPTH / W; i++)
        dev::load_tensor(to + i * ROWS * W * 2, &t.a, full, k0 + i * W, row0);
    UNROLLED for (int i = 0; i < (transposed ? COLUMNS : DEPTH) / W; i++)
        if (transposed)
            dev::load_tensor(to + A_BYTES + i * DEPTH * W * 2, &t.b, full, column0 + i * W, k0);
        else
            dev::load_tensor(to + A_BYTES + i * COLUMNS * W * 2, &t.b, full, k0 + i * W, column0);
}

/* A tile of `rows` rows, depth side by side, from row `first` and depth k on. */
template <int SWIZZLE> DEVICE uint64_t deep(const char *tile, int rows, int first, int k, int wrong)
{
    constexpr int W = WIDTH<SWIZZLE>;
    return dev::matrix_at<SWIZZLE>(tile + k / W * rows * W * 2 + first * W * 2 + k % W * 2,
                                   (uint32_t)(rows * W * 2), (uint32_t)(8 * W * 2 + wrong));
}

/* The tile of b with its columns side by side. */
template <int planted, int SWIZZLE> DEVICE uint64_t wide(const char *tile, int k)
{
    constexpr int W = WIDTH<SWIZZLE>;
    const uint32_t box = DEPTH * W * 2 - (planted == WRONG_LEAD ? 1024 : 0);
    const uint32_t eight = 8 * W * 2 + (planted == WRONG_STRIDE ? 1024 : 0);
    return dev::matrix_at<SWIZZLE>(tile + k * W * 2, SWIZZLE ? box : eight, SWIZZLE ? eight : box);
}

/* What a warp multiplies of a stage, by a in shared memory or, HELD, in registers. */
template <int planted, bool transposed, int SWIZZLE, bool HELD>
DEVICE void multiply_step(float *sums, const char *stage, int group, bool first)
{
    constexpr int OTHER = planted == WRONG_SWIZZLE ? (SWIZZLE + 3) % 4 : SWIZZLE;
    constexpr int W = WIDTH<SWIZZLE>;
    constexpr bool ROWS_OF_B = transposed != (planted == WRONG_MAJOR);
    uint32_t held[DEPTH / 16][4];
    if (HELD)
        UNROLLED for (int k = 0; k < DEPTH; k += 16) {
            const int row = group * 64 + dev::warp() % 4 * 16 + dev::lane() % 16;
            const int at = k + dev::lane() / 16 * 8; /* the swizzle is of the address */
            const uint32_t place = (uint32_t)(at / W * ROWS * W * 2 + row * W * 2 + at % W * 2);
            dev::load_matrices(held[k / 16],
                               stage + (place ^ (place >> 7 & ((1 << SWIZZLE) - 1)) << 4));
        }
    dev::hold<COLUMNS / 2>(sums);
    if (planted != NO_BEGIN)
        dev::wg_begin();
    UNROLLED for (int k = 0; k < DEPTH; k += 16) {
        const int at = planted == WRONG_STEP ? k / 2 : k;
        const uint64_t b =
            transposed ? wide<planted, OTHER>(stage + A_BYTES, k)
                       : deep<OTHER>(stage + A_BYTES, COLUMNS, 0, k,
                                     planted == WRONG_STRIDE ? 64 : 0);
        if (planted == LEFT_OUT && dev::warp() % 4 == 1)
            continue;
        if (HELD)
            dev::wg_multiply_bf16<COLUMNS, ROWS_OF_B>(sums, held[at / 16], b, !first || k > 0);
        else
            dev::wg_multiply_bf16<COLUMNS, ROWS_OF_B>(
                sums, deep<OTHER>(stage, ROWS, group * 64, at, 0), b, !first || k > 0);
    }
    dev::wg_commit();
    if (planted == CHANGED_OPERAND && HELD)
        held[1][2] ^= 1;
    if (planted == CHANGED_SUMS)
        sums[5] *= 0.5f;
    if (planted == NO_PRODUCT_WAIT)
        dev::wg_wait<1>();
    else
        dev::wg_wait<0>();
    dev::hold<COLUMNS / 2>(sums);
}

/* A warpgroup's sums to the result, by way of shared memory. */
template <int planted>
DEVICE void put(const tensors &t, const float *sums, float *result, int group, int row0,
                int column0)
{
    const int row = dev::warp() % 4 * 16 + dev::lane() / 4;
    const bool stores = dev::warp() % 4 == 0 && dev::elect();
    if (stores && planted != NO_READ_WAIT)
        dev::wait_stores_read<0>();
    dev::sync_some(1 + group, 128);
    UNROLLED for (int i = 0; i < COLUMNS / 2; i++)
        result[(row + i / 2 % 2 * 8) * COLUMNS + i / 4 * 8 + dev::lane() % 4 * 2 + i % 2] = sums[i];
    if (planted != NO_FENCE)
        dev::fence_async();
    if (planted != NO_SYNC)
        dev::sync_some(1 + group, 128);
    if (stores) {
        dev::store_tensor(&t.c, result, column0, row0 + group * 64);
        dev::commit_stores();
    }
}

template <int planted, bool transposed, int SWIZZLE, bool HELD> DEVICE void compute(const tensors &t)
{
    char *const memory = (char *)dev::shared();
    uint64_t *const full = (uint64_t *)(memory + BARRIERS), *const empty = full + STAGES;
    const int across = (t.n + COLUMNS - 1) / COLUMNS, down = (t.m + ROWS - 1) / ROWS;
    const int group = dev::shuffle(dev::warp() / 4, 0);
    struct phase at;
    if (dev::thread() == 0) {
        for (int i = 0; i < STAGES; i++) {
            dev::mbarrier_init(full + i, 1);
            dev::mbarrier_init(empty + i, 4 * GROUPS - (planted == FEW_ARRIVALS));
        }
        if (planted != NO_BARRIER_FENCE)
            dev::fence_async();
    }
    dev::sync();
    if (group == GROUPS) {
        if (planted != NO_REGISTERS)
            dev::lower_registers<40>();
        if (dev::warp() % 4 == 0 && dev::elect())
            for (int tile = dev::block(); tile < across * down; tile += dev::blocks())
                for (int k = 0; k < t.k; k += DEPTH, at.next()) {
                    if (planted != NO_EMPTY_WAIT)
                        dev::mbarrier_wait(empty + at.stage,
                                           at.parity ^ (planted != WRONG_EMPTY_PHASE));
                    copy_step<planted, transposed, SWIZZLE>(t, memory + at.stage * STAGE,
                                                            full + at.stage, tile / across * ROWS,
                                                            tile % across * COLUMNS, k);
                }
    } else {
        float sums[COLUMNS / 2];
        dev::raise_registers<232>();
        for (int tile = dev::block(); tile < across * down; tile += dev::blocks()) {
            for (int k = 0; k < t.k; k += DEPTH, at.next()) {
                if (planted != NO_FULL_WAIT)
                    dev::mbarrier_wait(full + at.stage, at.parity ^ (planted == WRONG_FULL_PHASE));
                if (planted == EARLY_RELEASE && dev::lane() == 0)
                    dev::mbarrier_arrive(empty + at.stage);
                multiply_step<planted, transposed, SWIZZLE, HELD>(sums, memory + at.stage * STAGE,
                                                                  group, k == 0);
                if (planted != EARLY_RELEASE && planted != NO_RELEASE && dev::lane() == 0)
                    dev::mbarrier_arrive(empty + at.stage);
            }
            put<planted>(t, sums, (float *)(memory + STAGES * STAGE + group * RESULT), group,
                         tile / across * ROWS, tile % across * COLUMNS);
        }
        if (planted != NO_END_WAIT && dev::warp() % 4 == 0 && dev::elect())
            dev::wait_stores_read<0>();
    }
}

template <int planted, bool transposed, int SWIZZLE, bool HELD>
KERNEL_OF(THREADS) multiply(GRID_CONSTANT const tensors t)
{
    compute<planted, transposed, SWIZZLE, HELD>(t);
}

} // namespace product_sm90

#endif
