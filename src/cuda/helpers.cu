/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda/helpers.h"

#include "cuda/launch.h"
#include "cuda/mix.h"
#include "cuda/move.h"
#include "cuda/rows.h"
#include "cuda/sums.h"

namespace {

const int64_t MOST_BLOCKS = 8192; /* more than any device runs at once; they go round */

/* Blocks for n things, so many to a block; 1 to MOST_BLOCKS. */
static int64_t blocks_for(int64_t n, int64_t each)
{
    const int64_t blocks = n / each + (n % each > 0);
    return blocks < 1 ? 1 : blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS;
}

static grid grid_for(int64_t n, int32_t each, int32_t threads, int32_t shared, cudaStream_t stream)
{
    return {blocks_for(n, each), threads, shared, stream};
}

static grid grid_of(const attn_cuda_spread &s, int64_t rows, cudaStream_t stream)
{
    return {blocks_for(rows, rows::THREADS >> s.shift) * s.parts, rows::THREADS, 0, stream};
}

/* By attn_dtype. */
typedef void (*sum_kernel)(attn_cuda_sum);
typedef void (*move_kernel)(attn_cuda_move);
typedef void (*merge_kernel)(attn_partials);
const sum_kernel sum_of[] = {sums::sum<ATTN_F32, float>, sums::sum<ATTN_F64, double>,
                             sums::sum<ATTN_F16, float>, sums::sum<ATTN_BF16, float>};
const move_kernel move_of[] = {move::tokens<ATTN_F32>, move::tokens<ATTN_F64>,
                               move::tokens<ATTN_F16>, move::tokens<ATTN_BF16>};
const merge_kernel merge_of[] = {mix::merge<ATTN_F32>, mix::merge<ATTN_F64>, mix::merge<ATTN_F16>,
                                 mix::merge<ATTN_BF16>};

} // namespace

extern "C" cudaError_t attn_cuda_copy_rows(const struct attn_cuda_copy *c, cudaStream_t stream)
{
    const grid g = grid_of(c->spread, c->rows, stream);
    switch (c->spread.unit) {
    case 16: return launch(rows::copy<rows::wide>, g, *c);
    case 8: return launch(rows::copy<uint64_t>, g, *c);
    case 4: return launch(rows::copy<uint32_t>, g, *c);
    case 2: return launch(rows::copy<uint16_t>, g, *c);
    default: return launch(rows::copy<uint8_t>, g, *c);
    }
}

extern "C" cudaError_t attn_cuda_invert_indices(const struct attn_cuda_invert *v,
                                                cudaStream_t stream)
{
    const cudaError_t error = launch(
        rows::begin_inverse, grid_for(v->rows, rows::THREADS, rows::THREADS, 0, stream), *v);
    if (error != cudaSuccess || v->count == 0)
        return error;
    return launch(rows::invert, grid_for(v->count, rows::THREADS, rows::THREADS, 0, stream), *v);
}

extern "C" cudaError_t attn_cuda_count_kept(const struct attn_cuda_pack *p, cudaStream_t stream)
{
    return launch(rows::count_kept, grid_for(p->units, rows::WARPS, rows::THREADS, 0, stream), *p);
}

extern "C" cudaError_t attn_cuda_fill_packing(const struct attn_cuda_pack *p, cudaStream_t stream)
{
    return launch(rows::fill_packing, grid_for(p->units, rows::WARPS, rows::THREADS, 0, stream),
                  *p);
}

extern "C" cudaError_t attn_cuda_scan(int64_t *x, int64_t count, cudaStream_t stream)
{
    const rows::scanned s = {x, count};
    return launch(rows::scan, {1, rows::THREADS, 2 * rows::WARPS * (int32_t)sizeof *x, stream}, s);
}

static grid sort_grid(const struct attn_cuda_sort *s, cudaStream_t stream)
{
    return grid_for(s->tiles, sums::TILES, sums::THREADS,
                    sums::TILES * ATTN_CUDA_DIGITS * (int32_t)sizeof *s->starts, stream);
}

extern "C" cudaError_t attn_cuda_count_digits(const struct attn_cuda_sort *s, cudaStream_t stream)
{
    return launch(sums::count_digits, sort_grid(s, stream), *s);
}

extern "C" cudaError_t attn_cuda_place_digits(const struct attn_cuda_sort *s, cudaStream_t stream)
{
    return launch(sums::place_digits, sort_grid(s, stream), *s);
}

extern "C" cudaError_t attn_cuda_sum_rows(const struct attn_cuda_sum *s, cudaStream_t stream)
{
    return launch(sum_of[s->sums.dtype], grid_of(s->spread, s->sums.total, stream), *s);
}

extern "C" cudaError_t attn_cuda_put_positions(const struct attn_positions *p, int64_t rows,
                                               cudaStream_t stream)
{
    enum { FULL = 256 }; /* blocks that keep any device busy */
    const int64_t n = rows < 0 ? FULL * (int64_t)rows::THREADS : rows;
    return launch(rows::positions, grid_for(n, rows::THREADS, rows::THREADS, 0, stream), *p);
}

extern "C" cudaError_t attn_cuda_move_tokens(const struct attn_cuda_move *m, cudaStream_t stream)
{
    return launch(move_of[m->tokens.dtype],
                  grid_for(m->tokens.from.rows, 1, move::THREADS, move::SHARED, stream), *m);
}

extern "C" cudaError_t attn_cuda_put_lengths(const struct attn_cuda_lengths *l, cudaStream_t stream)
{
    return launch(move::lengths,
                  grid_for(l->append.k.batch, move::THREADS, move::THREADS, 0, stream), *l);
}

extern "C" cudaError_t attn_cuda_merge_rows(const struct attn_partials *m, cudaStream_t stream)
{
    return launch(merge_of[m->dtype],
                  grid_for(m->batch * m->seqlen * m->heads, mix::WARPS, mix::THREADS, 0, stream),
                  *m);
}
