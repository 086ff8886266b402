/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Rows of a unit made ready for the backward pass, in blocks and strips of blocks: what each tile
 * of keys then takes of them.
 */
#ifndef ATTN_CPU_READY_H
#define ATTN_CPU_READY_H

#include "cpu/block.h"

enum {
    STRIP = 64 / BQ > 1 ? 64 / BQ : 1, /* blocks in a strip */
    WIDE = NV * VEC_N                  /* columns in a panel of rows */
};

/* A block of rows made ready. The arrays lie behind it. */
struct ready {
    struct block block;
    struct attn_range see;   /* keys that some lane sees */
    bool all;                /* each lane is a row, and sees what its band shows */
    bool q_finite, dout_finite; /* the latter: with delta */
    real ref[BQ], rest[BQ];  /* their sum: the LSE, by the scale of the scores; rest rounds ref */
    real delta[BQ];          /* dout . out - dlse */
};

/* Its arrays. */
struct arrays {
    real *qt, *dout_t; /* [d][BQ], [dv][BQ] */
    real *q, *dout;    /* panels, [d / WIDE][BQ][WIDE]; the last one is narrower */
    real *dq;          /* [d up to MR][BQ], without the scale */
};

static int64_t padded(int64_t n) { return round_up(n, VEC_N); }

static int64_t ready_bytes(const struct attn_problem *p)
{
    const int64_t d = p->head_dim, dv = p->head_dim_v;
    const int64_t reals = d + dv + padded(d) + padded(dv) + round_up(d, MR);
    return round_up((int64_t)sizeof(struct ready), 64) +
           round_up(reals * BQ * (int64_t)sizeof(real), 64);
}

static int64_t strip_bytes(const struct attn_problem *p) { return STRIP * ready_bytes(p); }

static struct ready *ready_at(const struct attn_unit *u, int64_t strip, int64_t m)
{
    return (struct ready *)(void *)(u->packed + strip * strip_bytes(u->p) + m * ready_bytes(u->p));
}

static struct arrays arrays_of(const struct attn_problem *p, struct ready *r)
{
    const int64_t d = p->head_dim, dv = p->head_dim_v;
    struct arrays a;
    a.qt = (real *)(void *)((char *)r + round_up((int64_t)sizeof *r, 64));
    a.dout_t = a.qt + d * BQ;
    a.q = a.dout_t + dv * BQ;
    a.dout = a.q + padded(d) * BQ;
    a.dq = a.dout + padded(dv) * BQ;
    return a;
}

static int64_t rows_of(const struct attn_unit *u) { return u->nq * u->p->group; }

/* Blocks of a strip that have rows. */
static int64_t blocks_of(const struct attn_unit *u, int64_t strip)
{
    const int64_t left = rows_of(u) - strip * STRIP * BQ;
    return left >= STRIP * BQ ? STRIP : (left + BQ - 1) / BQ;
}

/* ---- Making rows ready ----------------------------------------------------------------------- */

/* A row of n elements, null for zeros, to line `lane` of panels. Returns bad, NaN if an element is
 * not finite. */
static vec spread_row(real *to, int64_t lane, const elem *row, int64_t n, vec bad)
{
    for (int64_t c = 0; c < padded(n); c += VEC_N) {
        const int64_t panel = c / WIDE * WIDE;
        const int64_t width = min64(WIDE, padded(n) - panel);
        real part[VEC_N] = {0};
        vec x = vec_zero();
        if (row && c + VEC_N <= n) {
            x = elem_load(row + c);
        } else if (row) {
            for (int64_t i = 0; c + i < n; i++)
                part[i] = elem_get(row[c + i]);
            x = vec_load(part);
        }
        bad = vec_fma(x, vec_zero(), bad);
        vec_store(to + panel * BQ + lane * width + (c - panel), x);
    }
    return bad;
}

/* Where token `query` of head `head` stands in a tensor of elements on the query side. */
static const elem *row_at(const struct attn_unit *u, const struct attn_view *v, int64_t query,
                          int64_t head)
{
    return (const elem *)attn_view_at(v, &u->p->query, u->b, query, head, sizeof(elem));
}

static real number_at(const struct attn_unit *u, const struct attn_view *v, int64_t query,
                      int64_t head)
{
    return *(const real *)(const void *)attn_view_at(v, &u->p->query, u->b, query, head,
                                                     sizeof(real));
}

/* The scale that the scores of a tile do not have yet, as the probabilities have it. Shaped scores
 * have theirs: what rounds log2(e) is then no part of them, so that a score that is the LSE has the
 * weight 1, however large both are. */
