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

enum { FEW_KEYS = 432, PROBLEMS = 480, TILE = 192 /* keys, at most */, MANY = 2000 };

/* Scores are `first` and a normal number; those of one key in `every`, behind the first 20 or a
 * first tile of them, are `later` and up to 2 more, so that several of a row count. */
struct rise {
    double first, later;
    int every;
    bool coarse; /* multiples of 1/1024: references far below such scores stay */
};

/* Of one head. 64 numbers are enough for probabilities beside the next products; 300 keys are more
 * than a tile, 1100 than what one thread does alone for few rows; 3900 are so many that sums of
 * them may be large enough for one more of the smaller ones to be lost in it, though all of these
 * are not small. */
struct size {
    int64_t nq, nk, d, dv;
};

struct call {
    struct strided q, k, v, out, lse, sums;
    struct whole whole;
    double sink[1];
    float sink_f32[1];
};

static double score_of(const struct rise *rise, int64_t j, int64_t from, struct rng *r)
{
    const bool later = j >= from && rng_below(r, rise->every) == 0;
    const double score = later ? rise->later + 2 * rng_uniform(r) : rise->first + rng_normal(r);
    return rise->coarse ? round(score * 1024) / 1024 : score;
}

/* The size of values: 1, or in half of the problems in f32 and f64 a denormal number, which no
 * factor may lose that sums have for a while. */
static double value_of(attn_dtype type, uint64_t seed)
{
    struct rng r = rng_seeded(seed ^ UINT64_C(0x71));
    const double least = type == ATTN_F32 ? 0x1p-130 : type == ATTN_F64 ? 0x1p-1030 : 1;
    return rng_chance(&r, 50) ? least : 1;
}

/* -inf, which is none, or in most problems whose values are 1 a sink: far above all scores,
 * so that what it leaves to the keys may be far smaller than what their references let them sum to;
 * or near them; or as far as can be. */
static double sink_of(attn_dtype type, const struct rise *rise, double value, uint64_t seed)
{
    struct rng r = rng_seeded(seed ^ UINT64_C(0x5e));
    const double most = fmax(rise->first, rise->later);
    const bool farthest = type == ATTN_F64 && rng_chance(&r, 50);
    const double above = (farthest ? 645 : 20) + 60 * rng_uniform(&r);
    const double near = 10 * rng_normal(&r), huge = rng_chance(&r, 50) ? 1e30 : -1e30;
    const int64_t kind = value >= 1 ? rng_below(&r, 10) : 10;
    const double sink = kind < 2 ? most + near : kind < 3 ? huge : most + above;
    return kind < 7 ? (double)(float)sink : -(double)INFINITY;
}

/* The rise of a problem: in some in f64 all scores lie so high that their own rounding shows. */
static struct rise risen(attn_dtype type, struct rise rise, uint64_t seed)
{
    struct rng r = rng_seeded(seed ^ UINT64_C(0x48));
    const double height = type == ATTN_F64 && rng_chance(&r, 40) ? 5000 * rng_normal(&r) : 0;
    return (struct rise){rise.first + height, rise.later + height, rise.every,
                         rng_chance(&r, 50)};
}

