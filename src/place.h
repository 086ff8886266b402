/* SPDX-License-Identifier: BSD-3-Clause */
/* Whose memory a pointer leads to. */
#ifndef ATTN_PLACE_H
#define ATTN_PLACE_H

#include <stdbool.h>
#include <stdint.h>

enum { ATTN_HOST = -1 };

struct attn_place {
    int32_t device; /* number of the device whose memory it is, or ATTN_HOST */
    bool host;      /* the host can read and write it: its own memory, or managed memory */
};

/* Where `data` lies; what no backend that is built in knows as a device's is the host's
 * (backends.c). */
struct attn_place attn_place_of(const void *data);

#endif
