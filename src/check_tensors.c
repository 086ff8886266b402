/* SPDX-License-Identifier: BSD-3-Clause */
/* Tensors over tokens or heads: which a pass uses, their element types and strides. A tensor is a
 * line of a table. */
#include "check_inner.h"

#include <stddef.h>
#include <string.h>

/* What a pass does with a tensor; 0: does not look at it. */
enum use { READ = 1, WRITE = 2, NEEDED = 4 };

/* Which axes a tensor has besides its heads. */
enum axes { ON_QUERY, ON_KEY, PER_SEQUENCE, PER_HEAD };

/* What a tensor holds per head: a vector of q's type, or one number of the computing type, which
 * then runs over tokens first. */
enum run { DIM, DIM_V, NUMBER };

struct tensor {
    const char *name;
    size_t offset;         /* in attn_desc */
    unsigned char use[2];  /* by pass */
    enum axes axes;
    bool kv_heads;
    enum run run;
    size_t view;           /* in struct attn_problem; 0: none */
};

#define FIELD(name) #name, offsetof(attn_desc, name)
#define VIEW(name) offsetof(struct attn_problem, name)

static const struct tensor tensors[] = {
    {FIELD(q), {READ | NEEDED, READ | NEEDED}, ON_QUERY, false, DIM, VIEW(q)},
    {FIELD(k), {READ | NEEDED, READ | NEEDED}, ON_KEY, true, DIM, VIEW(k)},
    {FIELD(v), {READ | NEEDED, READ | NEEDED}, ON_KEY, true, DIM_V, VIEW(v)},
    {FIELD(out), {WRITE | NEEDED, READ | NEEDED}, ON_QUERY, false, DIM_V, VIEW(out)},
    {FIELD(lse), {WRITE, READ | NEEDED}, ON_QUERY, false, NUMBER, VIEW(lse)},
    {FIELD(alibi), {READ, READ}, PER_SEQUENCE, false, NUMBER, VIEW(alibi)},
    {FIELD(sink), {READ, READ}, PER_HEAD, false, NUMBER, VIEW(sink)},
    {FIELD(key_sums), {WRITE, 0}, ON_KEY, false, NUMBER, VIEW(key_sums)},
    {FIELD(dout), {0, READ | NEEDED}, ON_QUERY, false, DIM_V, VIEW(dout)},
    {FIELD(dlse), {0, READ}, ON_QUERY, false, NUMBER, VIEW(dlse)},
    {FIELD(dq), {0, WRITE | NEEDED}, ON_QUERY, false, DIM, VIEW(dq)},
    {FIELD(dk), {0, WRITE | NEEDED}, ON_KEY, true, DIM, VIEW(dk)},
    {FIELD(dv), {0, WRITE | NEEDED}, ON_KEY, true, DIM_V, VIEW(dv)},
    {FIELD(dsink), {0, WRITE}, PER_HEAD, false, NUMBER, VIEW(dsink)},
};
enum { TENSORS = sizeof tensors / sizeof tensors[0] };

/* Fetches the field, input or output alike; whether the pass looks at it. */
static bool fetch(const struct attn_check_state *c, const struct tensor *t, attn_input *x)
{
    _Static_assert(sizeof(attn_input) == sizeof(attn_output), "same fields");
    memcpy(x, attn_field(c->d, t->offset), sizeof *x);
    const int use = t->use[c->p->pass];
    return (use & NEEDED) || (use && x->data);
}

attn_status attn_check_type(struct attn_check_state *c, const char *name, attn_dtype dtype)
{
    if ((int)dtype < ATTN_F32 || (int)dtype > ATTN_BOOL)
        return attn_say(c->m, ATTN_INVALID_ENUM, "%s.dtype: %d is no element type", name,
                        (int)dtype);
    return ATTN_OK;
}

attn_status attn_check_types(struct attn_check_state *c)
{
    attn_status status = ATTN_OK;
    attn_input x;
    for (int n = 0; n < TENSORS && status == ATTN_OK; n++)
        if (fetch(c, &tensors[n], &x))
            status = attn_check_type(c, tensors[n].name, x.dtype);
    return status == ATTN_OK ? attn_check_score_types(c) : status;
}

attn_status attn_wrong_dtype(struct attn_check_state *c, const char *name, attn_dtype got,
                             attn_dtype want)
{
    return attn_say(c->m, ATTN_INVALID_DTYPE, "%s.dtype: %s, must be %s where q.dtype is %s",
                    name, attn_dtype_name(got), attn_dtype_name(want),
                    attn_dtype_name(c->p->dtype));
}

attn_status attn_check_dtypes(struct attn_check_state *c)
{
    const attn_dtype type = c->d->q.dtype;
    attn_input x;
    if (type == ATTN_BOOL)
        return attn_say(c->m, ATTN_INVALID_DTYPE, "q.dtype: bool is for masks only");
    c->p->dtype = type;
    for (int n = 0; n < TENSORS; n++) {
        const attn_dtype want = tensors[n].run == NUMBER ? attn_compute_dtype(type) : type;
        if (fetch(c, &tensors[n], &x) && x.dtype != want)
            return attn_wrong_dtype(c, tensors[n].name, x.dtype, want);
    }
    return attn_check_score_dtypes(c);
}

/* The shape of a tensor as batch, tokens, heads and what a head holds. */
struct shape {
    int64_t extent[3], run;
    bool packed;
};

