/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Backward kernel, built once per instruction set and element type. It computes in the computing
 * type throughout; 16-bit elements are converted as they are packed.
 *
 * One item of work is a tile of keys against all rows of its unit that see some of it, strip by
 * strip. For each block of rows of a strip, rows in the lanes as in the forward pass,
 *
 *     s = k q^T, then shaped and hidden;  p = exp(s - LSE);  g = v dout^T;  ds = p (g - D)
 *
 * and then, columns of a head in the lanes, dv += p dout and dk += ds q over the rows of the strip,
 * and dq += ds k with the rows in the lanes again. What this takes of the rows lies ready in both
 * forms, made once per unit. dk and dv stay with the tile until it is done. dq is added to by one
 * tile after another in their order, whichever threads they are on, so every sum has one order.
 *
 * What a row does not see has the score -inf, and p and ds are set to 0 there. In the three
 * products that follow, 0 would still meet NaN where something is not finite: rows and tiles know
 * whether they hold such numbers, and their products then leave out what is not seen.
 */
#include "cpu/ready.h"

_Static_assert(PAIR == 1, "words are single numbers");

/* ---- A tile of keys -------------------------------------------------------------------------- */

/* What a thread works with. */
struct work {
    const struct attn_unit *u;
    int64_t k0, keys;  /* the tile's first key, and how many */
    bool hides, finite; /* the key mask hides some; all keys that it does not hide are finite */
    real *k, *v;       /* [room][d], [room][dv] */
    real *panels;      /* of keys, as pack.h has those of values */
    real *dk, *dv;     /* panels, [d / WIDE][room][WIDE], the last narrower; without the scale */
    real *s, *capped;  /* [room][BQ] */
    real *p, *ds;      /* [STRIP][room][BQ] */
    struct block t[STRIP];
    struct attn_range part[STRIP]; /* keys of the tile that a block has to do with */
};

static int64_t work_bytes(const struct attn_problem *p, int64_t room)
{
    const int64_t d = p->head_dim, dv = p->head_dim_v;
    const int64_t reals = key_words(room, d) + key_words(room, dv) +
                          room * (padded(d) + padded(dv)) +
                          round_up(d, MR) / MR * panel_words(room) + (2 + 2 * STRIP) * room * BQ;
    return round_up((int64_t)sizeof(struct work), 64) +
           round_up(reals * (int64_t)sizeof(real), 64);
}

static struct work *work_begin(const struct attn_unit *u, void *scratch)
{
    const int64_t d = u->p->head_dim, dv = u->p->head_dim_v, room = u->room;
    struct work *w = scratch;
    real *at = (real *)(void *)((char *)scratch + round_up((int64_t)sizeof *w, 64));
    w->u = u;
    w->k = at, at += key_words(room, d);
    w->v = at, at += key_words(room, dv);
    w->panels = at, at += round_up(d, MR) / MR * panel_words(room);
    w->dk = at, at += room * padded(d);
    w->dv = at, at += room * padded(dv);
    w->capped = at, at += room * BQ;
    w->s = at, at += room * BQ;
    w->p = at, at += STRIP * room * BQ;
    w->ds = at;
    return w;
}

/* Where key j of the tile, or more, stands in a tensor of elements on the key side. */
static elem *key_row(const struct work *w, const struct attn_view *v, int64_t j)
{
    const struct attn_unit *u = w->u;
    return (elem *)attn_view_at(v, &u->p->key, u->b, w->k0 + j, u->head_kv, sizeof(elem));
}

/* Packs tile n; keys that the mask hides are 0. */
static void load_tile(struct work *w, int64_t n)
{
    const struct attn_unit *u = w->u;
    const struct attn_problem *p = u->p;
    const int64_t d = p->head_dim, dv = p->head_dim_v, ahead = rows_ahead(d + dv);
    vec bad = vec_zero();
    w->k0 = n * BK;
    w->keys = min64(BK, u->nk - w->k0);
    w->hides = false;
    for (int64_t j = 0; j < w->keys; j += MR) {
        const elem *k[MR], *v[MR];
        for (int i = 0; i < MR; i++) {
            const bool given = j + i < w->keys && (!u->key_mask || u->key_mask[w->k0 + j + i]);
            k[i] = given ? key_row(w, &p->k, j + i) : NULL;
            v[i] = given ? key_row(w, &p->v, j + i) : NULL;
            if (j + i + ahead < w->keys) {
                fetch_row(key_row(w, &p->k, j + i + ahead), d);
                fetch_row(key_row(w, &p->v, j + i + ahead), dv);
            }
            w->hides = w->hides || !given;
        }
        pack_keys(w->k + j * d, k, d);
        pack_keys(w->v + j * dv, v, dv);
        bad = pack_values(w->panels + j * MR, panel_words(u->room), k, d, bad);
    }
    w->finite = vmask_all(vec_le(bad, vec_zero()));
    memset(w->dk, 0, (size_t)(u->room * padded(p->head_dim)) * sizeof *w->dk);
    memset(w->dv, 0, (size_t)(u->room * padded(p->head_dim_v)) * sizeof *w->dv);
}

