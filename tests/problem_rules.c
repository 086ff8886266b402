/* SPDX-License-Identifier: BSD-3-Clause */
/* What a problem's images say of each sequence, and which of their elements anybody may see. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "problem_image.h"

/* A tensor over (head, query, key), of these extents, of which axes that repeat are left out. */
static struct truth_plane take_plane(const struct problem *p, enum buffer_name name,
                                     const struct plane *t, int64_t b, int64_t heads, int64_t rows,
                                     int64_t columns)
{
    const int64_t nh = t->head ? heads : 1, ni = t->query ? rows : 1, nj = t->key ? columns : 1;
    const struct truth_plane x =
        truth_plane_open(t->head != 0, t->query != 0, t->key != 0, heads, rows, columns);
    double *at = x.x;

    for (int64_t h = 0; h < nh && rows > 0 && columns > 0; h++)
        for (int64_t i = 0; i < ni; i++)
            for (int64_t j = 0; j < nj; j++) {
                const int64_t from = plane_at(t, b, h, i, j);
                *at++ = t->dtype == ATTN_BOOL ? p->buffers[name].image[from]
                                              : element_get(t->dtype, p->buffers[name].image, from);
            }
    return x;
}

static uint8_t *take_mask(const struct problem *p, enum buffer_name name, const struct side *s,
                          int64_t b, int64_t stride)
{
    uint8_t *x = test_alloc((size_t)s->used[b]);

    memcpy(x, p->buffers[name].image + token_at(s, b, 0, stride), (size_t)s->used[b]);
    return x;
}

static int64_t *take_docs(const struct problem *p, enum buffer_name name, const struct side *s,
                          attn_itype type, int64_t b)
{
    int64_t *x = test_alloc((size_t)s->used[b] * sizeof *x);

    for (int64_t i = 0; i < s->used[b]; i++)
        x[i] = problem_integer(p, name, type, token_at(s, b, i, s->seqlen));
    return x;
}

/* One number per head. */
static double *take_heads(const struct problem *p, const struct tensor *t, int64_t b)
{
    double *x = test_alloc((size_t)p->hq * sizeof *x);

    for (int64_t h = 0; h < p->hq; h++)
        x[h] = element_get(t->dtype, p->buffers[t->buffer].image,
                           t->offset + b * t->batch + h * t->head);
    return x;
}

static int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* What hides keys. */
static void take_masks(const struct problem *p, int64_t b, struct truth_seq *s)
{
    if (p->has_key_mask)
        s->key_mask = take_mask(p, BUFFER_KEY_MASK, &p->key, b, p->key_mask_stride);
    if (p->has_query_mask)
        s->query_mask = take_mask(p, query_mask_buffer(p), &p->query, b, p->query_mask_stride);
    if (p->has_mask)
        s->mask = take_plane(p, BUFFER_MASK, &p->mask, b, p->hq, s->nq, s->nk);
    if (p->has_block_mask) {
        s->block_q = p->block_q;
        s->block_k = p->block_k;
        s->block = take_plane(p, BUFFER_BLOCK_MASK, &p->block, b, p->hq, blocks(s->nq, p->block_q),
                              blocks(s->nk, p->block_k));
    }
    if (p->has_docs) {
        s->query_docs = take_docs(p, BUFFER_DOCS_Q, &p->query, p->query_docs_type, b);
        s->key_docs = take_docs(p, BUFFER_DOCS_K, &p->key, p->key_docs_type, b);
    }
}

struct truth_seq problem_rules(const struct problem *p, int64_t b)
{
    struct truth_seq s = {.dtype = p->dtype, .nq = p->query.used[b], .nk = p->key.used[b],
                          .hq = p->hq, .hkv = p->hkv, .d = p->d, .dv = p->dv, .scale = p->scale,
                          .softcap = p->softcap, .causal = p->causal, .window = p->window,
                          .align = p->align, .left = p->left, .right = p->right,
                          .has_prefix = p->has_prefix, .prefix = p->prefix[b],
                          .dropout = p->dropout, .dropout_seed = p->dropout_seed,
                          .dropout_offset = p->dropout_offset, .number = p->first_sequence + b};

    take_masks(p, b, &s);
    if (p->has_bias) {
        const struct plane bias = problem_bias(p, b);
        s.bias_type = bias.dtype;
        s.bias = take_plane(p, BUFFER_BIAS, &bias, 0, p->hq, s.nq, s.nk);
    }
    if (p->has_alibi)
        s.slopes = take_heads(p, &p->alibi, b);
    if (p->has_sink)
        s.sink = take_heads(p, &p->sink, b);
    return s;
}

