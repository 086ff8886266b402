/* SPDX-License-Identifier: BSD-3-Clause */
/* What probs_fn is told, put together. */
#ifndef TESTS_TILES_H
#define TESTS_TILES_H

#include <stdatomic.h>

#include "problem_image.h"

struct tiles {
    const struct problem *p;
    int64_t at[MOST_BATCH + 1]; /* where each sequence starts */
    double *x;      /* [hq][nq][nk] of each sequence; 0 where no tile was */
    uint8_t *times; /* how often each place was in a tile */
    atomic_int faults;
    char fault[160]; /* the first of them */
};

void tiles_open(struct tiles *t, const struct problem *p);
void tiles_close(struct tiles *t);

/* The attn_probs_fn; user is a struct tiles. */
void tiles_take(void *user, int64_t sequence, int64_t head, int64_t i0, int64_t ni, int64_t j0,
                int64_t nj, const void *p, int64_t stride);

/* Whether every tile lay inside its sequence, and no two over each other. */
bool tiles_good(const struct tiles *t, char *why, size_t size);

#endif