/* Sets t->seen to the lanes that see each key, by the scores; those that are -inf only with their
 * scale become so. */
static NOINLINE void note_seen(struct block *t, int64_t j0, int64_t j1)
{
    const real scale = (real)score_scale(t->u->p);
    for (int64_t j = j0; j < j1; j++) {
        real *s = t->s + j * BQ;
        t->seen[j] = 0;
        for (int lane = 0; lane < BQ; lane++) {
            if (s[lane] * scale <= (real)-INFINITY)
                s[lane] = (real)-INFINITY;
            else
                t->seen[j] |= (lane_bits)1 << lane;
        }
    }
    for (int lane = 0; lane < BQ; lane++) {
        t->lo[lane] = 0;
        t->hi[lane] = BK;
    }
    t->partly = true;
}

/* The scores of MR keys from j on, as they are in s or, if that is null, in t->s: their
 * probabilities, e^(score - LSE), to p. */
INLINE void weigh_keys(const struct block *t, const struct ready *ready, vec s[MR][NV], real *p,
                       int64_t j)
{
    UNROLL for (int v = 0; v < NV; v++) {
        const vec ref = vec_load(ready->ref + v * VEC_N), rest = vec_load(ready->rest + v * VEC_N);
        UNROLL for (int i = 0; i < MR; i++) {
            const int64_t at = (j + i) * BQ + v * VEC_N;
            const vec score = s ? s[i][v] : vec_load(t->s + at);
            const vmask gone = vec_le(score, vec_set(-INFINITY));
            const vec e = probability(vec_sub(score, ref), t->scale, rest);
            if (s)
                vec_store(t->s + at, score);
            vec_store(p + at, vec_unless(gone, e));
        }
    }
}

/* Scores and probabilities of keys j0 .. j1 - 1, which every lane sees and of which nothing is
 * asked but the product: exponentials go on beside the products that follow. */
INLINE void weigh_products(struct block *t, const struct ready *ready, const real *keys, real *p,
                           int64_t j0, int64_t j1, int64_t n, const real *next)
{
    for (int64_t j = j0; j < j1; j += MR, next += MR * n) {
        vec s[MR][NV];
        dot_keys(t->qt, s, keys + j * n, n, n, next, NV);
        weigh_keys(t, ready, s, p, j);
    }
}

/* From the scores in t->s, probabilities p and products g of values and dout: the gradients of the
 * scores of MR keys from j on, without what is smaller than `least`, and what the probabilities are
 * with dropout. Through the softcap if t->capped is set, and with the sign of the scale if
 * `negative`; plain: neither, and no dropout. */
INLINE void differentiate(const struct block *t, const struct ready *ready, vec g[MR][NV], real *p,
                          real *ds, int64_t j, real least, bool negative, bool plain)
{
    const struct attn_dropout *drop = &t->u->p->dropout;
    const struct scaling scaling = scaling_of(t->u->p);
    const vec sign = vec_set(negative ? -1 : 1), kept_scale = vec_set((real)drop->scale);
    const vec lowest = vec_set(-INFINITY), zero = vec_zero();
    UNROLL for (int v = 0; v < NV; v++) {
        const vec delta = vec_load(ready->delta + v * VEC_N);
        UNROLL for (int i = 0; i < MR; i++) {
            const int64_t at = (j + i) * BQ + v * VEC_N;
            const vmask gone = vec_le(vec_load(t->s + at), lowest);
            const vec e = vec_load(p + at);
            vec product = g[i][v];
            if (!plain && drop->on) {
                const vmask kept = vmask_of(t->kept[j + i] >> v * VEC_N);
                vec_store(p + at, vec_mul(e, vec_select(kept, kept_scale, zero))); /* NaN stays */
                product = vec_select(kept, vec_mul(product, kept_scale), zero);
            }
            vec d = vec_mul(e, vec_sub(product, delta));
            if (!plain && t->capped)
                d = vec_mul(d, cap_slope(scaling, vec_load(t->capped + at)));
            if (!plain)
                d = vec_mul(d, sign);
            vec_store(ds + at, unless_small(vec_unless(gone, d), vec_set(least)));
        }
    }
}

