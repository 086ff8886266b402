/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Forward kernel for few rows (see most_rows()), built once per instruction set and element type.
 * What counts here is to read keys and values once, in the order of memory, for all rows that share
 * them; nothing is packed.
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
 *
 * A long sequence is cut into chunks of keys, by its length alone, and merge() adds what they gave.
 */
#include "cpu/tmpl.h"

enum { ROWS = 16 };                           /* of a unit at most */
enum { MOST_RB = VEC_N < 4 ? (int)VEC_N : 4 }; /* rows of a step */
enum { LEAST_KB = VEC_N / MOST_RB };          /* its keys */
enum { GROUPS = ROWS / MOST_RB + 2 };
enum { RUN = 256 };                           /* keys of a run, at most; a multiple of VEC_N */

/*
 * Up to how many rows are better here than in the tiled form, whose blocks compute no fewer than
 * the lanes of HALF vectors: the sums of products weigh the more here the smaller heads are.
 */
static int64_t most_rows(const struct attn_problem *p)
{
    const int64_t lanes = (NV + 1) / 2 * VEC_N, most = lanes < ROWS ? lanes : ROWS;
    return p->head_dim >= 4 * VEC_N ? most : p->head_dim >= VEC_N ? most * 5 / 8 : most * 3 / 8;
}

/* Scratch: for each head of the item its queries as words and its state. */
struct head {
    int64_t head_kv;
    real *q;      /* [rows][words, rounded up to VEC_N], with the sign of the scale */
    real *r;      /* [groups][VEC_N] reference of each lane; -inf: none yet */
    real *l, *lost; /* [groups][VEC_N] sum of each lane, and what its roundings took */
    real *o;      /* [rows][dv, rounded up to VEC_N] */
};

/* Rows `first` to first + rb - 1. */
struct group {
    int64_t first, rb, kb;
    uint32_t lanes; /* of a step's first key, as bits */
};

struct item {
    const struct attn_unit *u;
    int64_t d, dv, word_room, value_room;
    int64_t rows, groups;
    struct group group[GROUPS];
    int64_t lo, hi; /* keys of the chunk that some row sees */
    struct exponent scale;
    bool shaped;    /* more than the scale goes into the scores */
    bool masked;    /* rules beyond the band and the key mask may hide keys */
    struct attn_score_view bias;
    struct attn_range see[ROWS];
};

/* What the rows see of some keys, by the band and the key mask: bits, so that what they see of more
 * is both. */
enum { SEE_NONE = 1, SEE_ALL = 2, SEE_SOME = SEE_NONE | SEE_ALL };

/* The keys or values of a run, of one head, and as many rows that memory is asked for meanwhile. */
struct rows {
    const elem *at[RUN];  /* past the run's end, up to the end of a step, its last one */
    const elem *next;     /* null where nothing is asked for */
    int64_t apart;        /* elements from one of those to the following one */
};

/* Keys j .. j + n - 1, all of them in work. */
struct run {
    int64_t j, n;
    uint8_t see[RUN / LEAST_KB]; /* of each LEAST_KB keys */
    struct rows k, v;
};

/* Fewer rows never take more, though they may have more groups. */
static int64_t head_reals(const struct item *t)
{
    const int64_t groups = (t->rows + MOST_RB - 1) / MOST_RB + 1;
    return t->rows * (t->word_room + t->value_room) + 3 * groups * VEC_N;
}

static void item_shape(struct item *t, const struct attn_problem *p, int64_t rows)
{
    t->d = p->head_dim;
    t->dv = p->head_dim_v;
    t->word_room = round_up(words(t->d), VEC_N);
    t->value_room = round_up(t->dv, VEC_N);
    t->rows = rows;
}

static void make_groups(struct item *t)
{
    t->groups = 0;
    for (int64_t first = 0, rb = MOST_RB; first < t->rows; first += rb) {
        struct group *const g = &t->group[t->groups++];
        while (rb > t->rows - first)
            rb /= 2;
        *g = (struct group){first, rb, VEC_N / rb, 0};
        for (int64_t r = 0; r < rb; r++)
            g->lanes |= UINT32_C(1) << r * g->kb;
    }
}

static int64_t scratch_bytes(const struct attn_problem *p, int64_t rows, int64_t heads)
{
    struct item t;
    item_shape(&t, p, rows);
    return round_up((heads * head_reals(&t) + t.value_room) * (int64_t)sizeof(real), 64);
}

