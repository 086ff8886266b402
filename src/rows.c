/* SPDX-License-Identifier: BSD-3-Clause */
/* Output rows that belong to no query or key, and sums of keys that no query attends. */
#include <math.h>
#include <string.h>

#include "score.h"

/* 0 to one token of a tensor, n elements for each head. */
static void clear_token(const struct attn_problem *p, const struct attn_view *v, int64_t b,
                        int64_t row, int64_t heads, int64_t n)
{
    const int64_t size = attn_dtype_size(p->dtype);
    for (int64_t h = 0; h < heads; h++)
        memset(v->data + (b * v->batch + row * v->token + h * v->head) * size, 0,
               (size_t)(n * size));
}

static void put_number(const struct attn_problem *p, const struct attn_view *v, int64_t at,
                       double x)
{
    attn_put_number(v->data, attn_compute_dtype(p->dtype), at, x);
}

static void clear_query(const struct attn_problem *p, int64_t b, int64_t row)
{
    if (p->pass == ATTN_PASS_BACKWARD) {
        clear_token(p, &p->dq, b, row, p->heads_q, p->head_dim);
        return;
    }
    clear_token(p, &p->out, b, row, p->heads_q, p->head_dim_v);
    for (int64_t h = 0; p->lse.data && h < p->heads_q; h++)
        put_number(p, &p->lse, b * p->lse.batch + row * p->lse.token + h * p->lse.head, -INFINITY);
}

static void clear_key(const struct attn_problem *p, int64_t b, int64_t row)
{
    clear_token(p, &p->dk, b, row, p->heads_kv, p->head_dim);
    clear_token(p, &p->dv, b, row, p->heads_kv, p->head_dim_v);
}

/* Rows of one side, padded or packed, that no token uses. */
static void clear_unused(const struct attn_problem *p, const struct attn_axis *axis,
                         void (*clear)(const struct attn_problem *p, int64_t b, int64_t row))
{
    int64_t end = 0; /* packed: past the last row of the last sequence */
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t start = attn_axis_start(axis, b), room = attn_axis_room(axis, b);
        for (int64_t i = attn_axis_len(axis, b); i < room; i++)
            clear(p, b, start + i);
        end = start + room;
    }
    for (int64_t row = end; axis->cu && row < axis->rows; row++)
        clear(p, 0, row);
}

static void clear_sums(const struct attn_problem *p, int64_t b, int64_t j)
{
    for (int64_t h = 0; h < p->heads_q; h++)
        put_number(p, &p->key_sums, attn_number_index(&p->key_sums, &p->key, b, j, h), 0);
}

static void clear_unused_sums(const struct attn_problem *p)
{
    int64_t end = 0; /* packed: past the last key of the last sequence */
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t room = p->key.cu ? attn_axis_room(&p->key, b) : p->key.span;
        const int64_t used = attn_axis_len(&p->query, b) ? attn_axis_len(&p->key, b) : 0;
        for (int64_t j = used; j < room; j++)
            clear_sums(p, b, j);
        end = attn_axis_start(&p->key, b) + room;
    }
    for (int64_t row = end; p->key.cu && row < p->key.rows; row++)
        clear_sums(p, 0, row); /* sequence 0 starts at row 0 */
}

void attn_clear_unused_rows(const struct attn_problem *p)
{
    if (p->key_sums.data)
        clear_unused_sums(p);
    clear_unused(p, &p->query, clear_query);
    if (p->pass == ATTN_PASS_BACKWARD)
        clear_unused(p, &p->key, clear_key);
}
