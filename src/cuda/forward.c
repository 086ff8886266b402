/* SPDX-License-Identifier: BSD-3-Clause */
/* The forward kernels for a problem: instances, grids, workspace. */
#include "cuda/forward.h"

#include <string.h>

/* Bytes of keys and values that stay in a device's cache while all rows go over them. */
#ifndef ATTN_CUDA_CACHE
#define ATTN_CUDA_CACHE (32 << 20)
#endif

enum {
    ALIGN = 256,        /* bytes, of each part of the workspace */
    SHORT_CHUNK = 256,  /* keys, at least, of a split: what it reads outweighs what it leaves */
    TALL_CHUNK = 512,
    MOST_TILES = 4,     /* share.h */
    MOST_SPLITS = 128,
    LIST_THREADS = 256, /* around.h */
    LIST_SHARED = 2048,
    COMBINE_THREADS = 128,
    COMBINE_SHARED = 5120,
    COMBINE_BLOCKS = 16, /* for a sequence and head whose rows are a few, each one of them; where */
    COMBINE_ROWS = 16    /* they are many not for each, as most sequences may not be split */
};
#define MOST_STRIDE (INT64_C(1) << 38) /* elements of a map's axis: of it, not more bytes than 2^40 */

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t parts_of(int64_t n, int64_t size) { return n / size + (n % size > 0); }

/* a b, both at least 0; ATTN_CUDA_TOO_MANY stands for all that is more. */
static int64_t times(int64_t a, int64_t b)
{
    int64_t product;
    const bool fits = !__builtin_mul_overflow(a, b, &product);
    return fits ? min64(product, ATTN_CUDA_TOO_MANY) : ATTN_CUDA_TOO_MANY;
}

/* Rows of the longest sequence. */
static int64_t longest_of(const struct attn_problem *p) { return times(p->query.max, p->group); }

static const struct attn_cuda_pair *table_of(attn_dtype t)
{
    switch (t) {
    case ATTN_F64: return attn_cuda_f64;
    case ATTN_F16: return attn_cuda_f16;
    case ATTN_BF16: return attn_cuda_bf16;
    default: return attn_cuda_f32;
    }
}

/* Null: none that makes more of the capability. */
static const struct attn_cuda_pair *better_table_of(attn_dtype t, int32_t capability)
{
#if ATTN_HAVE_SM90
    if (capability == 90 && t == ATTN_F16)
        return attn_cuda_f16_sm90;
    if (capability == 90 && t == ATTN_BF16)
        return attn_cuda_bf16_sm90;
#else
    (void)t;
    (void)capability;
#endif
    return NULL;
}

static int64_t shared_of(const struct attn_cuda_pair *pair)
{
    return max64(pair->form[ATTN_CUDA_SHORT]->shared, pair->form[ATTN_CUDA_TALL]->shared);
}

static bool fits(int64_t columns, int32_t most) { return most == 0 || columns <= most; }

/* The first pair of a table, which may be null, that does. */
static const struct attn_cuda_pair *find_pair(const struct attn_cuda_pair *table,
                                              const struct attn_problem *p, int64_t shared)
{
    for (const struct attn_cuda_pair *pair = table; pair && pair->name; pair++)
        if (shared_of(pair) <= shared && fits(p->head_dim, pair->head_dim) &&
            fits(p->head_dim_v, pair->head_dim_v))
            return pair;
    return NULL;
}

const struct attn_cuda_pair *attn_cuda_pick(const struct attn_problem *p, int32_t capability,
                                            int64_t shared)
{
    const struct attn_cuda_pair *const better =
        find_pair(better_table_of(p->dtype, capability), p, shared);
    /* Which skips no tiles that a block mask hides, and for few rows has the form of the others. */
    return better && !p->block_mask.data && longest_of(p) > better->form[ATTN_CUDA_SHORT]->rows
               ? better
               : find_pair(table_of(p->dtype), p, shared);
}

/* Keys, or rows, of all sequences together at most. */
static int64_t all_of(const struct attn_problem *p, const struct attn_axis *a)
{
    return a->cu ? min64(a->rows, times(p->batch, a->max)) : times(p->batch, a->max);
}

