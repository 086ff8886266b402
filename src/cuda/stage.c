/* SPDX-License-Identifier: BSD-3-Clause */
/* A problem's memory, piece by piece. */
#include <stddef.h>
#include <string.h>

#include "cuda/host.h"

enum { AXES = 4, PIECES = 24 }; /* more than there are tensors and arrays in a forward problem */

/* Who fills a piece of an image: the host, before the kernels; the device, from what the host
 * cannot read; the kernels, for the caller. */
enum filler { GIVEN, MADE, WRITTEN };

/* A tensor or array. */
struct piece {
    char *from;            /* where the caller has it; null: nowhere, it is made from others */
    int64_t size;          /* bytes of an element */
    int64_t extent[AXES];  /* 1 along an axis that it repeats along */
    int64_t stride[AXES];  /* the caller's, in elements */
    int64_t close[AXES];   /* in the image; 0 where the extent is 1 */
    int64_t at, bytes;     /* in the image */
    size_t pointer;        /* offset in struct attn_problem of the pointer to it */
    size_t strides[AXES];  /* likewise of its strides; 0: there is none */
    enum filler filler;
};

struct pieces {
    struct piece piece[PIECES];
    int count;
    bool fit; /* their sizes, in 63 bits */
};

static void add(struct pieces *all, struct piece x)
{
    int64_t step = 1;
    for (int n = AXES - 1; n >= 0; n--) {
        if (x.stride[n] == 0 && x.extent[n] > 1)
            x.extent[n] = 1;
        x.close[n] = x.extent[n] > 1 ? step : 0;
        all->fit = all->fit && !__builtin_mul_overflow(step, x.extent[n], &step);
    }
    all->fit = all->fit && !__builtin_mul_overflow(step, x.size, &x.bytes);
    if (all->count < PIECES)
        all->piece[all->count++] = x;
}

/* ---- Tensors -------------------------------------------------------------------------------- */

/* The token axes of a side's tensors: batch or pages, tokens. */
struct tokens {
    int64_t outer, inner;
};

static struct tokens tokens_of(const struct attn_problem *p, const struct attn_axis *axis)
{
    if (axis->cu)
        return (struct tokens){1, axis->rows};
    if (axis->page_size)
        return (struct tokens){axis->pages, axis->page_size};
    return (struct tokens){p->batch, axis->room};
}

#define FIELD(name) offsetof(struct attn_problem, name)

/* A tensor of `run` elements for each token and head. */
static void add_view(struct pieces *all, const struct attn_view *v, size_t field, struct tokens t,
                     int64_t heads, int64_t run, int64_t size, enum filler filler)
{
    add(all, (struct piece){.from = v->data, .size = size, .filler = filler,
                            .extent = {t.outer, t.inner, heads, run},
                            .stride = {v->batch, v->token, v->head, 1},
                            .pointer = field + offsetof(struct attn_view, data),
                            .strides = {field + offsetof(struct attn_view, batch),
                                        field + offsetof(struct attn_view, token),
                                        field + offsetof(struct attn_view, head), 0}});
}

/* A tensor over scores, as far as queries and keys go. */
static void add_scores(struct pieces *all, const struct attn_problem *p,
                       const struct attn_score_view *v, size_t field, int64_t queries,
                       int64_t keys, int64_t size)
{
    if (!v->data)
        return;
    add(all, (struct piece){.from = v->data, .size = size,
                            .extent = {p->batch, p->heads_q, queries, keys},
                            .stride = {v->batch, v->head, v->query, v->key},
                            .pointer = field + offsetof(struct attn_score_view, data),
                            .strides = {field + offsetof(struct attn_score_view, batch),
                                        field + offsetof(struct attn_score_view, head),
                                        field + offsetof(struct attn_score_view, query),
                                        field + offsetof(struct attn_score_view, key)}});
}

/* `rows` rows of `width` elements that lie side by side, `stride` from row to row. */
static void add_rows(struct pieces *all, const void *data, size_t pointer, int64_t rows,
                     int64_t stride, size_t stride_field, int64_t width, int64_t size)
{
    add(all, (struct piece){.from = (char *)data, .size = size, .extent = {1, 1, rows, width},
                            .stride = {0, 0, stride, 1}, .pointer = pointer,
                            .strides = {0, 0, stride_field, 0}});
}

static void add_array(struct pieces *all, const void *data, size_t pointer, int64_t entries,
                      bool is64, enum filler filler)
{
    add(all, (struct piece){.from = (char *)data, .size = is64 ? 8 : 4,
                            .extent = {1, 1, 1, entries}, .stride = {0, 0, 0, 1},
                            .pointer = pointer, .filler = filler});
}

