/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Scores that are all far from 0, or differ by far more than any exponent: whole numbers, so that
 * they are exact in every computing type, and the result follows from those near the largest. The
 * same reached by queries, keys, scales and softcaps that are near the ends of the range or beyond
 * it. And values whose sums are beyond the range of their type, or that are seen under no weight;
 * windows far from the first keys.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "expect.h"
#include "memory.h"
#include "run.h"

enum { NK = 1100, BLOCK = 192, CHUNK = 512 };

/* Queries, and numbers to a head: 64 are enough for probabilities beside the next products. */
struct size {
    int64_t nq, d;
};

/* Number of key j for every query: `far` from 0, nearer by `step` from each run of keys to the
 * next; the first `hidden` keys are masked. */
struct scores {
    double far, step;
    int64_t run, hidden;
};

/* What numbers become scores by: queries are q, keys k times the number; softcap 0 is none. */
struct reach {
    double q, k, scale, softcap;
};

static const struct reach PLAIN = {1, 1, 1, 0};

static double number_of(const struct scores *s, int64_t j)
{
    return s->far + s->step * (double)(j / s->run) + (double)(j % 3);
}

static long double limited(long double x, attn_dtype type)
{
    const long double range = type == ATTN_F64 ? DBL_MAX : FLT_MAX;
    return x > range ? INFINITY : x < -range ? -INFINITY : x;
}

static double score_of(const struct scores *s, const struct reach *by, attn_dtype type, int64_t j)
{
    const long double product = limited((long double)by->q * by->k * number_of(s, j), type);
    long double x = limited(product * by->scale, type);
    if (by->softcap > 0)
        x = limited(by->softcap * tanhl(x / by->softcap), type);
    return (double)x;
}

static double value_of(int64_t j) { return (double)(j % 7 - 3); }

static void put(void *data, attn_dtype type, int64_t at, double x)
{
    if (type == ATTN_F64)
        ((double *)data)[at] = x;
    else
        ((float *)data)[at] = (float)x;
}

static double get(const void *data, attn_dtype type, int64_t at)
{
    return type == ATTN_F64 ? ((const double *)data)[at] : (double)((const float *)data)[at];
}

static void truth(const struct scores *s, const struct reach *by, attn_dtype type, double *out,
                  double *lse)
{
    double most = -INFINITY, sum = 0;
    for (int64_t j = s->hidden; j < NK; j++)
        most = fmax(most, score_of(s, by, type, j));
    *out = most > 0 ? NAN : 0;
    *lse = most > 0 ? NAN : -INFINITY;
    if (isinf(most))
        return;
    *out = 0;
    for (int64_t j = s->hidden; j < NK; j++) {
        const double p = exp(score_of(s, by, type, j) - most);
        sum += p;
        *out += p * value_of(j);
    }
    *out /= sum;
    *lse = most + log(sum);
}

/* One head of nq queries; q and k: [.][d], the score in the second number. */
struct call {
    attn_dtype type;
    int64_t nq, d;
    double *q, *k, *v, *out, *lse;
    uint8_t *mask;
};

static struct call call_open(const struct scores *s, const struct reach *by, attn_dtype type,
                             struct size size)
{
    const int64_t nq = size.nq, d = size.d;
    struct call c = {.type = type, .nq = nq, .d = d};
    c.q = test_alloc((size_t)(nq * d) * sizeof *c.q);
    c.k = test_alloc((size_t)(NK * d) * sizeof *c.k);
    c.v = test_alloc(NK * sizeof *c.v);
    c.out = test_alloc((size_t)nq * sizeof *c.out);
    c.lse = test_alloc((size_t)nq * sizeof *c.lse);
    c.mask = test_alloc(NK);
    for (int64_t i = 0; i < nq * d; i++)
        put(c.q, type, i, by->q * (double)(i % d == 1));
    for (int64_t i = 0; i < NK * d; i++)
        put(c.k, type, i, 0);
    for (int64_t j = 0; j < NK; j++) {
        put(c.k, type, j * d, 1);
        put(c.k, type, j * d + 1, by->k * number_of(s, j));
        put(c.v, type, j, value_of(j));
        c.mask[j] = j >= s->hidden;
    }
    return c;
}

static void call_close(struct call *c)
{
    free(c->q);
    free(c->k);
    free(c->v);
    free(c->out);
    free(c->lse);
    free(c->mask);
}

