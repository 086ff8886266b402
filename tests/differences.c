/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The loss sum(dout * out) + sum(dlse * LSE), by attn_forward(), is moved along one number of the
 * inputs at a time: its central difference of sixth order is what the gradients say.
 */
#include "differences.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen.h"
#include "memory.h"
#include "report.h"
#include "rng.h"
#include "sequences.h"

enum { LINE = 1200, TRIES = 10, STEPS = 3 };

/* Errors are relative to the largest gradient of a tensor, or to this, which is far below what
 * numbers around 1 give: then all of them cancel. */
#define WORST 1e-8
#define LEAST 1e-3

/* A problem in memory of its own, as a forward call. */
struct moving {
    const struct problem *p;
    attn_context *context;
    unsigned char *data[BUFFERS];
    attn_desc desc;
};

static void moving_open(struct moving *m, const struct problem *p, const struct target *t)
{
    *m = (struct moving){.p = p, .context = t->context};
    for (int n = 0; n < BUFFERS; n++) {
        const struct buffer *b = &p->buffers[n];
        if (b->element == 0)
            continue;
        m->data[n] = test_alloc((size_t)b->count * b->element);
        memcpy(m->data[n], b->image, (size_t)b->count * b->element);
    }
    m->desc = problem_desc(p, m->data);
}

static void moving_close(struct moving *m)
{
    for (int n = 0; n < BUFFERS; n++)
        free(m->data[n]);
}

static double number(const struct moving *m, const struct tensor *t, int64_t b, int64_t i,
                     int64_t h, int64_t c)
{
    return element_get(t->dtype, m->data[t->buffer],
                       tensor_at(t, &m->p->query, b, i, h) + c);
}

/* The loss; NaN where the call fails. Rows without a finite LSE have none. */
static long double loss(struct moving *m)
{
    const struct problem *p = m->p;
    long double sum = 0;

    if (attn_forward(m->context, &m->desc) != ATTN_OK)
        return NAN;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t i = 0; i < p->query.used[b]; i++)
            for (int64_t h = 0; h < p->hq; h++) {
                const double lse = number(m, &p->lse, b, i, h, 0);
                for (int64_t c = 0; c < p->dv; c++)
                    sum += (long double)number(m, &p->dout, b, i, h, c) *
                           number(m, &p->out, b, i, h, c);
                if (p->has_dlse && isfinite(lse))
                    sum += (long double)number(m, &p->dlse, b, i, h, 0) * lse;
            }
    return sum;
}

/* An input with its gradient: that of every element, or of every group of elements that move
 * together. */
struct slope {
    enum buffer_name buffer;
    int64_t count;   /* gradients */
    double *x;       /* [count] */
    int64_t *group;  /* of each element of the buffer, or -1: it is not moved */
};

static struct slope slope_open(const struct problem *p, enum buffer_name name, int64_t count)
{
    const int64_t n = p->buffers[name].count;
    struct slope s = {name, count, test_alloc((size_t)count * sizeof *s.x),
                      test_alloc((size_t)n * sizeof *s.group)};

    for (int64_t i = 0; i < n; i++)
        s.group[i] = -1;
    return s;
}

static void slope_close(struct slope *s)
{
    free(s->x);
    free(s->group);
}

/* A tensor's gradients add up where it repeats, or lies in another one. */
static void add_tensor(struct slope *s, const struct problem *p, const struct tensor *t,
                       const struct side *side, const double *gradient)
{
    for (int64_t b = 0; b < p->batch && t->buffer == s->buffer; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t i = 0; i < side->used[b]; i++)
                for (int64_t c = 0; c < t->width; c++) {
                    const int64_t at = tensor_at(t, side, b, i, h) + c;
                    s->group[at] = at;
                    s->x[at] += *gradient++;
                }
}

static struct slope slope_of_vectors(const struct problem *p, enum buffer_name name,
                                     const struct result *r)
{
    struct slope s = slope_open(p, name, p->buffers[name].count);

    add_tensor(&s, p, &p->q, &p->query, r->part[COMPARE_DQ]);
    add_tensor(&s, p, &p->k, &p->key, r->part[COMPARE_DK]);
    add_tensor(&s, p, &p->v, &p->key, r->part[COMPARE_DV]);
    return s;
}

/* dbias may sum over more than the bias repeats over. */
static struct slope slope_of_bias(const struct problem *p, const struct result *r)
{
    struct slope s = slope_open(p, BUFFER_BIAS, r->count[COMPARE_DBIAS]);
    int64_t count;
    const struct plane dense = problem_dbias_dense(p, &count);

    memcpy(s.x, r->part[COMPARE_DBIAS], (size_t)count * sizeof *s.x);
    for (int64_t b = 0; b < p->batch; b++) {
        const struct plane t = problem_bias(p, b);
        for (int64_t h = 0; h < p->hq; h++)
            for (int64_t i = 0; i < p->query.used[b]; i++)
                for (int64_t j = 0; j < p->key.used[b]; j++)
                    s.group[plane_at(&t, 0, h, i, j)] = plane_at(&dense, b, h, i, j);
    }
    return s;
}

