/* SPDX-License-Identifier: BSD-3-Clause */
/* Threads, and the floating-point environment they compute in. The only place that knows OpenMP. */
#ifndef ATTN_PARALLEL_H
#define ATTN_PARALLEL_H

#include <stdint.h>

#include "mask.h"

/* Most threads that a call may use where the context names none; at least 1. */
int32_t attn_default_threads(void);

/* Most threads that it may use at all. */
int32_t attn_most_threads(void);

/* body(arg, thread, team) on each thread of a team of at most `threads`; returns when all have. The
 * team may be smaller, but thread 0 is always the caller. Each thread computes in the default
 * floating-point environment and then has its own back, flags included. With threads == 1 nothing
 * is started. Must be safe inside a parallel region of the caller's. */
void attn_parallel(int32_t threads, void (*body)(void *arg, int32_t thread, int32_t team),
                   void *arg);

/* Threads, out of those allowed, that are worth starting to move so many bytes. */
int32_t attn_threads_worth(int64_t bytes, int32_t allowed);

/* a b, neither negative; INT64_MAX where that is less. */
static inline int64_t attn_product(int64_t a, int64_t b)
{
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

/* The part of 0 .. n - 1 that falls to a thread. */
static inline struct attn_range attn_share(int64_t n, int32_t thread, int32_t team)
{
    const int64_t each = n / team, more = n % team;
    struct attn_range r;
    r.lo = thread * each + (thread < more ? thread : more);
    r.hi = r.lo + each + (thread < more);
    return r;
}

#endif
