/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory: every allocation fails once; what is released is what was taken; what workspaces hold at
 * first changes nothing; no memory is taken behind the allocator's back; one long sequence fits in
 * little memory on the cpu backend, and is refused under a limit by the eager one; a few queries
 * stay within the workspace that was told.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc_count.h"
#include "attn/attn.h"
#include "expect.h"
#include "memory.h"

/* ------------------------------------------------------------------------------------------------
 * An allocator that watches
 * --------------------------------------------------------------------------------------------- */

/* ON_STACK: workspaces of up to so many bytes need not be allocated. */
enum { MOST_LIVE = 8, GUARD = 256, ON_STACK = 65536 };

struct watch {
    int64_t calls, fail_at; /* fail_at: the call, counted from 1, that gets nothing; 0: none */
    size_t limit;           /* bytes at once; 0: none */
    size_t now, most;       /* bytes */
    unsigned char fill;
    int live, faults;
    struct {
        unsigned char *block, *data;
        size_t bytes;
    } taken[MOST_LIVE];
};

/* Aligned to `align` and to nothing more, with guards around, full of w->fill. */
static void *watch_alloc(void *user, size_t bytes, size_t align)
{
    struct watch *w = user;
    w->calls++;
    if (align == 0 || (align & (align - 1)) != 0 || align > 4096 || w->live == MOST_LIVE) {
        w->faults++;
        return NULL;
    }
    if (w->calls == w->fail_at || (w->limit && w->now + bytes > w->limit))
        return NULL;
    unsigned char *block = test_alloc(bytes + 3 * align + 2 * GUARD);
    uintptr_t at = ((uintptr_t)block + GUARD + 2 * align - 1) / (2 * align) * (2 * align) + align;
    unsigned char *data = block + (at - (uintptr_t)block);
    if (bytes <= 1 << 26) /* a large one stays untouched, so that it costs nothing */
        memset(data, w->fill, bytes);
    memset(data - GUARD, 0x5a, GUARD);
    memset(data + bytes, 0x5a, GUARD);
    w->taken[w->live].block = block;
    w->taken[w->live].data = data;
    w->taken[w->live++].bytes = bytes;
    w->now += bytes;
    w->most = w->now > w->most ? w->now : w->most;
    return data;
}

static bool guards_whole(const unsigned char *data, size_t bytes)
{
    for (int n = 0; n < GUARD; n++)
        if (data[bytes + (size_t)n] != 0x5a || data[-1 - n] != 0x5a)
            return false;
    return true;
}

static void watch_release(void *user, void *data, size_t bytes)
{
    struct watch *w = user;
    for (int n = 0; n < w->live; n++)
        if (w->taken[n].data == data) {
            w->faults += w->taken[n].bytes != bytes || !guards_whole(data, bytes);
            free(w->taken[n].block);
            w->now -= bytes;
            w->taken[n] = w->taken[--w->live];
            return;
        }
    w->faults++;
}

static attn_status context_with(struct watch *w, attn_backend backend, int32_t threads,
                                attn_context **c)
{
    attn_options o = attn_options_init();
    o.backend = backend;
    o.threads = threads;
    o.allocator.alloc = watch_alloc;
    o.allocator.release = watch_release;
    o.allocator.user = w;
    return attn_context_create(c, &o);
}

/* ------------------------------------------------------------------------------------------------
 * A call
 * --------------------------------------------------------------------------------------------- */

enum { B = 3, S = 170, H = 4, D = 24, ALL = B * S * H * D };
static float q[ALL], k[ALL], v[ALL], dout[ALL], lse[B * S * H];
static struct results {
    float out[ALL], dq[ALL], dk[ALL], dv[ALL];
} results, expected;
static const char *name;
static attn_pass pass; /* of the calls; the backward pass starts from what the forward pass gave */

static attn_desc call_desc(void)
{
    attn_desc d = attn_desc_init();
    d.batch = B;
    d.heads_q = H;
    d.head_dim = D;
    d.query.seqlen = d.key.seqlen = S;
    d.q.data = q;
    d.k.data = k;
    d.v.data = v;
    d.out.data = results.out;
    d.lse.data = lse;
    d.dout.data = dout;
    d.dq.data = results.dq;
    d.dk.data = results.dk;
    d.dv.data = results.dv;
    d.causal = 1;
    d.align = ATTN_TOP_LEFT;
    return d;
}

