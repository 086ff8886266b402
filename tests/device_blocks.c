/* SPDX-License-Identifier: BSD-3-Clause */
/* Rotary, cache appends and merges. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "device_arrays.h"
#include "element.h"
#include "emulator/runtime.h"
#include "expect.h"
#include "test_device_helpers.h"

/* An array of integers of either type, each drawn from lo .. lo + n - 1; fixed if null. */
static struct array *draw_integers(attn_itype type, int64_t count, int64_t lo, int64_t n)
{
    struct array *a = new_array((size_t)count * (type == ATTN_I64 ? 8 : 4), false);
    for (int64_t i = 0; i < count; i++) {
        const int64_t x = lo + below(n);
        if (type == ATTN_I64)
            ((int64_t *)a->host)[i] = x;
        else
            ((int32_t *)a->host)[i] = (int32_t)x;
    }
    return a;
}

static attn_itype draw_itype(void) { return maybe(50) ? ATTN_I64 : ATTN_I32; }

static attn_index index_of(const struct array *a, attn_itype type, bool device)
{
    return (attn_index){of(a, device), type};
}

/* Arrays of lengths and pages lie anywhere, and are not null. */
static void place_lengths(struct array *a)
{
    if (a->bytes > 0)
        place(a, 4, true);
    else
        keep_on_host(a);
}

/* Tokens of a padded or packed side. */
struct side {
    attn_side s;
    struct array *cu, *used;
    attn_itype type;
    int64_t rows;
};

static struct side draw_side(int64_t b, int64_t most, bool may_use)
{
    struct side x;
    memset(&x, 0, sizeof x);
    x.type = ATTN_I32;
    if (maybe(50)) {
        x.s.seqlen = below(most + 1);
        x.rows = b * x.s.seqlen;
    } else {
        x.s.layout = ATTN_PACKED;
        x.cu = draw_cu(b, most, &x.rows);
        x.s.tokens = x.rows += below(4);
        place_lengths(x.cu);
    }
    if (may_use && maybe(40)) {
        const int32_t *cu = x.cu ? (int32_t *)x.cu->host : NULL;
        x.used = integers32(b);
        for (int64_t n = 0; n < b; n++)
            ((int32_t *)x.used->host)[n] =
                (int32_t)below((cu ? cu[n + 1] - cu[n] : x.s.seqlen) + 1);
        place_lengths(x.used);
    }
    return x;
}

static attn_side side_of(const struct side *x, bool device)
{
    attn_side s = x->s;
    s.cu_seqlens = index_of(x->cu, x->type, device);
    s.seqused = index_of(x->used, x->type, device);
    return s;
}

/* Strides of [outer][inner][heads][run], the axes perhaps apart. */
struct shape {
    int64_t batch, token, head, all;
};

static struct shape draw_shape(int64_t outer, int64_t inner, int64_t heads, int64_t run)
{
    struct shape s;
    s.head = run + (maybe(30) ? below(9) : 0);
    s.token = heads * s.head + (maybe(30) ? below(9) : 0);
    s.batch = inner * s.token + (maybe(30) ? below(9) : 0);
    s.all = outer * s.batch;
    if (heads == 0 || inner == 0 || outer == 0)
        s.all = 0;
    return s;
}

static attn_input input_of(const struct array *a, attn_dtype type, struct shape s, bool device)
{
    return (attn_input){of(a, device), type, s.batch, s.token, s.head};
}

static attn_output output_of(const struct array *a, attn_dtype type, struct shape s, bool device)
{
    return (attn_output){of(a, device), type, s.batch, s.token, s.head};
}

static struct shape shape_of(const struct side *x, int64_t b, int64_t heads, int64_t run)
{
    const bool packed = x->s.layout == ATTN_PACKED;
    return draw_shape(packed ? 1 : b, packed ? x->rows : x->s.seqlen, heads, run);
}

static attn_rotation draw_rotation(int64_t head_dim, double *frequency)
{
    attn_rotation r;
    memset(&r, 0, sizeof r);
    r.dim = maybe(50) && head_dim % 2 == 0 ? 0 : 2 * (1 + below(head_dim / 2));
    r.pairing = maybe(50) ? ATTN_INTERLEAVED : ATTN_HALF_SPLIT;
    for (int64_t n = 0; n < head_dim; n++)
        frequency[n] = rng_normal(&now.rng) * (maybe(10) ? 1e20 : 1);
    if (maybe(25))
        r.frequency = frequency;
    else if (maybe(50))
        r.base = 1 + rng_uniform(&now.rng) * 1e6;
    return r;
}