/* Room that a form's list and partial results need; bounds that hold for any lengths. */
static void bound_form(const struct attn_problem *p, const struct attn_cuda_instance *k, int form,
                       struct attn_cuda_form *f)
{
    const int64_t longest = longest_of(p);
    const int64_t rows = form == ATTN_CUDA_SHORT ? min64(longest, k->rows) : longest;
    const int64_t tiles =
        min64(times(p->batch, parts_of(rows, k->rows)),
              times(all_of(p, &p->query), p->group) / k->rows + p->batch); /* each rounded up */
    const int64_t keys = all_of(p, &p->key);
    const int64_t token = times(p->head_dim + p->head_dim_v, attn_dtype_size(p->dtype));
    f->rows = k->rows;
    f->chunk = form == ATTN_CUDA_SHORT ? SHORT_CHUNK : TALL_CHUNK;
    f->slot_rows = min64(rows, k->rows);
    f->heads = max64(1, min64(p->heads_kv, ATTN_CUDA_CACHE / max64(1, times(p->key.max, token))));
    f->slots = 0;
    if (p->key.max >= 2 * f->chunk) /* a sequence of n tiles has splits of n chunks, or longer */
        f->slots = min64(times(min64(parts_of(rows, k->rows), MOST_TILES) * MOST_SPLITS, p->batch),
                         keys / f->chunk + times(MOST_TILES, p->batch));
    f->most = rows > 0 ? tiles + f->slots : 0;
}

