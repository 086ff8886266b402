/* SPDX-License-Identifier: BSD-3-Clause */
/* Rotary position embedding: its check. The work is that of tokens.c. */
#include "rotary.h"

#include <math.h>
#include <string.h>

#include "on_device.h"
#include "fpenv.h"

static attn_status check_frequency(struct attn_block_check *k, const attn_rotation *r)
{
    const int64_t pairs = r->dim / 2;
    if (r->base != 0)
        return attn_say(k->c.m, ATTN_INVALID_CONFLICT,
                        "rotation.base: %g, but rotation.frequency is given", r->base);
    const struct attn_place place = attn_place_of(r->frequency);
    attn_status status = attn_place_unknown("rotation.frequency", place, k->c.m);
    if (status != ATTN_OK)
        return status;
    if (!place.host)
        return attn_say(k->c.m, ATTN_UNSUPPORTED, "rotation.frequency: lies in memory of device "
                        "%d, and is read on the host", (int)place.device);
    const int32_t before = k->c.count;
    status = attn_add_rows(&k->c, "rotation.frequency", r->frequency, sizeof *r->frequency, 1, 0,
                           pairs);
    if (k->c.count > before)
        k->c.operands[before].anywhere = true;
    for (int64_t n = 0; n < pairs && status == ATTN_OK; n++)
        if (!isfinite(r->frequency[n]))
            return attn_say(k->c.m, ATTN_INVALID_VALUE,
                            "rotation.frequency[%lld]: %g is not finite", (long long)n,
                            r->frequency[n]);
    return status;
}

attn_status attn_check_rotation(struct attn_block_check *k, const attn_rotation *given,
                                struct attn_tokens *t)
{
    attn_rotation *r = &t->rotation;
    *r = *given;
    if ((int)r->pairing < ATTN_HALF_SPLIT || (int)r->pairing > ATTN_INTERLEAVED)
        return attn_say(k->c.m, ATTN_INVALID_ENUM, "rotation.pairing: %d (allowed: 0 to %d)",
                        (int)r->pairing, ATTN_INTERLEAVED);
    if (r->dim < 0 || r->dim > t->head_dim || r->dim % 2 != 0)
        return attn_say(k->c.m, ATTN_INVALID_SHAPE,
                        "rotation.dim: %lld (allowed: even, up to head_dim = %lld)",
                        (long long)r->dim, (long long)t->head_dim);
    if (r->dim == 0 && t->head_dim % 2 != 0)
        return attn_say(k->c.m, ATTN_INVALID_SHAPE,
                        "rotation.dim: 0 stands for head_dim = %lld, which is odd",
                        (long long)t->head_dim);
    if (r->dim == 0)
        r->dim = t->head_dim;
    if (r->frequency)
        return check_frequency(k, r);
    if (r->base == 0)
        r->base = 10000;
    if (!(r->base >= 1 && isfinite(r->base)))
        return attn_say(k->c.m, ATTN_INVALID_VALUE,
                        "rotation.base: %g (allowed: 1 or more, finite)", r->base);
    return ATTN_OK;
}

attn_status attn_check_positions(struct attn_block_check *k, attn_index positions,
                                 attn_index offsets, const char *offsets_name,
                                 struct attn_tokens *t)
{
    const struct attn_axis *axis = &t->from;
    attn_status status =
        attn_block_index(k, "positions", positions, axis->cu ? 1 : t->batch,
                         axis->cu ? axis->rows : axis->span, &t->positions);
    if (status == ATTN_OK)
        status = attn_block_index(k, offsets_name, offsets, 1, t->batch, &t->offsets);
    const bool known = attn_place_of(t->offsets.data).device == ATTN_HOST;
    for (int64_t b = 0; status == ATTN_OK && t->offsets.data && known && b < t->batch; b++) {
        const int64_t at = attn_index_at(t->offsets.data, t->offsets.is64, b);
        if (at < -ATTN_FAR || at > ATTN_FAR)
            return attn_say(k->c.m, ATTN_INVALID_VALUE,
                            "%s[%lld]: %lld (allowed: -2^60 to 2^60)", offsets_name, (long long)b,
                            (long long)at);
    }
    return status;
}