static void add_token_bytes(struct pieces *all, const struct attn_problem *p,
                            const struct attn_token_bytes *m, size_t field,
                            const struct attn_axis *axis)
{
    const size_t data = field + offsetof(struct attn_token_bytes, data);
    if (m->data && axis->cu)
        add_rows(all, m->data, data, 1, 0, 0, axis->rows, 1);
    else if (m->data)
        add_rows(all, m->data, data, p->batch, m->batch,
                 field + offsetof(struct attn_token_bytes, batch), axis->max, 1);
}

static void add_bias(struct pieces *all, const struct attn_problem *p)
{
    const int64_t size = attn_dtype_size(p->bias_dtype);
    if (!p->bias_offset.data)
        add_scores(all, p, &p->bias, FIELD(bias), p->query.max, p->key.max, size);
    else if (p->bias.data)
        add_rows(all, p->bias.data, FIELD(bias.data), 1, 0, 0, p->bias_elements, size);
}

static int64_t blocks(int64_t n, int64_t size) { return size ? (n + size - 1) / size : 0; }

static void collect_tensors(struct pieces *all, const struct attn_problem *p)
{
    const int64_t size = attn_dtype_size(p->dtype);
    const int64_t number = attn_dtype_size(attn_compute_dtype(p->dtype));
    const struct tokens q = tokens_of(p, &p->query), k = tokens_of(p, &p->key);
    add_view(all, &p->q, FIELD(q), q, p->heads_q, p->head_dim, size, GIVEN);
    add_view(all, &p->k, FIELD(k), k, p->heads_kv, p->head_dim, size, GIVEN);
    add_view(all, &p->v, FIELD(v), k, p->heads_kv, p->head_dim_v, size, GIVEN);
    add_view(all, &p->out, FIELD(out), q, p->heads_q, p->head_dim_v, size, WRITTEN);
    if (p->lse.data)
        add_view(all, &p->lse, FIELD(lse), q, p->heads_q, 1, number, WRITTEN);
    if (p->alibi.data)
        add_view(all, &p->alibi, FIELD(alibi), (struct tokens){p->batch, 1}, p->heads_q, 1, number,
                 GIVEN);
    if (p->sink.data)
        add_view(all, &p->sink, FIELD(sink), (struct tokens){1, 1}, p->heads_q, 1, number, GIVEN);
    add_bias(all, p);
    add_scores(all, p, &p->mask, FIELD(mask), p->query.max, p->key.max, 1);
    add_scores(all, p, &p->block_mask, FIELD(block_mask), blocks(p->query.max, p->block_q),
               blocks(p->key.max, p->block_k), 1);
    add_token_bytes(all, p, &p->key_mask, FIELD(key_mask), &p->key);
    add_token_bytes(all, p, &p->query_mask, FIELD(query_mask), &p->query);
}

/* ---- Arrays of integers --------------------------------------------------------------------- */

/* One that kernels find their way by; of those on the device they have a sound copy. */
static void add_guide(struct pieces *all, const struct attn_problem *p, enum attn_array array,
                      const void *data, size_t pointer, bool is64, int64_t entries)
{
    add_array(all, data, pointer, entries, is64, p->unread & ATTN_BIT(array) ? MADE : GIVEN);
}

/* Whether a side has lengths made for it besides those that the caller gave: where they are known
 * from cu_seqlens on the device, which may have more than the bound, and those of queries where a
 * sequence may turn out to have no bias. */
static bool has_made_lengths(const struct attn_problem *p, const struct attn_axis *a)
{
    const enum attn_array cu = a == &p->query ? ATTN_QUERY_CU : ATTN_KEY_CU;
    return !a->used && (p->unread & ATTN_BIT(cu) ||
                        (a == &p->query && p->unread && p->bias_offset.data));
}

/* Of the host's, only the columns that lengths can reach, but all that the device is to look
 * through. Also where only the shape is asked for, and there is no table. */
static void add_table(struct pieces *all, const struct attn_problem *p, const struct attn_axis *a,
                      size_t field)
{
    const size_t table = field + offsetof(struct attn_axis, table);
    const int64_t reached = blocks(a->span, a->page_size);
    if (p->unread)
        add_guide(all, p, ATTN_KEY_TABLE, a->table, table, a->table64, p->batch * a->max_pages);
    else
        add_rows(all, a->table, table, p->batch, a->max_pages,
                 field + offsetof(struct attn_axis, max_pages),
                 reached < a->max_pages ? reached : a->max_pages, a->table64 ? 8 : 4);
}

