/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BENCH_VERIFY_H
#define BENCH_VERIFY_H

#include "buffers.h"

/* The largest difference, over a few rows, between a set's results and a plain loop in double;
 * infinite where a result is not a number. *what names the result. Differences are relative to the
 * sizes of the terms that make the number, those of the LSE absolute. As the contract has it,
 * gradients follow from the out and LSE that the set holds. */
double bench_verify(const struct bench_buffers *b, const struct bench_set *set, const char **what);

/* A difference above this is a wrong result. */
double bench_tolerance(const struct bench_case *c, attn_dtype dtype);

#endif
