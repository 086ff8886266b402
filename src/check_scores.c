/* SPDX-License-Identifier: BSD-3-Clause */
/* Tensors over (sequence, head, query, key): which a pass uses, their element types and strides. A
 * tensor is a line of a table. */
#include <stddef.h>
#include <string.h>

#include "check_inner.h"

enum kind { BIAS, MASK, BLOCK_MASK, PROBS, DBIAS };

struct score {
    const char *name;
    size_t offset;    /* in attn_desc */
    bool read[2], written[2]; /* by pass */
    enum kind kind;
    size_t view;      /* in struct attn_problem; 0: none */
};

#define FIELD(name) #name, offsetof(attn_desc, name)
#define VIEW(name) offsetof(struct attn_problem, name)

static const struct score scores[] = {
    {FIELD(bias), {true, true}, {false, false}, BIAS, VIEW(bias)},
    {FIELD(mask), {true, true}, {false, false}, MASK, VIEW(mask)},
    {FIELD(block_mask), {true, true}, {false, false}, BLOCK_MASK, VIEW(block_mask)},
    {FIELD(probs), {false, false}, {true, false}, PROBS, VIEW(probs)},
    {FIELD(dbias), {false, false}, {false, true}, DBIAS, VIEW(dbias)},
};
enum { SCORES = sizeof scores / sizeof scores[0] };

static const char *const axes[] = {"batch_stride", "head_stride", "query_stride", "key_stride"};

/* Fetches the field, input or output alike; whether the pass looks at it. */
static bool fetch(const struct attn_check_state *c, const struct score *t, attn_score_input *x)
{
    _Static_assert(sizeof(attn_score_input) == sizeof(attn_score_output), "same fields");
    memcpy(x, attn_field(c->d, t->offset), sizeof *x);
    return (t->read[c->p->pass] || t->written[c->p->pass]) && x->data;
}

attn_status attn_check_score_types(struct attn_check_state *c)
{
    attn_status status = ATTN_OK;
    attn_score_input x;
    for (int n = 0; n < SCORES && status == ATTN_OK; n++)
        if (fetch(c, &scores[n], &x))
            status = attn_check_type(c, scores[n].name, x.dtype);
    return status;
}

static attn_dtype dtype_of(const struct attn_check_state *c, const struct score *t)
{
    if (t->kind == MASK || t->kind == BLOCK_MASK)
        return ATTN_BOOL;
    return t->kind == DBIAS && c->d->bias.data ? c->d->bias.dtype : c->d->q.dtype;
}

attn_status attn_check_score_dtypes(struct attn_check_state *c)
{
    attn_score_input x;
    for (int n = 0; n < SCORES; n++) {
        const struct score *t = &scores[n];
        const attn_dtype want = dtype_of(c, t);
        if (fetch(c, t, &x) && x.dtype != want && !(t->kind == BIAS && x.dtype == ATTN_F32))
            return attn_wrong_dtype(c, t->name, x.dtype, want);
    }
    return ATTN_OK;
}

/* Elements that a sequence has in a bias of its own; 0 where the host cannot read its lengths. */
static bool bias_size(const struct attn_problem *p, int64_t b, int64_t heads, int64_t *size)
{
    const uint32_t lengths = ATTN_BIT(ATTN_QUERY_CU) | ATTN_BIT(ATTN_QUERY_USED) |
                             ATTN_BIT(ATTN_KEY_CU) | ATTN_BIT(ATTN_KEY_USED);
    *size = 0;
    return p->unread & lengths ||
           (!__builtin_mul_overflow(attn_axis_len(&p->query, b), attn_axis_len(&p->key, b), size) &&
            !__builtin_mul_overflow(*size, heads, size));
}

