/* SPDX-License-Identifier: BSD-3-Clause */
/* The named shapes that attnbench measures. */
#ifndef BENCH_CASES_H
#define BENCH_CASES_H

#include <stdbool.h>
#include <stdint.h>

#include "attn/attn.h"

/* What a call asks for beyond the plain product, to see what it costs; the shape is square. */
enum bench_feature {
    BENCH_PLAIN,
    BENCH_BIAS,    /* f32 [Sq, Sk], repeated over batch and heads */
    BENCH_MASK,    /* bytes [Sq, Sk], all 1 */
    BENCH_BLOCKS,  /* blocks of BENCH_BLOCK, those hidden whose numbers add up to an odd one */
    BENCH_WINDOW,  /* BENCH_WIDTH keys back, causal */
    BENCH_ALIBI,   /* slopes 1/2 to 1/256 */
    BENCH_SOFTCAP, /* of BENCH_CAP */
    BENCH_WIDE     /* queries BENCH_WIDER times as large */
};
enum { BENCH_BLOCK = 128, BENCH_WIDTH = 255, BENCH_CAP = 30, BENCH_WIDER = 64 };

enum bench_pass { BENCH_FWD, BENCH_BWD, BENCH_FWDBWD };

struct bench_case {
    char name[40];
    bool causal;
    int64_t heads_q, heads_kv, head_dim; /* values have the same head size */
    int64_t batch;
    int64_t seqlen_q, seqlen_k; /* padded; not looked at when packed */
    const int32_t *cu_seqlens;  /* packed, of queries and keys alike, batch + 1; or null */
    enum bench_feature feature;
};

/* All cases; *count is their number. */
const struct bench_case *bench_cases(int32_t *count);

/* Queries and keys of sequence b, and rows of the whole q and k tensors. */
int64_t bench_case_nq(const struct bench_case *c, int64_t b);
int64_t bench_case_nk(const struct bench_case *c, int64_t b);
int64_t bench_case_rows_q(const struct bench_case *c);
int64_t bench_case_rows_k(const struct bench_case *c);

/* One query per sequence: limited by reading K and V rather than by arithmetic. */
bool bench_case_is_decode(const struct bench_case *c);

/* Work of a pass: 2 (D + Dv) operations per visible pair and query head, of which the forward call
 * has two products and the backward call five; bytes of K and V, each counted once. */
double bench_case_flops(const struct bench_case *c, enum bench_pass pass);
double bench_case_kv_bytes(const struct bench_case *c, int64_t element_size);

#endif
