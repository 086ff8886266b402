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

/* Makes those scores and values, and of out what is no mean; or out alone. */
void hopper_clear(void);
void hopper_clear_out(void);
/* Whether out is that mean. */
bool hopper_is_mean(void);

/* What is known of results, for the first so many of the shapes of tiles that there are. */
enum { HOPPER_SHAPES = 7 };
void hopper_shapes(int64_t count);

#endif
