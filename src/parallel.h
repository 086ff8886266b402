/* SPDX-License-Identifier: BSD-3-Clause */
/* Threads, and the floating-point environment they compute in. The only place that knows OpenMP. */
#ifndef ATTN_PARALLEL_H
#define ATTN_PARALLEL_H

#include <stdint.h>

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

#endif
