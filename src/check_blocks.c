/* SPDX-License-Identifier: BSD-3-Clause */
#include "check_blocks.h"

#include <stdio.h>
#include <string.h>

void attn_block_begin(struct attn_block_check *k, int64_t batch, struct attn_message *m)
{
    memset(&k->desc, 0, sizeof k->desc);
    k->desc.batch = batch;
    k->c.d = &k->desc;
    k->c.mode = ATTN_CHECK_RUN;
    memset(&k->problem, 0, sizeof k->problem);
    k->c.p = &k->problem;
    k->c.keep = NULL;
    k->c.count = 0;
    k->named = 0;
    k->c.m = m;
}

attn_status attn_block_extent(struct attn_block_check *k, const char *name, int64_t value,
                              int64_t least)
{
    if (value < least)
        return attn_say(k->c.m, ATTN_INVALID_SHAPE, "%s: %lld (allowed: %lld or more)", name,
                        (long long)value, (long long)least);
    if (value >= ATTN_FAR)
        return attn_say(k->c.m, ATTN_INVALID_OVERFLOW, "%s: %lld (allowed: below 2^60)", name,
                        (long long)value);
    return ATTN_OK;
}

attn_status attn_block_flag(struct attn_block_check *k, const char *name, int32_t value)
{
    return value == 0 || value == 1
               ? ATTN_OK
               : attn_say(k->c.m, ATTN_INVALID_ENUM, "%s: %d (allowed: 0 to 1)", name, (int)value);
}

attn_status attn_block_dtype(struct attn_block_check *k, const char *name, attn_dtype dtype,
                             attn_dtype want)
{
    const attn_status status = attn_check_type(&k->c, name, dtype);
    if (status != ATTN_OK)
        return status;
    if (dtype == ATTN_BOOL)
        return attn_say(k->c.m, ATTN_INVALID_DTYPE, "%s.dtype: bool is for masks only", name);
    if (want != ATTN_BOOL && dtype != want)
        return attn_say(k->c.m, ATTN_INVALID_DTYPE, "%s.dtype: %s, must be %s", name,
                        attn_dtype_name(dtype), attn_dtype_name(want));
    return ATTN_OK;
}

/* "name.field", which stays as long as the check. */
static const char *joined(struct attn_block_check *k, const char *name, const char *field)
{
    char *text = k->names[k->named < ATTN_BLOCK_NAMES - 1 ? k->named++ : k->named];
    snprintf(text, sizeof k->names[0], "%s.%s", name, field);
    return text;
}

static attn_status check_extents(struct attn_block_check *k, const char *name, const attn_side *s)
{
    const struct {
        const char *field;
        int64_t value, least;
    } extents[] = {
        {"seqlen", s->seqlen, 0},
        {"tokens", s->tokens, 0},
        {"max_seqlen", s->max_seqlen, 0},
        {"pages", s->pages, 0},
        {"page_size", s->page_size, s->layout == ATTN_PAGED},
        {"max_pages", s->max_pages, 0},
    };
    int64_t product;
    for (size_t n = 0; n < sizeof extents / sizeof extents[0]; n++) {
        const attn_status status = attn_block_extent(k, joined(k, name, extents[n].field),
                                                     extents[n].value, extents[n].least);
        if (status != ATTN_OK)
            return status;
    }
    if (__builtin_mul_overflow(k->desc.batch, s->seqlen, &product) ||
        __builtin_mul_overflow(s->pages, s->page_size, &product) ||
        __builtin_mul_overflow(s->page_size, s->max_pages, &product) ||
        __builtin_mul_overflow(product, k->desc.batch, &product))
        return attn_say(k->c.m, ATTN_INVALID_OVERFLOW, "%s: its tokens do not fit in 63 bits",
                        name);
    return ATTN_OK;
}

/* The check reads the array, or leaves that to the device that it lies on. */
static attn_status note_reader(struct attn_block_check *k, const char *name, attn_index a,
                               enum attn_array number)
{
    const struct attn_place place = attn_place_of(a.data);
    if (!place.host)
        k->problem.unread |= ATTN_BIT(number);
    return attn_place_unknown(name, place, k->c.m);
}

