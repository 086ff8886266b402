/* SPDX-License-Identifier: BSD-3-Clause */
/* Merging of partial results. */
#include <stdio.h>

#include "check_blocks.h"
#include "on_device.h"
#include "fpenv.h"
#include "parallel.h"

enum { MERGE_COLUMNS = 128 };

#define TEMPLATE "merge_tmpl.h"
#include "each_type.h"

typedef void (*mix_fn)(const struct attn_partials *m, const struct attn_weights *w, int64_t b,
                       int64_t s, int64_t h, int64_t lo, int64_t hi);
typedef void (*fill_fn)(const struct attn_partials *m, double value, int64_t b, int64_t s,
                        int64_t h);
static const mix_fn mix[] = ATTN_EACH_TYPE(mix);
static const fill_fn fill[] = ATTN_EACH_TYPE(fill);

/* The LSEs are read before out and lse are written, either of which may be a part's. */
static void merge_row(const struct attn_partials *m, int64_t b, int64_t s, int64_t h)
{
    struct attn_weights w = attn_weights_begin();
    for (int64_t p = 0; p < m->parts; p++)
        attn_weights_see(&w, attn_part_lse(m, p, b, s, h));
    if (attn_weights_are_special(&w)) {
        fill[m->dtype](m, attn_special_out(&w), b, s, h);
        attn_put_merged_lse(m, b, s, h, attn_special_lse(&w));
        return;
    }
    for (int64_t p = 0; p < m->parts; p++)
        w.sum += attn_part_term(&w, attn_part_lse(m, p, b, s, h));
    for (int64_t c = 0; c < m->head_dim; c += MERGE_COLUMNS) {
        const int64_t end = c + MERGE_COLUMNS < m->head_dim ? c + MERGE_COLUMNS : m->head_dim;
        mix[m->dtype](m, &w, b, s, h, c, end);
    }
    attn_put_merged_lse(m, b, s, h, attn_merged_lse(&w));
}

static void merge_part(void *arg, int32_t thread, int32_t team)
{
    const struct attn_partials *m = arg;
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

/* Each part with the outputs alone: parts may share memory, and there is no limit to them. The
 * place is that of all. */
static attn_status check_parts(struct attn_block_check *k, const struct result *out,
                               const struct result *lse, const attn_merge_desc *d)
{
    const int32_t outputs = k->c.count;
    bool host = true;
    void *context = NULL;
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
        host = host && k->problem.place.host;
        if (k->problem.place.device != ATTN_HOST)
            k->problem.place.host = host;
        if (k->problem.place.context)
            context = k->problem.place.context;
        k->problem.place.context = context;
    }
    return status;
}

/* *place: of the outputs, and so of the parts. */
static attn_status check_merge(const attn_merge_desc *d, struct attn_partials *m,
                               struct attn_place *place, struct attn_message *message)
{
    const attn_dtype type = d->out.dtype;
    const struct result out = {"out", "part_out",
                               {{d->batch, d->seqlen, d->heads}, d->head_dim, false, false},
                               type, &m->out, &m->contiguous_out};
    const struct result lse = {"lse", "part_lse", {{d->batch, d->seqlen, d->heads}, 1, true, false},
                               attn_compute_dtype(type), &m->lse, &m->contiguous_lse};
    struct attn_block_check k;
    attn_block_begin(&k, d->batch, message);
    *m = (struct attn_partials){.dtype = type, .batch = d->batch, .seqlen = d->seqlen,
                                .heads = d->heads, .head_dim = d->head_dim, .parts = d->parts,
                                .part_out = d->part_out, .part_lse = d->part_lse};
    attn_status status = check_shape(&k, d);
    if (status == ATTN_OK)
        status = attn_block_dtype(&k, "out", type, ATTN_BOOL);
    if (status == ATTN_OK)
        status = check_output(&k, &out, d->out);
    if (status == ATTN_OK && d->lse.data)
        status = check_output(&k, &lse, d->lse);
    if (status == ATTN_OK)
        status = check_parts(&k, &out, &lse, d);
    *place = k.problem.place;
    return status;
}

static attn_status merge(attn_context *context, const attn_merge_desc *desc)
{
    struct attn_call call;
    struct attn_partials m;
    struct attn_place place;
    attn_merge_desc d;
    struct attn_place at;
    attn_status status = attn_call_begin(&call, context);
    if (status == ATTN_OK)
        status = attn_check_copy(desc, sizeof d, &d, sizeof d, "attn_merge_desc_init",
                                 call.message);
    if (status == ATTN_OK)
        status = check_merge(&d, &m, &place, call.message);
    if (status == ATTN_OK)
        status = attn_settle_place(&call, "out", place, &at);
    if (status != ATTN_OK)
        return status;
    if (at.device != ATTN_HOST) {
        const struct attn_device_call c = {call.settings, at, call.message};
        return attn_device_ops->merge(&c, &m);
    }
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
