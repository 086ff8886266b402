/* SPDX-License-Identifier: BSD-3-Clause */
/* Rows between padded and packed tensors: unpad, pad, gather. */
#include <inttypes.h>
#include <string.h>

#include "batch.h"
#include "context.h"
#include "parallel.h"
#include "problem.h"

/* Copies of fewer bytes stay on one thread: 1 MiB takes it about 100 us, ten times what starting a
 * team costs. */
#define PARALLEL_BYTES (INT64_C(1) << 20)

/* One copy of rows; each function below uses what it needs. */
struct rows {
    const char *from;
    char *to;
    int64_t row_bytes;
    const int64_t *indices; /* [count] */
    const uint8_t *mask;    /* [total] */
    int64_t count, total;   /* packed rows, padded rows */
};

/* The part of 0 .. n - 1 that falls to a thread. */
static struct attn_range share(int64_t n, int32_t thread, int32_t team)
{
    const int64_t each = n / team, more = n % team;
    struct attn_range r;
    r.lo = thread * each + (thread < more ? thread : more);
    r.hi = r.lo + each + (thread < more);
    return r;
}

static void in_parallel(const struct attn_call *call, int64_t bytes,
                        void (*body)(void *, int32_t, int32_t), struct rows *rows)
{
    const int64_t most = bytes / PARALLEL_BYTES + 1;
    int32_t threads = bytes < PARALLEL_BYTES ? 1 : call->settings->threads;
    if (threads > most)
        threads = (int32_t)most;
    attn_parallel(threads, body, rows);
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

/* Whether `indices` are there and below rows. */
static attn_status check_indices(const int64_t *indices, const char *name, int64_t count,
                                 int64_t rows, struct attn_message *m)
{
    if (count > INT64_MAX / (int64_t)sizeof *indices)
        return attn_say(m, ATTN_INVALID_OVERFLOW, "%s: %" PRId64, name, count);
    if (!indices && count > 0)
        return attn_say(m, ATTN_INVALID_NULL, "indices: null");
    for (int64_t n = 0; n < count; n++)
        if (indices[n] < 0 || indices[n] >= rows)
            return attn_say(m, ATTN_INVALID_INDEX,
                            "indices[%" PRId64 "]: %" PRId64 ", rows: %" PRId64, n, indices[n],
                            rows);
    return ATTN_OK;
}

/* A thread's share of the padded rows; the packed place of its first is the number kept before. */
static void unpad_part(void *arg, int32_t thread, int32_t team)
{
    const struct rows *r = arg;
    const struct attn_range part = share(r->total, thread, team);
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
                               const attn_packing *packing, struct rows *r, struct attn_message *m)
{
    struct attn_span spans[ATTN_PACKING_SPANS + 2];
    int64_t bytes;
    attn_status status = attn_packing_check(kept, packing, &r->count, m);
    if (status != ATTN_OK)
        return status;
    r->total = kept->batch * kept->seqlen;
    r->mask = kept->mask;
    status = check_rows(dtype, "batch * seqlen", r->total, width, &r->row_bytes, &bytes, m);
    if (status == ATTN_OK)
        status = check_null("x", r->from, bytes, m);
    if (status == ATTN_OK)
        status = check_null("packed", r->to, r->count * r->row_bytes, m);
    if (status != ATTN_OK)
        return status;
    attn_packing_spans(kept, packing, r->count, spans);
    spans[ATTN_PACKING_SPANS] = (struct attn_span){"x", r->from, bytes, false};
    spans[ATTN_PACKING_SPANS + 1] =
        (struct attn_span){"packed", r->to, r->count * r->row_bytes, true};
    return attn_check_spans(spans, ATTN_PACKING_SPANS + 2, m);
}

attn_status attn_unpad(attn_context *context, attn_dtype dtype, int64_t batch, int64_t seqlen,
                       int64_t width, const void *x, const uint8_t *mask, void *packed,
                       attn_packing *packing)
{
    const struct attn_kept kept = {batch, seqlen, mask, NULL};
    struct rows r = {.from = x, .to = packed};
    struct attn_call call;
    attn_status status = attn_call_begin(&call, context);
    if (status == ATTN_OK)
        status = check_unpad(dtype, &kept, width, packing, &r, call.message);
    if (status != ATTN_OK)
        return status;
    attn_packing_fill(&kept, packing);
    if (r.count > 0 && r.row_bytes > 0)
        in_parallel(&call, r.count * r.row_bytes, unpad_part, &r);
    return ATTN_OK;
}

/* First of the ascending indices that is not below row. */
static int64_t find_row(const struct rows *r, int64_t row)
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
    const struct rows *r = arg;
    const struct attn_range part = share(r->total, thread, team);
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
static void pad_in_order(const struct rows *r)
{
    memset(r->to, 0, (size_t)(r->total * r->row_bytes));
    for (int64_t n = 0; n < r->count; n++)
        memcpy(r->to + r->indices[n] * r->row_bytes, r->from + n * r->row_bytes,
               (size_t)r->row_bytes);
}

/* Indices that ascend, as those of a packing do, are proven not to repeat and can be shared out
 * among threads. In any other order repeats are found only where they are neighbours. */
static attn_status check_ascending(const struct rows *r, bool *ascending, struct attn_message *m)
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

static attn_status check_pad(attn_dtype dtype, int64_t width, struct rows *r, bool *ascending,
                             struct attn_message *m)
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
    status = check_indices(r->indices, "total", r->count, r->total, m);
    if (status == ATTN_OK)
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

attn_status attn_pad(attn_context *context, attn_dtype dtype, int64_t rows, int64_t width,
                     const void *packed, const int64_t *indices, int64_t total, void *x)
{
    struct rows r = {.from = packed, .to = x, .indices = indices, .count = total, .total = rows};
    struct attn_call call;
    bool ascending = true;
    attn_status status = attn_call_begin(&call, context);
    if (status == ATTN_OK)
        status = check_pad(dtype, width, &r, &ascending, call.message);
    if (status != ATTN_OK || r.total == 0 || r.row_bytes == 0)
        return status;
    if (ascending)
        in_parallel(&call, r.total * r.row_bytes, pad_part, &r);
    else
        pad_in_order(&r);
    return ATTN_OK;
}

static void gather_part(void *arg, int32_t thread, int32_t team)
{
    const struct rows *r = arg;
    const struct attn_range part = share(r->count, thread, team);
    for (int64_t n = part.lo; n < part.hi; n++)
        memcpy(r->to + n * r->row_bytes, r->from + r->indices[n] * r->row_bytes,
               (size_t)r->row_bytes);
}

static attn_status check_gather(attn_dtype dtype, int64_t width, struct rows *r,
                                struct attn_message *m)
{
    int64_t from, to;
    attn_status status = check_rows(dtype, "rows", r->total, width, &r->row_bytes, &from, m);
    if (status == ATTN_OK)
        status = check_rows(dtype, "count", r->count, width, &r->row_bytes, &to, m);
    if (status == ATTN_OK)
        status = check_indices(r->indices, "count", r->count, r->total, m);
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
    struct rows r = {.from = x, .to = out, .indices = indices, .count = count, .total = rows};
    struct attn_call call;
    attn_status status = attn_call_begin(&call, context);
    if (status == ATTN_OK)
        status = check_gather(dtype, width, &r, call.message);
    if (status == ATTN_OK && r.count > 0 && r.row_bytes > 0)
        in_parallel(&call, r.count * r.row_bytes, gather_part, &r);
    return status;
}