/* Of keys j0 .. j1 - 1, from the values. */
INLINE void differentiate_keys(const struct block *t, const struct ready *ready, const real *dout_t,
                               const real *values, real *p, real *ds, struct attn_range j,
                               int64_t n, const real *next, real least, bool negative, bool plain)
{
    values += j.lo * n;
    for (; j.lo < j.hi; j.lo += MR, values += MR * n, next += MR * n) {
        vec g[MR][NV];
        dot_keys(dout_t, g, values, n, n, next, NV);
        differentiate(t, ready, g, p, ds, j.lo, least, negative, plain);
    }
}

/* What is asked for less often, in functions, as compilers take long over each copy. */
static NOINLINE void differentiate_any(const struct block *t, const struct ready *ready,
                                       const real *dout_t, const real *values, real *p, real *ds,
                                       struct attn_range j, const real *next, real least,
                                       bool negative)
{
    differentiate_keys(t, ready, dout_t, values, p, ds, j, t->u->p->head_dim_v, next, least,
                       negative, false);
}

static NOINLINE void store_any(struct block *t, const real *keys, struct attn_range j,
                               const real *next)
{
    store_products(t->s, t->qt, keys, j.lo, j.hi, t->d, t->d, next, NV);
}

/* Block m of the strip, where it has to do with the tile; w->part says with which keys. Its weights
 * and the gradients of its scores: those of what the bias is added to, or, if through, of products
 * of query and key but for the scale's size. Asks for what the products to come take, next to
 * dout_t, and from `next` on. d, dv: head sizes, constants where they are common. */
INLINE void do_block(struct work *w, const struct ready *ready, const real *dout_t, int64_t m,
                     bool through, const real *next, int64_t d, int64_t dv)
{
    const struct attn_unit *u = w->u;
    const struct attn_problem *p = u->p;
    struct block *t = &w->t[m];
    struct attn_range keys = {ready->see.lo > w->k0 ? (ready->see.lo - w->k0) / MR * MR : 0,
                              round_up(min64(w->keys, ready->see.hi - w->k0), MR)};
    w->part[m] = (struct attn_range){0, 0};
    if (ready->see.lo >= ready->see.hi || keys.lo >= keys.hi)
        return;
    *t = ready->block;
    t->s = w->s;
    t->capped = through && p->softcap > 0 ? w->capped : NULL;
    const bool negative = through && p->scale < 0;
    if (t->masked && !see_masks(t, w->k0, &keys))
        return;
    const int64_t j0 = keys.lo, j1 = keys.hi;
    w->part[m] = keys;
    real *const at_p = w->p + m * u->room * BQ, *const at_ds = w->ds + m * u->room * BQ;

    const bool whole =
        ready->all && !w->hides && !t->partly &&
        attn_band_whole(u->seq.band, t->query[0], t->query[BQ - 1] + 1, w->k0 + j0, w->k0 + j1);
    const bool finite = w->finite && ready->q_finite && ready->dout_finite;
    if (whole && finite && !t->shaped) {
        weigh_products(t, ready, w->k, at_p, j0, j1, d, dout_t);
    } else {
        store_any(t, w->k, w->part[m], dout_t);
        if (t->shaped)
            shape_scores(t, w->k0, j0, j1);
        if (!whole) {
            see_tile(t, w->k0);
            hide(t, w->k0, j0, j1);
        }
        if (!finite)
            note_seen(t, j0, j1);
        for (int64_t j = j0; j < j1; j += MR)
            weigh_keys(t, ready, NULL, at_p, j);
    }
    if (p->dropout.on)
        draw_kept(t, w->k0, j0, j1);
    const real least = through ? LEAST_NORMAL : 0; /* else no products follow, which take longer */
    if (p->dropout.on || t->capped || negative)
        differentiate_any(t, ready, dout_t, w->v, at_p, at_ds, w->part[m], next, least, negative);
    else
        differentiate_keys(t, ready, dout_t, w->v, at_p, at_ds, w->part[m], dv, next, least, false,
                           true);
}

