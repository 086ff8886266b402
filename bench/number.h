/* SPDX-License-Identifier: BSD-3-Clause */
/* Numbers of every element type. */
#ifndef BENCH_NUMBER_H
#define BENCH_NUMBER_H

#include <stddef.h>
#include <stdint.h>

#include "attn/attn.h"

/* Bytes of an element. */
int64_t bench_number_size(attn_dtype dtype);

/* Element n of an array, and that element set to the nearest number of the type or one beside it.
 * Numbers are finite and not so small that a 16-bit type rounds them to 0. */
double bench_number(const char *data, attn_dtype dtype, int64_t n);
void bench_number_set(char *data, attn_dtype dtype, int64_t n, double x);

#endif
