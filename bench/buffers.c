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

static void fill(char *data, size_t bytes, attn_dtype dtype, uint64_t seed, double size)
{
    for (int64_t n = 0; n < (int64_t)bytes / bench_number_size(dtype); n++)
        bench_number_set(data, dtype, n, size * draw(&seed));
}

static size_t set_bytes(const struct bench_buffers *b)
{
    const size_t forward = 2 * (padded(b->q_bytes) + padded(b->kv_bytes));
    return b->pass == BENCH_FWD ? forward : 2 * forward + padded(b->lse_bytes);
}

/* One allocation per set. */
static bool set_create(struct bench_set *s, const struct bench_buffers *b)
{
    const size_t q = padded(b->q_bytes), kv = padded(b->kv_bytes);
    s->q = aligned_alloc(64, set_bytes(b));
    if (!s->q)
        return false;
    s->k = s->q + q;
    s->v = s->k + kv;
    s->out = s->v + kv;
    if (b->pass == BENCH_FWD)
        return true;
    s->dout = s->out + q;
    s->dq = s->dout + q;
    s->dk = s->dq + q;
    s->dv = s->dk + kv;
    s->lse = s->dv + kv;
    return true;
}

static void fill_inputs(struct bench_buffers *b)
{
    const struct bench_set *first = &b->sets[0];
    fill(first->q, b->q_bytes, b->dtype, 1, b->c->feature == BENCH_WIDE ? BENCH_WIDER : 1);
    fill(first->k, b->kv_bytes, b->dtype, 2, 1);
    fill(first->v, b->kv_bytes, b->dtype, 3, 1);
    if (first->dout)
        fill(first->dout, b->q_bytes, b->dtype, 5, 1);
    bench_buffers_spoil(b);
    for (int32_t n = 1; n < b->count; n++)
        memcpy(b->sets[n].q, first->q, set_bytes(b));
}

/* The tensor of the case's feature, if it has one. */
static bool create_extra(struct bench_buffers *b, const struct bench_case *c)
{
    const int64_t nq = c->seqlen_q, nk = c->seqlen_k, blocks = nk / BENCH_BLOCK;
    const attn_dtype sums = bench_lse_dtype(b->dtype);
    float *numbers = NULL;
    uint8_t *bytes = NULL;
    uint64_t seed = 4;
    switch (c->feature) {
    case BENCH_BIAS:
        b->extra = numbers = malloc((size_t)(nq * nk) * sizeof *numbers);
        for (int64_t n = 0; numbers && n < nq * nk; n++)
            numbers[n] = (float)draw(&seed);
        return numbers;
    case BENCH_ALIBI:
        b->extra = malloc((size_t)(c->heads_q * bench_number_size(sums)));
        for (int64_t n = 0; b->extra && n < c->heads_q; n++)
            bench_number_set(b->extra, sums, n, 1.0 / (2 << n % 8));
        return b->extra;
    case BENCH_MASK:
        b->extra = bytes = malloc((size_t)(nq * nk));
        if (bytes)
            memset(bytes, 1, (size_t)(nq * nk));
        return bytes;
    case BENCH_BLOCKS:
        b->extra = bytes = malloc((size_t)(nq / BENCH_BLOCK * blocks));
        for (int64_t n = 0; bytes && n < nq / BENCH_BLOCK * blocks; n++)
            bytes[n] = (n / blocks + n % blocks) % 2 == 0;
        return bytes;
    default: return true;
    }
}

bool bench_buffers_create(struct bench_buffers *b, const struct bench_case *c, attn_dtype dtype,
                          enum bench_pass pass, bool cold)
{
    memset(b, 0, sizeof *b);
    b->c = c;
    b->dtype = dtype;
    b->pass = pass;
    b->element_size = bench_number_size(dtype);
    b->q_bytes = (size_t)(bench_case_rows_q(c) * c->heads_q * c->head_dim * b->element_size);
    b->kv_bytes = (size_t)(bench_case_rows_k(c) * c->heads_kv * c->head_dim * b->element_size);

    b->lse_bytes = (size_t)(bench_case_rows_q(c) * c->heads_q *
                            bench_number_size(bench_lse_dtype(dtype)));

