/* SPDX-License-Identifier: BSD-3-Clause */
#define _GNU_SOURCE /* dl_iterate_phdr */
#include "alloc_count.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

#if defined(__GLIBC__) && !defined(SANITIZED)

#include <link.h>

static atomic_llong calls;
static uintptr_t blas_begin, blas_end; /* where the BLAS' shared library lies, if there is one */

/* Some kernels of a BLAS take memory at each product; whose call it is tells the return address. */
static void count_call(const void *caller)
{
    const uintptr_t at = (uintptr_t)caller;
    if (at < blas_begin || at >= blas_end)
        atomic_fetch_add(&calls, 1);
}

#define COUNT() count_call(__builtin_return_address(0))

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *data, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);
void *memalign(size_t align, size_t bytes);

void *malloc(size_t bytes)
{
    COUNT();
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    COUNT();
    return __libc_calloc(count, bytes);
}

void *realloc(void *data, size_t bytes)
{
    COUNT();
    return __libc_realloc(data, bytes);
}

void *memalign(size_t align, size_t bytes)
{
    COUNT();
    return __libc_memalign(align, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    COUNT();
    return __libc_memalign(align, bytes);
}

int posix_memalign(void **data, size_t align, size_t bytes)
{
    COUNT();
    *data = __libc_memalign(align, bytes);
    return *data ? 0 : ENOMEM;
}

static int find_blas(struct dl_phdr_info *object, size_t size, void *user)
{
    (void)size, (void)user;
    if (!object->dlpi_name || !strstr(object->dlpi_name, "blas"))
        return 0;
    blas_begin = UINTPTR_MAX;
    for (int n = 0; n < object->dlpi_phnum; n++) {
        const uintptr_t at = object->dlpi_addr + object->dlpi_phdr[n].p_vaddr;
        const uintptr_t end = at + object->dlpi_phdr[n].p_memsz;
        if (object->dlpi_phdr[n].p_type != PT_LOAD)
            continue;
        blas_begin = at < blas_begin ? at : blas_begin;
        blas_end = end > blas_end ? end : blas_end;
    }
    return 1;
}

int64_t alloc_count(void) { return atomic_load(&calls); }

/* Whether the replacement is in force: an allocation of our own is counted. */
bool alloc_count_works(void)
{
    dl_iterate_phdr(find_blas, NULL);
    const int64_t before = alloc_count();
    void *volatile p = malloc(1);
    free(p);
    return alloc_count() == before + 1;
}

#else

int64_t alloc_count(void) { return 0; }
bool alloc_count_works(void) { return false; }

#endif
