/* SPDX-License-Identifier: BSD-3-Clause */
/* Packings from masks and lengths, and position ids. */
#include "batch.h"

#include <inttypes.h>
#include <string.h>

#include "overlap.h"

static bool share_bytes(const struct attn_span *a, const struct attn_span *b)
{
    const struct attn_bytes x = {.base = (uintptr_t)a->data, .run = a->bytes};
    const struct attn_bytes y = {.base = (uintptr_t)b->data, .run = b->bytes};
    return a->data && b->data && attn_bytes_overlap(&x, &y);
}

attn_status attn_check_spans(const struct attn_span *spans, int count, struct attn_message *m)
{
    for (int a = 0; a < count; a++)
        for (int b = a + 1; b < count; b++)
            if ((spans[a].written || spans[b].written) && share_bytes(&spans[a], &spans[b]))
                return attn_say(m, ATTN_INVALID_OVERLAP, "%s: overlaps %s at %p",
                                spans[spans[b].written ? b : a].name,
                                spans[spans[b].written ? a : b].name,
                                spans[spans[b].written ? a : b].data);
    return ATTN_OK;
}

int64_t attn_count_kept(const uint8_t *mask, int64_t n)
{
    int64_t count = 0;
    for (int64_t r = 0; r < n; r++)
        count += mask[r] != 0;
    return count;
}

static attn_status check_lengths(const struct attn_kept *kept, int64_t *total,
                                 struct attn_message *m)
{
    for (int64_t b = 0; b < kept->batch; b++) {
        const int32_t length = kept->lengths[b];
        if (length < 0 || length > kept->seqlen)
            return attn_say(m, ATTN_INVALID_LENGTHS,
                            "lengths[%" PRId64 "]: %" PRId32 ", seqlen: %" PRId64, b, length,
                            kept->seqlen);
        *total += length;
    }
    return ATTN_OK;
}

static attn_status check_extents(int64_t batch, int64_t seqlen, struct attn_message *m)
{
    int64_t n;
    if (batch < 0)
        return attn_say(m, ATTN_INVALID_SHAPE, "batch: %" PRId64, batch);
    if (seqlen < 0)
        return attn_say(m, ATTN_INVALID_SHAPE, "seqlen: %" PRId64, seqlen);
    /* also the bytes of cu_seqlens */
    if (__builtin_mul_overflow(batch, seqlen, &n) || batch > INT64_MAX / 8)
        return attn_say(m, ATTN_INVALID_OVERFLOW, "batch: %" PRId64 " sequences of %" PRId64
                        " tokens", batch, seqlen);
    return ATTN_OK;
}

/* Kept tokens, or ATTN_UNKNOWN. */
static attn_status count(const struct attn_kept *kept, int32_t device, int64_t *total,
                         struct attn_message *m)
{
    *total = 0;
    if (kept->batch == 0 || (kept->seqlen == 0 && !kept->lengths))
        return ATTN_OK;
    if (!kept->lengths && !kept->mask)
        return attn_say(m, ATTN_INVALID_NULL, "mask: null");
    if (!attn_is_known(kept->lengths ? (const void *)kept->lengths : kept->mask, device)) {
        *total = ATTN_UNKNOWN;
        return ATTN_OK;
    }
    if (kept->lengths)
        return check_lengths(kept, total, m);
    *total = attn_count_kept(kept->mask, kept->batch * kept->seqlen);
    return ATTN_OK;
}

attn_status attn_packing_check(const struct attn_kept *kept, const attn_packing *packing,
                               int32_t device, int64_t *total, struct attn_message *m)
{
    attn_status status = check_extents(kept->batch, kept->seqlen, m);
    if (status != ATTN_OK)
        return status;
    if (!packing)
        return attn_say(m, ATTN_INVALID_NULL, "packing: null");
    status = count(kept, device, total, m);
    if (status != ATTN_OK)
        return status;
    if (*total == ATTN_UNKNOWN && kept->batch * kept->seqlen > INT32_MAX)
        return attn_say(m, ATTN_UNSUPPORTED, "batch * seqlen: %" PRId64 " does not fit in 32 bits, "
                        "and how many are kept is known on the device only",
                        kept->batch * kept->seqlen);
    if (*total > INT32_MAX)
        return attn_say(m, ATTN_INVALID_OVERFLOW,
                        "packing.cu_seqlens: %" PRId64 " rows do not fit in 32 bits", *total);
    return ATTN_OK;
}

