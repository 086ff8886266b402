/* SPDX-License-Identifier: BSD-3-Clause */
/* Arrays of integers: where sequences start, how long they are, which pages they have. */
#include "check_inner.h"

#include <stddef.h>

/* How many entries an array has. */
enum entries { PER_SEQUENCE, OFFSETS, PER_QUERY, PER_KEY, PAGES_OF_SEQUENCES };

static const struct array {
    const char *name;
    size_t offset;
    enum entries entries;
} arrays[] = { /* as enum attn_array counts; documents, which lead nowhere, behind */
    {"query.cu_seqlens", offsetof(attn_desc, query.cu_seqlens), OFFSETS},
    {"query.seqused", offsetof(attn_desc, query.seqused), PER_SEQUENCE},
    {"key.cu_seqlens", offsetof(attn_desc, key.cu_seqlens), OFFSETS},
    {"key.seqused", offsetof(attn_desc, key.seqused), PER_SEQUENCE},
    {"key.block_table", offsetof(attn_desc, key.block_table), PAGES_OF_SEQUENCES},
    {"bias_offset", offsetof(attn_desc, bias_offset), OFFSETS},
    {"prefix", offsetof(attn_desc, prefix), PER_SEQUENCE},
    {"query_docs", offsetof(attn_desc, query_docs), PER_QUERY},
    {"key_docs", offsetof(attn_desc, key_docs), PER_KEY},
};
enum { ARRAYS = sizeof arrays / sizeof arrays[0] };

static int64_t entry(attn_index a, int64_t n)
{
    return attn_index_at(a.data, a.type == ATTN_I64, n);
}

static struct attn_integers integers(attn_index a)
{
    return (struct attn_integers){a.data, a.type == ATTN_I64};
}

const char *attn_array_name(enum attn_array array) { return arrays[array].name; }

attn_status attn_check_array(struct attn_check_state *c, const char *name, attn_index a)
{
    if (!a.data)
        return ATTN_OK;
    if (a.type != ATTN_I32 && a.type != ATTN_I64)
        return attn_say(c->m, ATTN_INVALID_ENUM, "%s.type: %d is no type of integers", name,
                        (int)a.type);
    if ((uintptr_t)a.data % (uintptr_t)attn_index_size(a) != 0)
        return attn_say(c->m, ATTN_INVALID_STRIDE,
                        "%s: address 0x%llx is not a multiple of its entries' %lld bytes", name,
                        (unsigned long long)(uintptr_t)a.data, (long long)attn_index_size(a));
    return ATTN_OK;
}

static attn_status check_readable(struct attn_check_state *c, const char *name, attn_index a)
{
    const struct attn_place place = attn_place_of(a.data);
    const attn_status status = attn_place_unknown(name, place, c->m);
    if (status != ATTN_OK)
        return status;
    if (!place.host)
        return attn_say(c->m, ATTN_UNSUPPORTED, "%s: lies in memory of device %d, and is read on "
                        "the host", name, (int)place.device);
    return ATTN_OK;
}

/* The check reads the array, or leaves that to a backend for the device that it lies on. */
static attn_status check_reader(struct attn_check_state *c, int n, attn_index a)
{
    if (c->mode == ATTN_CHECK_KEEP)
        return check_readable(c, arrays[n].name, a);
    const struct attn_place place = attn_place_of(a.data);
    if (!place.host)
        c->p->unread |= ATTN_BIT(n);
    return attn_place_unknown(arrays[n].name, place, c->m);
}

attn_status attn_check_arrays(struct attn_check_state *c)
{
    attn_status status = ATTN_OK;
    for (int n = 0; n < ARRAYS && status == ATTN_OK; n++) {
        const attn_index a = *(const attn_index *)attn_field(c->d, arrays[n].offset);
        status = attn_check_array(c, arrays[n].name, a);
        if (status == ATTN_OK && n < (int)ATTN_ARRAYS)
            status = check_reader(c, n, a);
    }
    return status;
}

static attn_status add_tokens(struct attn_check_state *c, const struct array *f, attn_index a,
                              const attn_side *side, int64_t span)
{
    const bool packed = side->layout == ATTN_PACKED;
    return attn_add_rows(c, f->name, a.data, attn_index_size(a), packed ? 1 : c->d->batch, span,
                         packed ? side->tokens : span);
}

attn_status attn_add_arrays(struct attn_check_state *c)
{
    const attn_desc *d = c->d;
    const int32_t first = c->count;
    c->p->query_docs = integers(d->query_docs);
    c->p->key_docs = integers(d->key_docs);
    attn_status status = ATTN_OK;
    for (int n = 0; n < ARRAYS && status == ATTN_OK; n++) {
        const struct array *f = &arrays[n];
        const attn_index a = *(const attn_index *)attn_field(d, f->offset);
        switch (f->entries) {
        case PER_QUERY: status = add_tokens(c, f, a, &d->query, c->p->query.span); break;
        case PER_KEY: status = add_tokens(c, f, a, &d->key, c->p->key.span); break;
        case PAGES_OF_SEQUENCES:
            status = attn_add_rows(c, f->name, a.data, attn_index_size(a), d->batch,
                                   d->key.max_pages, d->key.max_pages);
            break;
        default:
            status = attn_add_rows(c, f->name, a.data, attn_index_size(a), 1, 0,
                                   d->batch + (f->entries == OFFSETS));
        }
    }
    for (int32_t n = first; n < c->count; n++)
        c->operands[n].anywhere = true;
    return status;
}