static struct call call_open(attn_dtype type, const struct size *size, const struct rise *rise,
                             double value, double sink, struct rng *r)
{
    const bool agree = size->nk > MANY; /* on the sign of values: sums grow with every key */
    static const double scales[] = {1, 0.125, 64};
    const double scale = RNG_PICK(r, scales);
    const int64_t from = value < 1 && size->nk > TILE ? TILE + 8 : 20;
    struct call c;
    c.q = strided_make(r, type, 1, size->nq, 1, size->d, false);
    c.k = strided_make(r, type, 1, size->nk, 1, size->d, false);
    c.v = strided_make(r, type, 1, size->nk, 1, size->dv, false);
    c.out = strided_make(r, type, 1, size->nq, 1, size->dv, false);
    c.lse = strided_make(r, element_computing(type), 1, size->nq, 1, 1, true);
    struct rng apart = *r;
    c.sums = strided_make(&apart, element_computing(type), 1, size->nk, 1, 1, true);
    c.whole = whole_make(type, size->nq, size->nk, 1, 1, size->d, size->dv);
    c.whole.s.scale = scale;
    c.whole.s.exact = true;
    c.sink[0] = sink;
    c.sink_f32[0] = (float)sink;
    c.whole.s.causal = rng_chance(r, 30);
    for (int64_t i = 0; i < size->nq; i++) {
        for (int64_t n = 0; n < size->d; n++)
            strided_set(&c.q, 0, i, 0, n, i % size->d == n);
        whole_query(&c.whole, i, &c.q, 0, i);
    }
    for (int64_t j = 0; j < size->nk; j++) {
        for (int64_t n = 0; n < size->d; n++)
            strided_set(&c.k, 0, j, 0, n, score_of(rise, j, from, r) / scale);
        for (int64_t n = 0; n < size->dv; n++)
            strided_set(&c.v, 0, j, 0, n, rng_chance(r, 50) || agree ? value : -value);
        whole_key(&c.whole, j, &c.k, &c.v, 0, j);
    }
    return c;
}

static void call_close(struct call *c)
{
    struct strided *const all[] = {&c->q, &c->k, &c->v, &c->out, &c->lse, &c->sums};
    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++)
        strided_free(all[n]);
    whole_free(&c->whole);
}

/* What a call asks for besides: a bias of 0 joins the scores; sums of probabilities. */
enum extra { NOTHING, BIAS, SUMS, EXTRAS };

static attn_status call_run(struct call *c, attn_context *context, enum extra extra)
{
    static const double zero = 0;
    const struct truth_seq *s = &c->whole.s;
    for (int64_t i = 0; i < s->nq; i++) {
        for (int64_t n = 0; n < s->dv; n++)
            strided_set(&c->out, 0, i, 0, n, NAN);
        strided_set(&c->lse, 0, i, 0, 0, NAN);
    }
    attn_desc d = attn_desc_init();
    d.batch = d.heads_q = d.heads_kv = 1;
    d.head_dim = s->d;
    d.head_dim_v = s->dv;
    d.scale = s->scale;
    d.causal = s->causal;
    d.align = ATTN_BOTTOM_RIGHT;
    d.query.seqlen = s->nq;
    d.key.seqlen = s->nk;
    d.q = strided_input(&c->q);
    d.k = strided_input(&c->k);
    d.v = strided_input(&c->v);
    d.out = strided_output(&c->out);
    d.lse = strided_output(&c->lse);
    d.sink.data = s->dtype == ATTN_F64 ? (const void *)c->sink : c->sink_f32;
    d.sink.dtype = element_computing(s->dtype);
    for (int64_t j = 0; j < s->nk; j++)
        strided_set(&c->sums, 0, j, 0, 0, NAN);
    if (extra == SUMS)
        d.key_sums = strided_output(&c->sums);
    if (extra == BIAS)
        d.bias = (attn_score_input){&zero, s->dtype, ATTN_BROADCAST, 0, 0, 0};
    return attn_forward(context, &d);
}

static bool call_is_right(struct call *c, enum extra extra)
{
    c->whole.s.sink = c->sink;
    c->whole.summed = extra == SUMS;
    for (int64_t j = 0; j < c->whole.s.nk; j++)
        c->whole.sums[j] = strided_get(&c->sums, 0, j, 0, 0);
    for (int64_t i = 0; i < c->whole.s.nq; i++)
        whole_result(&c->whole, i, &c->out, &c->lse, 0, i);
    return whole_faults(&c->whole) == 0;
}