static void place(size_t *workspace, int64_t *offset, int64_t bytes)
{
    *offset = (int64_t)*workspace;
    *workspace += ((size_t)bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static void place_form(const struct attn_problem *p, struct attn_cuda_form *f, size_t *workspace)
{
    const int64_t real = attn_dtype_size(attn_compute_dtype(p->dtype));
    place(workspace, &f->count, 2 * (int64_t)sizeof(int32_t));
    place(workspace, &f->firsts, times(p->batch, (int64_t)sizeof(int32_t)));
    place(workspace, &f->items, times(f->most, (int64_t)sizeof(struct attn_cuda_item)));
    place(workspace, &f->partials,
          times(times(times(f->slots, p->heads_kv), f->slot_rows),
                times(p->head_dim_v + 2, real)));
}

static struct attn_cuda_launch *add(struct attn_cuda_forward *f, attn_cuda_function function,
                                    int64_t blocks, int32_t threads, int32_t shared, int32_t which)
{
    struct attn_cuda_launch *const l = &f->launch[f->count++];
    *l = (struct attn_cuda_launch){.function = function, .blocks = blocks, .threads = threads,
                                   .shared = shared, .which = which};
    return l;
}

/* Whether a sequence of this form may be there. */
static bool may_be(const struct attn_problem *p, const struct attn_cuda_form *form, int which)
{
    const int64_t longest = longest_of(p);
    const bool alike = !p->query.cu && !p->query.used;
    if (which == ATTN_CUDA_TALL)
        return longest > form[ATTN_CUDA_SHORT].rows;
    return longest > 0 && (!alike || longest <= form[ATTN_CUDA_SHORT].rows);
}

void attn_cuda_plan_forward(const struct attn_problem *p, const struct attn_cuda_pair *pair,
                            struct attn_cuda_forward *f)
{
    bool listed = false;
    int64_t combined = 0; /* rows of a sequence that may be */

    memset(f, 0, sizeof *f);
    for (int n = 0; n < ATTN_CUDA_FORMS; n++)
        bound_form(p, pair->form[n], n, &f->form[n]);
    for (int n = 0; n < ATTN_CUDA_FORMS; n++) {
        struct attn_cuda_form *form = &f->form[n];
        if (!may_be(p, f->form, n) || p->batch == 0 || p->heads_kv == 0)
            form->most = form->slots = 0;
        place_form(p, form, &f->workspace);
        listed = listed || form->most > 0;
        if (form->slots > 0)
            combined = max64(combined, min64(longest_of(p), MOST_TILES * form->rows));
    }
    if (listed)
        add(f, attn_cuda_list, ATTN_CUDA_FORMS, LIST_THREADS, LIST_SHARED, 0);
    for (int n = 0; n < ATTN_CUDA_FORMS; n++) {
        const struct attn_cuda_instance *k = pair->form[n];
        if (f->form[n].most == 0)
            continue;
        struct attn_cuda_launch *const l =
            add(f, k->function,
                times(times(f->form[n].most, p->heads_kv), parts_of(p->head_dim_v, k->columns)),
                k->threads, k->shared, n);
        l->stays = k->stays;
        l->boxed = k->panel > 0 ? k : NULL;
    }
    if (combined > 0)
        add(f, attn_cuda_combine[p->dtype],
            times(times(p->batch, p->heads_kv),
                  max64(parts_of(combined, COMBINE_ROWS), min64(combined, COMBINE_BLOCKS))),
            COMBINE_THREADS, COMBINE_SHARED, 0);
}

/* A tensor `width` wide, and the heads and tokens of a box. */
struct boxing {
    const struct attn_view *v;
    const struct attn_axis *axis;
    int64_t heads, width;
    int64_t box_heads, box_tokens;
};

/* Its map; false: there is none. */
static bool make_boxes(const struct attn_problem *p, const struct boxing *x, int32_t panel,
                       struct attn_cuda_tensor_map *map)
{
    const struct attn_view *v = x->v;
    const struct attn_axis *a = x->axis;
    const int64_t size[] = {x->width, x->heads, a->cu ? a->rows : a->room, a->cu ? 1 : p->batch};
    const int64_t stride[] = {v->head, v->token, v->batch};
    struct attn_cuda_tensor t = {.data = v->data,
                                 .rank = 4,
                                 .element_size = (int32_t)attn_dtype_size(p->dtype),
                                 .swizzle = panel == 64 ? ATTN_CUDA_SWIZZLE_128
                                                        : ATTN_CUDA_SWIZZLE_64,
                                 .box = {(uint32_t)panel, (uint32_t)x->box_heads,
                                         (uint32_t)x->box_tokens, 1}};
    if (a->table)
        return false;
    for (int n = 0; n < t.rank; n++) {
        if (size[n] < 1 || size[n] > INT32_MAX) /* coordinates have 32 bits */
            return false;
        t.size[n] = (uint64_t)size[n];
    }
    for (int n = 0; n + 1 < t.rank; n++) {
        const bool alone = size[n + 1] == 1; /* nothing is a stride apart */
        if (!alone && (stride[n] <= 0 || stride[n] >= MOST_STRIDE))
            return false;
        t.stride[n] = alone ? ALIGN : (uint64_t)(stride[n] * t.element_size);
    }
    return attn_cuda_make_map(attn_cuda_find_encode(), &t, map);
}

/* Rows of a tile have the heads of a group side by side, and boxes are to have all of them. */
static void make_all_boxes(const struct attn_problem *p, const struct attn_cuda_instance *k,
                           struct attn_cuda_boxes *b)
{
    const bool whole = p->group <= k->rows && k->rows % p->group == 0;
    const struct boxing all[] = {
        {&p->k, &p->key, p->heads_kv, p->head_dim, 1, k->keys},
        {&p->v, &p->key, p->heads_kv, p->head_dim_v, 1, k->keys},
        {&p->q, &p->query, p->heads_q, p->head_dim, p->group, whole ? k->rows / p->group : 0}};
    for (int n = 0; n < ATTN_CUDA_MAPS; n++)
        b->given[n] = all[n].box_tokens > 0 && make_boxes(p, &all[n], k->panel, &b->map[n]);
}

void attn_cuda_forward_args(const struct attn_cuda_forward *f, int n, const struct attn_problem *p,
                            void *workspace, struct attn_cuda_args *args)
{
    args->p = *p;
    args->workspace = workspace;
    memcpy(args->form, f->form, sizeof f->form);
    args->which = f->launch[n].which;
    memset(&args->boxes, 0, sizeof args->boxes);
    if (f->launch[n].boxed)
        make_all_boxes(p, f->launch[n].boxed, &args->boxes);
}
