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

#include "attn/attn.h"
#include "context.h"
#include "device_problem.h"
#include "emulator/runtime.h"
#include "expect.h"
#include "memory.h"
#include "run.h"

/* What stands first among the things that are wrong. */
struct fault {
    int field;
    int64_t entry;
    char name[60]; /* with the entry; "": nothing is */
};

static attn_context *cuda;

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

static void bound_side(struct device_problem *p, struct lengths *s, bool query, struct fault *f)
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
        if (s->bound && lengths_are_unread(s) && x > s->bound) {
            wrong(f, query ? QUERY_MAX : KEY_MAX, b, s->name, "max_seqlen", 0);
            x = s->bound;
        }
        s->length[b] = x;
    }
}

static void bound_table(struct device_problem *p, struct fault *f)
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
static void bound_bias(struct device_problem *p, struct fault *f)
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

static struct fault bound_all(struct device_problem *p)
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
    a.cu_seqlens = array_index(&s->cu);
    a.seqused = array_index(&s->used);
    a.pages = s->pages;
    a.page_size = s->page_size;
    a.max_pages = s->max_pages;
    a.block_table = array_index(&s->table);
    return a;
}

static attn_desc desc_of(const struct device_problem *p)
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
    d.prefix = array_index(&p->prefix);
    d.key_mask.data = (const uint8_t *)p->key_mask.data;
    d.bias.data = p->bias.data;
    d.bias.head_stride = p->bias_offset.given && !p->bias_per_head ? ATTN_BROADCAST : 0;
    d.bias_offset = array_index(&p->bias_offset);
    d.bias_elements = p->bias_offset.given ? p->bias_elements : 0;
    return d;
}

static bool any_unread(const struct device_problem *p)
{
    const struct array *const all[] = {&p->query.cu, &p->query.used, &p->key.cu, &p->key.used,
                                       &p->key.table, &p->prefix, &p->bias_offset};
    bool any = false;
    for (int n = 0; n < 7; n++)
        any = any || (all[n]->given && all[n]->on_device);
    return any;
}

/* Sequence b alone, every length in host memory, to out [nq, HQ, D] and lse [HQ, nq]. */
static bool run_alone(const struct device_problem *p, int64_t b, struct memory *out,
                      struct memory *lse)
{
    const int64_t nq = p->query.length[b], nk = p->key.length[b];
    const int64_t query = p->query.layout == ATTN_PACKED ? p->query.start[b] : b * p->query.rows;
    const int64_t key = p->key.layout == ATTN_PACKED   ? p->key.start[b]
                        : p->key.layout == ATTN_PADDED ? b * p->key.rows
                                                       : 0;
    const int64_t size = (p->bias_per_head ? HQ : 1) * nq * nk, offsets[2] = {0, size};
    attn_desc d = desc_of(p);

    *out = memory_take((size_t)(nq * HQ * D) * 2);
    *lse = memory_take((size_t)(nq * HQ) * 4);
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
static bool expect_outputs(const struct device_problem *p, uint16_t *out, float *lse)
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
        memory_give_back(&mine);
        memory_give_back(&mine_lse);
    }
    return good;
}

static bool same_outputs(const struct device_problem *p, const uint16_t *out, const float *lse)
{
    return memcmp(out, p->out.data, p->out.bytes) == 0 &&
           memcmp(lse, p->lse.data, p->lse.bytes) == 0 && memory_is_clean(&p->out) &&
           memory_is_clean(&p->lse);
}

