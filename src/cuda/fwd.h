/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The forward kernel: tiled online softmax, for all element types. It takes the checked problem as
 * it is, with everything that it may ask for but probabilities and sums of them.
 *
 * A block computes an item of the list (share.h): a tile of rows of one sequence and key/value
 * head. Keys and values come tile by tile through two stages of shared memory, the next step's
 * being copied while this one's are multiplied; scores, weights and sums of values stay in
 * registers. The warps share out the rows or, in the short form, which has 16 of them, the keys of
 * a tile, and what they have of a row is put together in the end. Head sizes too large for shared
 * memory or registers are cut: queries and keys into pieces that come one after another, columns of
 * out among blocks.
 *
 * What is not seen gets the score -inf, hence the weight 0; 0 times what is not finite would still
 * show. Values past the end, and those of padding keys, are 0 in shared memory. Where sums are not
 * finite all the same, the block does its work again with 0 for each value that is not finite,
 * which gives the same bits wherever none was met; what is seen of them is then looked up. Rows
 * whose sums are not finite even so have left the range, which their results need not: once more,
 * with smaller weights for them.
 *
 * All products hold a tile of 16 rows by 8 columns in the same way, as mma does: with g = lane / 4,
 * the elements 0 and 1 are of row g, 2 and 3 of row g + 8, and the four lanes of a quad share a
 * row. Of scores they are columns 2 (lane % 4) and the next; of out the type says which. A warp has
 * M such bands of 16 rows, and their tiles band by band. An element type T, of fwd_half.h,
 * fwd_f32.h and fwd_f64.h, names
 *
 *   element, real             as stored; what it computes in
 *   number(x), put(x)         from the one to the other; put(x, y): two at once
 *   exp_of(x)                 e^x for x <= 0, -inf too, or NaN
 *   place<WIDTH>(row, chunk)  where 16 bytes lie in a tile with rows of WIDTH numbers
 *   scores<D, N, M>(s, q, k)  s[M][N / 8] += 16 M rows of q by N of k, over D numbers
 *   values<N, DV, M>(out, s, v)  out[M][DV / 8] += s, 16 M rows by N keys, by N rows of v
 *   column(n)                 of out: where element 0 of tile n is, and 1 next to it
 */
#ifndef ATTN_CUDA_FWD_H
#define ATTN_CUDA_FWD_H

#include "cuda/fwd_results.h"

namespace fwd {

/* A warp's sums over the part-th part of all tiles of keys. */
template <class S>
DEVICE void attend(const struct attn_problem &p, const struct work<S> *w, char *tiles, int base,
                   int part, int pass, typename S::real (*out)[4], struct state<S> *r)
{
    typedef typename S::real real;
    typedef typename S::T T;
    const int first = part * S::PART;
    real s[S::SCORES][4], kept[2 * S::M];
    int64_t step = 0;
    UNROLLED for (int n = 0; n < 2 * S::M; n++) {
        r->most[n] = -(real)INFINITY;
        r->sum[n] = 0;
    }
    UNROLLED for (int i = 0; i < S::SUMS * 4; i++)
        out[i / 4][i % 4] = 0;
    int64_t tile = next_tile<S>(p, w, w->key0);
    begin_step<S>(tiles, w, p, 0, tile);
    while (tile < w->key1) {
        const int64_t k0 = tile + first, next = next_tile<S>(p, w, tile + S::KEYS);
        const struct attn_range see = w->warp[dev::warp()];
        const bool busy = see.lo < k0 + S::PART && k0 < see.hi;
        UNROLLED for (int i = 0; i < S::SCORES * 4; i++)
            s[i / 4][i % 4] = 0;
        for (int64_t piece = 0; piece < (S::CUT ? w->pieces : 1); piece++, step++) {
            const char *const stage = stage_of<S>(tiles, step);
            const char *const keys = stage + (S::CUT ? S::QUERIES : 0) + first * S::D * S::SIZE;
            take_step<S>(tiles, w, p, step, tile);
            if (busy)
                T::template scores<S::D, S::PART, S::M>(
                    s, (S::CUT ? stage : tiles) + base * S::D * S::SIZE, keys);
        }
        if (busy) {
            score<S>(w, base, s, k0, false);
            if (weigh<S>(s, r, kept))
                keep<S>(out, kept);
            if (p.dropout.on || pass == SMALLER)
                lessen<S>(p, w, base, s, k0);
        }
        take_step<S>(tiles, w, p, step, next);
        if (pass != PLAIN) {
            clean<S, typename S::Crew>(stage_of<S>(tiles, step));
            dev::sync();
        }
        if (busy)
            T::template values<S::PART, S::DV, S::M>(
                out, s, stage_of<S>(tiles, step) + first * S::DV * S::SIZE);
        step++;
        tile = next;
    }
    dev::sync(); /* all are done with the stages */
}

template <class S> KERNEL forward(GRID_CONSTANT const struct attn_cuda_args a)
{
    typedef typename S::real real;
    struct work<S> *const w = (struct work<S> *)dev::shared();
    char *const tiles = (char *)dev::shared() + room<S>::WORK;
    real *const results = (real *)tiles; /* in the end */
    const int base = dev::warp() % S::ROW_WARPS * 16 * S::M, part = dev::warp() / S::ROW_WARPS;
    real out[S::SUMS][4];
    struct state<S> r;
    if (dev::thread() == 0) {
        /* Blocks go through the items first, then through heads, then through parts of columns. */
        const int64_t most = a.form[a.which].most, unit = dev::block() / most;
        const int64_t item = dev::block() % most;
        w->found = item < share::items_of(&a, &a.form[a.which]);
        if (w->found)
            find_work<S>(&a, w, share::item_at(&a, &a.form[a.which], item), unit % a.p.heads_kv,
                         unit / a.p.heads_kv);
    }
    dev::sync();
    if (!w->found)
        return;
    find_rows<S, typename S::Crew>(a.p, w);
    dev::sync();
    int pass = PLAIN;
    do {
        attend<S>(a.p, w, tiles, base, part, pass, out, &r);
        put_sums<S>(w, base, part, pass, results, out, &r);
        dev::sync();
    } while (w->again[pass] && ++pass < PASSES);
    if (pass != PLAIN)
        spoil<S>(a.p, w, results);
    finish<S>(&a, w, results);
}

template <class S>
static constexpr struct attn_cuda_instance instance = {forward<S>, S::DV,      S::ROWS,
                                                   S::KEYS,    S::THREADS, room<S>::BYTES, 0, false};

/* For a type's table of kernels: those of head sizes up to head_dim, 0 for any. */
template <class Short, class Tall>
constexpr struct attn_cuda_pair pair(const char *name, int head_dim)
{
    return {name, head_dim, head_dim, {&instance<Short>, &instance<Tall>}};
}

/* The same with a short form that several tables have. */
template <class Tall>
constexpr struct attn_cuda_pair pair(const char *name, int head_dim,
                                     const struct attn_cuda_instance *low)
{
    return {name, head_dim, head_dim, {low, &instance<Tall>}};
}

} // namespace fwd

#endif
