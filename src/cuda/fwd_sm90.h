/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The forward kernel for sm_90a and 16-bit types: fwd.h with products of warpgroups. What a row is
 * and what becomes of it is there; here are the ways of keys and values and the order of work.
 *
 * A block has warpgroups that compute, GROUPS of them with 64 rows each, and one that copies. Tiles
 * of keys and values come by turns through STAGES stages each. A stage is `full` once its copy has
 * landed, and `empty` again once all warps that compute have told so. Most tiles are bulk copies;
 * what those cannot bring is put by the threads that copy, to the same places: tiles across the end
 * of a sequence, pages, tensors that a map cannot hold, and values that have to be looked at in
 * later passes. So results do not depend on how a tensor lies.
 *
 * Tiles lie as products take them: in panels of 64 columns, or of 32 where a head is no multiple of
 * that, rows of 128 or 64 bytes with their 16-byte chunks swizzled, one panel after the other.
 *
 * Tiles of keys that not every row of the block sees come first. The others need no masks: of them
 * the products with keys go ahead by one, so that the softmax of a tile meets the product with the
 * values before it.
 */
#ifndef ATTN_CUDA_FWD_SM90_H
#define ATTN_CUDA_FWD_SM90_H

#include "cuda/device_sm90.h"
#include "cuda/fwd_half.h"

namespace fwd_sm90 {

enum { GROUPS = 2, STAGES = 2 };
enum { COMPUTING = 128 * GROUPS, COPYING = 128 }; /* threads; those that compute come first */
enum { COMPUTE_BARRIER = 1, COPY_BARRIER, TURN_BARRIER }; /* of these; one for each group's turn */
enum { KEYS = ATTN_CUDA_KEYS, VALUES = ATTN_CUDA_VALUES, KINDS = ATTN_CUDA_MAPS };

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
    static constexpr int COPY_REGISTERS = KEYS_ > 64 ? 88 : 72;
    static constexpr int COMPUTE_REGISTERS = KEYS_ > 64 ? 208 : 216;
    static constexpr int TILES = base::QUERIES + STAGES * (base::KEY_STAGE + base::VALUE_STAGE);
    static_assert(D_ % PANEL == 0 && DV_ % PANEL == 0, "whole panels");
    static_assert(COPY_REGISTERS + GROUPS * COMPUTE_REGISTERS ==
                      65536 / (COMPUTING + COPYING) / 8 * 8 * (GROUPS + 1), "no more, no fewer");
};

typedef fwd::crew<COMPUTING, COPYING> copiers;

/* What a block knows, in shared memory. */
template <class S> struct block {
    struct fwd::work<S> w;
    float unit;       /* what products are multiplied by to be powers of two; 0: scores differ */
    int tiles;        /* of keys: no memory has more than an int counts */
    int edges, right; /* those that not all rows see; of them those at the end of the keys */
    alignas(8) uint64_t full[KINDS][STAGES], empty[KINDS][STAGES];
};

template <class S> struct room {
    static constexpr int BLOCK = (int)(sizeof(struct block<S>) + 1023) / 1024 * 1024;
    static constexpr int BYTES = BLOCK + (S::TILES > S::RESULTS ? S::TILES : S::RESULTS);
};

/* ---- Weights of products -------------------------------------------------------------------- */

/*
 * Where a score is the product and a scale, from no less than 2^-100 to 1, that scale and the one of
 * the power of two are one factor, `unit`, and an exponent is one operation: 2^(s unit - most unit).
 * What is subtracted has been rounded, alike for all of a row, which is less than 2^-15 where it is
 * less than FAR. Rows beyond take the difference of products first.
 */
#define LOG2_E 1.4426950408889634
#define FAR 1024.0f

DEVICE float unit_of(const struct attn_problem &p)
{
    const bool fits = row::is_bare(&p) && p.scale > 0 && p.scale <= 1; /* nor is it extreme */
    return fits ? (float)(p.scale * LOG2_E) : 0;
}

DEVICE bool is_far(float at) { return !(fabsf(at) < FAR); }

