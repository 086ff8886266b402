/* SPDX-License-Identifier: BSD-3-Clause */
/* Rows between padded and packed tensors: unpad, pad, gather and its gradient. */
#include <inttypes.h>
#include <string.h>

#include "batch.h"
#include "parallel.h"
#include "problem.h"

static void in_parallel(const struct attn_call *call, int64_t bytes,
                        void (*body)(void *, int32_t, int32_t), struct attn_rows *rows)
{
    attn_parallel(attn_threads_worth(bytes, call->settings->threads), body, rows);
}

/* Bytes of a row and of `count` rows. `name` names count. */
static attn_status check_rows(attn_dtype dtype, const char *name, int64_t count, int64_t width,
                              int64_t *row_bytes, int64_t *bytes, struct attn_message *m)
{
    if ((int)dtype < ATTN_F32 || (int)dtype > ATTN_BOOL)
        return attn_say(m, ATTN_INVALID_ENUM, "dtype: %d is no element type", (int)dtype);
    if (count < 0)
        return attn_say(m, ATTN_INVALID_SHAPE, "%s: %" PRId64, name, count);
    if (width < 0)
        return attn_say(m, ATTN_INVALID_SHAPE, "width: %" PRId64, width);
    if (__builtin_mul_overflow(width, attn_dtype_size(dtype), row_bytes) ||
        __builtin_mul_overflow(*row_bytes, count, bytes))
        return attn_say(m, ATTN_INVALID_OVERFLOW, "%s: %" PRId64 " rows of width %" PRId64, name,
                        count, width);
    return ATTN_OK;
}

static attn_status check_null(const char *name, const void *data, int64_t bytes,
                              struct attn_message *m)
{
    return data || bytes == 0 ? ATTN_OK : attn_say(m, ATTN_INVALID_NULL, "%s: null", name);
}

/* Whether `indices` are there and, where they are known, below rows. */
static attn_status check_indices(const int64_t *indices, const char *name, int64_t count,
                                 int64_t rows, bool known, struct attn_message *m)
{
    if (count > INT64_MAX / (int64_t)sizeof *indices)
        return attn_say(m, ATTN_INVALID_OVERFLOW, "%s: %" PRId64, name, count);
    if (!indices && count > 0)
        return attn_say(m, ATTN_INVALID_NULL, "indices: null");
    for (int64_t n = 0; known && n < count; n++)
        if (attn_row_of(indices, n, rows) < 0)
            return attn_say(m, ATTN_INVALID_INDEX,
                            "indices[%" PRId64 "]: %" PRId64 ", rows: %" PRId64, n, indices[n],
                            rows);
    return ATTN_OK;
}

/* A thread's share of the padded rows; the packed place of its first is the number kept before. */
static void unpad_part(void *arg, int32_t thread, int32_t team)
{
    const struct attn_rows *r = arg;
    const struct attn_range part = attn_share(r->total, thread, team);
    char *to = r->to + attn_count_kept(r->mask, part.lo) * r->row_bytes;
    for (int64_t row = part.lo; row < part.hi;) {
        int64_t end = row;
        while (end < part.hi && r->mask[end])
            end++;
        if (end == row) {
            row++;
            continue;
        }
        memcpy(to, r->from + row * r->row_bytes, (size_t)((end - row) * r->row_bytes));
        to += (end - row) * r->row_bytes;
        row = end;
    }
}

static attn_status check_unpad(attn_dtype dtype, const struct attn_kept *kept, int64_t width,
                               const attn_packing *packing, int32_t device, struct attn_rows *r,
                               struct attn_message *m)
{
    struct attn_span spans[ATTN_PACKING_SPANS + 2];
    int64_t bytes;
    attn_status status = attn_packing_check(kept, packing, device, &r->count, m);
    if (status != ATTN_OK)
        return status;
    r->total = kept->batch * kept->seqlen;
    r->mask = kept->mask;
    status = check_rows(dtype, "batch * seqlen", r->total, width, &r->row_bytes, &bytes, m);
    if (status == ATTN_OK)
        status = check_null("x", r->from, bytes, m);
    if (status != ATTN_OK)
        return status;
    const int64_t written =
        r->count != ATTN_UNKNOWN ? r->count * r->row_bytes : bytes > 0; /* unknown: one byte */
    status = check_null("packed", r->to, written, m);
    if (status != ATTN_OK)
        return status;
    attn_packing_spans(kept, packing, r->count, spans);
    spans[ATTN_PACKING_SPANS] = (struct attn_span){"x", r->from, bytes, false};
    spans[ATTN_PACKING_SPANS + 1] = (struct attn_span){"packed", r->to, written, true};
    return attn_check_spans(spans, ATTN_PACKING_SPANS + 2, m);
}

