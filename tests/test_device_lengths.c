/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Lengths, tables, prefixes and offsets in a device's memory, on an emulated device: as sound ones
 * they give the bits that each sequence gives alone with lengths in host memory; whatever else they
 * hold, nothing leaves the tensors, which end at guard pages, the sequences are those that are left
 * when every number is held to its bounds, and the workspace names what was wrong.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "attn/attn.h"
#include "emulator/runtime.h"
#include "expect.h"
#include "memory.h"
#include "rng.h"
#include "run.h"

enum { MOST_B = 5, HQ = 2, D = 8, ENTRIES = 512, ALIGN = 64, NAN_BYTE = 0xff };

/* Memory of the device that ends at a guard page. */
struct memory {
    void *base;
    char *data;
    size_t bytes;
};

/* Integers of a call. */
struct array {
    bool given, on_device;
    attn_itype type;
    int64_t n, x[ENTRIES]; /* as they are stored */
    struct memory device;
    _Alignas(8) char host[ENTRIES * 8];
};

struct lengths {
    const char *name;
    attn_layout layout;
    int64_t rows; /* of a packed tensor; S of a padded one */
    int64_t bound; /* max_seqlen */
    int64_t room;  /* of a paged sequence */
    int64_t pages, page_size, max_pages;
    struct array cu, used, table;
    int64_t start[MOST_B], length[MOST_B]; /* as sound arrays have them */
};

struct problem_on_device {
    int64_t batch, heads_kv, bias_elements;
    bool causal, bias_per_head;
    struct lengths query, key;
    struct array prefix, bias_offset;
    struct memory q, k, v, out, lse, key_mask, bias;
    int64_t bias_at[MOST_B]; /* of sequences that have queries left */
};

/* What stands first among the things that are wrong. */
struct fault {
    int field;
    int64_t entry;
    char name[60]; /* with the entry; "": nothing is */
};

static attn_context *cuda;

/* ---- Memory --------------------------------------------------------------------------------- */

