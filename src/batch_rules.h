/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the batch helpers compute, entry by entry, for loops on the host and kernels on a device
 * alike. The host has checked what it can read; arrays on a device hold what they hold, and then
 * what names no row or token is left out. Compiles as C11 and as CUDA.
 */
#ifndef ATTN_BATCH_RULES_H
#define ATTN_BATCH_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "attn/attn.h"
#include "mask.h"

/* The tokens of [B, S] that are kept, by a mask or by lengths; the other is null. */
struct attn_kept {
    int64_t batch, seqlen;
    const uint8_t *mask;
    const int32_t *lengths;
};

/* Whether token s, below seqlen, of sequence b is kept. */
static inline ATTN_HD bool attn_keeps(const struct attn_kept *k, int64_t b, int64_t s)
{
    return k->mask ? k->mask[b * k->seqlen + s] != 0 : s < k->lengths[b];
}

/* One copy of rows; each call uses what it needs. */
struct attn_rows {
    const char *from;
    char *to;
    int64_t row_bytes;
    const int64_t *indices; /* [count] */
    const uint8_t *mask;    /* [total] */
    int64_t count, total;   /* packed rows, padded rows */
};

/* The n-th index if it is that of one of so many rows, else -1. */
static inline ATTN_HD int64_t attn_row_of(const int64_t *indices, int64_t n, int64_t rows)
{
    return indices[n] >= 0 && indices[n] < rows ? indices[n] : -1;
}

/* Sums of rows of dout; those that go to row r of dx are order[starts[r]] to
 * order[starts[r + 1] - 1], ascending. */
struct attn_sums {
    attn_dtype dtype;
    int64_t width, total, count; /* total: rows of dx, count: of dout */
    const void *dout;
    void *dx;
    const int64_t *indices; /* [count], which row of dx each goes to */
    int64_t *starts, *order; /* [total + 1], [count] */
};

/* Position ids of packed rows. */
struct attn_positions {
    int64_t batch;
    const int32_t *cu_seqlens, *offsets; /* [B + 1]; [B], may be null */
    int64_t *positions;
};

/* Of a row that sequence b owns. */
static inline ATTN_HD int64_t attn_position_of(const struct attn_positions *p, int64_t b,
                                               int64_t row)
{
    return row - p->cu_seqlens[b] + (p->offsets ? p->offsets[b] : 0);
}

#endif
