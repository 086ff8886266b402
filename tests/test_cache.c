/* SPDX-License-Identifier: BSD-3-Clause */
/* What appending to a KV cache writes, by plain loops on random problems, and wrong arguments. */
#include <string.h>

#include "attn/attn.h"
#include "expect.h"
#include "kv.h"
#include "memory.h"

enum { CASES = 800, MOST_B = KV_SEQUENCES, MOST_ROOM = 24, MOST_NEW = 9 };

struct problem {
    attn_dtype dtype;
    int64_t batch, heads, d, dv, seqlen, rows;
    bool packed, rotary, by_position, wide, in_place, keys_only;
    int32_t cu[MOST_B + 1], used[MOST_B];
    int64_t before[MOST_B], positions[MOST_B * MOST_NEW];
    int32_t before32[MOST_B];
    attn_rotation rotation;
    struct kv cache;
    struct strided k, v;
};

static void draw(struct problem *p, struct rng *r)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};
    static const attn_layout layouts[] = {ATTN_PADDED, ATTN_PACKED, ATTN_PAGED, ATTN_PAGED};
    memset(p, 0, sizeof *p);
    p->dtype = RNG_PICK(r, types);
    p->batch = rng_below(r, MOST_B + 1);
    p->heads = 1 + rng_below(r, 3);
    p->d = 2 * (1 + rng_below(r, 6));
    p->dv = rng_chance(r, 50) ? p->d : 1 + rng_below(r, 9);
    p->seqlen = rng_below(r, MOST_NEW + 1);
    p->packed = rng_chance(r, 50);
    p->rotary = rng_chance(r, 60);
    p->by_position = p->rotary && rng_chance(r, 30);
    p->wide = rng_chance(r, 50);
    p->in_place = rng_chance(r, 50);
    p->keys_only = rng_chance(r, 10);
    if (p->rotary) {
        p->rotation.pairing = rng_chance(r, 50) ? ATTN_INTERLEAVED : ATTN_HALF_SPLIT;
        p->rotation.dim = rng_chance(r, 50) ? 0 : 2 * (1 + rng_below(r, p->d / 2));
    }
    const int64_t room = MOST_NEW + rng_below(r, MOST_ROOM - MOST_NEW + 1);
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t most = p->packed ? rng_below(r, MOST_NEW + 1) : p->seqlen;
        p->cu[b + 1] = p->cu[b] + (int32_t)most;
        p->used[b] = (int32_t)rng_below(r, most + 1);
        p->before[b] = rng_below(r, room - p->used[b] + 1);
        p->before32[b] = (int32_t)p->before[b];
    }
    for (int n = 0; n < MOST_B * MOST_NEW; n++)
        p->positions[n] = rng_below(r, 100000);
    p->rows = p->packed ? p->cu[p->batch] + 1 : p->seqlen;
    p->cache = kv_make(r, RNG_PICK(r, layouts), p->dtype, p->batch, room, p->heads, p->d, p->dv);
    p->k = strided_make(r, p->dtype, p->packed ? 1 : p->batch, p->rows, p->heads, p->d, false);
    p->v = strided_make(r, p->dtype, p->packed ? 1 : p->batch, p->rows, p->heads, p->dv, false);
    strided_fill(&p->k, r);
    strided_fill(&p->v, r);
}

static attn_side tokens_side(const struct problem *p)
{
    attn_side s;
    memset(&s, 0, sizeof s);
    s.seqused.data = p->used;
    s.seqlen = p->packed ? 0 : p->seqlen;
    if (p->packed) {
        s.layout = ATTN_PACKED;
        s.tokens = p->rows;
        s.cu_seqlens.data = p->cu;
    }
    return s;
}

static attn_index before_of(const struct problem *p)
{
    return p->wide ? (attn_index){p->before, ATTN_I64} : (attn_index){p->before32, ATTN_I32};
}

