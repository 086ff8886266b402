/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A block of rows of a unit and its scores against a tile of keys: what the kernels of the forward
 * and of the backward pass share. Rows lie in the lanes.
 */
#ifndef ATTN_CPU_BLOCK_H
#define ATTN_CPU_BLOCK_H

#include "cpu/masks.h"
#include "cpu/pack.h"

/* ---- State of a block of rows ---------------------------------------------------------------- */

struct block {
    const struct attn_unit *u;
    int64_t row0, rows; /* rows row0 .. row0 + rows - 1 of the unit; lanes past them repeat the
                           last row, unseen */
    int vectors; /* of lanes that are computed, HALF or NV; the others hold anything */
    int64_t d;
    struct exponent scale; /* of the scores, without its sign */
    real span;             /* of scores above a firm reference */
    real *qt;           /* [d / PAIR][BQ] words, with the sign of the scale */
    real *s;            /* [room][BQ] scores of the tile, unless used where they are made */
    int64_t first, scored; /* keys of the tile whose scores come first in s, or 0, and behind the
                              last: for matrices; else `scored` alone, where they are shaped */
    int64_t piece;         /* the keys that are weighed at a time end before this one */
    real *capped;       /* [room][BQ] gets them as the softcap leaves them; null: not wanted */
    real lo[BQ], hi[BQ]; /* keys of the tile that each lane sees */
    int64_t query[BQ];  /* of each lane */
    const elem *q[BQ];  /* row of each lane */
    struct attn_range see[BQ]; /* keys that each lane sees */
    int64_t head[BQ];          /* query head of each lane */
    bool shaped;               /* more than the scale goes into the scores */
    bool masked;               /* rules beyond the band and the key mask may hide keys */
    bool partly;               /* of the tile in work they hide some from some lanes */
    int64_t ends[NV]; /* keys of the tile in work that some lane of each vector sees end here or
                         before; some times MR, never falling */
    bool far;                  /* packed keys and values come from beyond the second cache */
    struct attn_score_view bias;
    real slope[BQ];            /* of ALiBi */
    lane_bits seen[BK], kept[BK]; /* lanes that see a key by the masks; that keep it */

    /* The forward pass. */
    bool leads;  /* it is the first of its item */
    bool loaded; /* qt holds the queries */
    bool begun;  /* o holds sums; for matrices, zeros before */
    bool scaled; /* sinks or dropout change what the sums are multiplied by */
    int64_t dv, dv_panels; /* dv rounded up to MR / 2, or to MATRIX */
    real *p;     /* [room / PAIR][BQ] weights of the tile, as words */
    real *o;     /* [dv][BQ] sums of p v */
    real *r;     /* [BQ] references, scores */
    real *limit; /* [BQ] of sums of MR weights */
    real *l;     /* [BQ] sums of p */
    real *sum;   /* [BQ] of those keys of the tile in work that are not in l yet */
    elem *out[BQ];
    struct attn_range next; /* keys that are asked for meanwhile */
};

/* Scores of key j of the tile; and the weights of it and of those that share its words. */
INLINE real *scores_at(const struct block *t, int64_t j)
{
    return t->s + (MATRIX ? j - t->first : j) * BQ;
}

INLINE real *weights_at(const struct block *t, int64_t j)
{
    return t->p + j / PAIR * BQ;
}

/* Whether HALF of the vectors are computed. */
INLINE bool is_half(const struct block *t) { return !WIDE_BLOCKS && t->vectors < NV; }

/* Sets up all but the memory of the block of rows at row0, which ends at `end` or before. */
static void block_init(struct block *t, const struct attn_unit *u, int64_t row0, int64_t end)
{
    const struct attn_problem *p = u->p;
    t->u = u;
    t->row0 = row0;
    t->rows = min64(BQ, end - row0);
    t->vectors = NV;
    t->d = p->head_dim;
    t->scale = score_exponent(p);
    t->span = score_span(p);
    t->shaped = shapes_scores(p);
    t->masked = has_masks(p);
    t->partly = t->far = false;
    t->first = t->scored = t->piece = 0;
    for (int v = 0; v < NV; v++)
        t->ends[v] = BK;
    t->capped = NULL;
    t->bias = attn_bias_of(&u->seq);

    const int64_t h = u->head_kv * p->group;
    const elem *q = (const elem *)attn_view_at(&p->q, &p->query, u->b, 0, h, sizeof(elem));
    int64_t query = row0 / p->group, head = row0 % p->group;
    for (int64_t lane = 0; lane < BQ; lane++) {
        t->query[lane] = query;
        t->q[lane] = q + query * p->q.token + head * p->q.head;
        t->see[lane] = attn_band_row(u->seq.band, query);
        t->head[lane] = h + head;
        t->slope[lane] = p->alibi.data ? (real)attn_slope_of(&u->seq, h + head) : 0;
        if (lane + 1 < t->rows && ++head == p->group) {
            head = 0;
            query++;
        }
    }
}

