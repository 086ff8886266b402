/* SPDX-License-Identifier: BSD-3-Clause */
/* Buffers of a problem, and where things stand in them. */
#include "problem_image.h"

#include <stdlib.h>
#include <string.h>

#include "memory.h"

const char *const buffer_names[BUFFERS] = {
    [BUFFER_Q] = "q", [BUFFER_K] = "k", [BUFFER_V] = "v", [BUFFER_OUT] = "out",
    [BUFFER_LSE] = "lse", [BUFFER_KEY_MASK] = "key_mask", [BUFFER_CU_Q] = "cu_seqlens_q",
    [BUFFER_CU_K] = "cu_seqlens_k", [BUFFER_USED_Q] = "seqused_q", [BUFFER_USED_K] = "seqused_k",
    [BUFFER_TABLE] = "block_table", [BUFFER_QUERY_MASK] = "query_mask", [BUFFER_MASK] = "mask",
    [BUFFER_BLOCK_MASK] = "block_mask", [BUFFER_BIAS] = "bias",
    [BUFFER_BIAS_OFFSET] = "bias_offset", [BUFFER_ALIBI] = "alibi", [BUFFER_SINK] = "sink",
    [BUFFER_DOCS_Q] = "query_docs", [BUFFER_DOCS_K] = "key_docs", [BUFFER_PREFIX] = "prefix",
    [BUFFER_PROBS] = "probs", [BUFFER_KEY_SUMS] = "key_sums", [BUFFER_DOUT] = "dout",
    [BUFFER_DLSE] = "dlse", [BUFFER_DQ] = "dq", [BUFFER_DK] = "dk", [BUFFER_DV] = "dv",
    [BUFFER_DBIAS] = "dbias", [BUFFER_DSINK] = "dsink"};

void problem_free(struct problem *p)
{
    for (int n = 0; n < BUFFERS; n++) {
        free(p->buffers[n].image);
        free(p->buffers[n].role);
    }
    free(p->key.table);
    memset(p, 0, sizeof *p);
}

void problem_buffer(struct problem *p, enum buffer_name name, size_t element, int64_t count)
{
    struct buffer *b = &p->buffers[name];

    b->element = element;
    b->count = count;
    b->image = test_alloc((size_t)count * element);
    b->role = test_alloc((size_t)count);
}

int64_t problem_integer(const struct problem *p, enum buffer_name name, attn_itype type,
                        int64_t index)
{
    const void *image = p->buffers[name].image;

    return type == ATTN_I64 ? ((const int64_t *)image)[index] : ((const int32_t *)image)[index];
}

void problem_set_integer(struct problem *p, enum buffer_name name, attn_itype type, int64_t index,
                         int64_t x)
{
    void *image = p->buffers[name].image;

    if (type == ATTN_I64)
        ((int64_t *)image)[index] = x;
    else
        ((int32_t *)image)[index] = (int32_t)x;
}

