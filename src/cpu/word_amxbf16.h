/* SPDX-License-Identifier: BSD-3-Clause */
/* Words of two bf16 numbers, and matrices of 16 rows of 16 words: the tiles of AMX. See word.h. */
#include "cpu/word_avx512bf16.h"

#define MATRIX 16

/* Intrinsics of gcc do not say that they read and write memory. */
#define AMX_ORDERED __asm__ volatile("" ::: "memory")

INLINE void matrix_begin(void)
{
    static const struct {
        uint8_t palette, start, none[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1,
               .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
               .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&shape);
}

INLINE void matrix_end(void) { _tile_release(); }

/* The number of a tile is part of an instruction. */
#define matrix_zero(i) _tile_zero(i)
#define matrix_load(i, p, step) \
    do { \
        AMX_ORDERED; \
        _tile_loadd(i, p, (step) * (int64_t)sizeof(real)); \
        AMX_ORDERED; \
    } while (0)
#define matrix_store(i, p, step) \
    do { \
        AMX_ORDERED; \
        _tile_stored(i, p, (step) * (int64_t)sizeof(real)); \
        AMX_ORDERED; \
    } while (0)
#define matrix_mac(i, a, b) _tile_dpbf16ps(i, a, b)