static struct memory take(size_t bytes)
{
    const size_t whole = bytes ? (bytes + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
    struct memory m = {NULL, NULL, bytes};

    if (cudaMalloc(&m.base, whole) != cudaSuccess)
        exit(1);
    m.data = (char *)m.base + (whole - bytes);
    memset(m.base, NAN_BYTE, whole);
    return m;
}

static void give_back(struct memory *m)
{
    if (m->base)
        cudaFree(m->base);
    memset(m, 0, sizeof *m);
}

/* Whether the host can look at it; kernels run later. */
static void open_to_host(const struct memory *m, bool open)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t from = (uintptr_t)m->base / page * page;
    const size_t bytes = (size_t)((uintptr_t)m->data + m->bytes - from);
    if (m->base && mprotect((void *)from, bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
        exit(1);
}

/* Nothing stands before the data. */
static bool is_clean(const struct memory *m)
{
    for (const char *at = m->base; at < m->data; at++)
        if ((unsigned char)*at != NAN_BYTE)
            return false;
    return true;
}

static struct memory take_numbers(struct rng *r, int64_t n)
{
    struct memory m = take((size_t)n * 2);

    for (int64_t i = 0; i < n; i++) {
        const uint16_t x = (uint16_t)(0x3000 + rng_below(r, 0xd00) + 0x8000 * rng_below(r, 2));
        memcpy(m.data + 2 * i, &x, 2); /* f16, up to 1.5 */
    }
    return m;
}

static void store(struct array *a)
{
    const size_t size = a->type == ATTN_I64 ? 8 : 4;
    char *to = a->host;

    if (!a->given)
        return;
    if (a->on_device) {
        a->device = take((size_t)a->n * size);
        to = a->device.data;
    }
    for (int64_t i = 0; i < a->n; i++) {
        const int32_t narrow = (int32_t)a->x[i];
        memcpy(to + (size_t)i * size, size == 8 ? (void *)&a->x[i] : (void *)&narrow, size);
        a->x[i] = size == 8 ? a->x[i] : narrow;
    }
}

static attn_index index_of(const struct array *a)
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

static bool is_unread(const struct lengths *s)
{
    return s->used.given ? s->used.on_device : s->cu.given && s->cu.on_device;
}

/* An upper bound, sound in three of four cases where nobody can know. */
static void gen_bound(struct rng *r, struct lengths *s, int64_t batch)
{
    const int64_t most = longest(s, batch);

    if (s->layout == ATTN_PADDED ? rng_chance(r, 60) : !is_unread(s) && rng_chance(r, 50))
        return;
    switch (rng_below(r, 4)) {
    case 0: s->bound = most + rng_below(r, 20); break;
    case 1: s->bound = most + (INT64_C(1) << 40); break;
    case 2: s->bound = is_unread(s) ? rng_below(r, most + 1) : most; break;
    default: s->bound = most;
    }
    if (s->bound == 0)
        s->bound = 1;
}

static void gen_bias(struct rng *r, struct problem_on_device *p)
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

static void gen_tensors(struct rng *r, struct problem_on_device *p)
{
    const int64_t tq = p->query.rows * (p->query.layout == ATTN_PACKED ? 1 : p->batch);
    const int64_t tk = p->key.layout == ATTN_PAGED ? p->key.pages * p->key.page_size
                       : p->key.rows * (p->key.layout == ATTN_PACKED ? 1 : p->batch);

    p->q = take_numbers(r, tq * HQ * D);
    p->k = take_numbers(r, tk * p->heads_kv * D);
    p->v = take_numbers(r, tk * p->heads_kv * D);
    p->out = take((size_t)(tq * HQ * D) * 2);
    p->lse = take((size_t)(tq * HQ) * 4);
    if (p->bias_offset.given) {
        p->bias = take((size_t)p->bias_elements * 4);
        for (int64_t n = 0; n < p->bias_elements; n++) {
            const float x = (float)rng_uniform(r);
            memcpy(p->bias.data + 4 * n, &x, 4);
        }
    }
    if (p->key.layout != ATTN_PAGED && rng_chance(r, 30)) {
        p->key_mask = take((size_t)tk);
        for (int64_t n = 0; n < tk; n++)
            p->key_mask.data[n] = (char)rng_chance(r, 80);
    }
}

static void gen_call(struct rng *r, struct problem_on_device *p)
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

static void each_memory(struct problem_on_device *p, void (*act)(struct memory *m))
{
    struct memory *all[] = {&p->q, &p->k, &p->v, &p->out, &p->lse, &p->key_mask, &p->bias,
                            &p->query.cu.device, &p->query.used.device, &p->key.cu.device,
                            &p->key.used.device, &p->key.table.device, &p->prefix.device,
                            &p->bias_offset.device};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        act(all[n]);
}

static void open_memory(struct memory *m) { open_to_host(m, true); }
static void close_memory(struct memory *m) { open_to_host(m, false); }

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

/* Nothing, one number or all of what the host cannot read. */
static void spoil(struct rng *r, struct problem_on_device *p)
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

/* ---- What is left when all is held to its bounds -------------------------------------------- */

enum field {
    QUERY_CU,
    QUERY_USED,
    KEY_CU,
    KEY_USED,
    KEY_TABLE,
    BIAS_OFFSET,
    PREFIX,
    QUERY_MAX,
    KEY_MAX
};

static void wrong(struct fault *f, int field, int64_t entry, const char *side, const char *name,
                  int64_t columns)
{
    if (f->name[0] && (f->field < field || (f->field == field && f->entry <= entry)))
        return;
    f->field = field;
    f->entry = entry;
    if (field == QUERY_MAX || field == KEY_MAX)
        snprintf(f->name, sizeof f->name, "%s.max_seqlen: sequence %lld ", side, (long long)entry);
    else if (columns)
        snprintf(f->name, sizeof f->name, "%s.%s[%lld][%lld]:", side, name,
                 (long long)(entry / columns), (long long)(entry % columns));
    else
        snprintf(f->name, sizeof f->name, "%s%s%s[%lld]:", side, *side ? "." : "", name,
                 (long long)entry);
}

static void bound_side(struct problem_on_device *p, struct lengths *s, bool query, struct fault *f)
{
    int64_t edge = 0;
    for (int64_t b = 0; b <= p->batch && s->cu.given; b++) {
        const int64_t x = s->cu.x[b];
        const bool low = b == 0 ? x < 0 : x < 0 || x < s->cu.x[b - 1];
        const bool high = b == 0 ? x > 0 : x > s->rows;
        if (low || high)
            wrong(f, query ? QUERY_CU : KEY_CU, b, s->name, "cu_seqlens", 0);
        if (b > 0) {
            const int64_t end = x > s->rows ? s->rows : x;
            s->start[b - 1] = edge;
            s->length[b - 1] = end > edge ? end - edge : 0;
            edge = end > edge ? end : edge;
        }
    }
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t room = s->layout == ATTN_PACKED   ? s->length[b]
                             : s->layout == ATTN_PADDED ? s->rows
                                                        : s->room;
        int64_t x = s->used.given ? s->used.x[b] : room;
        if (x < 0 || x > room)
            wrong(f, query ? QUERY_USED : KEY_USED, b, s->name, "seqused", 0);
        x = x < 0 ? 0 : x > room ? room : x;
        if (s->bound && is_unread(s) && x > s->bound) {
            wrong(f, query ? QUERY_MAX : KEY_MAX, b, s->name, "max_seqlen", 0);
            x = s->bound;
        }
        s->length[b] = x;
    }
}

static void bound_table(struct problem_on_device *p, struct fault *f)
{
    struct lengths *const s = &p->key;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t n = 0; s->table.given && n * s->page_size < s->length[b]; n++) {
            int64_t *const x = &s->table.x[b * s->max_pages + n];
            if (*x < 0 || *x >= s->pages)
                wrong(f, KEY_TABLE, b * s->max_pages + n, "key", "block_table", s->max_pages);
            *x = *x < 0 ? 0 : *x >= s->pages ? s->pages - 1 : *x;
        }
}

