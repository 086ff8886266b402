/* SPDX-License-Identifier: BSD-3-Clause */
/* A KV cache in any layout. */
#ifndef TESTS_KV_H
#define TESTS_KV_H

#include "strided.h"

enum { KV_SEQUENCES = 4, KV_TABLE = 256 };

/* A cache of B sequences with room for so many tokens each, in any layout. */
struct kv {
    attn_layout layout;
    int64_t batch, room, page_size, max_pages, pages;
    int32_t cu[KV_SEQUENCES + 1];               /* packed */
    int32_t table[KV_TABLE];    /* paged */
    struct strided k, v;
};

/* All of it NaN. Pages come in any order, each of them of one sequence. */
struct kv kv_make(struct rng *r, attn_layout layout, attn_dtype dtype, int64_t batch, int64_t room,
                  int64_t heads, int64_t d, int64_t dv);
void kv_free(struct kv *c);

attn_side kv_side(const struct kv *c, attn_index lengths);

/* Where token t of sequence b is in the tensors. */
void kv_place(const struct kv *c, int64_t b, int64_t t, int64_t *outer, int64_t *token);

#endif
