/* SPDX-License-Identifier: BSD-3-Clause */
/* What goes before and after the forward kernel: the list of items, and the end of rows whose keys
 * were split. */
#ifndef ATTN_CUDA_AROUND_H
#define ATTN_CUDA_AROUND_H

#include "cuda/row.h"
#include "cuda/share.h"

namespace around {

enum { WARPS = 8, THREADS = 32 * WARPS }; /* of the list; combine has 4 warps */

/* ---- The list of items ---------------------------------------------------------------------- */

/* Items by the length of their keys in binary, so that the longest can go first. */
enum { CLASSES = 64 };

DEVICE int class_of(const struct attn_range r)
{
    int bits = 0;
    for (int64_t n = r.hi - r.lo; n > 0; n /= 2)
        bits++;
    return CLASSES - 1 - bits;
}

/* A form's list by one block, a sequence by a warp: once to count, then to place. The order within a
 * class is left open. */
KERNEL list(GRID_CONSTANT const struct attn_cuda_args a)
{
    int *const classes = (int *)dev::shared(), *const slots = classes + CLASSES;
    const int form = dev::block();
    const struct attn_cuda_form *const f = &a.form[form];
    struct attn_cuda_item *const items = (struct attn_cuda_item *)(a.workspace + f->items);
    int *const firsts = (int *)(a.workspace + f->firsts);
    if (f->most == 0)
        return;
    if (dev::thread() <= CLASSES)
        classes[dev::thread()] = 0;
    dev::sync();
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t b = dev::warp(); b < a.p.batch; b += WARPS) {
            const struct attn_sequence s = attn_sequence_of(&a.p, b);
            const struct share::cut c = share::cut_of(&a, &s);
            const int64_t n = c.form == form ? c.tiles * c.splits : 0;
            if (pass == 0 && dev::lane() == 0)
                firsts[b] = c.splits > 1 && n > 0 ? dev::add_atomic(slots, (int)n) : -1;
            for (int64_t i = dev::lane(); i < n; i += 32) {
                const int64_t tile = i / c.splits, split = i % c.splits;
                const struct attn_range r = share::keys_of(&a, &s, &c, tile, split);
                const int at = dev::add_atomic(&classes[class_of(r)], 1);
                const int first = pass == 0 ? -1 : firsts[b];
                const struct attn_cuda_item item = {(int32_t)b, (int32_t)tile, (int32_t)split,
                                                    first < 0 ? -1 : first + (int32_t)i};
                if (pass == 1)
                    items[at] = item;
            }
        }
        dev::sync();
        if (dev::thread() == 0 && pass == 0) {
            int sum = 0;
            for (int i = 0; i < CLASSES; i++) {
                const int n = classes[i];
                classes[i] = sum;
                sum += n;
            }
            *(int *)(a.workspace + f->count) = sum;
        }
        dev::sync();
    }
}

/* ---- Partial results ------------------------------------------------------------------------ */

/* A warp for each row of each sequence and key/value head, as far as rows may be split. */
template <class T> KERNEL combine(GRID_CONSTANT const struct attn_cuda_args a)
{
    enum { COMBINE_WARPS = 4 };
    typedef typename T::real real;
    const int64_t units = a.p.batch * a.p.heads_kv, unit = dev::block() % units;
    const int64_t at = dev::block() / units * COMBINE_WARPS + dev::warp();
    const int64_t b = unit / a.p.heads_kv, head_kv = unit % a.p.heads_kv;
    const struct attn_sequence s = attn_sequence_of(&a.p, b);
    const struct share::cut c = share::cut_of(&a, &s);
    if (c.splits < 2 || at >= c.rows)
        return;
    const struct attn_cuda_form *const f = &a.form[c.form];
    const int64_t slot = ((const int *)(a.workspace + f->firsts))[b] + at / f->rows * c.splits;
    const struct row::row r = row::row_at(&s, head_kv, at, c.rows);
    const struct row::parts<real> x = {
        share::partial_at<real>(&a, f, slot, head_kv, at % f->rows), share::slot_stride(&a, f),
        (int)c.splits};
    const struct row::outcome<real> o = row::outcome_of<T>(&a.p, r.head, &x);
    row::finish_row<T>(&s, &r, &x, &o, 2, 0, a.p.head_dim_v);
}

} // namespace around

#endif