attn_status attn_block_side(struct attn_block_check *k, const char *name, const attn_side *s,
                            bool may_be_paged, struct attn_axis *axis)
{
    const bool key = may_be_paged;
    const struct {
        const char *field;
        attn_index array;
        int64_t rows, width;
        enum attn_array number;
    } arrays[] = {
        {"cu_seqlens", s->cu_seqlens, 1, k->desc.batch + 1, key ? ATTN_KEY_CU : ATTN_QUERY_CU},
        {"seqused", s->seqused, 1, k->desc.batch, key ? ATTN_KEY_USED : ATTN_QUERY_USED},
        {"block_table", s->block_table, k->desc.batch, s->max_pages, ATTN_KEY_TABLE},
    };
    if ((int)s->layout < ATTN_PADDED || (int)s->layout > ATTN_PAGED)
        return attn_say(k->c.m, ATTN_INVALID_ENUM, "%s.layout: %d (allowed: 0 to %d)", name,
                        (int)s->layout, ATTN_PAGED);
    if (s->layout == ATTN_PAGED && !may_be_paged)
        return attn_say(k->c.m, ATTN_INVALID_CONFLICT,
                        "%s.layout: ATTN_PAGED is for keys and values only", name);
    attn_status status = check_extents(k, name, s);
    for (size_t n = 0; n < sizeof arrays / sizeof arrays[0] && status == ATTN_OK; n++) {
        struct attn_integers unused;
        const char *field = joined(k, name, arrays[n].field);
        status = note_reader(k, field, arrays[n].array, arrays[n].number);
        if (status == ATTN_OK)
            status = attn_block_index(k, field, arrays[n].array, arrays[n].rows, arrays[n].width,
                                      &unused);
    }
    if (status == ATTN_OK)
        status = attn_check_side_fields(&k->c, name, s);
    if (status == ATTN_OK)
        status = attn_check_side_lengths(&k->c, name, s, key, axis);
    return status;
}

attn_status attn_block_report(struct attn_block_check *k, void *report)
{
    const int32_t before = k->c.count;
    const attn_status status = attn_add_rows(&k->c, "report", report, sizeof(uint64_t), 1, 0, 1);
    if (k->c.count > before)
        k->c.operands[before].written = true;
    return status;
}

attn_status attn_block_index(struct attn_block_check *k, const char *name, attn_index a,
                             int64_t rows, int64_t width, struct attn_integers *to)
{
    const int32_t before = k->c.count;
    attn_status status = attn_check_array(&k->c, name, a);
    if (status != ATTN_OK || !a.data)
        return status;
    *to = (struct attn_integers){a.data, a.type == ATTN_I64};
    status = attn_add_rows(&k->c, name, a.data, attn_index_size(a), rows, width, width);
    if (k->c.count > before)
        k->c.operands[before].anywhere = true;
    return status;
}

struct attn_block_shape attn_block_shape_of(const attn_side *s, int64_t batch, int64_t heads,
                                            int64_t run)
{
    struct attn_block_shape shape = {{batch, s->seqlen, heads}, run, false, false};
    if (s->layout == ATTN_PACKED) {
        shape.extent[0] = 1;
        shape.extent[1] = s->tokens;
        shape.packed = true;
    } else if (s->layout == ATTN_PAGED) {
        shape.extent[0] = s->pages;
        shape.extent[1] = s->page_size;
    }
    return shape;
}

static bool contiguous(const struct attn_block_shape *shape, int64_t *stride)
{
    const int inner = shape->heads_first ? 1 : 2, outer = 3 - inner;
    stride[inner] = shape->run;
    const bool fits =
        !__builtin_mul_overflow(shape->run, shape->extent[inner], &stride[outer]) &&
        !__builtin_mul_overflow(stride[outer], shape->extent[outer], &stride[0]);
    if (shape->packed)
        stride[0] = 0;
    return fits;
}

static const char *const axes[] = {"batch_stride", "token_stride", "head_stride"};

attn_status attn_block_view(struct attn_block_check *k, const char *name, attn_input x,
                            const struct attn_block_shape *shape, struct attn_view *view)
{
    int64_t stride[3] = {x.batch_stride, x.token_stride, x.head_stride};
    const int64_t *e = shape->extent;
    if (!x.data && e[0] && e[1] && e[2])
        return attn_say(k->c.m, ATTN_INVALID_NULL, "%s.data: null", name);
    if (shape->packed && stride[0] != ATTN_BROADCAST)
        stride[0] = 0;
    if ((stride[0] | stride[1] | stride[2]) == 0 && !contiguous(shape, stride))
        return attn_say(k->c.m, ATTN_INVALID_OVERFLOW,
                        "%s: %lld x %lld x %lld x %lld elements do not fit in 63 bits", name,
                        (long long)e[0], (long long)e[1], (long long)e[2], (long long)shape->run);
    attn_status status = ATTN_OK;
    for (int n = 0; n < 3 && status == ATTN_OK; n++)
        status = attn_check_stride(&k->c, name, axes[n], e[n], &stride[n]);
    *view = (struct attn_view){(char *)x.data, stride[0], stride[1], stride[2]};
    return status;
}

attn_status attn_block_add(struct attn_block_check *k, const char *name, bool written,
                           const struct attn_view *view, const struct attn_block_shape *shape,
                           int64_t size)
{
    struct attn_operand o = {.name = name, .written = written};
    o.bytes = (struct attn_bytes){.base = (uintptr_t)view->data, .axes = 3, .run = shape->run,
                                  .stride = {view->batch, view->token, view->head}};
    memcpy(o.bytes.extent, shape->extent, sizeof shape->extent);
    return attn_add_operand(&k->c, &o, size, axes);
}

bool attn_block_same(const struct attn_view *a, const struct attn_view *b,
                     const struct attn_block_shape *shape)
{
    const int64_t *e = shape->extent;
    return a->data == b->data && (a->batch == b->batch || e[0] <= 1) &&
           (a->token == b->token || e[1] <= 1) && (a->head == b->head || e[2] <= 1);
}
