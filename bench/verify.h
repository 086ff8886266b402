/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BENCH_VERIFY_H
#define BENCH_VERIFY_H

#include "buffers.h"

/* The largest difference, over a few rows, between a set's out and a plain loop in double; infinite
 * where out is not a number. Inputs, and so outputs, lie in [-1, 1]. */
double bench_verify(const struct bench_buffers *b, const struct bench_set *set);

/* A difference above this is a wrong result. */
double bench_tolerance(attn_dtype dtype);

#endif
