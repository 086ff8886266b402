/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Forward kernel for few rows (see ATTN_DECODE_ROWS), built once per instruction set and element
 * type. What counts here is to read keys and values once, in the order of memory, for all rows that
 * share them; nothing is packed.
 *
 * A step takes KB keys and RB rows of a head, KB * RB = VEC_N: their products are VEC_N vectors
 * along the head, whose sums become one vector of scores, lane r * KB + k. The softmax is that of
 * fwd_tmpl.c, with the maximum of the first step in which a row sees a key as its first reference;
 * a row's sum stays spread over its KB lanes until the end. Values are added key by key.
 *
 * Steps are done some at a time, a run of keys: the products of all, the softmax of all, then the
 * values of all, so that no step waits for the one before. Results do not depend on how many: where
 * something is to happen between two steps, the values before it are added first.
 *
 * A long sequence is cut into chunks of keys, by its length alone, and merge() adds what they gave.
 */
#include "cpu/tmpl.h"

enum { ROWS = ATTN_DECODE_ROWS };
enum { MOST_RB = 4 }; /* rows of a step */
enum { RUN = 32 };    /* keys of a run, at most; a multiple of VEC_N */

/* Scratch: for each head of the item its queries as words and its state. */
struct head {
    int64_t head_kv;
    real *q;      /* [groups][RB][words, rounded up to VEC_N], with the sign of the scale */
    real *r;      /* [groups][VEC_N] reference of each lane; -inf: none yet */
    real *l, *lost; /* [groups][VEC_N] sum of each lane, and what its roundings took */
    real *o;      /* [groups][RB][dv, rounded up to VEC_N] */
};

struct item {
    const struct attn_unit *u;
    int64_t d, dv, word_room, value_room;
    int64_t rows, rb, kb, groups; /* rows in groups of rb; the last row repeats in the last group */
    int64_t lo, hi;               /* keys of the chunk that some row sees */
    struct exponent scale;
    bool shaped;                  /* more than the scale goes into the scores */
    bool masked;                  /* rules beyond the band and the key mask may hide keys */
    uint32_t first;               /* the lanes of a step's first key */
    struct attn_score_view bias;
    struct attn_range see[ROWS + MOST_RB];
};

/* What the rows see of the keys of a step, by the band and the key mask. */
enum { SEE_NONE, SEE_SOME, SEE_ALL };

/* The keys or values of a run, of one head, and as many rows that memory is asked for meanwhile. */
struct rows {
    const elem *first, *next;  /* next is null where nothing is asked for */
    int64_t apart, next_apart; /* elements from one row to the following one */
    const elem *at[RUN];       /* paged: the rows themselves */
};

/* Keys j .. j + n - 1, all of them in work. */
struct run {
    int64_t j, n;
    uint8_t see[RUN]; /* of each step */
    bool paged;
    struct rows k, v;
};

/* Rows of a step: as many as there are, up to 4, in a form that divides a vector. */
static int64_t row_block(int64_t rows)
{
    const int64_t most = VEC_N < MOST_RB ? VEC_N : MOST_RB;
    const int64_t want = rows > 2 ? MOST_RB : rows;
    return want < most ? want : most;
}

static int64_t head_reals(const struct item *t)
{
    return t->groups * (t->rb * (t->word_room + t->value_room) + 3 * VEC_N);
}

static void item_shape(struct item *t, const struct attn_problem *p, int64_t rows)
{
    t->d = p->head_dim;
    t->dv = p->head_dim_v;
    t->word_room = round_up(words(t->d), VEC_N);
    t->value_room = round_up(t->dv, VEC_N);
    t->rows = rows;
    t->rb = row_block(rows);
    t->kb = VEC_N / t->rb;
    t->groups = round_up(rows, t->rb) / t->rb;
    t->first = 0;
    for (int64_t r = 0; r < t->rb; r++)
        t->first |= UINT32_C(1) << r * t->kb;
}

static int64_t scratch_bytes(const struct attn_problem *p, int64_t rows, int64_t heads)
{
    struct item t;
    item_shape(&t, p, rows);
    return round_up((heads * head_reals(&t) + t.value_room) * (int64_t)sizeof(real), 64);
}

