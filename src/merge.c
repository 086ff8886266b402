/* SPDX-License-Identifier: BSD-3-Clause */
/* Merging of partial results. */
#include <math.h>
#include <stdio.h>

#include "check_blocks.h"
#include "context.h"
#include "fpenv.h"
#include "parallel.h"

enum { MERGE_COLUMNS = 128 };

/* Everything has been checked. */
struct merge {
    attn_dtype dtype;
    int64_t batch, seqlen, heads, head_dim, parts;
    const attn_input *part_out, *part_lse;
    struct attn_view contiguous_out, contiguous_lse; /* strides of parts that name none */
    struct attn_view out, lse;
};

/* Of one row. */
struct weights {
    double max, sum; /* of the LSEs; of exp(LSE - max) */
};

static struct attn_view part_view(attn_input x, struct attn_view contiguous)
{
    struct attn_view v = contiguous;
    if (x.batch_stride | x.token_stride | x.head_stride) {
        v.batch = x.batch_stride == ATTN_BROADCAST ? 0 : x.batch_stride;
        v.token = x.token_stride == ATTN_BROADCAST ? 0 : x.token_stride;
        v.head = x.head_stride == ATTN_BROADCAST ? 0 : x.head_stride;
    }
    v.data = (char *)x.data;
    return v;
}

static int64_t row_at(const struct attn_view *v, int64_t b, int64_t s, int64_t h)
{
    return b * v->batch + s * v->token + h * v->head;
}

static double lse_of(const struct merge *m, int64_t part, int64_t b, int64_t s, int64_t h)
{
    const struct attn_view v = part_view(m->part_lse[part], m->contiguous_lse);
    const int64_t at = row_at(&v, b, s, h);
    return m->dtype == ATTN_F64 ? ((const double *)v.data)[at]
                                : (double)((const float *)v.data)[at];
}

static void put_lse(const struct merge *m, int64_t b, int64_t s, int64_t h, double lse)
{
    const int64_t at = row_at(&m->lse, b, s, h);
    if (!m->lse.data)
        return;
    if (m->dtype == ATTN_F64)
        ((double *)m->lse.data)[at] = lse;
    else
        ((float *)m->lse.data)[at] = (float)lse;
}

/* A part's weight; -1 if it saw nothing: then its out is not looked at. */
static double weight_of(const struct merge *m, const struct weights *w, int64_t part, int64_t b,
                        int64_t s, int64_t h)
{
    const double lse = lse_of(m, part, b, s, h);
    return lse == -INFINITY ? -1 : exp(lse - w->max) / w->sum;
}

#define TEMPLATE "merge_tmpl.h"
#include "each_type.h"

typedef void (*mix_fn)(const struct merge *m, const struct weights *w, int64_t b, int64_t s,
                       int64_t h, int64_t lo, int64_t hi);
typedef void (*fill_fn)(const struct merge *m, double value, int64_t b, int64_t s, int64_t h);
static const mix_fn mix[] = ATTN_EACH_TYPE(mix);
static const fill_fn fill[] = ATTN_EACH_TYPE(fill);

/* The LSEs are read before out and lse are written, either of which may be a part's. */
static void merge_row(const struct merge *m, int64_t b, int64_t s, int64_t h)
{
    struct weights w = {-INFINITY, 0};
    bool nan = false;
    for (int64_t p = 0; p < m->parts; p++) {
        const double lse = lse_of(m, p, b, s, h);
        nan = nan || isnan(lse);
        w.max = lse > w.max ? lse : w.max;
    }
    if (nan || isinf(w.max)) { /* nothing seen: neutral; +inf: a sink that takes everything */
        const double lse = nan ? NAN : w.max;
        fill[m->dtype](m, nan ? NAN : 0, b, s, h);
        put_lse(m, b, s, h, lse);
        return;
    }
    for (int64_t p = 0; p < m->parts; p++)
        w.sum += exp(lse_of(m, p, b, s, h) - w.max);
    for (int64_t c = 0; c < m->head_dim; c += MERGE_COLUMNS) {
        const int64_t end = c + MERGE_COLUMNS < m->head_dim ? c + MERGE_COLUMNS : m->head_dim;
        mix[m->dtype](m, &w, b, s, h, c, end);
    }
    put_lse(m, b, s, h, w.max + log(w.sum));
}

static void merge_part(void *arg, int32_t thread, int32_t team)
{
    const struct merge *m = arg;
    const struct attn_range rows = attn_share(m->batch * m->seqlen, thread, team);
    for (int64_t row = rows.lo; row < rows.hi; row++)
        for (int64_t h = 0; h < m->heads; h++)
            merge_row(m, row / m->seqlen, row % m->seqlen, h);
}

/* ------------------------------------------------------------------------------------------------
 * The check
 * --------------------------------------------------------------------------------------------- */

static attn_status check_shape(struct attn_block_check *k, const attn_merge_desc *d)
{
    const struct {
        const char *name;
        int64_t value, least;
    } extents[] = {
        {"batch", d->batch, 0},       {"seqlen", d->seqlen, 0}, {"heads", d->heads, 0},
        {"head_dim", d->head_dim, 1}, {"parts", d->parts, 1},
    };
    int64_t rows;
    for (size_t n = 0; n < sizeof extents / sizeof extents[0]; n++) {
        const attn_status status =
            attn_block_extent(k, extents[n].name, extents[n].value, extents[n].least);
        if (status != ATTN_OK)
            return status;
    }
    if (__builtin_mul_overflow(d->batch, d->seqlen, &rows))
        return attn_say(k->c.m, ATTN_INVALID_OVERFLOW,
                        "batch * seqlen: %lld * %lld does not fit in 63 bits", (long long)d->batch,
                        (long long)d->seqlen);
    if (!d->part_out)
        return attn_say(k->c.m, ATTN_INVALID_NULL, "part_out: null");
    if (!d->part_lse)
        return attn_say(k->c.m, ATTN_INVALID_NULL, "part_lse: null");
    return ATTN_OK;
}

