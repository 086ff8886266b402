/* SPDX-License-Identifier: BSD-3-Clause */
/* Output rows that belong to no query. */
#include <math.h>
#include <string.h>

#include "problem.h"

static void clear_row(const struct attn_problem *p, int64_t b, int64_t row)
{
    const int64_t size = attn_dtype_size(p->dtype);
    const bool f64 = attn_compute_dtype(p->dtype) == ATTN_F64;
    for (int64_t h = 0; h < p->heads_q; h++) {
        char *out = p->out.data + (b * p->out.batch + row * p->out.token + h * p->out.head) * size;
        memset(out, 0, (size_t)(p->head_dim_v * size));
        if (!p->lse.data)
            continue;
        const int64_t at = b * p->lse.batch + row * p->lse.token + h * p->lse.head;
        if (f64)
            ((double *)p->lse.data)[at] = -INFINITY;
        else
            ((float *)p->lse.data)[at] = -INFINITY;
    }
}

void attn_clear_unused_rows(const struct attn_problem *p)
{
    int64_t end = 0; /* packed: past the last row of the last sequence */
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t start = attn_axis_start(&p->query, b);
        const int64_t room = attn_axis_room(&p->query, b);
        for (int64_t i = attn_axis_len(&p->query, b); i < room; i++)
            clear_row(p, b, start + i);
        end = start + room;
    }
    if (p->query.cu)
        for (int64_t row = end; row < p->query.rows; row++)
            clear_row(p, 0, row);
}