/* The fields but the tensors. */
static attn_status check_fields(struct attn_block_check *k, const attn_rotary_desc *d,
                                struct attn_tokens *t)
{
    attn_status status = attn_block_extent(k, "batch", d->batch, 0);
    if (status == ATTN_OK)
        status = attn_block_extent(k, "heads", d->heads, 0);
    if (status == ATTN_OK)
        status = attn_block_extent(k, "head_dim", d->head_dim, 1);
    if (status == ATTN_OK)
        status = attn_block_flag(k, "inverse", d->inverse);
    if (status == ATTN_OK)
        status = attn_block_dtype(k, "x", d->x.dtype, ATTN_BOOL);
    if (status == ATTN_OK)
        status = attn_block_dtype(k, "out", d->out.dtype, d->x.dtype);
    if (status == ATTN_OK && d->positions.data && d->offsets.data)
        status = attn_say(k->c.m, ATTN_INVALID_CONFLICT, "offsets: given, but so is positions");
    if (status == ATTN_OK)
        status = attn_block_side(k, "tokens", &d->tokens, false, &t->from);
    if (status == ATTN_OK)
        status = attn_check_rotation(k, &d->rotation, t);
    if (status == ATTN_OK)
        status = attn_check_positions(k, d->positions, d->offsets, "offsets", t);
    return status;
}

/* *place: of x and out. */
static attn_status check_rotary(const attn_rotary_desc *d, struct attn_tokens *t,
                                struct attn_place *place, struct attn_message *m)
{
    const struct attn_block_shape shape =
        attn_block_shape_of(&d->tokens, d->batch, d->heads, d->head_dim);
    const int64_t size = attn_dtype_size(d->x.dtype);
    struct attn_block_check k;
    attn_block_begin(&k, d->batch, m);
    *t = (struct attn_tokens){.dtype = d->x.dtype, .batch = d->batch, .heads = d->heads,
                              .head_dim = d->head_dim, .inverse = d->inverse,
                              .report = d->report};
    attn_status status = check_fields(&k, d, t);
    t->to = t->from;
    t->unread = k.problem.unread;
    if (status == ATTN_OK)
        status = attn_block_report(&k, d->report);
    if (status == ATTN_OK)
        status = attn_block_view(&k, "x", d->x, &shape, &t->x);
    if (status == ATTN_OK)
        status = attn_block_view(&k, "out", attn_block_output(d->out), &shape, &t->out);
    if (status == ATTN_OK)
        status = attn_block_add(&k, "out", true, &t->out, &shape, size);
    if (status == ATTN_OK && !attn_block_same(&t->x, &t->out, &shape))
        status = attn_block_add(&k, "x", false, &t->x, &shape, size);
    if (status == ATTN_OK)
        status = attn_check_overlap(&k.c);
    *place = k.problem.place;
    return status;
}

/* Tokens past the used lengths become 0. */
static void clear_unused(const struct attn_tokens *t)
{
    const struct attn_problem rows = {.dtype = t->dtype, .batch = t->batch, .heads_q = t->heads,
                                      .head_dim_v = t->head_dim, .query = t->from, .out = t->out};
    attn_clear_unused_rows(&rows);
}

/* A sound call, and the device for it. */
static attn_status begin(attn_context *context, const attn_rotary_desc *desc,
                         struct attn_call *call, struct attn_tokens *t, struct attn_place *at)
{
    struct attn_place place;
    attn_rotary_desc d;
    attn_status status = attn_call_begin(call, context);
    if (status == ATTN_OK)
        status = attn_check_copy(desc, sizeof d, &d, sizeof d, "attn_rotary_desc_init",
                                 call->message);
    if (status == ATTN_OK)
        status = check_rotary(&d, t, &place, call->message);
    return status == ATTN_OK ? attn_settle_tokens(call, "out", place, t, at) : status;
}

static attn_status rotate(attn_context *context, const attn_rotary_desc *desc)
{
    struct attn_call call;
    struct attn_tokens t;
    struct attn_place at;
    const attn_status status = begin(context, desc, &call, &t, &at);
    if (status != ATTN_OK)
        return status;
    if (at.device != ATTN_HOST) {
        const struct attn_device_call c = {call.settings, at, call.message};
        return attn_device_ops->rotate(&c, &t);
    }
    attn_tokens_move(&call, &t);
    clear_unused(&t);
    return ATTN_OK;
}

attn_status attn_rotary(attn_context *context, const attn_rotary_desc *desc)
{
    const attn_fpenv env = attn_fpenv_enter();
    const attn_status status = rotate(context, desc);
    attn_fpenv_leave(env);
    return status;
}

static attn_status rotary_status(attn_context *context, const attn_rotary_desc *desc)
{
    struct attn_call call;
    struct attn_tokens t;
    struct attn_place at;
    const attn_status status = begin(context, desc, &call, &t, &at);
    return status == ATTN_OK ? attn_tokens_status(&call, &t, at) : status;
}

attn_status attn_rotary_status(attn_context *context, const attn_rotary_desc *desc)
{
    const attn_fpenv env = attn_fpenv_enter();
    const attn_status status = rotary_status(context, desc);
    attn_fpenv_leave(env);
    return status;
}