static void fill_inputs(void)
{
    for (int n = 0; n < ALL; n++) {
        q[n] = (float)(n * 7 % 31 - 15) / 16;
        k[n] = (float)(n * 11 % 29 - 14) / 16;
        v[n] = (float)(n * 5 % 37 - 18) / 16;
        dout[n] = (float)(n * 13 % 23 - 11) / 16;
    }
}

static attn_status compute(attn_context *c, const attn_desc *d)
{
    struct results *const r = &results;
    if (pass == ATTN_PASS_FORWARD) {
        memset(r->out, 0xa5, sizeof r->out);
        return attn_forward(c, d);
    }
    memset(r->dq, 0xa5, sizeof *r - sizeof r->out);
    return attn_backward(c, d);
}

static bool as_expected(void) { return memcmp(&results, &expected, sizeof results) == 0; }

static void expect_clean(const struct watch *w, const char *when)
{
    EXPECT(w->live == 0 && w->now == 0, "%s, %s: %d blocks, %zu bytes left", name, when, w->live,
           w->now);
    EXPECT(w->faults == 0, "%s, %s: %d wrong calls of the allocator", name, when, w->faults);
}

/* ------------------------------------------------------------------------------------------------
 * Tests
 * --------------------------------------------------------------------------------------------- */

/* Creation, then calls, with the allocation number n failing: 1, 2, ... until none is left. */
static void test_failures(attn_backend backend)
{
    const attn_desc d = call_desc();
    bool failed = true;
    for (int64_t n = 1; failed && n < 100; n++) {
        struct watch w = {.fail_at = n};
        attn_context *c = NULL;
        attn_status s = context_with(&w, backend, 2, &c);
        failed = s != ATTN_OK;
        EXPECT(s == (failed ? ATTN_NO_MEMORY : ATTN_OK), "%s, allocation %lld: %s", name,
               (long long)n, attn_status_name(s));
        EXPECT(!failed || (!c && attn_last_message(NULL)[0]), "%s, allocation %lld: a context",
               name, (long long)n);
        if (c) {
            s = compute(c, &d);
            failed = w.calls >= n;
            EXPECT(s == (failed ? ATTN_NO_MEMORY : ATTN_OK), "%s, allocation %lld: %s", name,
                   (long long)n, attn_status_name(s));
            EXPECT(!failed || attn_last_message(c)[0], "%s, allocation %lld: no message", name,
                   (long long)n);
            w.fail_at = 0;
            EXPECT(compute(c, &d) == ATTN_OK && as_expected(),
                   "%s, allocation %lld: the next call: %s", name, (long long)n,
                   attn_last_message(c));
        }
        attn_context_destroy(c);
        expect_clean(&w, "a failing allocation");
    }
    EXPECT(!failed, "%s: no end of allocations", name);
}

/* The size that was told is what is taken, at once, and what stood there does not matter. */
static void test_contents(attn_backend backend)
{
    static const unsigned char fills[] = {0x00, 0xff, 0x7f, 0xa5};
    const attn_desc d = call_desc();
    for (size_t n = 0; n < sizeof fills; n++) {
        struct watch w = {.fill = fills[n]};
        attn_context *c = NULL;
        size_t told = 0;
        if (context_with(&w, backend, 2, &c) != ATTN_OK)
            continue;
        const size_t before = w.now;
        EXPECT(attn_workspace_size(c, &d, pass, &told) == ATTN_OK && w.now == before,
               "%s: workspace_size: %s", name, attn_last_message(c));
        w.most = w.now;
        EXPECT(compute(c, &d) == ATTN_OK && as_expected(),
               "%s, workspace of bytes %#x: %s", name, fills[n], attn_last_message(c));
        const size_t took = w.most - before;
        EXPECT(took == told || (took == 0 && told <= ON_STACK), "%s: took %zu bytes, told %zu",
               name, took, told);
        attn_context_destroy(c);
        expect_clean(&w, "filled workspaces");
    }
}

/* Once its threads stand, a call takes no memory but the workspace. (Products here are too small
 * for threads of the BLAS' own.) */
static void test_hidden(attn_backend backend)
{
    attn_desc d = call_desc();
    d.query.seqlen = d.key.seqlen = 70;
    struct watch w = {0};
    attn_context *c = NULL;
    if (!alloc_count_works()) {
        report_skip("memory taken by other ways: the C library's allocator cannot be counted here");
        return;
    }
    if (context_with(&w, backend, 2, &c) != ATTN_OK)
        return;
    compute(c, &d);
    size_t bytes = 0;
    attn_desc own = d;
    attn_workspace_size(c, &d, pass, &bytes);
    own.workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
    own.workspace_bytes = bytes;
    const int64_t before = alloc_count(), calls = w.calls;
    const attn_status s = compute(c, &own);
    const int64_t taken = alloc_count() - before;
    EXPECT(s == ATTN_OK && taken == 0, "%s: %lld allocations behind the allocator's back", name,
           (long long)taken);
    EXPECT(w.calls == calls, "%s: an allocation in spite of the caller's workspace", name);
    free(own.workspace);
    attn_context_destroy(c);
    expect_clean(&w, "own workspace");
}

