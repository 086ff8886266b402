/* SPDX-License-Identifier: BSD-3-Clause */
/* Argument tests that are no table: contexts, sizes of structures, workspaces, slices, familiar
 * forms. */
#ifndef TESTS_ARGS_MORE_H
#define TESTS_ARGS_MORE_H

#include <stdbool.h>

#include "attn/attn.h"

bool eager_built(void);

/* What explain says of the cuda backend and a plain call: it may be built in, with a device or
 * none. */
attn_status cuda_status(void);

void test_contexts(void); /* options, environment variables, choice */
void test_calls(void);    /* null pointers, sizes of structures, workspaces, messages */
void test_slices(void);   /* outputs interleaved with inputs */
void test_keep(void);     /* attn_dropout_mask() */
void test_gradients(void); /* what the backward pass does not look at, or not offer */
void test_forms(void);    /* the familiar forms' own arguments */

#endif