/* Asks for n elements of each row of the block at row0 of a tensor on the query side, to the second
 * cache. Inlined, because a compiler takes a function that does nothing else for one without
 * effect. */
INLINE void fetch_block(const struct attn_unit *u, const struct attn_view *v, int64_t n,
                        int64_t row0)
{
    const struct attn_problem *p = u->p;
    const int64_t rows = u->near ? 0 : min64(BQ, attn_unit_tiled(u).hi - row0);
    const int64_t h = u->head_kv * p->group;
    const elem *first = (const elem *)attn_view_at(v, &p->query, u->b, 0, h, sizeof(elem));
    int64_t query = row0 / p->group, head = row0 % p->group;
    for (int64_t r = 0; r < rows; r++) {
        fetch_soon(first + query * v->token + head * v->head, n);
        if (++head == p->group) {
            head = 0;
            query++;
        }
    }
}

INLINE void fetch_queries(const struct attn_unit *u, int64_t row0)
{
    fetch_block(u, &u->p->q, u->p->head_dim, row0);
}

/* VEC_N rows of n elements to columns: to[n / PAIR][BQ] words. */
static void load_lanes(real *to, const elem *const *row, int64_t n)
{
    int64_t c = 0;
    vec r[VEC_N];
    for (; (c + VEC_N) * PAIR <= n; c += VEC_N) {
        UNROLL for (int i = 0; i < VEC_N; i++)
            r[i] = word_load(row[i] + c * PAIR);
        vec_transpose(r);
        UNROLL for (int i = 0; i < VEC_N; i++)
            vec_store(to + (c + i) * BQ, r[i]);
    }
    if (c * PAIR >= n)
        return;
    UNROLL for (int i = 0; i < VEC_N; i++)
        r[i] = words_at(row[i], c, n);
    vec_transpose(r);
    for (int i = 0; c + i < words(n); i++)
        vec_store(to + (c + i) * BQ, r[i]);
}

/* The block's queries to qt. */
static void load_queries(struct block *t)
{
    for (int64_t lane = 0; lane < t->vectors * VEC_N; lane += VEC_N)
        load_lanes(t->qt + lane, t->q + lane, t->d);
    for (int64_t at = 0; t->u->p->scale < 0 && at < words(t->d) * BQ; at += VEC_N)
        vec_store(t->qt + at, word_negate(vec_load(t->qt + at)));
}

/* ---- Scores ---------------------------------------------------------------------------------- */

/* Asks for n words that are wanted soon, `ahead` behind `at`, to the second cache. Processors do
 * not look ahead past a page, and one group of rows or columns may fill that. */
INLINE void fetch_ahead(const real *at, int64_t ahead, int n)
{
    UNROLL for (int i = 0; i < n; i += LINE / (int)sizeof(real))
        __builtin_prefetch((const void *)((uintptr_t)at + (size_t)(ahead + i) * sizeof *at), 0, 2);
}

/* s[r][v] += column c of rows k, `step` words apart, by that of qt, v < nv. */
INLINE void dot_column(const real *qt, vec s[MR][NV], const real *k, int64_t step, int64_t c,
                       int nv)
{
    vec q[NV];
    UNROLL for (int v = 0; v < nv; v++) {
        q[v] = vec_load(qt + c * BQ + v * VEC_N);
        vec_keep(&q[v]);
    }
    UNROLL for (int r = 0; r < MR; r++) {
        vec b = vec_spread(k + r * step + c);
        vec_keep(&b);
        UNROLL for (int v = 0; v < nv; v++)
            s[r][v] = vec_mac(b, q[v], s[r][v]);
    }
}