static void set_role(struct problem *p, const struct tensor *t, int64_t at, enum role role)
{
    memset(p->buffers[t->buffer].role + at, role, (size_t)t->width);
}

/* Every row of an output is written, whether a query or key takes part there or not. */
static void output_roles(struct problem *p, const struct tensor *t, const struct side *s)
{
    struct side all = side_unpaged(s);

    all.start[0] = 0;
    for (int64_t b = 0; b < (all.packed ? 1 : p->batch); b++)
        for (int64_t row = 0; row < side_rows(&all); row++)
            for (int64_t h = 0; h < t->heads; h++)
                set_role(p, t, tensor_at(t, &all, b, row, h), ROLE_OUTPUT);
}

static void probs_roles(struct problem *p)
{
    const int64_t nq = side_span(&p->query, p->batch), nk = side_span(&p->key, p->batch);

    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->hq; h++)
            for (int64_t i = 0; i < nq; i++)
                for (int64_t j = 0; j < nk; j++)
                    p->buffers[BUFFER_PROBS].role[plane_at(&p->probs, b, h, i, j)] = ROLE_OUTPUT;
}

static void set_row(struct problem *p, const struct tensor *t, int64_t b, int64_t i, int64_t h,
                    enum role role)
{
    set_role(p, t, tensor_at(t, &p->query, b, i, h), role);
}

/* Whether the sink leaves nothing to the values. */
static bool sink_takes_all(const struct problem *p, int64_t h)
{
    const struct tensor *t = &p->sink;
    return p->has_sink &&
           element_get(t->dtype, p->buffers[t->buffer].image, t->offset + h * t->head) == INFINITY;
}

/* A row that sees a key. */
static void row_roles(struct problem *p, int64_t b, int64_t i, int64_t h)
{
    set_row(p, &p->q, b, i, h, ROLE_Q);
    if (!p->backward)
        return;
    if (!sink_takes_all(p, h)) {
        set_row(p, &p->dout, b, i, h, ROLE_FIXED);
        set_row(p, &p->out, b, i, h, ROLE_FIXED);
    }
    set_row(p, &p->lse, b, i, h, ROLE_FIXED);
    if (p->has_dlse)
        set_row(p, &p->dlse, b, i, h, ROLE_FIXED);
}

/* A sink has the LSE of rows that see nothing. */
static void sink_roles(struct problem *p, int64_t b)
{
    for (int64_t i = 0; i < p->query.used[b]; i++)
        for (int64_t h = 0; h < p->hq; h++) {
            set_row(p, &p->lse, b, i, h, ROLE_FIXED);
            if (p->has_dlse)
                set_row(p, &p->dlse, b, i, h, ROLE_FIXED);
        }
}

/* Queries, keys and values that head h, or any of those that see the same, sees. */
static void vector_roles(struct problem *p, const struct truth_seq *s, int64_t b, int64_t h,
                         bool all_heads)
{
    bool *key_seen = test_alloc((size_t)s->nk * sizeof *key_seen);
    const int64_t group = p->hq / p->hkv;

    for (int64_t i = 0; i < s->nq; i++) {
        bool sees = false;
        for (int64_t j = 0; j < s->nk; j++)
            if (truth_visible(s, h, i, j))
                sees = key_seen[j] = true;
        for (int64_t n = all_heads ? 0 : h; sees && n < (all_heads ? p->hq : h + 1); n++)
            row_roles(p, b, i, n);
    }
    for (int64_t j = 0; j < s->nk; j++)
        for (int64_t g = all_heads ? 0 : h / group; key_seen[j] && g < p->hkv; g++) {
            set_role(p, &p->k, tensor_at(&p->k, &p->key, b, j, g), ROLE_K);
            if (p->dropout < 1) /* a dropout of 1 leaves nothing of any value */
                set_role(p, &p->v, tensor_at(&p->v, &p->key, b, j, g), ROLE_V);
            if (!all_heads)
                break;
        }
    free(key_seen);
}

