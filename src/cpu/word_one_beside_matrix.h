/* SPDX-License-Identifier: BSD-3-Clause */
/* Words of one number, of a set whose blocks multiply matrices. See word.h. */
#define BESIDE_MATRIX 1

#include "cpu/word_one.h"
