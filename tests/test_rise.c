/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Rows whose first keys have ordinary scores, and some later ones scores far above or below. Scores
 * are exact in every type: a query is 1 in one number and 0 elsewhere, and a key has the score
 * there, over a scale that is a power of two. So plain loops lose nothing but the roundings of the
 * softmax, and a kernel that takes scores relative to anything but their maximum has to lose no
 * more.
 */
#include "attn/attn.h"
#include "element.h"
#include "expect.h"
#include "run.h"
#include "strided.h"
#include "whole.h"

enum { NK = 120, HEADS = 1, DV = 3, SEEDS = 2 };

/* Scores are `first` and a normal number; those of one key in `every`, behind the first 20, are
 * `later` and up to 2 more, so that several of a row count. */
struct rise {
    double first, later;
    int every;
};

/* Queries, and numbers to a head: 64 are enough for probabilities beside the next products. */
struct size {
    int64_t nq, d;
};

struct call {
    struct strided q, k, v, out, lse;
    bool causal;
    double scale;
    struct whole whole;
};

static double score_of(const struct rise *rise, int64_t j, struct rng *r)
{
    const bool later = j >= 20 && rng_below(r, rise->every) == 0;
    return later ? rise->later + 2 * rng_uniform(r) : rise->first + rng_normal(r);
}

static struct call call_open(attn_dtype type, struct size size, const struct rise *rise,
                             double scale, struct rng *r)
{
    struct call c = {
        .q = strided_make(r, type, 1, size.nq, HEADS, size.d, false),
        .k = strided_make(r, type, 1, NK, HEADS, size.d, false),
        .v = strided_make(r, type, 1, NK, HEADS, DV, false),
        .out = strided_make(r, type, 1, size.nq, HEADS, DV, false),
        .lse = strided_make(r, element_computing(type), 1, size.nq, HEADS, 1, true),
        .causal = rng_chance(r, 30),
        .scale = scale,
    };
    for (int64_t h = 0; h < HEADS; h++) {
        for (int64_t i = 0; i < size.nq; i++)
            for (int64_t n = 0; n < size.d; n++)
                strided_set(&c.q, 0, i, h, n, i % size.d == n);
        for (int64_t j = 0; j < NK; j++) {
            for (int64_t n = 0; n < size.d; n++)
                strided_set(&c.k, 0, j, h, n, score_of(rise, j, r) / scale);
            for (int64_t n = 0; n < DV; n++)
                strided_set(&c.v, 0, j, h, n, rng_chance(r, 50) ? 1 : -1);
        }
    }
    c.whole = whole_make(type, size.nq, NK, HEADS, HEADS, size.d, DV);
    c.whole.s.causal = c.causal;
    c.whole.s.scale = scale;
    c.whole.s.exact = true;
    for (int64_t i = 0; i < size.nq; i++)
        whole_query(&c.whole, i, &c.q, 0, i);
    for (int64_t j = 0; j < NK; j++)
        whole_key(&c.whole, j, &c.k, &c.v, 0, j);
    return c;
}

static void call_close(struct call *c)
{
    struct strided *const all[] = {&c->q, &c->k, &c->v, &c->out, &c->lse};
    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++)
        strided_free(all[n]);
    whole_free(&c->whole);
}

static attn_status call_run(struct call *c, attn_context *context, bool shaped)
{
    for (int64_t i = 0; i < c->whole.s.nq; i++)
        for (int64_t h = 0; h < HEADS; h++) {
            for (int64_t n = 0; n < DV; n++)
                strided_set(&c->out, 0, i, h, n, NAN);
            strided_set(&c->lse, 0, i, h, 0, NAN);
        }
    static const double zero = 0;
    attn_desc d = attn_desc_init();
    d.batch = 1;
    d.heads_q = d.heads_kv = HEADS;
    d.head_dim = c->q.run;
    d.head_dim_v = DV;
    d.scale = c->scale;
    d.causal = c->causal;
    d.align = ATTN_BOTTOM_RIGHT;
    d.query.seqlen = c->q.extent[1];
    d.key.seqlen = NK;
    d.q = strided_input(&c->q);
    d.k = strided_input(&c->k);
    d.v = strided_input(&c->v);
    d.out = strided_output(&c->out);
    d.lse = strided_output(&c->lse);
    if (shaped)
        d.bias = (attn_score_input){&zero, c->q.dtype, ATTN_BROADCAST, 0, 0, 0};
    return attn_forward(context, &d);
}

static int64_t call_faults(struct call *c)
{
    for (int64_t i = 0; i < c->whole.s.nq; i++)
        whole_result(&c->whole, i, &c->out, &c->lse, 0, i);
    return whole_faults(&c->whole);
}

/* All targets on the same arrays; shaped: a bias of 0 joins the scores. */
static void test_rise(struct target *targets, int count, attn_dtype type, struct size size,
                      const struct rise *rise, uint64_t seed)
{
    static const double scales[] = {1, 0.125, 64};
    struct rng r = rng_seeded(seed);
    const double scale = RNG_PICK(&r, scales);
    struct call c = call_open(type, size, rise, scale, &r);
    for (int t = 0; t < count; t++)
        for (int shaped = 0; shaped < 2; shaped++) {
            const attn_status status = call_run(&c, targets[t].context, shaped);
            if (status == ATTN_NO_BACKEND || status == ATTN_UNSUPPORTED) {
                report_skip("%s", attn_last_message(targets[t].context));
                continue;
            }
            const int64_t faults = call_faults(&c);
            EXPECT(status == ATTN_OK && faults == 0,
                   "%s %s, %s, seed %lld, %lld rows of %lld, scores %g, later %g, scale %g, causal "
                   "%d, bias %d: %lld heads are not within the budget", targets[t].name,
                   targets[t].isa ? targets[t].isa : "", element_name(type), (long long)seed,
                   (long long)size.nq, (long long)size.d, rise->first, rise->later, scale, c.causal,
                   shaped, (long long)faults);
        }
    call_close(&c);
}

int main(int argc, char **argv)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};
    static const struct size sizes[] = {{1, 2}, {3, 64}, {21, 2}, {41, 2}, {25, 64}, {52, 64}};
    static const struct rise rises[] = {
        {0, 5, 30},   {0, 12, 30},  {0, 33, 30},  {0, 33, 2},   {3, 36, 30},  {20, 58, 30},
        {-5, 33, 30}, {-30, 5, 30}, {-60, -25, 30}, {0, 90, 30}, {100, 137, 30}, {0, -40, 2},
    };
    const struct options o = options_parse(argc, argv, "rise", SEEDS);
    struct target targets[MOST_TARGETS];
    report_begin("rise");
    const int count = targets_open(targets, &o);
    for (uint64_t seed = o.seed; seed < o.seed + (uint64_t)o.count; seed++)
        for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
            for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++)
                for (size_t m = 0; m < sizeof rises / sizeof rises[0]; m++)
                    test_rise(targets, count, types[t], sizes[n], &rises[m], seed);
    targets_close(targets, count);
    return report_end();
}
