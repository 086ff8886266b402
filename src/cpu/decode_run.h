/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A run of keys and values against the rows of a head, where there are few rows. What is said here
 * of vectors along the head is otherwise in narrow heads, see decode_narrow.h.
 *
 * Rows go in groups of 4, then 2, then 1. A step takes the RB rows of a group and KB keys, KB * RB
 * = VEC_N: their products are VEC_N vectors along the head, whose sums become one vector of scores,
 * lane r * KB + k. The softmax is that of weigh.h, with the maximum of the first step in which a
 * row sees a key as its first reference; a row's sum stays spread over its KB lanes until the end.
 * Values are added key by key.
 *
 * Keys that a row does not see have the weight HIDDEN, and nothing is added of them.
 *
 * Steps are done some at a time, a run of keys: the products of all, the softmax of all, then the
 * values of all, so that no step waits for the one before. Results do not depend on how many: where
 * something is to happen between two steps, the values before it are added first.
 */
#ifndef ATTN_CPU_DECODE_RUN_H
#define ATTN_CPU_DECODE_RUN_H

#include "cpu/decode_narrow.h"
#include "cpu/decode_shape.h"

/* ---- A step ---------------------------------------------------------------------------------- */

/* Whether a group reads its keys and values one after the other. */
INLINE bool in_order(const struct item *t, int rb)
{
    return VEC_N * sizeof(real) == LINE && rb == MOST_RB && t->asks == ATTN_ASKS_IN_ORDER;
}

/* Sums of products that there are registers for. */
enum { SUMS = MR * NV >= 16 ? 16 : 8 };

/* The sum of row r and key n, of those that are multiplied together: keys of several steps. */
INLINE int sum_at(int r, int n, int rb)
{
    const int kb = VEC_N / rb;
    return n / kb * VEC_N + r * kb + n % kb;
}

/* s[] += products of VEC_N words from c on of `keys` keys and rb rows; if it `asks`, memory is asked
 * for as much of the rows `apart` from each other from `ahead` on. */
INLINE void dot_words(const struct item *t, const real *q, const elem *const *k, bool asks,
                      const elem *ahead, int64_t apart, int64_t c, int64_t d, int rb, int keys,
                      vec *s)
{
    vec row[MOST_RB];
    UNROLL for (int r = 0; r < rb; r++) {
        row[r] = vec_load(q + r * t->word_room + c);
        if (keys > 1)
            vec_keep(&row[r]);
    }
    if (asks)
        UNROLL for (int n = 0; n < keys; n++)
            fetch(t, ahead + n * apart + c * PAIR, PAIR * VEC_N * (int64_t)sizeof(elem));
    UNROLL for (int n = 0; n < keys; n++) {
        vec key = words_at(k[n], c, d);
        if (rb > 1)
            vec_keep(&key);
        UNROLL for (int r = 0; r < rb; r++)
            s[sum_at(r, n, rb)] = vec_mac(key, row[r], s[sum_at(r, n, rb)]);
    }
}

/* Products of the keys of a run from n0 on and RB rows, those of a step or of several: to score,
 * [steps][VEC_N]. `keys` at a time, as there are registers for where they lie and for the sums. */
INLINE void dot(const struct item *t, const real *q, const struct run *run, int64_t n0, int rb,
                bool asks, int keys, real *score)
{
    const int kb = VEC_N / rb, all = keys > kb ? keys : kb;
    const int64_t whole = t->d / (PAIR * VEC_N) * VEC_N, apart = run->k.apart;
    vec s[MOST_RB * MOST_KB > VEC_N ? MOST_RB * MOST_KB : VEC_N];
    UNROLL for (int n = 0; n < all; n += keys) {
        const elem *const *const k = run->k.at + n0 + n;
        const elem *const ahead = asks ? run->k.next + (n0 + n) * apart : NULL;
        UNROLL for (int i = 0; i < rb * keys; i++)
            s[n + sum_at(i / keys, i % keys, rb)] = vec_zero();
        if (n > 0 && n0 + n >= run->n)
            continue;
        for (int64_t c = 0; c < whole; c += VEC_N)
            dot_words(t, q, k, asks, ahead, apart, c, (c + VEC_N) * PAIR, rb, keys, s + n);
        if (whole * PAIR < t->d)
            dot_words(t, q, k, asks, ahead, apart, whole, t->d, rb, keys, s + n);
    }
    UNROLL for (int n = 0; n < all; n += kb)
        vec_store(score + n * rb, vec_sums(s + n * rb));
}

/* The largest of n numbers, a power of two, but NaN: in two chains, as each comparison waits for
 * the last. */
