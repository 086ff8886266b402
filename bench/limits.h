/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the machine can do at this moment, with all the threads of a call busy at once. The team is
 * the one that the calls use (same runtime, same size), so that no idle worker spins beside it.
 */
#ifndef BENCH_LIMITS_H
#define BENCH_LIMITS_H

#include "buffers.h"
#include "peak.h"

/* Threads that OpenMP would use; 1 without it. */
int32_t bench_default_threads(void);

/* Giga operations per second. */
double bench_limit_flops(bench_peak_fn peak, int32_t threads);

/* Gigabytes per second, reading K and V of the buffers, in turn. */
double bench_limit_read(struct bench_buffers *b, int32_t threads);

#endif
