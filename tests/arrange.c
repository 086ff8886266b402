/* SPDX-License-Identifier: BSD-3-Clause */
/* Problems made of given sequences, in plain layouts. */
#include <string.h>

#include "gen.h"
#include "memory.h"
#include "sequences.h"

static int64_t longest_of(const struct side *s, int64_t batch)
{
    int64_t longest = 0;

    for (int64_t b = 0; b < batch; b++)
        longest = s->used[b] > longest ? s->used[b] : longest;
    return longest;
}

static void arrange_side(struct side *s, bool packed, int64_t spare, int64_t batch)
{
    s->packed = packed;
    s->has_used = !packed || spare > 0;
    s->seqlen = longest_of(s, batch) + spare;
    for (int64_t b = 0; b < batch; b++) {
        s->room[b] = packed ? s->used[b] + spare : s->seqlen;
        s->start[b + 1] = packed ? s->start[b] + s->room[b] : 0;
    }
    s->tokens = s->start[batch] + spare;
}

/* Pages from the last one down, one of which nobody uses. */
static void arrange_pages(struct side *s, int64_t page_size, int64_t batch)
{
    const int64_t longest = longest_of(s, batch);

    s->paged = s->has_used = true;
    s->seqlen = longest;
    s->page_size = page_size;
    s->max_pages = (longest + page_size - 1) / page_size + 1;
    s->table = test_alloc((size_t)(batch * s->max_pages) * sizeof *s->table);
    s->pages = batch * s->max_pages + 1;
    for (int64_t n = 0; n < batch * s->max_pages; n++) {
        const int64_t b = n / s->max_pages, token = n % s->max_pages * page_size;
        s->table[n] = token < s->used[b] ? s->pages - 1 - n : -1;
    }
    for (int64_t b = 0; b < batch; b++)
        s->room[b] = longest;
}

static void arrange_tensors(struct problem *p)
{
    const attn_dtype number = element_computing(p->dtype);
    struct tensor *const tensors[] = {&p->q, &p->k, &p->v, &p->out, &p->lse,
                                      p->has_sums ? &p->sums : NULL};

    p->q = gen_contiguous(BUFFER_Q, p->dtype, &p->query, p->hq, p->d);
    p->k = gen_contiguous(BUFFER_K, p->dtype, &p->key, p->hkv, p->d);
    p->v = gen_contiguous(BUFFER_V, p->dtype, &p->key, p->hkv, p->dv);
    p->out = gen_contiguous(BUFFER_OUT, p->dtype, &p->query, p->hq, p->dv);
    p->lse = gen_contiguous_numbers(BUFFER_LSE, number, &p->query, p->hq);
    p->sums = gen_contiguous_numbers(BUFFER_KEY_SUMS, number, &p->key, p->hq);
    for (size_t n = 0; n < sizeof tensors / sizeof *tensors; n++) {
        const bool on_key = n == 1 || n == 2 || n == 5;
        const struct side side = n == 5 ? side_unpaged(&p->key) : on_key ? p->key : p->query;
        if (tensors[n])
            problem_buffer(p, tensors[n]->buffer, element_size(tensors[n]->dtype),
                           tensor_extent(tensors[n], &side, p->batch));
    }
    if (p->has_probs)
        gen_contiguous_probs(p);
}

/* Contiguous, over the axes that dbias has. */
static struct plane arrange_dbias(struct problem *p)
{
    const int64_t nq = side_span(&p->query, p->batch), nk = side_span(&p->key, p->batch);
    const struct plane *t = &p->dbias;
    const int64_t nj = t->key ? nk : 1, ni = t->query ? nq : 1, nh = t->head ? p->hq : 1;
    const struct plane x = {.dtype = t->dtype, .batch = t->batch ? nh * ni * nj : 0,
                            .head = t->head ? ni * nj : 0, .query = t->query ? nj : 0,
                            .key = t->key ? 1 : 0};

    problem_buffer(p, BUFFER_DBIAS, element_size(t->dtype),
                   (t->batch ? p->batch : 1) * nh * ni * nj);
    return x;
}

