/* SPDX-License-Identifier: BSD-3-Clause */
#include "cpu/backward.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "cpu/team.h"
#include "parallel.h"

/* What it takes to what the forward pass does: five products to two, and more around them. */
static const double WORK = 3;

/* How often a thread looks whether its turn has come before it lets others run. */
enum { LOOKS = 64 };

/* A unit in work. */
struct slot {
    const struct job *job;
    struct attn_parts strips;
    atomic_int_fast64_t *passed; /* [strips]: tiles that have added to each */
    int64_t items;
    struct attn_unit unit;
};

struct job {
    const struct attn_backward_plan *s;
    const struct attn_problem *p;
    const struct attn_cpu_backward *kernel;
    const int64_t *order; /* sequences by falling work */
    struct slot *slots;
    char *scratch;
    int64_t biases;                /* pieces of dbias */
    atomic_int_fast64_t next_bias; /* the first that no thread has taken */
};

static int64_t strips_of(const struct attn_problem *p, const struct attn_cpu_backward *kernel,
                         int64_t nq)
{
    return (nq * p->group + kernel->strip_rows - 1) / kernel->strip_rows;
}

/* Items of a unit: tiles of keys; rows of dq without keys are written, too. */
static int64_t items_of(int64_t nk)
{
    return nk > 0 ? (nk + ATTN_TILE_KEYS - 1) / ATTN_TILE_KEYS : 1;
}

bool attn_backward_plan(struct attn_backward_plan *s, const struct attn_problem *p,
                        const struct attn_cpu_backward *kernel, int32_t threads)
{
    int64_t units, rows;
    double items = 0, work = 0;
    if (p->head_dim > ATTN_MOST_DIM || p->head_dim_v > ATTN_MOST_DIM ||
        __builtin_mul_overflow(p->batch, p->heads_kv, &units) ||
        __builtin_mul_overflow(p->query.max, p->group, &rows) ||
        rows > INT64_MAX - kernel->strip_rows)
        return false;
    for (int64_t b = 0; b < p->batch; b++) {
        items += (double)items_of(attn_axis_len(&p->key, b)) * (double)p->heads_kv;
        work += WORK * attn_team_work_of(p, b, kernel->block_rows, false);
    }
    if (p->dbias.data)
        items += (double)kernel->biases(p);

    s->threads = attn_team_for(work, items, attn_team_threads(work, threads));
    s->room = p->key.max < ATTN_TILE_KEYS ? (p->key.max + 7) / 8 * 8 : ATTN_TILE_KEYS;
    s->strips = strips_of(p, kernel, p->query.max);
    s->scratch = (size_t)kernel->scratch_bytes(p, s->room);
    if (p->dbias.data && (size_t)kernel->bias_bytes(p) > s->scratch)
        s->scratch = (size_t)kernel->bias_bytes(p);
    s->prepared = 0;
    if (!attn_room_add(&s->prepared, (size_t)s->strips, (size_t)kernel->strip_bytes(p)))
        return false;
    s->slots = attn_team_slots(units, s->threads, s->prepared);

    s->bytes = 0;
    return attn_room_add(&s->bytes, 1, attn_order_bytes(p->batch)) &&
           attn_room_add(&s->bytes, 1, attn_team_bytes(s->slots)) &&
           attn_room_add(&s->bytes, (size_t)s->slots, sizeof(struct slot)) &&
           attn_room_add(&s->bytes, (size_t)s->slots, attn_room_of((size_t)s->strips)) &&
           attn_room_add(&s->bytes, (size_t)s->slots,
                         attn_room_of((size_t)s->strips * sizeof(atomic_int_fast64_t))) &&
           attn_room_add(&s->bytes, (size_t)s->threads, s->scratch) &&
           attn_room_add(&s->bytes, (size_t)s->slots, s->prepared);
}

/* ---- Strips ---------------------------------------------------------------------------------- */

static void prepare_strip(void *arg, int64_t strip)
{
    const struct slot *slot = arg;
    slot->job->kernel->prepare(&slot->unit, strip);
}

static void need_strip(void *arg, int64_t strip)
{
    const struct slot *slot = arg;
    attn_parts_need(&slot->strips, strip);
}

