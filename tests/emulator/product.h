/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A kernel to test the emulator with, and the emulator's strictness: the product of two matrices of
 * bf16, copied to shared memory one step ahead, with faults to be planted. Compiles with nvcc, too.
 */
#ifndef EMULATOR_PRODUCT_H
#define EMULATOR_PRODUCT_H

#include "cuda/device.h"

namespace product {

enum fault {
    SOUND,
    NO_SYNC_BEFORE,    /* the products begin before all copies are in place */
    NO_SYNC_AFTER,     /* the next copies begin before all products are done */
    NO_WAIT,           /* the last group is not waited for */
    ONE_STAGE,         /* both steps in one place */
    NO_ROW_CHECK,      /* rows past the end are read */
    NO_STORE_CHECK,    /* and written */
    NO_STEP_CHECK,     /* columns past the end count */
    WRONG_FRAGMENT,    /* halves of b the wrong way round */
    WRONG_CHUNK,       /* stored in one order, read in another */
    PART_OF_A_WARP,    /* lanes that do not come to a collective function */
    PART_OF_A_BLOCK,   /* threads that do not come to a barrier */
    FAULTS
};

enum { ROWS = 32, COLUMNS = 16, STEP = 32, THREADS = 64, STAGES = 2 };
enum { A_BYTES = ROWS * STEP * 2, B_BYTES = COLUMNS * STEP * 2 };
enum { SHARED_BYTES = STAGES * (A_BYTES + B_BYTES) };

/* Where 16 bytes of a row of 64 (or 32) lie, so that any 8 rows come from all banks. */
DEVICE int place(int row, int chunk) { return row * 64 + (chunk ^ row / 2 % 4) * 16; }
DEVICE int place_transposed(int row, int chunk) { return row * 32 + (chunk ^ row / 4 % 2) * 16; }

/* c[m][n] = a[m][k] b, and of each row of a block the largest, largest[m][blocks across]. b is
 * [n][k], or [k][n] if transposed; k, and n then, a multiple of 8. Blocks go through the rows
 * first. */
template <int planted, bool transposed>
KERNEL multiply(const uint16_t *a, const uint16_t *b, float *c, float *largest, int m, int n, int k)
{
    char *const memory = (char *)dev::shared();
    const int down = (m + ROWS - 1) / ROWS, across = (n + COLUMNS - 1) / COLUMNS;
    const int row0 = dev::block() % down * ROWS, column0 = dev::block() / down * COLUMNS;
    const int steps = (k + STEP - 1) / STEP, thread = dev::thread(), lane = dev::lane();
    const int g = lane / 4, t = lane % 4;
    float sum[2][4] = {};

    for (int s = 0; s <= steps; s++) {
        if (s < steps) { /* the copies of this step, then the products of the one before */
            char *const to = memory + (planted == ONE_STAGE ? 0 : s % STAGES) * (A_BYTES + B_BYTES);
            for (int i = thread; i < ROWS * STEP / 8; i += THREADS) {
                const int row = row0 + i / 4, at = s * STEP + i % 4 * 8;
                dev::copy_async<16>(to + place(i / 4, i % 4), a + (int64_t)row * k + at,
                                    (planted == NO_ROW_CHECK || row < m) &&
                                        (planted == NO_STEP_CHECK || at < k));
            }
            for (int i = thread; transposed && i < STEP * COLUMNS / 8; i += THREADS) {
                const int row = s * STEP + i / 2, at = column0 + i % 2 * 8;
                dev::copy_async<16>(to + A_BYTES + place_transposed(i / 2, i % 2),
                                    b + (int64_t)row * n + at, row < k && at < n);
            }
            for (int i = thread; !transposed && i < COLUMNS * STEP / 8; i += THREADS) {
                const int row = column0 + i / 4, at = s * STEP + i % 4 * 8;
                dev::copy_async<16>(to + A_BYTES + place(i / 4, i % 4), b + (int64_t)row * k + at,
                                    row < n && at < k);
            }
        }
        dev::commit_copies();
        if (s == 0)
            continue;
        if (planted == NO_WAIT)
            dev::wait_copies<2>();
        else
            dev::wait_copies<1>();
        if (planted != NO_SYNC_BEFORE && (planted != PART_OF_A_BLOCK || dev::warp() == 0))
            dev::sync();
        const char *const from =
            memory + (planted == ONE_STAGE ? 0 : (s - 1) % STAGES) * (A_BYTES + B_BYTES);
        for (int at = 0; at < STEP; at += 16) {
            uint32_t x[4], y[4];
            dev::load_matrices(x, from + place(dev::warp() * 16 + lane % 16,
                                               (at / 8 + lane / 16) ^ (planted == WRONG_CHUNK)));
            if (transposed)
                dev::load_transposed(y, from + A_BYTES +
                                            place_transposed(at + lane / 8 % 2 * 8 + lane % 8,
                                                             lane / 16));
            else
                dev::load_matrices(y, from + A_BYTES + place(lane / 16 * 8 + lane % 8,
                                                             at / 8 + lane / 8 % 2));
            for (int half = 0; half < 2; half++) {
                const int first = planted == WRONG_FRAGMENT;
                const uint32_t z[2] = {y[2 * half + first], y[2 * half + 1 - first]};
                dev::multiply_bf16(sum[half], x, z);
            }
        }
        if (planted != NO_SYNC_AFTER)
            dev::sync();
    }
    dev::wait_copies<0>();

    for (int i = 0; i < 2; i++) {
        const int row = row0 + dev::warp() * 16 + g + 8 * i;
        float most = -INFINITY;
        for (int half = 0; half < 2; half++)
            for (int j = 0; j < 2; j++) {
                const int column = column0 + half * 8 + 2 * t + j;
                const float x = sum[half][2 * i + j];
                if (column < n && x > most)
                    most = x;
                if (planted == NO_STORE_CHECK ? column < n : row < m && column < n)
                    c[(int64_t)row * n + column] = x;
            }
        for (int mask = 1; mask < 4; mask *= 2)
            if (planted != PART_OF_A_WARP || lane < 16) {
                const float other = dev::shuffle_xor(most, mask);
                most = other > most ? other : most;
            }
        if (t == 0 && row < m)
            largest[(int64_t)row * across + column0 / COLUMNS] = most;
    }
}

} // namespace product

#endif
