/* SPDX-License-Identifier: BSD-3-Clause */
/* The parts of suite hopper. */
#ifndef TESTS_HOPPER_H
#define TESTS_HOPPER_H

#include <stdbool.h>

#include "attn/attn.h"

/* Rows that are two warpgroups' work, and keys that have a tail. */
enum { HOPPER_QUERIES = 70, HOPPER_KEYS = 300 };

/* One sequence of them, with heads of 64, in f16: scores are 0, out is each head's mean of values,
 * which is known. */
attn_desc hopper_desc(int heads);

/* Marks its arrays as memory of a device's, or as the host's again. */
void hopper_own(bool device);

/* Whether out is that mean; before a call, what is no mean. */
bool hopper_is_mean(void);
void hopper_clear_out(void);

/* What is known of results, for the first so many of the shapes of tiles that there are. */
enum { HOPPER_SHAPES = 7 };
void hopper_shapes(int64_t count);

#endif