static struct slope slope_of_sink(const struct problem *p, const struct result *r)
{
    struct slope s = slope_open(p, BUFFER_SINK, p->buffers[BUFFER_SINK].count);

    for (int64_t h = 0; h < p->hq; h++) {
        const int64_t at = p->sink.offset + h * p->sink.head;
        s.group[at] = at;
        s.x[at] += r->part[COMPARE_DSINK][h];
    }
    return s;
}

/* Adds x to the elements of a group. */
static void move(struct moving *m, const struct slope *s, int64_t group, double x)
{
    const struct buffer *b = &m->p->buffers[s->buffer];

    for (int64_t n = 0; n < b->count; n++)
        if (s->group[n] == group)
            ((double *)m->data[s->buffer])[n] = ((const double *)b->image)[n] + x;
}

static double difference(struct moving *m, const struct slope *s, int64_t group)
{
    static const long double weights[STEPS] = {3 / 4.0L, -3 / 20.0L, 1 / 60.0L};
    const double step = 0x1p-9;
    long double sum = 0;

    for (int n = 1; n <= STEPS; n++) {
        move(m, s, group, n * step);
        sum += weights[n - 1] * loss(m);
        move(m, s, group, -n * step);
        sum -= weights[n - 1] * loss(m);
    }
    move(m, s, group, 0);
    return (double)(sum / step);
}

static double largest(const double *x, int64_t n)
{
    double most = LEAST;

    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(x[i]));
    return most;
}

static void fail(const struct options *o, const struct problem *p, const struct target *t,
                 const char *why)
{
    char line[LINE], what[LINE];

    problem_print(p, what, sizeof what);
    report_fail("%s: %s (smooth: %s)", run_line(o, p, t, line, sizeof line), why, what);
}

/* Some of the gradients of one input. Returns the largest error. */
static double check_slope(const struct options *o, const struct problem *p,
                          const struct target *t, struct moving *m, struct slope *s)
{
    struct rng r = rng_seeded(p->seed ^ (uint64_t)s->buffer);
    const struct buffer *b = &p->buffers[s->buffer];
    const double most = largest(s->x, s->count);
    double worst = 0;
    char why[LINE];

    for (int n = 0; n < TRIES && b->count > 0; n++) {
        const int64_t group = s->group[rng_below(&r, b->count)];
        if (group < 0)
            continue;
        const double want = difference(m, s, group), error = fabs(s->x[group] - want) / most;
        worst = fmax(worst, error);
        if (error <= WORST) {
            report_pass();
            continue;
        }
        snprintf(why, sizeof why, "gradient %lld of %s: %.17g, by differences %.17g: error %.3g of "
                 "the largest", (long long)group, buffer_names[s->buffer], s->x[group], want,
                 error);
        fail(o, p, t, why);
        break;
    }
    slope_close(s);
    return worst;
}

static double check_slopes(const struct options *o, const struct problem *p,
                           const struct target *t, const struct result *r)
{
    struct slope s[5];
    struct moving m;
    double worst = 0;
    int count = 0;

    for (int name = BUFFER_Q; name <= BUFFER_V; name++)
        if (p->buffers[name].element)
            s[count++] = slope_of_vectors(p, (enum buffer_name)name, r);
    if (p->has_dbias)
        s[count++] = slope_of_bias(p, r);
    if (p->has_dsink)
        s[count++] = slope_of_sink(p, r);
    moving_open(&m, p, t);
    for (int n = 0; n < count; n++)
        worst = fmax(worst, check_slope(o, p, t, &m, &s[n]));
    moving_close(&m);
    return worst;
}

/* The same gradients of two targets. */
static void check_alike(const struct options *o, const struct problem *p, const struct target *t,
                        const struct result *r, const struct target *other,
                        const struct result *x)
{
    char why[LINE];

    for (int n = COMPARE_DQ; n < COMPARES; n++) {
        const double most = r->part[n] ? largest(x->part[n], x->count[n]) : 0;
        for (int64_t i = 0; i < r->count[n]; i++)
            if (!(fabs(r->part[n][i] - x->part[n][i]) <= WORST * most)) {
                snprintf(why, sizeof why, "%s, value %lld: %.17g, that of %s %.17g",
                         compare_names[n], (long long)i, r->part[n][i], other->name,
                         x->part[n][i]);
                fail(o, p, t, why);
                return;
            }
    }
    report_pass();
}

/* ------------------------------------------------------------------------------------------------
 * A problem with everything that a call may ask for
 * --------------------------------------------------------------------------------------------- */

static double *normal(int64_t n, struct rng *r)
{
    double *x = test_alloc((size_t)n * sizeof *x);

    for (int64_t i = 0; i < n; i++)
        x[i] = rng_normal(r);
    return x;
}

