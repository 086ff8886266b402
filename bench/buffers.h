/* SPDX-License-Identifier: BSD-3-Clause */
/* The tensors of a case, in several copies that calls rotate over so that caches are cold. */
#ifndef BENCH_BUFFERS_H
#define BENCH_BUFFERS_H

#include "cases.h"

struct bench_set {
    char *q, *k, *v, *out; /* [rows][heads][head_dim], aligned to 64 bytes */
};

struct bench_buffers {
    const struct bench_case *c;
    attn_dtype dtype;
    int64_t element_size;
    size_t q_bytes, kv_bytes; /* of q or out; of k or v */
    struct bench_set *sets;   /* the same values in each */
    int32_t count, next;
};

/* Copies enough to be several times the last-level cache. False: no memory. */
bool bench_buffers_create(struct bench_buffers *b, const struct bench_case *c, attn_dtype dtype,
                          bool cold);
void bench_buffers_destroy(struct bench_buffers *b);

/* The next set in turn. */
const struct bench_set *bench_buffers_turn(struct bench_buffers *b);

/* The call that computes the case on a set. */
attn_desc bench_desc(const struct bench_buffers *b, const struct bench_set *set);

#endif