/* bias_offset[b] for each b, and the room that sequence b has up to the next one. */
static attn_status check_offsets(struct attn_check_state *c, attn_index a, int64_t heads)
{
    const struct attn_problem *p = c->p;
    int64_t at = attn_index_at(a.data, a.type == ATTN_I64, 0);
    if (at < 0)
        return attn_say(c->m, ATTN_INVALID_INDEX, "bias_offset[0]: %lld is negative",
                        (long long)at);
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t next = attn_index_at(a.data, a.type == ATTN_I64, b + 1);
        int64_t size;
        if (!bias_size(p, b, heads, &size))
            return attn_say(c->m, ATTN_INVALID_OVERFLOW,
                            "bias: %lld x %lld x %lld elements of sequence %lld do not fit in 63 "
                            "bits", (long long)heads, (long long)attn_axis_len(&p->query, b),
                            (long long)attn_axis_len(&p->key, b), (long long)b);
        if (next < at || next - at < size)
            return attn_say(c->m, ATTN_INVALID_INDEX, "bias_offset[%lld]: %lld, but the %lld "
                            "elements of sequence %lld start at %lld", (long long)b + 1,
                            (long long)next, (long long)size, (long long)b, (long long)at);
        at = next;
    }
    if (c->d->bias_elements && at > c->d->bias_elements)
        return attn_say(c->m, ATTN_INVALID_INDEX, "bias_offset[%lld]: %lld is past bias_elements = "
                        "%lld", (long long)p->batch, (long long)at,
                        (long long)c->d->bias_elements);
    c->p->bias_elements = at;
    return ATTN_OK;
}

/* The offsets and where they end, as far as the host can know. */
static attn_status check_extent(struct attn_check_state *c, attn_index a, int64_t heads)
{
    if (!(c->p->unread & ATTN_BIT(ATTN_BIAS_OFFSET)))
        return check_offsets(c, a, heads);
    if (!c->d->bias_elements)
        return attn_say(c->m, ATTN_INVALID_CONFLICT, "bias_elements: 0, but bias_offset lies in a "
                        "device's memory, and nothing else tells the bias' extent");
    c->p->bias_elements = c->d->bias_elements;
    return ATTN_OK;
}

/* With bias_offset the bias is one piece. */
static attn_status spread_bias(struct attn_check_state *c, struct attn_bytes *bias)
{
    const attn_index a = c->d->bias_offset;
    const bool per_head = c->d->bias.head_stride != ATTN_BROADCAST;
    const attn_status status = check_extent(c, a, per_head ? c->p->heads_q : 1);
    if (status != ATTN_OK)
        return status;
    c->p->bias_offset = (struct attn_integers){a.data, a.type == ATTN_I64};
    c->p->bias_per_head = per_head;
    bias->axes = 1;
    bias->extent[0] = c->p->bias_elements;
    bias->stride[0] = 1;
    return ATTN_OK;
}

/* The strides of a contiguous tensor. */
static attn_status fill_strides(struct attn_check_state *c, const char *name, struct attn_bytes *b)
{
    int64_t *s = b->stride;
    const int64_t *e = b->extent;
    s[3] = 1;
    for (int n = 3; n > 0; n--)
        if (__builtin_mul_overflow(s[n], e[n], &s[n - 1]))
            return attn_say(c->m, ATTN_INVALID_OVERFLOW,
                            "%s: %lld x %lld x %lld x %lld elements do not fit in 63 bits", name,
                            (long long)e[0], (long long)e[1], (long long)e[2], (long long)e[3]);
    return ATTN_OK;
}

/* The strides that the caller gave become what is meant; a tensor that is `dense` is contiguous
 * where all of them are 0. */
static attn_status resolve(struct attn_check_state *c, const char *name, struct attn_bytes *b,
                           bool dense)
{
    int64_t *s = b->stride;
    if (dense && (s[0] | s[1] | s[2] | s[3]) == 0)
        return fill_strides(c, name, b);
    attn_status status = ATTN_OK;
    for (int n = 0; n < 4 && status == ATTN_OK; n++)
        status = attn_check_stride(c, name, axes[n], b->extent[n], &s[n]);
    return status;
}

