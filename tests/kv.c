/* SPDX-License-Identifier: BSD-3-Clause */
#include "kv.h"

#include <string.h>

static void deal_pages(struct kv *c, struct rng *r)
{
    int32_t pages[KV_TABLE];
    const int64_t n = c->batch * c->max_pages;
    c->pages = n + rng_below(r, 4);
    for (int64_t i = 0; i < n; i++)
        pages[i] = (int32_t)i;
    for (int64_t i = n - 1; i > 0; i--) {
        const int64_t j = rng_below(r, i + 1);
        const int32_t other = pages[i];
        pages[i] = pages[j];
        pages[j] = other;
    }
    for (int64_t i = 0; i < n; i++)
        c->table[i] = pages[i];
}

struct kv kv_make(struct rng *r, attn_layout layout, attn_dtype dtype, int64_t batch, int64_t room,
                  int64_t heads, int64_t d, int64_t dv)
{
    struct kv c = {.layout = layout, .batch = batch, .room = room};
    int64_t outer = batch, tokens = room;
    if (layout == ATTN_PACKED) {
        for (int64_t b = 0; b < batch; b++)
            c.cu[b + 1] = c.cu[b] + (int32_t)room;
        outer = 1;
        tokens = batch * room + 1;
    } else if (layout == ATTN_PAGED) {
        c.page_size = 1 + rng_below(r, 7);
        c.max_pages = (room + c.page_size - 1) / c.page_size;
        deal_pages(&c, r);
        outer = c.pages;
        tokens = c.page_size;
    }
    c.k = strided_make(r, dtype, outer, tokens, heads, d, false);
    c.v = strided_make(r, dtype, outer, tokens, heads, dv, false);
    return c;
}

void kv_free(struct kv *c)
{
    strided_free(&c->k);
    strided_free(&c->v);
}

attn_side kv_side(const struct kv *c, attn_index lengths)
{
    attn_side s;
    memset(&s, 0, sizeof s);
    s.layout = c->layout;
    s.seqused = lengths;
    if (c->layout == ATTN_PADDED) {
        s.seqlen = c->room;
    } else if (c->layout == ATTN_PACKED) {
        s.tokens = c->batch * c->room + 1;
        s.cu_seqlens.data = c->cu;
    } else {
        s.pages = c->pages;
        s.page_size = c->page_size;
        s.max_pages = c->max_pages;
        s.block_table.data = c->table;
    }
    return s;
}

void kv_place(const struct kv *c, int64_t b, int64_t t, int64_t *outer, int64_t *token)
{
    *outer = c->layout == ATTN_PACKED ? 0 : b;
    *token = c->layout == ATTN_PACKED ? c->cu[b] + t : t;
    if (c->layout == ATTN_PAGED) {
        *outer = c->table[b * c->max_pages + t / c->page_size];
        *token = t % c->page_size;
    }
}