static attn_desc call_desc(const struct call *c)
{
    attn_desc d = attn_desc_init();
    d.batch = d.heads_q = d.heads_kv = 1;
    d.head_dim = c->d;
    d.head_dim_v = 1;
    d.scale = 1;
    d.query.seqlen = c->nq;
    d.key.seqlen = NK;
    d.q.data = c->q;
    d.k.data = c->k;
    d.v.data = c->v;
    d.out.data = c->out;
    d.lse.data = c->lse;
    d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = d.lse.dtype = c->type;
    d.key_mask.data = c->mask;
    return d;
}

static bool call_run(const attn_desc *d, attn_context *context)
{
    const attn_status status = attn_forward(context, d);
    if (status == ATTN_NO_BACKEND) {
        report_skip("%s", attn_last_message(context));
        return false;
    }
    EXPECT(status == ATTN_OK, "far scores: %s", attn_last_message(context));
    return status == ATTN_OK;
}

static bool close_to(double got, double want, double near)
{
    return isnan(want) ? isnan(got) : got == want || fabs(got - want) <= near;
}

/* shaped: a bias of 0 joins the scores. */
static void test_scores(attn_context *context, const struct scores *s, const struct reach *by,
                        attn_dtype type, struct size size, bool shaped)
{
    const int64_t nq = size.nq;
    static const double zero = 0;
    struct call c = call_open(s, by, type, size);
    attn_desc d = call_desc(&c);
    d.scale = by->scale;
    d.softcap = by->softcap;
    if (shaped)
        d.bias = (attn_score_input){&zero, type, ATTN_BROADCAST, 0, 0, 0};
    const bool good = call_run(&d, context);
    const double near = type == ATTN_F64 ? 1e-12 : 1e-5;
    double out, lse;
    truth(s, by, type, &out, &lse);
    for (int64_t i = 0; good && i < nq; i++)
        EXPECT(close_to(get(c.out, type, i), out, near) &&
                   close_to(get(c.lse, type, i), lse, near * (1 + fabs(lse))),
               "%s, numbers from %g on, %g apart, by %g * %g, scale %g, softcap %g, row %lld of "
               "%lld, head_dim %lld: %g and %g, not %g and %g", type == ATTN_F64 ? "f64" : "f32",
               s->far, s->step, by->q, by->k, by->scale, by->softcap, (long long)i, (long long)nq,
               (long long)size.d, get(c.out, type, i), get(c.lse, type, i), out, lse);
    call_close(&c);
}

/* Values whose sum overflows where their mean does not: as 2^power times what smaller ones give. */
static void test_values(attn_context *context, attn_dtype type, struct size size, double sink,
                        double dropout)
{
    const int64_t nq = size.nq;
    static const struct scores none = {0, 0, NK, 0};
    const int power = type == ATTN_F64 ? 1016 : 120;
    const double near = type == ATTN_F64 ? 1e-12 : 1e-5;
    struct call small = call_open(&none, &PLAIN, type, size);
    struct call large = call_open(&none, &PLAIN, type, size);
    struct call *const calls[] = {&small, &large};
    double number;
    bool good = true;
    put(&number, type, 0, sink);
    for (int n = 0; n < 2; n++) {
        for (int64_t j = 0; j < NK; j++)
            put(calls[n]->v, type, j, ldexp((double)(1 + j % 7), n * power));
        attn_desc d = call_desc(calls[n]);
        d.sink.data = &number;
        d.sink.dtype = type;
        d.dropout = dropout;
        good = call_run(&d, context) && good;
    }
    for (int64_t i = 0; good && i < nq; i++) {
        const double want = get(small.out, type, i), got = get(large.out, type, i);
        EXPECT(fabs(ldexp(got, -power) - want) <= near * fabs(want),
               "large values, sink %g, dropout %g, row %lld of %lld: %g, not %g 2^%d", sink,
               dropout, (long long)i, (long long)nq, got, want, power);
    }
    call_close(&large);
    call_close(&small);
}