/* Bytes of masks that could hide something. */
static void mask_roles(struct problem *p, const struct truth_seq *s, int64_t b)
{
    uint8_t *mask = p->buffers[BUFFER_MASK].role, *block = p->buffers[BUFFER_BLOCK_MASK].role;

    if (p->has_key_mask)
        memset(p->buffers[BUFFER_KEY_MASK].role + token_at(&p->key, b, 0, p->key_mask_stride),
               ROLE_FIXED, (size_t)s->nk);
    if (p->has_query_mask)
        memset(p->buffers[query_mask_buffer(p)].role +
                   token_at(&p->query, b, 0, p->query_mask_stride), ROLE_FIXED, (size_t)s->nq);
    for (int64_t i = 0; (mask || block) && i < s->nq; i++)
        for (int64_t j = 0; j < s->nk; j++)
            for (int64_t h = 0; truth_in_band(s, i, j) && h < p->hq; h++) {
                if (mask)
                    mask[plane_at(&p->mask, b, h, i, j)] = ROLE_FIXED;
                if (block)
                    block[plane_at(&p->block, b, h, i / p->block_q, j / p->block_k)] = ROLE_FIXED;
            }
}

static void score_roles(struct problem *p, const struct truth_seq *s, int64_t b)
{
    const struct plane t = problem_bias(p, b);
    const struct tensor *const heads[] = {p->has_alibi ? &p->alibi : NULL,
                                          p->has_sink ? &p->sink : NULL};

    for (int64_t h = 0; p->has_bias && h < p->hq; h++)
        for (int64_t i = 0; i < s->nq; i++)
            for (int64_t j = 0; j < s->nk; j++)
                if (truth_allowed(s, h, i, j))
                    p->buffers[BUFFER_BIAS].role[plane_at(&t, 0, h, i, j)] = ROLE_FIXED;
    for (int n = 0; n < 2; n++)
        for (int64_t h = 0; heads[n] && h < p->hq; h++)
            set_role(p, heads[n], heads[n]->offset + b * heads[n]->batch + h * heads[n]->head,
                     ROLE_FIXED);
}

static int64_t at_least_one(int64_t n, bool wanted) { return wanted && n == 0 ? 1 : n; }

/* Each element of dbias is written; with offsets those of the sequences. Along an axis that is
 * summed over there is one, even of nothing. */
static void dbias_roles(struct problem *p)
{
    const struct plane *whole = &p->dbias;
    const bool offset = p->bias_by_offset;
    const int64_t batch = at_least_one(p->batch, !offset && !whole->batch);
    const int64_t span_q = at_least_one(side_span(&p->query, p->batch), !whole->query);
    const int64_t span_k = at_least_one(side_span(&p->key, p->batch), !whole->key);

    for (int64_t b = 0; b < batch; b++) {
        const struct plane t = problem_dbias(p, b);
        const int64_t nq = offset ? p->query.used[b] : span_q;
        const int64_t nk = offset ? p->key.used[b] : span_k;
        for (int64_t h = 0; h < p->hq; h++)
            for (int64_t i = 0; i < nq; i++)
                for (int64_t j = 0; j < nk; j++)
                    p->buffers[BUFFER_DBIAS].role[plane_at(&t, 0, h, i, j)] = ROLE_OUTPUT;
    }
}

/* What the backward pass writes. */
static void gradient_roles(struct problem *p)
{
    output_roles(p, &p->grad_q, &p->query);
    output_roles(p, &p->grad_k, &p->key);
    output_roles(p, &p->grad_v, &p->key);
    if (p->has_dbias)
        dbias_roles(p);
    for (int64_t h = 0; p->has_dsink && h < p->hq; h++)
        set_role(p, &p->dsink, p->dsink.offset + h * p->dsink.head, ROLE_OUTPUT);
}

static void docs_roles(struct problem *p, enum buffer_name name, const struct side *s, int64_t b)
{
    memset(p->buffers[name].role + token_at(s, b, 0, s->seqlen), ROLE_FIXED, (size_t)s->used[b]);
}

void problem_roles(struct problem *p)
{
    for (int64_t b = 0; b < p->batch; b++) {
        struct truth_seq s = problem_rules(p, b);
        const bool by_head = truth_by_head(&s);
        for (int64_t h = 0; h < (by_head ? p->hq : 1); h++)
            vector_roles(p, &s, b, h, !by_head);
        mask_roles(p, &s, b);
        score_roles(p, &s, b);
        if (p->has_dsink)
            sink_roles(p, b);
        if (p->has_docs) {
            docs_roles(p, BUFFER_DOCS_Q, &p->query, b);
            docs_roles(p, BUFFER_DOCS_K, &p->key, b);
        }
        truth_seq_free(&s);
    }
    if (p->backward) {
        gradient_roles(p);
        return;
    }
    output_roles(p, &p->out, &p->query);
    if (p->has_lse)
        output_roles(p, &p->lse, &p->query);
    if (p->has_sums)
        output_roles(p, &p->sums, &p->key);
    if (p->has_probs)
        probs_roles(p);
}