    int64_t count = CACHES * last_level_cache() / (int64_t)set_bytes(b) + 2;
    if (count > MAX_SETS)
        count = MAX_SETS;
    if (!cold && !bench_case_is_decode(c))
        count = 1;
    b->sets = calloc((size_t)count, sizeof *b->sets);
    for (int64_t n = 0; b->sets && n < count && set_create(&b->sets[n], b); n++)
        b->count++;
    if (b->count < count || !create_extra(b, c)) {
        bench_buffers_destroy(b);
        return false;
    }
    fill_inputs(b);
    return true;
}

void bench_buffers_destroy(struct bench_buffers *b)
{
    for (int32_t n = 0; n < b->count; n++)
        free(b->sets[n].q);
    free(b->sets);
    free(b->extra);
    memset(b, 0, sizeof *b);
}

attn_dtype bench_lse_dtype(attn_dtype dtype) { return dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32; }

void bench_buffers_spoil(struct bench_buffers *b)
{
    const struct bench_set *first = &b->sets[0];
    memset(first->out, 0xff, b->q_bytes);
    if (b->pass == BENCH_FWD)
        return;
    memset(first->dq, 0xff, b->q_bytes);
    memset(first->dk, 0xff, b->kv_bytes);
    memset(first->dv, 0xff, b->kv_bytes);
    memset(first->lse, 0xff, b->lse_bytes);
}

void bench_buffers_spread(struct bench_buffers *b)
{
    const struct bench_set *first = &b->sets[0];
    for (int32_t n = 1; n < b->count; n++) {
        memcpy(b->sets[n].out, first->out, b->q_bytes);
        if (first->lse)
            memcpy(b->sets[n].lse, first->lse, b->lse_bytes);
    }
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

static void set_feature(attn_desc *d, const struct bench_buffers *b)
{
    const attn_score_input plane = {b->extra, ATTN_F32, 0, 0, b->c->seqlen_k, 1};
    switch (b->c->feature) {
    case BENCH_BIAS: d->bias = plane; break;
    case BENCH_MASK:
        d->mask = plane;
        d->mask.dtype = ATTN_BOOL;
        break;
    case BENCH_BLOCKS:
        d->block_mask = plane;
        d->block_mask.dtype = ATTN_BOOL;
        d->block_mask.query_stride = b->c->seqlen_k / BENCH_BLOCK;
        d->block_q = d->block_k = BENCH_BLOCK;
        break;
    case BENCH_WINDOW:
        d->window = 1;
        d->window_left = BENCH_WIDTH;
        d->window_right = -1;
        break;
    case BENCH_ALIBI:
        d->alibi.data = b->extra;
        d->alibi.dtype = bench_lse_dtype(b->dtype);
        break;
    case BENCH_SOFTCAP: d->softcap = BENCH_CAP; break;
    case BENCH_WIDE:
    case BENCH_PLAIN: break;
    }
}

static void set_gradients(attn_desc *d, const struct bench_buffers *b, const struct bench_set *set)
{
    d->lse.data = set->lse;
    d->dout.data = set->dout;
    d->dq.data = set->dq;
    d->dk.data = set->dk;
    d->dv.data = set->dv;
    d->lse.dtype = bench_lse_dtype(b->dtype);
    d->dout.dtype = d->dq.dtype = d->dk.dtype = d->dv.dtype = b->dtype;
}

static attn_desc describe(const struct bench_buffers *b, const struct bench_set *set)
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
    set_feature(&d, b);
    set_gradients(&d, b, set);
    return d;
}

attn_status bench_call_forward(attn_context *context, const struct bench_buffers *b,
                               const struct bench_set *set)
{
    const attn_desc desc = describe(b, set);
    return attn_forward(context, &desc);
}

attn_status bench_call(attn_context *context, const struct bench_buffers *b,
                       const struct bench_set *set)
{
    const attn_desc desc = describe(b, set);
    attn_status status = ATTN_OK;
    if (b->pass != BENCH_BWD)
        status = attn_forward(context, &desc);
    if (b->pass != BENCH_FWD && status == ATTN_OK)
        status = attn_backward(context, &desc);
    return status;
}
