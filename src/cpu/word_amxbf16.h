/* SPDX-License-Identifier: BSD-3-Clause */
/* Words of two bf16 numbers, multiplied as matrices by AMX. See word.h. */
#include "cpu/word_avx512bf16.h"

#include "cpu/amx.h"
