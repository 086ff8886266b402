/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the threads of a backward call share out (see team.h): units as in the forward pass, an item
 * being a tile of keys. The rows of a unit lie prepared in its slot, strip by strip, by the first
 * thread that needs them. Tiles are handed out from the first on and add to a strip in that order:
 * a thread whose tile comes to a strip before its turn waits for the tile before, which somebody is
 * already at work on. So every gradient is summed in one order, whatever the threads.
 */
#ifndef ATTN_CPU_BACKWARD_H
#define ATTN_CPU_BACKWARD_H

#include "backend.h"
#include "cpu/kernel.h"

struct attn_backward_plan {
    int32_t threads, slots;
    int64_t strips, room; /* of the longest sequence; see struct attn_unit */
    size_t scratch;       /* bytes per thread */
    size_t prepared;      /* bytes per slot */
    size_t bytes;         /* of the whole workspace */
};

/* Returns false if a size does not fit. */
bool attn_backward_plan(struct attn_backward_plan *s, const struct attn_problem *p,
                        const struct attn_cpu_backward *kernel, int32_t threads);

/* Computes the gradients in a workspace of s->bytes, aligned to ATTN_ALIGN. */
void attn_backward_run(const struct attn_backward_plan *s, const struct attn_problem *p,
                       const struct attn_cpu_backward *kernel, void *workspace);

#endif
