/* SPDX-License-Identifier: BSD-3-Clause */
/* Laws of single features, each on sequences that may have others besides. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "laws.h"
#include "memory.h"
#include "rng.h"

enum { LINE = 1200 };

static const struct arrange packed = {.packed_q = true, .packed_k = true};

static double *fill_heads(int64_t heads, double x)
{
    double *y = test_alloc((size_t)heads * sizeof *y);

    for (int64_t h = 0; h < heads; h++)
        y[h] = x;
    return y;
}

static int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* A sink of -inf is none, and a slope of 0, for whole numbers in `out` and LSE. */
static void without(struct law *l, const struct batch *drawn)
{
    struct batch none = batch_copy(drawn), zero;

    l->name = "a sink of -inf";
    law_drop(&none, LAW_SINK);
    zero = batch_copy(&none);
    for (int64_t b = 0; b < zero.count; b++)
        zero.seq[b].sink = fill_heads(zero.seq[b].hq, -INFINITY);
    law_alike(l, &none, &zero, true);
    batch_free(&zero);
    batch_free(&none);

    l->name = "slopes of 0";
    none = batch_copy(drawn);
    law_drop(&none, LAW_SLOPES);
    zero = batch_copy(&none);
    for (int64_t b = 0; b < zero.count; b++)
        zero.seq[b].slopes = fill_heads(zero.seq[b].hq, 0);
    law_alike(l, &none, &zero, false);
    batch_free(&zero);
    batch_free(&none);
}

/* A cap that is far away from every score. */
static void far_cap(struct law *l, const struct batch *drawn, struct rng *r)
{
    struct batch none = batch_copy(drawn), capped;

    l->name = "a far softcap";
    law_refill(&none, r);
    for (int64_t b = 0; b < none.count; b++)
        none.seq[b].softcap = none.seq[b].scale = 0;
    capped = batch_copy(&none);
    for (int64_t b = 0; b < none.count; b++)
        capped.seq[b].softcap = none.seq[b].dtype == ATTN_F64 ? 1e12 : 1e8;
    law_alike(l, &none, &capped, false);
    batch_free(&capped);
    batch_free(&none);
}

/* A prefix of all keys leaves nothing to causal. */
static void whole_prefix(struct law *l, const struct batch *drawn, struct rng *r)
{
    struct batch none = batch_copy(drawn), whole;

    l->name = "a prefix of all keys";
    law_refill(&none, r);
    for (int64_t b = 0; b < none.count; b++)
        none.seq[b].causal = none.seq[b].has_prefix = false;
    whole = batch_copy(&none);
    for (int64_t b = 0; b < none.count; b++) {
        struct truth_seq *s = &whole.seq[b];
        s->causal = s->has_prefix = true;
        s->prefix = s->nk;
        s->align = s->align == ATTN_ALIGN_NONE ? ATTN_BOTTOM_RIGHT : s->align;
    }
    law_alike(l, &none, &whole, false);
    batch_free(&whole);
    batch_free(&none);
}

/* A block mask, a mask and a bias of 0 and -inf that hide the same. */
static void hiding(struct law *l, const struct batch *drawn, struct rng *r)
{
    const int64_t block_q = 1 + rng_below(r, 40), block_k = 1 + rng_below(r, 40);
    struct batch block = batch_copy(drawn), mask, bias;

    law_refill(&block, r);
    law_drop(&block, LAW_MASK);
    law_drop(&block, LAW_BLOCK);
    law_drop(&block, LAW_BIAS);
    mask = batch_copy(&block);
    bias = batch_copy(&block);
    for (int64_t b = 0; b < block.count; b++) {
        struct truth_seq *s = &block.seq[b], *m = &mask.seq[b], *a = &bias.seq[b];
        s->block_q = block_q;
        s->block_k = block_k;
        s->block = truth_plane_open(false, true, true, 1, blocks(s->nq, block_q),
                                    blocks(s->nk, block_k));
        m->mask = truth_plane_open(false, true, true, 1, s->nq, s->nk);
        a->bias = truth_plane_open(false, true, true, 1, s->nq, s->nk);
        a->bias_type = ATTN_F32;
        for (int64_t n = 0; n < s->block.count; n++)
            s->block.x[n] = rng_chance(r, 60);
        for (int64_t i = 0; i < s->nq; i++)
            for (int64_t j = 0; j < s->nk; j++) {
                const bool see = truth_plane_at(&s->block, 0, i / block_q, j / block_k) != 0;
                m->mask.x[i * s->nk + j] = see;
                a->bias.x[i * s->nk + j] = see ? 0 : -INFINITY;
            }
    }
    l->name = "a block mask as a mask";
    law_alike(l, &block, &mask, false);
    l->name = "a bias of -inf as a mask";
    law_alike(l, &bias, &mask, false);
    batch_free(&bias);
    batch_free(&mask);
    batch_free(&block);
}