static void wait_for_strip(void *arg, int64_t strip, int64_t passed)
{
    const struct slot *slot = arg;
    int looks = 0;
    while (atomic_load_explicit(&slot->passed[strip], memory_order_acquire) != passed)
        if (looks < LOOKS)
            looks++;
        else
            sched_yield();
}

static void pass_strip(void *arg, int64_t strip)
{
    const struct slot *slot = arg;
    atomic_fetch_add_explicit(&slot->passed[strip], 1, memory_order_release);
}

/* ---- Units ----------------------------------------------------------------------------------- */

static int64_t open_unit(void *arg, int32_t n, int64_t unit)
{
    const struct job *job = arg;
    const struct attn_problem *p = job->p;
    struct slot *slot = &job->slots[n];
    struct attn_unit *u = &slot->unit;
    attn_unit_describe(u, p, job->order[unit / p->heads_kv], unit % p->heads_kv);
    slot->strips.count = strips_of(p, job->kernel, u->nq);
    attn_parts_begin(&slot->strips);
    for (int64_t strip = 0; strip < slot->strips.count; strip++)
        atomic_store_explicit(&slot->passed[strip], 0, memory_order_relaxed);
    return slot->items = items_of(u->nk);
}

static void do_tile(void *arg, int32_t n, int64_t item, int32_t thread)
{
    const struct job *job = arg;
    struct slot *slot = &job->slots[n];
    const struct attn_strips strips = {slot, need_strip, wait_for_strip, pass_strip};
    if (slot->unit.nk > 0) /* items come from the last to the first */
        job->kernel->tile(&slot->unit, slot->items - 1 - item,
                          job->scratch + (size_t)thread * job->s->scratch, &strips);
}

static void close_unit(void *arg, int32_t n, int32_t thread)
{
    const struct job *job = arg;
    (void)thread;
    job->kernel->finish(&job->slots[n].unit);
}

static void do_sinks(void *arg, int32_t thread, int32_t team)
{
    const struct job *job = arg;
    const struct attn_range heads = attn_share(job->p->heads_q, thread, team);
    for (int64_t h = heads.lo; h < heads.hi; h++)
        job->kernel->sink(job->p, h);
}

static void do_biases(void *arg, int32_t thread, int32_t team)
{
    struct job *job = arg;
    (void)team;
    for (;;) {
        const int64_t n = atomic_fetch_add_explicit(&job->next_bias, 1, memory_order_relaxed);
        if (n >= job->biases)
            return;
        job->kernel->bias(job->p, n, job->scratch + (size_t)thread * job->s->scratch);
    }
}

void attn_backward_run(const struct attn_backward_plan *s, const struct attn_problem *p,
                       const struct attn_cpu_backward *kernel, void *workspace)
{
    static const struct attn_team_work work = {open_unit, do_tile, close_unit};
    char *at = workspace;
    struct job job = {.s = s, .p = p, .kernel = kernel};
    job.order = attn_order_sequences(p, attn_room_take(&at, 1, attn_order_bytes(p->batch)));
    void *const team = attn_room_take(&at, 1, attn_team_bytes(s->slots));
    job.slots = attn_room_take(&at, (size_t)s->slots, sizeof *job.slots);
    for (int32_t i = 0; i < s->slots; i++) {
        struct slot *slot = &job.slots[i];
        memset(slot, 0, sizeof *slot);
        slot->job = &job;
        slot->strips.make = prepare_strip;
        slot->strips.arg = slot;
        slot->strips.state = attn_room_take(&at, 1, (size_t)s->strips);
        slot->passed = attn_room_take(&at, (size_t)s->strips, sizeof *slot->passed);
        slot->unit.room = s->room;
        slot->unit.packed = attn_room_take(&at, 1, s->prepared);
    }
    job.scratch = at;
    if (p->heads_kv > 0)
        attn_team_run(s->threads, s->slots, p->batch * p->heads_kv, &work, false, &job, team);
    if (p->dsink.data)
        attn_parallel(s->threads, do_sinks, &job);
    if (p->dbias.data) {
        job.biases = kernel->biases(p);
        attn_parallel(s->threads, do_biases, &job);
    }
}
