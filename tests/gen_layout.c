/* SPDX-License-Identifier: BSD-3-Clause */
/* How the tensors of a problem lie in memory. */
#include <string.h>

#include "gen.h"

enum layout { IMPLICIT, EXPLICIT, HEADS_FIRST, GAPS, BROADCAST };

static int64_t gap(struct rng *r) { return rng_chance(r, 50) ? rng_below(r, 20) : 0; }

static void strides(struct tensor *t, int64_t batch, int64_t token, int64_t head)
{
    t->batch = t->given[0] = batch;
    t->token = t->given[1] = token;
    t->head = t->given[2] = head;
}

struct tensor gen_contiguous(enum buffer_name buffer, attn_dtype type, const struct side *s,
                             int64_t heads, int64_t width)
{
    struct tensor t = {.buffer = buffer, .dtype = type, .heads = heads, .width = width};

    strides(&t, side_rows(s) * heads * width, heads * width, width);
    memset(t.given, 0, sizeof t.given);
    return t;
}

struct tensor gen_contiguous_numbers(enum buffer_name buffer, attn_dtype type,
                                     const struct side *s, int64_t heads)
{
    const struct side rows = side_unpaged(s);
    struct tensor t = {.buffer = buffer, .dtype = type, .heads = heads, .width = 1};

    strides(&t, side_rows(&rows) * heads, 1, side_rows(&rows));
    memset(t.given, 0, sizeof t.given);
    return t;
}

void gen_contiguous_probs(struct problem *p)
{
    const int64_t nq = side_span(&p->query, p->batch), nk = side_span(&p->key, p->batch);

    p->probs = (struct plane){.dtype = p->dtype, .batch = p->hq * nq * nk, .head = nq * nk,
                              .query = nk, .key = 1, .untold = true};
    problem_buffer(p, BUFFER_PROBS, element_size(p->dtype), p->batch * p->probs.batch);
}

/* Some strides 0; a call that finds all three 0 would take the tensor for contiguous. */
static void broadcast(struct tensor *t, const struct side *s, struct rng *r)
{
    if (rng_chance(r, 50))
        t->batch = 0;
    if (rng_chance(r, 40))
        t->token = 0;
    if (rng_chance(r, 60))
        t->head = 0;
    if (s->packed)
        t->batch = 0;
    strides(t, t->batch, t->token, t->head);
    if (!t->batch && !t->token && !t->head)
        t->given[s->packed ? 1 + rng_below(r, 2) : rng_below(r, 3)] = ATTN_BROADCAST;
}

static struct tensor place(enum buffer_name buffer, attn_dtype type, const struct side *s,
                           int64_t heads, int64_t width, enum layout layout, struct rng *r)
{
    struct tensor t = gen_contiguous(buffer, type, s, heads, width);
    const int64_t rows = side_rows(s);

    if (layout == IMPLICIT)
        return t;
    if (layout == HEADS_FIRST) {
        strides(&t, heads * rows * width, width, rows * width);
    } else {
        const bool gaps = layout == GAPS;
        const int64_t head = width + (gaps ? gap(r) : 0);
        const int64_t token = head * heads + (gaps ? gap(r) : 0);
        strides(&t, token * rows + (gaps ? gap(r) : 0), token, head);
    }
    if (layout == BROADCAST)
        broadcast(&t, s, r);
    if (layout == GAPS)
        t.offset = gap(r);
    return t;
}

static void make_buffer(struct problem *p, const struct tensor *t, const struct side *s,
                        struct rng *r)
{
    const int64_t tail = rng_chance(r, 50) ? rng_below(r, 30) : 0;

    problem_buffer(p, t->buffer, element_size(t->dtype), tensor_extent(t, s, p->batch) + tail);
}

/* q, k, v (and out) as slices of each token's row; or, in one more way, of each head's part. */
static void fuse(struct problem *p, enum buffer_name buffer, struct tensor *const *parts,
                 bool with_out, bool by_head, struct rng *r)
{
    const int64_t heads[] = {p->hq, p->hkv, p->hkv, p->hq}, width[] = {p->d, p->d, p->dv, p->dv};
    const int count = with_out ? 4 : 3;
    const int64_t extra = gap(r);
    int64_t row = 0, rows = side_rows(&p->query), offset = 0;

    for (int n = 0; n < count; n++)
        row += (by_head ? 1 : heads[n]) * width[n];
    for (int n = 0; n < count; n++) {
        const int64_t token = (by_head ? heads[n] : 1) * row + extra;
        *parts[n] = (struct tensor){.buffer = buffer, .dtype = p->dtype, .offset = offset,
                                    .heads = heads[n], .width = width[n]};
        strides(parts[n], rows * token, token, by_head ? row : width[n]);
        offset += (by_head ? 1 : heads[n]) * width[n];
    }
}

static bool same_tokens(const struct side *a, const struct side *b, int64_t batch)
{
    return a->packed == b->packed && !a->paged && !b->paged && side_rows(a) == side_rows(b) &&
           memcmp(a->start, b->start, (size_t)(batch + 1) * sizeof *a->start) == 0;
}

static enum layout draw_output(struct rng *r)
{
    static const enum layout layouts[] = {IMPLICIT, IMPLICIT, EXPLICIT, HEADS_FIRST, GAPS, GAPS};