static uint8_t *mostly(int64_t n, struct rng *r)
{
    uint8_t *x = test_alloc((size_t)n);

    for (int64_t i = 0; i < n; i++)
        x[i] = rng_chance(r, 85);
    return x;
}

static int64_t *documents(int64_t n)
{
    int64_t *x = test_alloc((size_t)n * sizeof *x);

    for (int64_t i = 0; i < n; i++)
        x[i] = i / 9;
    return x;
}

static void fill_masks(struct truth_seq *s, struct rng *r)
{
    s->causal = s->window = s->has_prefix = true;
    s->align = ATTN_BOTTOM_RIGHT;
    s->left = 10;
    s->prefix = 2;
    s->key_mask = mostly(s->nk, r);
    s->query_mask = mostly(s->nq, r);
    s->query_docs = documents(s->nq);
    s->key_docs = documents(s->nk);
    s->block_q = 4;
    s->block_k = 3;
    s->mask = truth_plane_open(true, true, true, s->hq, s->nq, s->nk);
    s->block = truth_plane_open(true, true, true, s->hq, (s->nq + 3) / 4, (s->nk + 2) / 3);
    for (int64_t n = 0; n < s->mask.count; n++)
        s->mask.x[n] = rng_chance(r, 85);
    for (int64_t n = 0; n < s->block.count; n++)
        s->block.x[n] = rng_chance(r, 85);
}

static struct truth_seq sequence_with_all(int64_t nq, int64_t nk, double scale, struct rng *r)
{
    struct truth_seq s = {.dtype = ATTN_F64, .nq = nq, .nk = nk, .hq = 4, .hkv = 2, .d = 5, .dv = 3,
                          .scale = scale, .softcap = 4, .bias_type = ATTN_F64, .dropout = 0.2};
    const int64_t rows = s.hq * nq;

    fill_masks(&s, r);
    s.bias = truth_plane_open(true, true, true, s.hq, nq, nk);
    for (int64_t n = 0; n < s.bias.count; n++)
        s.bias.x[n] = rng_normal(r);
    s.slopes = normal(s.hq, r);
    s.sink = normal(s.hq, r);
    s.q = normal(rows * s.d, r);
    s.kt = normal(s.hkv * s.d * nk, r);
    s.v = normal(s.hkv * nk * s.dv, r);
    s.dout = normal(rows * s.dv, r);
    s.dlse = normal(rows, r);
    s.out = test_alloc((size_t)(rows * s.dv) * sizeof *s.out);
    s.lse = test_alloc((size_t)rows * sizeof *s.lse);
    return s;
}

/* Packed with the bias at offsets and a gradient like it; or padded with one that is summed over
 * sequences and queries, and a negative scale. */
static void with_all(struct problem *p, bool packed)
{
    const struct arrange a = {.packed_q = packed, .packed_k = packed, .spare = packed ? 0 : 2};
    struct rng r = rng_seeded(packed);
    struct batch n = {.count = 2, .backward = true};

    for (int what = COMPARE_DQ; what < COMPARES; what++)
        n.wanted[what] = true;
    n.seq[0] = sequence_with_all(13, 19, packed ? 0.7 : -0.7, &r);
    n.seq[1] = sequence_with_all(11, 8, packed ? 0.7 : -0.7, &r);
    n.seq[1].number = 1; /* to dropout */
    memcpy(n.seq[1].sink, n.seq[0].sink, (size_t)n.seq[0].hq * sizeof *n.seq[0].sink);
    n.dbias = (struct plane){.dtype = ATTN_F64, .batch = packed, .head = 1, .query = packed,
                             .key = 1}; /* which axes there are */
    batch_results(&n);
    batch_problem(p, &n, &a);
    batch_free(&n);
}

/* All targets on one problem: each against differences, and against the first of them. Returns the
 * largest error. */
static double check_problem(const struct options *o, const struct problem *p,
                            struct target *targets, int count)
{
    struct result r[MOST_TARGETS];
    double worst = 0;
    int first = -1;

    for (int t = 0; t < count; t++) {
        if (!run_or_report(o, p, &targets[t], attn_backward, &r[t]))
            continue;
        worst = fmax(worst, check_slopes(o, p, &targets[t], &r[t]));
        if (first >= 0)
            check_alike(o, p, &targets[t], &r[t], &targets[first], &r[first]);
        else
            first = t;
    }
    for (int t = 0; t < count; t++)
        result_free(&r[t]);
    return worst;
}

void differences(const struct options *o, struct target *targets, int targets_count,
                 int64_t count)
{
    double worst = 0;

    for (int n = 0; n < 2; n++) {
        struct problem p;
        with_all(&p, n == 1);
        worst = fmax(worst, check_problem(o, &p, targets, targets_count));
        problem_free(&p);
    }
    for (int64_t n = 0; n < count; n++) {
        struct problem p;
        gen_smooth(&p, o->seed + (uint64_t)n);
        worst = fmax(worst, check_problem(o, &p, targets, targets_count));
        problem_free(&p);
    }
    printf("differences: largest error %.3g\n", worst);
}
