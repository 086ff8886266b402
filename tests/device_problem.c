/* SPDX-License-Identifier: BSD-3-Clause */
#include "device_problem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emulator/runtime.h"

/* ---- Memory --------------------------------------------------------------------------------- */

struct memory memory_take(size_t bytes)
{
    const size_t whole = bytes ? (bytes + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
    struct memory m = {NULL, NULL, bytes};

    if (cudaMalloc(&m.base, whole) != cudaSuccess)
        exit(1);
    m.data = (char *)m.base + (whole - bytes);
    memset(m.base, NAN_BYTE, whole);
    return m;
}

void memory_give_back(struct memory *m)
{
    if (m->base)
        cudaFree(m->base);
    memset(m, 0, sizeof *m);
}

static void open_to_host(const struct memory *m, bool open)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t from = (uintptr_t)m->base / page * page;
    const size_t bytes = (size_t)((uintptr_t)m->data + m->bytes - from);
    if (m->base && mprotect((void *)from, bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
        exit(1);
}

bool memory_is_clean(const struct memory *m)
{
    for (const char *at = m->base; at < m->data; at++)
        if ((unsigned char)*at != NAN_BYTE)
            return false;
    return true;
}

struct memory memory_of_numbers(struct rng *r, int64_t n)
{
    struct memory m = memory_take((size_t)n * 2);

    for (int64_t i = 0; i < n; i++) {
        const uint16_t x = (uint16_t)(0x3000 + rng_below(r, 0xd00) + 0x8000 * rng_below(r, 2));
        memcpy(m.data + 2 * i, &x, 2); /* f16, up to 1.5 */
    }
    return m;
}

void array_store(struct array *a)
{
    const size_t size = a->type == ATTN_I64 ? 8 : 4;
    char *to = a->host;

    if (!a->given)
        return;
    if (a->on_device) {
        a->device = memory_take((size_t)a->n * size);
        to = a->device.data;
    }
    for (int64_t i = 0; i < a->n; i++) {
        const int32_t narrow = (int32_t)a->x[i];
        memcpy(to + (size_t)i * size, size == 8 ? (void *)&a->x[i] : (void *)&narrow, size);
        a->x[i] = size == 8 ? a->x[i] : narrow;
    }
}

attn_index array_index(const struct array *a)
{
    if (!a->given)
        return (attn_index){NULL, ATTN_I32};
    return (attn_index){a->on_device ? (void *)a->device.data : (void *)a->host, a->type};
}

/* ---- Sound problems ------------------------------------------------------------------------- */

static int64_t longest(const struct lengths *s, int64_t batch)
{
    int64_t most = 0;
    for (int64_t b = 0; b < batch; b++)
        most = s->length[b] > most ? s->length[b] : most;
    return most;
}

static void give(struct rng *r, struct array *a, int64_t n)
{
    a->given = true;
    a->on_device = rng_chance(r, 65);
    a->type = rng_chance(r, 50) ? ATTN_I64 : ATTN_I32;
    a->n = n;
}

static void gen_table(struct rng *r, struct lengths *s, int64_t batch, int64_t most)
{
    s->page_size = most > 40 ? 5 + rng_below(r, 100) : 1 + rng_below(r, 7);
    s->max_pages = (most + s->page_size - 1) / s->page_size + rng_below(r, 2);
    s->pages = 1 + rng_below(r, 9);
    s->room = s->max_pages * s->page_size;
    give(r, &s->table, batch * s->max_pages);
    for (int64_t n = 0; n < s->table.n; n++)
        s->table.x[n] = rng_below(r, s->pages);
}

static void gen_lengths(struct rng *r, struct lengths *s, int64_t batch, int64_t most, bool pages)
{
    int64_t end = 0;

    s->layout = (attn_layout)rng_below(r, pages ? 3 : 2);
    give(r, &s->used, batch);
    s->used.given = s->layout == ATTN_PAGED || rng_chance(r, 50);
    for (int64_t b = 0; b < batch; b++) {
        const int64_t room = rng_chance(r, 15) ? 0 : 1 + rng_below(r, most);
        const bool whole = !s->used.given && s->layout == ATTN_PADDED;
        s->length[b] = whole ? most : s->used.given ? rng_below(r, room + 1) : room;
        s->used.x[b] = s->length[b];
        s->cu.x[b] = end;
        end += room;
    }
    s->cu.x[batch] = end;
    s->rows = s->layout == ATTN_PACKED ? end + rng_below(r, 3) : most;
    if (s->layout == ATTN_PACKED)
        give(r, &s->cu, batch + 1);
    if (s->layout == ATTN_PAGED)
        gen_table(r, s, batch, most);
}

bool lengths_are_unread(const struct lengths *s)
{
    return s->used.given ? s->used.on_device : s->cu.given && s->cu.on_device;
}

/* An upper bound, sound in three of four cases where nobody can know. */
static void gen_bound(struct rng *r, struct lengths *s, int64_t batch)
{
    const int64_t most = longest(s, batch);

    if (s->layout == ATTN_PADDED ? rng_chance(r, 60) : !lengths_are_unread(s) && rng_chance(r, 50))
        return;
    switch (rng_below(r, 4)) {
    case 0: s->bound = most + rng_below(r, 20); break;
    case 1: s->bound = most + (INT64_C(1) << 40); break;
    case 2: s->bound = lengths_are_unread(s) ? rng_below(r, most + 1) : most; break;
    default: s->bound = most;
    }
    if (s->bound == 0)
        s->bound = 1;
}

static void gen_bias(struct rng *r, struct device_problem *p)
{
    int64_t at = rng_below(r, 3);

    give(r, &p->bias_offset, p->batch + 1);
    p->bias_per_head = rng_chance(r, 50);
    for (int64_t b = 0; b < p->batch; b++) {
        p->bias_offset.x[b] = at;
        at += (p->bias_per_head ? HQ : 1) * p->query.length[b] * p->key.length[b] + rng_below(r, 3);
    }
    p->bias_offset.x[p->batch] = at;
    p->bias_elements = at + rng_below(r, 2);
    if (p->bias_elements == 0)
        p->bias_elements = 1;
}

static void gen_tensors(struct rng *r, struct device_problem *p)
{
    const int64_t tq = p->query.rows * (p->query.layout == ATTN_PACKED ? 1 : p->batch);
    const int64_t tk = p->key.layout == ATTN_PAGED ? p->key.pages * p->key.page_size
                       : p->key.rows * (p->key.layout == ATTN_PACKED ? 1 : p->batch);

    p->q = memory_of_numbers(r, tq * HQ * D);
    p->k = memory_of_numbers(r, tk * p->heads_kv * D);
    p->v = memory_of_numbers(r, tk * p->heads_kv * D);
    p->out = memory_take((size_t)(tq * HQ * D) * 2);
    p->lse = memory_take((size_t)(tq * HQ) * 4);
    if (p->bias_offset.given) {
        p->bias = memory_take((size_t)p->bias_elements * 4);
        for (int64_t n = 0; n < p->bias_elements; n++) {
            const float x = (float)rng_uniform(r);
            memcpy(p->bias.data + 4 * n, &x, 4);
        }
    }
    if (p->key.layout != ATTN_PAGED && rng_chance(r, 30)) {
        p->key_mask = memory_take((size_t)tk);
        for (int64_t n = 0; n < tk; n++)
            p->key_mask.data[n] = (char)rng_chance(r, 80);
    }
}

void device_problem_draw(struct rng *r, struct device_problem *p)
{
    const bool split = rng_chance(r, 10); /* keys over blocks */

    memset(p, 0, sizeof *p);
    p->query.name = "query";
    p->key.name = "key";
    p->batch = split ? 2 : 1 + rng_below(r, MOST_B);
    p->heads_kv = 1 + rng_below(r, HQ);
    gen_lengths(r, &p->query, p->batch, 1 + rng_below(r, split ? 3 : 40), false);
    gen_lengths(r, &p->key, p->batch, split ? 1100 : 1 + rng_below(r, 40), true);
    gen_bound(r, &p->query, p->batch);
    gen_bound(r, &p->key, p->batch);
    p->causal = rng_chance(r, 50);
    if (p->causal && rng_chance(r, 60)) {
        give(r, &p->prefix, p->batch);
        for (int64_t b = 0; b < p->batch; b++)
            p->prefix.x[b] = rng_below(r, 50);
    }
    if (!split && rng_chance(r, 40))
        gen_bias(r, p);
    gen_tensors(r, p);
}

void device_problem_each(struct device_problem *p, void (*act)(struct memory *m))
{
    struct memory *all[] = {&p->q, &p->k, &p->v, &p->out, &p->lse, &p->key_mask, &p->bias,
                            &p->query.cu.device, &p->query.used.device, &p->key.cu.device,
                            &p->key.used.device, &p->key.table.device, &p->prefix.device,
                            &p->bias_offset.device};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        act(all[n]);
}

void memory_open(struct memory *m) { open_to_host(m, true); }
void memory_close(struct memory *m) { open_to_host(m, false); }

/* ---- Garbage -------------------------------------------------------------------------------- */

static int64_t garbage(struct rng *r, const struct array *a, int64_t sound)
{
    const bool wide = a->type == ATTN_I64;
    switch (rng_below(r, 10)) {
    case 0: return sound + 1;
    case 1: return sound - 1;
    case 2: return -1;
    case 3: return 0;
    case 4: return INT32_MAX;
    case 5: return INT32_MIN;
    case 6: return rng_below(r, 60);
    case 7: return wide ? INT64_MAX : 1 << 20;
    case 8: return wide ? sound + (INT64_C(1) << 32) : -sound;
    default: return wide ? (int64_t)rng_next(r) : (int32_t)rng_next(r);
    }
}

void device_problem_spoil(struct rng *r, struct device_problem *p)
{
    struct array *const all[] = {&p->query.cu, &p->query.used, &p->key.cu, &p->key.used,
                                 &p->key.table, &p->prefix, &p->bias_offset};
    const int64_t how = rng_below(r, 4), one = rng_below(r, 7);

    for (int64_t n = 0; n < 7; n++) {
        struct array *const a = all[n];
        const int64_t entry = a->n == 0 || rng_chance(r, 30) ? a->n - 1 : rng_below(r, a->n);
        if (!a->given || !a->on_device || how == 0 || (how != 1 && n != one))
            continue;
        for (int64_t i = 0; i < a->n; i++)
            if (how == 1 || i == entry)
                a->x[i] = garbage(r, a, a->x[i]);
    }
}