INLINE real most_of(const real *x, int64_t n)
{
    real a = x[0] > -(real)INFINITY ? x[0] : -(real)INFINITY, b = -INFINITY;
    for (int64_t i = 0; i + 2 <= n; i += 2) {
        a = x[i] > a ? x[i] : a;
        b = x[i + 1] > b ? x[i + 1] : b;
    }
    return b > a ? b : a;
}

static bool all_fit(const real *p, int64_t n, real limit)
{
    bool fit = true;
    for (int64_t i = 0; i < n; i++)
        fit = fit && (real)fabs(p[i]) <= limit;
    return fit;
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

/* Sets the references of rows that have none or whose weights, `before`, are too large,
 * rescales what was made with the old ones, and returns the weights. */
static NOINLINE vec raise_references(const struct item *t, const struct head *h, int64_t n, vec s,
                                     vec before)
{
    const struct group *const g = &t->group[n];
    real score[VEC_N], p[VEC_N], *const old = h->r + n * VEC_N;
    vec r = vec_load(old);
    vec_store(score, s);
    vec_store(p, before);
    for (int64_t i = 0; i < g->rb; i++) {
        const int64_t lane = i * g->kb;
        const real most = most_of(score + lane, g->kb);
        real to = most;
        if (most <= old[lane])
            continue;
        if (old[lane] > -(real)INFINITY) {
            const real limit = vec_first(limit_of(vec_set(old[lane]), t->span));
            if (all_fit(p + lane, g->kb, limit))
                continue;
            to = vec_first(firm(vec_set(most), t->span));
            rescale(t, h, n, i, root_factor(vec_set(old[lane]), t->scale, vec_set(to)));
        }
        const uint32_t lanes = ((UINT32_C(1) << g->kb) - 1) << lane;
        r = vec_select(vmask_of(lanes), vec_set(to), r);
    }
    vec_store(old, r);
    /* A row still without a reference sees only -inf. */
    return vec_select(vec_le(s, vec_set(-INFINITY)), vec_zero(), weigh_scores(s, t->scale, r));
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

/* Those of lanes that see nothing stay as they are: even 0 would bring back what was lost. */
INLINE void add_to_sums(const struct head *h, int64_t g, vec p, vmask sees)
{
    const struct sums old = sums_of(h, g), sums = sums_and(old, p);
    store_sums(h, g, (struct sums){vec_select(sees, sums.l, old.l),
                                   vec_select(sees, sums.lost, old.lost)});
}

/* o += p v for some vectors of columns from c on, the last one whole or up to dv, and for some keys
 * of a run; p: [steps][VEC_N]. */
INLINE void mix_columns(const struct item *t, real *o, const real *p, const struct run *run,
                        struct keys keys, int64_t c, int64_t dv, bool whole, int rb, int vectors,
                        bool hidden)
{
    const uint64_t kb = (uint64_t)(VEC_N / rb);
    vec sum[MOST_RB * 4];
    UNROLL for (int i = 0; i < rb * vectors; i++)
        sum[i] = vec_load(o + i / vectors * t->value_room + c + i % vectors * VEC_N);
    for (int64_t n = keys.from; n < keys.to; n++) {
        const elem *v = run->v.at[n];
        const real *weight = p + (uint64_t)n / kb * VEC_N + (uint64_t)n % kb;
        vec value[4];
        UNROLL for (int i = 0; i < vectors; i++)
            value[i] = whole || i < vectors - 1 ? elem_load(v + c + i * VEC_N)
                                                : values_at(v, c + i * VEC_N, dv);
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
                sum[r * vectors + i] = add_weighed(sum[r * vectors + i], w, value[i], hidden);
        }
    }
    UNROLL for (int i = 0; i < rb * vectors; i++)
        vec_store(o + i / vectors * t->value_room + c + i % vectors * VEC_N, sum[i]);
}

INLINE void mix_keys(const struct item *t, real *o, const real *p, const struct run *run,
                     struct keys keys, int rb, bool hidden)
{
    const int most = rb < MOST_RB || MR * NV >= 16 ? 4 : 2; /* as registers have room for */
    const int64_t dv = t->dv;
    int64_t c = 0;
    for (; c + most * VEC_N <= dv; c += most * VEC_N) {
        if (rb == 1 && most == 4 && c + 4 * VEC_N < dv && c + 5 * VEC_N >= dv) {
            /* three and two, as a single sum waits for each of its additions */
            mix_columns(t, o, p, run, keys, c, dv, true, rb, 3, hidden);
            c += 3 * VEC_N;
            break;
        }
        mix_columns(t, o, p, run, keys, c, dv, true, rb, most, hidden);
    }
    const int64_t left = (dv - c + VEC_N - 1) / VEC_N;
    if (most == 4 && left == 4)
        mix_columns(t, o, p, run, keys, c, dv, false, rb, 4, hidden);
    else if (most == 4 && left == 3)
        mix_columns(t, o, p, run, keys, c, dv, false, rb, 3, hidden);
    else if (left == 2)
        mix_columns(t, o, p, run, keys, c, dv, false, rb, 2, hidden);
    else if (left == 1)
        mix_columns(t, o, p, run, keys, c, dv, false, rb, 1, hidden);
}

/* The same for all columns: where keys are read in order, two at a time. */
INLINE void mix_rows(const struct item *t, real *o, const real *p, const struct run *run,
                     struct keys keys, int rb, bool hidden)
{
    const int64_t step = run->v.next && in_order(t, rb) ? 2 : run->n;
    for (int64_t n = keys.from; n < keys.to; n += step)
        mix_keys(t, o, p, run, (struct keys){n, min64(n + step, keys.to), hidden}, rb, hidden);
}

INLINE void mix_group(const struct item *t, const struct head *h, const struct group *g,
                      const real *p, const struct run *run, struct keys keys, bool hidden)
{
    real *o = h->o + g->first * t->sum_room;
    if (h->turned) {
        mix_turned_row(h->turned, o, t->dv, p, keys, hidden);
        return;
    }
    switch (g->rb) {
    case 1: mix_rows(t, o, p, run, keys, 1, hidden); break;
    case 2: mix_rows(t, o, p, run, keys, 2, hidden); break;
#if VEC_N >= 4
    default: mix_rows(t, o, p, run, keys, 4, hidden); break;
#endif
    }
}

/* For keys of which some may have the weight HIDDEN. */
static NOINLINE void mix_some(const struct item *t, const struct head *h, const struct group *g,
                              const real *p, const struct run *run, struct keys keys)
{
    mix_group(t, h, g, p, run, keys, true);
}

/* o += p v for some keys of a run; there may be none. */
static NOINLINE void mix(const struct item *t, const struct head *h, const struct group *g,
                         const real *p, const struct run *run, struct keys keys)
{
    if (keys.from >= keys.to)
        return;
    if (keys.hidden)
        mix_some(t, h, g, p, run, keys);
    else
        mix_group(t, h, g, p, run, keys, false);
}

/* Whether any lane of the steps of n keys sees one. */
INLINE bool sees_any(const uint32_t *seen, int64_t n, int kb)
{
    uint32_t any = 0;
    for (int64_t j = 0; j < n; j += kb)
        any |= seen[j / kb];
    return any != 0;
}

/* seen: of the group's steps; null: all. */
INLINE void dots_of(const struct item *t, const real *q, const struct run *run,
                    const uint32_t *seen, int rb, bool asks, int keys, real *score)
{
    const int kb = VEC_N / rb, all = keys > kb ? keys : kb;
    for (int64_t n = 0; n < run->n; n += all)
        if (!seen || sees_any(seen + n / kb, min64(all, run->n - n), kb))
            dot(t, q, run, n, rb, asks, keys, score + n * rb);
}

/* Keys that are far had better be read few at a time. */
INLINE void dots_asking(const struct item *t, const real *q, const struct run *run,
                        const uint32_t *seen, int rb, real *score)
{
    const int kb = VEC_N / rb, few = kb < (int)MOST_KB ? kb : (int)MOST_KB;
    const int keys = SUMS / rb < (int)MOST_KB ? SUMS / rb : (int)MOST_KB;
    if (!run->k.next)
        dots_of(t, q, run, seen, rb, false, keys, score);
    else if (in_order(t, rb))
        dots_of(t, q, run, seen, rb, true, 1, score);
    else
        dots_of(t, q, run, seen, rb, true, few, score);
}

/* Products of a run's keys and a group's rows, but for steps in which none is seen:
 * [steps][VEC_N]. */
static NOINLINE void dots(const struct item *t, const struct head *h, const struct group *g,
                          const struct run *run, const uint32_t *seen, real *score)
{
    const real *const q = h->q + g->first * t->word_room;
    switch (g->rb) {
    case 1: dots_asking(t, q, run, seen, 1, score); break;
    case 2: dots_asking(t, q, run, seen, 2, score); break;
#if VEC_N >= 4
    default: dots_asking(t, q, run, seen, 4, score); break;
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
    const vec r = vec_load(h->r + index * VEC_N), limit = limit_of(r, t->span);
    struct sums sums = sums_of(h, index);
    for (; n + kb <= end; n += kb) {
        const vec p = weigh_scores(vec_load(weight + n * rb), t->scale, r);
        if (__builtin_expect(!vmask_all(are_below(p, limit)), 0))
            break;
        sums = sums_and(sums, p);
        vec_store(weight + n * rb, p);
    }
    store_sums(h, index, sums);
    return n;
}

/* What follows its products, which `weight` has, for a group of a head's rows, the index-th, except
 * for the last values: returns the keys whose values are still to be added. seen: of the group's
 * steps; null: all. */
INLINE struct keys group_run(const struct item *t, const struct head *h, int64_t index,
                             const struct run *run, const uint32_t *seen, int rb, real *weight)
{
    struct shaping x;
    const struct group *const g = &t->group[index];
    const int64_t kb = VEC_N / rb;
    const bool plain = t->plain && !seen;
    struct keys left = {0, 0, false}; /* values before them are added */
    if (!t->plain)
        shaping_init(t, h->head_kv, g, run, &x);
    for (int64_t n = 0; n < run->n; n += kb) {
        if (plain && (n = plain_steps(t, h, index, n, run->n, rb, weight)) >= run->n)
            break;
        const uint32_t all = g->lanes * ((UINT32_C(1) << min64(kb, run->n - n)) - 1);
        const uint32_t lanes = seen ? seen[n / kb] : all;
        real *w = weight + n * rb;
        left.to = n;
        if (lanes == 0) {
            mix(t, h, g, weight, run, left);
            left = (struct keys){n + kb, n + kb, false};
            continue;
        }
        vec s = vec_load(w);
        vmask sees = vmask_of(lanes);
        if (t->shaped)
            s = shape(&x, run, n, rb, s, &sees);
        s = vec_select(sees, s, vec_set(-INFINITY));
        const vec r = vec_load(h->r + index * VEC_N);
        vec p = vec_select(sees, weigh_scores(s, t->scale, r), vec_zero());
        if (__builtin_expect(!vmask_all(are_below(p, limit_of(r, t->span))), 0)) {
            mix(t, h, g, weight, run, left);
            left = (struct keys){n, n, false};
            p = raise_references(t, h, index, s, p);
        }
        add_to_sums(h, index, p, sees);
        if (!t->plain && x.drops)
            p = vec_select(vmask_of(x.kept[n / kb]), p, vec_zero());
        if (lanes != all || (!t->plain && x.biased)) {
            p = vec_select(sees, p, vec_set(HIDDEN));
            left.hidden = true;
        }
        vec_store(w, p);
    }
    left.to = run->n;
    return left;
}

/* A run against all rows of a head: all products with keys first, while those are near. seen: null:
 * everything. */
static NOINLINE void head_run(const struct item *t, const struct head *h, const struct run *run,
                              const struct seen *seen)
{
    _Alignas(64) real weight[ROWS * RUN];
    for (const struct group *g = t->group; g < t->group + t->groups; g++)
        dots(t, h, g, run, seen_by(seen, g), weight + g->first * RUN);
    for (int64_t n = 0; n < t->groups; n++) {
        const struct group *const g = &t->group[n];
        const uint32_t *const lanes = seen_by(seen, g);
        real *const w = weight + g->first * RUN;
        struct keys left;
        switch (g->rb) {
        case 1: left = group_run(t, h, n, run, lanes, 1, w); break;
        case 2: left = group_run(t, h, n, run, lanes, 2, w); break;
#if VEC_N >= 4
        default: left = group_run(t, h, n, run, lanes, 4, w); break;
#endif
        }
        mix(t, h, g, w, run, left);
    }
}

/* The same for one or two rows of a narrow head from the n-th on. weight: [rows][TURNED]. */
INLINE void narrow_rows(const struct item *t, const struct head *h, const struct run *run,
                        const struct seen *seen, int64_t step, int64_t n, int rows, real *weight)
{
    struct keys left[2];
    dots_turned(h->turned, step, h->q + n * t->word_room, t->word_room, words(t->d), run->n, rows,
                weight);
    for (int r = 0; r < rows; r++)
        left[r] = group_run(t, h, n + r, run, seen_by(seen, &t->group[n + r]), 1,
                            weight + r * TURNED);
    if (rows == 2 && left[0].from == left[1].from && !left[0].hidden && !left[1].hidden)
        mix_turned(h->turned, step, h->o + n * t->sum_room, t->sum_room, t->dv, weight, left[0],
                   2, false);
    else
        for (int r = 0; r < rows; r++)
            mix(t, h, &t->group[n + r], weight + r * TURNED, run, left[r]);
}

/* The same for all rows, by twos, so that what is loaded serves both. */
INLINE void narrow_steps(const struct item *t, const struct head *head, const struct run *run,
                         const struct seen *seen, int64_t step)
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
        narrow_rows(t, &h, run, seen, step, n, 2, weight);
    if (n < t->rows)
        narrow_rows(t, &h, run, seen, step, n, 1, weight);
}

static NOINLINE void narrow_run(const struct item *t, const struct head *h, const struct run *run,
                                const struct seen *seen)
{
    if (turned_keys(t) == TURNED)
        narrow_steps(t, h, run, seen, TURNED);
    else
        narrow_steps(t, h, run, seen, TURNED / 2);
}

#endif