static void add_axis(struct pieces *all, const struct attn_problem *p, const struct attn_axis *a,
                     size_t field)
{
    const bool query = a == &p->query;
    const size_t used = field + offsetof(struct attn_axis, used);
    if (a->cu)
        add_guide(all, p, query ? ATTN_QUERY_CU : ATTN_KEY_CU, a->cu,
                  field + offsetof(struct attn_axis, cu), a->cu64, p->batch + 1);
    if (a->used)
        add_guide(all, p, query ? ATTN_QUERY_USED : ATTN_KEY_USED, a->used, used, a->used64,
                  p->batch);
    if (has_made_lengths(p, a))
        add_array(all, NULL, used, p->batch, true, MADE);
    if (a->page_size)
        add_table(all, p, a, field);
}

static int64_t documents(const struct attn_problem *p, const struct attn_axis *a)
{
    return a->cu ? a->rows : p->batch * a->span;
}

static void add_documents(struct pieces *all, const struct attn_integers *a, size_t pointer,
                          int64_t entries)
{
    if (a->data && attn_place_of(a->data).device == ATTN_HOST)
        add_array(all, a->data, pointer, entries, a->is64, GIVEN);
}

static void collect_arrays(struct pieces *all, const struct attn_problem *p)
{
    add_axis(all, p, &p->query, FIELD(query));
    add_axis(all, p, &p->key, FIELD(key));
    if (p->prefix.data)
        add_guide(all, p, ATTN_PREFIX, p->prefix.data, FIELD(prefix.data), p->prefix.is64,
                  p->batch);
    if (p->bias_offset.data)
        add_guide(all, p, ATTN_BIAS_OFFSET, p->bias_offset.data, FIELD(bias_offset.data),
                  p->bias_offset.is64, p->batch + 1);
    add_documents(all, &p->query_docs, FIELD(query_docs.data), documents(p, &p->query));
    add_documents(all, &p->key_docs, FIELD(key_docs.data), documents(p, &p->key));
}

/* ---- The image ------------------------------------------------------------------------------ */

/* Gives room to the pieces of one filler, from *end on. */
static void place(struct pieces *all, enum filler filler, int64_t *end)
{
    for (int n = 0; n < all->count; n++) {
        struct piece *x = &all->piece[n];
        if (x->filler != filler)
            continue;
        x->at = *end;
        all->fit = all->fit && !__builtin_add_overflow(*end, x->bytes, end) &&
                   !__builtin_add_overflow(*end, ATTN_ALIGN - 1, end);
        *end = *end / ATTN_ALIGN * ATTN_ALIGN;
    }
}

static struct attn_cuda_image collect(struct pieces *all, const struct attn_problem *p)
{
    struct attn_cuda_image image = {0, 0};
    all->count = 0;
    all->fit = true;
    if (p->place.device == ATTN_HOST)
        collect_tensors(all, p);
    collect_arrays(all, p);
    place(all, GIVEN, &image.inputs);
    image.bytes = image.inputs;
    place(all, MADE, &image.bytes);
    place(all, WRITTEN, &image.bytes);
    return image;
}

bool attn_cuda_image_plan(struct attn_cuda_image *image, const struct attn_problem *p)
{
    struct pieces all;
    *image = collect(&all, p);
    return all.fit;
}

/* Axes along which both sides go on without a gap become one, so that what is dense is copied at
 * once; those of one element go. */
static void merge_axes(struct piece *x)
{
    struct piece m = *x;
    int last = AXES;
    for (int n = 0; n < AXES; n++)
        m.extent[n] = 1;
    for (int n = AXES - 1; n >= 0; n--) {
        if (x->extent[n] == 1)
            continue;
        if (last < AXES && x->stride[n] == m.stride[last] * m.extent[last] &&
            x->close[n] == m.close[last] * m.extent[last]) {
            m.extent[last] *= x->extent[n];
            continue;
        }
        last--;
        m.extent[last] = x->extent[n];
        m.stride[last] = x->stride[n];
        m.close[last] = x->close[n];
    }
    *x = m;
}