/* A row's products become weights, which r->sum takes. */
template <class S>
DEVICE void weigh_row(float unit, float (*s)[4], int n, float from, struct fwd::state<S> *r)
{
    const float at = from * unit;
    UNROLLED for (int j = 0; j < S::KEYS / 8; j++)
        UNROLLED for (int e = 2 * n; e < 2 * n + 2; e++) {
            s[j][e] = dev::exp2_fast(fmaf(s[j][e], unit, -at));
            r->sum[n] += s[j][e];
        }
}
template <class S>
DEVICE void weigh_far_row(float unit, float (*s)[4], int n, float from, struct fwd::state<S> *r)
{
    const float at = from * unit;
    UNROLLED for (int j = 0; j < S::KEYS / 8; j++)
        UNROLLED for (int e = 2 * n; e < 2 * n + 2; e++) {
            s[j][e] = dev::exp2_fast(is_far(at) ? (s[j][e] - from) * unit
                                                : fmaf(s[j][e], unit, -at));
            r->sum[n] += s[j][e];
        }
}

/* fwd::weigh() of products: what r->most holds are products as well. */
template <class S>
DEVICE bool weigh_products(float unit, float (*s)[4], struct fwd::state<S> *r, float *kept)
{
    float from[2]; /* what differences are taken from */
    bool grown = false, far = false;
    UNROLLED for (int n = 0; n < 2; n++) {
        float most = r->most[n];
        UNROLLED for (int j = 0; j < S::KEYS / 8; j++)
            most = fmaxf(fmaxf(s[j][2 * n], s[j][2 * n + 1]), most);
        most = fwd::quad_most(most);
        from[n] = most == -INFINITY ? 0 : most;
        const float at = from[n] * unit;
        far = far || is_far(at);
        kept[n] = dev::exp2_fast(is_far(at) ? (r->most[n] - from[n]) * unit
                                            : r->most[n] * unit - at);
        grown = grown || !(kept[n] == 1);
        r->most[n] = most;
        r->sum[n] *= kept[n];
    }
    const bool any_far = dev::ballot(far) != 0;
    UNROLLED for (int n = 0; n < 2; n++)
        if (any_far)
            weigh_far_row<S>(unit, s, n, from[n], r);
        else
            weigh_row<S>(unit, s, n, from[n], r);
    return dev::ballot(grown) != 0;
}

/* The score of a row's largest product. */
DEVICE float score_of(double scale, float unit, float most)
{
    return (float)(is_far(most * unit) ? scale * (double)most : (double)(most * unit) / LOG2_E);
}

/* ---- Order of tiles ------------------------------------------------------------------------- */

/* Divides the tiles of keys: those that all of the block's rows see whole, and the rest. */
template <class S> DEVICE void find_order(const struct attn_problem &p, struct block<S> *b)
{
    const struct fwd::work<S> *const w = &b->w;
    const int64_t end = w->row0 + S::ROWS, last = (end < w->rows ? end : w->rows) - 1;
    const int64_t lo = attn_band_row(w->s.band, last / p.group).lo - w->key0;
    const int64_t hi = attn_band_row(w->s.band, w->row0 / p.group).hi - w->key0;
    const int64_t tiles = (w->key1 - w->key0) / S::KEYS;
    int64_t first = lo < 0 ? 0 : (lo + S::KEYS - 1) / S::KEYS;
    int64_t past = hi < 0 ? 0 : hi / S::KEYS < tiles ? hi / S::KEYS : tiles;
    if (first >= past)
        first = past = tiles;
    b->tiles = (int)tiles;
    b->right = (int)(tiles - past);
    b->edges = b->right + (int)first;
}

/* The n-th tile in the order in which they are taken: the last ones backwards, then from the first
 * on. */
template <class S> DEVICE int64_t key_of(const struct block<S> *b, int n)
{
    const int tile = n < b->right ? b->tiles - 1 - n : n - b->right;
    return b->w.key0 + (int64_t)tile * S::KEYS;
}

/* ---- Copies --------------------------------------------------------------------------------- */

/* Stages are used by turns; `step` counts the tiles of a kind from the block's beginning on. */
template <class S> DEVICE char *stage_of(char *tiles, int kind, int step)
{
    const int stage = step % STAGES;
    return tiles + S::QUERIES + (kind == KEYS ? stage * S::KEY_STAGE
                                              : STAGES * S::KEY_STAGE + stage * S::VALUE_STAGE);
}
DEVICE int parity_of(int step) { return step / STAGES % 2; }