/* What the backward pass has besides. */
static void arrange_gradients(struct problem *p, const struct batch *n)
{
    const attn_dtype number = element_computing(p->dtype);
    struct tensor *const tensors[] = {&p->dout, p->has_dlse ? &p->dlse : NULL, &p->grad_q,
                                      &p->grad_k, &p->grad_v};

    p->dout = gen_contiguous(BUFFER_DOUT, p->dtype, &p->query, p->hq, p->dv);
    p->dlse = gen_contiguous_numbers(BUFFER_DLSE, number, &p->query, p->hq);
    p->grad_q = gen_contiguous(BUFFER_DQ, p->dtype, &p->query, p->hq, p->d);
    p->grad_k = gen_contiguous(BUFFER_DK, p->dtype, &p->key, p->hkv, p->d);
    p->grad_v = gen_contiguous(BUFFER_DV, p->dtype, &p->key, p->hkv, p->dv);
    for (size_t x = 0; x < sizeof tensors / sizeof *tensors; x++)
        if (tensors[x])
            problem_buffer(p, tensors[x]->buffer, element_size(tensors[x]->dtype),
                           tensor_extent(tensors[x], x < 3 ? &p->query : &p->key, p->batch));
    if (p->has_dsink) {
        p->dsink = (struct tensor){.buffer = BUFFER_DSINK, .dtype = number, .head = 1,
                                   .heads = p->hq, .width = 1};
        problem_buffer(p, BUFFER_DSINK, element_size(number), p->hq);
    }
    if (p->has_dbias && p->bias_by_offset) {
        p->dbias.dtype = p->bias.dtype;
        problem_buffer(p, BUFFER_DBIAS, element_size(p->bias.dtype), p->bias_start[p->batch]);
    } else if (p->has_dbias) {
        p->dbias = n->dbias; /* which axes there are */
        p->dbias = arrange_dbias(p);
    }
}

/* The sequences in their order. */
struct list {
    const struct batch *batch;
    const struct truth_seq *seq[MOST_BATCH];
    int64_t count;
};

static void put_plane(struct problem *p, enum buffer_name name, const struct plane *t, int64_t b,
                      const struct truth_plane *x, int64_t heads, int64_t rows, int64_t columns)
{
    unsigned char *image = p->buffers[name].image;

    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++) {
                const int64_t at = plane_at(t, b, h, i, j);
                const double value = truth_plane_at(x, h, i, j);
                if (t->dtype == ATTN_BOOL)
                    image[at] = (uint8_t)value;
                else
                    element_set(t->dtype, image, at, value);
            }
}

/* A contiguous tensor that repeats over the same axes as x, but the batch. */
static struct plane arrange_plane(struct problem *p, enum buffer_name name, attn_dtype dtype,
                                  const struct truth_plane *x, int64_t rows, int64_t columns)
{
    const int64_t nj = x->key ? columns : 1, ni = x->query ? rows : 1, nh = x->head ? p->hq : 1;
    const struct plane t = {.dtype = dtype, .batch = nh * ni * nj, .head = x->head ? ni * nj : 0,
                            .query = x->query ? nj : 0, .key = x->key ? 1 : 0};

    problem_buffer(p, name, dtype == ATTN_BOOL ? 1 : element_size(dtype), p->batch * t.batch);
    return t;
}

/* Whether dbias, where it is wanted, can lie as a bias at offsets does. */
static bool dbias_like(const struct batch *n, const struct truth_plane *bias)
{
    const struct plane *t = &n->dbias;

    return !n->wanted[COMPARE_DBIAS] ||
           (t->batch && t->query && t->key && !t->head == !bias->head);
}

static void arrange_bias(struct problem *p, const struct list *l)
{
    const struct truth_seq *first = l->seq[0];
    const bool by_offset = p->query.packed && p->key.packed && first->bias.query &&
                           first->bias.key && dbias_like(l->batch, &first->bias);

    p->has_bias = true;
    p->bias_by_offset = by_offset;
    p->bias_by_head = first->bias.head != 0;
    p->offset_type = ATTN_I64;
    p->bias.dtype = first->bias_type;
    if (by_offset) {
        for (int64_t b = 0; b < p->batch; b++) {
            const struct truth_seq *s = l->seq[b];
            p->bias_start[b + 1] =
                p->bias_start[b] + s->nq * s->nk * (p->bias_by_head ? s->hq : 1) + 1;
        }
        problem_buffer(p, BUFFER_BIAS, element_size(p->bias.dtype), p->bias_start[p->batch]);
        problem_integers(p, BUFFER_BIAS_OFFSET, ATTN_I64, p->bias_start, p->batch + 1);
    } else {
        p->bias = arrange_plane(p, BUFFER_BIAS, first->bias_type, &first->bias,
                                side_span(&p->query, p->batch), side_span(&p->key, p->batch));
    }
    for (int64_t b = 0; b < p->batch; b++) {
        const struct plane t = problem_bias(p, b);
        put_plane(p, BUFFER_BIAS, &t, 0, &l->seq[b]->bias, p->hq, l->seq[b]->nq, l->seq[b]->nk);
    }
}