/* A NaN under a score of -inf is seen, also where all scores of its chunk are. */
static void test_lost(attn_context *context, attn_dtype type, struct size size)
{
    const int64_t nq = size.nq;
    static const struct scores none = {0, 0, NK, 0};
    const double large = ldexp(1, type == ATTN_F64 ? 800 : 100), lse = log(NK - CHUNK);
    struct call c = call_open(&none, &PLAIN, type, size);
    for (int64_t i = 0; i < nq; i++)
        put(c.q, type, i * c.d + 1, large);
    for (int64_t j = 0; j < NK; j++)
        put(c.k, type, j * c.d + 1, j < CHUNK ? -large : 0);
    put(c.v, type, 3, NAN);
    const attn_desc d = call_desc(&c);
    const bool good = call_run(&d, context);
    for (int64_t i = 0; good && i < nq; i++)
        EXPECT(isnan(get(c.out, type, i)) && fabs(get(c.lse, type, i) - lse) <= 1e-5 * lse,
               "NaN under scores of -inf, row %lld of %lld: %g and %g, not NaN and %g",
               (long long)i, (long long)nq, get(c.out, type, i), get(c.lse, type, i), lse);
    call_close(&c);
}

/* The first `lost` keys have scores of -inf, the others weights of 0 beside a score of 0. */
static void test_late(attn_context *context, attn_dtype type, struct size size, int64_t lost)
{
    static const struct scores none = {0, 0, NK, 0};
    const double large = ldexp(1, type == ATTN_F64 ? 800 : 100), score = -2000;
    const double lse = score + log((double)(NK - lost));
    struct call c = call_open(&none, &PLAIN, type, size);
    for (int64_t i = 0; i < size.nq; i++)
        put(c.q, type, i * c.d + 1, large);
    for (int64_t j = 0; j < NK; j++) {
        put(c.k, type, j * c.d + 1, j < lost ? -large : score / large);
        put(c.v, type, j, 1);
    }
    const attn_desc d = call_desc(&c);
    const bool good = call_run(&d, context);
    for (int64_t i = 0; good && i < size.nq; i++)
        EXPECT(fabs(get(c.out, type, i) - 1) <= 1e-5 &&
                   fabs(get(c.lse, type, i) - lse) <= 1e-5 * fabs(lse),
               "%lld scores of -inf, row %lld of %lld, head_dim %lld: %g and %g, not 1 and %g",
               (long long)lost, (long long)i, (long long)size.nq, (long long)size.d,
               get(c.out, type, i), get(c.lse, type, i), lse);
    call_close(&c);
}

/* A score that is infinite by its scale stays so, though what is added to it would make it finite:
 * the first one, or all of them where it is -inf. What is added comes as a bias, or by ALiBi. */
static void test_added(attn_context *context, attn_dtype type, struct size size, double sign,
                       bool sloped)
{
    static const struct scores none = {0, 0, NK, 0};
    const int half = type == ATTN_F64 ? 512 : 64;
    const double part = ldexp(-sign / 4, 2 * half); /* a quarter of the range */
    struct call c = call_open(&none, &PLAIN, type, size);
    attn_desc d = call_desc(&c);
    double number;
    put(&number, type, 0, sloped ? -part / NK : part);
    for (int64_t i = 0; i < size.nq; i++)
        put(c.q, type, i * c.d + 1, ldexp(1, half));
    for (int64_t j = 0; j < (sign > 0 ? 1 : NK); j++)
        put(c.k, type, j * c.d + 1, ldexp(sign * 0.9, half));
    d.scale = 1.2;
    if (sloped)
        d.alibi = (attn_input){&number, type, 0, 0, 0};
    else
        d.bias = (attn_score_input){&number, type, ATTN_BROADCAST, 0, 0, 0};
    const bool good = call_run(&d, context);
    for (int64_t i = 0; good && i < size.nq; i++)
        EXPECT(sign > 0 ? isnan(get(c.out, type, i)) && isnan(get(c.lse, type, i))
                        : get(c.out, type, i) == 0 && get(c.lse, type, i) == -INFINITY,
               "scores of %g brought back by %s, row %lld of %lld, head_dim %lld: %g and %g",
               sign * INFINITY, sloped ? "ALiBi" : "a bias", (long long)i, (long long)size.nq,
               (long long)size.d, get(c.out, type, i), get(c.lse, type, i));
    call_close(&c);
}