/* The call, twice, in a workspace that ends at a guard page; then what it left there. */
static void run_batch(uint64_t seed, struct device_problem *p, const struct fault *f,
                      const uint16_t *out, const float *lse)
{
    attn_desc d = desc_of(p);
    size_t bytes = 0;
    const attn_status sized = attn_workspace_size(cuda, &d, ATTN_PASS_FORWARD, &bytes);
    struct memory room = memory_take((bytes + ALIGN - 1) / ALIGN * ALIGN);
    const long waits = emulated_calls("cudaStreamSynchronize");

    d.workspace = room.data;
    d.workspace_bytes = bytes;
    EXPECT(sized == ATTN_OK, "seed %llu: \"%s\"", (unsigned long long)seed,
           attn_last_message(cuda));
    for (int n = 0; n < 2; n++) {
        memset(p->out.data, NAN_BYTE, p->out.bytes);
        memset(p->lse.data, NAN_BYTE, p->lse.bytes);
        memset(room.data, n ? 0 : NAN_BYTE, room.bytes);
        device_problem_each(p, memory_close);
        memory_close(&room);
        const attn_status status = attn_forward(cuda, &d);
        device_problem_each(p, memory_open);
        memory_open(&room);
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
    memory_give_back(&room);
}

static void test_call(uint64_t seed)
{
    struct rng r = rng_seeded(seed);
    struct device_problem *const p = test_alloc(sizeof *p);

    do {
        device_problem_each(p, memory_give_back);
        device_problem_draw(&r, p);
    } while (!any_unread(p));
    device_problem_spoil(&r, p);
    struct array *const all[] = {&p->query.cu, &p->query.used, &p->key.cu, &p->key.used,
                                 &p->key.table, &p->prefix, &p->bias_offset};
    for (int n = 0; n < 7; n++)
        array_store(all[n]);
    const struct fault f = bound_all(p);
    uint16_t *const out = test_alloc(p->out.bytes);
    float *const lse = test_alloc(p->lse.bytes);
    EXPECT(expect_outputs(p, out, lse), "seed %llu, a sequence alone: \"%s\"",
           (unsigned long long)seed, attn_last_message(cuda));
    run_batch(seed, p, &f, out, lse);
    free(out);
    free(lse);
    device_problem_each(p, memory_give_back);
    free(p);
}

/* More sequences than the block that looks at them has threads, one of them out of order: before
 * the others, or ahead of those that come next. */
static void test_many(void)
{
    enum { MANY = 520, LATE = 512 }; /* which begins a round of its threads */
    enum { AHEAD = 100, THERE = 228, FEWER = 232 }; /* from AHEAD to THERE there are no keys */
    static const uint16_t zeros[THERE - AHEAD];
    struct rng r = rng_seeded(1);
    struct memory x = memory_of_numbers(&r, MANY), y = memory_take((size_t)MANY * 2);
    struct memory cu = memory_take((size_t)(MANY + 1) * 4), ahead = memory_take(cu.bytes);
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
    struct memory room = memory_take((bytes + ALIGN - 1) / ALIGN * ALIGN);
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

    const int32_t there = THERE;
    memcpy(ahead.data, cu.data, 4 * FEWER + 4);
    memcpy(ahead.data + 4 * AHEAD, &there, 4);
    d.key.cu_seqlens.data = ahead.data;
    d.batch = d.query.tokens = d.key.tokens = FEWER;
    for (int n = 0; n < 2; n++) { /* in two orders */
        memset(y.data, 0xff, y.bytes);
        EXPECT(attn_forward(cuda, &d) == ATTN_OK && cudaStreamSynchronize(NULL) == cudaSuccess &&
                   memcmp(x.data, y.data, (AHEAD - 1) * 2) == 0 &&
                   memcmp(zeros, y.data + 2 * AHEAD, sizeof zeros) == 0 &&
                   memcmp(x.data + 2 * THERE, y.data + 2 * THERE, (FEWER - THERE) * 2) == 0,
               "a start ahead of its sequence, call %d: \"%s\"", n, attn_last_message(cuda));
    }
    memory_give_back(&x);
    memory_give_back(&y);
    memory_give_back(&cu);
    memory_give_back(&ahead);
    memory_give_back(&room);
}

int main(int argc, char **argv)
{
    const struct options o = options_parse(argc, argv, "device-lengths", 400);
    report_begin(o.program);
    cuda = context_of(ATTN_BACKEND_CUDA);
    for (int64_t n = 0; n < o.count; n++)
        test_call(o.seed + (uint64_t)n);
    if (!o.seed_given)
        test_many();
    EXPECT(emulated_allocations() == 0, "%ld allocations are left", emulated_allocations());
    attn_context_destroy(cuda);
    return report_end();
}
