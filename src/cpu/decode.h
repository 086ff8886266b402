/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the kernels for few rows work on: an item, heads of a sequence and some of its keys; the
 * state of its heads; and runs of keys.
 */
#ifndef ATTN_CPU_DECODE_H
#define ATTN_CPU_DECODE_H

#include "cpu/masks.h"

/* Lanes of the smallest block of the tiled form; as many rows, or 16; rows of an item, at most, of
 * most heads, and of those that gain most. */
enum { LANES = HALF * VEC_N, FEW = LANES < 16 ? (int)LANES : 16 };
enum { ROWS = 24, WIDE_ROWS = FEW * 3 / 2, MORE_ROWS = 3 * FEW < ROWS ? 3 * FEW : ROWS };
_Static_assert((int)WIDE_ROWS <= (int)ROWS && (REAL_BITS == 32 || 2 * (int)FEW <= (int)ROWS),
               "an item has room for the rows of any head");
enum { MOST_RB = VEC_N < 4 ? (int)VEC_N : 4 }; /* rows of a step */
enum { LEAST_KB = VEC_N / MOST_RB };          /* its keys */
enum { MOST_KB = VEC_N < 4 ? (int)VEC_N : 4 }; /* of them multiplied together, at most */
enum { GROUPS = ROWS };
enum { RUN = 256 };                           /* keys of a run, at most; a multiple of VEC_N */

/* Numbers of a narrow head, at most: of many keys, of some, of any; and what many and some are. */
enum { NARROW = VEC_N < 8 ? 12 : 24, OFTEN_NARROW = VEC_N < 8 ? 12 : 20, ALWAYS_NARROW = 12 };
enum { MANY_KEYS = 256, SOME_KEYS = 128 };
/* Keys that are not worth turning, and 4 for each number of theirs, where LANES are several
 * vectors'. */
enum { FEW_TURNED = 16 };

/* Scratch: for each head of the item its queries as words and its state. */
struct head {
    int64_t head_kv;
    real *q;      /* [rows][words, rounded up to VEC_N], with the sign of the scale */
    real *r;      /* [groups][VEC_N] reference of each lane; -inf: none yet */
    real *l, *lost; /* [groups][VEC_N] sum of each lane, and what its roundings took */
    real *o;      /* [rows][sum_room] sums of values: [dv], or of narrow heads [dv][VEC_N] */
    const struct turned *turned; /* narrow heads: the run in work; else null */
};

/* Rows `first` to first + rb - 1. */
struct group {
    int64_t first, rb, kb;
    uint32_t lanes; /* of a step's first key, as bits */
};

struct item {
    const struct attn_unit *u;
    int64_t d, dv, word_room, value_room, sum_room;
    bool narrow; /* lanes are keys, see decode_narrow.h */
    enum attn_asks asks;
    int64_t rows, filled, groups; /* filled: with copies of the last row, see filled_rows() */
    struct attn_range queries; /* of which the rows are */
    struct group group[GROUPS];
    int64_t lo, hi; /* keys in work that some row sees */
    struct exponent scale;
    real span;      /* of scores above a firm reference */
    bool shaped;    /* more than the scale goes into the scores */
    bool masked;    /* masks other than that of keys may hide them */
    bool plain;     /* scores are products, and nothing is dropped */
    struct attn_score_view bias;
    struct attn_range see[ROWS]; /* of each row, */
    int64_t query[ROWS], head[ROWS]; /* its query and the head of its group */
};

/* The keys or values of the heads that an item walks through; of a run and a head, where they lie,
 * and as many rows that memory is asked for meanwhile. */
struct rows {
    const struct attn_view *view;
    const elem *first;    /* the sequence's, of the item's first head; null where pages hold them */
    int64_t width;
    int64_t step;         /* elements from row to row; 0 where pages hold them */
    bool one;             /* rows of all those heads are one array, token by token */
    int64_t apart;        /* elements from one that memory is asked for to the following one */
    int64_t before, behind; /* narrow heads: others' numbers right before and behind each row */
    const elem *next;     /* what memory is asked for; null: nothing */
    const elem *at[RUN];  /* past the run's end, up to a multiple of MOST_KB, of narrow heads to the
                             end of a step, its last one */
};

/* Keys j .. j + n - 1, all of them in work. */
struct run {
    int64_t j, n;
    struct rows k, v;
};

/* Those of a run from `from` to `to`. */
struct keys {
    int64_t from, to;
    bool hidden; /* some may have the weight HIDDEN */
};

/* The weight of a key for a row that does not see it. */
static const real HIDDEN = -1;

/* sum + w v, but where w may be HIDDEN and is, sum. */
INLINE vec add_weighed(vec sum, vec w, vec v, bool hidden)
{
    const vec more = vec_fma(w, v, sum);
    return hidden ? vec_select(vec_lt(w, vec_zero()), sum, more) : more;
}

/* Three rows go as four, with a copy of the last one, where a group of two and one of one would take
 * longer, as with AVX-512: the keys are loaded once for all of them. */