static void do_any_block(struct work *w, const struct ready *ready, const real *dout_t, int64_t m,
                         bool through, const real *next)
{
    const int64_t d = w->u->p->head_dim, dv = w->u->p->head_dim_v;
    if (d == 128 && dv == 128)
        do_block(w, ready, dout_t, m, through, next, 128, 128);
    else if (d == 64 && dv == 64)
        do_block(w, ready, dout_t, m, through, next, 64, 64);
    else
        do_block(w, ready, dout_t, m, through, next, d, dv);
}

/* sum[r] += weights of rows q0 .. q1 - 1 times their columns x[][width], MR keys from weight[r][0]
 * on. careful: a row that does not see the key counts as 0. */
INLINE void add_rows(vec sum[MR][NV], const real *weight, const real *x, int width,
                     const lane_bits *seen, bool careful)
{
    UNROLL_BY(2) for (int64_t q = 0; q < BQ; q++) {
        vec row[NV];
        UNROLL for (int v = 0; v < width; v++) {
            row[v] = vec_load(x + (q * width + v) * VEC_N);
            vec_keep(&row[v]);
        }
        UNROLL for (int r = 0; r < MR; r++) {
            vec b = vec_set(weight[r * BQ + q]);
            vec_keep(&b);
            const bool gone = careful && !(seen[r] >> q & 1);
            UNROLL for (int v = 0; v < width; v++)
                sum[r][v] = vec_fma(b, gone ? vec_zero() : row[v], sum[r][v]);
        }
    }
}

/* One panel of `width` vectors: to[room][width] += weights^T x over the strip's rows, which are
 * summed apart, so that the roundings of long sums do not grow with them. */
INLINE void add_panel(const struct work *w, real *to, const real *weights, const real *const *x,
                      const bool *careful, int64_t blocks, int width)
{
    for (int64_t j = 0; j < round_up(w->keys, MR); j += MR) {
        vec sum[MR][NV];
        UNROLL for (int r = 0; r < MR; r++)
            UNROLL for (int v = 0; v < width; v++)
                sum[r][v] = vec_zero();
        for (int64_t m = 0; m < blocks; m++) {
            const real *weight = weights + (m * w->u->room + j) * BQ;
            if (j < w->part[m].lo || j >= w->part[m].hi)
                continue;
            if (careful[m])
                add_rows(sum, weight, x[m], width, w->t[m].seen + j, true);
            else
                add_rows(sum, weight, x[m], width, NULL, false);
        }
        UNROLL for (int r = 0; r < MR; r++)
            UNROLL for (int v = 0; v < width; v++) {
                real *const all = to + ((j + r) * width + v) * VEC_N;
                vec_store(all, vec_add(vec_load(all), sum[r][v]));
            }
    }
}

/* to += weights^T x, x[m] being the panels of block m, n columns. */
static NOINLINE void add_strip(const struct work *w, real *to, const real *weights,
                               const real *const *from, const bool *careful, int64_t blocks,
                               int64_t n)
{
    const real *x[STRIP];
    for (int64_t c = 0; c < padded(n); c += WIDE) {
        const int64_t width = min64(WIDE, padded(n) - c) / VEC_N;
        for (int64_t m = 0; m < blocks; m++)
            x[m] = from[m] + c * BQ;
        real *const panel = to + c * w->u->room;
        switch (width) { /* constants, so that sums stay in registers */
        case 1: add_panel(w, panel, weights, x, careful, blocks, 1); break;
        case 2: add_panel(w, panel, weights, x, careful, blocks, min64(2, NV)); break;
        case 3: add_panel(w, panel, weights, x, careful, blocks, min64(3, NV)); break;
        default: add_panel(w, panel, weights, x, careful, blocks, NV);
        }
    }
}

/* ---- Results --------------------------------------------------------------------------------- */

/* What n sums are still to be multiplied by; a factor that may be beyond the type goes in here. */
static real pending_scale(const struct attn_problem *p, real *sums, int64_t n)
{
    const double scale = product_scale(p);
    if (!attn_is_extreme(scale))
        return (real)scale;
    for (int64_t i = 0; i < n; i++)
        sums[i] = (real)(scale * (double)sums[i]);
    return 1;
}

