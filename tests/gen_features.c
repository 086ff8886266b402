/* SPDX-License-Identifier: BSD-3-Clause */
/* What only some problems ask for: keys in pages, masks of all kinds, dropout, more results. */
#include <string.h>

#include "gen.h"
#include "memory.h"

enum { MOST_ELEMENTS = 300000 }; /* of one tensor over scores */

static int64_t longest_of(const struct side *s, int64_t batch)
{
    int64_t longest = 0;

    for (int64_t b = 0; b < batch; b++)
        longest = s->used[b] > longest ? s->used[b] : longest;
    return longest;
}

static attn_itype draw_type(struct rng *r) { return rng_chance(r, 50) ? ATTN_I64 : ATTN_I32; }

/* Pages in any order; some sequences share those of the one before. */
static void draw_table(struct side *s, int64_t batch, struct rng *r)
{
    const bool share = rng_chance(r, 30);
    int64_t *pages = test_alloc((size_t)(s->pages + 1) * sizeof *pages), next = 0;

    for (int64_t n = 0; n < s->pages; n++) {
        const int64_t other = rng_below(r, n + 1);
        pages[n] = pages[other];
        pages[other] = n;
    }
    for (int64_t b = 0; b < batch; b++)
        for (int64_t n = 0; n < s->max_pages; n++) {
            int64_t *at = &s->table[b * s->max_pages + n];
            *at = -1;
            if (n * s->page_size >= s->used[b])
                continue;
            const bool shared = share && b > 0 && at[-s->max_pages] >= 0 && rng_chance(r, 60);
            *at = shared ? at[-s->max_pages] : pages[next++];
        }
    free(pages);
}

void gen_pages(struct problem *p, struct rng *r)
{
    static const int16_t sizes[] = {1, 2, 3, 4, 7, 8, 16, 16, 17, 31, 32, 64, 100, 128, 256};
    struct side *s = &p->key, old = p->key;
    const int64_t longest = longest_of(s, p->batch);

    *s = (struct side){.paged = true, .has_used = true, .table_type = draw_type(r),
                       .used_type = old.used_type, .page_size = RNG_PICK(r, sizes)};
    memcpy(s->used, old.used, sizeof s->used);
    if (rng_chance(r, 30))
        s->max_seqlen = longest + rng_below(r, 9);
    s->seqlen = s->max_seqlen ? s->max_seqlen : longest;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t n = (s->used[b] + s->page_size - 1) / s->page_size;
        s->room[b] = s->seqlen;
        s->pages += n;
        s->max_pages = n > s->max_pages ? n : s->max_pages;
    }
    s->pages += rng_below(r, 5);
    s->max_pages += rng_below(r, 4);
    s->table = test_alloc((size_t)(p->batch * s->max_pages) * sizeof *s->table);
    draw_table(s, p->batch, r);
}

/* Strides of the axes in `order`, last one innermost; those that are not in `axes` repeat. */
static int64_t set_strides(struct plane *t, const int64_t *extent, const bool *axes,
                           const int *order, struct rng *r)
{
    int64_t *const strides[] = {&t->batch, &t->head, &t->query, &t->key};
    const bool gaps = rng_chance(r, 25);
    int64_t next = gaps ? 1 + rng_below(r, 2) : 1;

    for (int n = 3; n >= 0; n--) {
        *strides[order[n]] = axes[order[n]] ? next : 0;
        if (axes[order[n]])
            next = next * extent[order[n]] + (gaps ? rng_below(r, 4) : 0);
    }
    t->offset = gaps ? rng_below(r, 10) : 0;
    return t->offset + next;
}

struct plane gen_plane_over(struct problem *p, enum buffer_name name, attn_dtype dtype,
                            int64_t rows, int64_t columns, const bool axes[4], struct rng *r)
{
    static const int orders[][4] = {{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}, {0, 2, 1, 3},
                                    {1, 0, 2, 3}, {0, 1, 3, 2}, {3, 2, 1, 0}};
    const int64_t extent[] = {p->batch, p->hq, rows, columns};
    struct plane t = {.dtype = dtype};

    const int64_t count = set_strides(&t, extent, axes, RNG_PICK(r, orders), r);
    problem_buffer(p, name, dtype == ATTN_BOOL ? 1 : element_size(dtype), count);
    return t;
}

