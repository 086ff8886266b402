/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Calls with enough work that threads are really woken: the same bits on 1, 2, 3 and 7 threads, and
 * from several callers at once. Under a race detector this is where threads meet. And how many
 * threads a call has.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "expect.h"
#include "memory.h"
#include "rng.h"

enum { MOST_B = 12, CALLERS = 3, ROUNDS = 2 };
/* Instruction sets other than the best get one problem in so many, of every shape, and so does eager,
 * whose BLAS library has threads of its own that wait by turning. */
enum { OTHERS = 3 };

static const struct shape {
    const char *name;
    int64_t batch, lengths_q[MOST_B], lengths_k[MOST_B], hq, hkv, d, dv;
    int32_t causal, window;
} shapes[] = {
    {"one long sequence", 1, {300}, {300}, 2, 2, 64, 64, 0, 0},
    {"one long causal sequence, one head", 1, {700}, {700}, 1, 1, 32, 48, 1, 0},
    {"long and short", 12, {1, 290, 3, 0, 40, 7, 129, 64, 2, 33, 5, 90},
     {4, 290, 3, 9, 40, 0, 129, 64, 2, 33, 5, 90}, 4, 4, 40, 40, 1, 0},
    {"groups of heads", 3, {70, 260, 131}, {200, 260, 140}, 8, 2, 64, 64, 0, 1},
    {"one query, many keys", 4, {1, 1, 1, 1}, {3000, 17, 5000, 900}, 8, 2, 64, 64, 0, 0},
    {"many keys, one key head", 2, {30, 5}, {1500, 2000}, 8, 1, 33, 17, 1, 0},
    {"some blocks of rows, far keys", 2, {20, 60}, {650, 660}, 3, 3, 128, 144, 1, 0},
    {"narrow heads", 3, {2, 2, 2}, {9000, 0, 2300}, 24, 6, 7, 12, 1, 0},
    {"few rows, a part of one that alone would not be narrow", 1, {9}, {2000}, 1, 1, 12, 7, 0, 0},
    {"long keys of heads alike", 1, {21}, {270}, 2, 2, 1024, 1024, 0, 0},
    {"few rows, parts whose windows begin elsewhere", 1, {9}, {2000}, 1, 1, 12, 7, 0, 1},
    {"blocks of rows by twos", 1, {432}, {1300}, 1, 1, 64, 64, 0, 0},
    {"a rest of rows beside one far tile", 1, {115}, {192}, 7, 7, 64, 704, 0, 0},
    {"many rows of one head, in parts", 1, {1000}, {300}, 1, 1, 32, 32, 0, 0},
    {"many heads, blocks of rows that share a tile", 1, {40}, {192}, 36, 36, 128, 128, 0, 0},
    {"a rest of rows beside far keys, a tile ends in its window", 1, {27}, {7900}, 2, 2, 64, 64, 0, 1},
};

/* A shape with its tensors, packed. */
struct problem {
    const struct shape *shape;
    attn_dtype dtype;
    size_t size; /* bytes of an element */
    int32_t cu_q[MOST_B + 1], cu_k[MOST_B + 1];
    void *q, *k, *v, *dout, *dlse;
    uint8_t *mask;
    bool shaped; /* with the features below, and what they add to the results */
    void *bias, *heads; /* [hq][tk], for every query; slopes and sinks, [hq] */
    int64_t *docs_q, *docs_k;
    int64_t tiles[MOST_B + 1]; /* where the probabilities of each sequence start */
    int64_t longest;           /* sequence of keys */
    /* Where each result starts in memory, and all of it. */
    size_t out, lse, dq, dk, dv, dbias, dsink, sums, probs, bytes;
};

static void *draw(struct rng *r, attn_dtype dtype, int64_t count)
{
    void *x = test_alloc((size_t)count * 8);
    for (int64_t n = 0; n < count; n++) {
        const double value = rng_normal(r);
        if (dtype == ATTN_F64)
            ((double *)x)[n] = value;
        else
            ((float *)x)[n] = (float)value;
    }
    return x;
}

/* Documents of some 60 tokens each. */
static int64_t *draw_docs(struct rng *r, int64_t count)
{
    int64_t *x = test_alloc((size_t)count * sizeof *x);
    for (int64_t n = 1; n < count; n++)
        x[n] = rng_chance(r, 3) ? 1 - x[n - 1] : x[n - 1];
    return x;
}

/* Room for a result of so many elements. */
static size_t place(struct problem *p, int64_t count)
{
    const size_t at = p->bytes;
    p->bytes += (size_t)count * p->size;
    return at;
}