static struct attn_device_call on_device(const struct attn_call *call, struct attn_place at)
{
    return (struct attn_device_call){call->settings, at, call->message};
}

attn_status attn_unpad(attn_context *context, attn_dtype dtype, int64_t batch, int64_t seqlen,
                       int64_t width, const void *x, const uint8_t *mask, void *packed,
                       attn_packing *packing)
{
    const struct attn_kept kept = {batch, seqlen, mask, NULL};
    struct attn_rows r = {.from = x, .to = packed};
    struct attn_placed arrays[ATTN_PACKING_SPANS + 2] = {{"x", x, 1, false},
                                                         {"packed", packed, 1, false}};
    struct attn_call call;
    struct attn_place at;
    attn_status status = attn_call_begin(&call, context);
    attn_packing_arrays(&kept, packing, arrays + 2);
    if (status == ATTN_OK)
        status = attn_find_place(&call, arrays, ATTN_PACKING_SPANS + 2, &at);
    if (status == ATTN_OK)
        status = check_unpad(dtype, &kept, width, packing, at.device, &r, call.message);
    if (status != ATTN_OK)
        return status;
    if (at.device != ATTN_HOST) {
        const struct attn_device_call c = on_device(&call, at);
        return attn_packing_on_device(&c, &kept, r.count, &r, packing);
    }
    attn_packing_fill(&kept, packing);
    if (r.count > 0 && r.row_bytes > 0)
        in_parallel(&call, r.count * r.row_bytes, unpad_part, &r);
    return ATTN_OK;
}

