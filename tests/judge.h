/* SPDX-License-Identifier: BSD-3-Clause */
/* Between judge.c and judge_gradients.c. */
#ifndef TESTS_JUDGE_H
#define TESTS_JUDGE_H

#include "sequences.h"

/* Sets the truth of all gradients; open where it comes near the end of the type's range. */
void judge_gradients(struct judge *j);

/* Raises what is allowed of gradients to what the plain loops in one order ask for. */
void judge_allow_gradients(struct judge *j, int order);

#endif
