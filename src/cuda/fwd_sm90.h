/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The forward kernel for sm_90a and 16-bit types: fwd.h with products of warpgroups. What a row is
 * and what becomes of it is there; here are the ways of keys and values and the order of work.
 *
 * A block has warpgroups that compute, GROUPS of them with 64 rows each, and one that copies. It
 * takes an item of the list and a head, a job, after another until there are no more (or, of large
 * heads, one); which block takes which is left to chance, and no result depends on it. While a
 * job's results are put down the copies of the next one begin.
 *
 * Tiles of keys and values come by turns through STAGES stages each. A stage is `full` once its
 * copy has landed, and `empty` again once all warps that compute have told so. Most copies are bulk
 * copies; what those cannot bring is put by the threads that copy, to the same places: tiles across
 * the end of a sequence, pages, tensors that a map cannot hold, and values that have to be looked
 * at in later passes. So results do not depend on how a tensor lies.
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

#include "cuda/copy_sm90.h"

namespace fwd_sm90 {

/* ---- Weights of products -------------------------------------------------------------------- */

/*
 * Where a score is the product and a scale, from no less than 2^-100 to 1, that scale and the one
 * of the power of two are one factor, `unit`, and an exponent is one operation: 2^(s unit - most
 * unit). What is subtracted has been rounded, alike for all of a row, which is less than 2^-15
 * where it is less than FAR. Rows beyond take the difference of products first.
 */
#define LOG2_E 1.4426950408889634
#define LN_2 0.6931471805599453
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
        most = row::most_of<4>(most);
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
    return (float)(is_far(most * unit) ? scale * (double)most : (double)(most * unit) * LN_2);
}

/* ---- Products ------------------------------------------------------------------------------- */

/* A tile of keys or values, once it is there. */
template <class S>
DEVICE const char *take(struct block<S> *b, char *tiles, int kind, uint32_t step)
{
    dev::mbarrier_wait(&b->full[kind][step % STAGES], parity_of(step));
    return stage_of<S>(tiles, kind, step);
}

/* The warp is done with it. */
template <class S> DEVICE void give_back(struct block<S> *b, int kind, uint32_t step)
{
    dev::sync_warp();
    if (dev::lane() == 0)
        dev::mbarrier_arrive(&b->empty[kind][step % STAGES]);
}

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
    struct job<S> *job;
    char *tiles;
    int group, base;
    uint32_t step; /* tiles so far, of all jobs */
};