static struct shape shape_of(const struct attn_check_state *c, const struct tensor *t)
{
    const struct attn_problem *p = c->p;
    const attn_side *side = t->axes == ON_KEY ? &c->d->key : &c->d->query;
    const bool tokens = t->axes == ON_QUERY || t->axes == ON_KEY;
    struct shape s = {{p->batch, 1, t->kv_heads ? p->heads_kv : p->heads_q}, 1, false};
    s.run = t->run == DIM ? p->head_dim : t->run == DIM_V ? p->head_dim_v : 1;
    s.packed = tokens && side->layout == ATTN_PACKED;
    if (s.packed) {
        s.extent[0] = 1;
        s.extent[1] = side->tokens;
    } else if (tokens && side->layout == ATTN_PAGED && t->run != NUMBER) {
        s.extent[0] = side->pages;
        s.extent[1] = side->page_size;
    } else if (tokens) {
        s.extent[1] = t->axes == ON_KEY ? c->p->key.span : c->p->query.span;
    } else if (t->axes == PER_HEAD) {
        s.extent[0] = 1;
    }
    return s;
}

attn_status attn_check_nulls(struct attn_check_state *c)
{
    attn_input x;
    for (int n = 0; n < TENSORS && c->mode == ATTN_CHECK_RUN; n++) {
        if (!fetch(c, &tensors[n], &x) || x.data)
            continue;
        const struct shape s = shape_of(c, &tensors[n]);
        if (s.extent[0] && s.extent[1] && s.extent[2])
            return attn_say(c->m, ATTN_INVALID_NULL, "%s.data: null", tensors[n].name);
    }
    return ATTN_OK;
}

/* Strides of a contiguous tensor; false if they do not fit. */
static bool contiguous(const struct tensor *t, const struct shape *s, int64_t *stride)
{
    const int inner = t->run == NUMBER ? 1 : 2, outer = 3 - inner; /* axes: 1 tokens, 2 heads */
    stride[inner] = s->run;
    const bool fits = !__builtin_mul_overflow(s->run, s->extent[inner], &stride[outer]) &&
                      !__builtin_mul_overflow(stride[outer], s->extent[outer], &stride[0]);
    if (s->packed || t->axes == PER_SEQUENCE || t->axes == PER_HEAD)
        stride[0] = 0;
    if (t->axes == PER_SEQUENCE || t->axes == PER_HEAD)
        stride[1] = 0;
    return fits;
}

static const char *const tensor_axes[] = {"batch_stride", "token_stride", "head_stride"};

/* stride[] as the caller gave it becomes what is meant. */
static attn_status resolve(struct attn_check_state *c, const struct tensor *t,
                           const struct shape *s, int64_t *stride)
{
    if (s->packed && stride[0] != ATTN_BROADCAST)
        stride[0] = 0;
    if ((stride[0] | stride[1] | stride[2]) == 0)
        return contiguous(t, s, stride)
                   ? ATTN_OK
                   : attn_say(c->m, ATTN_INVALID_OVERFLOW, "%s: %lld x %lld x %lld x %lld elements "
                              "do not fit in 63 bits", t->name, (long long)s->extent[0],
                              (long long)s->extent[1], (long long)s->extent[2], (long long)s->run);
    for (int n = 0; n < 3; n++) {
        const attn_status status =
            attn_check_stride(c, t->name, tensor_axes[n], s->extent[n], &stride[n]);
        if (status != ATTN_OK)
            return status;
        const bool absent = n == 1 ? t->axes >= PER_SEQUENCE : n == 0 && t->axes == PER_HEAD;
        if (absent && stride[n])
            return attn_say(c->m, ATTN_INVALID_CONFLICT, "%s.%s: %lld, but it has no such axis",
                            t->name, tensor_axes[n], (long long)stride[n]);
    }
    return ATTN_OK;
}

static attn_status add_tensor(struct attn_check_state *c, const struct tensor *t)
{
    attn_input x;
    if (!fetch(c, t, &x))
        return ATTN_OK;
    const struct shape s = shape_of(c, t);
    int64_t stride[3] = {x.batch_stride, x.token_stride, x.head_stride};
    const attn_status status = resolve(c, t, &s, stride);
    if (status != ATTN_OK)
        return status;
    if (t->view) {
        const struct attn_view v = {(char *)x.data, stride[0], stride[1], stride[2]};
        memcpy((char *)c->p + t->view, &v, sizeof v);
    }
    struct attn_operand o = {.name = t->name, .written = t->use[c->p->pass] & WRITE};
    o.bytes = (struct attn_bytes){.base = (uintptr_t)x.data, .axes = 3, .run = s.run};
    memcpy(o.bytes.extent, s.extent, sizeof s.extent);
    memcpy(o.bytes.stride, stride, sizeof stride);
    return attn_add_operand(c, &o, attn_dtype_size(x.dtype), tensor_axes);
}

attn_status attn_check_strides(struct attn_check_state *c)
{
    attn_status status = ATTN_OK;
    c->count = 0;
    for (int n = 0; n < TENSORS && status == ATTN_OK; n++)
        status = add_tensor(c, &tensors[n]);
    if (status == ATTN_OK)
        status = attn_add_scores(c);
    if (status == ATTN_OK)
        status = attn_add_arrays(c);
    return status == ATTN_OK ? attn_add_masks(c) : status;
}
