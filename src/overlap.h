/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Whether two strided tensors share a byte, and whether one reaches a byte twice. Nothing is read:
 * only addresses are compared, so interleaved slices of one buffer are told apart exactly.
 */
#ifndef ATTN_OVERLAP_H
#define ATTN_OVERLAP_H

#include <stdbool.h>
#include <stdint.h>

#define ATTN_BYTES_AXES 4

/* `run` bytes from base + sum of index * stride, for every index. Strides are in bytes and not
 * negative. An extent or run of 0: no bytes at all. The last byte is at base + INT64_MAX or
 * before. */
struct attn_bytes {
    uintptr_t base;
    int32_t axes;
    int64_t extent[ATTN_BYTES_AXES], stride[ATTN_BYTES_AXES];
    int64_t run;
};

/* Bytes from base to the end of the last run; 0 if there are none. */
int64_t attn_bytes_reach(const struct attn_bytes *a);

/* Whether a and b have a byte in common. The answer is exact for layouts whose strides nest, as
 * those of slices and transposed tensors do; for the rare others the search is cut off, and then
 * the answer is yes: what cannot be shown to be disjoint counts as overlapping. */
bool attn_bytes_overlap(const struct attn_bytes *a, const struct attn_bytes *b);

/* Whether two different indices of a lead to runs that share a byte; cut off in the same way. */
bool attn_bytes_overlap_self(const struct attn_bytes *a);

#endif