/* The keys that some row of the warpgroup may see. */
template <class S> DEVICE struct attn_range seen_by_group(const struct view<S> *v)
{
    const struct attn_range *const warp = v->job->w.warp + 4 * v->group;
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
    const struct fwd::work<S> *const w = &v->job->w;
    float s[S::SCORES][4], kept[2];
    uint32_t weights[S::KEYS / 16][4];
    const char *const keys = take(v->b, v->tiles, KEYS, v->step);
    if (busy) {
        begin_scores<S>(s, v->tiles + S::QUERIES_AT, v->group, keys);
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
        dev::hold<S::KEYS / 4>((uint32_t *)weights);
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

/* n tiles, at least one, that all rows see whole and of which nothing is asked but the product:
 * keys are multiplied a tile ahead of values, and the softmax between them goes on beside the
 * values' product. */
template <class S>
DEVICE void attend_whole(const struct view<S> *v, int n, bool by_turns, float (*out)[4],
                         struct fwd::state<S> *r)
{
    const float unit = v->b->unit;
    uint32_t step = v->step;
    float s[S::SCORES][4], kept[2];
    uint32_t weights[S::KEYS / 16][4];
    begin_scores<S>(s, v->tiles + S::QUERIES_AT, v->group, take(v->b, v->tiles, KEYS, step));
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
        begin_scores<S>(s, v->tiles + S::QUERIES_AT, v->group, keys);
        begin_values<S>(out, weights, take(v->b, v->tiles, VALUES, step));
        if (by_turns)
            pass_turn(v->group, i == n - 2);
        dev::wg_wait<1>();
        dev::hold<S::SCORES * 4>((float *)s);
        give_back(v->b, KEYS, step + 1);
        const bool grown = weigh_products<S>(unit, s, r, kept);
        dev::wg_wait<0>();
        dev::hold<S::SUMS * 4>((float *)out);
        dev::hold<S::KEYS / 4>((uint32_t *)weights);
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
    const struct job<S> *const x = v->job;
    const struct fwd::work<S> *const w = &x->w;
    const bool idle = w->row0 + 64 * v->group >= w->rows;
    const bool plain = w->plain && v->b->unit > 0 && !p.dropout.on && pass == fwd::PLAIN && !idle;
    const int edges = plain ? x->edges : x->tiles, whole = x->tiles - edges;
    UNROLLED for (int n = 0; n < 2; n++) {
        r->most[n] = -INFINITY;
        r->sum[n] = 0;
    }
    UNROLLED for (int i = 0; i < S::SUMS * 4; i++)
        out[i / 4][i % 4] = 0;
    for (int n = 0; n < edges; n++, v->step++)
        attend_edge<S>(p, v, pass, key_of(x, n), out, r);
    if (whole > 0)
        attend_whole<S>(v, whole, w->row0 + 64 < w->rows, out, r);
    v->step += (uint32_t)whole;
    UNROLLED for (int n = 0; n < 2; n++)
        if (v->b->unit > 0)
            r->most[n] = score_of(p.scale, v->b->unit, r->most[n]);
}

/* ---- The kernel ----------------------------------------------------------------------------- */

/* Those that compute. */
template <class S>
DEVICE void compute_all(const struct attn_cuda_args &a, struct block<S> *b, char *tiles, int group)
{
    struct view<S> v = {b, nullptr, tiles, group, dev::warp() * 16, 0};
    float *const results = (float *)(tiles + S::RESULTS_AT);
    float out[S::SUMS][4];
    struct fwd::state<S> r;
    uint32_t turn = 0;
    for (uint32_t n = 0; b->job[n % 2].w.found; n++) {
        struct fwd::work<S> *const w = &b->job[n % 2].w;
        int pass = fwd::PLAIN;
        v.job = &b->job[n % 2];
        do {
            dev::mbarrier_wait(&b->queries, turn++ % 2);
            attend<S>(a.p, &v, pass, out, &r);
            dev::sync_some(COMPUTE_BARRIER, COMPUTING); /* all are done with the tiles */
            fwd::put_sums<S>(w, v.base, 0, pass, results, out, &r);
            dev::fence_async(); /* before copies go there again */
        } while (next_pass(w, &pass));
        if (pass != fwd::PLAIN) {
            fwd::spoil<S>(a.p, w, results);
            dev::fence_async();
        }
        fwd::finish<S>(&a, w, results);
        dev::sync_warp();
        if (dev::lane() == 0)
            dev::mbarrier_arrive(&b->done);
        if (!S::STAYS)
            return;
    }
}

template <class S>
KERNEL_OF(COMPUTING + COPYING) forward(GRID_CONSTANT const struct attn_cuda_args a)
{
    struct block<S> *const b = (struct block<S> *)dev::shared();
    char *const tiles = (char *)dev::shared() + room<S>::BLOCK;
    const int group = dev::shuffle(dev::warp() / 4, 0);
    struct outlook o = {};
    if (group == GROUPS) {
        look_ahead<S>(a, &o, (uint32_t)dev::block());
        find_job<S>(a, b, &o, 0);
    }
    if (dev::thread() == 0) {
        b->unit = unit_of(a.p);
        for (int n = 0; n < KINDS * STAGES; n++) {
            dev::mbarrier_init(&b->full[n / STAGES][n % STAGES], 1);
            dev::mbarrier_init(&b->empty[n / STAGES][n % STAGES], S::WARPS);
        }
        dev::mbarrier_init(&b->queries, 1);
        dev::mbarrier_init(&b->done, S::WARPS);
        dev::fence_async();
    }
    dev::sync();
    if (group == GROUPS) {
        dev::lower_registers<S::COPY_REGISTERS>();
        bring_all<S>(a, b, tiles, &o);
    } else {
        dev::raise_registers<S::COMPUTE_REGISTERS>();
        compute_all<S>(a, b, tiles, group);
    }
}

template <class S>
static constexpr struct attn_cuda_instance instance = {
    forward<S>, S::DV,   S::ROWS, S::KEYS, COMPUTING + COPYING, room<S>::BYTES,
    S::PANEL,   S::STAYS};

/* With the short form of another pair. */
template <class Tall>
constexpr struct attn_cuda_pair pair(const char *name, const struct attn_cuda_instance *low)
{
    return {name, Tall::D, Tall::DV, {low, &instance<Tall>}};
}

} // namespace fwd_sm90

#endif