    return RNG_PICK(r, layouts);
}

static enum layout draw_input(struct rng *r)
{
    return rng_chance(r, 10) ? BROADCAST : draw_output(r);
}

/* The values are part of the keys: the same rows, or the head of them. */
static void alias_values(struct problem *p)
{
    p->v = p->k;
    p->v.width = p->dv;
    if (p->v.given[0] == 0 && p->v.given[1] == 0 && p->v.given[2] == 0)
        memcpy(p->v.given, (int64_t[]){p->k.batch, p->k.token, p->k.head}, sizeof p->v.given);
}

static void apart(struct problem *p, struct rng *r)
{
    p->layout = "apart";
    p->q = place(BUFFER_Q, p->dtype, &p->query, p->hq, p->d, draw_input(r), r);
    p->k = place(BUFFER_K, p->dtype, &p->key, p->hkv, p->d, draw_input(r), r);
    p->v = place(BUFFER_V, p->dtype, &p->key, p->hkv, p->dv, draw_input(r), r);
    make_buffer(p, &p->q, &p->query, r);
    make_buffer(p, &p->k, &p->key, r);
    if (p->dv <= p->d && rng_chance(r, 8)) {
        p->layout = "v-in-k";
        alias_values(p);
    } else {
        make_buffer(p, &p->v, &p->key, r);
    }
}

static void one_buffer(struct problem *p, bool with_out, struct rng *r)
{
    struct tensor *const parts[] = {&p->q, &p->k, &p->v, &p->out};
    const bool by_head = p->hq == p->hkv && rng_chance(r, 40);

    p->layout = with_out ? "fused-with-out" : "fused";
    fuse(p, BUFFER_Q, parts, with_out, by_head, r);
    const struct tensor *last = with_out ? &p->out : &p->v;
    make_buffer(p, last, &p->query, r);
}

bool gen_fused(struct problem *p, struct rng *r)
{
    struct tensor *const parts[] = {&p->grad_q, &p->grad_k, &p->grad_v};

    if (!same_tokens(&p->query, &p->key, p->batch) || rng_chance(r, 50))
        return false;
    fuse(p, BUFFER_DQ, parts, false, p->hq == p->hkv && rng_chance(r, 40), r);
    make_buffer(p, &p->grad_v, &p->query, r);
    return true;
}

struct tensor gen_input(struct problem *p, enum buffer_name buffer, attn_dtype type,
                        const struct side *s, int64_t heads, int64_t width, struct rng *r)
{
    const struct tensor t = place(buffer, type, s, heads, width, draw_input(r), r);

    make_buffer(p, &t, s, r);
    return t;
}

struct tensor gen_output(struct problem *p, enum buffer_name buffer, attn_dtype type,
                         const struct side *s, int64_t heads, int64_t width, struct rng *r)
{
    const struct tensor t = place(buffer, type, s, heads, width, draw_output(r), r);

    make_buffer(p, &t, s, r);
    return t;
}

struct tensor gen_numbers(struct problem *p, enum buffer_name buffer, struct rng *r)
{
    static const enum layout told[] = {EXPLICIT, HEADS_FIRST, GAPS};
    const attn_dtype type = element_computing(p->dtype);
    struct tensor t = gen_contiguous_numbers(buffer, type, &p->query, p->hq);

    if (rng_chance(r, 50))
        t = place(buffer, type, &p->query, p->hq, 1, RNG_PICK(r, told), r);
    make_buffer(p, &t, &p->query, r);
    return t;
}

/* Where the results lie that plain problems have not. */
void gen_layout_more(struct problem *p, struct rng *r)
{
    static const enum layout told[] = {EXPLICIT, HEADS_FIRST, GAPS};
    const attn_dtype type = element_computing(p->dtype);
    const struct side keys = side_unpaged(&p->key);

    if (p->has_sums) {
        p->sums = gen_contiguous_numbers(BUFFER_KEY_SUMS, type, &keys, p->hq);
        if (rng_chance(r, 50))
            p->sums = place(BUFFER_KEY_SUMS, type, &keys, p->hq, 1, RNG_PICK(r, told), r);
        make_buffer(p, &p->sums, &keys, r);
    }
    if (p->has_probs)
        gen_contiguous_probs(p);
    for (int n = BUFFER_USED_K + 1; n < BUFFERS; n++)
        p->buffers[n].shift = (int)(rng_chance(r, 50) ? rng_below(r, 16) : 0);
}

void gen_layout(struct problem *p, struct rng *r)
{
    bool with_out = false;

    if (same_tokens(&p->query, &p->key, p->batch) && rng_chance(r, 60)) {
        with_out = rng_chance(r, 30);
        one_buffer(p, with_out, r);
    } else {
        apart(p, r);
    }
    if (!with_out) {
        p->out = place(BUFFER_OUT, p->dtype, &p->query, p->hq, p->dv, draw_output(r), r);
        make_buffer(p, &p->out, &p->query, r);
    }
    if (p->has_lse)
        p->lse = gen_numbers(p, BUFFER_LSE, r);
    for (int n = 0; n <= BUFFER_USED_K; n++)
        p->buffers[n].shift = (int)(rng_chance(r, 50) ? rng_below(r, 16) : 0);
}