/* Row r of the unit, past the end the last one. */
static int64_t row_of(const struct item *t, int64_t r) { return min64(r, t->rows - 1); }
static int64_t query_of(const struct item *t, int64_t r) { return row_of(t, r) / t->u->p->group; }

static int64_t head_of(const struct item *t, int64_t head_kv, int64_t r)
{
    const int64_t group = t->u->p->group;
    return head_kv * group + row_of(t, r) % group;
}

static struct row row_at(const struct item *t, int64_t head_kv, int64_t r)
{
    const struct row row = {t->u, head_kv, query_of(t, r), head_of(t, head_kv, r), t->see[r]};
    return row;
}

/* VEC_N words from c on of a row of d elements, 0 past its end. */
INLINE vec words_at(const elem *row, int64_t c, int64_t d)
{
    elem part[sizeof(vec) / sizeof(elem)];
    if ((c + VEC_N) * PAIR <= d)
        return word_load(row + c * PAIR);
    vec_load_some(part, row + c * PAIR, (d - c * PAIR) * (int64_t)sizeof(elem));
    return word_load(part);
}

INLINE vec values_at(const elem *row, int64_t c, int64_t dv)
{
    elem part[sizeof(vec) / sizeof(elem)];
    if (c + VEC_N <= dv)
        return elem_load(row + c);
    vec_load_some(part, row + c, (dv - c) * (int64_t)sizeof(elem));
    return elem_load(part);
}

static struct head head_at(const struct item *t, real *scratch, int64_t n, int64_t head_kv)
{
    struct head h;
    h.head_kv = head_kv;
    h.q = scratch + n * head_reals(t);
    h.r = h.q + t->groups * t->rb * t->word_room;
    h.l = h.r + t->groups * VEC_N;
    h.lost = h.l + t->groups * VEC_N;
    h.o = h.lost + t->groups * VEC_N;
    return h;
}

static void head_init(const struct item *t, const struct head *h)
{
    const bool negative = t->u->p->scale < 0;
    for (int64_t r = 0; r < t->groups * t->rb; r++) {
        const struct row row = row_at(t, h->head_kv, r);
        for (int64_t c = 0; c < words(t->d); c += VEC_N) {
            const vec q = words_at(query_row(&row), c, t->d);
            vec_store(h->q + r * t->word_room + c, negative ? word_negate(q) : q);
        }
    }
    for (int64_t i = 0; i < t->groups * VEC_N; i++) {
        h->r[i] = -INFINITY; /* makes every probability too large, or NaN */
        h->l[i] = h->lost[i] = 0;
    }
    memset(h->o, 0, (size_t)(t->groups * t->rb * t->value_room) * sizeof(real));
}

/* ---- A step ---------------------------------------------------------------------------------- */

INLINE const elem *row_in(const struct rows *rows, bool paged, int64_t n)
{
    return paged ? rows->at[n] : rows->first + n * rows->apart;
}

/* Asks memory for some bytes of a row. */
INLINE void fetch(const struct item *t, const elem *row, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64)
        if (t->u->asks_second)
            __builtin_prefetch((const char *)row + i, 0, 2);
        else
            __builtin_prefetch((const char *)row + i);
}

/* s += products of VEC_N words from c on; memory is asked for as much of the KB rows `apart` from
 * each other from `ahead` on, if that is not null. */
INLINE void dot_words(const struct item *t, const real *q, const elem *const *k, const elem *ahead,
                      int64_t apart, int64_t c, int64_t d, int rb, vec s[VEC_N])
{
    const int kb = VEC_N / rb;
    vec row[MOST_RB];
    UNROLL for (int r = 0; r < rb; r++)
        row[r] = vec_load(q + r * t->word_room + c);
    if (ahead)
        UNROLL for (int n = 0; n < kb; n++)
            fetch(t, ahead + n * apart + c * PAIR, PAIR * VEC_N * (int64_t)sizeof(elem));
    UNROLL for (int n = 0; n < kb; n++) {
        const vec key = words_at(k[n], c, d);
        UNROLL for (int r = 0; r < rb; r++)
            s[r * kb + n] = vec_mac(key, row[r], s[r * kb + n]);
    }
}