/* First of the ascending indices that is not below row. */
static int64_t find_row(const struct attn_rows *r, int64_t row)
{
    int64_t lo = 0, hi = r->count;
    while (lo < hi) {
        const int64_t mid = lo + (hi - lo) / 2;
        if (r->indices[mid] < row)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* A thread's share of the padded rows, each written once; the indices ascend. */
static void pad_part(void *arg, int32_t thread, int32_t team)
{
    const struct attn_rows *r = arg;
    const struct attn_range part = attn_share(r->total, thread, team);
    int64_t n = find_row(r, part.lo);
    for (int64_t row = part.lo; row < part.hi; row++) {
        char *to = r->to + row * r->row_bytes;
        if (n < r->count && r->indices[n] == row)
            memcpy(to, r->from + n++ * r->row_bytes, (size_t)r->row_bytes);
        else
            memset(to, 0, (size_t)r->row_bytes);
    }
}

/* Indices in any order, one after the other: of rows that repeat the last is what stays. */
static void pad_in_order(const struct attn_rows *r)
{
    memset(r->to, 0, (size_t)(r->total * r->row_bytes));
    for (int64_t n = 0; n < r->count; n++)
        memcpy(r->to + r->indices[n] * r->row_bytes, r->from + n * r->row_bytes,
               (size_t)r->row_bytes);
}

/* Indices that ascend, as those of a packing do, are proven not to repeat and can be shared out
 * among threads. In any other order repeats are found only where they are neighbours. */
static attn_status check_ascending(const struct attn_rows *r, bool *ascending,
                                   struct attn_message *m)
{
    *ascending = true;
    for (int64_t n = 1; n < r->count; n++) {
        if (r->indices[n] == r->indices[n - 1])
            return attn_say(m, ATTN_INVALID_INDEX,
                            "indices[%" PRId64 "]: %" PRId64 " stands there twice", n,
                            r->indices[n]);
        *ascending = *ascending && r->indices[n] > r->indices[n - 1];
    }
    return ATTN_OK;
}

static attn_status check_pad(attn_dtype dtype, int64_t width, bool known, struct attn_rows *r,
                             bool *ascending, struct attn_message *m)
{
    int64_t from, to;
    attn_status status = check_rows(dtype, "rows", r->total, width, &r->row_bytes, &to, m);
    if (status == ATTN_OK)
        status = check_rows(dtype, "total", r->count, width, &r->row_bytes, &from, m);
    if (status != ATTN_OK)
        return status;
    if (r->count > r->total)
        return attn_say(m, ATTN_INVALID_INDEX, "total: %" PRId64 ", more than rows: %" PRId64,
                        r->count, r->total);
    status = check_indices(r->indices, "total", r->count, r->total, known, m);
    if (status == ATTN_OK && known)
        status = check_ascending(r, ascending, m);
    if (status == ATTN_OK)
        status = check_null("packed", r->from, from, m);
    if (status == ATTN_OK)
        status = check_null("x", r->to, to, m);
    if (status != ATTN_OK)
        return status;
    const struct attn_span spans[] = {
        {"packed", r->from, from, false},
        {"indices", r->indices, r->count * (int64_t)sizeof *r->indices, false},
        {"x", r->to, to, true},
    };
    return attn_check_spans(spans, (int)(sizeof spans / sizeof *spans), m);
}

/* The place of rows that go by their indices, as bytes or as elements of `size` bytes. */
static attn_status find_rows(const struct attn_call *call, const char *from, const char *to,
                             const struct attn_rows *r, int64_t size, struct attn_place *at)
{
    const struct attn_placed arrays[] = {{from, r->from, size, false},
                                         {to, r->to, size, false},
                                         {"indices", r->indices, sizeof *r->indices, true}};
    return attn_find_place(call, arrays, (int)(sizeof arrays / sizeof *arrays), at);
}

attn_status attn_pad(attn_context *context, attn_dtype dtype, int64_t rows, int64_t width,
                     const void *packed, const int64_t *indices, int64_t total, void *x)
{
    struct attn_rows r = {
        .from = packed, .to = x, .indices = indices, .count = total, .total = rows};
    struct attn_call call;
    bool ascending = true;
    struct attn_place at;
    attn_status status = attn_call_begin(&call, context);
    if (status == ATTN_OK)
        status = find_rows(&call, "packed", "x", &r, 1, &at);
    if (status == ATTN_OK)
        status = check_pad(dtype, width, attn_is_known(indices, at.device), &r, &ascending,
                           call.message);
    if (status != ATTN_OK || r.total == 0 || r.row_bytes == 0)
        return status;
    if (at.device != ATTN_HOST) {
        const struct attn_device_call c = on_device(&call, at);
        return attn_device_ops->pad(&c, &r);
    }
    if (ascending)
        in_parallel(&call, r.total * r.row_bytes, pad_part, &r);
    else
        pad_in_order(&r);
    return ATTN_OK;
}

static void gather_part(void *arg, int32_t thread, int32_t team)
{
    const struct attn_rows *r = arg;
    const struct attn_range part = attn_share(r->count, thread, team);
    for (int64_t n = part.lo; n < part.hi; n++)
        memcpy(r->to + n * r->row_bytes, r->from + r->indices[n] * r->row_bytes,
               (size_t)r->row_bytes);
}

static attn_status check_gather(attn_dtype dtype, int64_t width, bool known, struct attn_rows *r,
                                struct attn_message *m)
{
    int64_t from, to;
    attn_status status = check_rows(dtype, "rows", r->total, width, &r->row_bytes, &from, m);
    if (status == ATTN_OK)
        status = check_rows(dtype, "count", r->count, width, &r->row_bytes, &to, m);
    if (status == ATTN_OK)
        status = check_indices(r->indices, "count", r->count, r->total, known, m);
    if (status == ATTN_OK)
        status = check_null("x", r->from, to > 0 ? from : 0, m);
    if (status == ATTN_OK)
        status = check_null("out", r->to, to, m);
    if (status != ATTN_OK)
        return status;
    const struct attn_span spans[] = {
        {"x", r->from, from, false},
        {"indices", r->indices, r->count * (int64_t)sizeof *r->indices, false},
        {"out", r->to, to, true},
    };
    return attn_check_spans(spans, (int)(sizeof spans / sizeof *spans), m);
}

attn_status attn_gather(attn_context *context, attn_dtype dtype, int64_t rows, int64_t width,
                        const void *x, const int64_t *indices, int64_t count, void *out)
{
    struct attn_rows r = {
        .from = x, .to = out, .indices = indices, .count = count, .total = rows};
    struct attn_call call;
    struct attn_place at;
    attn_status status = attn_call_begin(&call, context);
    if (status == ATTN_OK)
        status = find_rows(&call, "x", "out", &r, 1, &at);
    if (status == ATTN_OK)
        status = check_gather(dtype, width, attn_is_known(indices, at.device), &r, call.message);
    if (status != ATTN_OK || r.count == 0 || r.row_bytes == 0)
        return status;
    if (at.device != ATTN_HOST) {
        const struct attn_device_call c = on_device(&call, at);
        return attn_device_ops->gather(&c, &r);
    }
    in_parallel(&call, r.count * r.row_bytes, gather_part, &r);
    return ATTN_OK;
}

/* ------------------------------------------------------------------------------------------------
 * The gradient of gather
 * --------------------------------------------------------------------------------------------- */

enum { SUM_COLUMNS = 128 };

#define TEMPLATE "gather_tmpl.h"
#include "each_type.h"

/* A counting sort. */
static void sort_indices(struct attn_sums *s)
{
    const int64_t *indices = s->indices;
    memset(s->starts, 0, (size_t)(s->total + 1) * sizeof *s->starts);
    for (int64_t n = 0; n < s->count; n++)
        s->starts[indices[n]]++;
    for (int64_t r = 0; r < s->total; r++)
        s->starts[r + 1] += s->starts[r];
    for (int64_t n = s->count - 1; n >= 0; n--)
        s->order[--s->starts[indices[n]]] = n;
}

/* The row of dx before which there is so much work, counted in rows written and rows added. */
static int64_t row_after(const struct attn_sums *s, int64_t work)
{
    int64_t lo = 0, hi = s->total;
    while (lo < hi) {
        const int64_t mid = lo + (hi - lo) / 2;
        if (mid + s->starts[mid] < work)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* A thread's share of the rows of dx. */
static void sum_part(void *arg, int32_t thread, int32_t team)
{
    static void (*const sum_row[])(const struct attn_sums *, int64_t) = ATTN_EACH_TYPE(sum_row);
    const struct attn_sums *s = arg;
    const struct attn_range work = attn_share(s->total + s->count, thread, team);
    const int64_t end = row_after(s, work.hi);
    for (int64_t row = row_after(s, work.lo); row < end; row++)
        sum_row[s->dtype](s, row);
}

/* *memory: the bytes that the sort works in. */
static attn_status check_sums(const struct attn_sums *s, bool known, int64_t *memory,
                              struct attn_message *m)
{
    int64_t row_bytes, from, to, entries;
    if (s->dtype == ATTN_BOOL)
        return attn_say(m, ATTN_INVALID_DTYPE, "dtype: bool has no gradient");
    attn_status status = check_rows(s->dtype, "rows", s->total, s->width, &row_bytes, &to, m);
    if (status == ATTN_OK)
        status = check_rows(s->dtype, "count", s->count, s->width, &row_bytes, &from, m);
    if (status == ATTN_OK)
        status = check_indices(s->indices, "count", s->count, s->total, known, m);
    if (status == ATTN_OK && (__builtin_add_overflow(s->total, s->count + 1, &entries) ||
                              __builtin_mul_overflow(entries, sizeof *s->order, memory)))
        status = attn_say(m, ATTN_INVALID_OVERFLOW, "rows: %" PRId64, s->total);
    if (status == ATTN_OK)
        status = check_null("dout", s->dout, from, m);
    if (status == ATTN_OK)
        status = check_null("dx", s->dx, to, m);
    if (status != ATTN_OK)
        return status;
    const struct attn_span spans[] = {
        {"dout", s->dout, from, false},
        {"indices", s->indices, s->count * (int64_t)sizeof *s->indices, false},
        {"dx", s->dx, to, true},
    };
    return attn_check_spans(spans, (int)(sizeof spans / sizeof *spans), m);
}

attn_status attn_gather_backward(attn_context *context, attn_dtype dtype, int64_t rows,
                                 int64_t width, const void *dout, const int64_t *indices,
                                 int64_t count, void *dx)
{
    struct attn_sums s = {.dtype = dtype, .width = width, .total = rows, .count = count,
                          .dout = dout, .dx = dx, .indices = indices};
    const struct attn_rows r = {.from = dout, .to = dx, .indices = indices};
    struct attn_call call;
    struct attn_place at;
    int64_t bytes = 0;
    attn_status status = attn_call_begin(&call, context);
    if (status == ATTN_OK)
        status = find_rows(&call, "dout", "dx", &r, attn_dtype_size(dtype), &at);
    if (status == ATTN_OK)
        status = check_sums(&s, attn_is_known(indices, at.device), &bytes, call.message);
    if (status != ATTN_OK || rows == 0 || width == 0)
        return status;
    if (at.device != ATTN_HOST) {
        const struct attn_device_call c = on_device(&call, at);
        return attn_device_ops->sum(&c, &s);
    }
    const attn_allocator *memory = &call.settings->allocator;
    s.starts = memory->alloc(memory->user, (size_t)bytes, ATTN_ALIGN);
    if (!s.starts)
        return attn_say(call.message, ATTN_NO_MEMORY, "indices: no memory for %" PRId64
                        " bytes to sort them in", bytes);
    s.order = s.starts + rows + 1;
    sort_indices(&s);
    const int64_t moved = attn_product(rows + count, width * attn_dtype_size(dtype));
    attn_parallel(attn_threads_worth(moved, call.settings->threads), sum_part, &s);
    memory->release(memory->user, s.starts, (size_t)bytes);
    return ATTN_OK;
}
