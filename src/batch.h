/* SPDX-License-Identifier: BSD-3-Clause */
/* What the batch helpers share: which tokens of a padded batch are kept, and their packing. */
#ifndef ATTN_BATCH_H
#define ATTN_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "attn/attn.h"
#include "message.h"

/* An array of the caller's. */
struct attn_span {
    const char *name;
    const void *data;
    int64_t bytes;
    bool written;
};

/* Whether the host can read and write an array, which may be null; to be asked before it is read. */
attn_status attn_check_host(const char *name, const void *data, struct attn_message *m);

/* Whether the host can read and write all arrays, and no written one shares a byte with another;
 * ATTN_INVALID_OVERLAP names the two. Null arrays share nothing. */
attn_status attn_check_spans(const struct attn_span *spans, int count, struct attn_message *m);

/* The tokens of [B, S] that are kept, by a mask or by lengths; the other is null. */
struct attn_kept {
    int64_t batch, seqlen;
    const uint8_t *mask;
    const int32_t *lengths;
};

/* Bytes of mask[0 .. n - 1] that are not zero. */
int64_t attn_count_kept(const uint8_t *mask, int64_t n);

/* Checks all but overlaps and counts the kept tokens. */
attn_status attn_packing_check(const struct attn_kept *kept, const attn_packing *packing,
                               int64_t *total, struct attn_message *m);

/* The arrays that a packing of `total` tokens reads and writes. */
enum { ATTN_PACKING_SPANS = 4 };
void attn_packing_spans(const struct attn_kept *kept, const attn_packing *packing, int64_t total,
                        struct attn_span spans[ATTN_PACKING_SPANS]);

/* Writes the packing; everything has been checked. */
void attn_packing_fill(const struct attn_kept *kept, attn_packing *packing);

#endif