static attn_append_desc desc_of(const struct problem *p)
{
    attn_append_desc d = attn_append_desc_init();
    d.batch = p->batch;
    d.heads_kv = p->heads;
    d.head_dim = p->d;
    d.head_dim_v = p->dv;
    d.tokens = tokens_side(p);
    d.cache = kv_side(&p->cache, before_of(p));
    d.k = strided_input(&p->k);
    d.k_cache = strided_output(&p->cache.k);
    if (!p->keys_only) {
        d.v = strided_input(&p->v);
        d.v_cache = strided_output(&p->cache.v);
    }
    d.rotary = p->rotary;
    d.rotation = p->rotation;
    if (p->by_position)
        d.positions = (attn_index){p->positions, ATTN_I64};
    return d;
}

/* The keys as attn_rotary() turns them; test_rotary.c looks at what that is. */
static struct strided turned(const struct problem *p)
{
    struct strided k = strided_copy(&p->k);
    attn_rotary_desc d = attn_rotary_desc_init();
    d.batch = p->batch;
    d.heads = p->heads;
    d.head_dim = p->d;
    d.tokens = tokens_side(p);
    d.x = strided_input(&p->k);
    d.out = strided_output(&k);
    d.rotation = p->rotation;
    if (p->by_position)
        d.positions = (attn_index){p->positions, ATTN_I64};
    else
        d.offsets = (attn_index){p->before, ATTN_I64};
    EXPECT(!p->rotary || attn_rotary(NULL, &d) == ATTN_OK, "rotary: %s", attn_last_message(NULL));
    return k;
}

static void put_all(const struct problem *p, struct strided *to, const struct strided *from)
{
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t i = 0; i < p->used[b]; i++) {
            int64_t outer, token;
            kv_place(&p->cache, b, p->before[b] + i, &outer, &token);
            strided_put(to, outer, token, from, p->packed ? 0 : b, p->packed ? p->cu[b] + i : i);
        }
}

static void test_case(struct problem *p, int64_t seed)
{
    struct strided want_k = strided_copy(&p->cache.k), want_v = strided_copy(&p->cache.v);
    struct strided keys = turned(p);
    int64_t lengths[MOST_B + 1] = {0};
    int32_t lengths32[MOST_B + 1] = {0};
    attn_append_desc d = desc_of(p);
    bool right = true;
    put_all(p, &want_k, &keys);
    if (!p->keys_only)
        put_all(p, &want_v, &p->v);
    for (int b = 0; b < MOST_B; b++) {
        lengths[b] = p->before[b];
        lengths32[b] = p->before32[b];
    }
    d.lengths = p->wide ? (void *)lengths : (void *)lengths32;
    if (p->in_place)
        d.cache.seqused.data = d.lengths;
    const attn_status status = attn_cache_append(NULL, &d);
    for (int64_t b = 0; b < p->batch; b++)
        right &= (p->wide ? lengths[b] : lengths32[b]) == p->before[b] + p->used[b];
    EXPECT(status == ATTN_OK, "case %lld: %s", (long long)seed, attn_last_message(NULL));
    EXPECT(right && lengths[p->batch] == (p->batch < MOST_B ? p->before[p->batch] : 0),
           "case %lld: lengths", (long long)seed);
    EXPECT(strided_same(&p->cache.k, &want_k), "case %lld: keys", (long long)seed);
    EXPECT(strided_same(&p->cache.v, &want_v), "case %lld: values", (long long)seed);
    strided_free(&want_k);
    strided_free(&want_v);
    strided_free(&keys);
}

static void test_random(void)
{
    for (int64_t seed = 0; seed < CASES; seed++) {
        struct rng r = rng_seeded((uint64_t)seed);
        struct problem p;
        draw(&p, &r);
        test_case(&p, seed);
        kv_free(&p.cache);
        strided_free(&p.k);
        strided_free(&p.v);
    }
}

/* ------------------------------------------------------------------------------------------------
 * Wrong arguments
 * --------------------------------------------------------------------------------------------- */

/* 2 sequences with room for 6 tokens each, in 4 pages of 3; 2 new tokens each. */
static struct {
    float k_cache[2][6][4], v_cache[2][6][4], k[2][2][4], v[2][2][4];
    int32_t before[2], lengths[2], table[4], positions[4];
} w;