static int64_t query_of(const struct item *t, int64_t r) { return r / t->u->p->group; }

static int64_t head_of(const struct item *t, int64_t head_kv, int64_t r)
{
    return head_kv * t->u->p->group + r % t->u->p->group;
}

static struct row row_at(const struct item *t, int64_t head_kv, int64_t r)
{
    const struct row row = {t->u, head_kv, query_of(t, r), head_of(t, head_kv, r), t->see[r]};
    return row;
}

static struct head head_at(const struct item *t, real *scratch, int64_t n, int64_t head_kv)
{
    struct head h;
    h.head_kv = head_kv;
    h.q = scratch + n * head_reals(t);
    h.r = h.q + t->rows * t->word_room;
    h.l = h.r + t->groups * VEC_N;
    h.lost = h.l + t->groups * VEC_N;
    h.o = h.lost + t->groups * VEC_N;
    return h;
}

static void head_init(const struct item *t, const struct head *h)
{
    const bool negative = t->u->p->scale < 0;
    for (int64_t r = 0; r < t->rows; r++) {
        const struct row row = row_at(t, h->head_kv, r);
        for (int64_t c = 0; c < words(t->d); c += VEC_N) {
            const vec q = words_at(query_row(&row), c, t->d);
            vec_store(h->q + r * t->word_room + c, negative ? word_negate(q) : q);
        }
    }
    for (int64_t i = 0; i < t->groups * VEC_N; i += VEC_N) {
        vec_store(h->r + i, vec_set(-INFINITY)); /* makes every probability too large, or NaN */
        vec_store(h->l + i, vec_zero());
        vec_store(h->lost + i, vec_zero());
    }
    memset(h->o, 0, (size_t)(t->rows * t->value_room) * sizeof(real));
}

/* ---- A step ---------------------------------------------------------------------------------- */

/* Asks memory for some bytes of a row. */
INLINE void fetch(const struct item *t, const elem *row, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64)
        if (t->u->asks == ATTN_ASKS_SECOND)
            __builtin_prefetch((const char *)row + i, 0, 2);
        else
            __builtin_prefetch((const char *)row + i);
}

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
    real *o = h->o + (g->first + i) * t->value_room;
    for (int64_t c = 0; c < t->value_room; c += VEC_N)
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

/* Adds probabilities to the sums, as Kahan does: a lane adds hundreds of numbers that may all be
 * alike, whose roundings would add up. */
