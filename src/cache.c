/* SPDX-License-Identifier: BSD-3-Clause */
/* New tokens for a KV cache. */
#include <string.h>

#include "on_device.h"
#include "fpenv.h"
#include "rotary.h"

/* Bytes of a map of pages up to which it lies on the stack. */
enum { SMALL_MAP = 16384 };

/* What joins, and what was there before it. */
static int64_t new_of(const struct attn_append *a, int64_t b)
{
    return attn_axis_len(&a->k.from, b);
}
static int64_t before_of(const struct attn_append *a, int64_t b)
{
    return attn_axis_len(&a->k.to, b);
}

/* ------------------------------------------------------------------------------------------------
 * The check
 * --------------------------------------------------------------------------------------------- */

static attn_status check_shape(struct attn_block_check *k, const attn_append_desc *d)
{
    const struct {
        const char *name;
        int64_t value, least;
    } extents[] = {
        {"batch", d->batch, 0},
        {"heads_kv", d->heads_kv, 0},
        {"head_dim", d->head_dim, 1},
        {"head_dim_v", d->head_dim_v, 0},
    };
    attn_status status = ATTN_OK;
    for (size_t n = 0; n < sizeof extents / sizeof extents[0] && status == ATTN_OK; n++)
        status = attn_block_extent(k, extents[n].name, extents[n].value, extents[n].least);
    return status == ATTN_OK ? attn_block_flag(k, "rotary", d->rotary) : status;
}

static attn_status check_rotation(struct attn_block_check *k, const attn_append_desc *d,
                                  struct attn_append *a)
{
    const attn_rotation *r = &d->rotation;
    if (d->rotary) {
        const attn_index none = {NULL, ATTN_I32};
        const attn_status status = attn_check_rotation(k, r, &a->k);
        return status == ATTN_OK ? attn_check_positions(k, d->positions, none, "", &a->k) : status;
    }
    if (d->positions.data)
        return attn_say(k->c.m, ATTN_INVALID_CONFLICT, "positions: given, but rotary is 0");
    if (r->dim || r->base != 0 || r->frequency || r->pairing)
        return attn_say(k->c.m, ATTN_INVALID_CONFLICT, "rotation: given, but rotary is 0");
    return ATTN_OK;
}

/* The lengths after have room; where the host cannot read all of them that is left to the device.
 */
static attn_status check_room(struct attn_block_check *k, const attn_append_desc *d,
                              const struct attn_append *a)
{
    const bool read = !(k->problem.unread & ~ATTN_BIT(ATTN_KEY_TABLE));
    for (int64_t b = 0; read && b < d->batch; b++) {
        const int64_t before = before_of(a, b), n = new_of(a, b);
        const int64_t room = attn_axis_room(&a->k.to, b);
        if (n > room - before)
            return attn_say(k->c.m, ATTN_INVALID_LENGTHS,
                            "cache.seqused[%lld]: %lld, and %lld new tokens, but there is room for "
                            "%lld", (long long)b, (long long)before, (long long)n, (long long)room);
        if (d->lengths && !a->k.to.used64 && before + n > INT32_MAX)
            return attn_say(k->c.m, ATTN_INVALID_OVERFLOW,
                            "lengths[%lld]: %lld does not fit in 32 bits", (long long)b,
                            (long long)(before + n));
    }
    return ATTN_OK;
}

/* A tensor and the cache it goes to. */
static attn_status check_pair(struct attn_block_check *k, const attn_append_desc *d,
                              struct attn_tokens *t, attn_input x, attn_output cache, bool keys)
{
    const char *name = keys ? "k" : "v", *cache_name = keys ? "k_cache" : "v_cache";
    const struct attn_block_shape from =
        attn_block_shape_of(&d->tokens, d->batch, d->heads_kv, t->head_dim);
    const struct attn_block_shape to =
        attn_block_shape_of(&d->cache, d->batch, d->heads_kv, t->head_dim);
    const int64_t size = attn_dtype_size(t->dtype);
    attn_status status = attn_block_dtype(k, name, x.dtype, t->dtype);
    if (status == ATTN_OK)
        status = attn_block_dtype(k, cache_name, cache.dtype, t->dtype);
    if (status == ATTN_OK)
        status = attn_block_view(k, name, x, &from, &t->x);
    if (status == ATTN_OK)
        status = attn_block_view(k, cache_name, attn_block_output(cache), &to, &t->out);
    if (status == ATTN_OK)
        status = attn_block_add(k, name, false, &t->x, &from, size);
    if (status == ATTN_OK)
        status = attn_block_add(k, cache_name, true, &t->out, &to, size);
    return status;
}

