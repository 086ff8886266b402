/* SPDX-License-Identifier: BSD-3-Clause */
/* What the batch helpers share: packings, and how their arrays are checked. */
#ifndef ATTN_BATCH_H
#define ATTN_BATCH_H

#include "on_device.h"

/* An array of the caller's. */
struct attn_span {
    const char *name;
    const void *data;
    int64_t bytes;
    bool written;
};

/* No written array shares a byte with another; ATTN_INVALID_OVERLAP names the two. Null arrays
 * share nothing. */
attn_status attn_check_spans(const struct attn_span *spans, int count, struct attn_message *m);

/* Bytes of mask[0 .. n - 1] that are not zero. */
int64_t attn_count_kept(const uint8_t *mask, int64_t n);

/* In place of a number that only the device knows. */
#define ATTN_UNKNOWN (-1)

/* Checks all but places and overlaps and counts the kept tokens, ATTN_UNKNOWN where the mask or the
 * lengths are the device's. */
attn_status attn_packing_check(const struct attn_kept *kept, const attn_packing *packing,
                               int32_t device, int64_t *total, struct attn_message *m);

/* The arrays that a packing reads and writes. */
enum { ATTN_PACKING_SPANS = 4 };
void attn_packing_arrays(const struct attn_kept *kept, const attn_packing *packing,
                         struct attn_placed arrays[ATTN_PACKING_SPANS]);

/* With their sizes, for a packing of `total` tokens. */
void attn_packing_spans(const struct attn_kept *kept, const attn_packing *packing, int64_t total,
                        struct attn_span spans[ATTN_PACKING_SPANS]);

/* Writes the packing; everything has been checked. */
void attn_packing_fill(const struct attn_kept *kept, attn_packing *packing);

/* The same on a device; rows as attn_device_ops has them. */
attn_status attn_packing_on_device(const struct attn_device_call *c, const struct attn_kept *kept,
                                   int64_t total, const struct attn_rows *rows,
                                   attn_packing *packing);

#endif
