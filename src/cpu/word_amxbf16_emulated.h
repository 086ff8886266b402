/* SPDX-License-Identifier: BSD-3-Clause */
/* That of word_amxbf16.h for processors with AVX-512 but without AMX, for tests: the same bits. */
#include "cpu/word_avx512pair.h"

INLINE vec vec_mac(vec a, vec b, vec c)
{
    return vec_fma(high_half(a), high_half(b), vec_fma(low_half(a), low_half(b), c));
}

#include "cpu/word_avx512matrix.h"

static _Thread_local struct {
    bool begun;
    real row[8][MATRIX][MATRIX];
} matrices;

/* As instructions are that are not allowed. */
INLINE void matrix_need_begun(void)
{
    if (!matrices.begun)
        __builtin_trap();
}

INLINE void matrix_begin(void)
{
    memset(&matrices, 0, sizeof matrices);
    matrices.begun = true;
}

INLINE void matrix_end(void) { matrices.begun = false; }

INLINE void matrix_zero(int i)
{
    matrix_need_begun();
    memset(matrices.row[i], 0, sizeof matrices.row[i]);
}

INLINE void matrix_load(int i, const real *p, int64_t step)
{
    matrix_need_begun();
    for (int r = 0; r < MATRIX; r++)
        memcpy(matrices.row[i][r], p + r * step, sizeof matrices.row[i][r]);
}

INLINE void matrix_store(int i, real *p, int64_t step)
{
    matrix_need_begun();
    for (int r = 0; r < MATRIX; r++)
        memcpy(p + r * step, matrices.row[i][r], sizeof matrices.row[i][r]);
}

/* 0 with its sign in place of what is below 2^-126. */
INLINE vec matrix_flush(vec a)
{
    const vec size = vec_max(vec_sub(vec_zero(), a), a);
    return vec_select(vec_lt(size, vec_set(LEAST_NORMAL)), vec_mul(a, vec_zero()), a);
}

/* First and second numbers have sums of their own, from 0 on, which are added, and then to what was
 * there. */
static NOINLINE __attribute__((unused)) void matrix_mac(int i, int a, int b)
{
    matrix_need_begun();
    for (int r = 0; r < MATRIX; r++) {
        real *const to = matrices.row[i][r];
        vec first = vec_zero(), second = vec_zero();
        for (int w = 0; w < MATRIX; w++) {
            const vec x = vec_spread(&matrices.row[a][r][w]), y = vec_load(matrices.row[b][w]);
            first = vec_fma(matrix_flush(low_half(x)), matrix_flush(low_half(y)), first);
            second = vec_fma(matrix_flush(high_half(x)), matrix_flush(high_half(y)), second);
            first = matrix_flush(first);
            second = matrix_flush(second);
        }
        const vec sum = matrix_flush(vec_add(first, second));
        vec_store(to, matrix_flush(vec_add(matrix_flush(vec_load(to)), sum)));
    }
}
