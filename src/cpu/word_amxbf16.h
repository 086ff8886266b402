/* SPDX-License-Identifier: BSD-3-Clause */
/* Words of two bf16 numbers, and matrices of 16 rows of 16 words: the tiles of AMX. See word.h. */
#include "cpu/amx.h"
#include "cpu/word_avx512dot.h"
#include "cpu/word_avx512matrix.h"

INLINE void matrix_begin(void) { amx_begin(); }
INLINE void matrix_end(void) { _tile_release(); }

/* Intrinsics of gcc do not say that they read and write memory. */
#define AMX_ORDERED(access) \
    do { \
        __asm__ volatile("" ::: "memory"); \
        access; \
        __asm__ volatile("" ::: "memory"); \
    } while (0)

/* The number of a tile is part of an instruction. */
#define matrix_zero(i) _tile_zero(i)
#define matrix_load(i, p, step) AMX_ORDERED(_tile_loadd(i, p, (step) * (int64_t)sizeof(real)))
#define matrix_store(i, p, step) AMX_ORDERED(_tile_stored(i, p, (step) * (int64_t)sizeof(real)))
#define matrix_mac(i, a, b) _tile_dpbf16ps(i, a, b)