/* Products of the KB keys of a run from n0 on, in place of those past its end the last one, and RB
 * rows. */
INLINE vec dot(const struct item *t, const real *q, const struct run *run, int64_t n0, int rb)
{
    const int64_t whole = t->d / (PAIR * VEC_N) * VEC_N;
    const int64_t apart = run->k.next_apart;
    const elem *k[VEC_N], *ahead = run->k.next ? run->k.next + n0 * apart : NULL;
    vec s[VEC_N];
    UNROLL for (int n = 0; n < VEC_N / rb; n++)
        k[n] = row_in(&run->k, run->paged, min64(n0 + n, run->n - 1));
    UNROLL for (int i = 0; i < VEC_N; i++)
        s[i] = vec_zero();
    for (int64_t c = 0; c < whole; c += VEC_N)
        dot_words(t, q, k, ahead, apart, c, (c + VEC_N) * PAIR, rb, s);
    if (whole * PAIR < t->d)
        dot_words(t, q, k, ahead, apart, whole, t->d, rb, s);
    return vec_sums(s);
}

/* The largest score of row r of a group, and whether its probabilities fit. */
static real look(const struct item *t, const real *score, const real *p, int64_t r, real limit,
                 bool *fits)
{
    real most = -INFINITY;
    *fits = true;
    for (int64_t i = r * t->kb; i < (r + 1) * t->kb; i++) {
        most = score[i] > most ? score[i] : most;
        *fits = *fits && (real)fabs(p[i]) <= limit;
    }
    return most;
}

/* Sets the references of rows that have none or whose probabilities are too large, rescales what
 * was made with the old ones, and returns the probabilities. */
static NOINLINE vec raise_references(const struct item *t, const struct head *h, int64_t g, vec s)
{
    real score[VEC_N], p[VEC_N], *r = h->r + g * VEC_N;
    vec_store(score, s);
    vec_store(p, probability(s, t->scale, vec_load(r)));
    for (int64_t n = 0; n < t->rb; n++) {
        const int64_t lane = n * t->kb;
        bool fits;
        const real most = look(t, score, p, n, r[lane] < 0 ? RAISE_NEGATIVE : RAISE_ABOVE, &fits);
        if (fits || most == -INFINITY || most <= r[lane])
            continue;
        const vec by = r[lane] == -INFINITY
                           ? vec_set(1)
                           : root_factor(vec_set(r[lane]), t->scale, vec_set(most));
        const vec least = least_kept(by);
        const real root = vec_first(by);
        real *o = h->o + (g * t->rb + n) * t->value_room;
        for (int64_t c = 0; c < t->value_room; c += VEC_N)
            vec_store(o + c, lower(vec_load(o + c), by, least));
        for (int64_t i = lane; i < lane + t->kb; i++) {
            r[i] = most;
            h->l[g * VEC_N + i] = h->l[g * VEC_N + i] * root * root;
            h->lost[g * VEC_N + i] = h->lost[g * VEC_N + i] * root * root;
        }
    }
    /* A row still without a reference sees only -inf. */
    return vec_select(vec_le(s, vec_set(-INFINITY)), vec_zero(),
                      probability(s, t->scale, vec_load(r)));
}

/* Adds probabilities to the sums, as Kahan does: a lane adds hundreds of numbers that may all be
 * alike, whose roundings would add up. */
INLINE void add_to_sums(const struct head *h, int64_t g, vec p)
{
    real *l = h->l + g * VEC_N, *lost = h->lost + g * VEC_N;
    const vec old = vec_load(l), more = vec_sub(p, vec_load(lost)), sum = vec_add(old, more);
    vec_store(l, sum);
    vec_store(lost, vec_sub(vec_sub(sum, old), more));
}

/* o += p v for some vectors of columns from c on, up to dv at most, and for keys `from` to `to` of a
 * run, which all RB rows see; p: [steps][VEC_N]. */