/* n columns of line j of panels, times `by`, to a row. 0 is added as in store_lanes(). */
static void store_line(elem *to, const real *panels, int64_t room, int64_t j, int64_t n, real by)
{
    for (int64_t c = 0; c < n; c += VEC_N) {
        const int64_t panel = c / WIDE * WIDE;
        const int64_t width = min64(WIDE, padded(n) - panel);
        const vec x = vec_load(panels + panel * room + j * width + (c - panel));
        const vec scaled = vec_fma(x, vec_set(by), vec_zero());
        real part[VEC_N];
        if (c + VEC_N <= n) {
            elem_store(to + c, scaled);
            continue;
        }
        vec_store(part, scaled);
        for (int64_t i = 0; c + i < n; i++)
            to[c + i] = elem_put(part[i]);
    }
}

static void store_tile(struct work *w)
{
    const struct attn_unit *u = w->u;
    const struct attn_problem *p = u->p;
    const int64_t ahead = rows_ahead(p->head_dim + p->head_dim_v);
    const real by = pending_scale(p, w->dk, u->room * padded(p->head_dim));
    for (int64_t j = 0; j < w->keys; j++) {
        if (j + ahead < w->keys) {
            fetch_to_write(key_row(w, &p->dk, j + ahead), p->head_dim);
            fetch_to_write(key_row(w, &p->dv, j + ahead), p->head_dim_v);
        }
        store_line(key_row(w, &p->dk, j), w->dk, u->room, j, p->head_dim, by);
        store_line(key_row(w, &p->dv, j), w->dv, u->room, j, p->head_dim_v, 1);
    }
}

static elem *dq_at(const struct block *t, int64_t lane)
{
    const struct attn_problem *p = t->u->p;
    return (elem *)attn_view_at(&p->dq, &p->query, t->u->b, t->query[lane], t->head[lane],
                                sizeof(elem));
}

static void store_dq(const struct ready *r, real *sums)
{
    const struct block *t = &r->block;
    const real by = pending_scale(t->u->p, sums, t->d * BQ);
    elem *to[BQ];
    real factor[BQ], bad[BQ];
    for (int64_t lane = 0; lane < BQ; lane++) {
        to[lane] = dq_at(t, lane);
        factor[lane] = by;
    }
    for (int64_t lane = 0; lane < t->rows; lane += VEC_N)
        store_lanes(to + lane, min64(VEC_N, t->rows - lane), sums + lane, t->d, factor + lane,
                    bad + lane);
}

/* dq of the strip += k^T ds; the first tile begins it, the last one writes it. */
static void add_queries(struct work *w, int64_t strip, bool first, bool last)
{
    const struct attn_problem *p = w->u->p;
    const int64_t n = round_up(p->head_dim, MR / 2);
    for (int64_t m = 0; m < blocks_of(w->u, strip); m++) {
        struct ready *r = ready_at(w->u, strip, m);
        real *dq = arrays_of(p, r).dq;
        const real *ds = w->ds + m * w->u->room * BQ;
        const int64_t panel = panel_words(w->u->room);
        const struct attn_range j = w->part[m];
        if (first)
            memset(dq, 0, (size_t)(n * BQ) * sizeof *dq);
        if (j.lo < j.hi && w->finite)
            mix(&w->t[m], dq, n, true, w->panels, MR, panel, ds, j.lo, j.hi, NULL, false, NV);
        else if (j.lo < j.hi)
            mix(&w->t[m], dq, n, true, w->panels, MR, panel, ds, j.lo, j.hi, NULL, true, NV);
        if (last)
            store_dq(r, dq);
    }
}

/* ---- A tile against all rows ----------------------------------------------------------------- */

static void do_strip(struct work *w, int64_t strip)
{
    const struct attn_problem *p = w->u->p;
    const int64_t blocks = blocks_of(w->u, strip);
    const real *q[STRIP], *dout[STRIP];
    bool bad_q[STRIP], bad_dout[STRIP];
    for (int64_t m = 0; m < blocks; m++) {
        struct ready *r = ready_at(w->u, strip, m);
        const struct arrays a = arrays_of(p, r);
        q[m] = a.q;
        dout[m] = a.dout;
        bad_q[m] = !r->q_finite;
        bad_dout[m] = !r->dout_finite;
        const bool more = (strip * STRIP + m + 1) * BQ < rows_of(w->u);
        do_any_block(w, r, a.dout_t, m, true,
                     more ? (const real *)(const void *)ready_at(w->u, strip, m + 1) : a.dout_t);
    }
    add_strip(w, w->dv, w->p, dout, bad_dout, blocks, p->head_dim_v);
    add_strip(w, w->dk, w->ds, q, bad_q, blocks, p->head_dim);
}