/* A sequence whose bias does not lie within it has no queries. */
static void bound_bias(struct problem_on_device *p, struct fault *f)
{
    for (int64_t b = 0; b < p->batch && p->bias_offset.given; b++) {
        const int64_t at = p->bias_offset.x[b], next = p->bias_offset.x[b + 1];
        const int64_t size =
            (p->bias_per_head ? HQ : 1) * p->query.length[b] * p->key.length[b];
        p->bias_at[b] = at;
        if (b == 0 && at < 0)
            wrong(f, BIAS_OFFSET, 0, "", "bias_offset", 0);
        if (at >= 0 && next >= at && next <= p->bias_elements && next - at >= size)
            continue;
        wrong(f, BIAS_OFFSET, b + 1, "", "bias_offset", 0);
        p->query.length[b] = 0;
    }
}

static struct fault bound_all(struct problem_on_device *p)
{
    struct fault f = {0, 0, ""};
    if (p->out.bytes == 0) /* nothing to write, and nothing is looked at */
        return f;
    bound_side(p, &p->query, true, &f);
    bound_side(p, &p->key, false, &f);
    bound_table(p, &f);
    bound_bias(p, &f);
    for (int64_t b = 0; b < p->batch && p->prefix.given; b++)
        if (p->prefix.x[b] < 0) {
            wrong(&f, PREFIX, b, "", "prefix", 0);
            p->prefix.x[b] = 0;
        }
    return f;
}

/* ---- Calls ---------------------------------------------------------------------------------- */

