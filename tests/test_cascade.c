/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A cascade: sequences that share a prefix. All queries attend to the prefix's keys, which are read
 * once for all of them, and each sequence to its own keys; merged, that is attention over both.
 */
#include <string.h>

#include "attn/attn.h"
#include "element.h"
#include "expect.h"
#include "strided.h"
#include "whole.h"

enum { SEQUENCES = 4, HQ = 6, HKV = 2, D = 12, DV = 10 };

struct cascade {
    attn_dtype dtype;
    int64_t prefix;
    int32_t cu_q[SEQUENCES + 1], cu_k[SEQUENCES + 1]; /* of queries, of each one's own keys */
    struct strided q, k, v, prefix_k, prefix_v, out[2], lse[2];
};

static void draw_cascade(struct cascade *c, attn_dtype dtype, struct rng *r)
{
    memset(c, 0, sizeof *c);
    c->dtype = dtype;
    c->prefix = rng_below(r, 90);
    for (int b = 0; b < SEQUENCES; b++) {
        const int32_t own = (int32_t)rng_below(r, 40);
        c->cu_k[b + 1] = c->cu_k[b] + own;
        c->cu_q[b + 1] = c->cu_q[b] + (int32_t)(rng_chance(r, 50) ? own : rng_below(r, own + 1));
    }
    const int64_t tq = c->cu_q[SEQUENCES], tk = c->cu_k[SEQUENCES];
    c->q = strided_make(r, dtype, 1, tq, HQ, D, false);
    c->k = strided_make(r, dtype, 1, tk, HKV, D, false);
    c->v = strided_make(r, dtype, 1, tk, HKV, DV, false);
    c->prefix_k = strided_make(r, dtype, 1, c->prefix, HKV, D, false);
    c->prefix_v = strided_make(r, dtype, 1, c->prefix, HKV, DV, false);
    struct strided *inputs[] = {&c->q, &c->k, &c->v, &c->prefix_k, &c->prefix_v};
    for (int n = 0; n < 5; n++)
        strided_fill(inputs[n], r);
    for (int n = 0; n < 2; n++) {
        c->out[n] = strided_make(r, dtype, 1, tq, HQ, DV, false);
        c->lse[n] = strided_make(r, element_computing(dtype), 1, tq, HQ, 1, true);
    }
}

static attn_desc attention(const struct cascade *c, int part)
{
    attn_desc d = attn_desc_init();
    d.heads_q = HQ;
    d.heads_kv = HKV;
    d.head_dim = D;
    d.head_dim_v = DV;
    d.q = strided_input(&c->q);
    d.out = strided_output(&c->out[part]);
    d.lse = strided_output(&c->lse[part]);
    return d;
}

/* All queries against the prefix, as one sequence; each sequence against its own keys; merged into
 * the first. */
static attn_status run_cascade(const struct cascade *c)
{
    attn_desc shared = attention(c, 0), own = attention(c, 1);
    shared.batch = 1;
    shared.query.seqlen = c->cu_q[SEQUENCES];
    shared.key.seqlen = c->prefix;
    shared.k = strided_input(&c->prefix_k);
    shared.v = strided_input(&c->prefix_v);
    own.batch = SEQUENCES;
    own.query.layout = own.key.layout = ATTN_PACKED;
    own.query.tokens = c->cu_q[SEQUENCES];
    own.query.cu_seqlens.data = c->cu_q;
    own.key.tokens = c->cu_k[SEQUENCES];
    own.key.cu_seqlens.data = c->cu_k;
    own.causal = 1;
    own.align = ATTN_BOTTOM_RIGHT;
    own.k = strided_input(&c->k);
    own.v = strided_input(&c->v);

    const attn_input outs[2] = {strided_input(&c->out[0]), strided_input(&c->out[1])};
    const attn_input lses[2] = {strided_input(&c->lse[0]), strided_input(&c->lse[1])};
    attn_merge_desc merge = attn_merge_desc_init();
    merge.batch = 1;
    merge.seqlen = c->cu_q[SEQUENCES];
    merge.heads = HQ;
    merge.head_dim = DV;
    merge.parts = 2;
    merge.part_out = outs;
    merge.part_lse = lses;
    merge.out = shared.out;
    merge.lse = shared.lse;
    attn_status status = attn_forward(NULL, &shared);
    if (status == ATTN_OK)
        status = attn_forward(NULL, &own);
    return status == ATTN_OK ? attn_merge(NULL, &merge) : status;
}

/* Prefix and own keys of sequence b as one. */
static int64_t sequence_faults(const struct cascade *c, int b)
{
    const int64_t nq = c->cu_q[b + 1] - c->cu_q[b], own = c->cu_k[b + 1] - c->cu_k[b];
    struct whole w = whole_make(c->dtype, nq, c->prefix + own, HQ, HKV, D, DV);
    for (int64_t j = 0; j < c->prefix; j++)
        whole_key(&w, j, &c->prefix_k, &c->prefix_v, 0, j);
    for (int64_t j = 0; j < own; j++)
        whole_key(&w, c->prefix + j, &c->k, &c->v, 0, c->cu_k[b] + j);
    for (int64_t i = 0; i < nq; i++) {
        whole_query(&w, i, &c->q, 0, c->cu_q[b] + i);
        whole_result(&w, i, &c->out[0], &c->lse[0], 0, c->cu_q[b] + i);
    }
    const int64_t faults = whole_faults(&w);
    whole_free(&w);
    return faults;
}

static void test_cascade(int64_t seed)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};
    struct rng r = rng_seeded((uint64_t)seed);
    struct cascade c;
    draw_cascade(&c, types[seed % 4], &r);
    const attn_status status = run_cascade(&c);
    EXPECT(status == ATTN_OK, "cascade %lld: %s", (long long)seed, attn_last_message(NULL));
    for (int b = 0; b < SEQUENCES && status == ATTN_OK; b++)
        EXPECT(sequence_faults(&c, b) == 0, "cascade %lld, %s: sequence %d is not the whole",
               (long long)seed, element_name(c.dtype), b);
    struct strided *all[] = {&c.q, &c.k, &c.v, &c.prefix_k, &c.prefix_v, &c.out[0], &c.out[1],
                             &c.lse[0], &c.lse[1]};
    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++)
        strided_free(all[n]);
}

/* --count N: only so many of them. */
int main(int argc, char **argv)
{
    const int64_t count = report_count(argc, argv, 24);
    report_begin("cascade");
    for (int64_t seed = 0; seed < count; seed++)
        test_cascade(seed);
    return report_end();
}
