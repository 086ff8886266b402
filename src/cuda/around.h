/* SPDX-License-Identifier: BSD-3-Clause */
/* What goes before and after the forward kernel: the list of items, and the end of rows whose keys
 * were split. */
#ifndef ATTN_CUDA_AROUND_H
#define ATTN_CUDA_AROUND_H

#include "cuda/row.h"
#include "cuda/share.h"

namespace around {

enum { THREADS = 256, WARPS = THREADS / 32 }; /* of the list */

/* ---- The list of items ---------------------------------------------------------------------- */

/* Items by the length of their keys in binary, so that the longest can go first. */
enum { CLASSES = 64 };

DEVICE int class_of(const struct attn_range r)
{
    int bits = 0;
    for (uint64_t n = r.lo < r.hi ? (uint64_t)(r.hi - r.lo) : 0; n > 0; n >>= 1)
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
                      const struct share::cut *c, int first, int step)
{
    struct attn_cuda_item *const items = (struct attn_cuda_item *)(l->a->workspace + l->f->items);
    const int slot = l->placing ? ((const int *)(l->a->workspace + l->f->firsts))[s->b] : -1;
    const int last = (int)(c->tiles * c->splits) - 1, splits = (int)c->splits;
    const auto keys_at = [&](int i) {
        return share::keys_of(l->a, s, c, (last - i) / splits, (last - i) % splits);
    };
    for (int i = first; i <= last;) {
        const int mine = class_of(keys_at(i));
        int end = i + step;
        while (end <= last && class_of(keys_at(end)) == mine)
            end += step;
        int at = dev::add_atomic(&l->classes[mine], (end - i) / step);
        for (; i < end && l->placing; i += step, at++) {
            const struct attn_range see = keys_at(i);
            const int n = last - i;
            items[at] = {(int32_t)s->b, n / splits, slot < 0 ? -1 : slot + n, see.lo, see.hi};
        }
        i = end;
    }
}

/* What the threads of a list share. */
struct shared {
    int classes[CLASSES], slots;
    int many, sequence[THREADS]; /* those whose items are many */
};

/* Of all sequences, by a block: by a thread for each or, where the items are many, by a warp.
 * Begins and ends with a barrier. */
DEVICE void put_sequences(const struct lists *l, struct shared *x)
{
    enum { FEW = 16 };
    const struct attn_problem *p = &l->a->p;
    int *const firsts = (int *)(l->a->workspace + l->f->firsts);
    for (int64_t b0 = 0; b0 < p->batch; b0 += THREADS) {
        const int64_t b = b0 + dev::thread();
        if (dev::thread() == 0)
            x->many = 0;
        dev::sync();
        if (b < p->batch) {
            const struct attn_sequence s = attn_sequence_of(p, b);
            const struct share::cut c = share::cut_of(l->a, &s);
            const int64_t n = c.form == l->form ? c.tiles * c.splits : 0;
            if (!l->placing)
                firsts[b] = c.splits > 1 && n > 0 ? dev::add_atomic(&x->slots, (int)n) : -1;
            if (n > FEW)
                x->sequence[dev::add_atomic(&x->many, 1)] = (int)b;
            else if (n > 0)
                put_items(l, &s, &c, 0, 1);
        }
        dev::sync();
        for (int i = dev::warp(); i < x->many; i += WARPS) {
            const struct attn_sequence s = attn_sequence_of(p, x->sequence[i]);
            const struct share::cut c = share::cut_of(l->a, &s);
            put_items(l, &s, &c, dev::lane(), 32);
        }
        dev::sync();
    }
}

/* A form's list by one block: once to count, then to place. The order within a class is left open.
 */
KERNEL list(GRID_CONSTANT const struct attn_cuda_args a)
{
    struct shared *const x = (struct shared *)dev::shared();
    const struct attn_cuda_form *const f = &a.form[dev::block()];
    struct lists l = {&a, f, dev::block(), x->classes, false};
    if (f->most == 0)
        return;
    if (dev::thread() < CLASSES)
        x->classes[dev::thread()] = 0;
    if (dev::thread() == 0)
        x->slots = 0;
    put_sequences(&l, x);
    if (dev::thread() == 0) {
        int sum = 0;
        for (int i = 0; i < CLASSES; i++) {
            const int n = x->classes[i];
            x->classes[i] = sum;
            sum += n;
        }
        ((int *)(a.workspace + f->count))[0] = sum;
        ((int *)(a.workspace + f->count))[1] = 0; /* nobody has taken one */
    }
    l.placing = true;
    put_sequences(&l, x);
}

/* ---- Partial results ------------------------------------------------------------------------ */

/* Of a block that combines; columns of a row at a time. */
enum { COMBINE_THREADS = 128, COMBINE_WARPS = COMBINE_THREADS / 32, COLUMNS = COMBINE_THREADS };

/* A row from its parts, `count` of them, by a block: from each part of its keys the largest score,
 * the sum of weights and the weighted sums of values, divided by unit_of() that sum. The warps share
 * out the parts, and their sums are put together in the warps' order. */
template <class T>
DEVICE void combine_row(const struct attn_sequence *s, const struct row::row *r,
                        const typename T::real *parts, int64_t stride, int count)
{
    enum { EACH = share::MOST_SPLITS / 32, LANES = COLUMNS / 32, AT_ONCE = 8 };
    typedef typename T::real real;
    real *const by = (real *)dev::shared(); /* [MOST_SPLITS], what a part's sums are multiplied by */
    real *const sums = by + share::MOST_SPLITS; /* [COMBINE_WARPS][COLUMNS] */
    const int64_t columns = s->p->head_dim_v;
    typename T::element *const out = row::out_at<T>(s, r);
    real most = -(real)INFINITY, sum = 0, mine[EACH];
    UNROLLED for (int n = 0; n < EACH; n++)
        if (32 * n + dev::lane() < count) {
            const real x = parts[(32 * n + dev::lane()) * stride];
            most = x > most ? x : most;
        }
    most = row::most_of<32>(most);
    UNROLLED for (int n = 0; n < EACH; n++) {
        mine[n] = 0;
        if (32 * n + dev::lane() < count) {
            const real *const x = parts + (32 * n + dev::lane()) * stride;
            const real weight = row::weight_of<T>(x[0], most);
            sum += x[1] * weight;
            mine[n] = weight * row::unit_of(x[1]);
        }
    }
    sum = row::sum_of<32>(sum);
    const struct row::outcome<real> o = row::outcome_at(s->p, r->head, most, sum);
    if (dev::warp() == 0)
        UNROLLED for (int n = 0; n < EACH; n++)
            by[32 * n + dev::lane()] = mine[n] * o.by;
    if (dev::thread() == 0)
        row::put_lse<T>(s, r, o.lse);
    dev::sync();
    for (int64_t c0 = 0; c0 < columns; c0 += COLUMNS) {
        real x[LANES] = {0};
        ROLLED for (int first = dev::warp(); first < count; first += AT_ONCE * COMBINE_WARPS)
            UNROLLED for (int i = first; i < first + AT_ONCE * COMBINE_WARPS; i += COMBINE_WARPS)
                UNROLLED for (int k = 0; k < LANES; k++) {
                    const int64_t c = c0 + 32 * k + dev::lane();
                    if (i < count && c < columns)
                        x[k] += parts[i * stride + 2 + c] * by[i];
                }
        UNROLLED for (int k = 0; k < LANES; k++)
            sums[dev::warp() * COLUMNS + 32 * k + dev::lane()] = x[k];
        dev::sync();
        real total = 0;
        UNROLLED for (int n = 0; n < COMBINE_WARPS; n++)
            total += sums[n * COLUMNS + dev::thread()];
        if (c0 + dev::thread() < columns)
            out[c0 + dev::thread()] = T::put(o.by < 0 ? 0 : total);
        dev::sync();
    }
}

/* Rows of a sequence and key/value head by as many blocks as there are for each. */
template <class T> KERNEL combine(GRID_CONSTANT const struct attn_cuda_args a)
{
    const int64_t units = a.p.batch * a.p.heads_kv, unit = dev::block() % units;
    const int64_t b = unit / a.p.heads_kv, head_kv = unit % a.p.heads_kv;
    const struct attn_sequence s = attn_sequence_of(&a.p, b);
    const struct share::cut c = share::cut_of(&a, &s);
    if (c.splits < 2)
        return;
    const struct attn_cuda_form *const f = &a.form[c.form];
    const int64_t first = ((const int *)(a.workspace + f->firsts))[b];
    for (int64_t at = dev::block() / units; at < c.rows; at += dev::blocks() / units) {
        const int64_t slot = first + at / f->rows * c.splits;
        const struct row::row r = row::row_at(&s, head_kv, at, c.rows);
        combine_row<T>(&s, &r,
                       share::partial_at<typename T::real>(&a, f, slot, head_kv, at % f->rows),
                       share::slot_stride(&a, f), (int)c.splits);
    }
}

} // namespace around

#endif
