/* SPDX-License-Identifier: BSD-3-Clause */
#include "cpu/team.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "parallel.h"

/* What lies in all slots stays below this, or there is one slot: many cores share few long
 * sequences rather than each packing its own. */
static const size_t PACKED_LIMIT = (size_t)1 << 30;

/* Nanoseconds of work that are worth a thread: a team that was at work a moment ago starts and ends
 * in one to two thousand. */
static const double WORTH = 2500;

/* `claim` counts the items of the unit in work that are not yet taken, in its low half; the high
 * half changes with each unit, so that a claim cannot mistake one unit for the next. Whoever has
 * taken an item keeps the slot from being used again until the item is done. */
struct slot {
    _Alignas(128) atomic_int_fast64_t next_unit; /* the first not yet taken of the slot's share */
    int64_t end_unit;
    atomic_uint_fast64_t claim;
    atomic_int_fast64_t left; /* items not yet done */
    atomic_bool busy;
};

struct team {
    const struct attn_team_work *work;
    void *arg;
    struct slot *slots;
    int32_t count; /* of slots */
    bool keeps;    /* units are left to those at home in their slots */
    _Alignas(128) atomic_int_fast32_t opening; /* threads that may be about to open a unit */
};

/* Takes an item of the slot, the last first; -1 if there is none. */
static int64_t claim_item(struct slot *slot)
{
    uint_fast64_t seen = atomic_load_explicit(&slot->claim, memory_order_relaxed);
    while ((uint32_t)seen > 0)
        if (atomic_compare_exchange_weak_explicit(&slot->claim, &seen, seen - 1,
                                                  memory_order_acquire, memory_order_relaxed))
            return (int64_t)(uint32_t)seen - 1;
    return -1;
}

static void do_item(const struct team *team, int32_t n, int64_t item, int32_t thread)
{
    struct slot *slot = &team->slots[n];
    team->work->item(team->arg, n, item, thread);
    if (atomic_fetch_sub_explicit(&slot->left, 1, memory_order_acq_rel) != 1)
        return;
    if (team->work->close)
        team->work->close(team->arg, n, thread);
    atomic_store_explicit(&slot->busy, false, memory_order_release);
}

/* Whether a unit of a slot's share is left to others: where shares are kept not the last one, if
 * somebody is at work in the slot. What that one's cache has would have to come from there, which
 * takes longer than to let it do as much as everybody else. */
static bool can_leave(const struct team *team, const struct slot *slot)
{
    return !team->keeps || !atomic_load_explicit(&slot->busy, memory_order_acquire) ||
           slot->end_unit - atomic_load_explicit(&slot->next_unit, memory_order_acquire) > 1;
}

/* Takes a unit from the slot's own share or, when that is done, from another's; -1: none is
 * left. */
static int64_t take_unit(const struct team *team, int32_t own)
{
    for (int32_t i = 0; i < team->count; i++) {
        struct slot *from = &team->slots[(own + i) % team->count];
        if (atomic_load_explicit(&from->next_unit, memory_order_acquire) >= from->end_unit ||
            (i > 0 && !can_leave(team, from)))
            continue;
        const int64_t n = atomic_fetch_add_explicit(&from->next_unit, 1, memory_order_acq_rel);
        if (n < from->end_unit)
            return n;
    }
    return -1;
}

/* Sets up the next unit that has something to do, and shows its items to all. */
static bool fill_next(const struct team *team, int32_t n)
{
    struct slot *slot = &team->slots[n];
    int64_t unit;
    while ((unit = take_unit(team, n)) >= 0) {
        const int64_t items = team->work->open(team->arg, n, unit);
        if (items == 0)
            continue;
        const uint_fast64_t old = atomic_load_explicit(&slot->claim, memory_order_relaxed);
        atomic_store_explicit(&slot->left, items, memory_order_relaxed);
        atomic_store_explicit(&slot->claim, (((old >> 32) + 1) << 32) | (uint_fast64_t)items,
                              memory_order_release);
        return true;
    }
    return false;
}

/* Opens the next unit in this slot, if it is free and there is one. */
static bool open_unit(struct team *team, int32_t n)
{
    struct slot *slot = &team->slots[n];
    bool idle = false;
    if (!atomic_compare_exchange_strong_explicit(&slot->busy, &idle, true, memory_order_acquire,
                                                 memory_order_relaxed))
        return false;
    atomic_fetch_add_explicit(&team->opening, 1, memory_order_relaxed);
    const bool opened = fill_next(team, n);
    if (!opened)
        atomic_store_explicit(&slot->busy, false, memory_order_release);
    atomic_fetch_sub_explicit(&team->opening, 1, memory_order_release);
    return opened;
}