/* One sequence of all, a document each; what goes by indices has been taken from them. */
static struct truth_seq joined(const struct batch *n)
{
    struct truth_seq s = n->seq[0];
    int64_t i0 = 0, j0 = 0;

    s.nq = s.nk = 0;
    for (int64_t b = 0; b < n->count; b++) {
        s.nq += n->seq[b].nq;
        s.nk += n->seq[b].nk;
    }
    s.q = test_alloc((size_t)(s.hq * s.nq * s.d) * sizeof *s.q);
    s.kt = test_alloc((size_t)(s.hkv * s.nk * s.d) * sizeof *s.kt);
    s.v = test_alloc((size_t)(s.hkv * s.nk * s.dv) * sizeof *s.v);
    s.query_docs = test_alloc((size_t)s.nq * sizeof *s.query_docs);
    s.key_docs = test_alloc((size_t)s.nk * sizeof *s.key_docs);
    s.sink = s.sink ? test_alloc((size_t)s.hq * sizeof *s.sink) : NULL;
    if (s.sink)
        memcpy(s.sink, n->seq[0].sink, (size_t)s.hq * sizeof *s.sink);
    for (int64_t b = 0; b < n->count; b++) {
        const struct truth_seq *f = &n->seq[b];
        for (int64_t h = 0; h < s.hq; h++)
            memcpy(s.q + (h * s.nq + i0) * s.d, f->q + h * f->nq * f->d,
                   (size_t)(f->nq * s.d) * sizeof *s.q);
        for (int64_t row = 0; row < s.hkv * s.d; row++)
            memcpy(s.kt + row * s.nk + j0, f->kt + row * f->nk, (size_t)f->nk * sizeof *s.kt);
        for (int64_t g = 0; g < s.hkv; g++)
            memcpy(s.v + (g * s.nk + j0) * s.dv, f->v + g * f->nk * f->dv,
                   (size_t)(f->nk * s.dv) * sizeof *s.v);
        for (int64_t i = 0; i < f->nq; i++)
            s.query_docs[i0++] = b;
        for (int64_t j = 0; j < f->nk; j++)
            s.key_docs[j0++] = b;
    }
    return s;
}

/* Puts the results of the sequences in the order of those of the joined one. [width] numbers a
 * row. */
static void join_part(const struct batch *n, const struct truth_seq *whole, int64_t width,
                      double **part)
{
    double *x = test_alloc((size_t)(whole->hq * whole->nq * width) * sizeof *x);
    const double *from = *part;
    int64_t i0 = 0;

    for (int64_t b = 0; b < n->count; b++) {
        const int64_t nq = n->seq[b].nq;
        for (int64_t h = 0; h < whole->hq; h++, from += nq * width)
            memcpy(x + (h * whole->nq + i0) * width, from, (size_t)(nq * width) * sizeof *x);
        i0 += nq;
    }
    free(*part);
    *part = x;
}

/* Documents in one sequence are sequences of their own. */
static void documents(struct law *l, const struct batch *drawn, struct rng *r)
{
    struct batch n = batch_copy(drawn), whole = {.count = 1};
    struct result apart;
    struct judge j;

    l->name = "documents as sequences";
    law_refill(&n, r);
    for (int part = LAW_MASK; part <= LAW_DOCS; part++)
        if (part != LAW_SINK)
            law_drop(&n, (enum law_part)part);
    memset(n.wanted, 0, sizeof n.wanted);
    n.wanted[COMPARE_OUT] = n.wanted[COMPARE_LSE] = true;
    memcpy(whole.wanted, n.wanted, sizeof n.wanted);
    for (int64_t b = 0; b < n.count; b++) {
        struct truth_seq *s = &n.seq[b];
        free(s->key_mask);
        free(s->query_mask);
        s->key_mask = s->query_mask = NULL;
        s->causal = s->window = s->has_prefix = false;
        s->dropout = 0;
    }
    whole.seq[0] = joined(&n);
    judge_open(&j, &whole, l->o->orders);
    if (law_run(l, &n, &packed, &apart)) {
        join_part(&n, &whole.seq[0], j.dv, &apart.part[COMPARE_OUT]);
        join_part(&n, &whole.seq[0], 1, &apart.part[COMPARE_LSE]);
        law_changed(l, &j, &whole, &apart, true);
        result_free(&apart);
    }
    judge_close(&j);
    batch_free(&whole);
    batch_free(&n);
}