void attn_packing_arrays(const struct attn_kept *kept, const attn_packing *packing,
                         struct attn_placed arrays[ATTN_PACKING_SPANS])
{
    static const attn_packing none;
    const attn_packing *p = packing ? packing : &none;
    const bool in_place = kept->lengths && p->lengths == kept->lengths;
    const int64_t entry = sizeof(int32_t);
    const struct attn_placed all[ATTN_PACKING_SPANS] = {
        {"packing.indices", p->indices, sizeof *p->indices, false},
        {"packing.cu_seqlens", p->cu_seqlens, entry, false},
        {"packing.lengths", p->lengths, entry, false},
        kept->lengths ? (struct attn_placed){"lengths", kept->lengths, entry, !in_place}
                      : (struct attn_placed){"mask", kept->mask, 1, false},
    };
    memcpy(arrays, all, sizeof all);
}

/* Where the total is not known, an array that it is the length of counts as one byte: enough to
 * find arrays given twice. */
void attn_packing_spans(const struct attn_kept *kept, const attn_packing *packing, int64_t total,
                        struct attn_span spans[ATTN_PACKING_SPANS])
{
    const int64_t entry = sizeof(int32_t), b = kept->batch;
    const bool in_place = kept->lengths && packing->lengths == kept->lengths;
    const struct attn_span all[ATTN_PACKING_SPANS] = {
        kept->lengths ? (struct attn_span){"lengths", kept->lengths, b * entry, in_place}
                      : (struct attn_span){"mask", kept->mask, b * kept->seqlen, false},
        {"packing.indices", packing->indices,
         total == ATTN_UNKNOWN ? 1 : total * (int64_t)sizeof(int64_t), true},
        {"packing.cu_seqlens", packing->cu_seqlens, (b + 1) * entry, true},
        {"packing.lengths", in_place ? NULL : packing->lengths, b * entry, true},
    };
    memcpy(spans, all, sizeof all);
}

/* Length of sequence b; the places of its tokens in [B * S] go to indices unless it is null. */
static int64_t take(const struct attn_kept *kept, int64_t b, int64_t *indices)
{
    const int64_t first = b * kept->seqlen;
    int64_t length = 0;
    if (!indices)
        return kept->mask ? attn_count_kept(kept->mask + first, kept->seqlen) : kept->lengths[b];
    for (int64_t s = 0; s < kept->seqlen; s++)
        if (attn_keeps(kept, b, s))
            indices[length++] = first + s;
    return length;
}

void attn_packing_fill(const struct attn_kept *kept, attn_packing *packing)
{
    packing->total = 0;
    packing->max_seqlen = 0;
    for (int64_t b = 0; b < kept->batch; b++) {
        int64_t *indices = packing->indices ? packing->indices + packing->total : NULL;
        const int64_t length = kept->seqlen > 0 ? take(kept, b, indices) : 0;
        if (packing->cu_seqlens)
            packing->cu_seqlens[b] = (int32_t)packing->total;
        if (packing->lengths)
            packing->lengths[b] = (int32_t)length;
        packing->total += length;
        if (packing->max_seqlen < length)
            packing->max_seqlen = length;
    }
    if (packing->cu_seqlens)
        packing->cu_seqlens[kept->batch] = (int32_t)packing->total;
}

/* The longest of lengths that are known. */
static int64_t longest(const struct attn_kept *kept)
{
    int64_t most = 0;
    for (int64_t b = 0; kept->lengths && b < kept->batch; b++)
        most = kept->lengths[b] > most ? kept->lengths[b] : most;
    return most;
}

attn_status attn_packing_on_device(const struct attn_device_call *c, const struct attn_kept *kept,
                                   int64_t total, const struct attn_rows *rows,
                                   attn_packing *packing)
{
    const attn_status status = attn_device_ops->pack(c, kept, packing, rows);
    if (status != ATTN_OK)
        return status;
    packing->total = total;
    packing->max_seqlen = total == ATTN_UNKNOWN ? ATTN_UNKNOWN : longest(kept);
    return ATTN_OK;
}

static attn_status pack(const struct attn_kept *kept, attn_packing *packing,
                        const struct attn_call *call)
{
    struct attn_placed arrays[ATTN_PACKING_SPANS];
    struct attn_span spans[ATTN_PACKING_SPANS];
    struct attn_place at;
    int64_t total;
    attn_packing_arrays(kept, packing, arrays);
    attn_status status = attn_find_place(call, arrays, ATTN_PACKING_SPANS, &at);
    if (status == ATTN_OK)
        status = attn_packing_check(kept, packing, at.device, &total, call->message);
    if (status != ATTN_OK)
        return status;
    attn_packing_spans(kept, packing, total, spans);
    status = attn_check_spans(spans, ATTN_PACKING_SPANS, call->message);
    if (status == ATTN_OK && at.device == ATTN_HOST)
        attn_packing_fill(kept, packing);
    else if (status == ATTN_OK)
        status = attn_packing_on_device(&(struct attn_device_call){call->settings, at,
                                                                   call->message},
                                        kept, total, NULL, packing);
    return status;
}

