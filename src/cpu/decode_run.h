/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A run of keys and values against the rows of a head, where there are few rows. What is said here
 * of vectors along the head is otherwise in narrow heads, see decode_narrow.h.
 *
 * Rows go in groups of 4, then 2, then 1. A step takes the RB rows of a group and KB keys, KB * RB
 * = VEC_N: their products are VEC_N vectors along the head, whose sums become one vector of scores,
 * lane r * KB + k. The softmax is that of fwd_tmpl.c, with the maximum of the first step in which a
 * row sees a key as its first reference; a row's sum stays spread over its KB lanes until the end.
 * Values are added key by key.
 *
 * Steps are done some at a time, a run of keys: the products of all, the softmax of all, then the
 * values of all, so that no step waits for the one before. Results do not depend on how many: where
 * something is to happen between two steps, the values before it are added first.
 */
#ifndef ATTN_CPU_DECODE_RUN_H
#define ATTN_CPU_DECODE_RUN_H

#include "cpu/decode_narrow.h"

/* ---- A step ---------------------------------------------------------------------------------- */

/* s[r * kb + n] += products of VEC_N words from c on of `keys` keys n and rb rows; if it `asks`,
 * memory is asked for as much of the rows `apart` from each other from `ahead` on. */
INLINE void dot_words(const struct item *t, const real *q, const elem *const *k, bool asks,
                      const elem *ahead, int64_t apart, int64_t c, int64_t d, int rb, int keys,
                      vec *s)
{
    const int kb = VEC_N / rb;
    vec row[MOST_RB];
    UNROLL for (int r = 0; r < rb; r++)
        row[r] = vec_load(q + r * t->word_room + c);
    if (asks)
        UNROLL for (int n = 0; n < keys; n++)
            fetch(t, ahead + n * apart + c * PAIR, PAIR * VEC_N * (int64_t)sizeof(elem));
    UNROLL for (int n = 0; n < keys; n++) {
        vec key = words_at(k[n], c, d);
        if (rb > 1)
            vec_keep(&key);
        UNROLL for (int r = 0; r < rb; r++)
            s[r * kb + n] = vec_mac(key, row[r], s[r * kb + n]);
    }
}

/* Products of the KB keys of a run from n0 on and RB rows: some keys at a time, as there are
 * registers for where they lie. */
INLINE vec dot(const struct item *t, const real *q, const struct run *run, int64_t n0, int rb,
               bool asks)
{
    const int kb = VEC_N / rb, keys = kb < 4 ? kb : 4;
    const int64_t whole = t->d / (PAIR * VEC_N) * VEC_N, apart = run->k.apart;
    vec s[VEC_N];
    UNROLL for (int n = 0; n < kb; n += keys) {
        const elem *const *const k = run->k.at + n0 + n;
        const elem *const ahead = asks ? run->k.next + (n0 + n) * apart : NULL;
        UNROLL for (int i = 0; i < rb * keys; i++)
            s[i / keys * kb + n + i % keys] = vec_zero();
        for (int64_t c = 0; c < whole; c += VEC_N)
            dot_words(t, q, k, asks, ahead, apart, c, (c + VEC_N) * PAIR, rb, keys, s + n);
        if (whole * PAIR < t->d)
            dot_words(t, q, k, asks, ahead, apart, whole, t->d, rb, keys, s + n);
    }
    return vec_sums(s);
}

/* The largest score of row r of a group, and whether its probabilities fit. */
static real look(const struct group *g, const real *score, const real *p, int64_t r, real limit,
                 bool *fits)
{
    real most = -INFINITY;
    *fits = true;
    for (int64_t i = r * g->kb; i < (r + 1) * g->kb; i++) {
        most = score[i] > most ? score[i] : most;
        *fits = *fits && (real)fabs(p[i]) <= limit;
    }
    return most;
}

/* Multiplies what was made with the old reference of row i of a group, the n-th, by root, twice. */
static void rescale(const struct item *t, const struct head *h, int64_t n, int64_t i, vec root)
{
    const struct group *const g = &t->group[n];
    const vec least = least_kept(root);
    const real by = vec_first(root);
    real *o = h->o + (g->first + i) * t->sum_room;
    for (int64_t c = 0; c < t->sum_room; c += VEC_N)
        vec_store(o + c, lower(vec_load(o + c), root, least));
    for (int64_t at = n * VEC_N + i * g->kb; at < n * VEC_N + (i + 1) * g->kb; at++) {
        h->l[at] = h->l[at] * by * by;
        h->lost[at] = h->lost[at] * by * by;
    }
}

