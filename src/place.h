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
    const char *unknown; /* nobody can say where it lies: why; null otherwise */
};

/* Where `data` lies; what no backend that is built in knows as a device's is the host's
 * (backends.c). */
struct attn_place attn_place_of(const void *data);

/* ATTN_OK, or ATTN_DEVICE_ERROR with a message, of argument `name`, where the place is unknown. */
attn_status attn_place_unknown(const char *name, struct attn_place place, struct attn_message *m);

#endif