/* A result, out or lse. */
struct result {
    const char *name, *part_name;
    struct attn_block_shape shape;
    attn_dtype dtype;
    struct attn_view *view, *contiguous;
};

/* The strides of parts that name none. */
static attn_status check_plain(struct attn_block_check *k, const struct result *r, const void *data)
{
    const attn_input plain = {data, r->dtype, 0, 0, 0};
    return attn_block_view(k, r->part_name, plain, &r->shape, r->contiguous);
}

static attn_status check_output(struct attn_block_check *k, const struct result *r, attn_output o)
{
    attn_status status = attn_block_dtype(k, r->name, o.dtype, r->dtype);
    if (status == ATTN_OK)
        status = attn_block_view(k, r->name, attn_block_output(o), &r->shape, r->view);
    if (status == ATTN_OK)
        status = attn_block_add(k, r->name, true, r->view, &r->shape, attn_dtype_size(r->dtype));
    return status;
}

/* A part of a result; it joins the operands unless it is merged into. */
static attn_status check_part(struct attn_block_check *k, const struct result *r, const char *name,
                              attn_input part)
{
    struct attn_view view;
    attn_status status = attn_block_dtype(k, name, part.dtype, r->dtype);
    if (status == ATTN_OK)
        status = attn_block_view(k, name, part, &r->shape, &view);
    if (status == ATTN_OK && !(r->view->data && attn_block_same(&view, r->view, &r->shape)))
        status = attn_block_add(k, name, false, &view, &r->shape, attn_dtype_size(r->dtype));
    return status;
}

/* Each part with the outputs alone: parts may share memory, and there is no limit to them. */
static attn_status check_parts(struct attn_block_check *k, const struct result *out,
                               const struct result *lse, const attn_merge_desc *d)
{
    const int32_t outputs = k->c.count;
    attn_status status = check_plain(k, out, d->part_out[0].data);
    if (status == ATTN_OK)
        status = check_plain(k, lse, d->part_lse[0].data);
    for (int64_t n = 0; n < d->parts && status == ATTN_OK; n++) {
        char out_name[40], lse_name[40];
        snprintf(out_name, sizeof out_name, "part_out[%lld]", (long long)n);
        snprintf(lse_name, sizeof lse_name, "part_lse[%lld]", (long long)n);
        k->c.count = outputs;
        status = check_part(k, out, out_name, d->part_out[n]);
        if (status == ATTN_OK)
            status = check_part(k, lse, lse_name, d->part_lse[n]);
        if (status == ATTN_OK)
            status = attn_check_overlap(&k->c);
    }
    return status;
}

static attn_status check_merge(const attn_merge_desc *d, struct merge *m,
                               struct attn_message *message)
{
    const attn_dtype type = d->out.dtype;
    const struct result out = {"out", "part_out",
                               {{d->batch, d->seqlen, d->heads}, d->head_dim, false, false},
                               type, &m->out, &m->contiguous_out};
    const struct result lse = {"lse", "part_lse", {{d->batch, d->seqlen, d->heads}, 1, true, false},
                               attn_compute_dtype(type), &m->lse, &m->contiguous_lse};
    struct attn_block_check k;
    attn_block_begin(&k, d->batch, message);
    *m = (struct merge){.dtype = type, .batch = d->batch, .seqlen = d->seqlen, .heads = d->heads,
                        .head_dim = d->head_dim, .parts = d->parts, .part_out = d->part_out,
                        .part_lse = d->part_lse};
    attn_status status = check_shape(&k, d);
    if (status == ATTN_OK)
        status = attn_block_dtype(&k, "out", type, ATTN_BOOL);
    if (status == ATTN_OK)
        status = check_output(&k, &out, d->out);
    if (status == ATTN_OK && d->lse.data)
        status = check_output(&k, &lse, d->lse);
    return status == ATTN_OK ? check_parts(&k, &out, &lse, d) : status;
}

static attn_status merge(attn_context *context, const attn_merge_desc *desc)
{
    struct attn_call call;
    struct merge m;
    attn_merge_desc d;
    attn_status status = attn_call_begin(&call, context);
    if (status == ATTN_OK)
        status = attn_check_copy(desc, sizeof d, &d, sizeof d, "attn_merge_desc_init",
                                 call.message);
    if (status == ATTN_OK)
        status = check_merge(&d, &m, call.message);
    if (status != ATTN_OK)
        return status;
    const int64_t row = attn_product(m.heads, m.head_dim * attn_dtype_size(m.dtype));
    const int64_t bytes = attn_product(m.batch * m.seqlen, attn_product(row, m.parts));
    if (bytes > 0)
        attn_parallel(attn_threads_worth(bytes, call.settings->threads), merge_part, &m);
    return ATTN_OK;
}

attn_status attn_merge(attn_context *context, const attn_merge_desc *desc)
{
    const attn_fpenv env = attn_fpenv_enter();
    const attn_status status = merge(context, desc);
    attn_fpenv_leave(env);
    return status;
}
