/* SPDX-License-Identifier: BSD-3-Clause */
/* Targets against the truth, on seeded random problems. */
#ifndef TESTS_MATRIX_H
#define TESTS_MATRIX_H

#include "run.h"

/* The problems of a pass, and its call. */
struct pass {
    void (*gen)(struct problem *p, uint64_t seed);
    forward_fn call;
};

/* As many problems as the options ask for, and for each target its largest error in a line. */
void matrix(const struct options *o, struct target *targets, int count, const struct pass *pass);

#endif
