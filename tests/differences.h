/* SPDX-License-Identifier: BSD-3-Clause */
/* Gradients in f64 against differences of the loss, and targets against each other. */
#ifndef TESTS_DIFFERENCES_H
#define TESTS_DIFFERENCES_H

#include "run.h"

/* On two problems with every feature at once, and on small random ones, as many as `count` says;
 * their seeds are those of the options. */
void differences(const struct options *o, struct target *targets, int targets_count,
                 int64_t count);

#endif