static attn_side side_of(const struct lengths *s)
{
    attn_side a;
    memset(&a, 0, sizeof a);
    a.layout = s->layout;
    a.max_seqlen = s->bound;
    a.seqlen = s->layout == ATTN_PADDED ? s->rows : 0;
    a.tokens = s->layout == ATTN_PACKED ? s->rows : 0;
    a.cu_seqlens = index_of(&s->cu);
    a.seqused = index_of(&s->used);
    a.pages = s->pages;
    a.page_size = s->page_size;
    a.max_pages = s->max_pages;
    a.block_table = index_of(&s->table);
    return a;
}

static attn_desc desc_of(const struct problem_on_device *p)
{
    attn_desc d = attn_desc_init();
    d.batch = p->batch;
    d.heads_q = HQ;
    d.heads_kv = p->heads_kv;
    d.head_dim = D;
    d.query = side_of(&p->query);
    d.key = side_of(&p->key);
    d.q.data = p->q.data;
    d.k.data = p->k.data;
    d.v.data = p->v.data;
    d.out.data = p->out.data;
    d.lse.data = p->lse.data;
    d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = ATTN_F16;
    d.causal = p->causal;
    d.align = ATTN_BOTTOM_RIGHT;
    d.prefix = index_of(&p->prefix);
    d.key_mask.data = (const uint8_t *)p->key_mask.data;
    d.bias.data = p->bias.data;
    d.bias.head_stride = p->bias_offset.given && !p->bias_per_head ? ATTN_BROADCAST : 0;
    d.bias_offset = index_of(&p->bias_offset);
    d.bias_elements = p->bias_offset.given ? p->bias_elements : 0;
    return d;
}

static bool any_unread(const struct problem_on_device *p)
{
    const struct array *const all[] = {&p->query.cu, &p->query.used, &p->key.cu, &p->key.used,
                                       &p->key.table, &p->prefix, &p->bias_offset};
    bool any = false;
    for (int n = 0; n < 7; n++)
        any = any || (all[n]->given && all[n]->on_device);
    return any;
}

/* Sequence b alone, every length in host memory, to out [nq, HQ, D] and lse [HQ, nq]. */
static bool run_alone(const struct problem_on_device *p, int64_t b, struct memory *out,
                      struct memory *lse)
{
    const int64_t nq = p->query.length[b], nk = p->key.length[b];
    const int64_t query = p->query.layout == ATTN_PACKED ? p->query.start[b] : b * p->query.rows;
    const int64_t key = p->key.layout == ATTN_PACKED   ? p->key.start[b]
                        : p->key.layout == ATTN_PADDED ? b * p->key.rows
                                                       : 0;
    const int64_t size = (p->bias_per_head ? HQ : 1) * nq * nk, offsets[2] = {0, size};
    attn_desc d = desc_of(p);

    *out = take((size_t)(nq * HQ * D) * 2);
    *lse = take((size_t)(nq * HQ) * 4);
    d.batch = 1;
    memset(&d.query, 0, sizeof d.query);
    d.query.seqlen = nq;
    d.q.data = p->q.data + query * HQ * D * 2;
    d.out.data = out->data;
    d.lse.data = lse->data;
    if (p->key.layout == ATTN_PAGED) {
        d.key.seqused = (attn_index){&nk, ATTN_I64};
        d.key.max_seqlen = 0;
        d.key.block_table = (attn_index){p->key.table.x + b * p->key.max_pages, ATTN_I64};
    } else {
        memset(&d.key, 0, sizeof d.key);
        d.key.seqlen = nk;
        d.k.data = p->k.data + key * p->heads_kv * D * 2;
        d.v.data = p->v.data + key * p->heads_kv * D * 2;
        if (d.key_mask.data)
            d.key_mask.data += key;
    }
    if (p->prefix.given)
        d.prefix = (attn_index){p->prefix.x + b, ATTN_I64};
    if (p->bias_offset.given) {
        d.bias.data = p->bias.data + 4 * p->bias_at[b];
        d.bias_offset = (attn_index){offsets, ATTN_I64};
        d.bias_elements = 0;
    }
    return attn_forward(cuda, &d) == ATTN_OK && cudaStreamSynchronize(NULL) == cudaSuccess;
}

