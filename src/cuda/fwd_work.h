/* SPDX-License-Identifier: BSD-3-Clause */
/* What a block of fwd.h is for, its sizes, and how queries, keys and values come to it. */
#ifndef ATTN_CUDA_FWD_WORK_H
#define ATTN_CUDA_FWD_WORK_H

#include "cuda/row.h"
#include "cuda/share.h"

namespace fwd {

/* N numbers side by side, read or written at once. */
template <class X, int N> struct alignas(N * sizeof(X)) few {
    X x[N];
};
template <class X> using pair_of = struct few<X, 2>;

/* The names of a type that is computed in as it is stored. */
template <class X> struct itself {
    typedef X element, real;
    static DEVICE X number(X x) { return x; }
    static DEVICE X put(X x) { return x; }
    static DEVICE pair_of<X> put(X x, X y) { return {{x, y}}; }
    static DEVICE X exp_of(X x) { return dev::exp(x); }
};

/* The threads that share out a copy: so many from number FIRST on. */
template <int FIRST, int SIZE_> struct crew {
    static constexpr int SIZE = SIZE_;
    static DEVICE int me() { return dev::thread() - FIRST; }
};

/* A kernel's sizes: of head_dim or, if CUT, of pieces of it; of columns of out; keys in a tile;
 * bands of rows of a warp; warps along rows and along keys. */
template <class T_, int D_, int DV_, int KEYS_, int M_, int ROW_WARPS_, int KEY_WARPS_, bool CUT_>
struct sizes {
    typedef T_ T;
    typedef typename T::real real;
    typedef typename T::element element;
    static constexpr bool CUT = CUT_;
    static constexpr int D = D_, DV = DV_, KEYS = KEYS_, M = M_;
    static constexpr int ROW_WARPS = ROW_WARPS_, KEY_WARPS = KEY_WARPS_;
    static constexpr int WARPS = ROW_WARPS * KEY_WARPS, THREADS = 32 * WARPS;
    typedef crew<0, THREADS> Crew;
    static constexpr int ROWS = 16 * M * ROW_WARPS, PART = KEYS / KEY_WARPS; /* keys of a warp */
    static constexpr int SIZE = sizeof(element), EACH = 16 / SIZE; /* numbers copied at once */
    static constexpr int QUERIES = ROWS * D * SIZE; /* bytes; if CUT, ahead of a stage's keys */
    static constexpr int KEY_STAGE = KEYS * D * SIZE + (CUT ? QUERIES : 0);
    static constexpr int VALUE_STAGE = KEYS * DV * SIZE;
    static constexpr int STAGE = KEY_STAGE > VALUE_STAGE ? KEY_STAGE : VALUE_STAGE;
    static constexpr int TILES = (CUT ? 0 : QUERIES) + 2 * STAGE;
    /* Numbers of a warp's row in the end, of which sums of values begin at SUMS_AT, see row::parts;
     * those that a lane takes at once. */
    static constexpr int RESULT = DV + 2, SUMS_AT = 2, AT_ONCE = 2;
    static constexpr int RESULTS = ROWS * KEY_WARPS * RESULT * (int)sizeof(real);
    static constexpr int SCORES = M * PART / 8, SUMS = M * DV / 8; /* tiles of a warp */
    static_assert(share::KEY_ALIGN % KEYS == 0, "splits are made of tiles");
};

/* How a block goes about its work: as it comes; with 0 for values that are not finite; with smaller
 * weights for rows that are too large, besides. */
enum pass { PLAIN, CLEANED, SMALLER, PASSES };

/* What weights are divided by in rows that are too large. Of their sums, 2^128 or more (2^1024 in
 * f64), what is lost at the lower end of the range is nothing. */
enum { LARGE = 40 }; /* 2^this, more than keys of a row */

/* What a block is for, in shared memory. */
template <class S> struct work {
    struct attn_sequence s;
    int64_t head_kv, row0, rows; /* rows of the sequence and head in all */
    int64_t key0, key1;          /* keys from key0 to key1 - 1, whole tiles of them */
    int64_t column0, columns;    /* of out */
    int64_t pieces;              /* that queries and keys come in */
    int64_t slot;                /* of partial results, or -1 */
    const char *q, *k, *v;       /* of the first token and the head, but q of head 0 */
    bool whole_q, whole_k, whole_v; /* rows are multiples of 16 bytes: can be copied on the side */
    bool found, plain;
    bool again[PASSES];        /* some row's sums of values are not finite in this pass */
    bool bad[PASSES][S::ROWS]; /* those of this row */
    struct row::row row[S::ROWS];
    struct attn_range warp[S::WARPS]; /* keys that some row of a warp may see */
};

template <class S> struct room {
    static constexpr int WORK = (int)(sizeof(struct work<S>) + 127) / 128 * 128;
    static constexpr int BYTES = WORK + (S::TILES > S::RESULTS ? S::TILES : S::RESULTS);
};

template <class S> DEVICE bool is_whole(const struct attn_view *v, int64_t n)
{
    return (uintptr_t)v->data % 16 == 0 && (v->batch | v->token | v->head | n) % S::EACH == 0;
}

/* An item of the list, a key/value head and a part of the columns. */
template <class S>
DEVICE void find_work(const struct attn_cuda_args *a, struct work<S> *w,
                      const struct attn_cuda_item &x, int64_t head, int64_t part)
{
    const struct attn_problem *p = &a->p;
    w->s = attn_sequence_of(p, x.sequence);
    w->head_kv = head;
    w->row0 = (int64_t)x.tile * S::ROWS;
    w->rows = w->s.nq * p->group;
    w->key0 = x.first / S::KEYS * S::KEYS;
    w->key1 = w->key0;
    if (x.first < x.past)
        w->key1 += (x.past - w->key0 + S::KEYS - 1) / S::KEYS * S::KEYS;
    w->column0 = part * S::DV;
    w->columns = p->head_dim_v - w->column0 < S::DV ? p->head_dim_v - w->column0 : S::DV;
    w->pieces = S::CUT ? (p->head_dim + S::D - 1) / S::D : 1;
    w->slot = x.slot;
    w->q = attn_view_at(&p->q, &p->query, w->s.b, 0, 0, S::SIZE);
    w->k = p->key.table ? nullptr : attn_view_at(&p->k, &p->key, w->s.b, 0, w->head_kv, S::SIZE);
    w->v = p->key.table ? nullptr : attn_view_at(&p->v, &p->key, w->s.b, 0, w->head_kv, S::SIZE);
    w->whole_q = is_whole<S>(&p->q, p->head_dim);
    w->whole_k = is_whole<S>(&p->k, p->head_dim);
    w->whole_v = is_whole<S>(&p->v, p->head_dim_v);
    w->plain = row::is_plain(p);
    for (int pass = 0; pass < PASSES; pass++)
        w->again[pass] = false;
}

/* What some threads find out of the block's rows. */
template <class S, class Crew>
DEVICE void find_rows(const struct attn_problem &p, struct work<S> *w)
{
    for (int n = Crew::me(); n < S::ROWS; n += Crew::SIZE) {
        w->row[n] = row::row_at(&w->s, w->head_kv, w->row0 + n, w->rows);
        for (int pass = 0; pass < PASSES; pass++)
            w->bad[pass][n] = false;
    }
    for (int n = Crew::me(); n < S::WARPS; n += Crew::SIZE) {
        const int64_t first = w->row0 + n % S::ROW_WARPS * 16 * S::M, end = first + 16 * S::M;
        const int64_t last = (end < w->rows ? end : w->rows) - 1;
        w->warp[n] = {0, 0};
        if (first <= last)
            w->warp[n] = attn_band_any(w->s.band, row::quotient(first, p.group),
                                       row::quotient(last, p.group) + 1);
    }
}

/* ---- Copies --------------------------------------------------------------------------------- */

/* Rows of a tensor: `given` of them from `base` on, `stride` bytes apart; from number `first` on,
 * as far as there are n of them. */
struct run {
    const char *base;
    int64_t stride, given, first, n;
};

/* To a tile of `rows` rows of WIDTH numbers, 0 where none are given; 16 bytes at once, on the
 * side. */
template <class S, int WIDTH, class Crew>
DEVICE void copy_run(char *to, int rows, const struct run &x)
{
    constexpr int CHUNKS = WIDTH / S::EACH;
    static_assert(Crew::SIZE % CHUNKS == 0, "a thread's chunks are one below the other");
    const int chunk = Crew::me() % CHUNKS, row0 = Crew::me() / CHUNKS;
    const int64_t at = x.first + chunk * S::EACH;
    const char *from = x.base + row0 * x.stride + at * S::SIZE;
    UNROLLED for (int row = 0; row < rows; row += Crew::SIZE / CHUNKS) {
        dev::copy_async<16>(to + S::T::template place<WIDTH>(row0 + row, chunk), from,
                            row0 + row < x.given && at < x.n);
        from += Crew::SIZE / CHUNKS * x.stride;
    }
}

/* The same from rows anywhere: from(row), null for none, which is asked once by each of the threads
 * that share a row. `whole`: 16 bytes can be copied at once. */
template <class S, int WIDTH, class Crew, class From>
DEVICE void copy_rows(char *to, int rows, From from, int64_t first, int64_t n, bool whole)
{
    typedef typename S::element element;
    const int sharers = Crew::SIZE > rows ? Crew::SIZE / rows : 1;
    ROLLED for (int row = Crew::me() / sharers; row < rows; row += Crew::SIZE / sharers) {
        const element *const x = (const element *)from(row);
        for (int chunk = Crew::me() % sharers; chunk < WIDTH / S::EACH; chunk += sharers) {
            const int64_t at = first + chunk * S::EACH;
            element *const here = (element *)(to + S::T::template place<WIDTH>(row, chunk));
            if (whole) {
                dev::copy_async<16>(here, x + at, x && at < n);
                continue;
            }
            ROLLED for (int e = 0; e < S::EACH; e++)
                here[e] = x && at + e < n ? x[at + e] : 0;
        }
    }
}

/* A key's or value's row; null past the end. */
template <class S>
DEVICE const char *key_row(const struct work<S> *w, const struct attn_problem &p,
                           const struct attn_view &v, const char *base, int64_t key)
{
    if (key >= w->s.nk)
        return nullptr;
    return base ? base + key * v.token * S::SIZE
                : attn_view_at(&v, &p.key, w->s.b, key, w->head_kv, S::SIZE);
}

/* Keys or values k0 .. k0 + S::KEYS - 1; those that `mask` hides, which may be null, as zeros. */
template <class S, int WIDTH, class Crew>
DEVICE void copy_keys(char *to, const struct work<S> *w, const struct attn_problem &p,
                      const struct attn_view &v, const char *base, const uint8_t *mask, int64_t k0,
                      int64_t first, int64_t n, bool whole)
{
    if (base && whole && !mask) {
        const int64_t stride = v.token * S::SIZE;
        copy_run<S, WIDTH, Crew>(to, S::KEYS, {base + k0 * stride, stride, w->s.nk - k0, first, n});
    } else {
        copy_rows<S, WIDTH, Crew>(to, S::KEYS, [&](int i) -> const char * {
            const bool hidden = mask && k0 + i < w->s.nk && !mask[k0 + i];
            return hidden ? nullptr : key_row<S>(w, p, v, base, k0 + i);
        }, first, n, whole);
    }
}

template <class S, int WIDTH, class Crew>
DEVICE void copy_queries(char *to, const struct work<S> *w, const struct attn_problem &p,
                         int64_t first)
{
    copy_rows<S, WIDTH, Crew>(to, S::ROWS, [&](int i) -> const char * {
        const struct row::row *const r = &w->row[i];
        return r->given ? w->q + (r->query * p.q.token + r->head * p.q.head) * S::SIZE : nullptr;
    }, first, p.head_dim, w->whole_q);
}

/* Where step n finds its tile. */
template <class S> DEVICE char *stage_of(char *tiles, int64_t n)
{
    return tiles + (S::CUT ? 0 : S::QUERIES) + n % 2 * S::STAGE;
}

/* Whether the block mask hides the keys from k0 on, a tile of them, from all rows. A tile that is
 * made of many blocks is not looked at: to look through them would take as long as to compute it.
 */
template <class S>
DEVICE bool is_hidden(const struct attn_problem &p, const struct work<S> *w, int64_t k0)
{
    enum { MOST_BLOCKS = 64 };
    const struct attn_score_view *const m = &p.block_mask;
    const int64_t row1 = w->row0 + S::ROWS < w->rows ? w->row0 + S::ROWS : w->rows;
    const int64_t key1 = k0 + S::KEYS < w->s.nk ? k0 + S::KEYS : w->s.nk;
    const int64_t q0 = w->row0 / p.group / p.block_q, q1 = (row1 - 1) / p.group / p.block_q + 1;
    const int64_t b0 = k0 / p.block_k, b1 = (key1 - 1) / p.block_k + 1;
    const int64_t heads = m->head ? p.group : 1, head0 = w->head_kv * p.group;
    if ((q1 - q0) * (b1 - b0) * heads > MOST_BLOCKS)
        return false;
    for (int64_t h = head0; h < head0 + heads; h++)
        for (int64_t q = q0; q < q1; q++)
            for (int64_t b = b0; b < b1; b++)
                if (m->data[attn_score_at(m, w->s.b, h, q, b)])
                    return false;
    return true;
}

/* The first key of the first tile from k0 on that some row may see; key1 without one. */
template <class S>
DEVICE int64_t next_tile(const struct attn_problem &p, const struct work<S> *w, int64_t k0)
{
    if (p.block_mask.data)
        while (k0 < w->key1 && is_hidden<S>(p, w, k0))
            k0 += S::KEYS;
    return k0;
}

/* Begins the copies of step n, of the tile from k0 on: the pieces of its keys, then its values. */
template <class S>
DEVICE void begin_step(char *tiles, const struct work<S> *w, const struct attn_problem &p,
                       int64_t n, int64_t k0)
{
    typedef typename S::Crew Crew;
    const int64_t steps = S::CUT ? w->pieces + 1 : 2, piece = n % steps;
    char *const to = stage_of<S>(tiles, n);
    if (k0 >= w->key1)
        return;
    if (S::CUT ? piece < w->pieces : n == 0)
        copy_queries<S, S::D, Crew>(S::CUT ? to : tiles, w, p, piece * S::D);
    if (piece < steps - 1)
        copy_keys<S, S::D, Crew>(to + (S::CUT ? S::QUERIES : 0), w, p, p.k, w->k, nullptr, k0,
                                 piece * S::D, p.head_dim, w->whole_k);
    else
        copy_keys<S, S::DV, Crew>(to, w, p, p.v, w->v, w->s.key_mask, k0, w->column0,
                                  p.head_dim_v, w->whole_v);
    dev::commit_copies();
}

/* Waits for step n, for all threads, which are then done with step n - 1; the next one begins, of
 * the tile from `next` on. */
template <class S>
DEVICE void take_step(char *tiles, const struct work<S> *w, const struct attn_problem &p, int64_t n,
                      int64_t next)
{
    dev::wait_copies<0>();
    dev::sync();
    begin_step<S>(tiles, w, p, n + 1, next);
}

} // namespace fwd

#endif
