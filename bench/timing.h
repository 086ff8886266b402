/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BENCH_TIMING_H
#define BENCH_TIMING_H

#include <stdint.h>

/* Seconds of a clock that never steps back. */
double bench_now(void);

/* The q-quantile of n numbers, 0 <= q <= 1, between neighbours by a straight line; sorts them. */
double bench_quantile(double *numbers, int32_t n, double q);

#endif
