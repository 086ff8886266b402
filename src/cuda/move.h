/* SPDX-License-Identifier: BSD-3-Clause */
/* Tokens moved, turned on the way: rotary and the cache. Lengths and offsets are sound. */
#ifndef ATTN_CUDA_MOVE_H
#define ATTN_CUDA_MOVE_H

#include "cuda/owner.h"
#include "cuda/rows.h"
#include "score.h"

namespace move {

enum { THREADS = 128, PAIRS = THREADS, SHARED = 2 * PAIRS * (int)sizeof(struct attn_turn) };

/* A token of the tensor that it comes from; `used`: it takes part. */
struct token {
    int64_t b, i;
    bool used;
};

/* Of padded tensors and, with the sequence that it would be of, packed ones. */
DEVICE struct token token_of(const struct attn_tokens *t, int64_t row)
{
    const struct attn_axis *const a = &t->from;
    struct token x;
    x.b = a->cu ? owner_of(a->cu, a->cu64, t->batch, row) : row / a->room;
    x.i = a->cu ? row : row - x.b * a->room;
    x.used = x.b < t->batch;
    if (x.used) {
        x.i -= attn_axis_start(a, x.b);
        x.used = x.i < attn_axis_len(a, x.b);
    }
    return x;
}

/* Where place t of sequence b is, or null: its page, which nobody may have looked at, is none. */
DEVICE char *place_of(const struct attn_view *v, const struct attn_axis *a, int64_t b, int64_t t,
                      int64_t size)
{
    if (a->table) {
        const int64_t page =
            attn_index_at(a->table, a->table64, b * a->max_pages + t / a->page_size);
        if (page < 0 || page >= a->pages)
            return 0;
    }
    return attn_view_at(v, a, b, t, 0, size);
}

/* ---- What is not turned ---------------------------------------------------------------------- */

/* `run` bytes for each head, in units of T; from null: 0. */
template <class T>
DEVICE void copy_heads(const char *from, char *to, int64_t heads, int64_t step, int64_t to_step,
                       int64_t run)
{
    const int64_t units = run / (int64_t)sizeof(T);
    int lanes = 1;
    while (lanes < THREADS && lanes < units)
        lanes *= 2;
    const int first = dev::thread() / lanes, at_once = THREADS / lanes;
    for (int64_t h = first; h < heads; h += at_once)
        for (int64_t n = dev::thread() % lanes; n < units; n += lanes)
            ((T *)(to + h * to_step))[n] = from ? ((const T *)(from + h * step))[n] : T();
}

DEVICE void copy_some(int unit, const char *from, char *to, int64_t heads, int64_t step,
                      int64_t to_step, int64_t run)
{
    switch (unit) {
    case 16: copy_heads<rows::wide>(from, to, heads, step, to_step, run); break;
    case 8: copy_heads<uint64_t>(from, to, heads, step, to_step, run); break;
    case 4: copy_heads<uint32_t>(from, to, heads, step, to_step, run); break;
    default: copy_heads<uint16_t>(from, to, heads, step, to_step, run);
    }
}

/* ---- What is --------------------------------------------------------------------------------- */

/* Pairs first .. first + n - 1 of all heads by the turns in shared memory. */
template <attn_dtype type>
DEVICE void turn_pairs(const struct attn_tokens *t, const char *x, char *out, int64_t first, int n,
                       const struct attn_turn *turns)
{
    const int64_t step = attn_pair_step(&t->rotation), partner = attn_pair_partner(&t->rotation);
    int lanes = 1;
    while (lanes < n)
        lanes *= 2;
    const int pair = dev::thread() % lanes, at_once = THREADS / lanes;
    if (pair >= n)
        return;
    const struct attn_turn by = turns[pair];
    for (int64_t h = dev::thread() / lanes; h < t->heads; h += at_once) {
        const int64_t at = (first + pair) * step;
        const double a = attn_number_at(x, type, h * t->x.head + at);
        const double b = attn_number_at(x, type, h * t->x.head + at + partner);
        attn_put_number(out, type, h * t->out.head + at, attn_turned_first(by, a, b));
        attn_put_number(out, type, h * t->out.head + at + partner, attn_turned_second(by, a, b));
    }
}

/* *second: which of two places in shared memory is next, so that a warp may go ahead while others
 * still read. */
template <attn_dtype type>
DEVICE void turn(const struct attn_cuda_move *m, int64_t position, const char *x, char *out,
                 bool *second)
{
    const int64_t pairs = m->tokens.rotation.dim / 2, rest = attn_angle_rest(position);
    for (int64_t first = 0; first < pairs; first += PAIRS) {
        const int n = pairs - first < PAIRS ? (int)(pairs - first) : PAIRS;
        struct attn_turn *const turns = (struct attn_turn *)dev::shared() + (*second ? PAIRS : 0);
        if (dev::thread() < n) {
            const struct attn_twofold f = m->frequency[first + dev::thread()];
            turns[dev::thread()] = attn_turn_sum(attn_turn_to(position - rest, f),
                                                 attn_turn_to(rest, f), m->tokens.inverse);
        }
        dev::sync();
        turn_pairs<type>(&m->tokens, x, out, first, n, turns);
        *second = !*second;
    }
}

template <attn_dtype type> KERNEL tokens(GRID_CONSTANT const struct attn_cuda_move m)
{
    const struct attn_tokens *const t = &m.tokens;
    const int64_t size = attn_dtype_size(type), dim = t->rotation.dim;
    bool second = false;
    for (int64_t row = dev::block(); row < t->from.rows; row += dev::blocks()) {
        const struct token x = token_of(t, row);
        const int64_t shift = x.used && t->shift.data ? attn_axis_len(&t->to, x.b) : 0;
        if (!x.used && m.clear) {
            char *const out = t->out.data + (t->from.cu ? row * t->out.token
                                                        : x.b * t->out.batch + x.i * t->out.token) *
                                                size;
            copy_some(m.unit, 0, out, t->heads, 0, t->out.head * size, t->head_dim * size);
        }
        if (!x.used)
            continue;
        const char *const from = attn_view_at(&t->x, &t->from, x.b, x.i, 0, size);
        char *const out = place_of(&t->out, &t->to, x.b, shift + x.i, size);
        if (!out)
            continue;
        if (dim > 0)
            turn<type>(&m, attn_token_position(t, x.b, x.i), from, out, &second);
        copy_some(m.unit, from + dim * size, out + dim * size, m.heads, t->x.head * size,
                  t->out.head * size, m.run);
    }
}

KERNEL lengths(GRID_CONSTANT const struct attn_cuda_lengths l)
{
    const struct attn_tokens *const t = &l.append.k;
    for (int64_t b = dev::block() * (int64_t)THREADS + dev::thread(); b < t->batch;
         b += dev::blocks() * (int64_t)THREADS) {
        const int64_t after = attn_axis_len(&t->to, b) + attn_axis_len(&t->from, b);
        if (t->to.used64)
            ((int64_t *)l.append.lengths)[b] = after;
        else
            ((int32_t *)l.append.lengths)[b] = (int32_t)after;
    }
}

} // namespace move

#endif