INLINE void mix_columns(const struct item *t, real *o, const real *p, const struct run *run,
                        int64_t from, int64_t to, int64_t c, int64_t dv, int rb, int vectors)
{
    const uint64_t kb = (uint64_t)(VEC_N / rb);
    vec sum[MOST_RB * 4];
    UNROLL for (int i = 0; i < rb * vectors; i++)
        sum[i] = vec_load(o + i / vectors * t->value_room + c + i % vectors * VEC_N);
    for (int64_t n = from; n < to; n++) {
        const elem *v = row_in(&run->v, run->paged, n);
        const real *weight = p + (uint64_t)n / kb * VEC_N + (uint64_t)n % kb;
        vec value[4];
        UNROLL for (int i = 0; i < vectors; i++)
            value[i] = values_at(v, c + i * VEC_N, dv);
        if (run->v.next)
            fetch(t, run->v.next + n * run->v.next_apart + c,
                  vectors * VEC_N * (int64_t)sizeof(elem));
        UNROLL for (int i = 0; i < rb * vectors; i++)
            sum[i] = vec_fma(vec_set(weight[i / vectors * (int64_t)kb]), value[i % vectors], sum[i]);
    }
    UNROLL for (int i = 0; i < rb * vectors; i++)
        vec_store(o + i / vectors * t->value_room + c + i % vectors * VEC_N, sum[i]);
}

INLINE void mix_rows(const struct item *t, real *o, const real *p, const struct run *run,
                     int64_t from, int64_t to, int rb)
{
    const int vectors = rb < MOST_RB || MR * NV >= 16 ? 4 : 2; /* as registers have room for */
    const int64_t whole = t->dv / VEC_N * VEC_N;
    int64_t c = 0;
    for (; c + vectors * VEC_N <= whole; c += vectors * VEC_N)
        mix_columns(t, o, p, run, from, to, c, c + vectors * VEC_N, rb, vectors);
    for (; c < whole; c += VEC_N)
        mix_columns(t, o, p, run, from, to, c, c + VEC_N, rb, 1);
    if (c < t->dv)
        mix_columns(t, o, p, run, from, to, c, t->dv, rb, 1);
}

/* o += p v for keys `from` to `to` of a run; there may be none. */
static NOINLINE void mix(const struct item *t, const struct head *h, int64_t g, const real *p,
                         const struct run *run, int64_t from, int64_t to)
{
    real *o = h->o + g * t->rb * t->value_room;
    if (from >= to)
        return;
    switch (t->rb) {
    case 1: mix_rows(t, o, p, run, from, to, 1); break;
    case 2: mix_rows(t, o, p, run, from, to, 2); break;
#if VEC_N >= 4
    default: mix_rows(t, o, p, run, from, to, 4); break;
#endif
    }
}

/* Products of query and key of group g become scores, by the plain rules: lane r * KB + n is that of
 * row g * RB + r and key j + n. */
static NOINLINE vec shape(const struct item *t, const struct head *h, int64_t g, int64_t j, vec s)
{
    real score[VEC_N];
    vec_store(score, scaled_scores(scaling_of(t->u->p), s));
    for (int64_t i = 0; i < VEC_N; i++) {
        const struct row row = row_at(t, h->head_kv, g * t->rb + i / t->kb);
        const real slope = (real)attn_slope_of(&t->u->seq, row.head);
        const int64_t key = j + i % t->kb;
        if (key < t->hi)
            score[i] = score_offset(&row, &t->bias, slope, score[i], key);
    }
    return vec_load(score);
}

/* 0 in place of dropped weights. */
static NOINLINE void drop(const struct item *t, const struct head *h, int64_t g, int64_t j,
                          real *weight)
{
    for (int64_t i = 0; i < VEC_N; i++) {
        const int64_t r = g * t->rb + i / t->kb;
        if (attn_drops(t->u->p, t->u->b, head_of(t, h->head_kv, r), query_of(t, r), j + i % t->kb))
            weight[i] = 0;
    }
}

/* The lanes of a step's first n keys. */
INLINE uint32_t lanes_of(const struct item *t, int64_t n)
{
    return t->first * ((UINT32_C(1) << n) - 1);
}