/* All targets on the same arrays. */
static void test_rise(struct target *targets, int count, attn_dtype type, const struct size *size,
                      const struct rise *given, uint64_t seed)
{
    const struct rise rise = risen(type, *given, seed);
    struct rng r = rng_seeded(seed);
    const double value = value_of(type, seed);
    const double sink = sink_of(type, &rise, value, seed);
    struct call c = call_open(type, size, &rise, value, sink, &r);
    for (int t = 0; t < count; t++)
        for (int extra = 0; extra < EXTRAS; extra++) {
            const attn_status status = call_run(&c, targets[t].context, extra);
            if (status == ATTN_NO_BACKEND || status == ATTN_UNSUPPORTED) {
                report_skip("%s", attn_last_message(targets[t].context));
                continue;
            }
            EXPECT(status == ATTN_OK && call_is_right(&c, extra),
                   "rise --seed %lld --backend %s%s%s: %s, %lld rows, %lld keys of %lld, scores %g, "
                   "later %g, scale %g, causal %d, extra %d, values %g, sink %g: not within the "
                   "budget", (long long)seed, targets[t].name, targets[t].isa ? " --isa " : "",
                   targets[t].isa ? targets[t].isa : "", element_name(type), (long long)size->nq,
                   (long long)size->nk, (long long)size->d, rise.first, rise.later,
                   c.whole.s.scale, c.whole.s.causal, extra, value, sink);
        }
    call_close(&c);
}

/* Problem n has a type, a size and a rise of its own, neighbours unlike ones. */
static void test_problem(struct target *targets, int count, uint64_t n)
{
    enum { TYPES = 4, SIZES = 9, RISES = 12, STEP = 125 }; /* coprime to their product */
    static const attn_dtype types[TYPES] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};
    static const struct size sizes[SIZES] = {
        {1, 120, 2, 3},  {3, 60, 64, 3},   {21, 120, 2, 3},  {41, 120, 2, 3}, {25, 60, 64, 3},
        {52, 60, 64, 3}, {26, 160, 64, 9}, {33, 300, 16, 8}, {1, 1100, 64, 8},
    };
    static const struct rise rises[RISES] = {
        {.first = 0, .later = 5, .every = 15},     {.first = 0, .later = 12, .every = 15},
        {.first = 0, .later = 33, .every = 15},    {.first = 0, .later = 33, .every = 2},
        {.first = 3, .later = 36, .every = 15},    {.first = 20, .later = 58, .every = 15},
        {.first = -5, .later = 33, .every = 15},   {.first = -30, .later = 5, .every = 15},
        {.first = -60, .later = -25, .every = 15}, {.first = 0, .later = 90, .every = 15},
        {.first = 100, .later = 137, .every = 15}, {.first = 0, .later = -40, .every = 2},
    };
    static const struct size many = {36, 3900, 8, 3};
    const uint64_t at = n * STEP;
    if (n % PROBLEMS >= FEW_KEYS) {
        const uint64_t left = n % PROBLEMS - FEW_KEYS;
        test_rise(targets, count, types[left % TYPES], &many, &rises[left / TYPES % RISES], n);
        return;
    }
    test_rise(targets, count, types[at % TYPES], &sizes[at / TYPES % SIZES],
              &rises[at / TYPES / SIZES % RISES], n);
}

/* Seeds of problems with sinks so far above the scores that the rounding of their distance shows,
 * which was found where no rounding else hid it. */
static const uint64_t far_sinks[] = {553, 1557};

int main(int argc, char **argv)
{
    const struct options o = options_parse(argc, argv, "rise", PROBLEMS);
    struct target targets[MOST_TARGETS];
    report_begin("rise");
    const int count = targets_open(targets, &o);
    for (uint64_t n = o.seed; n < o.seed + (uint64_t)o.count; n++)
        test_problem(targets, count, n);
    for (size_t n = 0; !o.seed_given && n < sizeof far_sinks / sizeof far_sinks[0]; n++)
        test_problem(targets, count, far_sinks[n]);
    targets_close(targets, count);
    return report_end();
}
