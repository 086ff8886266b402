/* SPDX-License-Identifier: BSD-3-Clause */
#include "cpu/schedule.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "parallel.h"

/* Packed keys of all slots stay below this, or there is one slot: many cores share few long
 * sequences rather than each packing its own. */
static const size_t PACKED_LIMIT = (size_t)1 << 30;

/* Bytes of state of the heads that a decode item walks through together: it should stay in the
 * first cache. */
static const int64_t DECODE_STATE = 32768;

/* Multiplications and additions that are worth waking a thread for, some 20 microseconds. */
static const double WORK_PER_THREAD = 2e6;

/* Head sizes up to which no size below overflows. */
static const int64_t MOST_DIM = 1 << 24;

enum { TILE_EMPTY, TILE_BUSY, TILE_READY };

/* A unit in work. `claim` counts the items not yet taken, in its low half; the high half changes
 * with each unit, so that a claim cannot mistake one unit for the next. Whoever has taken an item
 * keeps the slot from being used again until the item is done. */
struct slot {
    _Alignas(128) atomic_int_fast64_t next_unit; /* the first not yet taken of the slot's share */
    int64_t end_unit;
    atomic_uint_fast64_t claim;
    atomic_int_fast64_t left; /* items not yet done */
    atomic_bool busy;
    atomic_uchar *tile_state; /* [tiles] */
    char *partial;
    bool decode;
    int64_t chunks, heads; /* decode: chunks of keys, heads in a range */
    struct attn_unit unit;
};

struct team {
    const struct attn_schedule *s;
    const struct attn_problem *p;
    const struct attn_cpu_kernel *kernel;
    const int64_t *order; /* sequences by falling work */
    struct slot *slots;
    char *scratch;
    _Alignas(128) atomic_int_fast32_t opening; /* threads that may be about to open a unit */
};

struct work {
    int64_t sequence;
    double pairs;
};

static size_t round_up(size_t n) { return (n + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN; }

static double pairs(const struct attn_problem *p, int64_t b)
{
    return (double)attn_axis_len(&p->query, b) * (double)attn_axis_len(&p->key, b);
}

/* Adds count * size bytes, rounded up to whole alignments. */
static bool add_bytes(size_t *total, size_t count, size_t size)
{
    size_t bytes;
    return !__builtin_mul_overflow(count, size, &bytes) && bytes <= SIZE_MAX - ATTN_ALIGN &&
           !__builtin_add_overflow(*total, round_up(bytes), total);
}

static bool is_decode(const struct attn_problem *p, int64_t nq)
{
    return nq > 0 && p->group > 0 && nq <= ATTN_DECODE_ROWS / p->group;
}

static int64_t chunks_of(int64_t nk)
{
    return nk > ATTN_CHUNK_KEYS ? (nk + ATTN_CHUNK_KEYS - 1) / ATTN_CHUNK_KEYS : 1;
}

/* Heads that one decode item takes: as many as keep their state in the cache, but few enough that
 * all threads have something to do. */
static int64_t heads_of(const struct attn_problem *p, const struct attn_cpu_decode *decode,
                        int64_t rows, int64_t chunks, int32_t threads)
{
    const int64_t one = decode->scratch_bytes(p, rows, 1);
    const int64_t items = chunks * p->batch, enough = 3 * (int64_t)threads;
    const int64_t ranges = threads == 1 || items >= enough ? 1 : (enough + items - 1) / items;
    int64_t heads = (p->heads_kv + ranges - 1) / ranges;
    if (heads > DECODE_STATE / one)
        heads = DECODE_STATE / one;
    return heads < 1 ? 1 : heads;
}

/* What the sequences need: tiles, partial results, scratch. */
static bool survey(struct attn_schedule *s, const struct attn_problem *p,
                   const struct attn_cpu_kernel *kernel)
{
    int64_t rows = 0, longest = 0;
    s->partial = 0;
    s->tiled = s->decoded = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t nq = attn_axis_len(&p->query, b), nk = attn_axis_len(&p->key, b);
        if (is_decode(p, nq)) {
            size_t partial = 0;
            const int64_t chunks = chunks_of(nk);
            s->decoded++;
            rows = nq * p->group > rows ? nq * p->group : rows;
            if (chunks > 1 &&
                !add_bytes(&partial, (size_t)chunks,
                           (size_t)kernel->decode->partial_bytes(p, nq * p->group)))
                return false;
            s->partial = partial > s->partial ? partial : s->partial;
        } else if (nq > 0) {
            s->tiled++;
            longest = nk > longest ? nk : longest;
        }
    }
    s->tiles = (longest + ATTN_TILE_KEYS - 1) / ATTN_TILE_KEYS;
    s->room = longest < ATTN_TILE_KEYS ? (longest + 7) / 8 * 8 : ATTN_TILE_KEYS;
    s->scratch = 0;
    if (s->tiled > 0)
        s->scratch = (size_t)kernel->scratch_bytes(p->head_dim, p->head_dim_v, s->room);
    if (s->decoded > 0) {
        const size_t scratch =
            (size_t)(kernel->decode->scratch_bytes(p, rows, 1) + DECODE_STATE);
        s->scratch = scratch > s->scratch ? scratch : s->scratch;
    }
    return true;
}