/* Keys that a bias hides stay hidden, whatever the slope is. */
static void test_slopes(attn_context *context, attn_dtype type, struct size size)
{
    static const struct scores none = {0, 0, NK, 0};
    static const double slopes[] = {1, INFINITY, -INFINITY, NAN};
    struct call c = call_open(&none, &PLAIN, type, size);
    attn_desc d = call_desc(&c);
    double slope, hidden;
    put(&hidden, type, 0, -INFINITY);
    d.bias = (attn_score_input){&hidden, type, ATTN_BROADCAST, 0, 0, 0};
    d.alibi = (attn_input){&slope, type, 0, 0, 0};
    for (size_t n = 0; n < sizeof slopes / sizeof *slopes; n++) {
        put(&slope, type, 0, slopes[n]);
        const bool good = call_run(&d, context);
        for (int64_t i = 0; good && i < size.nq; i++)
            EXPECT(get(c.out, type, i) == 0 && get(c.lse, type, i) == -INFINITY,
                   "keys hidden beside a slope of %g, row %lld of %lld, head_dim %lld: %g and %g",
                   slopes[n], (long long)i, (long long)size.nq, (long long)size.d,
                   get(c.out, type, i), get(c.lse, type, i));
    }
    call_close(&c);
}

/* Equal scores in a window that begins in a chunk or ends in one: the mean of the values in it. */
static void test_window(attn_context *context, attn_dtype type, struct size size, int64_t left,
                        int64_t right, attn_align align)
{
    const int64_t nq = size.nq;
    static const struct scores none = {0, 0, NK, 0};
    struct call c = call_open(&none, &PLAIN, type, size);
    attn_desc d = call_desc(&c);
    d.window = 1;
    d.window_left = left;
    d.window_right = right;
    d.align = align;
    for (int64_t i = 0; i < nq * c.d; i++)
        put(c.q, type, i, 0);
    const bool good = call_run(&d, context);
    for (int64_t i = 0; good && i < nq; i++) {
        const int64_t at = i + (align == ATTN_BOTTOM_RIGHT ? NK - nq : 0);
        double sum = 0;
        int64_t n = 0;
        for (int64_t j = 0; j < NK; j++)
            if (at - left <= j && j <= at + right) {
                sum += value_of(j);
                n++;
            }
        EXPECT(fabs(get(c.out, type, i) - sum / (double)n) <= 1e-5 &&
                   fabs(get(c.lse, type, i) - log((double)n)) <= 1e-5,
               "window of %lld and %lld, row %lld of %lld: %g and %g, not %g and %g",
               (long long)left, (long long)right, (long long)i, (long long)nq,
               get(c.out, type, i), get(c.lse, type, i), sum / (double)n, log((double)n));
    }
    call_close(&c);
}

/* Scales and softcaps that are beyond the range by themselves, or whose products with what they
 * multiply are, in one order or another. */
static void test_reached(attn_context *context, attn_dtype type, struct size size)
{
    static const struct scores cases[] = {
        {0, 0, CHUNK, 0}, {-2, 0, CHUNK, CHUNK}, {-5, 0, BLOCK, 0}, {-3, 2, CHUNK, 0},
    };
    static const struct reach single[] = {
        {1e18, 1e18, 1e-36, 0},   {-1e18, 1e18, -1e-36, 0}, {1e18, 1e18, 1e-36, 30},
        {0x1p-60, 0x1p-60, 0x1p120, 0},  {0x1p-70, 0x1p-70, 0x1p140, 0},
        {0x1p-70, 0x1p-70, 0x1p140, 2},  {1, 0x1p124, 0x1p-124, 0},  {1, 1, 1e39, 0},
        {1, 1, -1e39, 0},         {1, 1, 1e300, 0},         {1, 1, 1e-39, 0},
        {1, 1, 1e-60, 0},         {1, 1, 1e-300, 0},        {1, 1, 1, 1e39},
        {1, 1, 1, 1e300},         {1, 1, 1, 1e-39},         {1, 1, 1, 1e-60},
        {1, 1, 1e39, 5},          {1, 1, 1e39, 1e39},       {1e18, 1e18, 1e-36, 1e39},
        {1, 1, 1e300, 1e-300},    {1, 1, 1, 1e-300},        {1e18, 1e18, 1e10, 0},
        {-1e18, 1e18, 1e10, 0},   {-1e18, 1e18, -1e10, 0},
        {1e20, 1e20, 1e-300, 0},  {0x1p60, 0x1p40, 0x1p-99, 0x1p70},
        {0x1p-60, 0x1p-60, 0x1p90, 0x1p-90},
    };
    static const struct reach twofold[] = {
        {1e20, 1e20, 1e-40, 0},   {-1e20, 1e20, -1e-40, 30}, {1e150, 1e150, 1e-300, 0},
        {1, 0x1p1020, 0x1p-1020, 0},  {0x1p-500, 0x1p-500, 0x1p1000, 0},
        {0x1p-530, 0x1p-530, 0x1p530, 0},  {1, 0x1p-1000, 0x1p1000, 3},  {1, 1e10, 1e300, 0},
        {1, 1, 1e308, 0},         {1, 1, -1e308, 0},         {1, 1e10, 1e300, 5},
        {1, 1, 1e-310, 0},        {1, 1, 1, 1e308},          {1, 1, 1, 1e-310},
        {1, 1e10, 1e300, 1e308},  {1, 1e10, 1e300, 1e-310},  {1e150, 1e150, 1e10, 0},
        {-1e150, 1e150, 1e10, 0},
    };
    const struct reach *by = type == ATTN_F64 ? twofold : single;
    const size_t count = type == ATTN_F64 ? sizeof twofold / sizeof *by : sizeof single / sizeof *by;
    for (size_t n = 0; n < count; n++)
        for (size_t m = 0; m < sizeof cases / sizeof cases[0]; m++)
            for (int shaped = 0; shaped < 2; shaped++)
                test_scores(context, &cases[m], &by[n], type, size, shaped);
}

