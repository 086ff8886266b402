/* SPDX-License-Identifier: BSD-3-Clause */
/* The shape of AMX's tiles: all eight are 16 rows of 64 bytes. */
#ifndef ATTN_CPU_AMX_H
#define ATTN_CPU_AMX_H

#include <immintrin.h>
#include <stdint.h>

enum { TILE_ROWS = 16, TILE_BYTES = 64 }; /* bytes of a row */

/* From here to _tile_release() the thread's tiles have it. */
static inline void amx_begin(void)
{
    static const struct {
        uint8_t palette, start, none[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1,
               .row_bytes = {TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES,
                             TILE_BYTES, TILE_BYTES, TILE_BYTES},
               .rows = {TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS,
                        TILE_ROWS, TILE_ROWS}};
    _tile_loadconfig(&shape);
}

#endif
