/* SPDX-License-Identifier: BSD-3-Clause */
/* What may not be seen changes no bit of a result, forward or backward; what is seen shows only
 * where it is seen. */
#include <math.h>
#include <stdio.h>

#include "gen.h"
#include "memory.h"
#include "report.h"
#include "run.h"
#include "sequences.h"
#include "stains.h"

enum { LINE = 1200, FILLS = 4 };

static const enum unseen fills[FILLS] = {UNSEEN_FINITE, UNSEEN_FINITE, UNSEEN_NAN, UNSEEN_INF};
static const char *const fill_names[FILLS] = {"numbers", "other numbers", "NaN", "infinities"};

static void fail(const struct options *o, const struct problem *p, const struct target *t,
                 const char *what, const char *where)
{
    char line[LINE], text[LINE];

    problem_print(p, text, sizeof text);
    report_fail("%s: %s: %s (%s)", run_line(o, p, t, line, sizeof line), what, where, text);
}

/* Whether two results agree: bit for bit, or the second one with the truth. */
static bool agree(struct judge *j, const struct target *t, const struct result *a,
                  const struct result *b, char *why, size_t size)
{
    if (!t->exact)
        return judge_result(j, b, NULL, why, size);
    return judge_same(j, a, b, why, size) == COMPARES;
}

static void check_unseen(const struct options *o, struct problem *p, struct judge *j,
                         struct target *t)
{
    struct result first = {0}, r;
    char why[LINE], what[LINE];

    for (int n = 0; n < FILLS; n++) {
        struct rng rng = rng_seeded(p->seed * FILLS + (uint64_t)n);
        gen_unseen(p, fills[n], &rng);
        if (!run_or_report(o, p, t, run_pass(p), &r))
            break;
        if (agree(j, t, n ? &first : &r, &r, why, sizeof why)) {
            report_pass();
        } else {
            snprintf(what, sizeof what, "differs with %s at unseen places", fill_names[n]);
            fail(o, p, t, what, why);
        }
        if (n == 0)
            first = r;
        else
            result_free(&r);
    }
    result_free(&first);
}

/* One NaN in key or value `j`, element c, of key head g of sequence b. */
struct spot {
    bool in_v;
    int64_t b, j, g, c;
};

/* One row of a result. */
struct row {
    const double *out;
    double lse;
};

static struct row row_of(const struct result *r, int64_t row, int64_t dv)
{
    return (struct row){r->part[COMPARE_OUT] + row * dv, r->part[COMPARE_LSE][row]};
}

/* What is wrong with a row under the NaN, against the same row without it; null: nothing. Rows that
 * all scores or an infinite sink leave without weights are left out, and so is `out` where dropout
 * leaves nothing of it. */
static const char *row_fault(const struct spot *x, const struct truth_seq *s, bool sees,
                             struct row clean, struct row spoilt)
{
    const bool lse_same = compare_bits(&clean.lse, &spoilt.lse, 1) < 0;

    if (!sees)
        return lse_same && compare_bits(clean.out, spoilt.out, s->dv) < 0 ? NULL
                                                                          : "changed unseeing";
    if (!x->in_v && clean.lse == INFINITY)
        return NULL;
    if (!x->in_v && !isnan(spoilt.lse))
        return "LSE not NaN";
    if (x->in_v && !lse_same)
        return "LSE changed";
    if ((x->in_v && isinf(clean.lse)) || s->dropout == 1)
        return NULL;
    for (int64_t c = 0; c < s->dv; c++) {
        const bool hit = !x->in_v || c == x->c;
        if (hit && !isnan(spoilt.out[c]))
            return "out not NaN";
        if (!hit && isnan(spoilt.out[c]) && !isnan(clean.out[c]))
            return "NaN in another column";
    }
    return NULL;
}

static bool spot_holds(const struct spot *x, const struct batch *n, const struct result *clean,
                       const struct result *spoilt, char *why, size_t size)
{
    int64_t row = 0;

    for (int64_t b = 0; b < n->count; b++) {
        const struct truth_seq *s = &n->seq[b];
        for (int64_t h = 0; h < s->hq; h++)
            for (int64_t i = 0; i < s->nq; i++, row++) {
                const bool sees = b == x->b && h / (s->hq / s->hkv) == x->g &&
                                  truth_visible(s, h, i, x->j);
                const char *fault = row_fault(x, s, sees, row_of(clean, row, s->dv),
                                              row_of(spoilt, row, s->dv));
                if (!fault)
                    continue;
                snprintf(why, size, "%s in sequence %lld, head %lld, query %lld", fault,
                         (long long)b, (long long)h, (long long)i);
                return false;
            }
    }
    return true;
}

static void check_spot(const struct options *o, const struct batch *n, const struct spot *x,
                       uint64_t seed, struct target *t)
{
    const struct arrange a = {.packed_q = seed & 1, .packed_k = seed & 1,
                              .page_size = seed % 5 == 0 ? 16 : 0};
    struct problem p;
    struct result clean = {0}, spoilt = {0};
    char why[LINE], what[LINE];

    batch_problem(&p, n, &a);
    p.seed = seed;
    const struct tensor *v = x->in_v ? &p.v : &p.k;
    const int64_t at = tensor_at(v, &p.key, x->b, x->j, x->g) + x->c;
    if (run_or_report(o, &p, t, attn_forward, &clean)) {
        element_set(p.dtype, p.buffers[v->buffer].image, at, NAN);
        if (run_or_report(o, &p, t, attn_forward, &spoilt)) {
            if (spot_holds(x, n, &clean, &spoilt, why, sizeof why)) {
                report_pass();
            } else {
                snprintf(what, sizeof what, "NaN in %s of key %lld of sequence %lld, head %lld",
                         x->in_v ? "v" : "k", (long long)x->j, (long long)x->b, (long long)x->g);
                fail(o, &p, t, what, why);
            }
        }
    }
    result_free(&clean);
    result_free(&spoilt);
    problem_free(&p);
}

