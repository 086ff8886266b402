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
 * A long sequence is cut into chunks of keys, by its length alone, and merge() adds what they gave.
 */
#include "cpu/tmpl.h"

enum { ROWS = ATTN_DECODE_ROWS };

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
    struct attn_score_view bias;
    struct attn_range see[ROWS + 4];
};

/* Rows of a step: as many as there are, up to 4, in a form that divides a vector. */
static int64_t row_block(int64_t rows)
{
    const int64_t most = VEC_N < 4 ? VEC_N : 4;
    const int64_t want = rows > 2 ? 4 : rows;
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

/* VEC_N words from c on of a row of n words in d elements, 0 past its end. */
INLINE vec words_at(const elem *row, int64_t c, int64_t d)
{
    if ((c + VEC_N) * PAIR <= d)
        return word_load(row + c * PAIR);
    elem part[PAIR * VEC_N] = {0};
    memcpy(part, row + c * PAIR, (size_t)(d - c * PAIR) * sizeof(elem));
    return word_load(part);
}

INLINE vec values_at(const elem *row, int64_t c, int64_t dv)
{
    if (c + VEC_N <= dv)
        return elem_load(row + c);
    elem part[VEC_N] = {0};
    memcpy(part, row + c, (size_t)(dv - c) * sizeof(elem));
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

/* Products of KB keys, each at k[], and RB rows. */
INLINE vec dot(const struct item *t, const real *q, const elem *const *k, int64_t d, int rb)
{
    const int kb = VEC_N / rb;
    vec s[VEC_N];
    UNROLL for (int i = 0; i < VEC_N; i++)
        s[i] = vec_zero();
    for (int64_t c = 0; c < words(d); c += VEC_N) {
        vec row[4];
        UNROLL for (int r = 0; r < rb; r++)
            row[r] = vec_load(q + r * t->word_room + c);
        UNROLL for (int n = 0; n < kb; n++) {
            const vec key = words_at(k[n], c, d);
            UNROLL for (int r = 0; r < rb; r++)
                s[r * kb + n] = vec_mac(key, row[r], s[r * kb + n]);
        }
    }
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

/* Scores to probabilities; adds them to the sums, as Kahan does: a lane adds hundreds of numbers that
 * may all be alike, whose roundings would add up. */
INLINE vec softmax(const struct item *t, const struct head *h, int64_t g, vec s)
{
    const vec r = vec_load(h->r + g * VEC_N);
    vec p = probability(s, t->scale, r);
    if (__builtin_expect(!vmask_all(below_limit(p, r)), 0))
        p = raise_references(t, h, g, s);
    real *l = h->l + g * VEC_N, *lost = h->lost + g * VEC_N;
    const vec old = vec_load(l), more = vec_sub(p, vec_load(lost)), sum = vec_add(old, more);
    vec_store(l, sum);
    vec_store(lost, vec_sub(vec_sub(sum, old), more));
    return p;
}

/* o += p v for KB keys, all seen by RB rows. */
INLINE void mix(const struct item *t, real *o, const real *p, const elem *const *v, int64_t dv,
                int rb)
{
    const int kb = VEC_N / rb;
    for (int64_t c = 0; c < dv; c += VEC_N) {
        vec value[VEC_N];
        UNROLL for (int n = 0; n < kb; n++)
            value[n] = values_at(v[n], c, dv);
        UNROLL for (int r = 0; r < rb; r++) {
            vec sum = vec_load(o + r * t->value_room + c);
            UNROLL for (int n = 0; n < kb; n++)
                sum = vec_fma(vec_set(p[r * kb + n]), value[n], sum);
            vec_store(o + r * t->value_room + c, sum);
        }
    }
}

/* The first key or value of a step. */
static const elem *step_at(const struct item *t, const struct attn_view *v, int64_t j, int64_t head)
{
    return (const elem *)attn_view_at(v, &t->u->p->key, t->u->b, j, head, sizeof(elem));
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

/* Which lanes of group g see their key of the step at j, by the masks and by the range of keys that
 * is in work; whether all do. */
static NOINLINE bool see(const struct item *t, const struct head *h, int64_t g, int64_t j,
                         bool seen[VEC_N])
{
    bool all = true;
    for (int64_t i = 0; i < VEC_N; i++) {
        const struct row row = row_at(t, h->head_kv, g * t->rb + i / t->kb);
        const int64_t key = j + i % t->kb;
        seen[i] = key >= t->lo && key < t->hi && key >= row.see.lo && key < row.see.hi &&
                  row_sees(&row, &t->bias, key);
        all = all && seen[i];
    }
    return all;
}

/* -inf in place of scores of keys that are not seen. */
INLINE vec hide(vec s, const bool seen[VEC_N])
{
    real score[VEC_N];
    vec_store(score, s);
    for (int64_t i = 0; i < VEC_N; i++)
        score[i] = seen[i] ? score[i] : (real)-INFINITY;
    return vec_load(score);
}

/* mix() for the keys that are seen, one by one, from the addresses v[]. */
static NOINLINE void mix_seen(const struct item *t, real *o, const real *weight,
                              const elem *const *v, const bool seen[VEC_N])
{
    for (int64_t i = 0; i < VEC_N; i++) {
        real *sums = o + i / t->kb * t->value_room;
        for (int64_t c = 0; seen[i] && c < t->dv; c += VEC_N)
            vec_store(sums + c, vec_fma(vec_set(weight[i]), values_at(v[i % t->kb], c, t->dv),
                                        vec_load(sums + c)));
    }
}

/* KB keys from j on and their values, each at its own address, all of them in the range in work and
 * in every row's band. */
INLINE void whole_step(const struct item *t, const struct head *h, int64_t j, const elem *const *k,
                       const elem *const *v, int64_t d, int64_t dv, int rb)
{
    for (int64_t g = 0; g < t->groups; g++) {
        real weight[VEC_N], *o = h->o + g * rb * t->value_room;
        bool seen[VEC_N];
        const bool all = !t->masked || see(t, h, g, j, seen);
        vec s = dot(t, h->q + g * rb * t->word_room, k, d, rb);
        if (t->shaped)
            s = shape(t, h, g, j, s);
        if (!all)
            s = hide(s, seen);
        vec_store(weight, softmax(t, h, g, s));
        if (t->u->p->dropout.on)
            drop(t, h, g, j, weight);
        if (all)
            mix(t, o, weight, v, dv, rb);
        else
            mix_seen(t, o, weight, v, seen);
    }
}

/* The n-th address of a step. */
INLINE const elem *key_at(const struct item *t, const struct attn_view *v, const elem *first,
                          int64_t j, int64_t n, int64_t head)
{
    if (!t->u->p->key.table)
        return first + n * v->token;
    return (const elem *)attn_view_at(v, &t->u->p->key, t->u->b, j + n, head, sizeof(elem));
}

static void any_step(const struct item *t, const struct head *h, int64_t j)
{
    const struct attn_problem *p = t->u->p;
    const elem *k[VEC_N], *v[VEC_N];
    const elem *first_k = step_at(t, &p->k, j, h->head_kv);
    const elem *first_v = step_at(t, &p->v, j, h->head_kv);
    for (int64_t n = 0; n < t->kb; n++) {
        k[n] = key_at(t, &p->k, first_k, j, n, h->head_kv);
        v[n] = key_at(t, &p->v, first_v, j, n, h->head_kv);
    }
    switch (t->rb) {
    case 1: whole_step(t, h, j, k, v, t->d, t->dv, 1); break;
    case 2: whole_step(t, h, j, k, v, t->d, t->dv, 2); break;
#if VEC_N >= 4
    default:
        if (t->d == 128 && t->dv == 128)
            whole_step(t, h, j, k, v, 128, 128, 4);
        else
            whole_step(t, h, j, k, v, t->d, t->dv, 4);
#endif
    }
}

/* The same where some row does not see some key, or the chunk ends within the step: such keys are
 * not read for the row, and keys that nobody sees are not read at all. */
static NOINLINE void part_step(const struct item *t, const struct head *h, int64_t j)
{
    const struct attn_problem *p = t->u->p;
    const elem *v[VEC_N];
    for (int64_t n = 0; n < t->kb; n++)
        v[n] = j + n < t->hi ? step_at(t, &p->v, j + n, h->head_kv) : NULL;
    for (int64_t g = 0; g < t->groups; g++) {
        real score[VEC_N] = {0}, weight[VEC_N];
        bool seen[VEC_N];
        see(t, h, g, j, seen);
        for (int64_t i = 0; i < VEC_N; i++) {
            if (!seen[i])
                continue;
            const elem *k = step_at(t, &p->k, j + i % t->kb, h->head_kv);
            const real *q = h->q + (g * t->rb + i / t->kb) * t->word_room;
            vec s[VEC_N];
            for (int n = 0; n < VEC_N; n++)
                s[n] = vec_zero();
            for (int64_t c = 0; c < words(t->d); c += VEC_N)
                s[0] = vec_mac(words_at(k, c, t->d), vec_load(q + c), s[0]);
            score[i] = vec_first(vec_sums(s));
        }
        vec s = vec_load(score);
        if (t->shaped)
            s = shape(t, h, g, j, s);
        vec_store(weight, softmax(t, h, g, hide(s, seen)));
        if (p->dropout.on)
            drop(t, h, g, j, weight);
        mix_seen(t, h->o + g * t->rb * t->value_room, weight, v, seen);
    }
}

/* ---- A chunk --------------------------------------------------------------------------------- */

/* Whether every row sees keys j .. j + kb - 1; *none: whether the key mask hides them all. */
static bool step_whole(const struct item *t, int64_t j, bool *none)
{
    const struct attn_unit *u = t->u;
    const int64_t end = min64(j + t->kb, t->hi);
    int64_t kept = end - j;
    if (u->key_mask) {
        kept = 0;
        for (int64_t n = j; n < end; n++)
            kept += u->key_mask[n] != 0;
    }
    *none = kept == 0;
    return kept == t->kb && j >= t->lo && attn_band_whole(u->band, 0, u->nq, j, j + t->kb);
}

/* Asks memory for the keys or values of the step at j, heads head0 .. head0 + heads - 1: for the
 * n-th share of them, which is in the order of memory where they are one array. Inlined, because a
 * compiler takes a function that does nothing else for one without effect. */
INLINE void fetch_share(const struct item *t, const struct attn_view *v, int64_t j, int64_t head0,
                        int64_t heads, int64_t n, int64_t width)
{
    const int64_t size = (int64_t)sizeof(elem), share = t->kb * width * size;
    const char *at = (const char *)step_at(t, v, j, head0);
    if (v->head == width && v->token == heads * width) {
        for (int64_t i = 0; i < share; i += 64)
            __builtin_prefetch(at + n * share + i);
        return;
    }
    for (int64_t k = 0; k < t->kb; k++)
        for (int64_t i = 0; i < width * size; i += 64)
            __builtin_prefetch(at + (k * v->token + n * v->head) * size + i);
}

static void walk(const struct item *t, real *scratch, int64_t head0, int64_t heads)
{
    enum { AHEAD = 8192 }; /* bytes of keys to be on their way */
    const struct attn_problem *p = t->u->p;
    const int64_t step = t->kb * heads * t->d * (int64_t)sizeof(elem);
    const int64_t ahead = t->kb * (1 + (AHEAD - 1) / step);
    /* Heads inside, if a token's heads lie closer together than a head's tokens. */
    const bool by_token = p->k.head < p->k.token;
    for (int64_t outer = 0; outer < (by_token ? 1 : heads); outer++)
        for (int64_t j = t->lo / t->kb * t->kb; j < t->hi; j += t->kb) {
            bool none;
            const bool whole = step_whole(t, j, &none);
            const bool more = j + ahead + t->kb <= t->hi && !p->key.table;
            const int64_t end = none ? 0 : by_token ? heads : outer + 1;
            for (int64_t n = by_token ? 0 : outer; n < end; n++) {
                const struct head h = head_at(t, scratch, n, head0 + n);
                if (more) {
                    fetch_share(t, &p->k, j + ahead, head0, heads, n, t->d);
                    fetch_share(t, &p->v, j + ahead, head0, heads, n, t->dv);
                }
                if (whole)
                    any_step(t, &h, j);
                else
                    part_step(t, &h, j);
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

/* Adds the chunks of each row in their order. */
static void merge(const struct attn_unit *u, int64_t chunks, void *scratch, char *partial)
{
    struct item t;
    item_init(&t, u);
    real *row = scratch;
    for (int64_t n = 0; n < u->p->heads_kv * t.rows; n++) {
        const int64_t head_kv = n / t.rows, r = n % t.rows;
        real top = -INFINITY, l = 0;
        for (int64_t i = 0; i < chunks; i++) {
            const real *part = partial_at(&t, partial, i, head_kv, r);
            top = part[0] > top ? part[0] : top;
        }
        memset(row, 0, (size_t)t.value_room * sizeof *row);
        for (int64_t i = 0; i < chunks; i++) {
            const real *part = partial_at(&t, partial, i, head_kv, r);
            if (part[1] == 0)
                continue; /* saw nothing */
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
