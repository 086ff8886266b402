/* SPDX-License-Identifier: BSD-3-Clause */
#include "stains.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "element.h"
#include "memory.h"
#include "report.h"

enum { LINE = 1200 };

static void fail(const struct options *o, const struct problem *p, const struct target *t,
                 const char *what, const char *where)
{
    char line[LINE], text[LINE];

    problem_print(p, text, sizeof text);
    report_fail("%s: %s: %s (%s)", run_line(o, p, t, line, sizeof line), what, where, text);
}

enum input { IN_Q, IN_K, IN_V, IN_DOUT, IN_DLSE, IN_OUT, IN_LSE, INPUTS };
static const char *const input_names[] = {"q", "k", "v", "dout", "dlse", "out", "lse"};

/* Where it stands: an element of the input's array of a sequence. */
struct stain {
    enum input in;
    int64_t b, at;
};

static int64_t input_size(const struct truth_seq *s, enum input in)
{
    const int64_t rows = s->hq * s->nq, sizes[] = {rows * s->d, s->hkv * s->nk * s->d,
                                                   s->hkv * s->nk * s->dv, rows * s->dv,
                                                   s->dlse ? rows : 0, rows * s->dv, rows};
    return sizes[in];
}

static void stain(struct batch *n, const struct stain *x, enum input in, int64_t at)
{
    const struct truth_seq *s = &n->seq[x->b];
    double *const arrays[] = {s->q, s->kt, s->v, s->dout, s->dlse, s->out, s->lse};

    arrays[in][at] = NAN;
}

static bool row_sees(const struct truth_seq *s, int64_t row)
{
    for (int64_t j = 0; j < s->nk; j++)
        if (truth_visible(s, row / s->nq, row % s->nq, j))
            return true;
    return false;
}

/* The batch that is run; and, which the truth of gradients needs as it looks at no out and LSE, one
 * in which the same NaN comes in another way: that of out by dlse, that of the LSE by the query. */
static void stain_both(struct batch *run, struct batch *truth, const struct stain *x)
{
    struct truth_seq *s = &truth->seq[x->b];

    stain(run, x, x->in, x->at);
    if (x->in == IN_OUT) {
        if (!s->dlse)
            s->dlse = test_alloc((size_t)(s->hq * s->nq) * sizeof *s->dlse);
        if (row_sees(s, x->at / s->dv))
            stain(truth, x, IN_DLSE, x->at / s->dv);
    } else if (x->in == IN_LSE) {
        stain(truth, x, IN_Q, x->at * s->d);
    } else {
        stain(truth, x, x->in, x->at);
        batch_results(run);
    }
}

/* Whether NaN shows wherever the truth has it, and everything else that the truth knows has the
 * bits that it has without. */
static bool stain_holds(const struct judge *j, const struct target *t, const struct result *clean,
                        const struct result *spoilt, char *why, size_t size)
{
    char where[120];

    for (int n = COMPARE_DQ; n < COMPARES; n++)
        for (int64_t i = 0; i < clean->count[n]; i++) {
            const long double truth = j->part[n].truth[i];
            const double *a = clean->part[n] + i, *b = spoilt->part[n] + i;
            const bool same = !t->exact || compare_bits(a, b, 1) < 0;
            const bool shows = isfinite(*a) ? isnan(*b) : !isfinite(*b);
            if (truth == TRUTH_OPEN || (isnan(truth) ? shows : isinf(truth) || same))
                continue;
            judge_where(j, (enum compare_what)n, i, where, sizeof where);
            snprintf(why, size, "%s: %.9g, without it %.9g, %s", where, *b, *a,
                     isnan(truth) ? "should be NaN" : "should not change");
            return false;
        }
    return true;
}

static void check_stain(const struct options *o, const struct batch *n, const struct stain *x,
                        uint64_t seed, struct target *targets, int count)
{
    const struct arrange a = {.packed_q = seed & 1, .packed_k = seed & 1};
    struct batch run = batch_copy(n), truth = batch_copy(n);
    struct problem p, q;
    struct judge j;
    char why[LINE], what[LINE];

    stain_both(&run, &truth, x);
    judge_open(&j, &truth, 1);
    batch_problem(&p, n, &a);
    batch_problem(&q, &run, &a);
    p.seed = q.seed = seed;
    for (int t = 0; t < count; t++) {
        struct result clean, spoilt = {0};
        if (run_or_report(o, &p, &targets[t], attn_backward, &clean) &&
            run_or_report(o, &q, &targets[t], attn_backward, &spoilt)) {
            snprintf(what, sizeof what, "NaN in %s, number %lld of sequence %lld",
                     input_names[x->in], (long long)x->at, (long long)x->b);
            if (stain_holds(&j, &targets[t], &clean, &spoilt, why, sizeof why))
                report_pass();
            else
                fail(o, &q, &targets[t], what, why);
        }
        result_free(&clean);
        result_free(&spoilt);
    }
    problem_free(&p);
    problem_free(&q);
    judge_close(&j);
    batch_free(&run);
    batch_free(&truth);
}