static void prepare_shaped(struct problem *p, struct rng *r)
{
    const struct shape *s = p->shape;
    const int64_t tq = p->cu_q[s->batch], tk = p->cu_k[s->batch];
    p->bias = draw(r, p->dtype, s->hq * tk);
    p->heads = draw(r, p->dtype, s->hq);
    p->docs_q = draw_docs(r, tq);
    p->docs_k = draw_docs(r, tk);
    for (int64_t b = 0; b < s->batch; b++) {
        p->tiles[b + 1] = p->tiles[b] + s->hq * s->lengths_q[b] * s->lengths_k[b];
        p->longest = s->lengths_k[b] > p->longest ? s->lengths_k[b] : p->longest;
    }
    p->dbias = place(p, s->hq * p->longest);
    p->dsink = place(p, s->hq);
    p->sums = place(p, tk * s->hq);
    p->probs = place(p, p->tiles[s->batch]);
}

static struct problem prepare(const struct shape *s, attn_dtype dtype, bool shaped)
{
    struct rng r = rng_seeded((uint64_t)(s - shapes));
    struct problem p = {.shape = s, .dtype = dtype, .size = dtype == ATTN_F64 ? 8 : 4,
                        .shaped = shaped};
    for (int64_t b = 0; b < s->batch; b++) {
        p.cu_q[b + 1] = p.cu_q[b] + (int32_t)s->lengths_q[b];
        p.cu_k[b + 1] = p.cu_k[b] + (int32_t)s->lengths_k[b];
    }
    const int64_t tq = p.cu_q[s->batch], tk = p.cu_k[s->batch];
    p.q = draw(&r, dtype, tq * s->hq * s->d);
    p.k = draw(&r, dtype, tk * s->hkv * s->d);
    p.v = draw(&r, dtype, tk * s->hkv * s->dv);
    p.dout = draw(&r, dtype, tq * s->hq * s->dv);
    p.dlse = draw(&r, dtype, tq * s->hq);
    p.mask = test_alloc((size_t)tk);
    for (int64_t n = 0; n < tk; n++)
        p.mask[n] = rng_chance(&r, 90);
    p.out = place(&p, tq * s->hq * s->dv);
    p.lse = place(&p, tq * s->hq);
    p.dq = place(&p, tq * s->hq * s->d);
    p.dk = place(&p, tk * s->hkv * s->d);
    p.dv = place(&p, tk * s->hkv * s->dv);
    if (shaped)
        prepare_shaped(&p, &r);
    return p;
}

static void release(struct problem *p)
{
    free(p->q);
    free(p->k);
    free(p->v);
    free(p->dout);
    free(p->dlse);
    free(p->mask);
    free(p->bias);
    free(p->heads);
    free(p->docs_q);
    free(p->docs_k);
}

/* What probs_fn is given. */
struct taker {
    const struct problem *p;
    char *probs;
};

/* An attn_probs_fn: copies the tile to its place. */
static void take(void *user, int64_t b, int64_t h, int64_t i0, int64_t ni, int64_t j0, int64_t nj,
                 const void *tile, int64_t stride)
{
    const struct taker *t = user;
    const struct problem *p = t->p;
    const int64_t nq = p->shape->lengths_q[b], nk = p->shape->lengths_k[b];
    for (int64_t i = 0; i < ni; i++) {
        const int64_t to = p->tiles[b] + (h * nq + i0 + i) * nk + j0;
        memcpy(t->probs + (size_t)to * p->size, (const char *)tile + (size_t)(i * stride) * p->size,
               (size_t)nj * p->size);
    }
}

static void set_shaped(const struct problem *p, char *out, struct taker *t, attn_desc *d)
{
    const int64_t tk = p->cu_k[p->shape->batch];
    d->softcap = 20;
    d->bias = (attn_score_input){p->bias, p->dtype, 0, tk, 0, 1};
    d->alibi = d->sink = (attn_input){p->heads, p->dtype, 0, 0, 0};
    d->query_docs = (attn_index){p->docs_q, ATTN_I64};
    d->key_docs = (attn_index){p->docs_k, ATTN_I64};
    d->dropout = 0.1;
    d->key_sums = (attn_output){out + p->sums, p->dtype, 0, 0, 0};
    memset(out + p->probs, 0, p->bytes - p->probs); /* what is in no tile */
    *t = (struct taker){p, out + p->probs};
    d->probs_fn = take;
    d->probs_user = t;
}

/* With the features, those of the bias and the sinks as well. */
static void set_gradients(const struct problem *p, char *out, attn_desc *d)
{
    d->dout = (attn_input){p->dout, p->dtype, 0, 0, 0};
    d->dlse = (attn_input){p->dlse, p->dtype, 0, 0, 0};
    d->dq = (attn_output){out + p->dq, p->dtype, 0, 0, 0};
    d->dk = (attn_output){out + p->dk, p->dtype, 0, 0, 0};
    d->dv = (attn_output){out + p->dv, p->dtype, 0, 0, 0};
    if (p->shaped) {
        d->dbias = (attn_score_output){out + p->dbias, p->dtype, 0, p->longest, 0, 1};
        d->dsink = (attn_output){out + p->dsink, p->dtype, 0, 0, 0};
    }
}