bool attn_schedule_plan(struct attn_schedule *s, const struct attn_problem *p,
                        const struct attn_cpu_kernel *kernel, int32_t threads)
{
    int64_t units;
    double work = 0;
    if (p->head_dim > MOST_DIM || p->head_dim_v > MOST_DIM || p->heads_kv > INT32_MAX ||
        __builtin_mul_overflow(p->batch, p->heads_kv, &units))
        return false;
    for (int64_t b = 0; b < p->batch; b++)
        work += pairs(p, b);
    work *= (double)p->heads_q * (double)(p->head_dim + p->head_dim_v);

    s->threads = work < WORK_PER_THREAD * threads ? (int32_t)(work / WORK_PER_THREAD) : threads;
    if (s->threads < 1)
        s->threads = 1;
    s->packed = 0;
    if (!survey(s, p, kernel) ||
        !add_bytes(&s->packed, (size_t)s->tiles,
                   (size_t)kernel->tile_bytes(p->head_dim, p->head_dim_v, s->room)))
        return false;
    s->slots = units < s->threads ? (int32_t)units : s->threads;
    const size_t per_slot = s->packed + s->partial;
    if (per_slot > 0 && (size_t)s->slots > PACKED_LIMIT / per_slot)
        s->slots = (int32_t)(PACKED_LIMIT / per_slot);
    if (s->slots < 1)
        s->slots = 1;

    s->bytes = 0;
    return add_bytes(&s->bytes, (size_t)p->batch, sizeof(struct work)) &&
           add_bytes(&s->bytes, (size_t)p->batch, sizeof(int64_t)) &&
           add_bytes(&s->bytes, (size_t)s->slots + 1, sizeof(struct slot)) &&
           add_bytes(&s->bytes, (size_t)s->slots, 2 * round_up((size_t)s->tiles)) &&
           add_bytes(&s->bytes, (size_t)s->threads, s->scratch) &&
           add_bytes(&s->bytes, (size_t)s->slots, s->packed) &&
           add_bytes(&s->bytes, (size_t)s->slots, s->partial);
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

struct needing {
    const struct team *team;
    struct slot *slot;
};

/* Packs tile t unless somebody has begun to. */
static bool try_pack(const struct needing *n, int64_t t)
{
    unsigned char empty = TILE_EMPTY;
    if (!atomic_compare_exchange_strong_explicit(&n->slot->tile_state[t], &empty, TILE_BUSY,
                                                 memory_order_acquire, memory_order_relaxed))
        return false;
    n->slot->unit.tile_info[t] = n->team->kernel->pack(&n->slot->unit, t);
    atomic_store_explicit(&n->slot->tile_state[t], TILE_READY, memory_order_release);
    return true;
}

/* Returns once tile t is packed; while another thread packs it, packs those after it. */
static void need_tile(void *arg, int64_t t)
{
    const struct needing *n = arg;
    const int64_t tiles = (n->slot->unit.nk + ATTN_TILE_KEYS - 1) / ATTN_TILE_KEYS;
    int64_t ahead = t;
    while (atomic_load_explicit(&n->slot->tile_state[t], memory_order_acquire) != TILE_READY) {
        while (ahead < tiles && !try_pack(n, ahead))
            ahead++;
        if (ahead >= tiles)
            sched_yield();
    }
}

/* ---- Units ----------------------------------------------------------------------------------- */

/* Takes an item of the slot; -1 if there is none. The last blocks of rows come first: under a
 * causal mask they are the longest. */
static int64_t claim_item(struct slot *slot)
{
    uint_fast64_t seen = atomic_load_explicit(&slot->claim, memory_order_relaxed);
    while ((uint32_t)seen > 0)
        if (atomic_compare_exchange_weak_explicit(&slot->claim, &seen, seen - 1,
                                                  memory_order_acquire, memory_order_relaxed))
            return (int64_t)(uint32_t)seen - 1;
    return -1;
}

static void do_chunk(const struct team *team, struct slot *slot, int64_t item, void *scratch)
{
    const int64_t first = item / slot->chunks * slot->heads, left = team->p->heads_kv - first;
    team->kernel->decode->chunk(&slot->unit, item % slot->chunks, first,
                                left < slot->heads ? left : slot->heads, scratch,
                                slot->chunks > 1 ? slot->partial : NULL);
}

static void do_item(const struct team *team, struct slot *slot, int64_t item, int32_t thread)
{
    void *scratch = team->scratch + (size_t)thread * team->s->scratch;
    struct needing n = {team, slot};
    if (slot->decode)
        do_chunk(team, slot, item, scratch);
    else
        team->kernel->rows(&slot->unit, item * team->kernel->block_rows, scratch, need_tile, &n);
    if (atomic_fetch_sub_explicit(&slot->left, 1, memory_order_acq_rel) != 1)
        return;
    if (slot->decode && slot->chunks > 1)
        team->kernel->decode->merge(&slot->unit, slot->chunks, scratch, slot->partial);
    atomic_store_explicit(&slot->busy, false, memory_order_release);
}

/* Sets the slot up for unit n and returns its number of items. */
static int64_t fill_slot(const struct team *team, struct slot *slot, int64_t n)
{
    const struct attn_problem *p = team->p;
    struct attn_unit *u = &slot->unit;
    u->p = p;
    u->b = team->order[n / p->heads_kv];
    u->head_kv = n % p->heads_kv;
    u->nq = attn_axis_len(&p->query, u->b);
    u->nk = attn_axis_len(&p->key, u->b);
    u->band = attn_band_of(p->rule, u->nq, u->nk);
    u->key_mask = attn_key_mask_of(p, u->b);
    u->room = team->s->room;
    slot->decode = is_decode(p, u->nq);
    if (slot->decode) {
        slot->chunks = chunks_of(u->nk);
        slot->heads = heads_of(p, team->kernel->decode, u->nq * p->group, slot->chunks,
                               team->s->threads);
        /* One unit has all the heads; those that would follow are empty. */
        return u->head_kv > 0 ? 0 : slot->chunks * ((p->heads_kv + slot->heads - 1) / slot->heads);
    }
    if (u->nq == 0)
        return 0;
    for (int64_t t = 0; t * ATTN_TILE_KEYS < u->nk; t++)
        atomic_store_explicit(&slot->tile_state[t], TILE_EMPTY, memory_order_relaxed);
    const int64_t rows = team->kernel->block_rows;
    return (u->nq * p->group + rows - 1) / rows;
}

/* Takes a unit from the slot's own share or, when that is done, from another's; -1: none is left. */
static int64_t take_unit(struct team *team, const struct slot *slot)
{
    const int32_t slots = team->s->slots, own = (int32_t)(slot - team->slots);
    for (int32_t i = 0; i < slots; i++) {
        struct slot *from = &team->slots[(own + i) % slots];
        if (atomic_load_explicit(&from->next_unit, memory_order_acquire) >= from->end_unit)
            continue;
        const int64_t n = atomic_fetch_add_explicit(&from->next_unit, 1, memory_order_acq_rel);
        if (n < from->end_unit)
            return n;
    }
    return -1;
}

/* Sets up the next unit that has something to do, and shows its items to all. */
static bool fill_next(struct team *team, struct slot *slot)
{
    int64_t n;
    while ((n = take_unit(team, slot)) >= 0) {
        const int64_t items = fill_slot(team, slot, n);
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
static bool open_unit(struct team *team, struct slot *slot)
{
    bool idle = false;
    if (!atomic_compare_exchange_strong_explicit(&slot->busy, &idle, true, memory_order_acquire,
                                                 memory_order_relaxed))
        return false;
    atomic_fetch_add_explicit(&team->opening, 1, memory_order_relaxed);
    const bool opened = fill_next(team, slot);
    if (!opened)
        atomic_store_explicit(&slot->busy, false, memory_order_release);
    atomic_fetch_sub_explicit(&team->opening, 1, memory_order_release);
    return opened;
}

static bool units_left(struct team *team)
{
    for (int32_t i = 0; i < team->s->slots; i++)
        if (atomic_load_explicit(&team->slots[i].next_unit, memory_order_acquire) <
            team->slots[i].end_unit)
            return true;
    return false;
}

/* Does one item of some slot, from *at on. */
static bool help(const struct team *team, int32_t *at, int32_t thread)
{
    for (int32_t i = 0; i < team->s->slots; i++) {
        const int32_t n = (*at + i) % team->s->slots;
        const int64_t item = claim_item(&team->slots[n]);
        if (item >= 0) {
            *at = n;
            do_item(team, &team->slots[n], item, thread);
            return true;
        }
    }
    return false;
}

static bool open_some(struct team *team, int32_t *at)
{
    for (int32_t i = 0; units_left(team) && i < team->s->slots; i++) {
        const int32_t n = (*at + i) % team->s->slots;
        if (open_unit(team, &team->slots[n])) {
            *at = n;
            return true;
        }
    }
    return false;
}

static void work(void *arg, int32_t thread, int32_t threads)
{
    struct team *team = arg;
    int32_t at = thread % team->s->slots; /* the slot this thread is at home in */
    (void)threads;
    for (;;) {
        const int64_t item = claim_item(&team->slots[at]);
        if (item >= 0)
            do_item(team, &team->slots[at], item, thread);
        else if (!open_some(team, &at) && !help(team, &at, thread)) {
            /* Whoever saw the last unit taken sees its taker among those opening one, or sees the
             * unit's items. */
            if (!units_left(team) &&
                atomic_load_explicit(&team->opening, memory_order_acquire) == 0 &&
                !help(team, &at, thread))
                return;
            sched_yield();
        }
    }
}

/* ---- Setting up ------------------------------------------------------------------------------ */

static int by_falling_work(const void *a, const void *b)
{
    const struct work *x = a, *y = b;
    if (x->pairs != y->pairs)
        return x->pairs < y->pairs ? 1 : -1;
    return x->sequence < y->sequence ? -1 : x->sequence > y->sequence;
}

static void sort_sequences(const struct attn_problem *p, struct work *work_of, int64_t *order)
{
    bool sorted = true;
    for (int64_t b = 0; b < p->batch; b++) {
        work_of[b].sequence = b;
        work_of[b].pairs = pairs(p, b);
        sorted = sorted && (b == 0 || work_of[b].pairs <= work_of[b - 1].pairs);
    }
    if (!sorted)
        qsort(work_of, (size_t)p->batch, sizeof *work_of, by_falling_work);
    for (int64_t b = 0; b < p->batch; b++)
        order[b] = work_of[b].sequence;
}

static void *take(char **at, size_t bytes)
{
    void *here = *at;
    *at += round_up(bytes);
    return here;
}

void attn_schedule_run(const struct attn_schedule *s, const struct attn_problem *p,
                       const struct attn_cpu_kernel *kernel, void *workspace)
{
    char *at = workspace;
    struct work *const work_of = take(&at, (size_t)p->batch * sizeof *work_of);
    int64_t *const order = take(&at, (size_t)p->batch * sizeof *order);
    sort_sequences(p, work_of, order);

    struct team team = {.s = s, .p = p, .kernel = kernel, .order = order};
    const int64_t units = p->batch * p->heads_kv;
    char *slots = take(&at, ((size_t)s->slots + 1) * sizeof(struct slot));
    slots += -(uintptr_t)slots % _Alignof(struct slot);
    team.slots = (struct slot *)(void *)slots;
    for (int32_t i = 0; i < s->slots; i++) {
        struct slot *slot = &team.slots[i];
        memset(slot, 0, sizeof *slot);
        slot->next_unit = units / s->slots * i + (i < units % s->slots ? i : units % s->slots);
        slot->end_unit = slot->next_unit + units / s->slots + (i < units % s->slots);
        slot->tile_state = take(&at, (size_t)s->tiles);
        slot->unit.tile_info = take(&at, (size_t)s->tiles);
        slot->unit.packed = take(&at, s->packed);
        slot->partial = take(&at, s->partial);
    }
    team.scratch = take(&at, (size_t)s->threads * s->scratch);
    attn_parallel(s->threads, work, &team);
}