attn_status attn_packing_from_mask(attn_context *context, int64_t batch, int64_t seqlen,
                                   const uint8_t *mask, attn_packing *packing)
{
    const struct attn_kept kept = {batch, seqlen, mask, NULL};
    struct attn_call call;
    const attn_status status = attn_call_begin(&call, context);
    return status == ATTN_OK ? pack(&kept, packing, &call) : status;
}

attn_status attn_packing_from_lengths(attn_context *context, int64_t batch, int64_t seqlen,
                                      const int32_t *lengths, attn_packing *packing)
{
    const struct attn_kept kept = {batch, seqlen, NULL, lengths};
    struct attn_call call;
    const attn_status status = attn_call_begin(&call, context);
    if (status != ATTN_OK)
        return status;
    if (!lengths && batch > 0)
        return attn_say(call.message, ATTN_INVALID_NULL, "lengths: null");
    return pack(&kept, packing, &call);
}

/* *rows = packed rows, or ATTN_UNKNOWN. */
static attn_status check_cu_seqlens(int64_t batch, const int32_t *cu, int32_t device, int64_t *rows,
                                    struct attn_message *m)
{
    *rows = ATTN_UNKNOWN;
    if (batch < 0)
        return attn_say(m, ATTN_INVALID_SHAPE, "batch: %" PRId64, batch);
    if (batch > INT64_MAX / 8)
        return attn_say(m, ATTN_INVALID_OVERFLOW, "batch: %" PRId64, batch);
    if (!cu)
        return attn_say(m, ATTN_INVALID_NULL, "cu_seqlens: null");
    if (!attn_is_known(cu, device))
        return ATTN_OK;
    if (cu[0] != 0)
        return attn_say(m, ATTN_INVALID_LENGTHS, "cu_seqlens[0]: %" PRId32 ", expected 0", cu[0]);
    for (int64_t b = 0; b < batch; b++)
        if (cu[b + 1] < cu[b])
            return attn_say(m, ATTN_INVALID_LENGTHS,
                            "cu_seqlens[%" PRId64 "]: %" PRId32 ", less than %" PRId32
                            " before it", b + 1, cu[b + 1], cu[b]);
    *rows = cu[batch];
    return ATTN_OK;
}

static attn_status check_positions(const struct attn_positions *p, int32_t device, int64_t *rows,
                                   struct attn_message *m)
{
    const attn_status status = check_cu_seqlens(p->batch, p->cu_seqlens, device, rows, m);
    if (status != ATTN_OK)
        return status;
    if (!p->positions && *rows != 0)
        return attn_say(m, ATTN_INVALID_NULL, "positions: null");
    const int64_t entry = sizeof(int32_t);
    const struct attn_span spans[] = {
        {"cu_seqlens", p->cu_seqlens, (p->batch + 1) * entry, false},
        {"offsets", p->offsets, p->batch * entry, false},
        {"positions", p->positions,
         *rows == ATTN_UNKNOWN ? 1 : *rows * (int64_t)sizeof(int64_t), true},
    };
    return attn_check_spans(spans, (int)(sizeof spans / sizeof *spans), m);
}

attn_status attn_position_ids(attn_context *context, int64_t batch, const int32_t *cu_seqlens,
                              const int32_t *offsets, int64_t *positions)
{
    const struct attn_positions p = {batch, cu_seqlens, offsets, positions};
    const struct attn_placed arrays[] = {
        {"positions", positions, sizeof *positions, false},
        {"cu_seqlens", cu_seqlens, sizeof *cu_seqlens, true},
        {"offsets", offsets, sizeof *offsets, true},
    };
    struct attn_call call;
    struct attn_place at;
    int64_t rows;
    attn_status status = attn_call_begin(&call, context);
    if (status == ATTN_OK)
        status = attn_find_place(&call, arrays, (int)(sizeof arrays / sizeof *arrays), &at);
    if (status == ATTN_OK)
        status = check_positions(&p, at.device, &rows, call.message);
    if (status != ATTN_OK)
        return status;
    if (at.device != ATTN_HOST) {
        const struct attn_device_call c = {call.settings, at, call.message};
        return attn_device_ops->positions(&c, &p, rows);
    }
    for (int64_t b = 0; b < batch; b++)
        for (int64_t row = cu_seqlens[b]; row < cu_seqlens[b + 1]; row++)
            positions[row] = attn_position_of(&p, b, row);
    return ATTN_OK;
}