static attn_desc desc_of(const struct problem *p, void *out, void *lse)
{
    const struct shape *s = p->shape;
    attn_desc d = attn_desc_init();
    d.batch = s->batch;
    d.heads_q = s->hq;
    d.heads_kv = s->hkv;
    d.head_dim = s->d;
    d.head_dim_v = s->dv;
    d.query.layout = d.key.layout = ATTN_PACKED;
    d.query.tokens = p->cu_q[s->batch];
    d.key.tokens = p->cu_k[s->batch];
    d.query.cu_seqlens.data = p->cu_q;
    d.key.cu_seqlens.data = p->cu_k;
    d.q.data = p->q;
    d.k.data = p->k;
    d.v.data = p->v;
    d.out.data = out;
    d.lse.data = lse;
    d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = d.lse.dtype = p->dtype;
    d.causal = s->causal;
    d.window = s->window;
    d.window_left = s->window ? 50 : 0;
    d.window_right = s->window ? 20 : 0;
    d.align = ATTN_BOTTOM_RIGHT;
    d.key_mask.data = p->mask;
    return d;
}

/* A backend with an instruction set. */
struct target {
    attn_backend backend;
    const char *isa;
};

/* Computes on so many threads into out, forward and backward. */
static attn_status compute(const struct problem *p, struct target t, int32_t threads, char *out)
{
    attn_desc d = desc_of(p, out + p->out, out + p->lse);
    struct taker taker;
    attn_options o = attn_options_init();
    attn_context *c = NULL;
    o.backend = t.backend;
    o.isa = t.isa;
    o.threads = threads;
    if (p->shaped)
        set_shaped(p, out, &taker, &d);
    attn_status s = attn_context_create(&c, &o);
    if (s == ATTN_OK)
        s = attn_forward(c, &d);
    set_gradients(p, out, &d);
    if (s == ATTN_OK)
        s = attn_backward(c, &d);
    attn_context_destroy(c);
    return s;
}

/* cpu: bit by bit. eager is as repeatable as its BLAS. */
static bool alike(const struct problem *p, struct target t, const char *a, const char *b)
{
    const size_t bytes = p->bytes;
    if (t.backend == ATTN_BACKEND_CPU)
        return memcmp(a, b, bytes) == 0;
    for (size_t n = 0; n < bytes / p->size; n++) {
        const double x = p->size == 8 ? ((const double *)a)[n] : (double)((const float *)a)[n];
        const double y = p->size == 8 ? ((const double *)b)[n] : (double)((const float *)b)[n];
        if (!(fabs(x - y) < 1e-4) && !(isinf(x) && x == y))
            return false;
    }
    return true;
}

struct caller {
    const struct problem *p;
    struct target target;
    char *out;
    attn_status status;
};

static void *call(void *arg)
{
    struct caller *c = arg;
    c->status = compute(c->p, c->target, 2, c->out);
    return NULL;
}

static void test_callers(const struct problem *p, struct target t, const char *first)
{
    struct caller callers[CALLERS];
    pthread_t threads[CALLERS];
    bool started[CALLERS];
    for (int n = 0; n < CALLERS; n++) {
        const struct caller c = {p, t, test_alloc(p->bytes), ATTN_NO_MEMORY};
        callers[n] = c;
        started[n] = pthread_create(&threads[n], NULL, call, &callers[n]) == 0;
    }
    for (int n = 0; n < CALLERS; n++) {
        if (started[n])
            pthread_join(threads[n], NULL);
        EXPECT(started[n] && callers[n].status == ATTN_OK && alike(p, t, first, callers[n].out),
               "%s %s, %s: differs in one of %d callers", attn_backend_name(t.backend),
               t.isa ? t.isa : "", p->shape->name, CALLERS);
        free(callers[n].out);
    }
}

