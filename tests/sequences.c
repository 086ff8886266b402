/* SPDX-License-Identifier: BSD-3-Clause */
/* The sequences of a problem, and back. */
#include "sequences.h"

#include <string.h>

#include "memory.h"

static double *seq_q(const struct truth_seq *s, int64_t h, int64_t i, int64_t c)
{
    return s->q + (h * s->nq + i) * s->d + c;
}

static double *seq_k(const struct truth_seq *s, int64_t h, int64_t j, int64_t c)
{
    return s->kt + (h * s->d + c) * s->nk + j;
}

static double *seq_out(const struct truth_seq *s, int64_t h, int64_t i, int64_t c)
{
    return s->out + (h * s->nq + i) * s->dv + c;
}

static double *seq_dout(const struct truth_seq *s, int64_t h, int64_t i, int64_t c)
{
    return s->dout + (h * s->nq + i) * s->dv + c;
}

static double *seq_lse(const struct truth_seq *s, int64_t h, int64_t i, int64_t c)
{
    return s->lse + h * s->nq + i + c;
}

static double *seq_dlse(const struct truth_seq *s, int64_t h, int64_t i, int64_t c)
{
    return s->dlse + h * s->nq + i + c;
}

static double *seq_v(const struct truth_seq *s, int64_t h, int64_t j, int64_t c)
{
    return s->v + (h * s->nk + j) * s->dv + c;
}

typedef double *(*seq_element)(const struct truth_seq *s, int64_t h, int64_t row, int64_t c);

/* Between sequence b of a tensor and an array of the truth, either way. */
static void seq_move(struct problem *p, const struct tensor *t, const struct side *side, int64_t b,
                     const struct truth_seq *s, seq_element element, bool into_problem)
{
    unsigned char *image = p->buffers[t->buffer].image;

    for (int64_t h = 0; h < t->heads; h++)
        for (int64_t i = 0; i < side->used[b]; i++)
            for (int64_t c = 0; c < t->width; c++) {
                const int64_t at = tensor_at(t, side, b, i, h) + c;
                if (into_problem)
                    element_set(t->dtype, image, at, *element(s, h, i, c));
                else
                    *element(s, h, i, c) = element_get(t->dtype, image, at);
            }
}

void batch_move(struct problem *p, int64_t b, const struct truth_seq *s, bool into_problem)
{
    seq_move(p, &p->q, &p->query, b, s, seq_q, into_problem);
    seq_move(p, &p->k, &p->key, b, s, seq_k, into_problem);
    seq_move(p, &p->v, &p->key, b, s, seq_v, into_problem);
    if (!p->backward)
        return;
    seq_move(p, &p->dout, &p->query, b, s, seq_dout, into_problem);
    seq_move(p, &p->out, &p->query, b, s, seq_out, into_problem);
    seq_move(p, &p->lse, &p->query, b, s, seq_lse, into_problem);
    if (p->has_dlse)
        seq_move(p, &p->dlse, &p->query, b, s, seq_dlse, into_problem);
}

/* Room for what a sequence has in the backward pass. */
static void seq_gradients(struct truth_seq *s, bool dlse)
{
    const size_t rows = (size_t)(s->hq * s->nq), all = rows * (size_t)s->dv;

    s->dout = test_alloc(all * sizeof *s->dout);
    s->out = test_alloc(all * sizeof *s->out);
    s->lse = test_alloc(rows * sizeof *s->lse);
    s->dlse = dlse ? test_alloc(rows * sizeof *s->dlse) : NULL;
}

struct batch batch_of(const struct problem *p)
{
    struct batch n = {.count = p->batch};
    struct problem source = *p;

    n.backward = p->backward;
    n.wanted[COMPARE_OUT] = n.wanted[COMPARE_LSE] = !p->backward;
    n.wanted[COMPARE_DQ] = n.wanted[COMPARE_DK] = n.wanted[COMPARE_DV] = p->backward;
    n.wanted[COMPARE_DBIAS] = p->has_dbias;
    n.wanted[COMPARE_DSINK] = p->has_dsink;
    if (p->has_dbias)
        n.dbias = problem_dbias_dense(p, &n.dbias_count);
    n.wanted[COMPARE_PROBS] = p->has_probs;
    n.wanted[COMPARE_TILES] = p->has_tiles;
    n.wanted[COMPARE_SUMS] = p->has_sums;
    for (int64_t b = 0; b < p->batch; b++) {
        struct truth_seq *s = &n.seq[b];
        *s = problem_rules(p, b);
        s->q = test_alloc((size_t)(s->hq * s->nq * s->d) * sizeof *s->q);
        s->kt = test_alloc((size_t)(s->hkv * s->nk * s->d) * sizeof *s->kt);
        s->v = test_alloc((size_t)(s->hkv * s->nk * s->dv) * sizeof *s->v);
        if (p->backward)
            seq_gradients(s, p->has_dlse);
        batch_move(&source, b, s, false);
    }
    return n;
}

struct batch batch_copy(const struct batch *from)
{
    struct batch n = *from;

    for (int64_t b = 0; b < n.count; b++)
        n.seq[b] = truth_seq_copy(&from->seq[b]);
    return n;
}

void batch_free(struct batch *n)
{
    for (int64_t b = 0; b < n->count; b++)
        truth_seq_free(&n->seq[b]);
    memset(n, 0, sizeof *n);
}