static void check_backward(const struct options *o, uint64_t seed, struct target *targets,
                           int count)
{
    struct problem p;
    struct judge j;
    struct rng r = rng_seeded(~seed);

    gen_backward(&p, seed);
    struct batch n = batch_of(&p);
    judge_open(&j, &n, o->orders);
    for (int t = 0; t < count; t++)
        check_unseen(o, &p, &j, &targets[t]);
    if (n.count > 0)
        stain_drawn(o, &p, &n, &r, targets, count);
    judge_close(&j);
    batch_free(&n);
    problem_free(&p);
}

static void check_seed(const struct options *o, uint64_t seed, struct target *targets, int count)
{
    struct problem p;
    struct judge j;
    struct rng r = rng_seeded(~seed);

    o->gen(&p, seed);
    struct batch n = batch_of(&p);
    judge_open(&j, &n, o->orders);
    for (int t = 0; t < count; t++)
        check_unseen(o, &p, &j, &targets[t]);
    if (n.count > 0) {
        struct spot x = {.in_v = rng_chance(&r, 50), .b = rng_below(&r, n.count)};
        const struct truth_seq *s = &n.seq[x.b];
        x.g = rng_below(&r, s->hkv);
        x.c = rng_below(&r, x.in_v ? s->dv : s->d);
        x.j = s->nk ? rng_below(&r, s->nk) : 0;
        for (int t = 0; t < count && s->nk > 0; t++)
            if (targets[t].exact)
                check_spot(o, &n, &x, seed, &targets[t]);
    }
    judge_close(&j);
    batch_free(&n);
    problem_free(&p);
}

/* What hides the key in check_fixed(): every second run of keys by a mask, or by a bias; a window
 * that ends before it; or one that begins right after it for all rows but the first. */
enum hiding { BY_MASK, BY_BIAS, BY_WINDOW, FROM_MOST, HIDINGS };
enum { FIXED_KEYS = 133, FIXED_RUN = 16, FIXED_LEFT = 25 };

static void hide_runs(struct truth_seq *s, enum hiding by)
{
    if (by == BY_MASK)
        s->key_mask = test_alloc(FIXED_KEYS);
    else
        s->bias = (struct truth_plane){.x = test_alloc(FIXED_KEYS * sizeof *s->bias.x),
                                       .key = 1, .count = FIXED_KEYS};
    s->bias_type = s->dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    for (int64_t j = 0; j < FIXED_KEYS; j++)
        if (by == BY_MASK)
            s->key_mask[j] = j / FIXED_RUN % 2 == 0;
        else
            s->bias.x[j] = j / FIXED_RUN % 2 == 0 ? 0 : -INFINITY;
}

/* A NaN in the values of one key that some rows, or all, do not see: for a row, a block of them,
 * and narrow heads. */
static void check_fixed(const struct options *o, struct target *targets, int count)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F64, ATTN_BF16};
    static const struct {
        int64_t heads, nq, d, dv;
    } shapes[] = {{2, 1, 16, 8}, {2, 40, 16, 8}, {2, 3, 5, 12}, {1, 2, 4, 4}};
    enum { SHAPES = sizeof shapes / sizeof shapes[0], CASES = 3 * SHAPES * HIDINGS };

    for (uint64_t n = 0; n < CASES; n++) {
        const enum hiding by = n % HIDINGS;
        const int shape = (int)(n / HIDINGS % SHAPES);
        struct spot x = {.in_v = true, .j = FIXED_RUN + 5}; /* the second of two bf16 */
        struct rng r = rng_seeded(n);
        struct batch b = {.count = 1};
        struct truth_seq *s = &b.seq[0];
        *s = (struct truth_seq){.dtype = types[n / (HIDINGS * SHAPES)], .nq = shapes[shape].nq,
                                .nk = FIXED_KEYS, .hq = shapes[shape].heads, .hkv = 1,
                                .d = shapes[shape].d, .dv = shapes[shape].dv};
        s->q = element_numbers(s->dtype, s->hq * s->nq * s->d, &r);
        s->kt = element_numbers(s->dtype, s->d * s->nk, &r);
        s->v = element_numbers(s->dtype, s->nk * s->dv, &r);
        s->align = ATTN_BOTTOM_RIGHT;
        if (by == BY_MASK || by == BY_BIAS) {
            hide_runs(s, by);
        } else {
            s->window = true;
            s->left = FIXED_LEFT;
            s->causal = by == BY_WINDOW;
            s->right = by == BY_WINDOW ? 0 : -1;
            x.j = by == BY_WINDOW ? FIXED_KEYS - 46 : FIXED_KEYS - s->nq - FIXED_LEFT;
        }
        for (int t = 0; t < count; t++)
            if (targets[t].exact)
                check_spot(o, &b, &x, n, &targets[t]);
        batch_free(&b);
    }
}

int main(int argc, char **argv)
{
    const struct options o = options_parse(argc, argv, "poison", 300);
    struct target targets[MOST_TARGETS];

    report_begin(o.program);
    const int count = targets_open(targets, &o);
    for (int64_t n = 0; n < o.count; n++)
        check_seed(&o, o.seed + (uint64_t)n, targets, count);
    for (int64_t n = 0; n < (o.count + 3) / 4; n++)
        check_backward(&o, o.seed + (uint64_t)n, targets, count);
    stain_fixed(&o, targets, count);
    check_fixed(&o, targets, count);
    targets_close(targets, count);
    return report_end();
}