/* A call on a few tokens takes no memory at all. */
static void test_tiny(attn_backend backend)
{
    attn_desc d = call_desc();
    struct watch w = {0};
    attn_context *c = NULL;
    d.query.seqlen = d.key.seqlen = 12;
    if (context_with(&w, backend, 2, &c) != ATTN_OK)
        return;
    const int64_t calls = w.calls;
    EXPECT(compute(c, &d) == ATTN_OK && w.calls == calls, "%s: 12 tokens: %lld allocations",
           name, (long long)(w.calls - calls));
    attn_context_destroy(c);
    expect_clean(&w, "a tiny problem");
}

static void test_pass(attn_backend backend)
{
    const attn_desc d = call_desc();
    struct watch w = {0};
    attn_context *c = NULL;
    name = attn_backend_name(backend);
    attn_status s = context_with(&w, backend, 2, &c);
    if (s == ATTN_OK)
        s = attn_forward(c, &d);
    if (s == ATTN_OK)
        s = compute(c, &d);
    if (s == ATTN_NO_BACKEND)
        report_skip("backend %s: not built in", name);
    else
        EXPECT(s == ATTN_OK, "%s: %s", name, attn_last_message(c));
    attn_context_destroy(c);
    if (s != ATTN_OK)
        return;
    expected = results;
    test_failures(backend);
    test_contents(backend);
    test_hidden(backend);
    if (pass == ATTN_PASS_FORWARD)
        test_tiny(backend);
}

static void test_backend(attn_backend backend)
{
    for (pass = ATTN_PASS_FORWARD; pass <= ATTN_PASS_BACKWARD; pass++)
        test_pass(backend);
}

/* ------------------------------------------------------------------------------------------------
 * One long sequence
 * --------------------------------------------------------------------------------------------- */

enum { LONG = 65536, LONG_D = 64, MEBI = 1 << 20 };

static attn_desc long_desc(int64_t queries, float *memory)
{
    attn_desc d = attn_desc_init();
    d.batch = d.heads_q = 1;
    d.head_dim = LONG_D;
    d.query.seqlen = queries;
    d.key.seqlen = LONG;
    d.q.data = memory;
    d.k.data = memory + LONG * LONG_D;
    d.v.data = memory + 2 * LONG * LONG_D;
    d.out.data = memory + 3 * LONG * LONG_D;
    return d;
}

static attn_desc long_gradients(int64_t queries, float *memory)
{
    attn_desc d = long_desc(queries, memory);
    d.dout.data = memory + 4 * LONG * LONG_D;
    d.dq.data = memory + 5 * LONG * LONG_D;
    d.dk.data = memory + 6 * LONG * LONG_D;
    d.dv.data = memory + 7 * LONG * LONG_D;
    d.lse.data = memory + 8 * LONG * LONG_D;
    return d;
}

static void test_long_cpu(float *memory, int64_t queries)
{
    for (int32_t threads = 1; threads <= 64; threads *= 4) {
        const attn_desc whole = long_desc(LONG, memory), d = long_desc(queries, memory);
        struct watch w = {.limit = 64 * MEBI};
        attn_context *c = NULL;
        size_t bytes = 0;
        context_with(&w, ATTN_BACKEND_CPU, threads, &c);
        EXPECT(attn_workspace_size(c, &whole, ATTN_PASS_FORWARD, &bytes) == ATTN_OK &&
                   bytes < 64 * MEBI,
               "cpu, %d tokens, %d threads: %zu bytes", LONG, (int)threads, bytes);
        if (threads <= 4)
            EXPECT(attn_forward(c, &d) == ATTN_OK, "cpu, %lld queries, %d keys, %d threads: %s",
                   (long long)queries, LONG, (int)threads, attn_last_message(c));
        attn_context_destroy(c);
    }
}

