/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Random cases of calls that work on a device as they do on the host: the same call twice, its
 * arrays in both memories, compared bit for bit. Arrays of a device end at a page that nobody may
 * touch, and only its own work may touch them; arrays of the host's that the device's call is given
 * are overwritten before that work is done.
 */
#ifndef TESTS_DEVICE_ARRAYS_H
#define TESTS_DEVICE_ARRAYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn/attn.h"
#include "rng.h"

/* An array of a case. */
struct array {
    char *host;   /* of the host's call */
    char *device; /* of the device's, or null: then that has */
    char *spoilt; /* of the host's memory, overwritten before the work is done */
    void *whole;  /* allocation that device is in */
    size_t bytes;
    bool written;
};

/* The case at hand. */
extern struct device_case {
    const char *what;
    int64_t seed;
    struct rng rng;
    bool empty; /* there are no tensors, and arrays of integers are the host's */
} now;

void begin_case(const char *what, int64_t seed);
void end_case(void); /* compares all arrays and gives them back */

bool maybe(int percent);
int64_t below(int64_t n);

/* Zeroed, or where it is written full of NaN; it lies nowhere yet. */
struct array *new_array(size_t bytes, bool written);

/* As it is now, to the device, or, where it is no tensor, perhaps not. Its start is a multiple of
 * the element's size and, often, of no more; without elements it may be null. */
void place(struct array *a, size_t size, bool anywhere);

/* For the call on host memory only; the device's is given a copy that is overwritten. */
void keep_on_host(struct array *a);

/* The pointer for the host's call, or for the device's; null has none. */
void *of(const struct array *a, bool device);

struct array *numbers(attn_dtype type, int64_t n);       /* close to normal */
struct array *output(size_t bytes, size_t size);
struct array *known_output(size_t bytes, size_t size); /* not null even where it is empty */
struct array *integers32(int64_t n);                     /* 0, nowhere yet */

/* Starts of b sequences of up to `most` tokens, some of none; nowhere yet. */
struct array *draw_cu(int64_t b, int64_t most, int64_t *total);

/* Around the device's call, which may become a graph that is launched up to so many times. */
void begin_call(int most_launches);
void end_call(attn_status host, attn_status device);

#endif
