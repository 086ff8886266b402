/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory for tests: without it a test program cannot go on and ends. */
#ifndef TESTS_MEMORY_H
#define TESTS_MEMORY_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* Never null, not even for 0 bytes. Zeroed. */
static inline void *test_alloc(size_t bytes)
{
    void *p = calloc(bytes ? bytes : 1, 1);

    if (!p) {
        fprintf(stderr, "out of memory: %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

#endif