INLINE void add_to_sums(const struct head *h, int64_t g, vec p)
{
    real *l = h->l + g * VEC_N, *lost = h->lost + g * VEC_N;
    const vec old = vec_load(l), more = vec_sub(p, vec_load(lost)), sum = vec_add(old, more);
    vec_store(l, sum);
    vec_store(lost, vec_sub(vec_sub(sum, old), more));
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
    real *o = h->o + g->first * t->value_room;
    if (from >= to)
        return;
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

/* What follows its products, which `weight` has, for a group of a head's rows, the index-th. */
INLINE void group_run(const struct item *t, const struct head *h, int64_t index,
                      const struct run *run, int rb, real *weight)
{
    const struct group *const g = &t->group[index];
    const int64_t kb = VEC_N / rb;
    int64_t from = 0; /* values before it are added */
    for (int64_t n = 0; n < run->n; n += kb) {
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
        add_to_sums(h, index, p);
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

/* A run against all rows of a head: all products with keys first, while those are near. */
static void head_run(const struct item *t, const struct head *h, const struct run *run)
{
    _Alignas(64) real weight[ROWS * RUN];
    for (const struct group *g = t->group; g < t->group + t->groups; g++)
        dots(t, h, g, run, weight + g->first * RUN);
    for (int64_t n = 0; n < t->groups; n++) {
        real *const w = weight + t->group[n].first * RUN;
        switch (t->group[n].rb) {
        case 1: group_run(t, h, n, run, 1, w); break;
        case 2: group_run(t, h, n, run, 2, w); break;
#if VEC_N >= 4
        default: group_run(t, h, n, run, 4, w); break;
#endif
        }
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

/* The same of all keys of a run. */
static uint8_t look_at(const struct item *t, struct run *run)
{
    uint8_t all = t->u->key_mask ? SEE_SOME : sight(t, run->j, run->n);
    if (all == SEE_ALL) {
        memset(run->see, SEE_ALL, sizeof run->see);
        return SEE_ALL;
    }
    all = 0;
    for (int64_t n = 0; n < run->n; n += LEAST_KB)
        all |= run->see[n / LEAST_KB] = sight(t, run->j + n, min64(LEAST_KB, run->n - n));
    return all;
}

/* Finds the rows of head head0 + n in a run, and which to ask memory for: those `ahead` keys
 * further on, or, where the rows of all `heads` heads are one array, the n-th share of theirs, in
 * the order of memory; none past the chunk. */
static void find_rows(const struct item *t, const struct attn_view *v, const struct run *run,
                      int64_t ahead, int64_t head0, int64_t heads, int64_t n, int64_t width,
                      struct rows *rows)
{
    const struct attn_axis *axis = &t->u->p->key;
    const int64_t size = (int64_t)sizeof(elem), b = t->u->b, j = run->j;
    const bool one = v->head == width && v->token == heads * width, paged = axis->table != NULL;
    const elem *const first = (const elem *)attn_view_at(v, axis, b, j, head0 + n, size);
    for (int64_t i = 0; i < run->n; i++)
        rows->at[i] = paged ? (const elem *)attn_view_at(v, axis, b, j + i, head0 + n, size)
                            : first + i * v->token;
    for (int64_t i = run->n; i % VEC_N != 0; i++)
        rows->at[i] = rows->at[run->n - 1];
    rows->next = NULL;
    rows->apart = one ? width : v->token;
    if (t->u->asks != ATTN_ASKS_NOTHING && !paged && j + ahead + run->n <= t->hi)
        rows->next = (const elem *)attn_view_at(v, axis, b, j + ahead, head0, size) +
                     n * (one ? run->n * width : v->head);
}

static void walk(const struct item *t, real *scratch, int64_t head0, int64_t heads)
{
    enum { NEAR = 16000, AHEAD = 8192 }; /* bytes of keys: in a run; to be on their way */
    const struct attn_problem *p = t->u->p;
    /* Heads inside, if a token's heads lie closer together than a head's tokens. */
    const bool by_token = p->k.head < p->k.token;
    const int64_t token = (by_token ? heads : 1) * t->d * (int64_t)sizeof(elem);
    /* Short runs where several groups read the keys, or memory is asked for beside them. */
    const bool again = t->groups > 1 || t->u->asks != ATTN_ASKS_NOTHING;
    const int64_t keys = again ? min64(RUN, round_up(1 + NEAR / token, VEC_N)) : RUN;
    const int64_t ahead = round_up(1 + AHEAD / token, keys);
    struct run run;
    for (int64_t outer = 0; outer < (by_token ? 1 : heads); outer++)
        for (int64_t j = t->lo; j < t->hi; j += keys) {
            run.j = j;
            run.n = min64(keys, t->hi - j);
            const bool none = look_at(t, &run) == SEE_NONE;
            const int64_t end = none ? 0 : by_token ? heads : outer + 1;
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
    make_groups(t);
    t->scale = score_exponent(u->p);
    t->shaped = shapes_scores(u->p);
    t->masked = has_masks(u->p);
    t->bias = attn_bias_of(&u->seq);
    for (int64_t r = 0; r < t->rows; r++)
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

/* Row r of a group, the index-th, when its keys are done: to out and lse, or to `partial`. */
static void close_row(const struct item *t, const struct head *h, int64_t index, int64_t r,
                      real *partial)
{
    const struct group *const g = &t->group[index];
    const int64_t lane = index * VEC_N + r * g->kb, row = g->first + r;
    real *o = h->o + row * t->value_room, l = 0;
    for (int64_t k = 0; k < g->kb; k++)
        l += h->l[lane + k];
    if (!partial) {
        finish_row(t, h->head_kv, row, h->r[lane], l, o);
        return;
    }
    partial[0] = h->r[lane];
    partial[1] = l;
    memcpy(partial + 2, o, (size_t)t->value_room * sizeof(real));
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
        for (int64_t g = 0; g < t.groups; g++)
            for (int64_t r = 0; r < t.group[g].rb; r++)
                close_row(&t, &h, g, r,
                          partial ? partial_at(&t, partial, n, h.head_kv, t.group[g].first + r)
                                  : NULL);
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
    .most_rows = most_rows,
    .scratch_bytes = scratch_bytes,
    .partial_bytes = partial_bytes,
    .chunk = chunk,
    .merge = merge,
};