/* Lengths written over those before are no operand of their own. */
static attn_status add_lengths(struct attn_block_check *k, const attn_append_desc *d)
{
    if (d->lengths == d->cache.seqused.data) {
        for (int32_t n = 0; n < k->c.count; n++)
            if (strcmp(k->c.operands[n].name, "cache.seqused") == 0) {
                k->c.operands[n].written = true;
                k->c.operands[n].anywhere = false;
            }
        return ATTN_OK;
    }
    const attn_status status = attn_add_rows(&k->c, "lengths", d->lengths,
                                             attn_index_size(d->cache.seqused), 1, 0, d->batch);
    if (status == ATTN_OK && d->lengths && k->c.count > 0)
        k->c.operands[k->c.count - 1].written = true;
    return status;
}

static attn_status check_tensors(struct attn_block_check *k, const attn_append_desc *d,
                                 struct attn_append *a)
{
    attn_status status = check_pair(k, d, &a->k, d->k, d->k_cache, true);
    if (status == ATTN_OK && a->values)
        status = check_pair(k, d, &a->v, d->v, d->v_cache, false);
    if (status == ATTN_OK)
        status = add_lengths(k, d);
    return status == ATTN_OK ? attn_check_overlap(&k->c) : status;
}

/* *place: of the tensors. */
static attn_status check_append(const attn_append_desc *d, struct attn_append *a,
                                struct attn_place *place, struct attn_message *m)
{
    struct attn_block_check k;
    attn_block_begin(&k, d->batch, m);
    *a = (struct attn_append){.values = d->v.data || d->v_cache.data, .pages = d->cache.pages,
                         .lengths = d->lengths};
    a->k = (struct attn_tokens){.dtype = d->k.dtype, .batch = d->batch, .heads = d->heads_kv,
                                .head_dim = d->head_dim};
    attn_status status = check_shape(&k, d);
    if (status == ATTN_OK)
        status = attn_block_dtype(&k, "k", d->k.dtype, ATTN_BOOL);
    if (status == ATTN_OK)
        status = attn_block_side(&k, "tokens", &d->tokens, false, &a->k.from);
    if (status == ATTN_OK && !d->cache.seqused.data && d->batch > 0)
        status = attn_say(m, ATTN_INVALID_NULL, "cache.seqused: null");
    if (status == ATTN_OK)
        status = attn_block_side(&k, "cache", &d->cache, true, &a->k.to);
    if (status == ATTN_OK)
        status = check_rotation(&k, d, a);
    if (status == ATTN_OK)
        status = check_room(&k, d, a);
    a->k.unread = k.problem.unread;
    a->k.report = d->report;
    if (status == ATTN_OK)
        status = attn_block_report(&k, d->report);
    a->k.shift = a->k.offsets = (struct attn_integers){a->k.to.used, a->k.to.used64};
    a->v = a->k;
    a->v.head_dim = d->head_dim_v ? d->head_dim_v : d->head_dim;
    memset(&a->v.rotation, 0, sizeof a->v.rotation);
    if (status == ATTN_OK)
        status = check_tensors(&k, d, a);
    *place = k.problem.place;
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * Pages
 * --------------------------------------------------------------------------------------------- */

/* Every page that is written exists and is written for one sequence once. map: a bit for each page,
 * all 0. */
static attn_status check_pages(const struct attn_append *a, unsigned char *map,
                               struct attn_message *m)
{
    const struct attn_axis *cache = &a->k.to;
    for (int64_t b = 0; b < a->k.batch; b++) {
        const int64_t before = before_of(a, b), after = before + new_of(a, b);
        if (before == after)
            continue;
        for (int64_t n = before / cache->page_size; n * cache->page_size < after; n++) {
            const int64_t page =
                attn_index_at(cache->table, cache->table64, b * cache->max_pages + n);
            if (page < 0 || page >= a->pages)
                return attn_say(m, ATTN_INVALID_INDEX,
                                "cache.block_table[%lld][%lld]: page %lld (cache.pages is %lld)",
                                (long long)b, (long long)n, (long long)page, (long long)a->pages);
            if (map[page / 8] >> page % 8 & 1)
                return attn_say(m, ATTN_INVALID_OVERLAP,
                                "cache.block_table[%lld][%lld]: page %lld would be written twice",
                                (long long)b, (long long)n, (long long)page);
            map[page / 8] |= (unsigned char)(1 << page % 8);
        }
    }
    return ATTN_OK;
}

static attn_status map_pages(const struct attn_call *call, const struct attn_append *a)
{
    const attn_allocator *memory = &call->settings->allocator;
    const size_t bytes = (size_t)(a->pages / 8 + 1);
    unsigned char small[SMALL_MAP];
    if (bytes <= sizeof small) {
        memset(small, 0, bytes);
        return check_pages(a, small, call->message);
    }
    unsigned char *map = memory->alloc(memory->user, bytes, ATTN_ALIGN);
    if (!map)
        return attn_say(call->message, ATTN_NO_MEMORY, "cache.pages: no memory for %zu bytes",
                        bytes);
    memset(map, 0, bytes);
    const attn_status status = check_pages(a, map, call->message);
    memory->release(memory->user, map, bytes);
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * The call
 * --------------------------------------------------------------------------------------------- */

static void put_lengths(const struct attn_append *a)
{
    for (int64_t b = 0; a->lengths && b < a->k.batch; b++) {
        const int64_t after = before_of(a, b) + new_of(a, b);
        if (a->k.to.used64)
            ((int64_t *)a->lengths)[b] = after;
        else
            ((int32_t *)a->lengths)[b] = (int32_t)after;
    }
}

/* A sound call, and the device for it. */
static attn_status begin(attn_context *context, const attn_append_desc *desc,
                         struct attn_call *call, struct attn_append *a, struct attn_place *at)
{
    struct attn_place place;
    attn_append_desc d;
    attn_status status = attn_call_begin(call, context);
    if (status == ATTN_OK)
        status = attn_check_copy(desc, sizeof d, &d, sizeof d, "attn_append_desc_init",
                                 call->message);
    if (status == ATTN_OK)
        status = check_append(&d, a, &place, call->message);
    if (status == ATTN_OK && a->k.to.table && !a->k.unread)
        status = map_pages(call, a);
    return status == ATTN_OK ? attn_settle_tokens(call, "k_cache", place, &a->k, at) : status;
}

static attn_status append(attn_context *context, const attn_append_desc *desc)
{
    struct attn_call call;
    struct attn_append a;
    struct attn_place at;
    const attn_status status = begin(context, desc, &call, &a, &at);
    if (status != ATTN_OK)
        return status;
    if (at.device != ATTN_HOST) {
        const struct attn_device_call c = {call.settings, at, call.message};
        return attn_device_ops->append(&c, &a);
    }
    attn_tokens_move(&call, &a.k);
    if (a.values)
        attn_tokens_move(&call, &a.v);
    put_lengths(&a);
    return ATTN_OK;
}

attn_status attn_cache_append(attn_context *context, const attn_append_desc *desc)
{
    const attn_fpenv env = attn_fpenv_enter();
    const attn_status status = append(context, desc);
    attn_fpenv_leave(env);
    return status;
}

static attn_status append_status(attn_context *context, const attn_append_desc *desc)
{
    struct attn_call call;
    struct attn_append a;
    struct attn_place at;
    const attn_status status = begin(context, desc, &call, &a, &at);
    return status == ATTN_OK ? attn_tokens_status(&call, &a.k, at) : status;
}

attn_status attn_cache_append_status(attn_context *context, const attn_append_desc *desc)
{
    const attn_fpenv env = attn_fpenv_enter();
    const attn_status status = append_status(context, desc);
    attn_fpenv_leave(env);
    return status;
}