void problem_integers(struct problem *p, enum buffer_name name, attn_itype type, const int64_t *x,
                      int64_t n)
{
    problem_buffer(p, name, type == ATTN_I64 ? 8 : 4, n);
    memset(p->buffers[name].role, ROLE_FIXED, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        problem_set_integer(p, name, type, i, x[i]);
}

int64_t side_rows(const struct side *s)
{
    return s->packed ? s->tokens : s->paged ? s->page_size : s->seqlen;
}

int64_t side_span(const struct side *s, int64_t batch)
{
    int64_t longest = 0;

    if (!s->packed)
        return s->seqlen;
    for (int64_t b = 0; b < batch; b++)
        longest = s->used[b] > longest ? s->used[b] : longest;
    return s->max_seqlen ? s->max_seqlen : longest;
}

struct side side_unpaged(const struct side *s)
{
    struct side x = *s;

    x.paged = false;
    return x;
}

void problem_side_buffers(struct problem *p)
{
    const struct side *q = &p->query, *k = &p->key;

    if (q->packed)
        problem_integers(p, BUFFER_CU_Q, q->cu_type, q->start, p->batch + 1);
    if (k->packed)
        problem_integers(p, BUFFER_CU_K, k->cu_type, k->start, p->batch + 1);
    if (q->has_used)
        problem_integers(p, BUFFER_USED_Q, q->used_type, q->used, p->batch);
    if (k->has_used)
        problem_integers(p, BUFFER_USED_K, k->used_type, k->used, p->batch);
    if (!k->paged)
        return;
    problem_integers(p, BUFFER_TABLE, k->table_type, k->table, p->batch * k->max_pages);
    for (int64_t n = 0; n < p->batch * k->max_pages; n++)
        if (k->table[n] < 0)
            p->buffers[BUFFER_TABLE].role[n] = ROLE_UNSEEN;
}

int64_t token_at(const struct side *s, int64_t b, int64_t t, int64_t stride)
{
    return s->packed ? s->start[b] + t : b * stride + t;
}

int64_t token_count(const struct side *s, int64_t batch, int64_t stride)
{
    return s->packed ? s->tokens : batch * stride;
}

void problem_mask_buffer(struct problem *p, enum buffer_name name)
{
    const bool keys = name == BUFFER_KEY_MASK;
    const int64_t n = token_count(keys ? &p->key : &p->query, p->batch,
                                  keys ? p->key_mask_stride : p->query_mask_stride);

    problem_buffer(p, name, 1, n);
    memset(p->buffers[name].image, 1, (size_t)n);
}

enum buffer_name query_mask_buffer(const struct problem *p)
{
    return p->one_mask ? BUFFER_KEY_MASK : BUFFER_QUERY_MASK;
}

int64_t tensor_at(const struct tensor *t, const struct side *s, int64_t b, int64_t token,
                  int64_t head)
{
    int64_t outer = s->packed ? 0 : b, row = s->packed ? s->start[b] + token : token;

    if (s->paged) {
        outer = s->table[b * s->max_pages + token / s->page_size];
        row = token % s->page_size;
    }
    return t->offset + outer * t->batch + row * t->token + head * t->head;
}

int64_t tensor_extent(const struct tensor *t, const struct side *s, int64_t batch)
{
    const int64_t rows = side_rows(s), outer = s->packed ? 1 : s->paged ? s->pages : batch;

    if (rows == 0 || outer == 0)
        return t->offset;
    return t->offset + (outer - 1) * (s->packed ? 0 : t->batch) + (rows - 1) * t->token +
           (t->heads - 1) * t->head + t->width;
}

int64_t plane_at(const struct plane *t, int64_t b, int64_t h, int64_t i, int64_t j)
{
    return t->offset + b * t->batch + h * t->head + i * t->query + j * t->key;
}

static struct plane plane_of_sequence(const struct problem *p, const struct plane *whole, int64_t b)
{
    struct plane t = *whole;

    t.offset += b * t.batch;
    if (p->bias_by_offset) {
        const int64_t nk = p->key.used[b], n = p->query.used[b] * nk;
        t.offset = p->bias_start[b];
        t.query = nk ? nk : 1; /* 0 would repeat */
        t.head = !p->bias_by_head ? 0 : n ? n : 1;
        t.key = 1;
    }
    t.batch = 0;
    return t;
}

struct plane problem_bias(const struct problem *p, int64_t b)
{
    return plane_of_sequence(p, &p->bias, b);
}

struct plane problem_dbias(const struct problem *p, int64_t b)
{
    return plane_of_sequence(p, &p->dbias, b);
}

struct plane problem_dbias_dense(const struct problem *p, int64_t *count)
{
    const bool offset = p->bias_by_offset, by_head = offset ? p->bias_by_head : p->dbias.head != 0;
    int64_t nq = 0, nk = 0;
    struct plane t = {.dtype = p->bias.dtype};

    for (int64_t b = 0; b < p->batch; b++) {
        nq = p->query.used[b] > nq ? p->query.used[b] : nq;
        nk = p->key.used[b] > nk ? p->key.used[b] : nk;
    }
    int64_t *const strides[] = {&t.key, &t.query, &t.head, &t.batch};
    const int64_t extents[] = {nk, nq, p->hq, p->batch};
    const bool axes[] = {offset || p->dbias.key, offset || p->dbias.query, by_head,
                         offset || p->dbias.batch};
    *count = 1;
    for (int n = 0; n < 4; n++) {
        *strides[n] = !axes[n] ? 0 : *count ? *count : 1; /* 0 would sum */
        *count *= axes[n] ? extents[n] : 1;
    }
    return t;
}