/* [B, Hq] */
static void arrange_heads(struct problem *p, struct tensor *t, enum buffer_name name, bool by_batch,
                          const struct list *l)
{
    *t = (struct tensor){.buffer = name, .dtype = element_computing(p->dtype), .head = 1,
                         .batch = by_batch ? p->hq : 0, .heads = p->hq, .width = 1};
    t->given[0] = t->batch;
    t->given[2] = 1;
    problem_buffer(p, name, element_size(t->dtype), (by_batch ? p->batch : 1) * p->hq);
    for (int64_t b = 0; b < (by_batch ? p->batch : 1); b++)
        for (int64_t h = 0; h < p->hq; h++) {
            const struct truth_seq *s = l->seq[b];
            element_set(t->dtype, p->buffers[name].image, b * t->batch + h,
                        by_batch ? s->slopes[h] : s->sink[h]);
        }
}

static void arrange_scores(struct problem *p, const struct list *l)
{
    const struct truth_seq *first = l->seq[0];

    if (first->bias.x)
        arrange_bias(p, l);
    p->has_alibi = first->slopes != NULL;
    p->has_sink = first->sink != NULL;
    if (p->has_alibi)
        arrange_heads(p, &p->alibi, BUFFER_ALIBI, true, l);
    if (p->has_sink)
        arrange_heads(p, &p->sink, BUFFER_SINK, false, l);
}

static void arrange_token_masks(struct problem *p, const struct list *l)
{
    p->has_key_mask = l->seq[0]->key_mask != NULL;
    p->has_query_mask = l->seq[0]->query_mask != NULL;
    p->key_mask_stride = p->key.seqlen;
    p->query_mask_stride = p->query.seqlen;
    if (p->has_key_mask)
        problem_mask_buffer(p, BUFFER_KEY_MASK);
    if (p->has_query_mask)
        problem_mask_buffer(p, BUFFER_QUERY_MASK);
    for (int64_t b = 0; b < p->batch; b++) {
        const struct truth_seq *s = l->seq[b];
        if (p->has_key_mask)
            memcpy(p->buffers[BUFFER_KEY_MASK].image +
                       token_at(&p->key, b, 0, p->key_mask_stride), s->key_mask, (size_t)s->nk);
        if (p->has_query_mask)
            memcpy(p->buffers[BUFFER_QUERY_MASK].image +
                       token_at(&p->query, b, 0, p->query_mask_stride), s->query_mask,
                   (size_t)s->nq);
    }
}

static void arrange_docs(struct problem *p, const struct list *l)
{
    const size_t size = sizeof(int64_t);

    p->has_docs = true;
    p->query_docs_type = p->key_docs_type = ATTN_I64;
    problem_buffer(p, BUFFER_DOCS_Q, size, token_count(&p->query, p->batch, p->query.seqlen));
    problem_buffer(p, BUFFER_DOCS_K, size, token_count(&p->key, p->batch, p->key.seqlen));
    for (int64_t b = 0; b < p->batch; b++) {
        const struct truth_seq *s = l->seq[b];
        memcpy(p->buffers[BUFFER_DOCS_Q].image +
                   size * (size_t)token_at(&p->query, b, 0, p->query.seqlen),
               s->query_docs, (size_t)s->nq * size);
        memcpy(p->buffers[BUFFER_DOCS_K].image +
                   size * (size_t)token_at(&p->key, b, 0, p->key.seqlen),
               s->key_docs, (size_t)s->nk * size);
    }
}

static int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }

static void arrange_masks(struct problem *p, const struct list *l)
{
    const struct truth_seq *first = l->seq[0];
    const int64_t nq = side_span(&p->query, p->batch), nk = side_span(&p->key, p->batch);

    arrange_token_masks(p, l);
    if (first->query_docs)
        arrange_docs(p, l);
    p->has_mask = first->mask.x != NULL;
    p->has_block_mask = first->block.x != NULL;
    if (p->has_mask)
        p->mask = arrange_plane(p, BUFFER_MASK, ATTN_BOOL, &first->mask, nq, nk);
    if (p->has_block_mask) {
        p->block_q = first->block_q;
        p->block_k = first->block_k;
        p->block = arrange_plane(p, BUFFER_BLOCK_MASK, ATTN_BOOL, &first->block,
                                 blocks(nq, p->block_q), blocks(nk, p->block_k));
    }
    for (int64_t b = 0; b < p->batch; b++) {
        const struct truth_seq *s = l->seq[b];
        p->prefix[b] = s->prefix;
        if (p->has_mask)
            put_plane(p, BUFFER_MASK, &p->mask, b, &s->mask, p->hq, s->nq, s->nk);
        if (p->has_block_mask)
            put_plane(p, BUFFER_BLOCK_MASK, &p->block, b, &s->block, p->hq,
                      blocks(s->nq, p->block_q), blocks(s->nk, p->block_k));
    }
    p->has_prefix = first->has_prefix;
    if (p->has_prefix)
        problem_integers(p, BUFFER_PREFIX, ATTN_I32, p->prefix, p->batch);
}

static struct problem problem_like(const struct truth_seq *s, const struct batch *n)
{
    const bool *wanted = n->wanted;
    struct problem p = {.dtype = s->dtype, .hq = s->hq, .hkv = s->hkv, .d = s->d, .dv = s->dv,
                        .tell_hkv = true, .tell_dv = true, .scale = s->scale,
                        .softcap = s->softcap, .causal = s->causal, .window = s->window,
                        .align = s->align, .left = s->left, .right = s->right,
                        .dropout = s->dropout, .dropout_seed = s->dropout_seed,
                        .dropout_offset = s->dropout_offset, .first_sequence = s->number,
                        .has_lse = true, .has_probs = wanted[COMPARE_PROBS],
                        .has_tiles = wanted[COMPARE_TILES], .has_sums = wanted[COMPARE_SUMS],
                        .backward = n->backward, .has_dlse = s->dlse != NULL,
                        .has_dbias = wanted[COMPARE_DBIAS], .has_dsink = wanted[COMPARE_DSINK],
                        .values = "as drawn", .layout = "contiguous"};

    p.plain = !(s->softcap != 0 || s->bias.x || s->slopes || s->sink || s->has_prefix ||
                s->query_mask || s->mask.x || s->block.x || s->query_docs || s->dropout != 0 ||
                p.has_probs || p.has_tiles || p.has_sums);
    return p;
}

void batch_problem(struct problem *p, const struct batch *n, const struct arrange *a)
{
    struct rng r = rng_seeded(1);
    struct list l = {.batch = n, .count = a->order ? a->count : n->count};

    for (int64_t b = 0; b < l.count; b++)
        l.seq[b] = &n->seq[a->order ? a->order[b] : b];
    *p = problem_like(l.seq[0], n);
    p->batch = l.count;
    for (int64_t b = 0; b < p->batch; b++) {
        p->query.used[b] = l.seq[b]->nq;
        p->key.used[b] = l.seq[b]->nk;
    }
    arrange_side(&p->query, a->packed_q, a->spare, p->batch);
    if (a->page_size)
        arrange_pages(&p->key, a->page_size, p->batch);
    else
        arrange_side(&p->key, a->packed_k, a->spare, p->batch);
    p->plain = p->plain && !p->key.paged;
    problem_side_buffers(p);
    arrange_tensors(p);
    arrange_scores(p, &l);
    arrange_masks(p, &l);
    if (p->backward)
        arrange_gradients(p, n);
    problem_roles(p);
    gen_unseen(p, UNSEEN_NAN, &r);
    for (int64_t b = 0; b < p->batch; b++)
        batch_move(p, b, l.seq[b], true);
}