/* Which lanes of group g see their key, of n keys from j on, by all that may hide it. */
static NOINLINE uint32_t see(const struct item *t, const struct head *h, int64_t g, int64_t j,
                             int64_t n)
{
    uint32_t seen = 0;
    for (int64_t i = 0; i < VEC_N; i++) {
        const struct row row = row_at(t, h->head_kv, g * t->rb + i / t->kb);
        const int64_t key = j + i % t->kb;
        if (i % t->kb < n && key >= row.see.lo && key < row.see.hi && row_sees(&row, &t->bias, key))
            seen |= UINT32_C(1) << i;
    }
    return seen;
}

/* mix() for the keys of the step at n0 that are seen, row by row. */
static NOINLINE void mix_seen(const struct item *t, const struct head *h, int64_t g,
                              const real *weight, const struct run *run, int64_t n0, uint32_t seen)
{
    for (int64_t i = 0; i < VEC_N; i++) {
        if (!(seen >> i & 1))
            continue;
        real *o = h->o + (g * t->rb + i / t->kb) * t->value_room;
        const elem *v = row_in(&run->v, run->paged, n0 + i % t->kb);
        for (int64_t c = 0; c < t->dv; c += VEC_N)
            vec_store(o + c, vec_fma(vec_set(weight[i]), values_at(v, c, t->dv), vec_load(o + c)));
    }
}

/* A run against group g of a head's rows. */
INLINE void group_run(const struct item *t, const struct head *h, int64_t g, const struct run *run,
                      int rb)
{
    const int64_t kb = VEC_N / rb;
    const real *q = h->q + g * rb * t->word_room;
    real weight[RUN * MOST_RB];
    for (int64_t n = 0; n < run->n; n += kb)
        vec_store(weight + n * rb, dot(t, q, run, n, rb));
    int64_t from = 0; /* values before it are added */
    for (int64_t n = 0; n < run->n; n += kb) {
        const int64_t j = run->j + n, keys = min64(kb, run->n - n);
        const uint32_t all = lanes_of(t, keys);
        const uint8_t sight = run->see[n / kb];
        real *w = weight + n * rb;
        if (sight == SEE_NONE) {
            mix(t, h, g, weight, run, from, n);
            from = n + kb;
            continue;
        }
        const uint32_t seen = sight == SEE_SOME || t->masked ? see(t, h, g, j, keys) : all;
        vec s = vec_load(w);
        if (t->shaped)
            s = shape(t, h, g, j, s);
        if (seen != all || keys < kb)
            s = vec_select(vmask_of(seen), s, vec_set(-INFINITY));
        const vec r = vec_load(h->r + g * VEC_N);
        vec p = probability(s, t->scale, r);
        if (__builtin_expect(!vmask_all(below_limit(p, r)), 0)) {
            mix(t, h, g, weight, run, from, n);
            from = n;
            p = raise_references(t, h, g, s);
        }
        add_to_sums(h, g, p);
        vec_store(w, p);
        if (t->u->p->dropout.on)
            drop(t, h, g, j, w);
        if (seen != all) {
            mix(t, h, g, weight, run, from, n);
            from = n + kb;
            mix_seen(t, h, g, w, run, n, seen);
        }
    }
    mix(t, h, g, weight, run, from, run->n);
}

static void head_run(const struct item *t, const struct head *h, const struct run *run)
{
    for (int64_t g = 0; g < t->groups; g++)
        switch (t->rb) {
        case 1: group_run(t, h, g, run, 1); break;
        case 2: group_run(t, h, g, run, 2); break;
#if VEC_N >= 4
        default: group_run(t, h, g, run, 4); break;
#endif
        }
}

/* ---- A chunk --------------------------------------------------------------------------------- */

/* What the rows see of n keys from j on, by the band and the key mask. */
static uint8_t sight(const struct item *t, int64_t j, int64_t n)
{
    const struct attn_unit *u = t->u;
    int64_t kept = n;
    for (int64_t i = 0; u->key_mask && i < n; i++)
        kept -= u->key_mask[j + i] == 0;
    return kept == 0                                           ? SEE_NONE
           : kept == n && attn_band_whole(u->band, 0, u->nq, j, j + n) ? SEE_ALL
                                                               : SEE_SOME;
}

/* Finds the rows of head head0 + n in a run, and which to ask memory for: those `ahead` keys further
 * on, or, where the rows of all `heads` heads are one array, the n-th share of theirs, in the order of
 * memory; none past the chunk. */
