/* SPDX-License-Identifier: BSD-3-Clause */
#include "sequences.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen.h"
#include "memory.h"

static void seq_alloc(struct truth_seq *s)
{
    s->q = test_alloc((size_t)(s->hq * s->nq * s->d) * sizeof *s->q);
    s->kt = test_alloc((size_t)(s->hkv * s->nk * s->d) * sizeof *s->kt);
    s->v = test_alloc((size_t)(s->hkv * s->nk * s->dv) * sizeof *s->v);
}

static double *seq_q(const struct truth_seq *s, int64_t h, int64_t i, int64_t c)
{
    return s->q + (h * s->nq + i) * s->d + c;
}

static double *seq_k(const struct truth_seq *s, int64_t h, int64_t j, int64_t c)
{
    return s->kt + (h * s->d + c) * s->nk + j;
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
                    element_set(p->dtype, image, at, *element(s, h, i, c));
                else
                    *element(s, h, i, c) = element_get(p->dtype, image, at);
            }
}

static void seq_move_all(struct problem *p, int64_t b, const struct truth_seq *s, bool into)
{
    seq_move(p, &p->q, &p->query, b, s, seq_q, into);
    seq_move(p, &p->k, &p->key, b, s, seq_k, into);
    seq_move(p, &p->v, &p->key, b, s, seq_v, into);
}

struct batch batch_of(const struct problem *p)
{
    struct batch n = {.count = p->batch};
    struct problem source = *p;

    for (int64_t b = 0; b < p->batch; b++) {
        n.seq[b] = problem_rules(p, b);
        seq_alloc(&n.seq[b]);
        seq_move_all(&source, b, &n.seq[b], false);
    }
    return n;
}

struct batch batch_copy(const struct batch *from)
{
    struct batch n = *from;

    for (int64_t b = 0; b < n.count; b++) {
        struct truth_seq *s = &n.seq[b];
        const struct truth_seq *f = &from->seq[b];
        seq_alloc(s);
        memcpy(s->q, f->q, (size_t)(s->hq * s->nq * s->d) * sizeof *s->q);
        memcpy(s->kt, f->kt, (size_t)(s->hkv * s->nk * s->d) * sizeof *s->kt);
        memcpy(s->v, f->v, (size_t)(s->hkv * s->nk * s->dv) * sizeof *s->v);
        if (f->key_mask) {
            s->key_mask = test_alloc((size_t)s->nk);
            memcpy(s->key_mask, f->key_mask, (size_t)s->nk);
        }
    }
    return n;
}

void batch_free(struct batch *n)
{
    for (int64_t b = 0; b < n->count; b++) {
        free(n->seq[b].q);
        free(n->seq[b].kt);
        free(n->seq[b].v);
        free(n->seq[b].key_mask);
    }
    memset(n, 0, sizeof *n);
}

static void arrange_side(struct side *s, bool packed, int64_t spare, int64_t batch)
{
    int64_t longest = 0;

    s->packed = packed;
    s->has_used = !packed || spare > 0;
    for (int64_t b = 0; b < batch; b++)
        longest = s->used[b] > longest ? s->used[b] : longest;
    s->seqlen = longest + spare;
    for (int64_t b = 0; b < batch; b++) {
        s->room[b] = packed ? s->used[b] + spare : s->seqlen;
        s->start[b + 1] = packed ? s->start[b] + s->room[b] : 0;
    }
    s->tokens = s->start[batch] + spare;
}

static void arrange_tensors(struct problem *p)
{
    const size_t element = element_size(p->dtype);

    p->q = gen_contiguous(BUFFER_Q, p->dtype, &p->query, p->hq, p->d);
    p->k = gen_contiguous(BUFFER_K, p->dtype, &p->key, p->hkv, p->d);
    p->v = gen_contiguous(BUFFER_V, p->dtype, &p->key, p->hkv, p->dv);
    p->out = gen_contiguous(BUFFER_OUT, p->dtype, &p->query, p->hq, p->dv);
    p->lse = gen_contiguous_lse(element_computing(p->dtype), &p->query, p->hq);
    problem_buffer(p, BUFFER_Q, element, tensor_extent(&p->q, &p->query, p->batch));
    problem_buffer(p, BUFFER_K, element, tensor_extent(&p->k, &p->key, p->batch));
    problem_buffer(p, BUFFER_V, element, tensor_extent(&p->v, &p->key, p->batch));
    problem_buffer(p, BUFFER_OUT, element, tensor_extent(&p->out, &p->query, p->batch));
    problem_buffer(p, BUFFER_LSE, element_size(p->lse.dtype),
                   tensor_extent(&p->lse, &p->query, p->batch));
}

void batch_problem(struct problem *p, const struct batch *n, const struct arrange *a)
{
    const struct truth_seq *s = &n->seq[0];
    struct rng r = rng_seeded(1);

    *p = (struct problem){.dtype = s->dtype, .batch = a->order ? a->count : n->count, .hq = s->hq,
                          .hkv = s->hkv, .d = s->d, .dv = s->dv, .tell_hkv = true, .tell_dv = true,
                          .scale = s->scale, .causal = s->causal, .window = s->window,
                          .align = s->align, .left = s->left, .right = s->right,
                          .has_mask = s->key_mask != NULL, .has_lse = true,
                          .values = "as drawn", .layout = "contiguous"};
    for (int64_t b = 0; b < p->batch; b++) {
        const struct truth_seq *from = &n->seq[a->order ? a->order[b] : b];
        p->query.used[b] = from->nq;
        p->key.used[b] = from->nk;
    }
    arrange_side(&p->query, a->packed_q, a->spare, p->batch);
    arrange_side(&p->key, a->packed_k, a->spare, p->batch);
    p->mask_stride = p->key.seqlen;
    problem_index_buffers(p);
    for (int64_t b = 0; b < p->batch; b++)
        if (p->has_mask)
            memcpy(p->buffers[BUFFER_MASK].image + mask_at(p, b, 0),
                   n->seq[a->order ? a->order[b] : b].key_mask, (size_t)p->key.used[b]);
    arrange_tensors(p);
    problem_roles(p);
    gen_unseen(p, UNSEEN_NAN, &r);
    for (int64_t b = 0; b < p->batch; b++)
        seq_move_all(p, b, &n->seq[a->order ? a->order[b] : b], true);
}
