/* SPDX-License-Identifier: BSD-3-Clause */
/* Products of AMX's tiles at full rate: four sums, of two times two operands. The library has to have
 * asked the system for tiles before, as a call in bf16 does. */
#include "peak.h"

#include "cpu/amx.h"

double peak_bf16_amxbf16(int64_t steps)
{
    enum { PRODUCTS = 4, NUMBERS = TILE_BYTES / 2, LANES = TILE_BYTES / 4 };
    amx_begin();
    for (int64_t s = 0; s < steps; s++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return 2.0 * PRODUCTS * TILE_ROWS * LANES * NUMBERS * (double)steps;
}