/* Whether a bulk copy can bring keys or values k0 .. k0 + S::KEYS - 1. */
template <class S, int KIND>
DEVICE bool is_bulk(const struct attn_cuda_args &a, const struct fwd::work<S> *w, int pass,
                    int64_t k0)
{
    return a.boxes.given[KIND] && k0 + S::KEYS <= w->s.nk &&
           (KIND == KEYS || pass == fwd::PLAIN);
}

template <class S, int KIND>
DEVICE void begin_bulk(const struct attn_cuda_args &a, const struct fwd::work<S> *w, char *to,
                       uint64_t *full, int64_t k0)
{
    constexpr int WIDTH = KIND == KEYS ? S::D : S::DV, BYTES = S::KEYS * S::PITCH;
    const int row = (int)(attn_axis_start(&a.p.key, w->s.b) + k0);
    dev::mbarrier_expect(full, WIDTH / S::PANEL * BYTES);
    UNROLLED for (int n = 0; n < WIDTH / S::PANEL; n++)
        dev::load_tensor(to + n * BYTES, &a.boxes.map[KIND], full, n * S::PANEL, row,
                         (int)w->head_kv, a.p.key.cu ? 0 : (int)w->s.b);
}

/* By all threads that copy. Values that are not finite become 0 in later passes. */
template <class S, int KIND>
DEVICE void put(const struct attn_problem &p, const struct fwd::work<S> *w, char *to, int pass,
                int64_t k0)
{
    constexpr int WIDTH = KIND == KEYS ? S::D : S::DV, PANEL = S::PANEL;
    ROLLED for (int n = 0; n < WIDTH / PANEL; n++) {
        char *const panel = to + n * S::KEYS * S::PITCH;
        if (KIND == KEYS)
            fwd::copy_keys<S, PANEL, copiers>(panel, w, p, p.k, w->k, nullptr, k0, n * PANEL,
                                              p.head_dim, w->whole_k);
        else
            fwd::copy_keys<S, PANEL, copiers>(panel, w, p, p.v, w->v, w->s.key_mask, k0, n * PANEL,
                                              p.head_dim_v, w->whole_v);
    }
    dev::commit_copies();
    dev::wait_copies<0>();
    if (KIND == VALUES && pass != fwd::PLAIN) {
        dev::sync_some(COPY_BARRIER, COPYING);
        fwd::clean<S, copiers>(to);
    }
}

/* Fills a stage, once it is empty. The first warp alone waits for that, as the others may be tiles
 * ahead of it: it is the one that begins bulk copies. */
template <class S, int KIND>
DEVICE void fill(const struct attn_cuda_args &a, struct block<S> *b, char *tiles, int pass,
                 int step, int64_t k0)
{
    uint64_t *const full = &b->full[KIND][step % STAGES];
    char *const to = stage_of<S>(tiles, KIND, step);
    const bool first = dev::warp() == S::WARPS;
    if (first)
        dev::mbarrier_wait(&b->empty[KIND][step % STAGES], parity_of(step) ^ 1);
    if (is_bulk<S, KIND>(a, &b->w, pass, k0)) {
        if (first && dev::elect())
            begin_bulk<S, KIND>(a, &b->w, to, full, k0);
        return;
    }
    dev::sync_some(COPY_BARRIER, COPYING);
    put<S, KIND>(a.p, &b->w, to, pass, k0);
    dev::fence_async();
    dev::sync_some(COPY_BARRIER, COPYING);
    if (copiers::me() == 0)
        dev::mbarrier_arrive(full);
}

/* A tile of keys or values, once it is there. */
template <class S>
DEVICE const char *take(struct block<S> *b, char *tiles, int kind, int step)
{
    dev::mbarrier_wait(&b->full[kind][step % STAGES], parity_of(step));
    return stage_of<S>(tiles, kind, step);
}

/* The warp is done with it. */
template <class S> DEVICE void give_back(struct block<S> *b, int kind, int step)
{
    dev::sync_warp();
    if (dev::lane() == 0)
        dev::mbarrier_arrive(&b->empty[kind][step % STAGES]);
}

/* ---- Products ------------------------------------------------------------------------------- */

