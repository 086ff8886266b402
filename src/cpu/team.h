/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Threads that share out units of work, each a number of items. The units are dealt out to slots, a
 * run of neighbours to each, so that calls on the same tensors find them in the same caches. A slot
 * holds the memory of one unit: a thread opens the next unit in its slot, from another's share when
 * its own is done, and works through its items; when no unit is left it helps where items remain.
 * Nothing here may change a result: what an item does depends on its unit alone.
 */
#ifndef ATTN_CPU_TEAM_H
#define ATTN_CPU_TEAM_H

#include <stdatomic.h>
#include <stddef.h>

#include "backend.h"

/* The work. Items of a unit are handed out from the last to the first, each to the thread that
 * asked, which does it at once. */
struct attn_team_work {
    /* Sets the slot up for a unit and returns its number of items, below 2^32; 0: nothing to do. */
    int64_t (*open)(void *arg, int32_t slot, int64_t unit);
    void (*item)(void *arg, int32_t slot, int64_t item, int32_t thread);
    /* After the last item of a unit is done, by the thread that did it. May be null. */
    void (*close)(void *arg, int32_t slot, int32_t thread);
};

/* Bytes that attn_team_run() needs at an address aligned to ATTN_ALIGN. */
size_t attn_team_bytes(int32_t slots);

/* Does units 0 .. units - 1 with at most so many threads, the caller among them. If it `keeps`
 * shares, which then are as many units each, a thread does the last unit of its own and all items
 * of those it has begun, and nobody waits for work that is left to another. */
void attn_team_run(int32_t threads, int32_t slots, int64_t units,
                   const struct attn_team_work *work, bool keeps, void *arg, void *memory);

/* Nanoseconds that the forward pass of sequence b takes one thread, roughly, in blocks of so many
 * rows, which may multiply matrices. */
double attn_team_work_of(const struct attn_problem *p, int64_t b, int64_t block_rows,
                         bool matrices);

/* Threads out of those allowed that are worth waking for so many nanoseconds of work; and out of
 * them those that so many items are enough for, one more than are whole ones if that saves as
 * much. */
int32_t attn_team_threads(double work, int32_t allowed);
int32_t attn_team_for(double work, double items, int32_t threads);

/* Slots for so many units of up to per_slot bytes each. */
int32_t attn_team_slots(int64_t units, int32_t threads, size_t per_slot);

/* What a unit has `count` of, each made by the first thread that needs it. */
struct attn_parts {
    atomic_uchar *state; /* [count] */
    int64_t count;
    void (*make)(void *arg, int64_t n);
    void *arg;
};

/* None is made yet. */
void attn_parts_begin(const struct attn_parts *parts);

/* Returns once part n is made, and whether this thread made it; while another one does, makes those
 * after it. */
bool attn_parts_need(const struct attn_parts *parts, int64_t n);

/* Bytes that so many take in a workspace, where everything is aligned to ATTN_ALIGN. */
static inline size_t attn_room_of(size_t bytes)
{
    return (bytes + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN;
}

/* Adds count * size bytes to what a workspace has; false if they do not fit. */
static inline bool attn_room_add(size_t *total, size_t count, size_t size)
{
    size_t bytes;
    return !__builtin_mul_overflow(count, size, &bytes) && bytes <= SIZE_MAX - ATTN_ALIGN &&
           !__builtin_add_overflow(*total, attn_room_of(bytes), total);
}

/* Takes them from it, in the same order. */
static inline void *attn_room_take(char **at, size_t count, size_t size)
{
    void *here = *at;
    *at += attn_room_of(count * size);
    return here;
}

/* Rows of sequence b, of one query head, that see a key. */
struct attn_range attn_seeing_rows(const struct attn_problem *p, int64_t b);

/* Products of query and key of sequence b, as many for each of these rows as the one in their
 * middle sees keys: what its work is about proportional to. */
double attn_pairs_of(const struct attn_problem *p, int64_t b);

/* The sequences by falling work; of equal ones the first comes first. `memory` has
 * attn_order_bytes() bytes, the answer at its start. */
size_t attn_order_bytes(int64_t batch);
const int64_t *attn_order_sequences(const struct attn_problem *p, void *memory);

#endif