enum { MOST_D = 400 };

static int64_t draw_head_dim(void) { return maybe(10) ? 260 + below(140) : 2 + below(70); }

/* For what is wrong with lengths, which is nothing: it stays, or becomes, full of ones. */
static struct array *draw_report(void) { return maybe(50) ? output(8, 8) : NULL; }

void test_rotary(int64_t seed)
{
    double frequency[MOST_D];
    begin_case("rotary", seed);
    const attn_dtype type = draw_real_type();
    const int64_t b = below(5), heads = below(5), head_dim = draw_head_dim();
    const struct side side = draw_side(b, 12, true);
    const bool in_place = maybe(30);
    const struct shape from = shape_of(&side, b, heads, head_dim);
    const struct shape to = in_place ? from : shape_of(&side, b, heads, head_dim);
    const attn_itype itype = draw_itype();
    struct array *x = in_place ? NULL : numbers(type, from.all), *positions = NULL, *offsets = NULL;
    struct array *out = new_array((size_t)to.all * element_size(type), true);
    for (int64_t n = 0; in_place && n < to.all; n++)
        element_set(type, out->host, n, rng_normal(&now.rng));
    place(out, element_size(type), false);
    struct array *report = draw_report();
    now.empty = out->bytes == 0;
    if (maybe(40))
        place(positions = draw_integers(itype, side.rows, -70000, 140000),
              itype == ATTN_I64 ? 8 : 4, true);
    else if (maybe(60))
        place(offsets = draw_integers(itype, b, -3000, 6000), itype == ATTN_I64 ? 8 : 4, true);
    attn_rotary_desc host = attn_rotary_desc_init();
    host.batch = b;
    host.heads = heads;
    host.head_dim = head_dim;
    host.rotation = draw_rotation(head_dim, frequency);
    host.inverse = maybe(40);
    attn_rotary_desc device = host;
    for (int n = 0; n < 2; n++) {
        attn_rotary_desc *const d = n ? &device : &host;
        d->tokens = side_of(&side, n == 1);
        d->out = output_of(out, type, to, n == 1);
        d->x = in_place ? (attn_input){d->out.data, type, to.batch, to.token, to.head}
                        : input_of(x, type, from, n == 1);
        d->positions = index_of(positions, itype, n == 1);
        d->offsets = index_of(offsets, itype, n == 1);
        d->report = of(report, n == 1);
    }
    const attn_status h = attn_rotary(NULL, &host);
    begin_call(in_place ? 1 : 2);
    const attn_status d = attn_rotary(NULL, &device);
    end_call(h, d);
    end_case();
}

/* A cache, and its lengths before: new ones of `side` have room behind them. */
struct cache {
    attn_side s;
    struct array *cu, *used, *table;
    int64_t outer, inner;
};

static int64_t new_of(const struct side *x, int64_t n)
{
    const int32_t *cu = x->cu ? (int32_t *)x->cu->host : NULL;
    return x->used ? ((int32_t *)x->used->host)[n] : cu ? cu[n + 1] - cu[n] : x->s.seqlen;
}

/* Pages of sequences in any order; those that no token needs are none of the tensor's. */
static void draw_pages(struct cache *c, int64_t b)
{
    c->s.layout = ATTN_PAGED;
    c->s.page_size = 1 + below(9);
    c->s.max_pages = 50 / c->s.page_size + 1;
    c->s.pages = 0;
    for (int64_t n = 0; n < b; n++)
        c->s.pages += c->s.max_pages;
    struct array *table = c->table = new_array((size_t)(b * c->s.max_pages) * 4, false);
    int32_t *const e = (int32_t *)table->host;
    for (int64_t n = 0; n < c->s.pages; n++)
        e[n] = (int32_t)n;
    for (int64_t n = c->s.pages; n > 1; n--) {
        const int64_t other = below(n);
        const int32_t kept = e[n - 1];
        e[n - 1] = e[other];
        e[other] = kept;
    }
    c->outer = c->s.pages;
    c->inner = c->s.page_size;
}