/* Of a tile of so many rows: rows from `first` on, columns from c on, side by side. */
template <class S, int ROWS> DEVICE uint64_t rows_at(const char *tile, int first, int c)
{
    const int in_panel = first * S::PITCH + c % S::PANEL * S::SIZE;
    return dev::matrix_at<S::SWIZZLE>(tile + c / S::PANEL * ROWS * S::PITCH + in_panel, 0,
                                      8 * S::PITCH);
}

/* Its rows from `first` on as depth, all columns. */
template <class S, int ROWS> DEVICE uint64_t columns_at(const char *tile, int first)
{
    return dev::matrix_at<S::SWIZZLE>(tile + first * S::PITCH, ROWS * S::PITCH, 8 * S::PITCH);
}

/* s = 64 queries by a tile of keys. */
template <class S>
DEVICE void begin_scores(float (*s)[4], const char *queries, int group, const char *keys)
{
    dev::hold<S::SCORES * 4>((float *)s);
    dev::wg_begin();
    UNROLLED for (int c = 0; c < S::D; c += 16)
        S::N::template wg_multiply<S::KEYS, false>(
            (float *)s, rows_at<S, S::ROWS>(queries, 64 * group, c),
            rows_at<S, S::KEYS>(keys, 0, c), c > 0);
    dev::wg_commit();
}

/* out += weights by a tile of values. */
template <class S>
DEVICE void begin_values(float (*out)[4], const uint32_t (*weights)[4], const char *values)
{
    dev::hold<S::SUMS * 4>((float *)out);
    dev::wg_begin();
    UNROLLED for (int j = 0; j < S::KEYS; j += 16)
        S::N::template wg_multiply<S::DV, true>((float *)out, weights[j / 16],
                                                columns_at<S, S::KEYS>(values, j), true);
    dev::wg_commit();
}

/* Weights as a product takes them. */
template <class S> DEVICE void pack(uint32_t (*weights)[4], const float (*s)[4])
{
    UNROLLED for (int i = 0; i < S::KEYS / 4; i++) {
        const float *const x = s[i / 4 * 2 + i % 4 / 2] + i % 2 * 2;
        weights[i / 4][i % 4] = S::N::pack(x[0], x[1]);
    }
}

/* ---- Sums over keys ------------------------------------------------------------------------- */

/* A warp of those that compute. */
template <class S> struct view {
    struct block<S> *b;
    char *tiles;
    int group, base;
    int step; /* tiles so far */
};

/* The keys that some row of the warpgroup may see. */
template <class S> DEVICE struct attn_range seen_by_group(const struct view<S> *v)
{
    const struct attn_range *const warp = v->b->w.warp + 4 * v->group;
    struct attn_range see = warp[0];
    for (int n = 1; n < 4; n++)
        see.hi = warp[n].hi > see.hi ? warp[n].hi : see.hi;
    return see;
}

/* A tile that may need masks, or anything else. */
template <class S>
DEVICE void attend_edge(const struct attn_problem &p, const struct view<S> *v, int pass,
                        int64_t k0, float (*out)[4], struct fwd::state<S> *r)
{
    const struct attn_range see = seen_by_group(v);
    const bool busy = see.lo < k0 + S::KEYS && k0 < see.hi;
    const struct fwd::work<S> *const w = &v->b->w;
    float s[S::SCORES][4], kept[2];
    uint32_t weights[S::KEYS / 16][4];
    const char *const keys = take(v->b, v->tiles, KEYS, v->step);
    if (busy) {
        begin_scores<S>(s, v->tiles, v->group, keys);
        dev::wg_wait<0>();
        dev::hold<S::SCORES * 4>((float *)s);
    }
    give_back(v->b, KEYS, v->step);
    if (busy) {
        const float unit = v->b->unit;
        fwd::score<S>(w, v->base, s, k0, unit > 0);
        if (unit > 0 ? weigh_products<S>(unit, s, r, kept) : fwd::weigh<S>(s, r, kept))
            fwd::keep<S>(out, kept);
        if (p.dropout.on || pass == fwd::SMALLER)
            fwd::lessen<S>(p, w, v->base, s, k0);
        pack<S>(weights, s);
    }
    const char *const values = take(v->b, v->tiles, VALUES, v->step);
    if (busy) {
        begin_values<S>(out, weights, values);
        dev::wg_wait<0>();
        dev::hold<S::SUMS * 4>((float *)out);
    }
    give_back(v->b, VALUES, v->step);
}

