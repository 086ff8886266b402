/* SPDX-License-Identifier: BSD-3-Clause */
/* The threads of a block of fwd_sm90.h that copy: they find its jobs, and bring queries, keys and
 * values. */
#ifndef ATTN_CUDA_COPY_SM90_H
#define ATTN_CUDA_COPY_SM90_H

#include "cuda/block_sm90.h"

namespace fwd_sm90 {

/* Queries. Rows past the sequence's end may be anything. */
template <class S>
DEVICE void fill_queries(const struct attn_cuda_args &a, struct block<S> *b,
                         const struct fwd::work<S> *w, char *tiles)
{
    constexpr int BYTES = S::ROWS * S::PITCH;
    char *const to = tiles + S::QUERIES_AT;
    if (a.boxes.given[QUERIES]) {
        dev::sync_warp();
        if (dev::warp() > S::WARPS || !dev::elect())
            return;
        const int64_t query = row::quotient(w->row0, a.p.group);
        const int token = (int)((a.p.query.cu ? w->s.query0 : 0) + query);
        dev::mbarrier_expect(&b->queries, S::D / S::PANEL * BYTES);
        UNROLLED for (int n = 0; n < S::D / S::PANEL; n++)
            dev::load_tensor(to + n * BYTES, &a.boxes.map[QUERIES], &b->queries, n * S::PANEL,
                             (int)(w->head_kv * a.p.group), token,
                             a.p.query.cu ? 0 : (int)w->s.b);
        return;
    }
    ROLLED for (int n = 0; n < S::D / S::PANEL; n++)
        fwd::copy_queries<S, S::PANEL, copiers>(to + n * BYTES, w, a.p, n * S::PANEL);
    dev::commit_copies();
    dev::wait_copies<0>();
    dev::fence_async();
    dev::sync_some(COPY_BARRIER, COPYING);
    if (copiers::me() == 0)
        dev::mbarrier_arrive(&b->queries);
}

/* Whether the key mask hides some of keys k0 .. k0 + S::KEYS - 1, which are all there; by a
 * warp. */
template <class S> DEVICE bool hides_some(const struct fwd::work<S> *w, int64_t k0)
{
    bool hides = false;
    for (int i = dev::lane(); i < S::KEYS; i += 32)
        hides = hides || !w->s.key_mask[k0 + i];
    return dev::ballot(hides) != 0;
}

/* Whether a bulk copy can bring keys or values k0 .. k0 + S::KEYS - 1; by a warp. Values that a
 * mask hides may be anything, and are to be 0. */
template <class S, int KIND>
DEVICE bool is_bulk(const struct attn_cuda_args &a, const struct fwd::work<S> *w, int pass,
                    int64_t k0)
{
    if (!a.boxes.given[KIND] || k0 + S::KEYS > w->s.nk)
        return false;
    return KIND == KEYS || (pass == fwd::PLAIN && !(w->s.key_mask && hides_some<S>(w, k0)));
}

template <class S, int KIND>
DEVICE void begin_bulk(const struct attn_cuda_args &a, const struct fwd::work<S> *w, char *to,
                       uint64_t *full, int64_t k0)
{
    constexpr int WIDTH = KIND == KEYS ? S::D : S::DV, BYTES = S::KEYS * S::PITCH;
    const int row = (int)((a.p.key.cu ? w->s.key0 : 0) + k0);
    dev::mbarrier_expect(full, WIDTH / S::PANEL * BYTES);
    UNROLLED for (int n = 0; n < WIDTH / S::PANEL; n++)
        dev::load_tensor(to + n * BYTES, &a.boxes.map[KIND], full, n * S::PANEL, (int)w->head_kv,
                         row, a.p.key.cu ? 0 : (int)w->s.b);
}

/* By all threads that copy. Values that are not finite become 0 in later passes. */
template <class S, int KIND>
DEVICE void put(const struct attn_problem &p, const struct fwd::work<S> *w, char *to, int pass,
                int64_t k0)
{
    constexpr int WIDTH = KIND == KEYS ? S::D : S::DV, PANEL = S::PANEL;
    ROLLED for (int n = 0; n < WIDTH / PANEL; n++) {
        char *const panel = to + n * S::KEYS * S::PITCH;
        if (KIND == KEYS)
            fwd::copy_keys<S, PANEL, copiers>(panel, w, p, p.k, w->k, nullptr, k0, n * PANEL,
                                              p.head_dim, w->whole_k);
        else
            fwd::copy_keys<S, PANEL, copiers>(panel, w, p, p.v, w->v, w->s.key_mask, k0, n * PANEL,
                                              p.head_dim_v, w->whole_v);
    }
    dev::commit_copies();
    dev::wait_copies<0>();
    if (KIND == VALUES && pass != fwd::PLAIN) {
        dev::sync_some(COPY_BARRIER, COPYING);
        fwd::clean<S, copiers>(to);
    }
}

/* Fills a stage, once it is empty. The first warp alone waits for that, as the others may be tiles
 * ahead of it: it is the one that begins bulk copies. */
template <class S, int KIND>
DEVICE void fill(const struct attn_cuda_args &a, struct block<S> *b,
                 const struct fwd::work<S> *w, char *tiles, int pass, uint32_t step,
                 int64_t k0)
{
    uint64_t *const full = &b->full[KIND][step % STAGES];
    char *const to = stage_of<S>(tiles, KIND, step);
    const bool first = dev::warp() == S::WARPS;
    if (first) {
        dev::mbarrier_wait(&b->empty[KIND][step % STAGES], parity_of(step) ^ 1);
        dev::sync_warp();
    }
    if (is_bulk<S, KIND>(a, w, pass, k0)) {
        if (first && dev::elect())
            begin_bulk<S, KIND>(a, w, to, full, k0);
        return;
    }
    dev::sync_some(COPY_BARRIER, COPYING);
    put<S, KIND>(a.p, w, to, pass, k0);
    dev::fence_async();
    dev::sync_some(COPY_BARRIER, COPYING);
    if (copiers::me() == 0)
        dev::mbarrier_arrive(full);
}

/* What the first thread that copies knows of jobs to come: the next one, and the number of the one
 * after it, which it asks for a job before it is needed. */
struct outlook {
    struct attn_cuda_item item;
    int64_t head;
    bool found;
    uint32_t then;
};

template <class S>
DEVICE void look_ahead(const struct attn_cuda_args &a, struct outlook *o, uint32_t number)
{
    const struct attn_cuda_form *const f = &a.form[a.which];
    if (copiers::me() != 0)
        return;
    const struct share::place at = share::place_of(&a, f, number);
    o->head = at.head;
    o->found = at.item < share::items_of(&a, f);
    if (o->found)
        o->item = share::item_at(&a, f, at.item);
    if (S::STAYS)
        o->then = share::take_number(&a, f);
}

/* The n-th job of the block, or that there is none; by all that copy. It takes the place of the job
 * before the last, whose results have been waited for. */
template <class S>
DEVICE void find_job(const struct attn_cuda_args &a, struct block<S> *b, const struct outlook *o,
                     uint32_t n)
{
    struct job<S> *const x = &b->job[n % 2];
    dev::sync_some(COPY_BARRIER, COPYING); /* none of them looks at that one any more */
    if (copiers::me() == 0) {
        x->w.found = o->found;
        if (o->found) {
            fwd::find_work<S>(&a, &x->w, o->item, o->head, 0);
            find_order<S>(a.p, x);
        }
    }
    dev::sync_some(COPY_BARRIER, COPYING);
    if (x->w.found)
        fwd::find_rows<S, copiers>(a.p, &x->w);
}

/* Those that copy: keys a tile ahead of values, as they are multiplied. Queries and the first tiles
 * of keys come while the results of the job before go, which are where values will be. */
template <class S>
DEVICE void bring_all(const struct attn_cuda_args &a, struct block<S> *b, char *tiles,
                      struct outlook *o)
{
    uint32_t step = 0;
    for (uint32_t n = 0; b->job[n % 2].w.found; n++) {
        const struct job<S> *const x = &b->job[n % 2];
        const struct fwd::work<S> *const w = &x->w;
        int pass = fwd::PLAIN;
        do {
            fill_queries<S>(a, b, w, tiles);
            if (S::STAYS && pass == fwd::PLAIN)
                look_ahead<S>(a, o, o->then);
            for (int i = 0; i <= x->tiles; i++) {
                if (i < x->tiles)
                    fill<S, KEYS>(a, b, w, tiles, pass, step + (uint32_t)i, key_of(x, i));
                if (i == 1 || x->tiles == 0) {
                    if (dev::warp() == S::WARPS)
                        dev::mbarrier_wait(&b->done, (n + 1) % 2);
                    dev::sync_warp();
                }
                if (i > 0)
                    fill<S, VALUES>(a, b, w, tiles, pass, step + (uint32_t)(i - 1),
                                    key_of(x, i - 1));
            }
            step += (uint32_t)x->tiles;
            if (S::STAYS && pass == fwd::PLAIN)
                find_job<S>(a, b, o, n + 1);
        } while (next_pass(w, &pass));
        if (!S::STAYS)
            return;
    }
}

} // namespace fwd_sm90

#endif
