/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Sums of rows by their indices, in the order of these, so that they are the same every time: the
 * numbers of the rows are sorted by where they go, stably, 8 bits at a time; then each sum is taken
 * in that order.
 */
#ifndef ATTN_CUDA_SUMS_H
#define ATTN_CUDA_SUMS_H

#include "cuda/rows.h"
#include "score.h"

namespace sums {

enum { TILES = 4, THREADS = 32 * TILES }; /* of a block that sorts */

/* The row that the sort counts by. */
DEVICE int64_t key_of(const int64_t *indices, int64_t n, int64_t rows)
{
    const int64_t row = attn_row_of(indices, n, rows);
    return row < 0 ? rows : row;
}

/* A lane's number in a tile, and its digit; -1 past the end. */
struct item {
    int64_t n;
    int digit;
};

DEVICE struct item item_of(const struct attn_cuda_sort *s, int64_t at, int64_t end)
{
    struct item x = {0, -1};
    if (at < end) {
        x.n = s->from ? s->from[at] : at;
        x.digit = (int)(key_of(s->indices, x.n, s->rows) >> s->shift & (ATTN_CUDA_DIGITS - 1));
    }
    return x;
}

/* Lanes with the same digit. */
DEVICE uint32_t alike(int digit)
{
    uint32_t same = dev::ballot(digit >= 0);
    for (int bit = 1; bit < ATTN_CUDA_DIGITS; bit *= 2) {
        const uint32_t set = dev::ballot((digit & bit) != 0);
        same &= digit & bit ? set : ~set;
    }
    return same;
}

/* A tile's numbers, 32 at a time; counts[digit] goes up by each. Placing: it is where the next one
 * goes. */
DEVICE void go_through(const struct attn_cuda_sort *s, int64_t tile, int64_t *counts, bool placing)
{
    const int64_t first = tile * ATTN_CUDA_TILE;
    const int64_t end =
        first + ATTN_CUDA_TILE < s->count ? first + ATTN_CUDA_TILE : s->count;
    for (int64_t at = first; at < end; at += 32) {
        const struct item x = item_of(s, at + dev::lane(), end);
        const uint32_t same = alike(x.digit);
        const int before = dev::count_bits(same & ((1u << dev::lane()) - 1));
        if (placing && x.digit >= 0)
            s->to[counts[x.digit] + before] = x.n;
        dev::sync_warp();
        if (x.digit >= 0 && before == 0)
            counts[x.digit] += dev::count_bits(same);
        dev::sync_warp();
    }
}

/* Tiles of a block, a warp to each; the counters of a warp in shared memory. */
DEVICE void sort_tiles(const struct attn_cuda_sort *s, bool placing)
{
    int64_t *const counts = (int64_t *)dev::shared() + dev::warp() * ATTN_CUDA_DIGITS;
    for (int64_t tile = dev::block() * (int64_t)TILES + dev::warp(); tile < s->tiles;
         tile += dev::blocks() * (int64_t)TILES) {
        for (int digit = dev::lane(); digit < ATTN_CUDA_DIGITS; digit += 32)
            counts[digit] = placing ? s->starts[digit * s->tiles + tile] : 0;
        dev::sync_warp();
        go_through(s, tile, counts, placing);
        for (int digit = dev::lane(); digit < ATTN_CUDA_DIGITS && !placing; digit += 32)
            s->starts[digit * s->tiles + tile] = counts[digit];
        dev::sync_warp();
    }
}

KERNEL count_digits(GRID_CONSTANT const struct attn_cuda_sort s) { sort_tiles(&s, false); }
KERNEL place_digits(GRID_CONSTANT const struct attn_cuda_sort s) { sort_tiles(&s, true); }

/* How many of the sorted numbers go to rows before this one. */
DEVICE int64_t start_of(const struct attn_sums *s, int64_t row)
{
    int64_t low = 0, high = s->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (key_of(s->indices, s->order[middle], s->total) < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

template <attn_dtype type, class real> KERNEL sum(GRID_CONSTANT const struct attn_cuda_sum a)
{
    const struct attn_sums *const s = &a.sums;
    const struct rows::place p = rows::place_of(a.spread);
    for (int64_t row = p.row; row < s->total; row += p.step) {
        const int64_t first = start_of(s, row), end = start_of(s, row + 1);
        for (int64_t c = p.lo; c < p.hi; c += p.lanes) {
            real sum = 0;
            for (int64_t n = first; n < end; n++)
                sum += (real)attn_number_at(s->dout, type, s->order[n] * s->width + c);
            attn_put_number(s->dx, type, row * s->width + c, (double)sum);
        }
    }
}

} // namespace sums

#endif