static void find_rows(const struct item *t, const struct attn_view *v, const struct run *run,
                      int64_t ahead, int64_t head0, int64_t heads, int64_t n, int64_t width,
                      struct rows *rows)
{
    const struct attn_axis *axis = &t->u->p->key;
    const int64_t size = (int64_t)sizeof(elem), b = t->u->b, j = run->j;
    const bool one = v->head == width && v->token == heads * width;
    rows->first = (const elem *)attn_view_at(v, axis, b, j, head0 + n, size);
    rows->apart = v->token;
    rows->next = NULL;
    rows->next_apart = one ? width : v->token;
    for (int64_t i = 0; run->paged && i < run->n; i++)
        rows->at[i] = (const elem *)attn_view_at(v, axis, b, j + i, head0 + n, size);
    if (!run->paged && j + ahead + run->n <= t->hi)
        rows->next = (const elem *)attn_view_at(v, axis, b, j + ahead, head0, size) +
                     n * (one ? run->n * width : v->head);
}

static void walk(const struct item *t, real *scratch, int64_t head0, int64_t heads)
{
    enum { NEAR = 32768, AHEAD = 8192 }; /* bytes of keys: in a run; to be on their way */
    const struct attn_problem *p = t->u->p;
    /* Heads inside, if a token's heads lie closer together than a head's tokens. */
    const bool by_token = p->k.head < p->k.token;
    const int64_t token = (by_token ? heads : 1) * t->d * (int64_t)sizeof(elem);
    const int64_t keys = min64(RUN, round_up(1 + NEAR / token, t->kb));
    const int64_t ahead = round_up(1 + AHEAD / token, keys);
    struct run run;
    run.paged = p->key.table;
    for (int64_t outer = 0; outer < (by_token ? 1 : heads); outer++)
        for (int64_t j = t->lo; j < t->hi; j += keys) {
            bool some = false;
            run.j = j;
            run.n = min64(keys, t->hi - j);
            for (int64_t n = 0; n < run.n; n += t->kb) {
                run.see[n / t->kb] = sight(t, j + n, min64(t->kb, run.n - n));
                some = some || run.see[n / t->kb] != SEE_NONE;
            }
            const int64_t end = !some ? 0 : by_token ? heads : outer + 1;
            for (int64_t n = by_token ? 0 : outer; n < end; n++) {
                const struct head h = head_at(t, scratch, n, head0 + n);
                find_rows(t, &p->k, &run, ahead, head0, heads, n, t->d, &run.k);
                find_rows(t, &p->v, &run, ahead, head0, heads, n, t->dv, &run.v);
                head_run(t, &h, &run);
            }
        }
}

/* out and lse of one row from its sums; `o` is changed. */
static void finish_row(const struct item *t, int64_t head_kv, int64_t r, real ref, real l, real *o)
{
    const struct attn_problem *p = t->u->p;
    const struct row row = row_at(t, head_kv, r);
    l = vec_first(final_sum(p, vec_set(ref), vec_set(l)));
    const struct outcome x = outcome_of(&row, ref, l);
    const vec by = vec_set(x.by);
    const vmask none = vec_lt(by, vec_zero());
    vec bad = vec_zero();
    for (int64_t c = 0; c < t->value_room; c += VEC_N) {
        const vec y = vec_select(none, vec_zero(), vec_fma(vec_load(o + c), by, vec_zero()));
        bad = vec_fma(y, vec_zero(), bad);
        vec_store(o + c, y);
    }
    const bool finite = vmask_all(vec_le(bad, vec_zero()));
    store_row(out_row(&row), o, t->dv);
    store_lse(&row, x.lse);
    if (!finite && l > 0 && l < (real)INFINITY && x.by >= 0)
        careful_row(&row, o);
}

static void item_init(struct item *t, const struct attn_unit *u)
{
    t->u = u;
    item_shape(t, u->p, u->nq * u->p->group);
    t->scale = score_exponent(u->p);
    t->shaped = shapes_scores(u->p);
    t->masked = has_masks(u->p);
    t->bias = attn_bias_of(&u->seq);
    for (int64_t r = 0; r < t->groups * t->rb; r++)
        t->see[r] = attn_band_row(u->band, query_of(t, r));
}

