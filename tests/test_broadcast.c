/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * dbias summed over any of its axes, against sums of the whole: over more queries and keys than any
 * piece of it has. And dq by its definition, as sums of the whole times keys.
 */
#include <math.h>
#include <stdlib.h>

#include "attn/attn.h"
#include "expect.h"
#include "memory.h"
#include "rng.h"
#include "run.h"

/* Three heads to a group: pieces then end within a block of rows. */
enum { B = 2, HQ = 6, HKV = 2, NQ = 100, NK = 270, D = 5, WHOLE = B * HQ * NQ * NK };

#define SCALE (-0.4)

/* One call in f64; out and LSE come from the forward call. */
struct call {
    attn_desc desc;
    double *data[12];
    int count;
};

static double *array(struct call *c, int64_t n, struct rng *r)
{
    double *x = test_alloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = rng_normal(r);
    return c->data[c->count++] = x;
}

static struct call call_open(void)
{
    struct rng r = rng_seeded(1);
    struct call c = {.desc = attn_desc_init()};
    attn_desc *d = &c.desc;
    d->batch = B;
    d->heads_q = HQ;
    d->heads_kv = HKV;
    d->head_dim = D;
    d->scale = SCALE;
    d->query.seqlen = NQ;
    d->key.seqlen = NK;
    d->causal = 1;
    d->align = ATTN_BOTTOM_RIGHT;
    d->q.data = array(&c, B * NQ * HQ * D, &r);
    d->k.data = array(&c, B * NK * HKV * D, &r);
    d->v.data = array(&c, B * NK * HKV * D, &r);
    d->out.data = array(&c, B * NQ * HQ * D, &r);
    d->lse.data = array(&c, B * HQ * NQ, &r);
    d->dout.data = array(&c, B * NQ * HQ * D, &r);
    d->dlse.data = array(&c, B * HQ * NQ, &r);
    d->dq.data = array(&c, B * NQ * HQ * D, &r);
    d->dk.data = array(&c, B * NK * HKV * D, &r);
    d->dv.data = array(&c, B * NK * HKV * D, &r);
    d->bias.data = array(&c, NK, &r);
    d->bias.key_stride = 1;
    d->dbias.data = array(&c, WHOLE, &r);
    d->q.dtype = d->k.dtype = d->v.dtype = d->out.dtype = d->lse.dtype = d->dout.dtype = ATTN_F64;
    d->dlse.dtype = d->dq.dtype = d->dk.dtype = d->dv.dtype = d->bias.dtype = ATTN_F64;
    d->dbias.dtype = ATTN_F64;
    return c;
}

static void call_close(struct call *c)
{
    while (c->count > 0)
        free(c->data[--c->count]);
}

/* dbias with the axes of `axes`, as bits: 1 sequences, 2 heads, 4 queries, 8 keys. Its size. */
static int64_t shape_dbias(attn_score_output *t, int axes)
{
    int64_t *const stride[] = {&t->batch_stride, &t->head_stride, &t->query_stride,
                               &t->key_stride};
    static const int64_t extent[] = {B, HQ, NQ, NK};
    int64_t size = 1;
    for (int n = 3; n >= 0; n--) {
        *stride[n] = axes >> n & 1 ? size : 0;
        size *= axes >> n & 1 ? extent[n] : 1;
    }
    return size;
}

/* Sums of the whole, and of the sizes of what they sum. */
static void add_up(const attn_score_output *t, const double *whole, double *sum, double *size)
{
    for (int64_t n = 0; n < WHOLE; n++) {
        const int64_t j = n % NK, i = n / NK % NQ, h = n / NK / NQ % HQ, b = n / NK / NQ / HQ;
        const int64_t at = b * t->batch_stride + h * t->head_stride + i * t->query_stride +
                           j * t->key_stride;
        sum[at] += whole[n];
        size[at] += fabs(whole[n]);
    }
}

/* Whether element n of dq is the sum of its row of the whole times keys, by the scale. */
static bool is_dq(const struct call *c, const double *whole, int64_t n)
{
    const int64_t e = n % D, h = n / D % HQ, i = n / D / HQ % NQ, b = n / D / HQ / NQ;
    const double *ds = whole + ((b * HQ + h) * NQ + i) * NK, *k = c->desc.k.data;
    double sum = 0, size = 0;
    for (int64_t j = 0; j < NK; j++) {
        const double x = SCALE * ds[j] * k[((b * NK + j) * HKV + h / (HQ / HKV)) * D + e];
        sum += x;
        size += fabs(x);
    }
    return fabs(((const double *)c->desc.dq.data)[n] - sum) <= 1e-13 * size;
}

/* dbias of every `step`th set of axes, from all of them down to none. */
static void test_target(struct target *t, int step)
{
    struct call c = call_open();
    attn_score_output whole_shape = c.desc.dbias;
    double *whole = test_alloc(WHOLE * sizeof *whole);
    attn_status status = attn_forward(t->context, &c.desc);
    shape_dbias(&whole_shape, 15);
    whole_shape.data = whole;
    for (int axes = 15; axes >= 0 && status == ATTN_OK; axes -= step) {
        attn_desc d = c.desc;
        const int64_t size = shape_dbias(&d.dbias, axes);
        double *sum = calloc((size_t)size, sizeof *sum), *sizes = calloc((size_t)size, sizeof *sum);
        if (axes == 15)
            d.dbias = whole_shape;
        status = attn_backward(t->context, &d);
        EXPECT(status == ATTN_OK, "%s: %s", t->name, attn_last_message(t->context));
        add_up(&d.dbias, whole, sum, sizes);
        int64_t wrong = 0;
        for (int64_t n = 0; n < size; n++)
            wrong += !(fabs(((double *)d.dbias.data)[n] - sum[n]) <= 1e-13 * sizes[n]);
        EXPECT(wrong == 0, "%s %s: dbias over axes %d: %lld of %lld numbers are no sums", t->name,
               t->isa ? t->isa : "", axes, (long long)wrong, (long long)size);
        free(sum);
        free(sizes);
    }
    int64_t wrong = 0;
    for (int64_t n = 0; n < B * NQ * HQ * D && status == ATTN_OK; n++)
        wrong += !is_dq(&c, whole, n);
    EXPECT(wrong == 0, "%s %s: %lld numbers of dq are no sums of dbias times keys", t->name,
           t->isa ? t->isa : "", (long long)wrong);
    if (status == ATTN_NO_BACKEND)
        report_skip("%s", attn_last_message(t->context));
    free(whole);
    call_close(&c);
}

/* --count N: so many sets of axes, or one more. */
int main(int argc, char **argv)
{
    enum { SETS = 16 };
    const struct options o = options_parse(argc, argv, "broadcast", SETS);
    const int step = o.count > 0 && o.count < SETS ? (int)(SETS / o.count) : 1;
    struct target targets[MOST_TARGETS];
    report_begin("broadcast");
    const int count = targets_open(targets, &o);
    for (int t = 0; t < count; t++)
        test_target(&targets[t], step);
    targets_close(targets, count);
    return report_end();
}