/* Whether the sums of the columns of head h of sequence b agree with the probabilities (null: not
 * known) and with the number of rows that see a key, `rows` (negative: not known). */
static bool sums_fit(const struct judge *j, const struct truth_seq *s, int64_t group,
                     const double *sums, const double *tiles, int64_t rows)
{
    const long double allowed = j->part[COMPARE_SUMS].allowed[group];
    const long double one = tiles ? j->part[COMPARE_TILES].allowed[group] : 0;
    long double total = 0;

    for (int64_t k = 0; k < s->nk; k++) {
        long double sum = 0;
        for (int64_t i = 0; tiles && i < s->nq; i++)
            sum += tiles[i * s->nk + k];
        if (tiles && fabsl(sum - sums[k]) > allowed + (long double)s->nq * one)
            return false;
        total += sums[k];
    }
    return rows < 0 || fabsl(total - (long double)rows) <= (long double)s->nk * allowed;
}

/* The same of all heads. */
static bool all_fit(const struct judge *j, const struct batch *n, const struct result *x)
{
    const double *sums = x->part[COMPARE_SUMS], *tiles = x->part[COMPARE_TILES];
    const double *lse = x->part[COMPARE_LSE];
    bool good = true;

    for (int64_t b = 0; b < n->count; b++)
        for (int64_t h = 0; h < n->seq[b].hq; h++) {
            const struct truth_seq *s = &n->seq[b];
            int64_t rows = 0;
            for (int64_t i = 0; i < s->nq; i++)
                rows += *lse++ > -INFINITY;
            good = good && sums_fit(j, s, b * s->hq + h, sums, tiles, s->dropout > 0 ? -1 : rows);
            sums += s->nk;
            tiles = tiles ? tiles + s->nq * s->nk : NULL;
        }
    return good;
}

/* The sums of columns, put together, count the rows that see a key, and are sums of the tiles. */
static void columns(struct law *l, const struct batch *drawn, struct rng *r)
{
    struct batch n = batch_copy(drawn);
    struct result x;
    struct judge j;

    l->name = "sums of columns";
    law_refill(&n, r);
    law_drop(&n, LAW_SINK);
    n.wanted[COMPARE_SUMS] = true;
    n.wanted[COMPARE_PROBS] = false;
    judge_open(&j, &n, l->o->orders);
    if (law_run(l, &n, &packed, &x)) {
        bool good = all_fit(&j, &n, &x);
        while (!good && judge_widen(&j))
            good = all_fit(&j, &n, &x);
        law_says(l, good, "they are of other probabilities");
        result_free(&x);
    }
    judge_close(&j);
    batch_free(&n);
}

/* The draws that the truth goes by are those that the library tells. */
static void keep_mask(struct law *l, const struct batch *drawn)
{
    unsigned char *data[BUFFERS];
    struct problem p;
    bool good = true;

    l->name = "the keep mask";
    if (drawn->seq[0].dropout == 0)
        return;
    batch_problem(&p, drawn, &packed);
    for (int n = 0; n < BUFFERS; n++)
        data[n] = p.buffers[n].image;
    const attn_desc d = problem_desc(&p, data);
    const int64_t nq = side_span(&p.query, p.batch), nk = side_span(&p.key, p.batch);
    uint8_t *keep = test_alloc((size_t)(p.batch * p.hq * nq * nk));
    const attn_score_output out = {keep, ATTN_BOOL, 0, 0, 0, 0};
    if (attn_dropout_mask(l->t->context, &d, &out) == ATTN_OK)
        for (int64_t n = 0; n < p.batch * p.hq * nq * nk; n++) {
            const int64_t b = n / nk / nq / p.hq, h = n / nk / nq % p.hq, i = n / nk % nq;
            const struct truth_seq *s = &drawn->seq[b];
            const bool kept = i < s->nq && n % nk < s->nk && truth_kept(s, h, i, n % nk);
            good = good && keep[n] == kept;
        }
    else
        good = false;
    law_says(l, good, good ? "" : attn_last_message(l->t->context));
    free(keep);
    problem_free(&p);
}

void law_features(struct law *l, const struct batch *drawn, struct rng *r)
{
    keep_mask(l, drawn);
    without(l, drawn);
    far_cap(l, drawn, r);
    whole_prefix(l, drawn, r);
    hiding(l, drawn, r);
    documents(l, drawn, r);
    columns(l, drawn, r);
}