/* Gradients take the same for every token, and with more threads only a little more. */
static void test_long_gradients(float *memory, int64_t queries)
{
    for (int32_t threads = 1; threads <= 64; threads *= 4) {
        const attn_desc whole = long_gradients(LONG, memory), d = long_gradients(queries, memory);
        attn_desc half = whole;
        struct watch w = {.limit = 8 * MEBI};
        attn_context *c = NULL;
        size_t bytes = 0, of_half = 0;
        half.query.seqlen = half.key.seqlen = LONG / 2;
        context_with(&w, ATTN_BACKEND_CPU, threads, &c);
        EXPECT(attn_workspace_size(c, &whole, ATTN_PASS_BACKWARD, &bytes) == ATTN_OK &&
                   attn_workspace_size(c, &half, ATTN_PASS_BACKWARD, &of_half) == ATTN_OK &&
                   bytes < 160 * MEBI && bytes <= 2 * of_half && of_half < bytes,
               "cpu, gradients of %d tokens, %d threads: %zu bytes, of half of them %zu", LONG,
               (int)threads, bytes, of_half);
        if (threads <= 4)
            EXPECT(attn_backward(c, &d) == ATTN_OK,
                   "cpu, gradients of %lld queries, %d keys, %d threads: %s", (long long)queries,
                   LONG, (int)threads, attn_last_message(c));
        attn_context_destroy(c);
    }
}

static void test_long_eager(float *memory)
{
    const attn_desc d = long_desc(LONG, memory);
    struct watch w = {.limit = (size_t)1024 * MEBI};
    attn_context *c = NULL;
    size_t bytes = 0;
    context_with(&w, ATTN_BACKEND_EAGER, 1, &c);
    const attn_status s = attn_workspace_size(c, &d, ATTN_PASS_FORWARD, &bytes);
    if (s == ATTN_NO_BACKEND) {
        report_skip("backend eager: not built in");
    } else {
        EXPECT(s == ATTN_OK && bytes >> 34, "eager, %d tokens: %s, %zu bytes", LONG,
               attn_status_name(s), bytes);
        EXPECT(attn_forward(c, &d) == ATTN_NO_MEMORY && attn_last_message(c)[0],
               "eager, %d tokens in 1 GiB: \"%s\"", LONG, attn_last_message(c));
    }
    attn_context_destroy(c);
}

static void no_tile(void *user, int64_t b, int64_t h, int64_t i0, int64_t ni, int64_t j0,
                    int64_t nj, const void *tile, int64_t row_stride)
{
    (void)user, (void)b, (void)h, (void)i0, (void)ni, (void)j0, (void)nj, (void)tile;
    (void)row_stride;
}

/* A tile of probabilities of each head is larger than any memory: told as it is, or refused. */
static void test_huge_group(attn_dtype type)
{
    enum { TILE_KEYS = 192 };
    static double one;
    struct watch w = {.limit = MEBI};
    attn_context *c = NULL;
    context_with(&w, ATTN_BACKEND_CPU, 1, &c);
    for (int power = 30; power < 60; power++) {
        attn_desc d = attn_desc_init();
        size_t bytes = 0;
        d.q.data = d.k.data = d.v.data = d.out.data = &one; /* none is touched */
        d.batch = 1;
        d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = type;
        d.heads_q = INT64_C(1) << power;
        d.heads_kv = 1;
        d.head_dim = 1;
        d.query.seqlen = d.key.seqlen = 1;
        d.probs_fn = no_tile;
        const attn_status s = attn_workspace_size(c, &d, ATTN_PASS_FORWARD, &bytes);
        EXPECT(s == ATTN_UNSUPPORTED ? attn_last_message(c)[0] != 0
                                     : s == ATTN_OK && bytes < PTRDIFF_MAX &&
                                           bytes / (TILE_KEYS * sizeof(float)) >= (size_t)d.heads_q,
               "2^%d heads in a group: %s, %zu bytes", power, attn_status_name(s), bytes);
        EXPECT(power < 55 || s == ATTN_UNSUPPORTED, "2^%d heads in a group: not refused", power);
    }
    attn_context_destroy(c);
}

/* As many keys as there can be, all of them one row: more of them never take less, and what no
 * memory holds is refused. */
