/* SPDX-License-Identifier: BSD-3-Clause */
#include "device_arrays.h"

#include <stdlib.h>
#include <string.h>

#include "element.h"
#include "emulator/runtime.h"
#include "expect.h"
#include "memory.h"

enum { ARRAYS = 200, UNTOUCHED = 0xff };

struct device_case now;

static struct array all[ARRAYS];
static int count;

void begin_case(const char *what, int64_t seed)
{
    count = 0;
    now.rng = rng_seeded((uint64_t)seed);
    now.what = what;
    now.seed = seed;
    now.empty = false;
}

struct array *new_array(size_t bytes, bool written)
{
    struct array *a = &all[count++];
    *a = (struct array){.host = test_alloc(bytes), .bytes = bytes, .written = written};
    if (written)
        memset(a->host, UNTOUCHED, bytes);
    return a;
}

void keep_on_host(struct array *a)
{
    a->spoilt = test_alloc(a->bytes);
    memcpy(a->spoilt, a->host, a->bytes);
}

void place(struct array *a, size_t size, bool anywhere)
{
    const size_t off = rng_chance(&now.rng, 50) ? size * (size_t)rng_below(&now.rng, 3) : 0;
    void *data;
    if (a->bytes == 0 && rng_chance(&now.rng, 50)) { /* null */
        free(a->host);
        a->host = NULL;
        return;
    }
    if (anywhere && (now.empty || rng_chance(&now.rng, 50))) {
        keep_on_host(a);
        return;
    }
    cudaMalloc(&data, a->bytes + off + (a->bytes == 0)); /* an address of the device's */
    a->whole = data;
    a->device = (char *)data + off;
    memcpy(a->device, a->host, a->bytes);
}

void *of(const struct array *a, bool device)
{
    if (!a)
        return NULL;
    return !device ? a->host : a->device ? a->device : a->spoilt;
}

bool maybe(int percent) { return rng_chance(&now.rng, percent); }
int64_t below(int64_t n) { return rng_below(&now.rng, n); }

struct array *numbers(attn_dtype type, int64_t n)
{
    struct array *a = new_array((size_t)n * element_size(type), false);
    for (int64_t i = 0; i < n; i++)
        element_set(type, a->host, i, rng_normal(&now.rng));
    place(a, element_size(type), false);
    return a;
}

struct array *output(size_t bytes, size_t size)
{
    struct array *a = new_array(bytes, true);
    place(a, size, false);
    return a;
}

struct array *known_output(size_t bytes, size_t size)
{
    struct array *a = output(bytes, size);
    if (!a->host) {
        void *data;
        a->host = test_alloc(0);
        cudaMalloc(&data, 1);
        a->whole = a->device = data;
    }
    return a;
}

struct array *integers32(int64_t n)
{
    return new_array((size_t)n * sizeof(int32_t), false);
}

struct array *draw_cu(int64_t b, int64_t most, int64_t *total)
{
    struct array *a = integers32(b + 1);
    int32_t *const cu = (int32_t *)a->host;
    for (int64_t n = 0; n < b; n++)
        cu[n + 1] = cu[n] + (maybe(25) ? 0 : (int32_t)below(most + 1));
    *total = cu[b];
    return a;
}

/* A graph is launched so many times; 0: none is captured. */
static long waits, allocated;
static int launches;

void begin_call(int most_launches)
{
    launches = maybe(40) ? (int)below(most_launches + 1) : 0;
    waits = emulated_calls("cudaStreamSynchronize");
    allocated = emulated_allocations();
    if (launches > 0)
        emulated_capture_begin();
    emulated_hide(1);
}

static void spoil(void)
{
    for (int n = 0; n < count; n++)
        if (all[n].spoilt)
            memset(all[n].spoilt, 0x5a, all[n].bytes);
}

void end_call(attn_status host, attn_status device)
{
    cudaError_t error = cudaSuccess;
    const bool waited = emulated_calls("cudaStreamSynchronize") != waits;
    const char *why = attn_last_message(NULL);
    spoil();
    if (launches > 0)
        emulated_capture_end();
    for (int n = 0; n < launches && error == cudaSuccess; n++)
        error = emulated_graph_launch();
    if (launches == 0)
        error = cudaStreamSynchronize(NULL);
    emulated_hide(0);
    EXPECT(host == ATTN_OK && device == ATTN_OK && error == cudaSuccess && !waited,
           "%s %lld: host %s, device %s (%s), %s, %s", now.what, (long long)now.seed,
           attn_status_name(host), attn_status_name(device), why, cudaGetErrorString(error),
           waited ? "the call waits" : "without waiting");
    EXPECT(launches > 0 || emulated_allocations() == allocated, "%s %lld: %ld allocations are left",
           now.what, (long long)now.seed, emulated_allocations() - allocated);
}

/* The array is as the host's, and behind it, up to the guard, is what was there. */
static void expect_same(const struct array *a, int n)
{
    size_t at = 0;
    while (at < a->bytes && a->host[at] == a->device[at])
        at++;
    EXPECT(at == a->bytes, "%s %lld: array %d of %zu bytes differs at %zu", now.what,
           (long long)now.seed, n, a->bytes, at);
    for (at = a->bytes; (uintptr_t)(a->device + at) % 64 != 0; at++)
        if ((uint8_t)a->device[at] != UNTOUCHED) {
            report_fail("%s %lld: array %d: written past its end", now.what, (long long)now.seed,
                        n);
            return;
        }
}

void end_case(void)
{
    for (int n = 0; n < count; n++) {
        struct array *a = &all[n];
        if (a->device)
            expect_same(a, n);
        if (a->whole)
            cudaFree(a->whole);
        free(a->host);
        free(a->spoilt);
    }
}

