/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Forward kernel for 16-bit types on mma.sync, sm_80 and later: tiled online softmax. It takes the
 * checked problem as it is, with everything that it may ask for but probabilities and sums of them.
 *
 * A block of the grid is ROWS rows of one sequence and key/value head, a row being a pair of a
 * query and a head of the group, as on the CPU. Each of its warps has 16 of them. Keys and values
 * come tile by tile, the next ones being copied while these are multiplied; scores, probabilities
 * and sums of values stay in registers, in the fragments of mma.
 *
 * What is not seen gets the score -inf, hence the probability 0; 0 times what is not finite would
 * still show. Values past the end are 0 in shared memory. For those that a mask hides, a row whose
 * result is not finite is computed again in the plain way.
 */
#ifndef ATTN_CUDA_FWD_MMA_H
#define ATTN_CUDA_FWD_MMA_H

#include "cuda/device.h"
#include "score.h"

namespace fwd_mma {

enum { WARPS = 4, ROWS = 16 * WARPS, THREADS = 32 * WARPS };

struct bf16 {
    static DEVICE float number(uint16_t x) { return attn_bf16_to_f32(x); }
    static DEVICE uint16_t put(float x) { return attn_f32_to_bf16(x); }
    static DEVICE void multiply(float *c, const uint32_t *a, const uint32_t *b)
    {
        dev::multiply_bf16(c, a, b);
    }
};

struct f16 {
    static DEVICE float number(uint16_t x) { return attn_f16_to_f32(x); }
    static DEVICE uint16_t put(float x) { return attn_f32_to_f16(x); }
    static DEVICE void multiply(float *c, const uint32_t *a, const uint32_t *b)
    {
        dev::multiply_f16(c, a, b);
    }
};

/* Shared memory: queries, then two stages of keys and values, rows of D numbers. */
template <int D, int KEYS> struct room {
    enum { ROW = 2 * D, QUERIES = ROWS * ROW, TILE = KEYS * ROW };
    enum { BYTES = QUERIES + 2 * 2 * TILE };
};

/* The tile's rows that a block of the grid is for. */
struct work {
    struct attn_sequence s;
    int64_t head_kv, row0, rows; /* rows of the sequence and head in all */
};

/* The grid has `across` blocks for the rows of each sequence and key/value head, as many as the
 * longest takes; false: there is nothing for this one. */
DEVICE bool find_work(const struct attn_problem *p, int across, struct work *w)
{
    const int64_t unit = dev::block() / across;
    w->s = attn_sequence_of(p, unit / p->heads_kv);
    w->head_kv = unit % p->heads_kv;
    w->row0 = (int64_t)(dev::block() % across) * ROWS;
    w->rows = w->s.nq * p->group;
    return w->row0 < w->rows;
}

/* Where 16 bytes of a row lie, so that any 8 rows come from all banks. */
template <int D> DEVICE int place(int row, int chunk)
{
    return row * 2 * D + (chunk ^ row % 8) * 16;
}

/* A row of n numbers to shared memory, D with zeros; null: zeros. `whole`: rows are multiples of 16
 * bytes, and can be copied while others compute. */
template <int D>
DEVICE void copy_chunk(char *to, int row, int chunk, const uint16_t *from, int64_t n, bool whole)
{
    char *const here = to + place<D>(row, chunk);
    const int64_t at = 8 * chunk;
    if (whole) {
        dev::copy_async<16>(here, from + at, from && at < n);
        return;
    }
    for (int i = 0; i < 8; i++)
        ((uint16_t *)here)[i] = from && at + i < n ? from[at + i] : 0;
}

DEVICE bool is_whole(const struct attn_view *v, int64_t n)
{
    return (uintptr_t)v->data % 16 == 0 && (v->batch | v->token | v->head | n) % 8 == 0;
}

/* Keys or values k0 .. k0 + KEYS - 1. */
template <int D, int KEYS>
DEVICE void copy_tile(char *to, const struct work *w, const struct attn_view *v, int64_t n,
                      int64_t k0)
{
    const struct attn_problem *p = w->s.p;
    const bool whole = is_whole(v, n);
    for (int i = dev::thread(); i < KEYS * D / 8; i += THREADS) {
        const int row = i / (D / 8);
        const uint16_t *from = nullptr;
        if (k0 + row < w->s.nk)
            from = (const uint16_t *)attn_view_at(v, &p->key, w->s.b, k0 + row, w->head_kv, 2);
        copy_chunk<D>(to, row, i % (D / 8), from, n, whole);
    }
}

template <int D> DEVICE void copy_queries(char *to, const struct work *w)
{
    const struct attn_problem *p = w->s.p;
    const bool whole = is_whole(&p->q, p->head_dim);
    for (int i = dev::thread(); i < ROWS * D / 8; i += THREADS) {
        const int row = i / (D / 8);
        const int64_t at = w->row0 + row;
        const uint16_t *from = nullptr;
        if (at < w->rows)
            from = (const uint16_t *)attn_view_at(&p->q, &p->query, w->s.b, at / p->group,
                                                  w->head_kv * p->group + at % p->group, 2);
        copy_chunk<D>(to, row, i % (D / 8), from, p->head_dim, whole);
    }
}

/* ---- Scores --------------------------------------------------------------------------------- */

/* A row of the block: two to each lane, which shares them with the three others of its quad. */
struct row {
    int64_t query, head;
    bool given;
    struct attn_range see;
    float slope;
    float most, sum; /* the largest score so far, and this lane's part of the sum */
};

DEVICE struct row row_at(const struct work *w, int64_t at)
{
    const struct attn_problem *p = w->s.p;
    struct row r;
    r.given = at < w->rows;
    r.query = r.given ? at / p->group : 0;
    r.head = w->head_kv * p->group + (r.given ? at % p->group : 0);
    r.see = attn_band_row(w->s.band, r.query);
    r.slope = (float)attn_slope_of(&w->s, r.head);
    r.most = -INFINITY;
    r.sum = 0;
    return r;
}

/* What the contract makes of a product of query and key, but for what hides the key. */
DEVICE float score_of(const struct work *w, const struct row *r, float product, int64_t key)
{
    const struct attn_problem *p = w->s.p;
    float s = attn_is_extreme(fabs(p->scale)) ? (float)(p->scale * (double)product)
                                              : (float)p->scale * product;
    if (p->softcap > 0)
        s = (float)(p->softcap * tanh((double)s / p->softcap));
    if (p->bias.data) {
        const struct attn_score_view bias = attn_bias_of(&w->s);
        s += (float)attn_number_at(bias.data, p->bias_dtype,
                                   attn_score_at(&bias, 0, r->head, r->query, key));
    }
    if (p->alibi.data)
        s -= r->slope * (float)attn_distance(&w->s, r->query, key);
    return s;
}

DEVICE bool sees(const struct work *w, const struct row *r, int64_t key)
{
    if (!r->given || key < r->see.lo || key >= r->see.hi ||
        !attn_sees(&w->s, r->head, r->query, key))
        return false;
    if (!w->s.p->bias.data)
        return true;
    const struct attn_score_view bias = attn_bias_of(&w->s);
    return !(attn_number_at(bias.data, w->s.p->bias_dtype,
                            attn_score_at(&bias, 0, r->head, r->query, key)) == -(double)INFINITY);
}

/* e^x for differences from the largest score, which may be NaN. */
DEVICE float weight_of(float score, float most)
{
    return dev::exp2_fast((score - most) * 1.44269504088896341f);
}

/* Over the four lanes that share a row. */
DEVICE float quad_most(float x)
{
    for (int mask = 1; mask < 4; mask *= 2) {
        const float other = dev::shuffle_xor(x, mask);
        x = other > x ? other : x;
    }
    return x;
}

DEVICE float quad_sum(float x)
{
    x += dev::shuffle_xor(x, 1);
    return x + dev::shuffle_xor(x, 2);
}

/* ---- Results -------------------------------------------------------------------------------- */

/* What becomes of a row: its sums of values times `by`, below 0 for zeros; its LSE. */
struct outcome {
    float by, lse;
};

DEVICE struct outcome outcome_of(const struct work *w, const struct row *r, float sum)
{
    const struct attn_problem *p = w->s.p;
    const double sink = attn_sink_of(p, r->head), at = (double)r->most;
    struct outcome o = {sum == 0 ? -1.0f : 1 / sum, -INFINITY};
    if (sum != 0)
        o.lse = (float)(at + log((double)sum));
    if (isnan(sink)) {
        o.by = o.lse = (float)sink;
    } else if (sink > -(double)INFINITY && !isnan(sum)) {
        const double top = sum == 0 || sink > at ? sink : at;
        const double weight = sum == 0 ? 0 : exp(at - top);
        const double total = weight * (double)sum + exp(sink - top);
        const bool all = sink == (double)INFINITY;
        o.by = all || sum == 0 ? -1.0f : (float)(weight / total);
        o.lse = all ? INFINITY : (float)(top + log(total));
    }
    if (p->dropout.on && o.by >= 0)
        o.by = p->dropout.scale == 0 ? -1.0f : (float)((double)o.by * p->dropout.scale);
    return o;
}

/* A row whose result is not finite, in the plain way, by a warp: columns of the result that are not
 * finite are written again. Some of them stay so: what is seen may be the reason. Weights are
 * relative to r->most, and divided before they are used, which cannot overflow before the result
 * does; by: as in struct outcome. */
template <class T>
DEVICE void careful_row(const struct work *w, const struct row *r, float by, uint16_t *out)
{
    const struct attn_problem *p = w->s.p;
    for (int64_t c0 = 0; c0 < p->head_dim_v; c0 += 32) {
        const int64_t c = c0 + dev::lane();
        float sum = 0;
        for (int64_t j = r->see.lo; j < r->see.hi; j++) {
            if (!sees(w, r, j))
                continue;
            const uint16_t *q = (const uint16_t *)attn_view_at(&p->q, &p->query, w->s.b, r->query,
                                                               r->head, 2);
            const uint16_t *k =
                (const uint16_t *)attn_view_at(&p->k, &p->key, w->s.b, j, w->head_kv, 2);
            const uint16_t *v =
                (const uint16_t *)attn_view_at(&p->v, &p->key, w->s.b, j, w->head_kv, 2);
            float product = 0;
            for (int64_t i = 0; i < p->head_dim; i++)
                product += T::number(q[i]) * T::number(k[i]);
            float weight = weight_of(score_of(w, r, product, j), r->most) * by;
            if (p->dropout.on && attn_drops(p, w->s.b, r->head, r->query, j))
                weight = 0;
            if (c < p->head_dim_v)
                sum += weight * T::number(v[c]);
        }
        if (c < p->head_dim_v && !isfinite(T::number(out[c])))
            out[c] = T::put(sum);
    }
}

/* ---- The kernel ----------------------------------------------------------------------------- */

/* Head sizes up to D, a multiple of 64; tiles of KEYS keys, a multiple of 16. */
template <class T, int D, int KEYS> KERNEL forward(struct attn_problem p, int across)
{
    typedef room<D, KEYS> memory;
    char *const queries = (char *)dev::shared(), *const stages = queries + memory::QUERIES;
    const int lane = dev::lane(), t = lane % 4, base = dev::warp() * 16;
    struct work w;
    if (!find_work(&p, across, &w))
        return;
    const int64_t last = (w.row0 + ROWS < w.rows ? w.row0 + ROWS : w.rows) - 1;
    const struct attn_range any =
        attn_band_any(w.s.band, w.row0 / p.group, last / p.group + 1);
    const int64_t first = any.lo / KEYS;
    const int64_t tiles = any.lo < any.hi ? (any.hi + KEYS - 1) / KEYS - first : 0;
    const bool rules = p.key_mask.data || p.query_mask.data || p.mask.data || p.block_mask.data ||
                       p.query_docs.data || p.bias.data;
    struct row r[2] = {row_at(&w, w.row0 + base + lane / 4),
                       row_at(&w, w.row0 + base + lane / 4 + 8)};
    float out[D / 8][4] = {};

    copy_queries<D>(queries, &w);
    for (int64_t n = 0; n <= tiles; n++) {
        if (n < tiles) {
            char *const to = stages + n % 2 * 2 * memory::TILE;
            copy_tile<D, KEYS>(to, &w, &p.k, p.head_dim, (first + n) * KEYS);
            copy_tile<D, KEYS>(to + memory::TILE, &w, &p.v, p.head_dim_v, (first + n) * KEYS);
        }
        dev::commit_copies();
        if (n == 0)
            continue;
        dev::wait_copies<1>();
        dev::sync();
        const char *const keys = stages + (n - 1) % 2 * 2 * memory::TILE;
        const char *const values = keys + memory::TILE;
        const int64_t k0 = (first + n - 1) * KEYS;

        float s[KEYS / 8][4] = {};
        UNROLLED for (int c = 0; c < D; c += 16) {
            uint32_t a[4], b[4];
            dev::load_matrices(a, queries + place<D>(base + lane % 16, c / 8 + lane / 16));
            UNROLLED for (int j = 0; j < KEYS; j += 16) {
                dev::load_matrices(b, keys + place<D>(j + lane / 16 * 8 + lane % 8,
                                                      c / 8 + lane / 8 % 2));
                T::multiply(s[j / 8], a, b);
                T::multiply(s[j / 8 + 1], a, b + 2);
            }
        }

        const bool whole = !rules && attn_band_whole(w.s.band, w.row0 / p.group,
                                                     last / p.group + 1, k0, k0 + KEYS);
        UNROLLED for (int i = 0; i < 2; i++) { /* the lane's two rows */
            float most = r[i].most;
            UNROLLED for (int j = 0; j < KEYS / 8; j++)
                UNROLLED for (int half = 0; half < 2; half++) {
                    const int64_t key = k0 + 8 * j + 2 * t + half;
                    float *const x = &s[j][2 * i + half];
                    *x = whole || sees(&w, &r[i], key) ? score_of(&w, &r[i], *x, key) : -INFINITY;
                    most = *x > most ? *x : most;
                }
            most = quad_most(most);
            const float from = most == -INFINITY ? 0 : most; /* what differences are taken from */
            const float kept = r[i].most == -INFINITY ? 0 : weight_of(r[i].most, from);
            r[i].sum *= kept;
            UNROLLED for (int c = 0; c < D / 8; c++) {
                out[c][2 * i] *= kept;
                out[c][2 * i + 1] *= kept;
            }
            r[i].most = most;
            UNROLLED for (int j = 0; j < KEYS / 8; j++)
                UNROLLED for (int half = 0; half < 2; half++) {
                    const int64_t key = k0 + 8 * j + 2 * t + half;
                    float *const x = &s[j][2 * i + half];
                    *x = *x == -INFINITY ? 0 : weight_of(*x, from);
                    r[i].sum += *x;
                    if (p.dropout.on && *x > 0 &&
                        attn_drops(&p, w.s.b, r[i].head, r[i].query, key))
                        *x = 0;
                }
        }

        UNROLLED for (int j = 0; j < KEYS; j += 16) {
            uint32_t a[4], b[4];
            UNROLLED for (int i = 0; i < 4; i++)
                a[i] = T::put(s[j / 8 + i / 2][i % 2 * 2]) |
                       (uint32_t)T::put(s[j / 8 + i / 2][i % 2 * 2 + 1]) << 16;
            UNROLLED for (int c = 0; c < D; c += 16) {
                dev::load_transposed(b, values + place<D>(j + lane / 8 % 2 * 8 + lane % 8,
                                                          c / 8 + lane / 16));
                T::multiply(out[c / 8], a, b);
                T::multiply(out[c / 8 + 1], a, b + 2);
            }
        }
        dev::sync();
    }
    dev::wait_copies<0>();

    UNROLLED for (int i = 0; i < 2; i++) {
        const float sum = quad_sum(r[i].sum);
        const struct outcome o = outcome_of(&w, &r[i], sum);
        uint16_t *const to = (uint16_t *)attn_view_at(&p.out, &p.query, w.s.b, r[i].query,
                                                      r[i].head, 2);
        bool bad = false;
        UNROLLED for (int c = 0; r[i].given && c < D / 8; c++)
            UNROLLED for (int half = 0; half < 2; half++) {
                const int64_t column = 8 * c + 2 * t + half;
                if (column < p.head_dim_v) {
                    to[column] = o.by < 0 ? 0 : T::put(out[c][2 * i + half] * o.by);
                    bad = bad || !isfinite(T::number(to[column]));
                }
            }
        if (r[i].given && t == 0 && p.lse.data)
            *(float *)attn_view_at(&p.lse, &p.query, w.s.b, r[i].query, r[i].head, 4) = o.lse;
        const uint32_t again = dev::ballot(bad && isfinite(o.lse));
        for (int l = 0; l < 32; l += 4)
            if (again >> l & 15) { /* all lanes help the quad from l on */
                struct row one = row_at(&w, w.row0 + base + l / 4 + 8 * i);
                one.most = dev::shuffle(r[i].most, l);
                dev::sync_warp(); /* what the quad has written is there for all */
                careful_row<T>(&w, &one, dev::shuffle(o.by, l),
                               (uint16_t *)attn_view_at(&p.out, &p.query, w.s.b, one.query,
                                                        one.head, 2));
            }
    }
}

} // namespace fwd_mma

#endif