struct plane gen_plane(struct problem *p, enum buffer_name name, attn_dtype dtype, int64_t rows,
                       int64_t columns, struct rng *r)
{
    const int64_t extent[] = {p->batch, p->hq, rows, columns};
    bool axes[4];

    for (int n = 0; n < 4; n++)
        axes[n] = rng_chance(r, n < 2 ? 50 : 75);
    for (int n = 0; n < 4; n++) { /* too large: without the first axes */
        int64_t count = 1;
        for (int m = 0; m < 4; m++)
            count *= axes[m] && extent[m] ? extent[m] : 1;
        if (count > MOST_ELEMENTS)
            axes[n] = false;
    }
    return gen_plane_over(p, name, dtype, rows, columns, axes, r);
}

/* Mostly ones or mostly zeros, and a run of zeros. */
static void fill_mask(struct buffer *b, struct rng *r)
{
    static const int8_t shares[] = {0, 10, 50, 50, 80, 95, 100};
    const int share = RNG_PICK(r, shares);
    const int64_t from = rng_below(r, b->count + 1);
    const int64_t to = rng_chance(r, 30) ? from + rng_below(r, b->count - from + 1) : from;

    for (int64_t n = 0; n < b->count; n++)
        b->image[n] = rng_chance(r, share) && (n < from || n >= to)
                          ? (uint8_t)(1 + rng_below(r, 255))
                          : 0;
}

static void draw_query_mask(struct problem *p, struct rng *r)
{
    const struct side *q = &p->query, *k = &p->key;
    const int64_t extra = rng_chance(r, 30) ? rng_below(r, 20) : 0;
    const size_t lengths = (size_t)p->batch * sizeof *q->used;
    const bool alike = q->packed == k->packed && !k->paged && side_rows(q) == side_rows(k) &&
                       memcmp(q->used, k->used, lengths) == 0 &&
                       memcmp(q->start, k->start, lengths) == 0;

    p->has_query_mask = true;
    p->one_mask = p->has_key_mask && alike && rng_chance(r, 60);
    p->query_mask_stride = p->one_mask ? p->key_mask_stride : q->seqlen + extra;
    p->query_mask_given = p->one_mask                     ? p->key_mask_given
                          : extra || rng_chance(r, 50) ? p->query_mask_stride
                                                          : 0;
    if (p->one_mask)
        return;
    problem_mask_buffer(p, BUFFER_QUERY_MASK);
    for (int64_t b = 0; b < p->batch; b++)
        gen_token_mask(p->buffers[BUFFER_QUERY_MASK].image +
                           token_at(q, b, 0, p->query_mask_stride), q->used[b], r);
}

static int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }

static void draw_score_masks(struct problem *p, bool mask, bool block, struct rng *r)
{
    static const int16_t sizes[] = {1, 2, 5, 16, 16, 32, 48, 64, 64, 100, 128, 1000};
    const int64_t nq = side_span(&p->query, p->batch), nk = side_span(&p->key, p->batch);

    p->has_mask = mask;
    p->has_block_mask = block;
    if (mask) {
        p->mask = gen_plane(p, BUFFER_MASK, ATTN_BOOL, nq, nk, r);
        fill_mask(&p->buffers[BUFFER_MASK], r);
    }
    if (block) {
        p->block_q = RNG_PICK(r, sizes);
        p->block_k = RNG_PICK(r, sizes);
        p->block = gen_plane(p, BUFFER_BLOCK_MASK, ATTN_BOOL, blocks(nq, p->block_q),
                             blocks(nk, p->block_k), r);
        fill_mask(&p->buffers[BUFFER_BLOCK_MASK], r);
    }
}

/* Documents of one side: runs of any length, or any of a few at each token. `base` and `step` make
 * numbers of any size; those of 64 bits may agree in their lower half. */