/* dbias is summed over the axes that it does not have: one element stands for each, even for an
 * axis without any. */
static void drop_broadcast(struct attn_bytes *b)
{
    for (int n = 0; n < 4; n++)
        if (b->stride[n] == 0)
            b->extent[n] = 1;
}

static int64_t blocks(int64_t n, int64_t size) { return n / size + (n % size != 0); }

/* Places from `data` on, one for each query and key, or for each pair of blocks of them. */
static struct attn_bytes bytes_of(const struct attn_check_state *c, const attn_score_input *x,
                                  bool in_blocks)
{
    const struct attn_problem *p = c->p;
    struct attn_bytes b = {
        .base = (uintptr_t)x->data, .axes = 4, .run = 1,
        .extent = {p->batch, p->heads_q, p->query.span, p->key.span},
        .stride = {x->batch_stride, x->head_stride, x->query_stride, x->key_stride}};
    if (in_blocks) {
        b.extent[2] = blocks(p->query.span, c->d->block_q);
        b.extent[3] = blocks(p->key.span, c->d->block_k);
    }
    return b;
}

static struct attn_score_view view_of(const attn_score_input *x, const struct attn_bytes *b)
{
    const int64_t *s = b->stride;
    return (struct attn_score_view){(char *)x->data, s[0], s[1], s[2], s[3]};
}

static attn_status add_score(struct attn_check_state *c, const struct score *t)
{
    attn_score_input x;
    if (!fetch(c, t, &x))
        return ATTN_OK;
    struct attn_operand o = {.name = t->name, .written = t->written[c->p->pass]};
    o.bytes = bytes_of(c, &x, t->kind == BLOCK_MASK);
    attn_status status = resolve(c, t->name, &o.bytes, t->kind == PROBS);
    if (status != ATTN_OK)
        return status;
    if (t->view) {
        const struct attn_score_view v = view_of(&x, &o.bytes);
        memcpy((char *)c->p + t->view, &v, sizeof v);
    }
    if (t->kind == BIAS)
        c->p->bias_dtype = x.dtype;
    if (t->kind == DBIAS)
        drop_broadcast(&o.bytes);
    if (c->d->bias_offset.data && (t->kind == BIAS || t->kind == DBIAS))
        status = spread_bias(c, &o.bytes);
    return status == ATTN_OK ? attn_add_operand(c, &o, attn_dtype_size(x.dtype), axes) : status;
}

/* The keep mask, which is no field of the descriptor. */
static attn_status add_keep(struct attn_check_state *c)
{
    attn_score_input x;
    memcpy(&x, c->keep, sizeof x);
    struct attn_operand o = {.name = "keep", .written = true, .bytes = bytes_of(c, &x, false)};
    const int64_t *e = o.bytes.extent;
    attn_status status = attn_check_type(c, "keep", x.dtype);
    if (status == ATTN_OK && x.dtype != ATTN_BOOL)
        status = attn_say(c->m, ATTN_INVALID_DTYPE, "keep.dtype: %s, must be bool",
                          attn_dtype_name(x.dtype));
    if (status == ATTN_OK && !x.data && e[0] && e[1] && e[2] && e[3])
        status = attn_say(c->m, ATTN_INVALID_NULL, "keep.data: null");
    if (status == ATTN_OK)
        status = resolve(c, "keep", &o.bytes, true);
    if (status != ATTN_OK)
        return status;
    *c->keep_view = view_of(&x, &o.bytes);
    return attn_add_operand(c, &o, 1, axes);
}

attn_status attn_add_scores(struct attn_check_state *c)
{
    attn_status status = ATTN_OK;
    for (int n = 0; n < SCORES && status == ATTN_OK; n++)
        status = add_score(c, &scores[n]);
    return status == ATTN_OK && c->keep ? add_keep(c) : status;
}