static int64_t filled_rows(int64_t rows)
{
    const bool wide = LANES == VEC_N && MR * NV >= 16;
    return wide && rows % MOST_RB == 3 ? rows + 1 : rows;
}

/* Fewer rows never take more, though they may have more groups, nor does a head that is not
 * narrow. */
static int64_t head_reals(const struct item *t)
{
    const int64_t most = (t->rows + MOST_RB - 1) / MOST_RB + 1;
    const int64_t groups = t->narrow && t->rows > most ? t->rows : most;
    return filled_rows(t->rows) * (t->word_room + t->sum_room) + 3 * groups * VEC_N;
}

/* Whether to turn keys and values pays: few rows had better read them as they lie, above all where
 * keys are few or heads fill a vector, or nearly. More rows never make a head less narrow, nor do
 * more keys. */
static bool is_narrow(const struct attn_problem *p, int64_t rows, int64_t nk)
{
    const int64_t width = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    const bool same_type = sizeof(elem) == sizeof(real), fills = width % VEC_N == 0;
    if (LANES > VEC_N && nk <= FEW_TURNED + 4 * width)
        return false;
    if (width <= ALWAYS_NARROW) {
        const bool few = nk < MANY_KEYS || (REAL_BITS == 64 && rows < 3);
        return few ? width < 3 * rows : width <= 4 * rows;
    }
    if (LANES == VEC_N && same_type && fills)
        return false;
    if (REAL_BITS == 64)
        return nk >= MANY_KEYS && width <= NARROW && width <= 3 * rows;
    return nk >= SOME_KEYS && width <= (nk < MANY_KEYS ? OFTEN_NARROW : NARROW) && rows > MOST_RB;
}

static void set_rows(struct item *t, int64_t rows)
{
    t->rows = rows;
    t->filled = t->narrow ? rows : filled_rows(rows);
}

/* For rows that have nk keys; with more keys an item takes no less memory. */
static void item_shape(struct item *t, const struct attn_problem *p, int64_t rows, int64_t nk)
{
    t->d = p->head_dim;
    t->dv = p->head_dim_v;
    t->word_room = round_up(words(t->d), VEC_N);
    t->value_room = round_up(t->dv, VEC_N);
    t->narrow = is_narrow(p, rows, nk);
    t->sum_room = t->narrow ? t->dv * VEC_N : t->value_room;
    set_rows(t, rows);
}

static void make_groups(struct item *t)
{
    t->groups = 0;
    for (int64_t first = 0, rb = t->narrow ? 1 : MOST_RB; first < t->filled; first += rb) {
        struct group *const g = &t->group[t->groups++];
        while (rb > t->filled - first)
            rb /= 2;
        *g = (struct group){first, rb, VEC_N / rb, 0};
        for (int64_t r = 0; r < rb; r++)
            g->lanes |= UINT32_C(1) << r * g->kb;
    }
}

static int64_t head_of(const struct item *t, int64_t head_kv, int64_t r)
{
    return head_kv * t->u->p->group + t->head[r];
}

static struct row row_at(const struct item *t, int64_t head_kv, int64_t r)
{
    const struct row row = {t->u, head_kv, t->query[r], head_of(t, head_kv, r), t->see[r]};
    return row;
}

static struct head head_at(const struct item *t, real *scratch, int64_t n, int64_t head_kv)
{
    struct head h;
    h.head_kv = head_kv;
    h.q = scratch + n * head_reals(t);
    h.r = h.q + t->filled * t->word_room;
    h.l = h.r + t->groups * VEC_N;
    h.lost = h.l + t->groups * VEC_N;
    h.o = h.lost + t->groups * VEC_N;
    h.turned = NULL;
    return h;
}

static void head_init(const struct item *t, const struct head *h)
{
    const bool negative = t->u->p->scale < 0;
    for (int64_t r = 0; r < t->filled; r++) {
        const struct row row = row_at(t, h->head_kv, r);
        const elem *const query = query_row(&row);
        for (int64_t c = 0; c < words(t->d); c += VEC_N) {
            const vec q = words_at(query, c, t->d);
            vec_store(h->q + r * t->word_room + c, negative ? word_negate(q) : q);
        }
    }
    for (int64_t i = 0; i < t->groups * VEC_N; i += VEC_N) {
        vec_store(h->r + i, vec_set(-INFINITY)); /* makes every probability too large, or NaN */
        vec_store(h->l + i, vec_zero());
        vec_store(h->lost + i, vec_zero());
    }
    for (int64_t i = 0; i < t->filled * t->sum_room; i += VEC_N)
        vec_store(h->o + i, vec_zero());
}

/* Asks memory for some bytes of a row. */
INLINE void fetch(const struct item *t, const elem *row, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += LINE)
        if (t->asks == ATTN_ASKS_SECOND)
            __builtin_prefetch((const char *)row + i, 0, 2);
        else
            __builtin_prefetch((const char *)row + i);
}

#endif