/* What the batch's outputs are to hold. */
static bool expect_outputs(const struct problem_on_device *p, uint16_t *out, float *lse)
{
    const bool packed = p->query.layout == ATTN_PACKED;
    const int64_t rows = p->query.rows;
    bool good = true;

    memset(out, 0, p->out.bytes);
    for (size_t n = 0; n < p->lse.bytes / 4; n++)
        lse[n] = -INFINITY;
    for (int64_t b = 0; b < p->batch && good; b++) {
        struct memory mine, mine_lse;
        const int64_t nq = p->query.length[b], row = packed ? p->query.start[b] : b * rows;
        if (nq == 0)
            continue;
        good = run_alone(p, b, &mine, &mine_lse);
        memcpy(out + row * HQ * D, mine.data, mine.bytes);
        for (int64_t h = 0; h < HQ; h++)
            memcpy(lse + (packed ? h * rows + row : (b * HQ + h) * rows),
                   mine_lse.data + 4 * h * nq, (size_t)nq * 4);
        give_back(&mine);
        give_back(&mine_lse);
    }
    return good;
}

static bool same_outputs(const struct problem_on_device *p, const uint16_t *out, const float *lse)
{
    return memcmp(out, p->out.data, p->out.bytes) == 0 &&
           memcmp(lse, p->lse.data, p->lse.bytes) == 0 && is_clean(&p->out) && is_clean(&p->lse);
}

/* The call, twice, in a workspace that ends at a guard page; then what it left there. */
static void run_batch(uint64_t seed, struct problem_on_device *p, const struct fault *f,
                      const uint16_t *out, const float *lse)
{
    attn_desc d = desc_of(p);
    size_t bytes = 0;
    const attn_status sized = attn_workspace_size(cuda, &d, ATTN_PASS_FORWARD, &bytes);
    struct memory room = take((bytes + ALIGN - 1) / ALIGN * ALIGN);
    const long waits = emulated_calls("cudaStreamSynchronize");

    d.workspace = room.data;
    d.workspace_bytes = bytes;
    EXPECT(sized == ATTN_OK, "seed %llu: \"%s\"", (unsigned long long)seed,
           attn_last_message(cuda));
    for (int n = 0; n < 2; n++) {
        memset(p->out.data, NAN_BYTE, p->out.bytes);
        memset(p->lse.data, NAN_BYTE, p->lse.bytes);
        memset(room.data, n ? 0 : NAN_BYTE, room.bytes);
        each_memory(p, close_memory);
        close_memory(&room);
        const attn_status status = attn_forward(cuda, &d);
        each_memory(p, open_memory);
        open_memory(&room);
        EXPECT(status == ATTN_OK && emulated_calls("cudaStreamSynchronize") == waits + n,
               "seed %llu: \"%s\"", (unsigned long long)seed, attn_last_message(cuda));
        EXPECT(cudaStreamSynchronize(NULL) == cudaSuccess && same_outputs(p, out, lse),
               "seed %llu, run %d: other results; wrong is: %s", (unsigned long long)seed, n,
               f->name);
    }
    const attn_status told = attn_workspace_status(cuda, &d, ATTN_PASS_FORWARD);
    const bool index = f->field == KEY_TABLE || f->field == BIAS_OFFSET;
    if (!f->name[0])
        EXPECT(told == ATTN_OK, "seed %llu: \"%s\", and nothing is wrong", (unsigned long long)seed,
               attn_last_message(cuda));
    else
        EXPECT(told == (index ? ATTN_INVALID_INDEX : ATTN_INVALID_LENGTHS) &&
                   strncmp(attn_last_message(cuda), f->name, strlen(f->name)) == 0,
               "seed %llu: %s, \"%s\"; expected %s", (unsigned long long)seed,
               attn_status_name(told), attn_last_message(cuda), f->name);
    give_back(&room);
}