static struct cache draw_cache(const struct side *side, int64_t b)
{
    struct cache c;
    const int64_t kind = below(3);
    memset(&c, 0, sizeof c);
    c.used = integers32(b);
    int32_t *const before = (int32_t *)c.used->host;
    for (int64_t n = 0; n < b; n++)
        before[n] = (int32_t)below(30);
    if (kind == 0) {
        c.s.seqlen = 50;
        c.outer = b;
        c.inner = 50;
    } else if (kind == 1) {
        c.s.layout = ATTN_PACKED;
        c.cu = integers32(b + 1);
        int32_t *const cu = (int32_t *)c.cu->host;
        for (int64_t n = 0; n < b; n++)
            cu[n + 1] = cu[n] + before[n] + (int32_t)(new_of(side, n) + below(4));
        c.outer = 1;
        c.inner = c.s.tokens = cu[b] + below(3);
    } else {
        draw_pages(&c, b);
    }
    for (int n = 0; n < 2; n++) {
        struct array *const a = n ? c.table : c.cu;
        if (a)
            place_lengths(a);
    }
    return c;
}

void test_append(int64_t seed)
{
    double frequency[MOST_D];
    begin_case("cache_append", seed);
    const attn_dtype type = draw_real_type();
    const int64_t b = below(5), heads = 1 + below(3), dim = draw_head_dim(), dim_v = 1 + below(40);
    const struct side side = draw_side(b, 12, true);
    struct cache c = draw_cache(&side, b);
    const bool values = maybe(80), rotary = maybe(50);
    const struct shape shape[4] = {shape_of(&side, b, heads, dim), shape_of(&side, b, heads, dim_v),
                                   draw_shape(c.outer, c.inner, heads, dim),
                                   draw_shape(c.outer, c.inner, heads, dim_v)};
    struct array *k = numbers(type, shape[0].all), *v = values ? numbers(type, shape[1].all) : NULL;
    struct array *k_cache = output((size_t)shape[2].all * element_size(type), element_size(type));
    struct array *v_cache =
        values ? output((size_t)shape[3].all * element_size(type), element_size(type)) : NULL;
    struct array *positions = NULL, *after = NULL;
    const attn_itype itype = draw_itype();
    place_lengths(c.used);
    if (maybe(60))
        after = output((size_t)b * 4, 4);
    struct array *report = draw_report();
    now.empty = k->bytes == 0 && k_cache->bytes == 0;
    if (rotary && maybe(50))
        place(positions = draw_integers(itype, side.rows, -70000, 140000),
              itype == ATTN_I64 ? 8 : 4, true);
    attn_append_desc host = attn_append_desc_init();
    host.batch = b;
    host.heads_kv = heads;
    host.head_dim = dim;
    host.head_dim_v = dim_v;
    host.rotary = rotary;
    if (rotary)
        host.rotation = draw_rotation(dim, frequency);
    attn_append_desc device = host;
    for (int n = 0; n < 2; n++) {
        attn_append_desc *const d = n ? &device : &host;
        const bool there = n == 1;
        d->tokens = side_of(&side, there);
        d->cache = c.s;
        d->cache.cu_seqlens = index_of(c.cu, ATTN_I32, there);
        d->cache.seqused = index_of(c.used, ATTN_I32, there);
        d->cache.block_table = index_of(c.table, ATTN_I32, there);
        d->k = input_of(k, type, shape[0], there);
        d->k_cache = output_of(k_cache, type, shape[2], there);
        if (values) {
            d->v = input_of(v, type, shape[1], there);
            d->v_cache = output_of(v_cache, type, shape[3], there);
        }
        d->positions = index_of(positions, itype, there);
        d->lengths = of(after, there);
        d->report = of(report, there);
    }
    const attn_status h = attn_cache_append(NULL, &host);
    begin_call(2);
    const attn_status d = attn_cache_append(NULL, &device);
    end_call(h, d);
    end_case();
}

/* Launches of an append of 6 tokens to 17 and 1 to 2, in pages of 4, by a table of so many columns;
 * or -1. */