/* Two warpgroups by turns begin their products, so that those of the one keep the tensor cores busy
 * under the softmax of the other. The first begins; the last turn is nobody's to pass on. */
DEVICE void await_turn(int group, bool first)
{
    if (group > 0 || !first)
        dev::sync_some(TURN_BARRIER + group, COMPUTING);
}
DEVICE void pass_turn(int group, bool last)
{
    if (group == 0 || !last)
        dev::arrive(TURN_BARRIER + 1 - group, COMPUTING);
}

/* n tiles, at least one, that all rows see whole and of which nothing is asked but the product: keys
 * are multiplied a tile ahead of values, and the softmax between them goes on beside the values'
 * product. */
template <class S>
DEVICE void attend_whole(const struct view<S> *v, int n, bool by_turns, float (*out)[4],
                         struct fwd::state<S> *r)
{
    const float unit = v->b->unit;
    int step = v->step;
    float s[S::SCORES][4], kept[2];
    uint32_t weights[S::KEYS / 16][4];
    begin_scores<S>(s, v->tiles, v->group, take(v->b, v->tiles, KEYS, step));
    dev::wg_wait<0>();
    dev::hold<S::SCORES * 4>((float *)s);
    give_back(v->b, KEYS, step);
    if (weigh_products<S>(unit, s, r, kept))
        fwd::keep<S>(out, kept);
    pack<S>(weights, s);
    for (int i = 0; i < n - 1; i++, step++) {
        const char *const keys = take(v->b, v->tiles, KEYS, step + 1);
        if (by_turns)
            await_turn(v->group, i == 0);
        begin_scores<S>(s, v->tiles, v->group, keys);
        begin_values<S>(out, weights, take(v->b, v->tiles, VALUES, step));
        if (by_turns)
            pass_turn(v->group, i == n - 2);
        dev::wg_wait<1>();
        dev::hold<S::SCORES * 4>((float *)s);
        give_back(v->b, KEYS, step + 1);
        const bool grown = weigh_products<S>(unit, s, r, kept);
        dev::wg_wait<0>();
        dev::hold<S::SUMS * 4>((float *)out);
        give_back(v->b, VALUES, step);
        if (grown)
            fwd::keep<S>(out, kept);
        pack<S>(weights, s);
    }
    begin_values<S>(out, weights, take(v->b, v->tiles, VALUES, step));
    dev::wg_wait<0>();
    dev::hold<S::SUMS * 4>((float *)out);
    give_back(v->b, VALUES, step);
}

/* A warp's sums over all keys. */
template <class S>
DEVICE void attend(const struct attn_problem &p, struct view<S> *v, int pass, float (*out)[4],
                   struct fwd::state<S> *r)
{
    const struct fwd::work<S> *const w = &v->b->w;
    const bool idle = w->row0 + 64 * v->group >= w->rows;
    const bool plain = w->plain && v->b->unit > 0 && !p.dropout.on && pass == fwd::PLAIN && !idle;
    const int edges = plain ? v->b->edges : v->b->tiles, whole = v->b->tiles - edges;
    UNROLLED for (int n = 0; n < 2; n++) {
        r->most[n] = -INFINITY;
        r->sum[n] = 0;
    }
    UNROLLED for (int i = 0; i < S::SUMS * 4; i++)
        out[i / 4][i % 4] = 0;
    for (int n = 0; n < edges; n++, v->step++)
        attend_edge<S>(p, v, pass, key_of(v->b, n), out, r);
    if (whole > 0)
        attend_whole<S>(v, whole, w->row0 + 64 < w->rows, out, r);
    v->step += whole;
    UNROLLED for (int n = 0; n < 2; n++)
        if (v->b->unit > 0)
            r->most[n] = score_of(p.scale, v->b->unit, r->most[n]);
}

/* ---- The kernel ----------------------------------------------------------------------------- */