enum { DOT_COLUMNS = 4 }; /* in a round of the loop */

/* s[r][v] += k[r] . q[v], v < nv, from column c on: MR rows k of n words, `step` apart, by columns
 * of qt[n][BQ]. Asks for as many words from `next` on. Here and below nv, HALF or NV, is a
 * constant. */
INLINE void dot_from(const real *qt, vec s[MR][NV], const real *k, int64_t step, int64_t c,
                     int64_t n, const real *next, int nv)
{
    for (; c + DOT_COLUMNS <= n; c += DOT_COLUMNS) {
        fetch_ahead(next, c * MR, DOT_COLUMNS * MR);
        UNROLL_BY(1) for (int i = 0; i < DOT_COLUMNS; i++)
            dot_column(qt, s, k, step, c + i, nv);
    }
    /* so that a compiler knows how few there are */
    for (int64_t left = (n - c) % DOT_COLUMNS; left > 0; left--, c++)
        dot_column(qt, s, k, step, c, nv);
}

INLINE void clear_products(vec s[MR][NV], int nv)
{
    UNROLL for (int r = 0; r < MR; r++)
        UNROLL for (int v = 0; v < nv; v++)
            s[r][v] = vec_zero();
}

/* s[r][v] = k[r] . q[v] of all columns. */
INLINE void dot_keys(const real *qt, vec s[MR][NV], const real *k, int64_t step, int64_t n,
                     const real *next, int nv)
{
    clear_products(s, nv);
    dot_from(qt, s, k, step, 0, n, next, nv);
}

/* Products s of MR rows of a tile to `to`, which is those of the first. */
INLINE void keep_products(real *to, vec s[MR][NV], int nv)
{
    UNROLL for (int r = 0; r < MR; r++)
        UNROLL for (int v = 0; v < nv; v++)
            vec_store(to + r * BQ + v * VEC_N, s[r][v]);
}

/* Products of rows j0 .. j1 - 1 of a tile, n words each, with columns qt[n][BQ] to `to`. */
INLINE void store_products(real *to, const real *qt, const real *keys, int64_t j0, int64_t j1,
                           int64_t step, int64_t n, const real *next, int nv)
{
    for (int64_t j = j0; j < j1; j += MR, next += MR * n) {
        vec s[MR][NV];
        dot_keys(qt, s, keys + j * step, step, n, next, nv);
        keep_products(to + j * BQ, s, nv);
    }
}

/* The same of half as many rows from the j-th on. */
INLINE void store_half(real *to, const real *qt, const real *keys, int64_t j, int64_t step,
                       int64_t n, int nv)
{
    vec s[MR / 2][NV];
    UNROLL for (int r = 0; r < MR / 2; r++)
        UNROLL for (int v = 0; v < nv; v++)
            s[r][v] = vec_zero();
    for (int64_t c = 0; c < n; c++)
        UNROLL for (int r = 0; r < MR / 2; r++) {
            vec b = vec_spread(keys + (j + r) * step + c);
            vec_keep(&b);
            UNROLL for (int v = 0; v < nv; v++)
                s[r][v] = vec_mac(b, vec_load(qt + c * BQ + v * VEC_N), s[r][v]);
        }
    UNROLL for (int r = 0; r < MR / 2; r++)
        UNROLL for (int v = 0; v < nv; v++)
            vec_store(to + (j + r) * BQ + v * VEC_N, s[r][v]);
}

/* Scores of keys j0 .. j1 - 1 of a tile to t->s, for when they are not used at once. */
INLINE void store_scores(struct block *t, const real *keys, int64_t j0, int64_t j1, int64_t step,
                         int64_t n, int nv)
{
    store_products(t->s, t->qt, keys, j0, j1, step, n, keys + (j0 + (t->far ? MR : 0)) * step, nv);
}

/* ---- Visibility ------------------------------------------------------------------------------ */

/* The keys of the tile that starts at k0 that each lane sees, as positions in the tile. */
static void see_tile(struct block *t, int64_t k0)
{
    for (int64_t lane = 0; lane < BQ; lane++) {
        const struct attn_range r = t->see[lane];
        t->lo[lane] = (real)min64(r.lo > k0 ? r.lo - k0 : 0, BK);
        t->hi[lane] = (real)min64(r.hi > k0 ? r.hi - k0 : 0, BK);
    }
}