static attn_append_desc sound(void)
{
    memset(&w, 0, sizeof w);
    for (int n = 0; n < 4; n++)
        w.table[n] = 3 - n;
    w.before[0] = 4;
    w.before[1] = 1;
    attn_append_desc d = attn_append_desc_init();
    d.batch = 2;
    d.heads_kv = 1;
    d.head_dim = 4;
    d.tokens.seqlen = 2;
    d.cache.seqlen = 6;
    d.cache.seqused.data = w.before;
    d.k.data = w.k;
    d.v.data = w.v;
    d.k_cache.data = w.k_cache;
    d.v_cache.data = w.v_cache;
    d.lengths = w.lengths;
    memset(w.k, 1, sizeof w.k);
    memset(w.v, 1, sizeof w.v);
    return d;
}

static void page(attn_append_desc *d)
{
    d->cache.layout = ATTN_PAGED;
    d->cache.seqlen = 0;
    d->cache.pages = 4;
    d->cache.page_size = 3;
    d->cache.max_pages = 2;
    d->cache.block_table.data = w.table;
}

static void expect_wrong(const attn_append_desc *d, attn_status want, const char *field)
{
    unsigned char before[sizeof w];
    memcpy(before, &w, sizeof w);
    const attn_status got = attn_cache_append(NULL, d);
    EXPECT(got == want && strstr(attn_last_message(NULL), field),
           "%s: %s (\"%s\"), expected %s", field, attn_status_name(got), attn_last_message(NULL),
           attn_status_name(want));
    EXPECT(memcmp(before, &w, sizeof w) == 0, "%s: something was written", field);
}

#define WRONG(change, status, field)                                                               \
    do {                                                                                           \
        attn_append_desc d = sound();                                                              \
        change;                                                                                    \
        expect_wrong(&d, status, field);                                                           \
    } while (0)