/* Keys so many that their places are no numbers of the type. Only the last block is seen: LSE and
 * out are those of a call with no other keys, of the same distances. One key and value are all. */
static void test_places(attn_context *context)
{
    enum { ROWS = 49, BLOCKS = (1 << 15) + 2, SEEN = 512 }; /* rows: one past blocks of 8, 16, 24 */
    uint8_t *const blocks = test_alloc(BLOCKS);
    struct call c[2];
    bool good = true;

    memset(blocks, 0, BLOCKS);
    blocks[BLOCKS - 1] = 1;
    for (int n = 0; n < 2; n++) {
        const float slope = 1;
        c[n] = call_open(&(struct scores){0, 0, NK, 0}, &PLAIN, ATTN_F32, (struct size){ROWS, 2});
        attn_desc d = call_desc(&c[n]);
        d.key_mask.data = NULL;
        d.k.token_stride = d.v.token_stride = ATTN_BROADCAST;
        d.k.head_stride = d.v.head_stride = c[n].d;
        d.alibi.data = &slope;
        d.alibi.dtype = ATTN_F32;
        d.key.seqlen = n == 0 ? SEEN : (int64_t)BLOCKS * SEEN;
        if (n == 1) {
            d.block_mask.data = blocks;
            d.block_mask.dtype = ATTN_BOOL;
            d.block_mask.key_stride = 1;
            d.block_q = ROWS;
            d.block_k = SEEN;
        }
        good = good && call_run(&d, context);
    }
    for (int64_t i = 0; good && i < ROWS; i++) {
        const double near = get(c[0].lse, ATTN_F32, i), far = get(c[1].lse, ATTN_F32, i);
        EXPECT(fabs(near - far) <= 1e-5 * fmax(1, fabs(near)),
               "ALiBi behind 2^24 keys, row %lld: LSE %g, not %g", (long long)i, far, near);
    }
    call_close(&c[0]);
    call_close(&c[1]);
    free(blocks);
}

/* A key's score is 2^54 - 1, which double has not, but the key and the scale that it is of: it is 1
 * above the sink. */
static void test_sink(attn_context *context, struct size size)
{
    static const struct scores one = {-1, 1, NK - 1, NK - 1};
    static const struct reach by = {1, 0x1p27 + 1, 0x1p27 - 1, 0};
    const double sink = 0x1p54 - 2, want = value_of(NK - 1) / (1 + exp(-1));
    struct call c = call_open(&one, &by, ATTN_F64, size);
    attn_desc d = call_desc(&c);
    d.scale = by.scale;
    d.sink.data = &sink;
    d.sink.dtype = ATTN_F64;
    const bool good = call_run(&d, context);
    for (int64_t i = 0; good && i < size.nq; i++)
        EXPECT(fabs(get(c.out, ATTN_F64, i) - want) <= 1e-12 * fabs(want),
               "score of 2^54 - 1 beside a sink, row %lld of %lld: %g, not %g", (long long)i,
               (long long)size.nq, get(c.out, ATTN_F64, i), want);
    call_close(&c);
}

/* What the first row sees of keys that are hidden from the second changes no bit of that one, whose
 * sum has just lost digits to weights 2^25 times as large. */