/* Lanes of vector v that see key j of the tile, `at`; those from lo to below hi are in its band. */
INLINE vmask sees_within(const struct block *t, vec lo, vec hi, vec at, int64_t j, int v)
{
    const vmask band = vmask_and(vec_le(lo, at), vec_lt(at, hi));
    return t->partly ? vmask_and(band, vmask_of(t->seen[j] >> v * VEC_N)) : band;
}

INLINE vmask sees(const struct block *t, int64_t j, int v)
{
    return sees_within(t, vec_load(t->lo + v * VEC_N), vec_load(t->hi + v * VEC_N),
                       vec_set((real)j), j, v);
}

/* -inf to the scores in t->s that a lane does not see, or that the key mask hides. */
static void hide(struct block *t, int64_t k0, int64_t j0, int64_t j1)
{
    const uint8_t *mask = t->u->key_mask;
    const vec nothing = vec_set(-INFINITY);
    for (int v = 0; v < t->vectors; v++) {
        const vec lo = vec_load(t->lo + v * VEC_N), hi = vec_load(t->hi + v * VEC_N);
        vec at = vec_set((real)j0);
        real *s = scores_at(t, j0) + v * VEC_N;
        for (int64_t j = j0; j < j1; j++, s += BQ, at = vec_add(at, vec_set(1))) {
            const bool hidden = mask && k0 + j < t->u->nk && !mask[k0 + j];
            const vmask seen = sees_within(t, lo, hi, at, j, v);
            vec_store(s, hidden ? nothing : vec_select(seen, vec_load(s), nothing));
        }
    }
}

#include "cpu/shape.h"

/* ---- Products with what is in panels --------------------------------------------------------- */

/* Word j of a panel's column, 0 for the lanes of vector v that do not see it. */
INLINE vec word_where_seen(const struct block *t, vec b, int64_t j, int v)
{
    vmask seen[PAIR];
    for (int i = 0; i < PAIR; i++)
        seen[i] = sees(t, j * PAIR + i, v);
    return word_seen(b, seen);
}

/* acc[r][v] += word j of the first columns of a panel, `step` words apart, by that of p, v from
 * `first` to below nv. */
INLINE void mix_key(const struct block *t, vec acc[MR][NV], const real *panel, int64_t step,
                    const real *p, int64_t j, bool careful, int columns, int first, int nv)
{
    vec w[NV];
    UNROLL for (int v = first; v < nv; v++) {
        w[v] = vec_load(p + j * BQ + v * VEC_N);
        vec_keep(&w[v]);
    }
    UNROLL for (int r = 0; r < columns; r++) {
        vec b = vec_set(panel[j * step + r]);
        vec_keep(&b);
        UNROLL for (int v = first; v < nv; v++) {
            const vec seen = careful ? word_where_seen(t, b, j, v) : b;
            acc[r][v] = vec_mac(seen, w[v], acc[r][v]);
        }
    }
}

enum { AT_ONCE = MR / PAIR < 4 ? MR / PAIR : 4 }; /* words of a column in a round of the loop */

/* The same of words j .. end - 1, AT_ONCE at a time; returns where that ends. */
INLINE int64_t mix_words(const struct block *t, vec acc[MR][NV], const real *panel, int64_t step,
                         int64_t ahead, const real *p, int64_t j, int64_t end, bool careful,
                         int columns, int first, int nv)
{
    for (; j < end; j += AT_ONCE) {
        if (step == MR)
            fetch_ahead(panel, ahead + j * MR, AT_ONCE * MR);
        UNROLL_BY(1) for (int i = 0; i < AT_ONCE; i++)
            mix_key(t, acc, panel, step, p, j + i, careful, columns, first, nv);
    }
    return j;
}

/* The same up to key j1, but of each vector only up to its end. */
INLINE void mix_ends(const struct block *t, vec acc[MR][NV], const real *panel, int64_t step,
                     int64_t ahead, const real *p, int64_t j, int64_t j1, const int64_t *ends,
                     bool careful, int columns, int nv)
{
    UNROLL for (int first = 0; first < NV; first++)
        if (first < nv)
            j = mix_words(t, acc, panel, step, ahead, p, j, min64(j1, ends[first]) / PAIR, careful,
                          columns, first, nv);
}

