/* SPDX-License-Identifier: BSD-3-Clause */
/* What goes before and after the forward kernel: the list of items, and the end of rows whose keys
 * were split. */
#ifndef ATTN_CUDA_AROUND_H
#define ATTN_CUDA_AROUND_H

#include "cuda/row.h"
#include "cuda/share.h"

namespace around {

enum { THREADS = 256 }; /* of the list */

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

/* What one form's list is made from. */
struct lists {
    const struct attn_cuda_args *a;
    const struct attn_cuda_form *f;
    int form;
    int *classes; /* of items: how many there are; then where the next one goes */
    bool placing;
};

/* Items first, first + step, ... of a sequence, counted from its end, as rows at the end of a
 * causal mask see most. Those of a class stay together: they share the sequence's keys. */
DEVICE void put_items(const struct lists *l, const struct attn_sequence *s,
                      const struct share::cut *c, int64_t first, int64_t step)
{
    struct attn_cuda_item *const items = (struct attn_cuda_item *)(l->a->workspace + l->f->items);
    const int slot = l->placing ? ((const int *)(l->a->workspace + l->f->firsts))[s->b] : -1;
    const int64_t last = c->tiles * c->splits - 1;
    const auto keys_at = [&](int64_t i) {
        return share::keys_of(l->a, s, c, (last - i) / c->splits, (last - i) % c->splits);
    };
    for (int64_t i = first; i <= last;) {
        const int mine = class_of(keys_at(i));
        int64_t end = i + step;
        while (end <= last && class_of(keys_at(end)) == mine)
            end += step;
        int at = dev::add_atomic(&l->classes[mine], (int)((end - i) / step));
        for (; i < end && l->placing; i += step, at++) {
            const struct attn_range see = keys_at(i);
            const int32_t n = (int32_t)(last - i);
            items[at] = {(int32_t)s->b, (int32_t)(n / c->splits), slot < 0 ? -1 : slot + n, see.lo,
                         see.hi};
        }
        i = end;
    }
}

/* Of all sequences, by a block: by a thread for each, or by its warp where the items are many. */
DEVICE void put_sequences(const struct lists *l, int *slots)
{
    enum { FEW = 16 };
    const struct attn_problem *p = &l->a->p;
    int *const firsts = (int *)(l->a->workspace + l->f->firsts);
    for (int64_t b0 = dev::warp() * 32; b0 < p->batch; b0 += THREADS) {
        const int64_t b = b0 + dev::lane();
        int64_t n = 0;
        if (b < p->batch) {
            const struct attn_sequence s = attn_sequence_of(p, b);
            const struct share::cut c = share::cut_of(l->a, &s);
            n = c.form == l->form ? c.tiles * c.splits : 0;
            if (!l->placing)
                firsts[b] = c.splits > 1 && n > 0 ? dev::add_atomic(slots, (int)n) : -1;
            if (n <= FEW && n > 0)
                put_items(l, &s, &c, 0, 1);
        }
        const uint32_t many = dev::ballot(n > FEW);
        for (int i = 0; i < 32; i++)
            if (many >> i & 1) {
                const struct attn_sequence s = attn_sequence_of(p, b0 + i);
                const struct share::cut c = share::cut_of(l->a, &s);
                put_items(l, &s, &c, dev::lane(), 32);
            }
    }
}

/* A form's list by one block: once to count, then to place. The order within a class is left open.
 */
KERNEL list(GRID_CONSTANT const struct attn_cuda_args a)
{
    int *const classes = (int *)dev::shared(), *const slots = classes + CLASSES;
    const struct attn_cuda_form *const f = &a.form[dev::block()];
    struct lists l = {&a, f, dev::block(), classes, false};
    if (f->most == 0)
        return;
    if (dev::thread() <= CLASSES)
        classes[dev::thread()] = 0;
    dev::sync();
    put_sequences(&l, slots);
    dev::sync();
    if (dev::thread() == 0) {
        int sum = 0;
        for (int i = 0; i < CLASSES; i++) {
            const int n = classes[i];
            classes[i] = sum;
            sum += n;
        }
        ((int *)(a.workspace + f->count))[0] = sum;
        ((int *)(a.workspace + f->count))[1] = 0; /* nobody has taken one */
    }
    dev::sync();
    l.placing = true;
    put_sequences(&l, slots);
}

/* ---- Partial results ------------------------------------------------------------------------ */

/* Over the lanes of a warp. */
template <class real> DEVICE real warp_most(real x)
{
    for (int mask = 1; mask < 32; mask *= 2) {
        const real other = dev::shuffle_xor(x, mask);
        x = other > x ? other : x;
    }
    return x;
}
template <class real> DEVICE real warp_sum(real x)
{
    for (int mask = 1; mask < 32; mask *= 2)
        x += dev::shuffle_xor(x, mask);
    return x;
}

/* A row from its parts, `count` of them, a warp's lanes sharing them out: from each part of its
 * keys the largest score, the sum of weights and the weighted sums of values, divided by unit_of()
 * that sum. */
template <class T>
DEVICE void combine_row(const struct attn_sequence *s, const struct row::row *r,
                        const typename T::real *parts, int64_t stride, int count)
{
    enum { EACH = share::MOST_SPLITS / 32 };
    typedef typename T::real real;
    const int64_t columns = s->p->head_dim_v;
    typename T::element *const out = row::out_at<T>(s, r);
    real most = -(real)INFINITY, sum = 0, by[EACH]; /* what a part's sums are multiplied by */
    UNROLLED for (int n = 0; n < EACH; n++)
        if (32 * n + dev::lane() < count) {
            const real x = parts[(32 * n + dev::lane()) * stride];
            most = x > most ? x : most;
        }
    most = warp_most(most);
    UNROLLED for (int n = 0; n < EACH; n++) {
        by[n] = 0;
        if (32 * n + dev::lane() < count) {
            const real *const x = parts + (32 * n + dev::lane()) * stride;
            const real weight = row::weight_of<T>(x[0], most);
            sum += x[1] * weight;
            by[n] = weight * row::unit_of(x[1]);
        }
    }
    sum = warp_sum(sum);
    const struct row::outcome<real> o = row::outcome_at(s->p, r->head, most, sum);
    UNROLLED for (int n = 0; n < EACH; n++)
        by[n] *= o.by;
    for (int64_t c = dev::lane(); c - dev::lane() < columns; c += 32) {
        real x = 0;
        UNROLLED for (int n = 0; n < EACH; n++)
            for (int i = 32 * n; i < count && i < 32 * n + 32; i++) {
                const real mine = dev::shuffle(by[n], i % 32);
                if (c < columns)
                    x += parts[i * stride + 2 + c] * mine;
            }
        if (c < columns)
            out[c] = T::put(o.by < 0 ? 0 : x);
    }
    row::put_lse<T>(s, r, o.lse);
}

/* Rows of a sequence and key/value head by as many blocks as there are for each, a warp to a
 * row. */
template <class T> KERNEL combine(GRID_CONSTANT const struct attn_cuda_args a)
{
    enum { COMBINE_WARPS = 4 };
    const int64_t units = a.p.batch * a.p.heads_kv, unit = dev::block() % units;
    const int64_t step = dev::blocks() / units * COMBINE_WARPS;
    const int64_t b = unit / a.p.heads_kv, head_kv = unit % a.p.heads_kv;
    const struct attn_sequence s = attn_sequence_of(&a.p, b);
    const struct share::cut c = share::cut_of(&a, &s);
    if (c.splits < 2)
        return;
    const struct attn_cuda_form *const f = &a.form[c.form];
    const int64_t first = ((const int *)(a.workspace + f->firsts))[b];
    int64_t at = dev::block() / units * COMBINE_WARPS + dev::warp();
    for (; at < c.rows; at += step) {
        const int64_t slot = first + at / f->rows * c.splits;
        const struct row::row r = row::row_at(&s, head_kv, at, c.rows);
        combine_row<T>(&s, &r,
                       share::partial_at<typename T::real>(&a, f, slot, head_kv, at % f->rows),
                       share::slot_stride(&a, f), (int)c.splits);
    }
}

} // namespace around

#endif
