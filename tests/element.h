/* SPDX-License-Identifier: BSD-3-Clause */
/* The numbers of each element type, by arithmetic on doubles; shares nothing with the library. */
#ifndef TESTS_ELEMENT_H
#define TESTS_ELEMENT_H

#include <stddef.h>
#include <stdint.h>

#include "attn/attn.h"

struct rng;

/* As float.h has them: FLT_MANT_DIG, FLT_MIN_EXP, FLT_MAX. */
struct element_format {
    int digits, least;
    double most;
};
const struct element_format *element_format(attn_dtype type);

/* "f32" */
const char *element_name(attn_dtype type);
size_t element_size(attn_dtype type);

/* The type of sums, of the LSE and of other numbers that belong to no single element. */
attn_dtype element_computing(attn_dtype type);

/* The number of the type next to x, ties to even; infinite where it is out of range. The rounding
 * mode has to be the default one. */
double element_round(attn_dtype type, double x);

/* n normal numbers, as the type holds them; the caller frees them. */
double *element_numbers(attn_dtype type, int64_t n, struct rng *r);

double element_get(attn_dtype type, const void *data, int64_t index);
void element_set(attn_dtype type, void *data, int64_t index, double x); /* rounds */

#endif