static void test_call(uint64_t seed)
{
    struct rng r = rng_seeded(seed);
    struct problem_on_device *const p = test_alloc(sizeof *p);

    do {
        each_memory(p, give_back);
        gen_call(&r, p);
    } while (!any_unread(p));
    spoil(&r, p);
    struct array *const all[] = {&p->query.cu, &p->query.used, &p->key.cu, &p->key.used,
                                 &p->key.table, &p->prefix, &p->bias_offset};
    for (int n = 0; n < 7; n++)
        store(all[n]);
    const struct fault f = bound_all(p);
    uint16_t *const out = test_alloc(p->out.bytes);
    float *const lse = test_alloc(p->lse.bytes);
    EXPECT(expect_outputs(p, out, lse), "seed %llu, a sequence alone: \"%s\"",
           (unsigned long long)seed, attn_last_message(cuda));
    run_batch(seed, p, &f, out, lse);
    free(out);
    free(lse);
    each_memory(p, give_back);
    free(p);
}

/* More sequences than the block that looks at them has threads, one of them out of order. */
static void test_many(void)
{
    enum { MANY = 700, LATE = 512 }; /* which begins a round of its threads */
    struct rng r = rng_seeded(1);
    struct memory x = take_numbers(&r, MANY), y = take((size_t)MANY * 2);
    struct memory cu = take((size_t)(MANY + 1) * 4);
    attn_desc d = attn_desc_init();
    size_t bytes = 0;

    for (int32_t n = 0; n <= MANY; n++)
        memcpy(cu.data + 4 * n, &n, 4);
    d.batch = MANY;
    d.heads_q = d.head_dim = 1;
    d.query.layout = ATTN_PACKED;
    d.query.tokens = MANY;
    d.query.max_seqlen = MANY;
    d.query.cu_seqlens.data = cu.data;
    d.key = d.query;
    d.q.data = d.k.data = d.v.data = x.data;
    d.out.data = y.data;
    d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = ATTN_F16;
    EXPECT(attn_workspace_size(cuda, &d, ATTN_PASS_FORWARD, &bytes) == ATTN_OK, "many: \"%s\"",
           attn_last_message(cuda));
    struct memory room = take((bytes + ALIGN - 1) / ALIGN * ALIGN);
    d.workspace = room.data;
    d.workspace_bytes = bytes;
    EXPECT(attn_forward(cuda, &d) == ATTN_OK &&
               attn_workspace_status(cuda, &d, ATTN_PASS_FORWARD) == ATTN_OK &&
               memcmp(x.data, y.data, x.bytes) == 0,
           "%d sequences of one token: \"%s\"", (int)MANY, attn_last_message(cuda));
    const int32_t early = 3;
    memcpy(cu.data + 4 * LATE, &early, 4);
    EXPECT(attn_forward(cuda, &d) == ATTN_OK &&
               attn_workspace_status(cuda, &d, ATTN_PASS_FORWARD) == ATTN_INVALID_LENGTHS &&
               strstr(attn_last_message(cuda), "query.cu_seqlens[512]:"),
           "a late start out of order: \"%s\"", attn_last_message(cuda));
    EXPECT(memcmp(x.data, y.data, (size_t)(LATE - 1) * 2) == 0, "sequences before it");
    give_back(&x);
    give_back(&y);
    give_back(&cu);
    give_back(&room);
}

int main(int argc, char **argv)
{
    const struct options o = options_parse(argc, argv, "device-lengths", 400);
    attn_options options = attn_options_init();

    report_begin(o.program);
    options.backend = ATTN_BACKEND_CUDA;
    if (attn_context_create(&cuda, &options) != ATTN_OK)
        report_fail("no context: %s", attn_last_message(NULL));
    else
        for (int64_t n = 0; n < o.count; n++)
            test_call(o.seed + (uint64_t)n);
    if (cuda && !o.seed_given)
        test_many();
    EXPECT(emulated_allocations() == 0, "%ld allocations are left", emulated_allocations());
    attn_context_destroy(cuda);
    return report_end();
}
