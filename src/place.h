/* SPDX-License-Identifier: BSD-3-Clause */
/* Whose memory a pointer leads to. */
#ifndef ATTN_PLACE_H
#define ATTN_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "message.h"

enum { ATTN_HOST = -1 };

struct attn_place {
    int32_t device; /* number of the device whose memory it is, or ATTN_HOST */
    bool host;      /* the host can read and write it: its own memory, or managed memory */
    void *context;  /* the driver's, which alone reaches it; null: each of its device's does */
    const char *unknown; /* nobody can say where it lies: why; null otherwise */
};

struct attn_place attn_host_place(void);

/* Where `data` lies; what no backend that is built in knows as a device's is the host's
 * (backends.c). */
struct attn_place attn_place_of(const void *data);

/* ATTN_OK, or ATTN_DEVICE_ERROR with a message, of argument `name`, where the place is unknown. */
attn_status attn_place_unknown(const char *name, struct attn_place place, struct attn_message *m);

/* Whether one piece of work reaches both, on the host or on a device. */
bool attn_places_meet(struct attn_place a, struct attn_place b);

/* "host memory", "memory of device 0", which may stand in `text`. */
enum { ATTN_PLACE_NAME = 32 };
const char *attn_place_name(struct attn_place place, char text[ATTN_PLACE_NAME]);

/* ATTN_INVALID_CONFLICT: argument a lies at `at`, which does not meet the place of b. */
attn_status attn_lie_apart(const char *a, struct attn_place at, const char *b,
                           struct attn_place place, struct attn_message *m);

#endif
