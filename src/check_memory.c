/* SPDX-License-Identifier: BSD-3-Clause */
/* Where tensors and arrays lie: alignment, size, overlap; and masks, which are only memory. */
#include "check_inner.h"

#include <stdio.h>

static attn_status too_large(struct attn_check_state *c, const struct attn_operand *o, int32_t n,
                             const char *const *axes)
{
    return attn_say(c->m, ATTN_INVALID_OVERFLOW,
                    "%s.%s: %lld elements, %lld times, do not fit in 63 bits of bytes", o->name,
                    axes[n], (long long)o->bytes.stride[n], (long long)o->bytes.extent[n]);
}

attn_status attn_add_operand(struct attn_check_state *c, const struct attn_operand *o, int64_t size,
                             const char *const *axes)
{
    struct attn_operand made = *o;
    struct attn_bytes *b = &made.bytes;
    int64_t reach;
    if (b->base % (uintptr_t)size != 0)
        return attn_say(c->m, ATTN_INVALID_STRIDE,
                        "%s: address 0x%llx is not a multiple of its elements' %lld bytes", o->name,
                        (unsigned long long)b->base, (long long)size);
    if (__builtin_mul_overflow(b->run, size, &b->run))
        return attn_say(c->m, ATTN_INVALID_OVERFLOW, "%s: %lld elements do not fit in 63 bits of "
                        "bytes", o->name, (long long)o->bytes.run);
    reach = b->run;
    for (int32_t n = 0; n < b->axes; n++) {
        int64_t last;
        if (b->extent[n] <= 1)
            b->stride[n] = 0;
        else if (__builtin_mul_overflow(b->stride[n], size, &b->stride[n]) ||
                 __builtin_mul_overflow(b->stride[n], b->extent[n] - 1, &last) ||
                 __builtin_add_overflow(reach, last, &reach))
            return too_large(c, o, n, axes);
    }
    if (b->base + (uintptr_t)reach < b->base)
        return attn_say(c->m, ATTN_INVALID_OVERFLOW, "%s: 0x%llx and %lld bytes more is no address",
                        o->name, (unsigned long long)b->base, (long long)reach);
    if (b->base && c->count < ATTN_OPERANDS)
        c->operands[c->count++] = made;
    return ATTN_OK;
}

attn_status attn_add_rows(struct attn_check_state *c, const char *name, const void *data,
                          int64_t size, int64_t rows, int64_t stride, int64_t width)
{
    static const char *const axes[] = {"batch_stride"};
    struct attn_operand o = {.name = name};
    o.bytes = (struct attn_bytes){.base = (uintptr_t)data, .axes = 1, .run = width};
    o.bytes.extent[0] = rows;
    o.bytes.stride[0] = stride;
    return data ? attn_add_operand(c, &o, size, axes) : ATTN_OK;
}

attn_status attn_check_stride(struct attn_check_state *c, const char *name, const char *axis,
                              int64_t extent, int64_t *stride)
{
    const int64_t most = INT64_C(1) << 40; /* no memory is that large, and sums of some fit */
    if (*stride == ATTN_BROADCAST)
        *stride = 0;
    if (*stride < 0)
        return attn_say(c->m, ATTN_INVALID_STRIDE, "%s.%s: %lld is negative", name, axis,
                        (long long)*stride);
    if (extent <= 1 && *stride > most)
        *stride = most;
    return ATTN_OK;
}

/* Adds a mask [B, span] or [T], if it is given, and sets *bytes. */
static attn_status add_mask(struct attn_check_state *c, const char *name, attn_token_mask mask,
                            const attn_side *side, int64_t span, struct attn_token_bytes *bytes)
{
    const bool packed = side->layout == ATTN_PACKED;
    int64_t stride = packed ? 0 : mask.batch_stride ? mask.batch_stride : span;
    if (!mask.data)
        return ATTN_OK;
    const int64_t rows = packed ? 1 : c->d->batch, width = packed ? side->tokens : span;
    const attn_status status = attn_check_stride(c, name, "batch_stride", rows, &stride);
    if (status != ATTN_OK)
        return status;
    *bytes = (struct attn_token_bytes){mask.data, stride};
    return attn_add_rows(c, name, mask.data, 1, rows, stride, width);
}

attn_status attn_add_masks(struct attn_check_state *c)
{
    const attn_desc *d = c->d;
    struct attn_problem *p = c->p;
    const attn_status status =
        add_mask(c, "key_mask", d->key_mask, &d->key, p->key.span, &p->key_mask);
    if (status != ATTN_OK)
        return status;
    return add_mask(c, "query_mask", d->query_mask, &d->query, p->query.span, &p->query_mask);
}

/* A place; the first that has been found there, and the first that the host cannot reach; null:
 * none has. */
struct found {
    struct attn_place place;
    const char *name, *far;
};

