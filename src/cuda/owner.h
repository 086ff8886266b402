/* SPDX-License-Identifier: BSD-3-Clause */
/* Whose row of a packed tensor one is. */
#ifndef ATTN_CUDA_OWNER_H
#define ATTN_CUDA_OWNER_H

#include "cuda/device.h"
#include "problem.h"

/* The last of the sequences 0 to batch - 1 that starts at a row or before it: the one that owns it,
 * if any does. 0 without a sequence. */
DEVICE int64_t owner_of(const void *cu, bool cu64, int64_t batch, int64_t row)
{
    int64_t low = 0, high = batch; /* sequences from high on start after it */
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (attn_index_at(cu, cu64, middle) <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#endif
