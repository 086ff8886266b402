/* SPDX-License-Identifier: BSD-3-Clause */
/* The tensors of a case, in several copies that calls rotate over so that caches are cold. */
#ifndef BENCH_BUFFERS_H
#define BENCH_BUFFERS_H

#include "cases.h"

struct bench_set {
    char *q, *k, *v, *out;      /* [rows][heads][head_dim], aligned to 64 bytes */
    char *dout, *dq, *dk, *dv;  /* likewise; null where there is no backward call, as lse */
    char *lse;                  /* [batch][heads][queries], packed [heads][rows] */
};

struct bench_buffers {
    const struct bench_case *c;
    attn_dtype dtype;
    enum bench_pass pass;
    int64_t element_size;
    size_t q_bytes, kv_bytes, lse_bytes; /* of q, out, dout or dq; of k, v, dk or dv */
    struct bench_set *sets;   /* the same values in each */
    int32_t count, next;
    void *extra; /* the feature's tensor; null if it has none */
};

/* Copies enough to be several times the last-level cache. False: no memory. */
bool bench_buffers_create(struct bench_buffers *b, const struct bench_case *c, attn_dtype dtype,
                          enum bench_pass pass, bool cold);
void bench_buffers_destroy(struct bench_buffers *b);

/* Element type of lse. */
attn_dtype bench_lse_dtype(attn_dtype dtype);

/* The results of the first set become NaN, which shows what is not written. */
void bench_buffers_spoil(struct bench_buffers *b);

/* Every set gets the out and lse of the first: what a backward call reads. */
void bench_buffers_spread(struct bench_buffers *b);

/* The next set in turn. */
const struct bench_set *bench_buffers_turn(struct bench_buffers *b);

/* The calls that compute the pass on a set. */
attn_status bench_call(attn_context *context, const struct bench_buffers *b,
                       const struct bench_set *set);
/* The first of them, or for a backward pass what comes before it. */
attn_status bench_call_forward(attn_context *context, const struct bench_buffers *b,
                               const struct bench_set *set);

#endif