static void test_huge_keys(attn_dtype type)
{
    static double row[64];
    struct watch w = {.limit = MEBI};
    attn_context *c = NULL;
    bool refused = false;
    size_t before = 0;
    context_with(&w, ATTN_BACKEND_CPU, 1, &c);
    for (int power = 20; power < 60; power++) {
        attn_desc d = attn_desc_init();
        size_t bytes = 0;
        d.batch = d.heads_q = d.query.seqlen = 1;
        d.head_dim = 64;
        d.key.seqlen = INT64_C(1) << power;
        d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = type;
        d.q.data = d.k.data = d.v.data = d.out.data = row;
        d.k.token_stride = d.v.token_stride = ATTN_BROADCAST;
        d.k.head_stride = d.v.head_stride = d.head_dim;
        d.k.batch_stride = d.v.batch_stride = ATTN_BROADCAST;
        const attn_status s = attn_workspace_size(c, &d, ATTN_PASS_FORWARD, &bytes);
        EXPECT(s == ATTN_UNSUPPORTED ? attn_last_message(c)[0] != 0
                                     : s == ATTN_OK && !refused && bytes >= before,
               "2^%d keys: %s, %zu bytes after %zu", power, attn_status_name(s), bytes, before);
        refused = s != ATTN_OK;
        before = bytes;
    }
    attn_context_destroy(c);
}

/* ------------------------------------------------------------------------------------------------
 * Few queries
 * --------------------------------------------------------------------------------------------- */

enum { FEW = 16, FEW_KEYS = 3, FEW_HEADS = 3, FEW_WIDTH = 32 };

/* FEW sequences at most, of `most` queries down to 1, in a workspace of just the size that is told:
 * fewer rows may have more groups than the most rows of the call. */
static void few_queries(attn_context *c, struct watch *w, attn_dtype type, int64_t width,
                        int32_t most, double *zeros, double *out)
{
    int32_t starts[FEW + 1] = {0};
    attn_desc d = attn_desc_init();
    size_t bytes = 0;
    for (int32_t n = 0; n < most; n++)
        starts[n + 1] = starts[n] + most - n;
    d.batch = most;
    d.heads_q = FEW_HEADS;
    d.head_dim = width;
    d.query.layout = ATTN_PACKED;
    d.query.tokens = starts[most];
    d.query.cu_seqlens.data = starts;
    d.key.seqlen = FEW_KEYS;
    d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = type;
    d.q.data = d.k.data = d.v.data = zeros;
    d.out.data = out;
    attn_status s = attn_workspace_size(c, &d, ATTN_PASS_FORWARD, &bytes);
    d.workspace = watch_alloc(w, bytes, 64);
    d.workspace_bytes = bytes;
    s = s == ATTN_OK ? attn_forward(c, &d) : s;
    EXPECT(s == ATTN_OK, "%s, up to %d queries: %s", name, (int)most, attn_last_message(c));
    watch_release(w, d.workspace, bytes);
}

static void test_few_queries(const char *isa)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};
    enum { ROOM = FEW * (FEW + 1) / 2 * FEW_HEADS * FEW_WIDTH };
    double *zeros = test_alloc(ROOM * sizeof *zeros), *out = test_alloc(ROOM * sizeof *out);
    attn_options o = attn_options_init();
    attn_context *c = NULL;
    o.backend = ATTN_BACKEND_CPU;
    o.isa = isa;
    o.threads = 1;
    EXPECT(attn_context_create(&c, &o) == ATTN_OK, "%s: no context", isa);
    for (size_t n = 0; c && n < sizeof types / sizeof types[0]; n++) {
        struct watch w = {.fill = 0xff};
        for (int64_t width = 1; width <= FEW_WIDTH; width *= 2)
            for (int32_t most = 4; most <= FEW; most *= 2)
                few_queries(c, &w, types[n], width, most, zeros, out);
        expect_clean(&w, "few queries");
    }
    attn_context_destroy(c);
    free(zeros);
    free(out);
}

/* --count N: queries beside the long sequence's keys. --long: as many as there are keys. */
int main(int argc, char **argv)
{
    const int64_t queries = report_count(argc, argv, 64);
    const bool lengthy = argc > 1 && strcmp(argv[1], "--long") == 0;
    float *memory = test_alloc(((size_t)8 * LONG_D + 1) * LONG * sizeof *memory);
    report_begin("alloc");
    fill_inputs();
    test_backend(ATTN_BACKEND_CPU);
    test_backend(ATTN_BACKEND_EAGER);
    test_long_cpu(memory, lengthy ? LONG : queries);
    test_long_gradients(memory, queries);
    test_long_eager(memory);
    test_huge_keys(ATTN_F32);
    test_huge_keys(ATTN_F64);
    test_huge_group(ATTN_F32);
    test_huge_group(ATTN_F64);
    free(memory);
    int32_t usable;
    for (int32_t n = 0; (name = attn_isa_name(n, &usable)) != NULL; n++)
        if (usable)
            test_few_queries(name);
    return report_end();
}
