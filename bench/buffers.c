/* SPDX-License-Identifier: BSD-3-Clause */
#include "buffers.h"

#include "number.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_SETS = 256, CACHES = 3 };

static int64_t last_level_cache(void)
{
    long bytes = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    return bytes > 0 ? bytes : INT64_C(32) << 20;
}

static size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* splitmix64: uniform in [-1, 1). */
static double draw(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ z >> 31) >> 11) * 0x1p-52 - 1;
}

static void fill(char *data, size_t bytes, attn_dtype dtype, uint64_t seed)
{
    for (int64_t n = 0; n < (int64_t)bytes / bench_number_size(dtype); n++)
        bench_number_set(data, dtype, n, draw(&seed));
}

/* One allocation per set: q, k, v, out. */
static bool set_create(struct bench_set *s, const struct bench_buffers *b)
{
    const size_t q = padded(b->q_bytes), kv = padded(b->kv_bytes);
    s->q = aligned_alloc(64, 2 * (q + kv));
    if (!s->q)
        return false;
    s->k = s->q + q;
    s->v = s->k + kv;
    s->out = s->v + kv;
    return true;
}

bool bench_buffers_create(struct bench_buffers *b, const struct bench_case *c, attn_dtype dtype,
                          bool cold)
{
    memset(b, 0, sizeof *b);
    b->c = c;
    b->dtype = dtype;
    b->element_size = bench_number_size(dtype);
    b->q_bytes = (size_t)(bench_case_rows_q(c) * c->heads_q * c->head_dim * b->element_size);
    b->kv_bytes = (size_t)(bench_case_rows_k(c) * c->heads_kv * c->head_dim * b->element_size);

    const int64_t set_bytes = (int64_t)(2 * (b->q_bytes + b->kv_bytes));
    int64_t count = CACHES * last_level_cache() / set_bytes + 2;
    if (count > MAX_SETS)
        count = MAX_SETS;
    if (!cold && !bench_case_is_decode(c))
        count = 1;
    b->sets = calloc((size_t)count, sizeof *b->sets);
    for (int64_t n = 0; b->sets && n < count && set_create(&b->sets[n], b); n++)
        b->count++;
    if (b->count < count) {
        bench_buffers_destroy(b);
        return false;
    }

    fill(b->sets[0].q, b->q_bytes, dtype, 1);
    fill(b->sets[0].k, b->kv_bytes, dtype, 2);
    fill(b->sets[0].v, b->kv_bytes, dtype, 3);
    for (int32_t n = 0; n < b->count; n++) {
        if (n > 0) {
            memcpy(b->sets[n].q, b->sets[0].q, b->q_bytes);
            memcpy(b->sets[n].k, b->sets[0].k, b->kv_bytes);
            memcpy(b->sets[n].v, b->sets[0].v, b->kv_bytes);
        }
        memset(b->sets[n].out, 0xff, b->q_bytes); /* NaN: shows rows that were not written */
    }
    return true;
}

void bench_buffers_destroy(struct bench_buffers *b)
{
    for (int32_t n = 0; n < b->count; n++)
        free(b->sets[n].q);
    free(b->sets);
    memset(b, 0, sizeof *b);
}

const struct bench_set *bench_buffers_turn(struct bench_buffers *b)
{
    const struct bench_set *set = &b->sets[b->next];
    b->next = (b->next + 1) % b->count;
    return set;
}

static void set_side(attn_side *side, const struct bench_case *c, int64_t seqlen, int64_t rows)
{
    if (!c->cu_seqlens) {
        side->seqlen = seqlen;
        return;
    }
    side->layout = ATTN_PACKED;
    side->tokens = rows;
    side->cu_seqlens.data = c->cu_seqlens;
}

attn_desc bench_desc(const struct bench_buffers *b, const struct bench_set *set)
{
    const struct bench_case *c = b->c;
    attn_desc d = attn_desc_init();
    d.batch = c->batch;
    d.heads_q = c->heads_q;
    d.heads_kv = c->heads_kv;
    d.head_dim = c->head_dim;
    set_side(&d.query, c, c->seqlen_q, bench_case_rows_q(c));
    set_side(&d.key, c, c->seqlen_k, bench_case_rows_k(c));
    d.q.data = set->q;
    d.k.data = set->k;
    d.v.data = set->v;
    d.out.data = set->out;
    d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = b->dtype;
    d.causal = c->causal;
    d.align = c->causal ? ATTN_BOTTOM_RIGHT : ATTN_ALIGN_NONE;
    return d;
}
