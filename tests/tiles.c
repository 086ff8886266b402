/* SPDX-License-Identifier: BSD-3-Clause */
#include "tiles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

void tiles_open(struct tiles *t, const struct problem *p)
{
    t->p = p;
    for (int64_t b = 0; b < p->batch; b++)
        t->at[b + 1] = t->at[b] + p->hq * p->query.used[b] * p->key.used[b];
    t->x = test_alloc((size_t)t->at[p->batch] * sizeof *t->x);
    t->times = test_alloc((size_t)t->at[p->batch]);
}

void tiles_close(struct tiles *t)
{
    free(t->x);
    free(t->times);
}

static bool inside(const struct problem *p, int64_t b, int64_t h, int64_t i0, int64_t ni,
                   int64_t j0, int64_t nj)
{
    if (b < 0 || b >= p->batch || h < 0 || h >= p->hq || i0 < 0 || ni < 1 || j0 < 0 || nj < 1)
        return false;
    return ni <= p->query.used[b] - i0 && nj <= p->key.used[b] - j0;
}

void tiles_take(void *user, int64_t sequence, int64_t head, int64_t i0, int64_t ni, int64_t j0,
                int64_t nj, const void *p, int64_t stride)
{
    struct tiles *t = user;
    const attn_dtype type = element_computing(t->p->dtype);

    if (!inside(t->p, sequence, head, i0, ni, j0, nj) || (ni > 1 && stride < nj)) {
        if (atomic_fetch_add(&t->faults, 1) == 0)
            snprintf(t->fault, sizeof t->fault, "a tile of sequence %lld, head %lld, queries %lld "
                     "+ %lld, keys %lld + %lld, stride %lld", (long long)sequence, (long long)head,
                     (long long)i0, (long long)ni, (long long)j0, (long long)nj,
                     (long long)stride);
        return;
    }
    const int64_t nk = t->p->key.used[sequence], nq = t->p->query.used[sequence];
    for (int64_t i = 0; i < ni; i++)
        for (int64_t j = 0; j < nj; j++) {
            const int64_t at = t->at[sequence] + (head * nq + i0 + i) * nk + j0 + j;
            t->x[at] = element_get(type, p, i * stride + j);
            t->times[at] += t->times[at] < 2;
        }
}

bool tiles_good(const struct tiles *t, char *why, size_t size)
{
    if (atomic_load(&t->faults)) {
        snprintf(why, size, "probs_fn: %s", t->fault);
        return false;
    }
    for (int64_t n = 0; n < t->at[t->p->batch]; n++)
        if (t->times[n] > 1) {
            snprintf(why, size, "probs_fn: two tiles over each other, at element %lld",
                     (long long)n);
            return false;
        }
    return true;
}