/* The operand, which lies at `at`, joins those that have been found. */
static attn_status join(struct attn_check_state *c, const struct attn_operand *o,
                        struct attn_place at, struct found *before)
{
    if (before->name && !attn_places_meet(at, before->place))
        return attn_lie_apart(o->name, at, before->name, before->place, c->m);
    if (!before->name)
        *before = (struct found){at, o->name, NULL};
    if (!before->place.context)
        before->place.context = at.context;
    if (!before->far && !at.host)
        before->far = o->name;
    before->place.host = !before->far;
    return ATTN_OK;
}

/* Tensors lie in one place. Those without elements lie anywhere, and their addresses tell no more
 * than what to take where nothing else tells. */
static attn_status check_tensor_places(struct attn_check_state *c, struct found *before)
{
    const bool computed = c->p && c->mode != ATTN_CHECK_KEEP; /* by a backend, perhaps a device */
    char here[ATTN_PLACE_NAME];
    for (int32_t n = 0; n < c->count; n++) {
        const struct attn_operand *o = &c->operands[n];
        const bool empty = attn_bytes_reach(&o->bytes) == 0;
        if (o->anywhere || (empty && (before->name || !computed)))
            continue;
        const struct attn_place at = attn_place_of((const void *)o->bytes.base);
        attn_status status = attn_place_unknown(o->name, at, c->m);
        if (status != ATTN_OK)
            return status;
        if (empty) {
            *before = (struct found){at, NULL, at.host ? NULL : o->name};
            continue;
        }
        if (!computed && !at.host)
            return attn_say(c->m, ATTN_UNSUPPORTED, "%s: lies in %s, and this call is for host "
                            "memory", o->name, attn_place_name(at, here));
        status = join(c, o, at, before);
        if (status != ATTN_OK)
            return status;
    }
    return ATTN_OK;
}

/* Host memory goes with either; a device's only with tensors on it, or with none. */
static attn_status check_array_places(struct attn_check_state *c, struct found *before)
{
    for (int32_t n = 0; n < c->count; n++) {
        const struct attn_operand *o = &c->operands[n];
        if (!o->anywhere || attn_bytes_reach(&o->bytes) == 0)
            continue;
        const struct attn_place at = attn_place_of((const void *)o->bytes.base);
        attn_status status = attn_place_unknown(o->name, at, c->m);
        if (status != ATTN_OK)
            return status;
        if (at.host)
            continue;
        status = join(c, o, at, before);
        if (status != ATTN_OK)
            return status;
    }
    return ATTN_OK;
}

attn_status attn_check_places(struct attn_check_state *c)
{
    struct found found = {attn_host_place(), NULL, NULL};
    attn_status status = check_tensor_places(c, &found);
    if (status == ATTN_OK)
        status = check_array_places(c, &found);
    if (c->p) {
        c->p->place = found.place;
        c->p->far = found.far;
    }
    return status;
}

static attn_status overlaps_itself(struct attn_check_state *c, const struct attn_operand *o)
{
    const int64_t *s = o->bytes.stride;
    char last[32] = "";
    if (o->bytes.axes > 3)
        snprintf(last, sizeof last, ", %lld", (long long)s[3]);
    return attn_say(c->m, ATTN_INVALID_OVERLAP,
                    "%s: two of its elements share memory (strides in bytes: %lld, %lld, %lld%s)",
                    o->name, (long long)s[0], (long long)s[1], (long long)s[2], last);
}

static attn_status overlaps(struct attn_check_state *c, const struct attn_operand *a,
                            const struct attn_operand *b)
{
    return attn_say(c->m, ATTN_INVALID_OVERLAP,
                    "%s: shares memory with %s (they start at 0x%llx and 0x%llx)", a->name, b->name,
                    (unsigned long long)a->bytes.base, (unsigned long long)b->bytes.base);
}

attn_status attn_check_overlap(struct attn_check_state *c)
{
    const attn_status status = attn_check_places(c);
    if (status != ATTN_OK || c->mode == ATTN_CHECK_SHAPE)
        return status;
    const attn_desc *d = c->d;
    if (d->workspace && c->count < ATTN_OPERANDS) {
        struct attn_operand *o = &c->operands[c->count++];
        *o = (struct attn_operand){.name = "workspace", .written = true};
        o->bytes.base = (uintptr_t)d->workspace;
        o->bytes.run = d->workspace_bytes < INT64_MAX ? (int64_t)d->workspace_bytes : INT64_MAX;
    }
    for (int32_t i = 0; i < c->count; i++) {
        const struct attn_operand *a = &c->operands[i];
        if (!a->written)
            continue;
        if (attn_bytes_overlap_self(&a->bytes))
            return overlaps_itself(c, a);
        for (int32_t j = 0; j < c->count; j++) {
            const struct attn_operand *b = &c->operands[j];
            if (j != i && (j > i || !b->written) && attn_bytes_overlap(&a->bytes, &b->bytes))
                return overlaps(c, a, b);
        }
    }
    return ATTN_OK;
}