static void fill_docs(struct problem *p, enum buffer_name name, attn_itype type, bool runs,
                      int64_t base, int64_t step, const struct rng *seed)
{
    const struct side *s = name == BUFFER_DOCS_Q ? &p->query : &p->key;

    problem_buffer(p, name, type == ATTN_I64 ? 8 : 4, token_count(s, p->batch, s->seqlen));
    for (int64_t b = 0; b < p->batch; b++) {
        struct rng r = *seed; /* the same for queries and keys */
        int64_t doc = 0;
        for (int64_t t = 0; t < s->used[b]; t++) {
            if (!runs)
                doc = rng_below(&r, 3);
            else if (rng_chance(&r, 8))
                doc++;
            problem_set_integer(p, name, type, token_at(s, b, t, s->seqlen), base + step * doc);
        }
    }
}

static void draw_docs(struct problem *p, struct rng *r)
{
    const bool runs = rng_chance(r, 70), wide = rng_chance(r, 30);
    const int64_t base = rng_below(r, 2000) - 1000, step = wide ? INT64_C(1) << 32 : 1;
    const struct rng seed = rng_seeded(rng_next(r));

    p->has_docs = true;
    p->query_docs_type = wide ? ATTN_I64 : draw_type(r);
    p->key_docs_type = wide ? ATTN_I64 : draw_type(r);
    fill_docs(p, BUFFER_DOCS_Q, p->query_docs_type, runs, base, step, &seed);
    fill_docs(p, BUFFER_DOCS_K, p->key_docs_type, runs, base, step, &seed);
}

static void draw_prefix(struct problem *p, struct rng *r)
{
    p->has_prefix = true;
    p->prefix_type = draw_type(r);
    for (int64_t b = 0; b < p->batch; b++)
        p->prefix[b] = rng_below(r, p->key.used[b] + (rng_chance(r, 10) ? 50 : 1));
    problem_integers(p, BUFFER_PREFIX, p->prefix_type, p->prefix, p->batch);
}

/* A share next to 1 keeps nothing, and yet is none of 1. */
static void draw_dropout(struct problem *p, struct rng *r)
{
    static const double usual[] = {0.1, 0.1, 0.5, 0.9, 1, 1e-12, 0.2, 1 - 1e-12};
    const int64_t most = (INT64_C(1) << 32) / p->hq - p->batch;

    p->dropout = rng_chance(r, 70) ? RNG_PICK(r, usual) : 0.9 * rng_uniform(r);
    p->dropout_seed = rng_next(r);
    p->dropout_offset = rng_chance(r, 50) ? (uint32_t)rng_next(r) : 0;
    p->first_sequence = rng_chance(r, 50) ? rng_below(r, most) : 0;
}

static void draw_results(struct problem *p, struct rng *r)
{
    const int64_t nq = side_span(&p->query, p->batch), nk = side_span(&p->key, p->batch);
    const bool small = p->batch * p->hq * nq * nk <= MOST_ELEMENTS;

    if (p->backward)
        return;
    p->has_probs = small && rng_chance(r, 12);
    p->has_tiles = small && rng_chance(r, 20);
    p->has_sums = rng_chance(r, 20);
}

void gen_features(struct problem *p, struct rng *r)
{
    p->softcap = 0;
    if (p->causal && rng_chance(r, 40))
        draw_prefix(p, r);
    if (rng_chance(r, 25))
        draw_query_mask(p, r);
    const bool mask = rng_chance(r, 25), block = rng_chance(r, 20);
    draw_score_masks(p, mask, block, r);
    if (rng_chance(r, 20))
        draw_docs(p, r);
    if (rng_chance(r, 25))
        draw_dropout(p, r);
    draw_results(p, r);
    gen_scores(p, r);
    p->plain = !(p->key.paged || p->softcap != 0 || p->has_bias || p->has_alibi || p->has_sink ||
                 p->has_prefix || p->has_query_mask || mask || block || p->has_docs ||
                 p->dropout != 0 || p->has_probs || p->has_tiles || p->has_sums);
}