/* For a thread that is at home in slot n. */
static bool units_left(const struct team *team, int32_t n)
{
    for (int32_t i = 0; i < team->count; i++)
        if (atomic_load_explicit(&team->slots[i].next_unit, memory_order_acquire) <
                team->slots[i].end_unit &&
            (i == n || can_leave(team, &team->slots[i])))
            return true;
    return false;
}

/* Does one item of some slot, from *at on. */
static bool help(const struct team *team, int32_t *at, int32_t thread)
{
    for (int32_t i = 0; i < (team->keeps ? 1 : team->count); i++) {
        const int32_t n = (*at + i) % team->count;
        const int64_t item = claim_item(&team->slots[n]);
        if (item >= 0) {
            *at = n;
            do_item(team, n, item, thread);
            return true;
        }
    }
    return false;
}

static bool open_some(struct team *team, int32_t *at)
{
    for (int32_t i = 0; units_left(team, *at) && i < team->count; i++) {
        const int32_t n = (*at + i) % team->count;
        if (open_unit(team, n)) {
            *at = n;
            return true;
        }
    }
    return false;
}

static void work(void *arg, int32_t thread, int32_t threads)
{
    struct team *team = arg;
    int32_t at = thread % team->count; /* the slot this thread is at home in */
    (void)threads;
    for (;;) {
        const int64_t item = claim_item(&team->slots[at]);
        if (item >= 0)
            do_item(team, at, item, thread);
        else if (!open_some(team, &at) && !help(team, &at, thread)) {
            /* Whoever saw the last unit taken sees its taker among those opening one, or sees the
             * unit's items. */
            if (!units_left(team, at) &&
                atomic_load_explicit(&team->opening, memory_order_acquire) == 0 &&
                !help(team, &at, thread))
                return;
            sched_yield();
        }
    }
}

struct attn_range attn_seeing_rows(const struct attn_problem *p, int64_t b)
{
    return attn_band_rows(attn_band_at(p, b), attn_axis_len(&p->query, b));
}

double attn_pairs_of(const struct attn_problem *p, int64_t b)
{
    const struct attn_range rows = attn_seeing_rows(p, b);
    const int64_t middle = rows.lo + (rows.hi - rows.lo) / 2;
    const struct attn_range keys = attn_band_row(attn_band_at(p, b), middle);
    return (double)(rows.hi - rows.lo) * (double)(keys.hi - keys.lo);
}

double attn_team_work_of(const struct attn_problem *p, int64_t b, int64_t block_rows,
                         bool matrices)
{
    /* Nanoseconds of a Zen 4 with AVX-512 and blocks of 32 rows; narrower vectors take longer for
     * what is in them. With matrices, of a Granite Rapids. */
    const double product = matrices ? 0.002 : 0.02, weight = 0.25, of_query = 0.12, of_key = 0.04;
    const double row = 15, key = 1.5, unit = 200;
    const double widths = (double)(p->head_dim + p->head_dim_v), heads_q = (double)p->heads_q;
    const double heads_kv = (double)p->heads_kv;
    const struct attn_range seeing = attn_seeing_rows(p, b);
    const struct attn_range seen = attn_band_any(attn_band_at(p, b), seeing.lo, seeing.hi);
    const double rows = (double)attn_axis_len(&p->query, b) * heads_q;
    const double queries = (double)(seeing.hi - seeing.lo) * heads_q;
    const double keys = (double)(seen.hi - seen.lo) * heads_kv;
    const double vectors = attn_pairs_of(p, b) * heads_q * (product * widths + weight) +
                           (queries * of_query + keys * of_key) * widths;
    return vectors * 32 / (double)block_rows + rows * row + keys * key + heads_kv * unit;
}

int32_t attn_team_threads(double work, int32_t allowed)
{
    return work >= WORTH * allowed ? allowed : work < WORTH ? 1 : (int32_t)(work / WORTH);
}

int32_t attn_team_for(double work, double items, int32_t threads)
{
    if (items >= threads)
        return threads;
    const int32_t whole = items < 1 ? 1 : (int32_t)items;
    return items > whole && work * (1 - 1 / items) >= WORTH * whole ? whole + 1 : whole;
}

