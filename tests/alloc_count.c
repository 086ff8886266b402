/* SPDX-License-Identifier: BSD-3-Clause */
#include "alloc_count.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

#if defined(__GLIBC__) && !defined(SANITIZED)

static atomic_llong calls;

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *data, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);
void *memalign(size_t align, size_t bytes);

void *malloc(size_t bytes)
{
    atomic_fetch_add(&calls, 1);
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    atomic_fetch_add(&calls, 1);
    return __libc_calloc(count, bytes);
}

void *realloc(void *data, size_t bytes)
{
    atomic_fetch_add(&calls, 1);
    return __libc_realloc(data, bytes);
}

void *memalign(size_t align, size_t bytes)
{
    atomic_fetch_add(&calls, 1);
    return __libc_memalign(align, bytes);
}

void *aligned_alloc(size_t align, size_t bytes) { return memalign(align, bytes); }

int posix_memalign(void **data, size_t align, size_t bytes)
{
    *data = memalign(align, bytes);
    return *data ? 0 : ENOMEM;
}

int64_t alloc_count(void) { return atomic_load(&calls); }

/* Whether the replacement is in force: an allocation of our own is counted. */
bool alloc_count_works(void)
{
    const int64_t before = alloc_count();
    void *volatile p = malloc(1);
    free(p);
    return alloc_count() == before + 1;
}

#else

int64_t alloc_count(void) { return 0; }
bool alloc_count_works(void) { return false; }

#endif