static double lse_scale(const struct attn_problem *p)
{
    return shapes_scores(p) ? 1 : rounded_scale(p);
}

/* The LSE, by that scale, as two numbers. A row whose LSE is infinite sees nothing. */
static void set_reference(struct ready *r, int64_t lane, double lse, double scale)
{
    const double whole = lse / scale;
    r->ref[lane] = r->rest[lane] = 0;
    if (isinf(lse)) {
        r->block.see[lane] = (struct attn_range){0, 0};
        r->all = false;
        return;
    }
    r->ref[lane] = (real)whole;
    if (isfinite(r->ref[lane]))
        r->rest[lane] = (real)(-fma((double)r->ref[lane], scale, -lse) / scale);
}

/* D of each lane, see semantics.md. dout . out is summed in the order in which the products of dout
 * with values are: where a row is one value, the two cancel. out_t: room for out, [dv][BQ]. */
static void set_deltas(struct ready *r, const real *dout_t, real *out_t)
{
    const struct block *t = &r->block;
    const struct attn_problem *p = t->u->p;
    const elem *out[BQ];
    for (int64_t lane = 0; lane < BQ; lane++)
        out[lane] = row_at(t->u, &p->out, t->query[lane], t->head[lane]);
    for (int64_t lane = 0; lane < BQ; lane += VEC_N) {
        vec sum = vec_zero();
        load_lanes(out_t + lane, out + lane, p->head_dim_v);
        for (int64_t c = 0; c < p->head_dim_v; c++)
            sum = vec_fma(vec_load(out_t + c * BQ + lane), vec_load(dout_t + c * BQ + lane), sum);
        vec_store(r->delta + lane, sum);
    }
    for (int64_t lane = 0; p->dlse.data && lane < BQ; lane++)
        r->delta[lane] -= number_at(t->u, &p->dlse, t->query[lane], t->head[lane]);
}

/* Rows from row0 on, up to `end` or a block of them. */
static void prepare_block(const struct attn_unit *u, int64_t row0, int64_t end, struct ready *r)
{
    const struct attn_problem *p = u->p;
    struct block *t = &r->block;
    const struct arrays a = arrays_of(p, r);
    const elem *dout[BQ];
    vec bad_q = vec_zero(), bad_dout = vec_zero();

    block_init(t, u, row0, end);
    r->see = attn_band_any(u->seq.band, t->query[0], t->query[BQ - 1] + 1);
    r->all = t->rows == BQ;
    t->qt = a.qt;
    load_queries(t);
    for (int64_t lane = 0; lane < BQ; lane++)
        dout[lane] = row_at(u, &p->dout, t->query[lane], t->head[lane]);
    for (int64_t lane = 0; lane < BQ; lane += VEC_N)
        load_lanes(a.dout_t + lane, dout + lane, p->head_dim_v);
    set_deltas(r, a.dout_t, a.dout); /* where dout comes next */
    for (int64_t lane = 0; lane < BQ; lane += VEC_N)
        bad_dout = vec_fma(vec_load(r->delta + lane), vec_zero(), bad_dout);
    for (int64_t lane = 0; lane < BQ; lane++) {
        const bool given = lane < t->rows;
        bad_q = spread_row(a.q, lane, given ? t->q[lane] : NULL, t->d, bad_q);
        bad_dout = spread_row(a.dout, lane, given ? dout[lane] : NULL, p->head_dim_v, bad_dout);
        set_reference(r, lane, (double)number_at(u, &p->lse, t->query[lane], t->head[lane]),
                      lse_scale(p));
        if (!given)
            t->see[lane] = (struct attn_range){0, 0};
    }
    r->q_finite = vmask_all(vec_le(bad_q, vec_zero()));
    r->dout_finite = vmask_all(vec_le(bad_dout, vec_zero()));
}

static void prepare(const struct attn_unit *u, int64_t strip)
{
    for (int64_t m = 0; m < blocks_of(u, strip); m++) {
        const int64_t row0 = (strip * STRIP + m) * BQ, next = row0 + BQ;
        fetch_queries(u, next);
        fetch_block(u, &u->p->dout, u->p->head_dim_v, next);
        fetch_block(u, &u->p->out, u->p->head_dim_v, next);
        prepare_block(u, row0, rows_of(u), ready_at(u, strip, m));
    }
}

/* Keys that some row of the strip sees. */
static struct attn_range strip_sees(const struct attn_unit *u, int64_t strip)
{
    const int64_t first = strip * STRIP * BQ;
    const int64_t last = min64(first + STRIP * BQ, rows_of(u)) - 1;
    return attn_band_any(u->seq.band, first / u->p->group, last / u->p->group + 1);
}

#endif
