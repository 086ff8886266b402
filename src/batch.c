/* SPDX-License-Identifier: BSD-3-Clause */
/* Packings from masks and lengths, and position ids. */
#include "batch.h"

#include <inttypes.h>

#include "context.h"
#include "overlap.h"
#include "place.h"

static bool share_bytes(const struct attn_span *a, const struct attn_span *b)
{
    const struct attn_bytes x = {.base = (uintptr_t)a->data, .run = a->bytes};
    const struct attn_bytes y = {.base = (uintptr_t)b->data, .run = b->bytes};
    return a->data && b->data && attn_bytes_overlap(&x, &y);
}

attn_status attn_check_host(const char *name, const void *data, struct attn_message *m)
{
    const struct attn_place place = attn_place_of(data);
    return place.host ? ATTN_OK
                      : attn_say(m, ATTN_UNSUPPORTED, "%s: lies in memory of device %d, and this "
                                 "call is for host memory", name, (int)place.device);
}

attn_status attn_check_spans(const struct attn_span *spans, int count, struct attn_message *m)
{
    attn_status status = ATTN_OK;
    for (int a = 0; a < count && status == ATTN_OK; a++)
        status = attn_check_host(spans[a].name, spans[a].data, m);
    if (status != ATTN_OK)
        return status;
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

attn_status attn_packing_check(const struct attn_kept *kept, const attn_packing *packing,
                               int64_t *total, struct attn_message *m)
{
    attn_status status = check_extents(kept->batch, kept->seqlen, m);
    if (status == ATTN_OK)
        status = attn_check_host("lengths", kept->lengths, m);
    if (status == ATTN_OK)
        status = attn_check_host("mask", kept->mask, m);
    if (status != ATTN_OK)
        return status;
    if (!packing)
        return attn_say(m, ATTN_INVALID_NULL, "packing: null");
    *total = 0;
    if (kept->lengths) {
        status = check_lengths(kept, total, m);
        if (status != ATTN_OK)
            return status;
    } else if (kept->batch > 0 && kept->seqlen > 0) {
        if (!kept->mask)
            return attn_say(m, ATTN_INVALID_NULL, "mask: null");
        *total = attn_count_kept(kept->mask, kept->batch * kept->seqlen);
    }
    if (*total > INT32_MAX)
        return attn_say(m, ATTN_INVALID_OVERFLOW,
                        "packing.cu_seqlens: %" PRId64 " rows do not fit in 32 bits", *total);
    return ATTN_OK;
}

void attn_packing_spans(const struct attn_kept *kept, const attn_packing *packing, int64_t total,
                        struct attn_span spans[ATTN_PACKING_SPANS])
{
    const int64_t entry = sizeof(int32_t), b = kept->batch;
    const bool in_place = kept->lengths && packing->lengths == kept->lengths;
    const struct attn_span all[ATTN_PACKING_SPANS] = {
        kept->lengths ? (struct attn_span){"lengths", kept->lengths, b * entry, in_place}
                      : (struct attn_span){"mask", kept->mask, b * kept->seqlen, false},
        {"packing.indices", packing->indices, total * (int64_t)sizeof(int64_t), true},
        {"packing.cu_seqlens", packing->cu_seqlens, (b + 1) * entry, true},
        {"packing.lengths", in_place ? NULL : packing->lengths, b * entry, true},
    };
    for (int n = 0; n < ATTN_PACKING_SPANS; n++)
        spans[n] = all[n];
}

/* Length of sequence b; the places of its tokens in [B * S] go to indices unless it is null. */
static int64_t take(const struct attn_kept *kept, int64_t b, int64_t *indices)
{
    const int64_t first = b * kept->seqlen;
    const uint8_t *mask = kept->mask ? kept->mask + first : NULL;
    const int64_t end = kept->lengths ? kept->lengths[b] : kept->seqlen;
    int64_t length = 0;
    if (!indices)
        return mask ? attn_count_kept(mask, end) : end;
    for (int64_t s = 0; s < end; s++)
        if (!mask || mask[s])
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

static attn_status pack(const struct attn_kept *kept, attn_packing *packing, struct attn_message *m)
{
    struct attn_span spans[ATTN_PACKING_SPANS];
    int64_t total;
    attn_status status = attn_packing_check(kept, packing, &total, m);
    if (status != ATTN_OK)
        return status;
    attn_packing_spans(kept, packing, total, spans);
    status = attn_check_spans(spans, ATTN_PACKING_SPANS, m);
    if (status == ATTN_OK)
        attn_packing_fill(kept, packing);
    return status;
}

attn_status attn_packing_from_mask(attn_context *context, int64_t batch, int64_t seqlen,
                                   const uint8_t *mask, attn_packing *packing)
{
    const struct attn_kept kept = {batch, seqlen, mask, NULL};
    struct attn_call call;
    const attn_status status = attn_call_begin(&call, context);
    return status == ATTN_OK ? pack(&kept, packing, call.message) : status;
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
    return pack(&kept, packing, call.message);
}

static attn_status check_cu_seqlens(int64_t batch, const int32_t *cu, struct attn_message *m)
{
    if (batch < 0)
        return attn_say(m, ATTN_INVALID_SHAPE, "batch: %" PRId64, batch);
    if (batch > INT64_MAX / 8)
        return attn_say(m, ATTN_INVALID_OVERFLOW, "batch: %" PRId64, batch);
    if (!cu)
        return attn_say(m, ATTN_INVALID_NULL, "cu_seqlens: null");
    const attn_status status = attn_check_host("cu_seqlens", cu, m);
    if (status != ATTN_OK)
        return status;
    if (cu[0] != 0)
        return attn_say(m, ATTN_INVALID_LENGTHS, "cu_seqlens[0]: %" PRId32 ", expected 0", cu[0]);
    for (int64_t b = 0; b < batch; b++)
        if (cu[b + 1] < cu[b])
            return attn_say(m, ATTN_INVALID_LENGTHS,
                            "cu_seqlens[%" PRId64 "]: %" PRId32 ", less than %" PRId32
                            " before it", b + 1, cu[b + 1], cu[b]);
    return ATTN_OK;
}

attn_status attn_position_ids(attn_context *context, int64_t batch, const int32_t *cu_seqlens,
                              const int32_t *offsets, int64_t *positions)
{
    struct attn_call call;
    attn_status status = attn_call_begin(&call, context);
    if (status == ATTN_OK)
        status = check_cu_seqlens(batch, cu_seqlens, call.message);
    if (status != ATTN_OK)
        return status;
    if (!positions && cu_seqlens[batch] > 0)
        return attn_say(call.message, ATTN_INVALID_NULL, "positions: null");

    const int64_t entry = sizeof(int32_t), rows = cu_seqlens[batch];
    const struct attn_span spans[] = {
        {"cu_seqlens", cu_seqlens, (batch + 1) * entry, false},
        {"offsets", offsets, batch * entry, false},
        {"positions", positions, rows * (int64_t)sizeof(int64_t), true},
    };
    status = attn_check_spans(spans, (int)(sizeof spans / sizeof *spans), call.message);
    if (status != ATTN_OK)
        return status;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t row = cu_seqlens[b]; row < cu_seqlens[b + 1]; row++)
            positions[row] = row - cu_seqlens[b] + (offsets ? offsets[b] : 0);
    return ATTN_OK;
}
