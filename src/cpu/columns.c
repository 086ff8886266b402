/* SPDX-License-Identifier: BSD-3-Clause */
/* The second round of a call that wants columns of the probabilities. */
#include <stdatomic.h>

#include "cpu/schedule.h"
#include "parallel.h"

struct round {
    const struct attn_schedule *s;
    const struct attn_problem *p;
    const struct attn_cpu_kernel *kernel;
    char *weights, *columns;
    int64_t tiles, items;     /* of the longest sequence; tiles * heads_kv * batch */
    atomic_int_fast64_t next; /* item that the next idle thread takes */
};

static void do_tile(const struct round *r, int64_t item, char *room)
{
    const int64_t unit = item / r->tiles, t = item % r->tiles;
    struct attn_unit u;
    attn_unit_describe(&u, r->p, unit / r->p->heads_kv, unit % r->p->heads_kv);
    if (u.nq == 0 || t * ATTN_TILE_KEYS >= u.nk)
        return;
    u.room = r->s->room;
    u.weights = r->weights;
    r->kernel->pack(&u, t, room);
    r->kernel->columns(&u, t, room, room + r->s->tile);
}

static void work(void *arg, int32_t thread, int32_t threads)
{
    struct round *r = arg;
    (void)threads;
    for (;;) {
        const int64_t item = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
        if (item >= r->items)
            return;
        do_tile(r, item, r->columns + (size_t)thread * r->s->columns);
    }
}

void attn_columns_run(const struct attn_schedule *s, const struct attn_problem *p,
                      const struct attn_cpu_kernel *kernel, char *weights, char *columns)
{
    struct round r = {.s = s, .p = p, .kernel = kernel, .weights = weights, .columns = columns};
    r.tiles = (p->key.max + ATTN_TILE_KEYS - 1) / ATTN_TILE_KEYS;
    r.items = r.tiles * p->heads_kv * p->batch;
    attn_parallel(s->threads, work, &r);
}
