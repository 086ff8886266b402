/* SPDX-License-Identifier: BSD-3-Clause */
/* Masks, and what dropout draws: the rules of score.h and philox.h for some keys or lanes at a
 * time. */
#ifndef ATTN_CPU_MASKS_H
#define ATTN_CPU_MASKS_H

#include "cpu/tmpl.h"

/* What all of some rows see of some keys. */
enum sight { SEE_NONE, SEE_SOME, SEE_ALL };

/* Clears ok[j] where byte j * stride is 0. */
INLINE void keep_true(uint8_t *restrict ok, const char *restrict bytes, int64_t stride, int64_t n)
{
    if (stride == 1) /* so that compilers see it */
        for (int64_t j = 0; j < n; j++)
            ok[j] &= (uint8_t)(bytes[j] != 0);
    else
        for (int64_t j = 0; j < n; j++)
            ok[j] &= (uint8_t)(bytes[j * stride] != 0);
}

/* Clears ok[] in blocks of keys that the block mask hides from one block of queries. */
static void keep_blocks(uint8_t *ok, const struct attn_unit *u, int64_t head, int64_t query,
                        int64_t key, int64_t n)
{
    const struct attn_problem *p = u->p;
    const struct attn_score_view *m = &p->block_mask;
    for (int64_t j = 0, end; j < n; j = end) {
        const int64_t block = (key + j) / p->block_k;
        end = min64((block + 1) * p->block_k - key, n);
        if (!m->data[attn_score_at(m, u->b, head, query / p->block_q, block)])
            memset(ok + j, 0, (size_t)(end - j));
    }
}

static void keep_document(uint8_t *restrict ok, const struct attn_unit *u, int64_t query,
                          int64_t key, int64_t n)
{
    const struct attn_integers *q = &u->p->query_docs, *k = &u->p->key_docs;
    const int64_t own = attn_index_at(q->data, q->is64, u->seq.query0 + query);
    const int64_t at = u->seq.key0 + key;
    const int64_t *restrict const of64 = k->data;
    const int32_t *restrict const of32 = k->data;
    if (k->is64)
        for (int64_t j = 0; j < n; j++)
            ok[j] &= (uint8_t)(of64[at + j] == own);
    else
        for (int64_t j = 0; j < n; j++)
            ok[j] &= (uint8_t)(of32[at + j] == own);
}

/* Clears ok[j] where a mask that each query has for itself hides key j of n from `key` on. */
static void keep_own(uint8_t *ok, const struct attn_unit *u, int64_t head, int64_t query,
                     int64_t key, int64_t n)
{
    const struct attn_problem *p = u->p;
    if (u->seq.query_mask && !u->seq.query_mask[query]) {
        memset(ok, 0, (size_t)n);
        return;
    }
    if (p->mask.data) { /* of which the bytes of the keys that follow are asked for */
        const char *const mask = p->mask.data + attn_score_at(&p->mask, u->b, head, query, key);
        for (int64_t j = 0; p->mask.key == 1 && j < n; j += LINE)
            __builtin_prefetch((const void *)((uintptr_t)mask + (size_t)(n + j)));
        keep_true(ok, mask, p->mask.key, n);
    }
    if (p->query_docs.data)
        keep_document(ok, u, query, key, n);
}

/* Draws above `above` keep their key, or all do. */
struct keeping {
    uint32_t above;
    uint32_t all; /* 0 or 1 */
};

INLINE struct keeping keeping_of(const struct attn_dropout *d)
{
    return (struct keeping){(uint32_t)(d->least - 1), d->least == 0};
}

INLINE uint32_t is_kept(struct keeping k, uint32_t draw) { return (draw > k.above) | k.all; }

/* Four words of Philox for each lane: counters in, draws out. See philox.h. Words of even and of
 * odd lanes are in vectors of their own, where only the low halves count: products need no parting.
 */
static void draw(uint32_t x[4][BQ], uint64_t seed)
{
    for (int lane = 0; lane < BQ; lane += VEC_N) {
        uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
        vec_pairs w[4][2];
        for (int i = 0; i < 4; i++) {
            memcpy(&w[i][0], x[i] + lane, sizeof w[i][0]);
            w[i][1] = w[i][0] >> 32;
        }
        for (int round = 0; round < 10; round++) {
            for (int half = 0; half < 2; half++) {
                vec_pairs first, second;
                vec_words_mul(&first, &w[0][half], 0xd2511f53u);
                vec_words_mul(&second, &w[2][half], 0xcd9e8d57u);
                w[0][half] = (second >> 32) ^ w[1][half] ^ key0;
                w[1][half] = second;
                w[2][half] = (first >> 32) ^ w[3][half] ^ key1;
                w[3][half] = first;
            }
            key0 += 0x9e3779b9u;
            key1 += 0xbb67ae85u;
        }
        for (int i = 0; i < 4; i++) {
            const vec_pairs all = (w[i][0] & UINT32_MAX) | w[i][1] << 32;
            memcpy(x[i] + lane, &all, sizeof all);
        }
    }
}

#endif