/* One side of the call. */
struct side {
    const char *name; /* "query" or "key" */
    const attn_side *s;
    struct attn_axis *axis;
    bool cu_unread, used_unread, table_unread; /* by the host */
    bool bounded; /* lengths that it cannot read have a bound */
    int64_t longest; /* the sequence axis->max belongs to */
};

static void note_length(struct side *s, int64_t b, int64_t length)
{
    if (length > s->axis->max) {
        s->axis->max = length;
        s->longest = b;
    }
}

static attn_status check_offsets(struct attn_check_state *c, struct side *s)
{
    const attn_index cu = s->s->cu_seqlens;
    int64_t before = entry(cu, 0);
    if (before != 0)
        return attn_say(c->m, ATTN_INVALID_LENGTHS, "%s.cu_seqlens[0]: %lld, not 0", s->name,
                        (long long)before);
    for (int64_t b = 0; b < c->d->batch; b++) {
        const int64_t after = entry(cu, b + 1);
        if (after < before)
            return attn_say(c->m, ATTN_INVALID_LENGTHS,
                            "%s.cu_seqlens[%lld]: %lld is below %s.cu_seqlens[%lld] = %lld",
                            s->name, (long long)b + 1, (long long)after, s->name, (long long)b,
                            (long long)before);
        if (after > s->s->tokens)
            return attn_say(c->m, ATTN_INVALID_LENGTHS,
                            "%s.cu_seqlens[%lld]: %lld is past %s.tokens = %lld", s->name,
                            (long long)b + 1, (long long)after, s->name, (long long)s->s->tokens);
        if (!s->axis->used)
            note_length(s, b, after - before);
        before = after;
    }
    return ATTN_OK;
}

static attn_status check_used(struct attn_check_state *c, struct side *s)
{
    for (int64_t b = 0; b < c->d->batch; b++) {
        const int64_t used = attn_axis_len(s->axis, b);
        const int64_t room = s->cu_unread ? s->s->tokens : attn_axis_room(s->axis, b);
        if (used < 0 || used > room)
            return attn_say(c->m, ATTN_INVALID_LENGTHS, "%s.seqused[%lld]: %lld (allowed: 0 to "
                            "%lld)", s->name, (long long)b, (long long)used, (long long)room);
        note_length(s, b, used);
    }
    return ATTN_OK;
}

/* The pages of used tokens exist. */
static attn_status check_pages(struct attn_check_state *c, const struct side *s)
{
    const attn_side *k = s->s;
    if (s->table_unread || s->used_unread)
        return ATTN_OK;
    for (int64_t b = 0; k->block_table.data && b < c->d->batch; b++)
        for (int64_t n = 0; n * k->page_size < attn_axis_len(s->axis, b); n++) {
            const int64_t page = entry(k->block_table, b * k->max_pages + n);
            if (page < 0 || page >= k->pages)
                return attn_say(c->m, ATTN_INVALID_INDEX,
                                "%s.block_table[%lld][%lld]: page %lld (%s.pages is %lld)", s->name,
                                (long long)b, (long long)n, (long long)page, s->name,
                                (long long)k->pages);
        }
    return ATTN_OK;
}

static attn_status needs(struct attn_check_state *c, const struct side *s, const char *field,
                         const void *data)
{
    static const char *const layouts[] = {"padded", "packed", "paged"};
    return data ? ATTN_OK
                : attn_say(c->m, ATTN_INVALID_NULL, "%s.%s: null, but %s.layout is %s", s->name,
                           field, s->name, layouts[s->s->layout]);
}

static attn_status check_needed(struct attn_check_state *c, const struct side *s)
{
    attn_status status = ATTN_OK;
    if (s->s->layout == ATTN_PACKED)
        status = needs(c, s, "cu_seqlens", s->s->cu_seqlens.data);
    if (s->s->layout == ATTN_PAGED) {
        status = needs(c, s, "seqused", s->s->seqused.data);
        if (status == ATTN_OK && c->mode == ATTN_CHECK_RUN)
            status = needs(c, s, "block_table", s->s->block_table.data);
    }
    return status;
}

