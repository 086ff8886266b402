/* SPDX-License-Identifier: BSD-3-Clause */
/* What goes before the kernels that compute: arrays of the host's, rows of the outputs that belong
 * to no query. */
#ifndef ATTN_CUDA_PREPARE_H
#define ATTN_CUDA_PREPARE_H

#include "cuda/device.h"
#include "cuda/owner.h"
#include "cuda/stream.h"
#include "score.h"

namespace prepare {

enum { THREADS = 128 };

struct words {
    uint32_t *to;
    int count;
    uint32_t word[ATTN_CUDA_PUT_BYTES / 4];
};

KERNEL put(GRID_CONSTANT const struct words w)
{
    for (int i = dev::thread(); i < w.count; i += THREADS)
        w.to[i] = w.word[i];
}

/* The sequence that a row belongs to; the batch where it is past them all. */
DEVICE int64_t sequence_of(const struct attn_problem *p, int64_t row)
{
    const struct attn_axis *const q = &p->query;
    if (!q->cu)
        return row / q->room;
    if (row >= attn_index_at(q->cu, q->cu64, p->batch))
        return p->batch;
    return owner_of(q->cu, q->cu64, p->batch, row);
}

/* A block of the grid takes every blocks()-th row of the tensors. */
KERNEL clear_rows(GRID_CONSTANT const struct attn_problem p)
{
    const int64_t size = attn_dtype_size(p.dtype);
    for (int64_t row = dev::block(); row < p.query.rows; row += dev::blocks()) {
        const int64_t b = sequence_of(&p, row);
        const int64_t start = !p.query.cu ? b * p.query.room
                              : b < p.batch ? attn_axis_start(&p.query, b)
                                            : 0;
        if (b < p.batch && row - start < attn_axis_len(&p.query, b))
            continue;
        const int64_t outer = p.query.cu ? 0 : b, inner = p.query.cu ? row : row - start;
        for (int64_t h = 0; h < p.heads_q; h++) {
            char *const out = p.out.data + (outer * p.out.batch + inner * p.out.token +
                                            h * p.out.head) * size;
            for (int64_t c = dev::thread(); c < p.head_dim_v; c += THREADS)
                attn_put_number(out, p.dtype, c, 0);
            if (dev::thread() == 0 && p.lse.data)
                attn_put_number(p.lse.data, attn_compute_dtype(p.dtype),
                                outer * p.lse.batch + inner * p.lse.token + h * p.lse.head,
                                -(double)INFINITY);
        }
    }
}

} // namespace prepare

#endif