/* Sets the references of rows that have none or whose probabilities, `before`, are too large,
 * rescales what was made with the old ones, and returns the probabilities. */
static NOINLINE vec raise_references(const struct item *t, const struct head *h, int64_t n, vec s,
                                     vec before)
{
    const struct group *const g = &t->group[n];
    real score[VEC_N], p[VEC_N], *r = h->r + n * VEC_N;
    vec_store(score, s);
    vec_store(p, before);
    for (int64_t i = 0; i < g->rb; i++) {
        const int64_t lane = i * g->kb;
        bool fits;
        const real most = look(g, score, p, i, r[lane] < 0 ? RAISE_NEGATIVE : RAISE_ABOVE, &fits);
        if (fits || most == -INFINITY || most <= r[lane])
            continue;
        if (r[lane] > -(real)INFINITY)
            rescale(t, h, n, i, root_factor(vec_set(r[lane]), t->scale, vec_set(most)));
        for (int64_t at = lane; at < lane + g->kb; at++)
            r[at] = most;
    }
    /* A row still without a reference sees only -inf. */
    return vec_select(vec_le(s, vec_set(-INFINITY)), vec_zero(),
                      probability(s, t->scale, vec_load(r)));
}

/* A group's sums, added to as Kahan does: a lane adds many numbers that may all be alike, whose
 * roundings would add up. */
struct sums {
    vec l, lost;
};

INLINE struct sums sums_of(const struct head *h, int64_t g)
{
    return (struct sums){vec_load(h->l + g * VEC_N), vec_load(h->lost + g * VEC_N)};
}

INLINE struct sums sums_and(struct sums s, vec p)
{
    const vec more = vec_sub(p, s.lost), l = vec_add(s.l, more);
    return (struct sums){l, vec_sub(vec_sub(l, s.l), more)};
}

INLINE void store_sums(const struct head *h, int64_t g, struct sums s)
{
    vec_store(h->l + g * VEC_N, s.l);
    vec_store(h->lost + g * VEC_N, s.lost);
}

/* o += p v for some vectors of columns from c on, up to dv at most, and for keys `from` to `to` of
 * a run, which all RB rows see; p: [steps][VEC_N]. */
