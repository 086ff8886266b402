/* SPDX-License-Identifier: BSD-3-Clause */
/* How often this process took memory from the C library: its allocator replaced by one that counts
 * and passes on, in every part of the process but the BLAS, if that is a shared library. */
#ifndef TESTS_ALLOC_COUNT_H
#define TESTS_ALLOC_COUNT_H

#include <stdbool.h>
#include <stdint.h>

/* False where the C library has no such seam, or a sanitizer already sits in it. */
bool alloc_count_works(void);

int64_t alloc_count(void);

#endif
