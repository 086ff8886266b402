/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls on memory of a device, where one is emulated (emulator/runtime.h): every other problem. */
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

/* Marks memory as the device's, or as the host's again. */
void device_own(void *data, size_t bytes, bool own);

/* How often somebody has waited for a stream. */
long device_waits(void);

/* Waits for all that has been put on streams; false, with a line in `why`, if something failed. */
bool device_wait(char *why, size_t size);

#endif