/* n elements, between the caller's memory and the image. */
static void copy_run(const struct piece *x, char *from, char *close, int64_t n)
{
    const bool dense = x->stride[AXES - 1] == 1 || n == 1;
    const size_t bytes = (size_t)(dense ? n * x->size : x->size);
    for (int64_t i = 0; i < (dense ? 1 : n); i++) {
        char *const there = from + i * x->stride[AXES - 1] * x->size;
        char *const here = close + i * x->size;
        if (x->filler == WRITTEN)
            memcpy(there, here, bytes);
        else
            memcpy(here, there, bytes);
    }
}

/* Elements first .. first + n - 1 of a piece, as they follow each other in the image. */
static void copy_part(struct piece x, int64_t first, int64_t n, char *close)
{
    int64_t at[AXES];
    merge_axes(&x);
    for (int i = AXES - 1; i >= 0; i--) {
        at[i] = first % x.extent[i];
        first /= x.extent[i];
    }
    while (n > 0) {
        const int64_t left = x.extent[AXES - 1] - at[AXES - 1], run = left < n ? left : n;
        int64_t from = 0;
        for (int i = 0; i < AXES; i++)
            from += at[i] * x.stride[i];
        copy_run(&x, x.from + from * x.size, close, run);
        close += run * x.size;
        n -= run;
        at[AXES - 1] = 0;
        for (int i = AXES - 2; i >= 0 && ++at[i] == x.extent[i]; i--)
            at[i] = 0;
    }
}

/* What lies in bytes from .. from + n - 1 of the image of pieces with that filler. */
static void copy_parts(const struct attn_problem *p, enum filler filler, int64_t from, int64_t n,
                       char *close)
{
    struct pieces all;
    collect(&all, p);
    for (int i = 0; i < all.count; i++) {
        const struct piece *x = &all.piece[i];
        const int64_t begin = x->at > from ? x->at : from;
        const int64_t end = x->at + x->bytes < from + n ? x->at + x->bytes : from + n;
        if (x->filler == filler && begin < end)
            copy_part(*x, (begin - x->at) / x->size, (end - begin) / x->size,
                      close + (begin - from));
    }
}

void attn_cuda_image_fill(const struct attn_problem *p, int64_t from, int64_t n, char *to)
{
    memset(to, 0, (size_t)n);
    copy_parts(p, GIVEN, from, n, to);
}

void attn_cuda_image_spread(const struct attn_problem *p, int64_t from, int64_t n, const char *part)
{
    copy_parts(p, WRITTEN, from, n, (char *)part);
}

cudaError_t attn_cuda_image_put(const struct attn_problem *p, char *image, cudaStream_t stream)
{
    struct pieces all;
    char part[ATTN_CUDA_PUT_BYTES];
    const struct attn_cuda_image whole = collect(&all, p);
    cudaError_t error = cudaSuccess;
    for (int64_t at = 0; at < whole.inputs && error == cudaSuccess; at += (int64_t)sizeof part) {
        const int64_t left = whole.inputs - at;
        const int64_t n = left < (int64_t)sizeof part ? left : (int64_t)sizeof part;
        attn_cuda_image_fill(p, at, n, part);
        error = attn_cuda_put(image + at, part, (size_t)n, stream);
    }
    return error;
}

/* The problem with its pieces at `at`, those that the device makes only if `sound`. */
static struct attn_problem moved(const struct attn_problem *p, char *at, bool sound)
{
    struct attn_problem made = *p;
    struct pieces all;
    collect(&all, p);
    for (int n = 0; n < all.count; n++) {
        const struct piece *x = &all.piece[n];
        char *const data = at + x->at;
        if (x->filler == MADE && !sound)
            continue;
        memcpy((char *)&made + x->pointer, &data, sizeof data);
        for (int i = 0; i < AXES; i++)
            if (x->strides[i])
                memcpy((char *)&made + x->strides[i], &x->close[i], sizeof x->close[i]);
    }
    made.query.used64 |= has_made_lengths(p, &p->query);
    made.key.used64 |= has_made_lengths(p, &p->key);
    made.probs_user = NULL; /* the host's own, and nothing to kernels */
    made.far = NULL;
    made.place.context = NULL;
    return made;
}

struct attn_problem attn_cuda_image_problem(const struct attn_problem *p, char *at)
{
    return moved(p, at, true);
}

void attn_cuda_image_guides(const struct attn_problem *p, char *at, struct attn_cuda_guides *given,
                            struct attn_cuda_guides *sound)
{
    const struct attn_problem from = moved(p, at, false), to = moved(p, at, true);
    *given = (struct attn_cuda_guides){from.query, from.key, from.prefix, from.bias_offset};
    *sound = (struct attn_cuda_guides){to.query, to.key, to.prefix, to.bias_offset};
}