static void tile(const struct attn_unit *u, int64_t n, void *scratch,
                 const struct attn_strips *strips)
{
    const int64_t k0 = n * BK;
    struct work *w = work_begin(u, scratch);
    if (k0 >= u->nk)
        return;
    load_tile(w, n);
    for (int64_t strip = 0; strip * STRIP * BQ < rows_of(u); strip++) {
        const struct attn_range see = strip_sees(u, strip);
        if (see.lo >= see.hi || see.hi <= k0 || see.lo >= k0 + w->keys)
            continue;
        const int64_t first = see.lo / BK, last = (see.hi - 1) / BK;
        strips->need(strips->arg, strip);
        do_strip(w, strip);
        strips->wait(strips->arg, strip, n - first);
        add_queries(w, strip, n == first, n == last);
        strips->pass(strips->arg, strip);
    }
    store_tile(w);
}

/* Rows of dq that no tile comes to. */
static void finish(const struct attn_unit *u)
{
    const struct attn_problem *p = u->p;
    for (int64_t strip = 0; strip * STRIP * BQ < rows_of(u); strip++) {
        const struct attn_range see = strip_sees(u, strip);
        const int64_t end = min64((strip + 1) * STRIP * BQ, rows_of(u));
        for (int64_t r = strip * STRIP * BQ; see.lo >= see.hi && r < end; r++)
            memset(attn_view_at(&p->dq, &p->query, u->b, r / p->group,
                                u->head_kv * p->group + r % p->group, sizeof(elem)),
                   0, (size_t)p->head_dim * sizeof(elem));
    }
}

/* ---- Sinks ----------------------------------------------------------------------------------- */

/* Whether a row sees a key with a score above -inf; in the plain way. */
static NOINLINE bool sees_any(const struct attn_unit *u, int64_t query, int64_t head)
{
    const struct row row = {u, u->head_kv, query, head, attn_band_row(u->seq.band, query)};
    for (int64_t j = row.see.lo; j < row.see.hi; j++)
        if (!(careful_score(&row, j) <= -(double)INFINITY))
            return true;
    return false;
}

/* What a row adds to the gradient of its head's sink, which takes the part e^(sink - LSE) of it. */
static double sink_part(const struct attn_unit *u, int64_t query, int64_t head)
{
    const struct attn_problem *p = u->p;
    const double sink = attn_sink_of(p, head), lse = (double)number_at(u, &p->lse, query, head);
    const double dlse = p->dlse.data ? (double)number_at(u, &p->dlse, query, head) : 0;
    const elem *dout = row_at(u, &p->dout, query, head), *out = row_at(u, &p->out, query, head);
    double delta = -dlse;
    if (isinf(lse))
        return lse == sink && lse > 0 ? dlse : 0;
    if (lse == sink && !sees_any(u, query, head))
        return dlse; /* whatever stands in its dout and out */
    for (int64_t c = 0; c < p->head_dim_v; c++)
        delta += (double)elem_get(dout[c]) * (double)elem_get(out[c]);
    return -exp(sink - lse) * delta;
}

/* The gradient of a head's sink: over all rows of all sequences, in their order. */
static void sink(const struct attn_problem *p, int64_t head)
{
    double sum = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        struct attn_unit u;
        attn_unit_describe(&u, p, b, head / p->group);
        for (int64_t i = 0; i < u.nq; i++)
            sum += sink_part(&u, i, head);
    }
    ((real *)(void *)p->dsink.data)[head * p->dsink.head] = (real)sum;
}

#include "cpu/bias_grad.h"

const struct attn_cpu_backward KERNEL(attn_bwd) = {
    .block_rows = BQ,
    .strip_rows = STRIP * BQ,
    .strip_bytes = strip_bytes,
    .scratch_bytes = work_bytes,
    .prepare = prepare,
    .tile = tile,
    .finish = finish,
    .sink = sink,
    .biases = biases,
    .bias_bytes = bias_bytes,
    .bias = bias,
};