int32_t attn_team_slots(int64_t units, int32_t threads, size_t per_slot)
{
    int32_t slots = units < threads ? (int32_t)units : threads;
    if (per_slot > 0 && (size_t)slots > PACKED_LIMIT / per_slot)
        slots = (int32_t)(PACKED_LIMIT / per_slot);
    return slots < 1 ? 1 : slots;
}

size_t attn_team_bytes(int32_t slots) { return ((size_t)slots + 1) * sizeof(struct slot); }

/* What one thread does alone: the same in the same order, with nothing to be agreed on. */
static void work_alone(const struct attn_team_work *work, void *arg, int64_t units)
{
    for (int64_t unit = 0; unit < units; unit++) {
        const int64_t items = work->open(arg, 0, unit);
        for (int64_t item = items - 1; item >= 0; item--)
            work->item(arg, 0, item, 0);
        if (items > 0 && work->close)
            work->close(arg, 0, 0);
    }
}

void attn_team_run(int32_t threads, int32_t slots, int64_t units,
                   const struct attn_team_work *what, bool keeps, void *arg, void *memory)
{
    if (threads == 1) {
        work_alone(what, arg, units);
        return;
    }
    char *at = memory;
    at += -(uintptr_t)at % _Alignof(struct slot);
    struct team team = {.work = what, .arg = arg, .slots = (void *)at, .count = slots};
    team.keeps = keeps;
    memset(team.slots, 0, (size_t)slots * sizeof *team.slots);
    for (int32_t i = 0; i < slots; i++) {
        const struct attn_range share = attn_share(units, i, slots);
        team.slots[i].next_unit = share.lo;
        team.slots[i].end_unit = share.hi;
    }
    attn_parallel(threads, work, &team);
}

/* ---- Parts ----------------------------------------------------------------------------------- */

enum { PART_EMPTY, PART_BUSY, PART_READY };

void attn_parts_begin(const struct attn_parts *parts)
{
    for (int64_t n = 0; n < parts->count; n++)
        atomic_store_explicit(&parts->state[n], PART_EMPTY, memory_order_relaxed);
}

/* Makes part n unless somebody has begun to. */
static bool try_make(const struct attn_parts *parts, int64_t n)
{
    unsigned char empty = PART_EMPTY;
    if (!atomic_compare_exchange_strong_explicit(&parts->state[n], &empty, PART_BUSY,
                                                 memory_order_acquire, memory_order_relaxed))
        return false;
    parts->make(parts->arg, n);
    atomic_store_explicit(&parts->state[n], PART_READY, memory_order_release);
    return true;
}

static bool is_ready(const struct attn_parts *parts, int64_t n)
{
    return atomic_load_explicit(&parts->state[n], memory_order_acquire) == PART_READY;
}

bool attn_parts_need(const struct attn_parts *parts, int64_t n)
{
    if (is_ready(parts, n))
        return false;
    if (try_make(parts, n))
        return true;
    int64_t ahead = n + 1;
    while (!is_ready(parts, n)) {
        while (ahead < parts->count && !try_make(parts, ahead))
            ahead++;
        if (ahead >= parts->count)
            sched_yield();
    }
    return false;
}

/* ---- Order ----------------------------------------------------------------------------------- */

struct weighed {
    int64_t sequence;
    double pairs;
};

static int by_falling_work(const void *a, const void *b)
{
    const struct weighed *x = a, *y = b;
    if (x->pairs != y->pairs)
        return x->pairs < y->pairs ? 1 : -1;
    return x->sequence < y->sequence ? -1 : x->sequence > y->sequence;
}

size_t attn_order_bytes(int64_t batch)
{
    size_t bytes;
    return __builtin_mul_overflow((size_t)batch, sizeof(int64_t) + sizeof(struct weighed), &bytes)
               ? SIZE_MAX
               : bytes;
}

const int64_t *attn_order_sequences(const struct attn_problem *p, void *memory)
{
    int64_t *const order = memory;
    struct weighed *const list = (void *)(order + p->batch);
    bool sorted = true;
    for (int64_t b = 0; b < p->batch; b++) {
        list[b].sequence = b;
        list[b].pairs = attn_pairs_of(p, b);
        sorted = sorted && (b == 0 || list[b].pairs <= list[b - 1].pairs);
    }
    if (!sorted)
        qsort(list, (size_t)p->batch, sizeof *list, by_falling_work);
    for (int64_t b = 0; b < p->batch; b++)
        order[b] = list[b].sequence;
    return order;
}
