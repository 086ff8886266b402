/* SPDX-License-Identifier: BSD-3-Clause */
#include "strided.h"

#include <string.h>

#include "element.h"
#include "memory.h"

static size_t bytes_of(const struct strided *t)
{
    return (size_t)t->elements * element_size(t->dtype);
}

struct strided strided_make(struct rng *r, attn_dtype dtype, int64_t batch, int64_t tokens,
                            int64_t heads, int64_t run, bool heads_first)
{
    static const int orders[][3] = {{2, 1, 0}, {1, 2, 0}, {1, 0, 2}, {0, 2, 1}};
    struct strided t = {.dtype = dtype, .extent = {batch, tokens, heads}, .run = run};
    t.plain = rng_chance(r, 40);
    const int *order = t.plain ? orders[heads_first] : RNG_PICK(r, orders);
    int64_t stride = run;
    for (int n = 0; n < 3; n++) {
        stride += t.plain ? 0 : rng_below(r, 3);
        t.stride[order[n]] = stride;
        stride *= t.extent[order[n]];
    }
    t.elements = stride + 2; /* and two behind it */
    t.data = test_alloc(bytes_of(&t));
    for (int64_t n = 0; n < t.elements; n++)
        element_set(dtype, t.data, n, NAN);
    return t;
}

struct strided strided_copy(const struct strided *t)
{
    struct strided c = *t;
    c.data = test_alloc(bytes_of(t));
    memcpy(c.data, t->data, bytes_of(t));
    return c;
}

void strided_free(struct strided *t)
{
    free(t->data);
    t->data = NULL;
}

int64_t strided_at(const struct strided *t, int64_t batch, int64_t token, int64_t head)
{
    return batch * t->stride[0] + token * t->stride[1] + head * t->stride[2];
}

double strided_get(const struct strided *t, int64_t batch, int64_t token, int64_t head, int64_t n)
{
    return element_get(t->dtype, t->data, strided_at(t, batch, token, head) + n);
}

void strided_set(struct strided *t, int64_t batch, int64_t token, int64_t head, int64_t n, double x)
{
    element_set(t->dtype, t->data, strided_at(t, batch, token, head) + n, x);
}

void strided_put(struct strided *to, int64_t batch, int64_t token, const struct strided *from,
                 int64_t from_batch, int64_t from_token)
{
    for (int64_t h = 0; h < to->extent[2]; h++)
        for (int64_t n = 0; n < to->run; n++)
            strided_set(to, batch, token, h, n, strided_get(from, from_batch, from_token, h, n));
}

void strided_fill(struct strided *t, struct rng *r)
{
    for (int64_t b = 0; b < t->extent[0]; b++)
        for (int64_t s = 0; s < t->extent[1]; s++)
            for (int64_t h = 0; h < t->extent[2]; h++)
                for (int64_t n = 0; n < t->run; n++)
                    strided_set(t, b, s, h, n, rng_normal(r));
}

/* Nothing lies one stride apart on an axis of one element, so it may be any number. */
static int64_t told(const struct strided *t, int axis)
{
    return t->extent[axis] == 1 ? INT64_MAX - axis : t->stride[axis];
}

attn_input strided_input(const struct strided *t)
{
    if (t->plain)
        return (attn_input){t->data, t->dtype, 0, 0, 0};
    return (attn_input){t->data, t->dtype, told(t, 0), told(t, 1), told(t, 2)};
}

attn_output strided_output(const struct strided *t)
{
    const attn_input x = strided_input(t);
    return (attn_output){t->data, x.dtype, x.batch_stride, x.token_stride, x.head_stride};
}

bool strided_same(const struct strided *a, const struct strided *b)
{
    return a->elements == b->elements && memcmp(a->data, b->data, bytes_of(a)) == 0;
}