/* o[columns][BQ] becomes panel^T p over keys j0 .. j1 - 1 of the tile, or with `add` that and what
 * was there, in one addition: roundings of long sums are not to grow with them. `from`: if not
 * null, the same over keys before these, which the sums go on from. MR columns or fewer. careful:
 * what a lane does not see counts as 0. ends: if not null, a vector has weights up to its own, and
 * the first one has the first. The words of a column lie `step` apart, in panels MR, and then as
 * many are asked for `ahead`. */
INLINE void mix_panel(const struct block *t, real *o, bool add, const real *from,
                      const real *panel, int64_t step, int64_t ahead, const real *p, int64_t j0,
                      int64_t j1, const int64_t *ends, bool careful, int columns, int nv)
{
    vec acc[MR][NV];
    UNROLL for (int r = 0; r < columns; r++)
        UNROLL for (int v = 0; v < nv; v++)
            acc[r][v] = from ? vec_load(from + r * BQ + v * VEC_N) : vec_zero();
    if (!ends)
        mix_words(t, acc, panel, step, ahead, p, j0 / PAIR, j1 / PAIR, careful, columns, 0, nv);
    else
        mix_ends(t, acc, panel, step, ahead, p, j0 / PAIR, j1, ends, careful, columns, nv);
    UNROLL for (int r = 0; r < columns; r++)
        UNROLL for (int v = 0; v < nv; v++) {
            real *const to = o + r * BQ + v * VEC_N;
            vec_store(to, add ? vec_add(vec_load(to), acc[r][v]) : acc[r][v]);
        }
}

/* The same for n columns, a multiple of MR / 2; MR of them lie `panel` from the next ones. */
INLINE void mix(const struct block *t, real *o, int64_t n, bool add, const real *columns,
                int64_t step, int64_t panel, const real *p, int64_t j0, int64_t j1,
                const int64_t *ends, bool careful, int nv)
{
    const int64_t ahead = t->far ? panel : 0;
    int64_t c = 0;
    for (; c + MR <= n; c += MR, columns += panel)
        mix_panel(t, o + c * BQ, add, NULL, columns, step, ahead, p, j0, j1, ends, careful, MR,
                  nv);
    if (c < n)
        mix_panel(t, o + c * BQ, add, NULL, columns, step, ahead, p, j0, j1, ends, careful, MR / 2,
                  nv);
}

/* o[n][BQ] times `by` of the first VEC_N lanes to the rows of `lanes` of them, at to[]; where `by`
 * is below 0, 0. bad[]: 0, or NaN for a row that is not finite. 0 is added so that a sum of zeros
 * has the same sign whatever stood at places of weight 0. */
static void store_lanes(elem *const *to, int64_t lanes, const real *o, int64_t n,
                        const real *factor, real *bad)
{
    const vec by = vec_load(factor);
    const vmask none = vec_lt(by, vec_zero());
    vec sum = vec_zero(), r[VEC_N];
    int64_t c = 0;
    for (; c + VEC_N <= n; c += VEC_N) {
        UNROLL for (int i = 0; i < VEC_N; i++) {
            r[i] = vec_fma(vec_load(o + (c + i) * BQ), by, vec_zero());
            r[i] = vec_select(none, vec_zero(), r[i]);
            sum = vec_fma(r[i], vec_zero(), sum);
        }
        vec_transpose(r);
        if (lanes == VEC_N)
            UNROLL for (int i = 0; i < VEC_N; i++)
                elem_store(to[i] + c, r[i]);
        else
            for (int i = 0; i < lanes; i++)
                elem_store(to[i] + c, r[i]);
    }
    for (; c < n; c++) {
        const vec x = vec_select(none, vec_zero(),
                                 vec_fma(vec_load(o + c * BQ), by, vec_zero()));
        real part[VEC_N];
        vec_store(part, x);
        sum = vec_fma(x, vec_zero(), sum);
        for (int i = 0; i < lanes; i++)
            to[i][c] = elem_put(part[i]);
    }
    vec_store(bad, sum);
}

#endif
