/* SPDX-License-Identifier: BSD-3-Clause */
/* A tensor [batch][token][head][run] in memory of its own, with strides drawn at random. */
#ifndef TESTS_STRIDED_H
#define TESTS_STRIDED_H

#include "attn/attn.h"
#include "rng.h"

struct strided {
    attn_dtype dtype;
    int64_t extent[3], run, stride[3];
    bool plain;       /* contiguous, and told so by strides of 0 */
    int64_t elements; /* of the memory, gaps included */
    void *data;
};

/* Axes in any order, with gaps or without; all of it NaN. heads_first: plain is [batch][head]
 * [token]. */
struct strided strided_make(struct rng *r, attn_dtype dtype, int64_t batch, int64_t tokens,
                            int64_t heads, int64_t run, bool heads_first);
struct strided strided_copy(const struct strided *t);
void strided_free(struct strided *t);

/* Index of the first element of a run in data. */
int64_t strided_at(const struct strided *t, int64_t batch, int64_t token, int64_t head);

double strided_get(const struct strided *t, int64_t batch, int64_t token, int64_t head, int64_t n);
void strided_set(struct strided *t, int64_t batch, int64_t token, int64_t head, int64_t n,
                 double x);

/* A token of one tensor, all of its heads, into another. */
void strided_put(struct strided *to, int64_t batch, int64_t token, const struct strided *from,
                 int64_t from_batch, int64_t from_token);

/* Normal numbers in every run. */
void strided_fill(struct strided *t, struct rng *r);

attn_input strided_input(const struct strided *t);
attn_output strided_output(const struct strided *t);

/* Whether all bytes are the same. */
bool strided_same(const struct strided *a, const struct strided *b);

#endif