static void test_unseen(attn_context *context, attn_dtype type)
{
    enum { RUN = 16, KEYS = 3 * RUN, WIDTH = 16, STEPS = 64 }; /* wide enough to share a step */
    uint8_t mask[2][KEYS];

    for (int n = 0; n < STEPS; n++) {
        struct call c[2];
        bool good = true;
        for (int hides = 0; hides < 2; hides++) {
            c[hides] = call_open(&(struct scores){0, 0, NK, 0}, &PLAIN, type,
                                 (struct size){2, WIDTH});
            attn_desc d = call_desc(&c[hides]);
            for (int64_t i = 0; i < 2 * WIDTH; i++)
                put(c[hides].q, type, i, i % WIDTH == 0);
            for (int64_t j = 0; j < KEYS; j++) {
                put(c[hides].k, type, j * WIDTH, j / 2 == RUN - 1 ? 17 + n / 16.0 : 0);
                for (int64_t i = 1; i < WIDTH; i++)
                    put(c[hides].k, type, j * WIDTH + i, 0);
                mask[0][j] = !(hides && j / RUN == 2);
                mask[1][j] = j / RUN != 2;
            }
            d.head_dim = WIDTH;
            d.query.seqlen = 2;
            d.key.seqlen = KEYS;
            d.key_mask.data = NULL;
            d.mask = (attn_score_input){mask, ATTN_BOOL, 0, 0, KEYS, 1};
            good = good && call_run(&d, context);
        }
        EXPECT(!good || (get(c[0].out, type, 1) == get(c[1].out, type, 1) &&
                         get(c[0].lse, type, 1) == get(c[1].lse, type, 1)),
               "keys hidden from the second row, step %d: %.17g and %.17g", n,
               get(c[0].out, type, 1), get(c[1].out, type, 1));
        call_close(&c[0]);
        call_close(&c[1]);
    }
}

static void test_backend(attn_context *context, attn_dtype type, struct size size)
{
    static const struct scores cases[] = {
        {0, 0, CHUNK, 0},           {0, 0, CHUNK, CHUNK},        {-60000, 0, BLOCK, 0},
        {-60000, 0, BLOCK, CHUNK},  {60000, 0, BLOCK, 0},        {-900000, 30000, BLOCK, 0},
        {-900000, 90000, CHUNK, 0}, {900000, -90000, CHUNK, 0},  {-60000, 40000, CHUNK, 0},
        {60000, -60000, CHUNK, 0},  {-100000, 100000, CHUNK, 0}, {-60000, -30000, BLOCK, CHUNK},
    };
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++)
        test_scores(context, &cases[n], &PLAIN, type, size, false);
    test_reached(context, type, size);
    test_values(context, type, size, -INFINITY, 0);
    test_values(context, type, size, 7, 0);
    test_values(context, type, size, -INFINITY, 0.5);
    test_values(context, type, size, 7, 0.5);
    test_lost(context, type, size);
    for (int n = 0; n < 4; n++)
        test_added(context, type, size, n % 2 ? -1 : 1, n / 2);
    test_slopes(context, type, size);
    for (int64_t lost = 4; lost < 3 * BLOCK; lost += 20)
        test_late(context, type, size, lost);
    test_late(context, type, size, NK - 20); /* a group that is lost, too, shows in the LSE */
    test_window(context, type, size, 700, 0, ATTN_BOTTOM_RIGHT);
    test_window(context, type, size, 100, 0, ATTN_BOTTOM_RIGHT);
    test_window(context, type, size, 0, 700, ATTN_TOP_LEFT);
}

int main(int argc, char **argv)
{
    static const struct size sizes[] = {{1, 2}, {21, 2}, {41, 2}, {25, 64}, {52, 64}};
    const int64_t most = sizeof sizes / sizeof *sizes;
    const struct options o = options_parse(argc, argv, "far", most); /* of these */
    struct target targets[MOST_TARGETS];
    report_begin("far");
    const int count = targets_open(targets, &o);
    for (int t = 0; t < count; t++)
        for (int64_t n = 0; n < o.count && n < most; n++) {
            test_backend(targets[t].context, ATTN_F32, sizes[n]);
            test_backend(targets[t].context, ATTN_F64, sizes[n]);
        }
    for (int t = 0; t < count; t++) {
        if (targets[t].exact) {
            test_unseen(targets[t].context, ATTN_F32);
            test_unseen(targets[t].context, ATTN_F64);
        }
        if (targets[t].backend != ATTN_BACKEND_CPU)
            continue;
        test_places(targets[t].context); /* others have work or memory for each key */
        for (int64_t n = 0; n < o.count && n < most; n++) /* others may round a score */
            test_sink(targets[t].context, sizes[n]);
    }
    targets_close(targets, count);
    return report_end();
}
