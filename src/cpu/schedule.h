/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Who does what. The units (see kernel.h), longest sequences first, are dealt out to slots, a run of
 * neighbours to each, so that calls on the same tensors find them in the same caches. A slot holds
 * the packed keys of one unit: a thread opens the next unit in its slot, from another's share when
 * its own is done, and works through its blocks of rows; when no unit is left it helps where blocks
 * remain. Tiles are packed by the first thread that needs them. Nothing here changes a bit of a
 * result: an item's work depends on its unit alone.
 */
#ifndef ATTN_CPU_SCHEDULE_H
#define ATTN_CPU_SCHEDULE_H

#include "backend.h"
#include "cpu/kernel.h"

/* How a call is laid out over threads and workspace. */
struct attn_schedule {
    int32_t threads, slots;
    int64_t tiled, decoded; /* sequences in each form */
    int64_t tiles, room;    /* of the longest sequence in the tiled form; see struct attn_unit */
    size_t scratch;         /* bytes per thread */
    size_t packed, partial; /* bytes per slot */
    size_t bytes;           /* of the whole workspace */
};

/* Returns false if a size does not fit. */
bool attn_schedule_plan(struct attn_schedule *s, const struct attn_problem *p,
                        const struct attn_cpu_kernel *kernel, int32_t threads);

/* Computes the problem in a workspace of s->bytes, aligned to ATTN_ALIGN. */
void attn_schedule_run(const struct attn_schedule *s, const struct attn_problem *p,
                       const struct attn_cpu_kernel *kernel, void *workspace);

#endif