static void fill_axis(struct attn_check_state *c, const struct side *s)
{
    struct attn_axis *a = s->axis;
    a->used = s->s->seqused.data;
    a->used64 = s->s->seqused.type == ATTN_I64;
    switch (s->s->layout) {
    case ATTN_PADDED:
        a->room = s->s->seqlen;
        a->rows = c->d->batch * a->room;
        break;
    case ATTN_PACKED:
        a->cu = s->s->cu_seqlens.data;
        a->cu64 = s->s->cu_seqlens.type == ATTN_I64;
        a->rows = s->s->tokens;
        break;
    case ATTN_PAGED:
        a->table = s->s->block_table.data;
        a->table64 = s->s->block_table.type == ATTN_I64;
        a->pages = s->s->pages;
        a->max_pages = s->s->max_pages;
        a->page_size = s->s->page_size;
        a->room = a->max_pages * a->page_size;
        a->rows = c->d->batch * a->room;
        break;
    }
}

/* Lengths that the host cannot read are not above the caller's bound, nor above their room. */
static attn_status bound_lengths(struct attn_check_state *c, struct side *s)
{
    const int64_t bound = s->s->max_seqlen;
    const int64_t room = s->s->layout == ATTN_PACKED ? s->s->tokens : s->axis->room;
    if (bound < 0 || (bound == 0 && s->s->layout != ATTN_PADDED && s->bounded))
        return attn_say(c->m, ATTN_INVALID_LENGTHS, "%s.max_seqlen: %lld, but the lengths lie in a "
                        "device's memory and need a bound", s->name, (long long)bound);
    s->axis->max = bound > 0 && bound < room ? bound : room;
    return ATTN_OK;
}

/* All that can be read of a side's lengths. */
static attn_status check_sequences(struct attn_check_state *c, struct side *s)
{
    attn_status status = ATTN_OK;
    if (s->axis->used ? s->used_unread : s->cu_unread)
        status = bound_lengths(c, s);
    else if (!s->axis->used && !s->axis->cu && c->d->batch > 0)
        note_length(s, 0, s->axis->room);
    if (status == ATTN_OK && s->axis->cu && !s->cu_unread)
        status = check_offsets(c, s);
    if (status == ATTN_OK && s->axis->used && !s->used_unread)
        status = check_used(c, s);
    return status;
}

static attn_status check_side(struct attn_check_state *c, struct side s)
{
    attn_status status = check_needed(c, &s);
    if (status != ATTN_OK)
        return status;
    fill_axis(c, &s);
    status = check_sequences(c, &s);
    if (status == ATTN_OK && s.s->layout == ATTN_PAGED)
        status = check_pages(c, &s);
    if (status != ATTN_OK)
        return status;

    const int64_t bound = s.s->max_seqlen;
    if (bound && bound < s.axis->max) /* of lengths that can be read */
        return attn_say(c->m, ATTN_INVALID_LENGTHS,
                        "%s.max_seqlen: %lld, but sequence %lld has a length of %lld", s.name,
                        (long long)bound, (long long)s.longest, (long long)s.axis->max);
    s.axis->span = s.s->layout == ATTN_PADDED ? s.s->seqlen : bound ? bound : s.axis->max;
    return ATTN_OK;
}

static bool is_unread(const struct attn_check_state *c, enum attn_array array)
{
    return c->p->unread & ATTN_BIT(array);
}

static struct side side_of(const struct attn_check_state *c, const char *name, const attn_side *s,
                           bool key, struct attn_axis *axis)
{
    return (struct side){.name = name, .s = s, .axis = axis,
                         .cu_unread = is_unread(c, key ? ATTN_KEY_CU : ATTN_QUERY_CU),
                         .used_unread = is_unread(c, key ? ATTN_KEY_USED : ATTN_QUERY_USED),
                         .table_unread = key && is_unread(c, ATTN_KEY_TABLE)};
}

attn_status attn_check_side_lengths(struct attn_check_state *c, const char *name,
                                    const attn_side *s, bool key, struct attn_axis *axis)
{
    return check_side(c, side_of(c, name, s, key, axis));
}

/* More than nk is as good as nk. */
static attn_status check_prefix(struct attn_check_state *c)
{
    const attn_index prefix = c->d->prefix;
    const bool read = prefix.data && !is_unread(c, ATTN_PREFIX);
    for (int64_t b = 0; read && b < c->d->batch; b++)
        if (entry(prefix, b) < 0)
            return attn_say(c->m, ATTN_INVALID_LENGTHS, "prefix[%lld]: %lld (allowed: 0 or more)",
                            (long long)b, (long long)entry(prefix, b));
    c->p->prefix = integers(prefix);
    return ATTN_OK;
}

attn_status attn_check_lengths(struct attn_check_state *c)
{
    struct side query = side_of(c, "query", &c->d->query, false, &c->p->query);
    struct side key = side_of(c, "key", &c->d->key, true, &c->p->key);
    query.bounded = key.bounded = true;
    if (c->d->query.layout == ATTN_PAGED)
        return attn_say(c->m, ATTN_INVALID_CONFLICT,
                        "query.layout: ATTN_PAGED is for keys and values only");
    attn_status status = check_side(c, query);
    if (status == ATTN_OK)
        status = check_side(c, key);
    return status == ATTN_OK ? check_prefix(c) : status;
}