static void test_threads(const struct problem *p, struct target t, size_t rounds)
{
    static const int32_t counts[] = {2, 3, 7};
    char *first = test_alloc(p->bytes);
    char *out = test_alloc(p->bytes);
    const attn_status s = compute(p, t, 1, first);
    if (s == ATTN_OK) {
        for (size_t n = 0; n < rounds * sizeof counts / sizeof *counts; n++) {
            const int32_t threads = counts[n % (sizeof counts / sizeof *counts)];
            memset(out, 0xa5, p->bytes);
            EXPECT(compute(p, t, threads, out) == ATTN_OK && alike(p, t, first, out),
                   "%s %s, %s: differs on %d threads", attn_backend_name(t.backend),
                   t.isa ? t.isa : "", p->shape->name, (int)threads);
        }
        test_callers(p, t, first);
    } else if (s == ATTN_NO_BACKEND) {
        report_skip("backend %s: not built in", attn_backend_name(t.backend));
    } else if (p->shaped && s == ATTN_UNSUPPORTED) {
        report_skip("backend %s: does not offer all features", attn_backend_name(t.backend));
    } else if (t.isa && s == ATTN_UNSUPPORTED) {
        report_skip("instruction set %s: not on this machine", t.isa);
    } else {
        report_fail("%s, %s: %s", attn_backend_name(t.backend), p->shape->name,
                    attn_status_name(s));
    }
    free(first);
    free(out);
}

/* Bytes of workspace on so many threads: more of them take more. */
static size_t workspace(attn_pass pass, int64_t heads, int64_t nq, int64_t nk, int32_t threads)
{
    static const double some[1];
    static double none[1];
    attn_options o = attn_options_init();
    attn_context *context = NULL;
    attn_desc d = attn_desc_init();
    size_t bytes = 0;
    o.backend = ATTN_BACKEND_CPU;
    o.threads = threads;
    d.batch = 1;
    d.heads_q = heads;
    d.head_dim = 64;
    d.query.seqlen = nq;
    d.key.seqlen = nk;
    d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = d.dout.dtype = ATTN_F64;
    d.dq.dtype = d.dk.dtype = d.dv.dtype = d.lse.dtype = ATTN_F64;
    d.q.data = d.k.data = d.v.data = d.dout.data = some;
    d.out.data = d.lse.data = d.dq.data = d.dk.data = d.dv.data = none;
    attn_status s = attn_context_create(&context, &o);
    if (s == ATTN_OK)
        s = attn_workspace_size(context, &d, pass, &bytes);
    EXPECT(s == ATTN_OK, "workspace of %d threads: %s", (int)threads, attn_last_message(context));
    attn_context_destroy(context);
    return bytes;
}

/* No thread without something to do, nor for so little that one alone has done it before. */
static void test_worth(attn_pass pass)
{
#ifdef _OPENMP
    static const struct {
        int64_t heads, nq, nk;
        bool more;
    } sizes[] = {{1, 1, 1, false},   {2, 1, 1, false},    {1, 4, 100, false},
                 {64, 8, 100, true}, {2, 200, 200, true}, {1, 1000, 1000, true}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t one = workspace(pass, sizes[i].heads, sizes[i].nq, sizes[i].nk, 1);
        const size_t two = workspace(pass, sizes[i].heads, sizes[i].nq, sizes[i].nk, 2);
        EXPECT((two > one) == sizes[i].more,
               "pass %d, %d heads of %d queries, %d keys: %zu bytes for one thread, %zu for two",
               (int)pass, (int)sizes[i].heads, (int)sizes[i].nq, (int)sizes[i].nk, one, two);
    }
#else
    (void)workspace;
    report_skip("pass %d: built without OpenMP: a call has one thread", (int)pass);
#endif
}

/* Whether no instruction set after this one runs here. What threads share is the same in all. */
static bool is_best(int32_t isa)
{
    int32_t usable = 0;
    for (int32_t i = isa + 1; attn_isa_name(i, &usable); i++)
        if (usable)
            return false;
    return true;
}

/* --count N: only so many of the problems, taken from all shapes, types and forms. */
int main(int argc, char **argv)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F64};
    enum { ALL = 4 * sizeof shapes / sizeof *shapes, STEP = 7 };
    _Static_assert(ALL % STEP != 0, "steps reach every problem");
    const size_t count = (size_t)report_count(argc, argv, ALL);
    report_begin("threads");
    test_worth(ATTN_PASS_FORWARD);
    test_worth(ATTN_PASS_BACKWARD);
    for (size_t k = 0; k < count; k++) {
        const size_t n = k * STEP % ALL;
        struct problem p = prepare(&shapes[n / 4], types[n % 2], n / 2 % 2);
        for (int32_t i = 0; attn_isa_name(i, NULL); i++) {
            const struct target t = {ATTN_BACKEND_CPU, attn_isa_name(i, NULL)};
            const bool wide = strcmp(t.isa, "avx512wide") == 0; /* cuts units in its own way */
            if (is_best(i) || wide || k % OTHERS == 0)
                test_threads(&p, t, is_best(i) ? ROUNDS : 1);
        }
        const struct target eager = {ATTN_BACKEND_EAGER, NULL};
        if (k % OTHERS == 0)
            test_threads(&p, eager, 1);
        release(&p);
    }
    return report_end();
}