template <class S> DEVICE void copy_queries(const struct attn_problem &p,
                                            const struct fwd::work<S> *w, char *tiles)
{
    ROLLED for (int n = 0; n < S::D / S::PANEL; n++)
        fwd::copy_queries<S, S::PANEL>(tiles + n * S::ROWS * S::PITCH, w, p, n * S::PANEL);
    dev::commit_copies();
    dev::wait_copies<0>();
    dev::fence_async();
    dev::sync_some(COMPUTE_BARRIER, COMPUTING);
}

/* Whether there is another pass. All threads come here, those that compute once their sums are in
 * the place of the tiles. */
template <class S> DEVICE bool next_pass(const struct fwd::work<S> *w, int *pass)
{
    dev::sync();
    if (!w->again[*pass] || *pass + 1 == fwd::PASSES)
        return false;
    (*pass)++;
    dev::fence_async(); /* of the sums, before copies go there again */
    dev::sync();
    return true;
}

/* Those that copy: keys a tile ahead of values, as they are multiplied. */
template <class S>
DEVICE void bring_all(const struct attn_cuda_args &a, struct block<S> *b, char *tiles)
{
    int pass = fwd::PLAIN, step = 0;
    do {
        for (int n = 0; n <= b->tiles; n++) {
            if (n < b->tiles)
                fill<S, KEYS>(a, b, tiles, pass, step + n, key_of(b, n));
            if (n > 0)
                fill<S, VALUES>(a, b, tiles, pass, step + n - 1, key_of(b, n - 1));
        }
        step += b->tiles;
    } while (next_pass(&b->w, &pass));
}

/* Those that compute. */
template <class S>
DEVICE void compute(const struct attn_cuda_args &a, struct block<S> *b, char *tiles, int group)
{
    struct fwd::work<S> *const w = &b->w;
    float *const results = (float *)tiles; /* in the end */
    struct view<S> v = {b, tiles, group, dev::warp() * 16, 0};
    float out[S::SUMS][4];
    struct fwd::state<S> r;
    int pass = fwd::PLAIN;
    fwd::find_rows<S>(a.p, w, v.base);
    dev::sync_some(COMPUTE_BARRIER, COMPUTING);
    do {
        copy_queries<S>(a.p, w, tiles);
        attend<S>(a.p, &v, pass, out, &r);
        dev::sync_some(COMPUTE_BARRIER, COMPUTING); /* all are done with the tiles */
        fwd::put_sums<S>(w, v.base, 0, pass, results, out, &r);
    } while (next_pass(w, &pass));
    if (pass != fwd::PLAIN)
        fwd::spoil<S>(a.p, w, results);
    fwd::finish<S>(&a, w, results);
}

template <class S>
KERNEL_OF(COMPUTING + COPYING) forward(GRID_CONSTANT const struct attn_cuda_args a)
{
    struct block<S> *const b = (struct block<S> *)dev::shared();
    char *const tiles = (char *)dev::shared() + room<S>::BLOCK;
    const int group = dev::shuffle(dev::warp() / 4, 0);
    if (dev::thread() == 0) {
        fwd::find_work<S>(&a, &b->w);
        if (b->w.found)
            find_order<S>(a.p, b);
        b->unit = unit_of(a.p);
        for (int n = 0; n < KINDS * STAGES; n++) {
            dev::mbarrier_init(&b->full[n / STAGES][n % STAGES], 1);
            dev::mbarrier_init(&b->empty[n / STAGES][n % STAGES], S::WARPS);
        }
        dev::fence_async();
    }
    dev::sync();
    if (!b->w.found)
        return;
    if (group == GROUPS) {
        dev::lower_registers<S::COPY_REGISTERS>();
        bring_all<S>(a, b, tiles);
    } else {
        dev::raise_registers<S::COMPUTE_REGISTERS>();
        compute<S>(a, b, tiles, group);
    }
}

template <class S>
static constexpr struct attn_cuda_instance instance = {
    forward<S>, S::DV, S::ROWS, S::KEYS, COMPUTING + COPYING, room<S>::BYTES, S::PANEL};

/* With the short form of another pair. */
template <class Tall>
constexpr struct attn_cuda_pair pair(const char *name, const struct attn_cuda_instance *low)
{
    return {name, Tall::D, Tall::DV, {low, &instance<Tall>}};
}

} // namespace fwd_sm90

#endif
