/* SPDX-License-Identifier: BSD-3-Clause */
/* Products of AMX's tiles at full rate: four sums, of two times two operands. The library has to have
 * asked the system for tiles before, as a call in bf16 does. */
#include "peak.h"

#include <immintrin.h>

double peak_bf16_amxbf16(int64_t steps)
{
    enum { PRODUCTS_OF_TILES = 4, ROWS = 16, NUMBERS = 32 };
    static const struct {
        uint8_t palette, start, none[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1,
               .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
               .rows = {ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS}};
    _tile_loadconfig(&shape);
    for (int64_t s = 0; s < steps; s++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return (double)steps * PRODUCTS_OF_TILES * 2 * ROWS * ROWS * NUMBERS;
}
