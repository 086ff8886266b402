/* SPDX-License-Identifier: BSD-3-Clause */
/* Rows copied by their indices, packings, position ids. */
#ifndef ATTN_CUDA_ROWS_H
#define ATTN_CUDA_ROWS_H

#include "cuda/device.h"
#include "cuda/helpers.h"
#include "cuda/owner.h"

namespace rows {

enum { THREADS = 256, WARPS = THREADS / 32 };

/* 16 bytes at once. */
struct alignas(16) wide {
    uint64_t low, high;
};

/* Where a thread is among rows that are spread over blocks. */
struct place {
    int64_t row, step; /* its row in the first group; groups of rows of all blocks */
    int64_t lo, hi;    /* its units: lo, lo + lanes, ... below hi */
    int lanes;
};

/* A block takes every n-th group of rows, and of these one of the parts. */
DEVICE struct place place_of(const struct attn_cuda_spread &s)
{
    const int at_once = THREADS >> s.shift;
    const int64_t groups = dev::blocks() / s.parts, part = dev::block() % s.parts;
    const int64_t each = (s.units + s.parts - 1) / s.parts;
    struct place p;
    p.lanes = 1 << s.shift;
    p.row = dev::block() / s.parts * at_once + (dev::thread() >> s.shift);
    p.step = groups * at_once;
    p.lo = part * each + (dev::thread() & (p.lanes - 1));
    p.hi = (part + 1) * each < s.units ? (part + 1) * each : s.units;
    return p;
}

template <class T> KERNEL copy(GRID_CONSTANT const struct attn_cuda_copy c)
{
    const int64_t rows = c.rows_at && *c.rows_at < c.rows ? *c.rows_at : c.rows;
    const struct place p = place_of(c.spread);
    for (int64_t row = p.row; row < rows; row += p.step) {
        const int64_t source = attn_row_of(c.source, row, c.sources);
        const T *const from = source < 0 ? nullptr : (const T *)c.from + source * c.spread.units;
        T *const to = (T *)c.to + row * c.spread.units;
        for (int64_t n = p.lo; n < p.hi; n += p.lanes)
            to[n] = from ? from[n] : T();
    }
}

/* ---- The inverse of indices ------------------------------------------------------------------ */

KERNEL begin_inverse(GRID_CONSTANT const struct attn_cuda_invert v)
{
    for (int64_t r = dev::block() * (int64_t)THREADS + dev::thread(); r < v.rows;
         r += dev::blocks() * (int64_t)THREADS)
        v.inverse[r] = -1;
}

KERNEL invert(GRID_CONSTANT const struct attn_cuda_invert v)
{
    for (int64_t n = dev::block() * (int64_t)THREADS + dev::thread(); n < v.count;
         n += dev::blocks() * (int64_t)THREADS) {
        const int64_t row = attn_row_of(v.indices, n, v.rows);
        if (row >= 0)
            dev::max_atomic(&v.inverse[row], n);
    }
}

/* ---- Sums of those before -------------------------------------------------------------------- */

struct scanned {
    int64_t *x, count;
};

/* Inclusive, over the lanes of a warp. */
DEVICE int64_t scan_warp(int64_t x)
{
    for (int d = 1; d < 32; d *= 2) {
        const int64_t before = dev::shuffle(x, dev::lane() - d);
        x += dev::lane() >= d ? before : 0;
    }
    return x;
}

/* By one block, THREADS entries at a time. What is shared has two places, taken in turn, so that a
 * warp may go ahead while others still read. */
KERNEL scan(GRID_CONSTANT const struct scanned s)
{
    int64_t *sums = (int64_t *)dev::shared(); /* [2][WARPS], of the warps */
    int64_t carry = 0;
    for (int64_t at = 0; at <= s.count; at += THREADS) {
        const int64_t n = at + dev::thread();
        const int64_t own = n < s.count ? s.x[n] : 0;
        const int64_t upto = scan_warp(own);
        if (dev::lane() == 31)
            sums[dev::warp()] = upto;
        dev::sync();
        int64_t before = carry, all = 0;
        for (int w = 0; w < WARPS; w++) {
            before += w < dev::warp() ? sums[w] : 0;
            all += sums[w];
        }
        if (n <= s.count)
            s.x[n] = before + upto - own;
        carry += all;
        sums = (int64_t *)dev::shared() + (at / THREADS % 2 ? 0 : WARPS);
    }
}

/* ---- Packings -------------------------------------------------------------------------------- */

/* Tokens of a unit. */
struct chunk {
    int64_t b;
    struct attn_range tokens;
};

DEVICE struct chunk chunk_of(const struct attn_cuda_pack *p, int64_t unit)
{
    const int64_t lo = unit % p->chunks * ATTN_CUDA_CHUNK, seqlen = p->kept.seqlen;
    struct chunk c;
    c.b = unit / p->chunks;
    c.tokens.lo = lo < seqlen ? lo : seqlen;
    c.tokens.hi = lo + ATTN_CUDA_CHUNK < seqlen ? lo + ATTN_CUDA_CHUNK : seqlen;
    return c;
}

/* Bit i: token s + i is kept. */
DEVICE uint32_t kept_of(const struct attn_cuda_pack *p, const struct chunk *c, int64_t s)
{
    const int64_t own = s + dev::lane();
    return dev::ballot(own < c->tokens.hi && attn_keeps(&p->kept, c->b, own));
}

KERNEL count_kept(GRID_CONSTANT const struct attn_cuda_pack p)
{
    for (int64_t unit = dev::block() * (int64_t)WARPS + dev::warp(); unit < p.units;
         unit += dev::blocks() * (int64_t)WARPS) {
        const struct chunk c = chunk_of(&p, unit);
        int64_t count = 0;
        for (int64_t s = c.tokens.lo; s < c.tokens.hi; s += 32)
            count += dev::count_bits(kept_of(&p, &c, s));
        if (dev::lane() == 0)
            p.starts[unit] = count;
    }
}

DEVICE void put_indices(const struct attn_cuda_pack *p, const struct chunk *c, int64_t at)
{
    const uint32_t before = (1u << dev::lane()) - 1;
    for (int64_t s = c->tokens.lo; s < c->tokens.hi; s += 32) {
        const uint32_t kept = kept_of(p, c, s);
        if (kept >> dev::lane() & 1)
            p->indices[at + dev::count_bits(kept & before)] =
                c->b * p->kept.seqlen + s + dev::lane();
        at += dev::count_bits(kept);
    }
}

KERNEL fill_packing(GRID_CONSTANT const struct attn_cuda_pack p)
{
    for (int64_t unit = dev::block() * (int64_t)WARPS + dev::warp(); unit < p.units;
         unit += dev::blocks() * (int64_t)WARPS) {
        const struct chunk c = chunk_of(&p, unit);
        const int64_t start = p.starts[unit];
        if (p.indices)
            put_indices(&p, &c, start);
        if (unit % p.chunks == 0 && dev::lane() == 0) {
            if (p.cu_seqlens)
                p.cu_seqlens[c.b] = (int32_t)start;
            if (p.lengths) /* clamped, where they are the ones that are read */
                p.lengths[c.b] = (int32_t)(p.starts[unit + p.chunks] - start);
        }
    }
    if (p.cu_seqlens && dev::block() == 0 && dev::thread() == 0)
        p.cu_seqlens[p.kept.batch] = (int32_t)p.starts[p.units];
}

/* ---- Position ids ---------------------------------------------------------------------------- */

KERNEL positions(GRID_CONSTANT const struct attn_positions p)
{
    const int64_t rows = p.cu_seqlens[p.batch];
    for (int64_t row = dev::block() * (int64_t)THREADS + dev::thread(); row < rows;
         row += dev::blocks() * (int64_t)THREADS)
        p.positions[row] = attn_position_of(&p, owner_of(p.cu_seqlens, false, p.batch, row), row);
}

} // namespace rows

#endif