/* Whether NaN in the LSE of a row is NaN in all of its weights: they are not 0, as those of
 * infinite scores are, and it sees some. */
static bool tells_weights(const struct problem *p, const struct truth_seq *s, int64_t row)
{
    static const char *const odd[] = {"overflow", "holes", "not-finite"};

    for (size_t n = 0; n < sizeof odd / sizeof *odd; n++)
        if (strcmp(p->values, odd[n]) == 0)
            return false;
    return isfinite(s->lse[row]) && row_sees(s, row);
}

void stain_drawn(const struct options *o, const struct problem *p, const struct batch *n,
                 struct rng *r, struct target *targets, int count)
{
    struct stain x = {.in = (enum input)rng_below(r, INPUTS)};

    x.b = rng_below(r, n->count);
    const int64_t size = input_size(&n->seq[x.b], x.in);
    x.at = size > 0 ? rng_below(r, size) : 0;
    if (size > 0 && (x.in != IN_LSE || tells_weights(p, &n->seq[x.b], x.at)))
        check_stain(o, n, &x, p->seed, targets, count);
}

/* What decides which pairs of a row and a key take part: for scores that are -inf only once they
 * are scaled see far_keys(). */
enum rule { BY_BAND, BY_MASK, BY_BIAS, BY_DROPOUT, BY_SCORE, RULES };

/* Every second key has products at the end of the range, which a large scale takes out of it; the
 * rest of the queries makes up for that scale. */
static void far_keys(struct truth_seq *s)
{
    const int power = s->dtype == ATTN_F64 ? 490 : 60;

    s->scale = 0x1p30;
    for (int64_t row = 0; row < s->hq * s->nq; row++) {
        s->q[row * s->d] = ldexp(1, power);
        for (int64_t c = 1; c < s->d; c++)
            s->q[row * s->d + c] = ldexp(s->q[row * s->d + c], -30);
    }
    for (int64_t j = 0; j < s->nk; j++) /* column 0 of the only head */
        s->kt[j] = j % 2 ? -ldexp(1, s->dtype == ATTN_F64 ? 510 : power) : 0;
}

/* More rows than a strip has, more keys than a tile. */
static struct truth_seq fixed(enum rule rule, attn_dtype type, struct rng *r)
{
    struct truth_seq s = {.dtype = type, .nq = 41, .nk = 133, .hq = 2, .hkv = 1, .d = 5, .dv = 3,
                          .scale = -0.4};
    const int64_t rows = s.hq * s.nq;

    s.q = element_numbers(type, rows * s.d, r);
    s.kt = element_numbers(type, s.d * s.nk, r);
    s.v = element_numbers(type, s.nk * s.dv, r);
    s.dout = element_numbers(type, rows * s.dv, r);
    s.dlse = element_numbers(element_computing(type), rows, r);
    s.out = test_alloc((size_t)(rows * s.dv) * sizeof *s.out);
    s.lse = test_alloc((size_t)rows * sizeof *s.lse);
    if (rule == BY_BAND) {
        s.causal = s.window = true;
        s.align = ATTN_BOTTOM_RIGHT;
        s.left = 50;
    } else if (rule == BY_MASK) {
        s.key_mask = test_alloc((size_t)s.nk);
        for (int64_t j = 0; j < s.nk; j++)
            s.key_mask[j] = rng_chance(r, 50);
    } else if (rule == BY_BIAS) {
        s.bias = truth_plane_open(true, true, true, s.hq, s.nq, s.nk);
        s.bias_type = element_computing(type);
        for (int64_t n = 0; n < s.bias.count; n++)
            s.bias.x[n] =
                rng_chance(r, 30) ? -INFINITY : element_round(s.bias_type, rng_normal(r));
    } else if (rule == BY_DROPOUT) {
        s.dropout = 0.5;
    } else {
        far_keys(&s);
    }
    return s;
}

void stain_fixed(const struct options *o, struct target *targets, int count)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F64, ATTN_BF16};
    enum { PLACES = sizeof types / sizeof *types }; /* a type has the same one in all rules */

    for (int rule = 0; rule < RULES; rule++)
        for (int place = 0; place < PLACES; place++) {
            struct rng r = rng_seeded((uint64_t)(rule * PLACES + place));
            struct batch n = {.count = 1, .backward = true};
            n.wanted[COMPARE_DQ] = n.wanted[COMPARE_DK] = n.wanted[COMPARE_DV] = true;
            n.seq[0] = fixed((enum rule)rule, types[place], &r);
            batch_results(&n);
            for (int in = 0; in < INPUTS; in++) {
                struct stain x = {.in = (enum input)in};
                x.at = input_size(&n.seq[0], x.in) * (2 * place + 1) / (2 * PLACES);
                if (x.in != IN_LSE || rule != BY_SCORE) /* what such an LSE says is left open */
                    check_stain(o, &n, &x, (uint64_t)place, targets, count);
            }
            batch_free(&n);
        }
}
