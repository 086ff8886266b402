/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The forward kernel: tiled online softmax, for all element types. It takes the checked problem as
 * it is, with everything that it may ask for but probabilities and sums of them.
 *
 * A block computes an item of the list (share.h): a tile of rows of one sequence and key/value
 * head. Keys and values come tile by tile through two stages of shared memory, the next step's
 * being copied while this one's are multiplied; scores, weights and sums of values stay in
 * registers. The warps share out the rows or, in the short form, which has 16 of them, the keys of
 * a tile, and what they have of a row is put together in the end. Head sizes too large for shared
 * memory or registers are cut: queries and keys into pieces that come one after another, columns of
 * out among blocks.
 *
 * What is not seen gets the score -inf, hence the weight 0; 0 times what is not finite would still
 * show. Values past the end, and those of padding keys, are 0 in shared memory. Where sums are not
 * finite all the same, the block does its work again with 0 for each value that is not finite,
 * which gives the same bits wherever none was met; what is seen of them is then looked up. Rows
 * whose sums are not finite even so have left the range, which their results need not: once more,
 * with smaller weights for them.
 *
 * All products hold a tile of 16 rows by 8 columns in the same way, as mma does: with g = lane / 4,
 * the elements 0 and 1 are of row g, 2 and 3 of row g + 8, and the four lanes of a quad share a
 * row. Of scores they are columns 2 (lane % 4) and the next; of out the type says which. A warp has
 * M such bands of 16 rows, and their tiles band by band. An element type T, of fwd_half.h,
 * fwd_f32.h and fwd_f64.h, names
 *
 *   element, real             as stored; what it computes in
 *   number(x), put(x)         from the one to the other; put(x, y): two at once
 *   exp_of(x)                 e^x for x <= 0, -inf too, or NaN
 *   place<WIDTH>(row, chunk)  where 16 bytes lie in a tile with rows of WIDTH numbers
 *   scores<D, N, M>(s, q, k)  s[M][N / 8] += 16 M rows of q by N of k, over D numbers
 *   values<N, DV, M>(out, s, v)  out[M][DV / 8] += s, 16 M rows by N keys, by N rows of v
 *   column(n, e)              of out: where element e of tile n is
 */
#ifndef ATTN_CUDA_FWD_H
#define ATTN_CUDA_FWD_H

#include "cuda/row.h"
#include "cuda/share.h"

