/* SPDX-License-Identifier: BSD-3-Clause */
/* The named shapes that attnbench measures. */
#ifndef BENCH_CASES_H
#define BENCH_CASES_H

#include <stdbool.h>
#include <stdint.h>

#include "attn/attn.h"

struct bench_case {
    char name[40];
    bool causal;
    int64_t heads_q, heads_kv, head_dim; /* values have the same head size */
    int64_t batch;
    int64_t seqlen_q, seqlen_k; /* padded; not looked at when packed */
    const int32_t *cu_seqlens;  /* packed, of queries and keys alike, batch + 1; or null */
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

/* Work of one forward call: 2 (D + Dv) operations per visible pair and query head; bytes of K and
 * V, each counted once. */
double bench_case_flops(const struct bench_case *c);
double bench_case_kv_bytes(const struct bench_case *c, int64_t element_size);

#endif