static long launches_with(int columns)
{
    enum { PAGES = 4, PAGE = 4, WIDE = 4000 };
    static int32_t table[2 * WIDE];
    static float cache[PAGES * PAGE], x[7] = {1, 2, 3, 4, 5, 6, 7};
    static const float after[PAGES * PAGE] = {[2] = 7, [5] = 1, 2, 3, [12] = 4, 5, 6};
    const int32_t cu[] = {0, 6, 7}, used[] = {17, 2};
    attn_append_desc d = attn_append_desc_init();
    memset(table, 0xff, sizeof table);
    memset(cache, 0, sizeof cache);
    table[0] = table[1] = table[2] = table[3] = 2;
    table[4] = 1;
    table[5] = 3;
    table[columns] = 0;
    d.batch = 2;
    d.heads_kv = d.head_dim = 1;
    d.tokens.layout = ATTN_PACKED;
    d.tokens.tokens = 7;
    d.tokens.cu_seqlens.data = cu;
    d.cache.layout = ATTN_PAGED;
    d.cache.pages = PAGES;
    d.cache.page_size = PAGE;
    d.cache.max_pages = columns;
    d.cache.seqused.data = used;
    d.cache.block_table.data = table;
    d.k.data = x;
    d.k_cache.data = cache;
    emulated_own(x, sizeof x, 0, 0);
    emulated_own(cache, sizeof cache, 0, 0);
    const long launched = emulated_calls("cudaLaunchKernel");
    const bool done = attn_cache_append(NULL, &d) == ATTN_OK &&
                      cudaStreamSynchronize(NULL) == cudaSuccess &&
                      memcmp(cache, after, sizeof cache) == 0;
    emulated_own(x, sizeof x, -1, 0);
    emulated_own(cache, sizeof cache, -1, 0);
    return done ? emulated_calls("cudaLaunchKernel") - launched : -1;
}

void test_wide_cache(void)
{
    const long narrow = launches_with(6), wide = launches_with(4000);
    EXPECT(narrow > 0 && wide == narrow, "%ld launches with 6 columns of pages, %ld with 4000: "
           "\"%s\"", narrow, wide, attn_last_message(NULL));
}

/* LSEs that see nothing, everything, or are NaN; what stands in the out of a part that sees nothing
 * is NaN as well. */
static double draw_lse(void)
{
    const int64_t kind = below(40);
    return kind < 8 ? -(double)INFINITY : kind == 8 ? (double)INFINITY : kind == 9 ? (double)NAN
                                                    : rng_normal(&now.rng) * (maybe(10) ? 300 : 2);
}

void test_merge(int64_t seed)
{
    enum { PARTS = 70 };
    attn_input outs[2][PARTS], lses[2][PARTS];
    begin_case("merge", seed);
    const attn_dtype type = draw_real_type(), wide = type == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    const int64_t b = below(3), s = below(5), heads = below(4);
    const int64_t parts = 1 + below(maybe(20) ? 70 : 5);
    const int64_t dim = maybe(10) ? 250 + below(300) : 1 + below(40);
    const int64_t own = maybe(30) ? below(parts) : -1; /* the part that is merged into */
    const struct shape out_shape = draw_shape(b, s, heads, dim);
    const struct shape lse_shape = draw_shape(b, s, heads, 1);
    struct array *out = NULL, *lse = NULL;
    for (int64_t n = 0; n < parts; n++) {
        const struct shape o = n == own ? out_shape : draw_shape(b, s, heads, dim);
        const struct shape l = n == own ? lse_shape : draw_shape(b, s, heads, 1);
        struct array *x = numbers(type, o.all);
        struct array *y = new_array((size_t)l.all * element_size(wide), false);
        for (int64_t i = 0; i < l.all; i++)
            element_set(wide, y->host, i, draw_lse());
        place(y, element_size(wide), false);
        for (int there = 0; there < 2; there++) {
            outs[there][n] = input_of(x, type, o, there == 1);
            lses[there][n] = input_of(y, wide, l, there == 1);
        }
        if (n == own) {
            out = x;
            lse = y;
        }
    }
    if (!out)
        out = output((size_t)out_shape.all * element_size(type), element_size(type));
    if (!lse && maybe(70))
        lse = output((size_t)lse_shape.all * element_size(wide), element_size(wide));
    attn_merge_desc host = attn_merge_desc_init();
    host.batch = b;
    host.seqlen = s;
    host.heads = heads;
    host.head_dim = dim;
    host.parts = parts;
    attn_merge_desc device = host;
    for (int n = 0; n < 2; n++) {
        attn_merge_desc *const d = n ? &device : &host;
        d->part_out = outs[n];
        d->part_lse = lses[n];
        d->out = output_of(out, type, out_shape, n == 1);
        if (lse)
            d->lse = output_of(lse, wide, lse_shape, n == 1);
    }
    const attn_status h = attn_merge(NULL, &host);
    begin_call(own < 0 ? 2 : 1);
    const attn_status d = attn_merge(NULL, &device);
    memset(outs[1], 0x5a, sizeof outs[1]); /* the arrays of parts are the host's */
    memset(lses[1], 0x5a, sizeof lses[1]);
    end_call(h, d);
    end_case();
}
