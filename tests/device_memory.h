/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls on memory of a device, every other problem: of one that is emulated (emulator/runtime.h),
 * or of a GPU. */
#ifndef TESTS_DEVICE_MEMORY_H
#define TESTS_DEVICE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "run.h"

/* Whether the problem's tensors are to be the device's on this target. */
bool device_is_for(const struct problem *p, const struct target *t);

/* Whether that goes for buffer n of such a problem: arrays of integers may be either's, each for
 * itself. */
bool device_has(const struct problem *p, int n);

/* Host memory and what the device has in its place. */
struct lent {
    unsigned char *base, *data; /* guards from base on, `bytes` of data, guards up to base + whole */
    size_t whole, bytes;
    unsigned char *at; /* where the device has the data; null: nothing is lent */
    void *memory;
};

/* Gives the device memory with the same contents, at l->at; all but `at` and `memory` are told. */
void device_lend(struct lent *l);

/* What it holds there now, once nothing is under way, to the host's. */
void device_fetch(const struct lent *l);

/* The end of it. */
void device_release(struct lent *l);

/* How often somebody has waited for a stream. */
long device_waits(void);

/* Waits for all that has been put on streams; false, with a line in `why`, if something failed. */
bool device_wait(char *why, size_t size);

#endif
