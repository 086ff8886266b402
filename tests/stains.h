/* SPDX-License-Identifier: BSD-3-Clause */
/* One NaN in what the backward pass reads. It shows wherever the truth has it, and nothing else
 * changes a bit. */
#ifndef TESTS_STAINS_H
#define TESTS_STAINS_H

#include "rng.h"
#include "run.h"
#include "sequences.h"

/* At a place drawn from the sequences of a problem. */
void stain_drawn(const struct options *o, const struct problem *p, const struct batch *n,
                 struct rng *r, struct target *targets, int count);

/* In each input of a small problem, for each thing that may decide which pairs take part. */
void stain_fixed(const struct options *o, struct target *targets, int count);

#endif
