/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the threads of a call share out (see team.h): the units of kernel.h, longest sequences
 * first, an item being a block of rows or all of them, or in the decode form a chunk of keys or the
 * last rows. A slot holds the packed keys of its unit, tiles being packed by the first thread that
 * needs them. Where columns of the probabilities are wanted, a second round (columns.c) follows.
 */
#ifndef ATTN_CPU_SCHEDULE_H
#define ATTN_CPU_SCHEDULE_H

#include "backend.h"
#include "cpu/kernel.h"

/* How a call is laid out over threads and workspace. */
struct attn_schedule {
    const struct attn_cpu_kernel *wide; /* with blocks of more rows than the others; or null */
    int32_t threads, slots;
    int32_t parts;          /* that the rows of a sequence are cut into, each a unit of its own */
    int64_t tiled, decoded; /* sequences in each form */
    int64_t tiles, room;    /* of the longest sequence in the tiled form; see struct attn_unit */
    int64_t places;         /* for tiles, of the unit that takes most */
    bool alike;             /* all sequences have as many pairs of a query and a key */
    double fair, share;     /* pairs that an item of one head may have, and one of several */
    size_t scratch;         /* bytes per thread */
    size_t packed, partial; /* bytes per slot */
    size_t tile;            /* bytes of a packed tile */
    size_t weights;         /* bytes for all rows; 0: nobody wants columns of probabilities */
    size_t columns;         /* then: bytes per thread to make them with */
    size_t bytes;           /* of the whole workspace */
};

/* Returns false if a size does not fit. wide: a kernel whose blocks have more rows, or null. */
bool attn_schedule_plan(struct attn_schedule *s, const struct attn_problem *p,
                        const struct attn_cpu_kernel *kernel, const struct attn_cpu_kernel *wide,
                        int32_t threads);

/* Computes the problem in a workspace of s->bytes, aligned to ATTN_ALIGN. same_keys: the call
 * before had them, too, so that they are likely to be near. */
void attn_schedule_run(const struct attn_schedule *s, const struct attn_problem *p,
                       const struct attn_cpu_kernel *kernel, bool same_keys, void *workspace);

/* The second round: columns of the probabilities, tile by tile, from the weights of all rows.
 * columns: s->columns bytes for each thread. */
void attn_columns_run(const struct attn_schedule *s, const struct attn_problem *p,
                      const struct attn_cpu_kernel *kernel, char *weights, char *columns);

#endif
