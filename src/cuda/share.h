/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How a sequence's work is cut into items, by its own lengths: its form, tiles of its rows, splits
 * of its keys. The list of items, the forward kernels and what combines their results agree by
 * this.
 */
#ifndef ATTN_CUDA_SHARE_H
#define ATTN_CUDA_SHARE_H

#include "cuda/device.h"
#include "cuda/forward.h"
#include "score.h"

namespace share {

/* Sequences of more tiles are not split; no tile's keys are in more splits; where splits may begin,
 * a multiple of what any kernel has as a tile of keys. */
enum { MOST_TILES = 4, MOST_SPLITS = 128, KEY_ALIGN = 128 };

struct cut {
    int form;
    int64_t rows, tiles; /* for each key/value head */
    int64_t splits;
    int64_t key0, chunk; /* where the first split begins; keys of each, multiples of KEY_ALIGN */
};

DEVICE struct cut cut_of(const struct attn_cuda_args *a, const struct attn_sequence *s)
{
    struct cut c;
    c.rows = s->nq * a->p.group;
    c.form = c.rows <= a->form[ATTN_CUDA_SHORT].rows ? ATTN_CUDA_SHORT : ATTN_CUDA_TALL;
    const struct attn_cuda_form *f = &a->form[c.form];
    c.tiles = (c.rows + f->rows - 1) / f->rows;
    c.splits = 1;
    c.key0 = 0;
    c.chunk = ATTN_FAR;
    if (c.tiles == 0 || c.tiles > MOST_TILES)
        return c;
    const struct attn_range any = attn_band_any(s->band, 0, s->nq);
    const int64_t key0 = any.lo / KEY_ALIGN * KEY_ALIGN, n = any.hi - key0;
    int64_t splits = n / (f->chunk * c.tiles);
    if (splits < 2)
        return c;
    if (splits > MOST_SPLITS)
        splits = MOST_SPLITS;
    c.key0 = key0;
    c.chunk = (n + splits * KEY_ALIGN - 1) / (splits * KEY_ALIGN) * KEY_ALIGN;
    c.splits = (n + c.chunk - 1) / c.chunk;
    return c;
}

/* The keys that an item's rows may see; empty if lo >= hi. */
DEVICE struct attn_range keys_of(const struct attn_cuda_args *a, const struct attn_sequence *s,
                                 const struct cut *c, int64_t tile, int64_t split)
{
    const int64_t row0 = tile * a->form[c->form].rows, end = row0 + a->form[c->form].rows;
    const int64_t last = (end < c->rows ? end : c->rows) - 1;
    const int64_t lo = c->key0 + split * c->chunk, hi = lo + c->chunk;
    struct attn_range r = attn_band_any(s->band, row0 / a->p.group, last / a->p.group + 1);
    r.lo = r.lo > lo ? r.lo : lo;
    r.hi = r.hi < hi ? r.hi : hi;
    return r;
}

/* How many items a form's list has. */
DEVICE int64_t items_of(const struct attn_cuda_args *a, const struct attn_cuda_form *f)
{
    return *(const int *)(a->workspace + f->count);
}

DEVICE struct attn_cuda_item item_at(const struct attn_cuda_args *a,
                                     const struct attn_cuda_form *f, int64_t item)
{
    return ((const struct attn_cuda_item *)(a->workspace + f->items))[item];
}

/* An item of the list and a key/value head. */
struct place {
    int64_t item, head;
};

/* Blocks that take one after another take them by number: heads whose keys a cache holds together,
 * item by item; then the next heads. They are no more than a grid may have blocks, so that an int
 * counts them. A block's first one is that of its own number. An item beyond the list: there is
 * none left. */
DEVICE struct place place_of(const struct attn_cuda_args *a, const struct attn_cuda_form *f,
                             uint32_t n)
{
    const uint32_t items = (uint32_t)items_of(a, f), heads = (uint32_t)a->p.heads_kv;
    if (n >= items * heads)
        return {items, 0};
    const uint32_t most = (uint32_t)f->heads, head0 = n / (items * most) * most;
    const uint32_t left = n - head0 * items, together = heads - head0 < most ? heads - head0 : most;
    return {left / together, head0 + left % together};
}

/* The number of a block's next one. */
DEVICE uint32_t take_number(const struct attn_cuda_args *a, const struct attn_cuda_form *f)
{
    int *const count = (int *)(a->workspace + f->count);
    return (uint32_t)dev::blocks() + (uint32_t)dev::add_atomic(count + 1, 1);
}

/* Where partial results of a slot begin, of row r of its tile; those of the next slot are
 * slot_stride() numbers further. */
DEVICE int64_t slot_stride(const struct attn_cuda_args *a, const struct attn_cuda_form *f)
{
    return a->p.heads_kv * f->slot_rows * (a->p.head_dim_v + 2);
}

template <class real>
DEVICE real *partial_at(const struct attn_cuda_args *a, const struct attn_cuda_form *f,
                        int64_t slot, int64_t head_kv, int64_t r)
{
    return (real *)(a->workspace + f->partials) + slot * slot_stride(a, f) +
           (head_kv * f->slot_rows + r) * (a->p.head_dim_v + 2);
}

} // namespace share

#endif