INLINE void mix_columns(const struct item *t, real *o, const real *p, const struct run *run,
                        int64_t from, int64_t to, int64_t c, int64_t dv, int rb, int vectors)
{
    const uint64_t kb = (uint64_t)(VEC_N / rb);
    vec sum[MOST_RB * 4];
    UNROLL for (int i = 0; i < rb * vectors; i++)
        sum[i] = vec_load(o + i / vectors * t->value_room + c + i % vectors * VEC_N);
    for (int64_t n = from; n < to; n++) {
        const elem *v = run->v.at[n];
        const real *weight = p + (uint64_t)n / kb * VEC_N + (uint64_t)n % kb;
        vec value[4];
        UNROLL for (int i = 0; i < vectors; i++)
            value[i] = values_at(v, c + i * VEC_N, dv);
        if (rb > 1)
            UNROLL for (int i = 0; i < vectors; i++)
                vec_keep(&value[i]);
        if (run->v.next)
            fetch(t, run->v.next + n * run->v.apart + c,
                  vectors * VEC_N * (int64_t)sizeof(elem));
        UNROLL for (int r = 0; r < rb; r++) {
            vec w = vec_set(weight[r * (int64_t)kb]);
            vec_keep(&w);
            UNROLL for (int i = 0; i < vectors; i++)
                sum[r * vectors + i] = vec_fma(w, value[i], sum[r * vectors + i]);
        }
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
static NOINLINE void mix(const struct item *t, const struct head *h, const struct group *g,
                         const real *p, const struct run *run, int64_t from, int64_t to)
{
    real *o = h->o + g->first * t->sum_room;
    if (from >= to)
        return;
    if (h->turned) {
        mix_turned_row(h->turned, o, t->dv, p, from, to);
        return;
    }
    switch (g->rb) {
    case 1: mix_rows(t, o, p, run, from, to, 1); break;
    case 2: mix_rows(t, o, p, run, from, to, 2); break;
#if VEC_N >= 4
    default: mix_rows(t, o, p, run, from, to, 4); break;
#endif
    }
}

/* Products of query and key of a group become scores, by the plain rules: lane r * KB + n is that
 * of its row r and key j + n. */
static NOINLINE vec shape(const struct item *t, const struct head *h, const struct group *g,
                          int64_t j, vec s)
{
    real score[VEC_N];
    vec_store(score, scaled_scores(scaling_of(t->u->p), s));
    for (int64_t i = 0; i < VEC_N; i++) {
        const struct row row = row_at(t, h->head_kv, g->first + i / g->kb);
        const real slope = (real)attn_slope_of(&t->u->seq, row.head);
        const int64_t key = j + i % g->kb;
        if (key < t->hi)
            score[i] = score_offset(&row, &t->bias, slope, score[i], key);
    }
    return vec_load(score);
}

/* 0 in place of dropped weights. */
static NOINLINE void drop(const struct item *t, const struct head *h, const struct group *g,
                          int64_t j, real *weight)
{
    for (int64_t i = 0; i < VEC_N; i++) {
        const int64_t r = g->first + i / g->kb;
        if (attn_drops(t->u->p, t->u->b, head_of(t, h->head_kv, r), query_of(t, r), j + i % g->kb))
            weight[i] = 0;
    }
}

/* Which lanes of a group see their key, of n keys from j on, by all that may hide it. */
static NOINLINE uint32_t see(const struct item *t, const struct head *h, const struct group *g,
                             int64_t j, int64_t n)
{
    uint32_t seen = 0;
    for (int64_t i = 0; i < VEC_N; i++) {
        const struct row row = row_at(t, h->head_kv, g->first + i / g->kb);
        const int64_t key = j + i % g->kb;
        if (i % g->kb < n && key >= row.see.lo && key < row.see.hi && row_sees(&row, &t->bias, key))
            seen |= UINT32_C(1) << i;
    }
    return seen;
}

/* mix() for the keys of the step at n0 that are seen, row by row. */
static NOINLINE void mix_seen(const struct item *t, const struct head *h, const struct group *g,
                              const real *weight, const struct run *run, int64_t n0, uint32_t seen)
{
    if (h->turned) {
        mix_turned_seen(h->turned, h->o + g->first * t->sum_room, t->dv, weight, n0, seen);
        return;
    }
    for (int64_t i = 0; i < VEC_N; i++) {
        if (!(seen >> i & 1))
            continue;
        real *o = h->o + (g->first + i / g->kb) * t->value_room;
        const elem *v = run->v.at[n0 + i % g->kb];
        for (int64_t c = 0; c < t->dv; c += VEC_N)
            vec_store(o + c, vec_fma(vec_set(weight[i]), values_at(v, c, t->dv), vec_load(o + c)));
    }
}

/* What the rows see of the keys of the step at n. */
INLINE uint8_t sight_of(const struct run *run, int64_t n, int64_t keys)
{
    uint8_t all = 0;
    for (int64_t i = 0; i < keys; i += LEAST_KB)
        all |= run->see[(n + i) / LEAST_KB];
    return all;
}

INLINE void dots_of(const struct item *t, const real *q, const struct run *run, int rb,
                    real *score)
{
    if (run->k.next)
        for (int64_t n = 0; n < run->n; n += VEC_N / rb)
            vec_store(score + n * rb, dot(t, q, run, n, rb, true));
    else
        for (int64_t n = 0; n < run->n; n += VEC_N / rb)
            vec_store(score + n * rb, dot(t, q, run, n, rb, false));
}

/* Products of a run's keys and a group's rows: [steps][VEC_N]. */
static NOINLINE void dots(const struct item *t, const struct head *h, const struct group *g,
                          const struct run *run, real *score)
{
    const real *const q = h->q + g->first * t->word_room;
    switch (g->rb) {
    case 1: dots_of(t, q, run, 1, score); break;
    case 2: dots_of(t, q, run, 2, score); break;
#if VEC_N >= 4
    default: dots_of(t, q, run, 4, score); break;
#endif
    }
}

/* The softmax of the steps from n on whose keys all rows see, all of them there and with products
 * for scores. Ends before one that has fewer keys or for which a reference is to be raised, and
 * returns where. */
INLINE int64_t plain_steps(const struct item *t, const struct head *h, int64_t index, int64_t n,
                           int64_t end, int rb, real *weight)
{
    const int64_t kb = VEC_N / rb;
    const vec r = vec_load(h->r + index * VEC_N);
    struct sums sums = sums_of(h, index);
    for (; n + kb <= end; n += kb) {
        const vec p = probability(vec_load(weight + n * rb), t->scale, r);
        if (__builtin_expect(!vmask_all(below_limit(p, r)), 0))
            break;
        sums = sums_and(sums, p);
        vec_store(weight + n * rb, p);
    }
    store_sums(h, index, sums);
    return n;
}

/* What follows its products, which `weight` has, for a group of a head's rows, the index-th, except
 * for the last values: returns the key from which on they are still to be added. */
INLINE int64_t group_run(const struct item *t, const struct head *h, int64_t index,
                         const struct run *run, int rb, real *weight)
{
    const struct group *const g = &t->group[index];
    const int64_t kb = VEC_N / rb;
    const bool plain = t->plain && run->see_any == SEE_ALL;
    int64_t from = 0; /* values before it are added */
    for (int64_t n = 0; n < run->n; n += kb) {
        if (plain && (n = plain_steps(t, h, index, n, run->n, rb, weight)) >= run->n)
            break;
        const int64_t j = run->j + n, keys = min64(kb, run->n - n);
        const uint32_t all = g->lanes * ((UINT32_C(1) << keys) - 1); /* of the keys there are */
        const uint8_t sight = sight_of(run, n, keys);
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
        const vec r = vec_load(h->r + index * VEC_N);
        vec p = probability(s, t->scale, r);
        if (__builtin_expect(!vmask_all(below_limit(p, r)), 0)) {
            mix(t, h, g, weight, run, from, n);
            from = n;
            p = raise_references(t, h, index, s, p);
        }
        store_sums(h, index, sums_and(sums_of(h, index), p));
        vec_store(w, p);
        if (t->u->p->dropout.on)
            drop(t, h, g, j, w);
        if (seen != all) {
            mix(t, h, g, weight, run, from, n);
            from = n + kb;
            mix_seen(t, h, g, w, run, n, seen);
        }
    }
    return from;
}

/* A run against all rows of a head: all products with keys first, while those are near. */
static NOINLINE void head_run(const struct item *t, const struct head *h, const struct run *run)
{
    _Alignas(64) real weight[ROWS * RUN];
    for (const struct group *g = t->group; g < t->group + t->groups; g++)
        dots(t, h, g, run, weight + g->first * RUN);
    for (int64_t n = 0; n < t->groups; n++) {
        const struct group *const g = &t->group[n];
        real *const w = weight + g->first * RUN;
        int64_t from = 0;
        switch (g->rb) {
        case 1: from = group_run(t, h, n, run, 1, w); break;
        case 2: from = group_run(t, h, n, run, 2, w); break;
#if VEC_N >= 4
        default: from = group_run(t, h, n, run, 4, w); break;
#endif
        }
        mix(t, h, g, w, run, from, run->n);
    }
}

/* The same for one or two rows of a narrow head from the n-th on. weight: [rows][TURNED]. */
INLINE void narrow_rows(const struct item *t, const struct head *h, const struct run *run,
                        int64_t step, int64_t n, int rows, real *weight)
{
    int64_t from[2];
    dots_turned(h->turned, step, h->q + n * t->word_room, t->word_room, words(t->d), run->n, rows,
                weight);
    for (int r = 0; r < rows; r++)
        from[r] = group_run(t, h, n + r, run, 1, weight + r * TURNED);
    if (rows == 2 && from[0] == from[1])
        mix_turned(h->turned, step, h->o + n * t->sum_room, t->sum_room, t->dv, weight, from[0],
                   run->n, 2);
    else
        for (int r = 0; r < rows; r++)
            mix(t, h, &t->group[n + r], weight + r * TURNED, run, from[r], run->n);
}

/* The same for all rows, by twos, so that what is loaded serves both. */
INLINE void narrow_steps(const struct item *t, const struct head *head, const struct run *run,
                         int64_t step)
{
    _Alignas(64) struct turned turned;
    _Alignas(64) real weight[2 * TURNED];
    struct head h = *head;
    int64_t n = 0;
    turned.step = step;
    turn(t, turned.keys, step, &run->k, run->n, t->d, true);
    turn(t, turned.values, step, &run->v, run->n, t->dv, false);
    h.turned = &turned;
    for (; n + 2 <= t->rows; n += 2)
        narrow_rows(t, &h, run, step, n, 2, weight);
    if (n < t->rows)
        narrow_rows(t, &h, run, step, n, 1, weight);
}

static NOINLINE void narrow_run(const struct item *t, const struct head *h, const struct run *run)
{
    if (turned_keys(t) == TURNED)
        narrow_steps(t, h, run, TURNED);
    else
        narrow_steps(t, h, run, TURNED / 2);
}

#endif