namespace fwd {

/* Two numbers side by side, read or written at once. */
template <class X> struct alignas(2 * sizeof(X)) pair_of {
    X x[2];
};

/* The names of a type that is computed in as it is stored. */
template <class X> struct itself {
    typedef X element, real;
    static DEVICE X number(X x) { return x; }
    static DEVICE X put(X x) { return x; }
    static DEVICE struct pair_of<X> put(X x, X y) { return {{x, y}}; }
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
    static constexpr int RESULT = DV + 2; /* numbers of a warp's row in the end: see row::parts */
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

/* An item of the list, if it has so many, a key/value head and a part of the columns. */
template <class S>
DEVICE void find_work(const struct attn_cuda_args *a, struct work<S> *w, int64_t item, int64_t head,
                      int64_t part)
{
    const struct attn_problem *p = &a->p;
    const struct attn_cuda_form *f = &a->form[a->which];
    w->found = item < share::items_of(a, f);
    if (!w->found)
        return;
    const struct attn_cuda_item *const items =
        (const struct attn_cuda_item *)(a->workspace + f->items);
    const struct attn_cuda_item x = items[item];
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
            w->warp[n] = attn_band_any(w->s.band, first / p.group, last / p.group + 1);
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

/* ---- Softmax -------------------------------------------------------------------------------- */

/* Over the four lanes that share a row. */
template <class real> DEVICE real quad_most(real x)
{
    for (int mask = 1; mask < 4; mask *= 2) {
        const real other = dev::shuffle_xor(x, mask);
        x = other > x ? other : x;
    }
    return x;
}

template <class real> DEVICE real quad_sum(real x)
{
    x += dev::shuffle_xor(x, 1);
    return x + dev::shuffle_xor(x, 2);
}

DEVICE int clamp(int64_t x, int most) { return x < 0 ? 0 : x > most ? most : (int)x; }

/* A lane's rows, two of each band: the largest score so far, and its own part of the sum of
 * weights. */
template <class S> struct state {
    typename S::real most[2 * S::M], sum[2 * S::M];
};

/* Of a lane's n-th row in the block. */
DEVICE int row_of(int base, int n) { return base + dev::lane() / 4 + 8 * n; }

/* Whether a lane's rows see keys k0 .. k0 + S::PART - 1, but for what rules hide. */
template <class S> DEVICE bool sees_all(const struct work<S> *w, int base, int64_t k0)
{
    bool all = true;
    UNROLLED for (int n = 0; n < 2 * S::M; n++) {
        const struct attn_range see = w->row[row_of(base, n)].see;
        all = all && see.lo <= k0 && k0 + S::PART <= see.hi;
    }
    return all;
}

/* Scores of products with keys k0 .. k0 + S::PART - 1; of them what hides no key and is the same
 * for all at once, the rest one by one. `bare`: the products themselves, where they are seen. */
template <class S>
DEVICE void score(const struct work<S> *w, int base, typename S::real (*s)[4], int64_t k0,
                  bool bare)
{
    typedef typename S::real real;
    const int t = dev::lane() % 4;
    const real scale = bare ? 1 : (real)w->s.p->scale;
    if (w->plain && !dev::ballot(!sees_all<S>(w, base, k0))) {
        UNROLLED for (int i = 0; i < S::SCORES * 4; i++)
            s[i / 4][i % 4] *= scale;
        return;
    }
    if (w->plain) {
        UNROLLED for (int n = 0; n < 2 * S::M; n++) {
            const struct attn_range see = w->row[row_of(base, n)].see;
            const int lo = clamp(see.lo - k0, S::PART), hi = clamp(see.hi - k0, S::PART);
            UNROLLED for (int j = 0; j < S::PART / 8; j++)
                UNROLLED for (int half = 0; half < 2; half++) {
                    const int key = 8 * j + 2 * t + half;
                    real *const x = &s[n / 2 * (S::PART / 8) + j][n % 2 * 2 + half];
                    *x = key >= lo && key < hi ? *x * scale : -(real)INFINITY;
                }
        }
        return;
    }
    real x[S::SCORES * 4];
    UNROLLED for (int i = 0; i < S::SCORES * 4; i++)
        x[i] = s[i / 4][i % 4];
    ROLLED for (int i = 0; i < S::SCORES * 4; i++) {
        const struct row::row *const r =
            &w->row[row_of(base, i / (S::PART / 2) * 2 + i % 4 / 2)];
        const int64_t key = k0 + i / 4 % (S::PART / 8) * 8 + 2 * t + i % 2;
        if (key < r->see.lo || key >= r->see.hi || (bare && !row::sees(&w->s, r, key)))
            x[i] = -(real)INFINITY;
        else if (!bare)
            x[i] = row::score_of<real>(&w->s, r, x[i], key);
    }
    UNROLLED for (int i = 0; i < S::SCORES * 4; i++)
        s[i / 4][i % 4] = x[i];
}

/* What its sums of values lack of a row. */
template <class S> DEVICE typename S::real unit_of(const struct work<S> *w, int r)
{
    return w->bad[CLEANED][r] ? (typename S::real)((int64_t)1 << LARGE) : 1;
}

/* Weights of dropped keys become 0, those of rows that are too large smaller. */
template <class S>
DEVICE void lessen(const struct attn_problem &p, const struct work<S> *w, int base,
                 typename S::real (*s)[4], int64_t k0)
{
    typename S::real x[S::SCORES * 4];
    UNROLLED for (int i = 0; i < S::SCORES * 4; i++)
        x[i] = s[i / 4][i % 4];
    ROLLED for (int i = 0; i < S::SCORES * 4; i++) {
        const int n = row_of(base, i / (S::PART / 2) * 2 + i % 4 / 2);
        const struct row::row *const r = &w->row[n];
        const int64_t key = k0 + i / 4 % (S::PART / 8) * 8 + dev::lane() % 4 * 2 + i % 2;
        if (x[i] > 0 && p.dropout.on && attn_drops(&p, w->s.b, r->head, r->query, key))
            x[i] = 0;
        x[i] *= 1 / unit_of<S>(w, n);
    }
    UNROLLED for (int i = 0; i < S::SCORES * 4; i++)
        s[i / 4][i % 4] = x[i];
}

/* Scores become weights, relative to the largest so far. What was summed before is to follow it,
 * multiplied by `kept`; false: in no row of the warp has it grown, and that changes nothing. */
template <class S>
DEVICE bool weigh(typename S::real (*s)[4], struct state<S> *r, typename S::real *kept)
{
    typedef typename S::real real;
    typedef typename S::T T;
    bool grown = false;
    UNROLLED for (int n = 0; n < 2 * S::M; n++) {
        typename S::real (*const mine)[4] = s + n / 2 * (S::PART / 8);
        const int e = n % 2 * 2;
        real most = r->most[n];
        UNROLLED for (int j = 0; j < S::PART / 8; j++)
            UNROLLED for (int half = 0; half < 2; half++)
                most = mine[j][e + half] > most ? mine[j][e + half] : most;
        most = quad_most(most);
        const real from = most == -(real)INFINITY ? 0 : most; /* what differences are taken from */
        kept[n] = T::exp_of(r->most[n] - from);
        grown = grown || !(kept[n] == 1);
        r->most[n] = most;
        r->sum[n] *= kept[n];
        UNROLLED for (int j = 0; j < S::PART / 8; j++) {
            UNROLLED for (int half = 0; half < 2; half++) {
                real *const x = &mine[j][e + half];
                *x = T::exp_of(*x - from);
                r->sum[n] += *x;
            }
            if (sizeof(real) == 8 && j % 2 == 1)
                dev::sync_warp(); /* four of f64 at once: for more there are not the registers */
        }
    }
    return dev::ballot(grown) != 0;
}

template <class S> DEVICE void keep(typename S::real (*out)[4], const typename S::real *kept)
{
    UNROLLED for (int i = 0; i < S::SUMS * 4; i++)
        out[i / 4][i % 4] *= kept[i / (S::DV / 2) * 2 + i % 4 / 2];
}

/* ---- Results -------------------------------------------------------------------------------- */

/* A warp's sums to shared memory, and what is to be said of them. */
template <class S>
DEVICE void put_sums(struct work<S> *w, int base, int part, int pass, typename S::real *results,
                     const typename S::real (*out)[4], const struct state<S> *r)
{
    typedef typename S::real real;
    UNROLLED for (int n = 0; n < 2 * S::M; n++) {
        real *const to = results + (part * S::ROWS + row_of(base, n)) * S::RESULT;
        const real sum = quad_sum(r->sum[n]);
        real zero = 0; /* NaN if a number is not finite */
        if (dev::lane() % 4 == 0) {
            to[0] = r->most[n];
            to[1] = sum;
        }
        UNROLLED for (int c = 0; c < S::DV / 8; c++)
            UNROLLED for (int half = 0; half < 2; half++) {
                const real x = out[n / 2 * (S::DV / 8) + c][n % 2 * 2 + half];
                to[2 + S::T::column(c, half)] = x;
                zero += 0 * x;
            }
        if (isnan(zero) && !isnan(sum) && w->row[row_of(base, n)].given)
            w->bad[pass][row_of(base, n)] = w->again[pass] = true;
    }
}

/* Numbers of a tile of values that are not finite become 0. */
template <class S, class Crew> DEVICE void clean(char *values)
{
    typedef typename S::element element;
    for (int i = Crew::me(); i < S::KEYS * S::DV; i += Crew::SIZE)
        if (!isfinite(S::T::number(((element *)values)[i])))
            ((element *)values)[i] = 0;
}

/* Columns of bad rows in which a value is seen that is not finite: NaN; a row by a warp. */
template <class S>
DEVICE void spoil(const struct attn_problem &p, const struct work<S> *w, typename S::real *results)
{
    typedef typename S::element element;
    for (int i = dev::warp(); i < S::ROWS; i += S::WARPS) {
        const struct row::row *const r = &w->row[i];
        for (int64_t j = w->key0; w->bad[PLAIN][i] && j < w->key1; j++) {
            if (j < r->see.lo || j >= r->see.hi || !row::sees(&w->s, r, j))
                continue;
            const element *const v = (const element *)key_row<S>(w, p, p.v, w->v, j) + w->column0;
            for (int64_t c = dev::lane(); c < w->columns; c += 32)
                if (!isfinite(S::T::number(v[c])))
                    results[i * S::RESULT + 2 + c] = (typename S::real)NAN;
        }
    }
    dev::sync_warp();
}

/* What is the same for all columns of a row's results: where column w->column0 goes, null for
 * nowhere; what the parts' sums of values are multiplied by, each at once, as all of them may be
 * beyond the range that the result is in; whether all columns are 0. */
template <class S> struct ending {
    char *to;
    typename S::real by[S::KEY_WARPS];
    bool zero;
};

/* Of a row, by a lane; if it is `mine`, what belongs to the row as a whole is put down. */
template <class S>
DEVICE struct ending<S> end_row(const struct attn_cuda_args *a, const struct work<S> *w,
                                const typename S::real *results, int r, bool mine)
{
    typedef typename S::real real;
    typedef typename S::T T;
    const struct row::row *const row = &w->row[r];
    const struct row::parts<real> x = {results + r * S::RESULT, S::ROWS * S::RESULT, S::KEY_WARPS};
    const real most = row::most_of(&x), sum = row::weights_of<T>(&x, most);
    struct ending<S> end = {nullptr, {0}, false};
    real by;
    mine = mine && row->given && w->column0 == 0;
    if (w->slot >= 0) {
        real *const to = share::partial_at<real>(a, &a->form[a->which], w->slot, w->head_kv, r);
        by = unit_of<S>(w, r) / row::unit_of(sum);
        end.to = (char *)(to + 2 + w->column0);
        if (mine) {
            to[0] = most;
            to[1] = sum;
        }
    } else {
        const struct row::outcome<real> o = row::outcome_at(&a->p, row->head, most, sum);
        by = o.by * unit_of<S>(w, r);
        end.to = (char *)(row::out_at<T>(&w->s, row) + w->column0);
        end.zero = o.by < 0;
        if (mine)
            row::put_lse<T>(&w->s, row, o.lse);
    }
    if (!row->given)
        end.to = nullptr;
    UNROLLED for (int i = 0; i < S::KEY_WARPS; i++)
        end.by[i] = row::weight_of<T>(x.data[i * x.stride], most) * by;
    return end;
}

/* n columns of a row, as T stores them, from the parts' sums of values; by a warp. */
template <class S, class T>
DEVICE void put_columns(char *to, const typename S::real *sums, const struct ending<S> &end, int n)
{
    typedef typename S::real real;
    typedef typename T::element element;
    static_assert(S::RESULT % 2 == 0, "pairs are aligned");
    const bool whole = (uintptr_t)to % sizeof(struct pair_of<element>) == 0;
    for (int c = 2 * dev::lane(); c < n; c += 64) {
        element *const here = (element *)to + c;
        real x[2] = {0, 0};
        UNROLLED for (int i = 0; i < S::KEY_WARPS; i++) {
            const struct pair_of<real> part =
                *(const struct pair_of<real> *)(sums + i * S::ROWS * S::RESULT + c);
            UNROLLED for (int e = 0; e < 2; e++)
                x[e] += part.x[e] * end.by[i];
        }
        const struct pair_of<element> both = T::put(end.zero ? 0 : x[0], end.zero ? 0 : x[1]);
        if (whole && c + 1 < n) {
            *(struct pair_of<element> *)here = both;
        } else {
            here[0] = both.x[0];
            if (c + 1 < n)
                here[1] = both.x[1];
        }
    }
}

/* The block's rows, each by one warp; what does not depend on columns by a lane for each row. */
template <class S>
DEVICE void finish(const struct attn_cuda_args *a, const struct work<S> *w,
                   const typename S::real *results)
{
    enum { EACH = S::ROWS / S::WARPS };
    typedef typename S::real real;
    const int own = dev::warp() + dev::lane() % EACH * S::WARPS, columns = (int)w->columns;
    const struct ending<S> mine = end_row<S>(a, w, results, own, dev::lane() < EACH);
    for (int n = 0; n < EACH; n++) {
        const real *const sums = results + (dev::warp() + n * S::WARPS) * S::RESULT + 2;
        struct ending<S> end;
        end.to = (char *)(uintptr_t)dev::shuffle((uint64_t)(uintptr_t)mine.to, n);
        end.zero = dev::shuffle((int)mine.zero, n);
        UNROLLED for (int i = 0; i < S::KEY_WARPS; i++)
            end.by[i] = dev::shuffle(mine.by[i], n);
        if (!end.to)
            continue;
        if (w->slot >= 0)
            put_columns<S, itself<real>>(end.to, sums, end, columns);
        else
            put_columns<S, typename S::T>(end.to, sums, end, columns);
    }
}

/* ---- The kernel ----------------------------------------------------------------------------- */

/* A warp's sums over the part-th part of all tiles of keys. */
template <class S>
DEVICE void attend(const struct attn_problem &p, const struct work<S> *w, char *tiles, int base,
                   int part, int pass, typename S::real (*out)[4], struct state<S> *r)
{
    typedef typename S::real real;
    typedef typename S::T T;
    const int first = part * S::PART;
    real s[S::SCORES][4], kept[2 * S::M];
    int64_t step = 0;
    UNROLLED for (int n = 0; n < 2 * S::M; n++) {
        r->most[n] = -(real)INFINITY;
        r->sum[n] = 0;
    }
    UNROLLED for (int i = 0; i < S::SUMS * 4; i++)
        out[i / 4][i % 4] = 0;
    int64_t tile = next_tile<S>(p, w, w->key0);
    begin_step<S>(tiles, w, p, 0, tile);
    while (tile < w->key1) {
        const int64_t k0 = tile + first, next = next_tile<S>(p, w, tile + S::KEYS);
        const struct attn_range see = w->warp[dev::warp()];
        const bool busy = see.lo < k0 + S::PART && k0 < see.hi;
        UNROLLED for (int i = 0; i < S::SCORES * 4; i++)
            s[i / 4][i % 4] = 0;
        for (int64_t piece = 0; piece < (S::CUT ? w->pieces : 1); piece++, step++) {
            const char *const stage = stage_of<S>(tiles, step);
            const char *const keys = stage + (S::CUT ? S::QUERIES : 0) + first * S::D * S::SIZE;
            take_step<S>(tiles, w, p, step, tile);
            if (busy)
                T::template scores<S::D, S::PART, S::M>(
                    s, (S::CUT ? stage : tiles) + base * S::D * S::SIZE, keys);
        }
        if (busy) {
            score<S>(w, base, s, k0, false);
            if (weigh<S>(s, r, kept))
                keep<S>(out, kept);
            if (p.dropout.on || pass == SMALLER)
                lessen<S>(p, w, base, s, k0);
        }
        take_step<S>(tiles, w, p, step, next);
        if (pass != PLAIN) {
            clean<S, typename S::Crew>(stage_of<S>(tiles, step));
            dev::sync();
        }
        if (busy)
            T::template values<S::PART, S::DV, S::M>(
                out, s, stage_of<S>(tiles, step) + first * S::DV * S::SIZE);
        step++;
        tile = next;
    }
    dev::sync(); /* all are done with the stages */
}

template <class S> KERNEL forward(GRID_CONSTANT const struct attn_cuda_args a)
{
    typedef typename S::real real;
    struct work<S> *const w = (struct work<S> *)dev::shared();
    char *const tiles = (char *)dev::shared() + room<S>::WORK;
    real *const results = (real *)tiles; /* in the end */
    const int base = dev::warp() % S::ROW_WARPS * 16 * S::M, part = dev::warp() / S::ROW_WARPS;
    real out[S::SUMS][4];
    struct state<S> r;
    if (dev::thread() == 0) {
        /* Blocks go through the items first, then through heads, then through parts of columns. */
        const int64_t most = a.form[a.which].most, unit = dev::block() / most;
        find_work<S>(&a, w, dev::block() % most, unit % a.p.heads_kv, unit / a.p.heads_kv);
    }
    dev::sync();
    if (!w->found)
        return;
    find_rows<S, typename S::Crew>(a.p, w);
    dev::sync();
    int pass = PLAIN;
    do {
        attend<S>(a.p, w, tiles, base, part, pass, out, &r);
        put_sums<S>(w, base, part, pass, results, out, &r);
        dev::sync();
    } while (w->again[pass] && ++pass < PASSES);
    if (pass != PLAIN)
        spoil<S>(a.p, w, results);
    finish<S>(&a, w, results);
}

template <class S>
static constexpr struct attn_cuda_instance instance = {forward<S>, S::DV,      S::ROWS,
                                                   S::KEYS,    S::THREADS, room<S>::BYTES, 0, false};

/* For a type's table of kernels: those of head sizes up to head_dim, 0 for any. */
template <class Short, class Tall>
constexpr struct attn_cuda_pair pair(const char *name, int head_dim)
{
    return {name, head_dim, head_dim, {&instance<Short>, &instance<Tall>}};
}

/* The same with a short form that several tables have. */
template <class Tall>
constexpr struct attn_cuda_pair pair(const char *name, int head_dim,
                                     const struct attn_cuda_instance *low)
{
    return {name, head_dim, head_dim, {low, &instance<Tall>}};
}

} // namespace fwd

#endif
