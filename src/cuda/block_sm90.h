/* SPDX-License-Identifier: BSD-3-Clause */
/* What the threads of a block of fwd_sm90.h have in common: sizes, jobs, the order of tiles,
 * stages. */
#ifndef ATTN_CUDA_BLOCK_SM90_H
#define ATTN_CUDA_BLOCK_SM90_H

#include "cuda/device_sm90.h"
#include "cuda/fwd_half.h"

namespace fwd_sm90 {

enum { GROUPS = 2, STAGES = 2 };
enum { COMPUTING = 128 * GROUPS, COPYING = 128 }; /* threads; those that compute come first */
/* Of these; of all, who come there from two places, as no __syncthreads() may; one for each group's
 * turn. */
enum { COMPUTE_BARRIER = 1, COPY_BARRIER, BLOCK_BARRIER, TURN_BARRIER };
enum { KEYS = ATTN_CUDA_KEYS, VALUES = ATTN_CUDA_VALUES, KINDS, QUERIES = ATTN_CUDA_QUERIES };

struct bf16 : fwd::bf16 {
    template <int N, bool ROWS, class A>
    static DEVICE void wg_multiply(float *c, A a, uint64_t b, bool add)
    {
        dev::wg_multiply_bf16<N, ROWS>(c, a, b, add);
    }
};

struct f16 : fwd::f16 {
    template <int N, bool ROWS, class A>
    static DEVICE void wg_multiply(float *c, A a, uint64_t b, bool add)
    {
        dev::wg_multiply_f16<N, ROWS>(c, a, b, add);
    }
};

/* WARPS and THREADS are of those that compute. */
template <class N_, int D_, int DV_, int KEYS_>
struct sizes : fwd::sizes<fwd::half<N_>, D_, DV_, KEYS_, 1, 4 * GROUPS, 1, false> {
    typedef fwd::sizes<fwd::half<N_>, D_, DV_, KEYS_, 1, 4 * GROUPS, 1, false> base;
    typedef N_ N;
    static constexpr int PANEL = D_ % 64 || DV_ % 64 ? 32 : 64, PITCH = 2 * PANEL; /* of a row */
    static constexpr int SWIZZLE = PANEL == 64 ? ATTN_CUDA_SWIZZLE_128 : ATTN_CUDA_SWIZZLE_64;
    /* Of a thread that copies and of one that computes: what the block was given, to the last. */
    static constexpr int COPY_REGISTERS = KEYS_ > 64 ? 104 : 72;
    static constexpr int COMPUTE_REGISTERS = KEYS_ > 64 ? 200 : 216;
    /* Rows of results are 8 banks apart: no two of a store of pairs of columns meet in one. */
    static constexpr int RESULT = DV_ + 8, SUMS_AT = 8, AT_ONCE = 8;
    static constexpr int RESULTS = base::ROWS * RESULT * 4;
    static_assert(DV_ % 32 == 0, "a multiple of all banks");
    /* Places, in this order: stages of keys, queries, stages of values and 4 KiB. Results end where
     * these do and, but where tiles are small, begin where values do. */
    static constexpr int QUERIES_AT = STAGES * base::KEY_STAGE;
    static constexpr int VALUES_AT = QUERIES_AT + base::QUERIES;
    static constexpr int TILES = VALUES_AT + STAGES * base::VALUE_STAGE + 4096;
    static constexpr int RESULTS_AT = TILES - RESULTS;
    static constexpr bool STAYS = D_ <= 128; /* a block takes one job after another, or one */
    static_assert(!STAYS || RESULTS_AT >= VALUES_AT, "queries and keys come while results go");
    static_assert(D_ % PANEL == 0 && DV_ % PANEL == 0, "whole panels");
    static_assert(COPY_REGISTERS + GROUPS * COMPUTE_REGISTERS ==
                      65536 / (COMPUTING + COPYING) / 8 * 8 * (GROUPS + 1), "no more, no fewer");
};

typedef fwd::crew<COMPUTING, COPYING> copiers;

/* What a block does, in shared memory. */
template <class S> struct job {
    struct fwd::work<S> w;
    int tiles;        /* of keys: no memory has more than an int counts */
    int edges, right; /* those that not all rows see; of them those at the end of the keys */
};

template <class S> struct block {
    struct job<S> job[2]; /* by turns: the next one is found while one is under way */
    float unit; /* what products are multiplied by to be powers of two; 0: scores differ */
    alignas(8) uint64_t full[KINDS][STAGES], empty[KINDS][STAGES];
    uint64_t queries, done; /* they are there; a job's results are where they belong */
};

template <class S> struct room {
    static constexpr int BLOCK = (int)(sizeof(struct block<S>) + 1023) / 1024 * 1024;
    static constexpr int BYTES = BLOCK + S::TILES;
};

/* ---- Order of tiles ------------------------------------------------------------------------- */

/* Divides the tiles of keys: those that all of the block's rows see whole, and the rest. */
template <class S> DEVICE void find_order(const struct attn_problem &p, struct job<S> *x)
{
    const struct fwd::work<S> *const w = &x->w;
    const int64_t end = w->row0 + S::ROWS, last = (end < w->rows ? end : w->rows) - 1;
    const int64_t lo = attn_band_row(w->s.band, row::quotient(last, p.group)).lo - w->key0;
    const int64_t hi =
        attn_band_row(w->s.band, row::quotient(w->row0, p.group)).hi - w->key0;
    const int64_t tiles = (w->key1 - w->key0) / S::KEYS;
    int64_t first = lo < 0 ? 0 : (lo + S::KEYS - 1) / S::KEYS;
    int64_t past = hi < 0 ? 0 : hi / S::KEYS < tiles ? hi / S::KEYS : tiles;
    if (first >= past)
        first = past = tiles;
    x->tiles = (int)tiles;
    x->right = (int)(tiles - past);
    x->edges = x->right + (int)first;
}

/* The n-th tile in the order in which they are taken: the last ones backwards, then from the first
 * on. */
template <class S> DEVICE int64_t key_of(const struct job<S> *x, int n)
{
    const int tile = n < x->right ? x->tiles - 1 - n : n - x->right;
    return x->w.key0 + (int64_t)tile * S::KEYS;
}

/* ---- Stages --------------------------------------------------------------------------------- */

/* Stages are used by turns; `step` counts the tiles of a kind from the block's beginning on. */
template <class S> DEVICE char *stage_of(char *tiles, int kind, uint32_t step)
{
    const int stage = (int)(step % STAGES);
    return tiles + (kind == KEYS ? stage * S::KEY_STAGE : S::VALUES_AT + stage * S::VALUE_STAGE);
}
DEVICE int parity_of(uint32_t step) { return step / STAGES % 2; }

/* Whether the job has another pass. All threads come here, those that compute once their sums are
 * done; the next job has been found. */
template <class S> DEVICE bool next_pass(const struct fwd::work<S> *w, int *pass)
{
    dev::sync_warp(); /* barriers count warps, and lanes come from several branches */
    dev::sync_some(BLOCK_BARRIER, COMPUTING + COPYING);
    if (!w->again[*pass] || *pass + 1 == fwd::PASSES)
        return false;
    (*pass)++;
    return true;
}

} // namespace fwd_sm90

#endif