/* Partial results of a chunk: for each head and row r, l and o, each `stride` numbers. */
static real *partial_at(const struct item *t, char *partial, int64_t chunk, int64_t head_kv,
                        int64_t r)
{
    const int64_t stride = t->value_room + 2;
    return (real *)(void *)partial +
           ((chunk * t->u->p->heads_kv + head_kv) * t->rows + r) * stride;
}

static int64_t partial_bytes(const struct attn_problem *p, int64_t rows)
{
    return p->heads_kv * rows * (round_up(p->head_dim_v, VEC_N) + 2) * (int64_t)sizeof(real);
}

static void chunk(const struct attn_unit *u, int64_t n, int64_t head0, int64_t heads, void *scratch,
                  char *partial)
{
    struct item t;
    item_init(&t, u);
    const struct attn_range see = attn_band_any(u->band, 0, u->nq);
    const int64_t end = min64((n + 1) * ATTN_CHUNK_KEYS, see.hi);
    t.lo = n * ATTN_CHUNK_KEYS > see.lo ? n * ATTN_CHUNK_KEYS : see.lo;
    t.hi = end;
    for (int64_t i = 0; i < heads; i++) {
        const struct head h = head_at(&t, scratch, i, head0 + i);
        head_init(&t, &h);
    }
    if (t.lo < t.hi)
        walk(&t, scratch, head0, heads);

    for (int64_t i = 0; i < heads; i++) {
        const struct head h = head_at(&t, scratch, i, head0 + i);
        for (int64_t r = 0; r < t.rows; r++) {
            const int64_t lane = r / t.rb * VEC_N + r % t.rb * t.kb;
            real *o = h.o + r * t.value_room, l = 0;
            for (int64_t k = 0; k < t.kb; k++)
                l += h.l[lane + k];
            if (!partial) {
                finish_row(&t, h.head_kv, r, h.r[lane], l, o);
                continue;
            }
            real *to = partial_at(&t, partial, n, h.head_kv, r);
            to[0] = h.r[lane];
            to[1] = l;
            memcpy(to + 2, o, (size_t)t.value_room * sizeof(real));
        }
    }
}

/* Adds the chunks of each row in their order, those in which the rows' bands are. One of scores of
 * -inf alone has the weight 0, under which a NaN shows. */
static void merge(const struct attn_unit *u, int64_t chunks, void *scratch, char *partial)
{
    struct item t;
    item_init(&t, u);
    const struct attn_range see = attn_band_any(u->band, 0, u->nq);
    const int64_t first = see.lo / ATTN_CHUNK_KEYS;
    const int64_t end = min64(chunks, round_up(see.hi, ATTN_CHUNK_KEYS) / ATTN_CHUNK_KEYS);
    real *row = scratch;
    for (int64_t n = 0; n < u->p->heads_kv * t.rows; n++) {
        const int64_t head_kv = n / t.rows, r = n % t.rows;
        real top = -INFINITY, l = 0;
        for (int64_t i = first; i < end; i++) {
            const real *part = partial_at(&t, partial, i, head_kv, r);
            top = part[0] > top ? part[0] : top;
        }
        memset(row, 0, (size_t)t.value_room * sizeof *row);
        for (int64_t i = first; i < end; i++) {
            const real *part = partial_at(&t, partial, i, head_kv, r);
            if (part[1] == 0 && top == -(real)INFINITY)
                continue; /* nor did any other see more */
            const vec root = root_factor(vec_set(part[0]), t.scale, vec_set(top));
            const vec least = least_kept(root);
            l += vec_first(lower(vec_set(part[1]), root, least));
            for (int64_t c = 0; c < t.value_room; c += VEC_N) {
                const vec sum = vec_mul(unless_small(vec_load(part + 2 + c), least), root);
                vec_store(row + c, vec_fma(sum, root, vec_load(row + c)));
            }
        }
        finish_row(&t, head_kv, r, top, l, row);
    }
}

const struct attn_cpu_decode KERNEL(attn_decode) = {
    .scratch_bytes = scratch_bytes,
    .partial_bytes = partial_bytes,
    .chunk = chunk,
    .merge = merge,
};
