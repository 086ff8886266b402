/* SPDX-License-Identifier: BSD-3-Clause */
/* Outputs that lie between inputs without sharing an element are fine, and what lies beside them
 * stays as it was. */
#include <stdio.h>
#include <string.h>

#include "args.h"
#include "args_more.h"
#include "context.h"
#include "expect.h"

/* One buffer for q, k, v and out; the places, in elements, of head 0 of token 0 of each. */
struct slices {
    const char *name;
    int64_t q, k, v, out;
    int64_t batch, token, head;
};

enum { HEADS = 3, SIZE = 4, TOKENS = 5, ROW = 4 * HEADS * SIZE, ALL = B * TOKENS * ROW };

static const struct slices cases[] = {
    {"[B, S, 4, H, D]", 0, HEADS * SIZE, 2 * HEADS * SIZE, 3 * HEADS * SIZE, TOKENS * ROW, ROW,
     SIZE},
    {"[B, S, H, 4, D]", 0, SIZE, 2 * SIZE, 3 * SIZE, TOKENS * ROW, ROW, 4 * SIZE},
    {"[B, 4, H, S, D]", 0, HEADS * TOKENS * SIZE, 2 * HEADS * TOKENS * SIZE,
     3 * HEADS * TOKENS * SIZE, TOKENS * ROW, SIZE, TOKENS * SIZE},
    {"[4, B, S, H, D]", 0, ALL / 4, ALL / 2, 3 * ALL / 4, TOKENS * HEADS * SIZE, HEADS * SIZE,
     SIZE},
};

static attn_input input(float *x, const struct slices *s)
{
    const attn_input view = {x, ATTN_F32, s->batch, s->token, s->head};
    return view;
}

static attn_desc sliced(float *x, const struct slices *s)
{
    attn_desc d = attn_desc_init();
    d.batch = B;
    d.heads_q = HEADS;
    d.head_dim = SIZE;
    d.query.seqlen = d.key.seqlen = TOKENS;
    d.q = input(x + s->q, s);
    d.k = input(x + s->k, s);
    d.v = input(x + s->v, s);
    d.out.data = x + s->out;
    d.out.batch_stride = s->batch;
    d.out.token_stride = s->token;
    d.out.head_stride = s->head;
    return d;
}

/* Element n of a contiguous [B, S, H, D], in a slice that starts at `at`. */
static int64_t place(const struct slices *s, int64_t at, int64_t n)
{
    return at + n / (TOKENS * HEADS * SIZE) * s->batch + n / (HEADS * SIZE) % TOKENS * s->token +
           n / SIZE % HEADS * s->head + n % SIZE;
}

static float value_of(int64_t n, int tensor)
{
    return (float)((n * 31 + tensor * 17) % 29 - 14) / 8;
}

static void run_slices(attn_context *c, const char *backend, const struct slices *s, float *out)
{
    static float x[ALL], expected[ALL];
    for (int64_t n = 0; n < ALL / 4; n++) {
        x[place(s, s->q, n)] = value_of(n, 0);
        x[place(s, s->k, n)] = value_of(n, 1);
        x[place(s, s->v, n)] = value_of(n, 2);
        x[place(s, s->out, n)] = 1e30f;
    }
    memcpy(expected, x, sizeof x);
    const attn_desc d = sliced(x, s);
    EXPECT(attn_forward(c, &d) == ATTN_OK, "%s, %s: %s", backend, s->name, attn_last_message(c));
    for (int64_t n = 0; n < ALL / 4; n++)
        expected[place(s, s->out, n)] = out[n] = x[place(s, s->out, n)];
    EXPECT(memcmp(x, expected, sizeof x) == 0, "%s, %s: an input changed", backend, s->name);
}

static void test_backend(attn_backend backend)
{
    static float out[sizeof cases / sizeof *cases][ALL / 4];
    attn_context *c = context_of(backend);
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        run_slices(c, attn_backend_name(backend), &cases[n], out[n]);
        EXPECT(backend != ATTN_BACKEND_CPU || memcmp(out[n], out[0], sizeof out[0]) == 0,
               "%s, %s: differs from %s", attn_backend_name(backend), cases[n].name,
               cases[0].name);
    }
    attn_context_destroy(c);
}

void test_slices(void)
{
    test_backend(ATTN_BACKEND_CPU);
    if (eager_built())
        test_backend(ATTN_BACKEND_EAGER);
}