static void test_wrong(void)
{
    WRONG(d.size = 0, ATTN_INVALID_SIZE, "size");
    WRONG(d.batch = -1, ATTN_INVALID_SHAPE, "batch");
    WRONG(d.heads_kv = -1, ATTN_INVALID_SHAPE, "heads_kv");
    WRONG(d.head_dim = 0, ATTN_INVALID_SHAPE, "head_dim");
    WRONG(d.head_dim_v = -1, ATTN_INVALID_SHAPE, "head_dim_v");
    WRONG(d.tokens.layout = ATTN_PAGED, ATTN_INVALID_CONFLICT, "tokens.layout");
    WRONG(d.tokens.seqlen = -1, ATTN_INVALID_SHAPE, "tokens.seqlen");
    WRONG(d.cache.layout = (attn_layout)3, ATTN_INVALID_ENUM, "cache.layout");
    WRONG(d.cache.seqused.data = NULL, ATTN_INVALID_NULL, "cache.seqused");
    WRONG(d.cache.seqused.type = (attn_itype)2, ATTN_INVALID_ENUM, "cache.seqused.type");
    WRONG(w.before[1] = 7, ATTN_INVALID_LENGTHS, "cache.seqused[1]");
    WRONG(w.before[1] = -1, ATTN_INVALID_LENGTHS, "cache.seqused[1]");
    WRONG(w.before[0] = 5, ATTN_INVALID_LENGTHS, "cache.seqused[0]: 5, and 2 new");
    WRONG(page(&d); w.before[1] = 5, ATTN_INVALID_LENGTHS, "cache.seqused[1]: 5, and 2 new");
    WRONG(d.k.data = NULL, ATTN_INVALID_NULL, "k");
    WRONG(d.v.data = NULL, ATTN_INVALID_NULL, "v");
    WRONG(d.v_cache.data = NULL, ATTN_INVALID_NULL, "v_cache");
    WRONG(d.k.dtype = ATTN_BOOL, ATTN_INVALID_DTYPE, "k.dtype");
    WRONG(d.v.dtype = ATTN_F16, ATTN_INVALID_DTYPE, "v.dtype");
    WRONG(d.k_cache.dtype = ATTN_F64, ATTN_INVALID_DTYPE, "k_cache.dtype");
    WRONG(d.v_cache.dtype = (attn_dtype)11, ATTN_INVALID_ENUM, "v_cache.dtype");
    WRONG(d.k_cache.token_stride = -4, ATTN_INVALID_STRIDE, "k_cache.token_stride");
    WRONG(d.k_cache.head_stride = 4, ATTN_INVALID_OVERLAP, "k_cache");
    WRONG(d.v_cache.data = w.k_cache, ATTN_INVALID_OVERLAP, "v_cache");
    WRONG(d.k.data = w.v_cache, ATTN_INVALID_OVERLAP, "v_cache");
    WRONG(d.lengths = w.positions; d.tokens.seqused.data = w.positions, ATTN_INVALID_OVERLAP,
          "lengths");
    WRONG(d.lengths = w.before + 1, ATTN_INVALID_OVERLAP, "lengths");
    WRONG(d.lengths = w.before; w.before[0] = 0; w.before[1] = 2; d.tokens.seqused.data = w.before,
          ATTN_INVALID_OVERLAP, "cache.seqused");
    WRONG(page(&d); w.table[1] = 4, ATTN_INVALID_INDEX, "cache.block_table[0][1]");
    WRONG(page(&d); w.table[2] = -1, ATTN_INVALID_INDEX, "cache.block_table[1][0]");
    WRONG(page(&d); w.table[0] = 9, ATTN_INVALID_INDEX, "cache.block_table[0][0]");
    WRONG(page(&d); w.before[0] = 2; w.table[1] = 4, ATTN_INVALID_INDEX,
          "cache.block_table[0][1]");
    WRONG(page(&d); w.table[1] = w.table[2], ATTN_INVALID_OVERLAP, "cache.block_table[1][0]");
    WRONG(page(&d); d.cache.block_table.data = NULL, ATTN_INVALID_NULL, "cache.block_table");
    WRONG(page(&d); d.cache.page_size = 0, ATTN_INVALID_SHAPE, "cache.page_size");
    WRONG(d.cache.pages = 3, ATTN_INVALID_CONFLICT, "cache.pages");
    WRONG(d.positions.data = w.positions, ATTN_INVALID_CONFLICT, "positions");
    WRONG(d.rotation.dim = 2, ATTN_INVALID_CONFLICT, "rotation");
    WRONG(d.rotary = 2, ATTN_INVALID_ENUM, "rotary");
    WRONG(d.rotary = 1; d.rotation.dim = 6, ATTN_INVALID_SHAPE, "rotation.dim");
    EXPECT(attn_cache_append(NULL, NULL) == ATTN_INVALID_NULL, "a null descriptor");
}

/* An allocator that has no room for a map of pages. */
static void *little_memory(void *user, size_t bytes, size_t align)
{
    (void)user;
    return bytes > 20000 ? NULL : aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void release(void *user, void *data, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(data);
}

static void test_many_pages(void)
{
    enum { PAGES = 200000 };
    float *cache = test_alloc(PAGES * 4 * sizeof *cache);
    attn_options o = attn_options_init();
    attn_context *context;
    attn_append_desc d = sound();
    page(&d);
    d.cache.pages = PAGES;
    d.cache.page_size = 1;
    w.before[0] = w.before[1] = 0;
    w.table[0] = PAGES - 1;
    d.k_cache.data = cache;
    d.v.data = NULL;
    d.v_cache.data = NULL;
    o.allocator.alloc = little_memory;
    o.allocator.release = release;
    EXPECT(attn_context_create(&context, &o) == ATTN_OK &&
               attn_cache_append(context, &d) == ATTN_NO_MEMORY,
           "no memory for the pages: %s", attn_last_message(context));
    EXPECT(attn_cache_append(NULL, &d) == ATTN_OK &&
               memcmp(cache + (PAGES - 1) * 4, w.k, sizeof w.k[0][0]) == 0,
           "many pages: %s", attn_last_message(NULL));
    attn_context_destroy(context);
    free(cache);
}

int main(void)
{
    report_begin("cache");
    test_random();
    test_wrong();
    test_many_pages();
    return report_end();
}
