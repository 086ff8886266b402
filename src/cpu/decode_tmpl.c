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
    real *m, *l;  /* [groups][VEC_N] reference and sum of each lane */
    real *o;      /* [groups][RB][dv, rounded up to VEC_N] */
};

struct item {
    const struct attn_unit *u;
    int64_t d, dv, word_room, value_room;
    int64_t rows, rb, kb, groups; /* rows in groups of rb; the last row repeats in the last group */
    int64_t lo, hi;               /* keys of the chunk that some row sees */
    struct exponent scale;
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
    return t->groups * (t->rb * (t->word_room + t->value_room) + 2 * VEC_N);
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
    h.m = h.q + t->groups * t->rb * t->word_room;
    h.l = h.m + t->groups * VEC_N;
    h.o = h.l + t->groups * VEC_N;
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
        h->m[i] = -INFINITY; /* no reference yet: 2^(s - m) is then too large, or NaN */
        h->l[i] = 0;
    }
    memset(h->o, 0, (size_t)(t->groups * t->rb * t->value_room) * sizeof(real));
}

/* ---- A step ---------------------------------------------------------------------------------- */

/* Scores of KB keys and RB rows. */
INLINE vec dot(const struct item *t, const real *q, const elem *k, int64_t stride, int64_t d,
               int rb)
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
            const vec key = words_at(k + n * stride, c, d);
            UNROLL for (int r = 0; r < rb; r++)
                s[r * kb + n] = vec_mac(key, row[r], s[r * kb + n]);
        }
    }
    return vec_sums(s);
}

INLINE vec exponential(const struct item *t, vec s, vec m)
{
    return vec_exp2(vec_sub(s, m), t->scale);
}

/* Sets the references of rows that have none or whose probabilities are too large, rescales what
 * was made with the old ones, and returns the probabilities. */
static NOINLINE vec raise_references(const struct item *t, const struct head *h, int64_t g, vec s)
{
    real score[VEC_N], p[VEC_N], m[VEC_N], by[VEC_N];
    vec_store(score, s);
    vec_store(m, vec_load(h->m + g * VEC_N));
    vec_store(p, exponential(t, s, vec_load(h->m + g * VEC_N)));
    for (int64_t r = 0; r < t->rb; r++) {
        real most = -INFINITY, factor = 1, old = m[r * t->kb], new = old;
        bool fits = true;
        for (int64_t i = r * t->kb; i < (r + 1) * t->kb; i++) {
            most = score[i] > most ? score[i] : most;
            fits = fits && (real)fabs(p[i]) <= RAISE_ABOVE;
        }
        if (!fits && old == -INFINITY) {
            new = most;
        } else if (!fits && most > old) {
            new = most;
            factor = vec_first(exponential(t, vec_set(old), vec_set(new)));
            real *o = h->o + (g * t->rb + r) * t->value_room;
            for (int64_t c = 0; c < t->value_room; c += VEC_N)
                vec_store(o + c, vec_mul(vec_load(o + c), vec_set(factor)));
        }
        for (int64_t i = r * t->kb; i < (r + 1) * t->kb; i++) {
            m[i] = new;
            by[i] = factor;
        }
    }
    vec_store(h->m + g * VEC_N, vec_load(m));
    vec_store(h->l + g * VEC_N, vec_mul(vec_load(h->l + g * VEC_N), vec_load(by)));
    /* A row still without a reference sees only -inf. */
    return vec_select(vec_le(s, vec_set(-INFINITY)), vec_zero(), exponential(t, s, vec_load(m)));
}

/* Scores to probabilities; adds them to the sums. */
INLINE vec softmax(const struct item *t, const struct head *h, int64_t g, vec s)
{
    vec p = exponential(t, s, vec_load(h->m + g * VEC_N));
    if (__builtin_expect(!vmask_all(below_limit(p)), 0))
        p = raise_references(t, h, g, s);
    vec_store(h->l + g * VEC_N, vec_add(vec_load(h->l + g * VEC_N), p));
    return p;
}

/* o += p v for KB keys, all seen by RB rows. */
INLINE void mix(const struct item *t, real *o, const real *p, const elem *v, int64_t stride,
                int64_t dv, int rb)
{
    const int kb = VEC_N / rb;
    for (int64_t c = 0; c < dv; c += VEC_N) {
        vec value[VEC_N];
        UNROLL for (int n = 0; n < kb; n++)
            value[n] = values_at(v + n * stride, c, dv);
        UNROLL for (int r = 0; r < rb; r++) {
            vec sum = vec_load(o + r * t->value_room + c);
            UNROLL for (int n = 0; n < kb; n++)
                sum = vec_fma(vec_set(p[r * kb + n]), value[n], sum);
            vec_store(o + r * t->value_room + c, sum);
        }
    }
}

INLINE void fetch_rows(const elem *row, int64_t stride, int64_t n, int rows)
{
    for (int r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i += 64 / (int64_t)sizeof(elem))
            __builtin_prefetch(row + r * stride + i);
}

/* KB keys from j on, which every row sees. `ahead`: keys until those to ask memory for. */
INLINE void whole_step(const struct item *t, const struct head *h, const elem *k, const elem *v,
                       int64_t ahead, int64_t d, int64_t dv, int rb)
{
    const struct attn_problem *p = t->u->p;
    const int64_t ks = p->k.token, vs = p->v.token;
    if (ahead)
        fetch_rows(k + ahead * ks, ks, d, VEC_N / rb);
    if (ahead)
        fetch_rows(v + ahead * vs, vs, dv, VEC_N / rb);
    for (int64_t g = 0; g < t->groups; g++) {
        real weight[VEC_N];
        const vec s = dot(t, h->q + g * rb * t->word_room, k, ks, d, rb);
        vec_store(weight, softmax(t, h, g, s));
        mix(t, h->o + g * rb * t->value_room, weight, v, vs, dv, rb);
    }
}

static void any_step(const struct item *t, const struct head *h, const elem *k, const elem *v,
                     int64_t ahead)
{
    switch (t->rb) {
    case 1: whole_step(t, h, k, v, ahead, t->d, t->dv, 1); break;
    case 2: whole_step(t, h, k, v, ahead, t->d, t->dv, 2); break;
#if VEC_N >= 4
    default:
        if (t->d == 128 && t->dv == 128)
            whole_step(t, h, k, v, ahead, 128, 128, 4);
        else
            whole_step(t, h, k, v, ahead, t->d, t->dv, 4);
#endif
    }
}

/* The same where some row does not see some key, or the chunk ends within the step: such keys are
 * not read for the row, and keys that nobody sees are not read at all. */
static NOINLINE void part_step(const struct item *t, const struct head *h, int64_t j)
{
    const struct attn_problem *p = t->u->p;
    const uint8_t *mask = t->u->key_mask;
    for (int64_t g = 0; g < t->groups; g++) {
        real score[VEC_N], weight[VEC_N];
        bool seen[VEC_N];
        for (int64_t i = 0; i < VEC_N; i++) {
            const int64_t row = g * t->rb + i / t->kb, key = j + i % t->kb;
            const struct attn_range see = t->see[row];
            seen[i] = key < t->hi && key >= see.lo && key < see.hi && (!mask || mask[key]);
            score[i] = -INFINITY;
            if (!seen[i])
                continue;
            const elem *k = (const elem *)attn_view_at(&p->k, &p->key, t->u->b, key, h->head_kv,
                                                       sizeof(elem));
            vec s[VEC_N];
            for (int n = 0; n < VEC_N; n++)
                s[n] = vec_zero();
            for (int64_t c = 0; c < words(t->d); c += VEC_N)
                s[0] = vec_mac(words_at(k, c, t->d), vec_load(h->q + row * t->word_room + c), s[0]);
            score[i] = vec_first(vec_sums(s));
        }
        vec_store(weight, softmax(t, h, g, vec_load(score)));
        for (int64_t i = 0; i < VEC_N; i++) {
            if (!seen[i])
                continue;
            const elem *v = (const elem *)attn_view_at(&p->v, &p->key, t->u->b, j + i % t->kb,
                                                       h->head_kv, sizeof(elem));
            real *o = h->o + (g * t->rb + i / t->kb) * t->value_room;
            for (int64_t c = 0; c < t->dv; c += VEC_N)
                vec_store(o + c, vec_fma(vec_set(weight[i]), values_at(v, c, t->dv),
                                         vec_load(o + c)));
        }
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
    return kept == t->kb && attn_band_whole(u->band, 0, u->nq, j, j + t->kb);
}

static void walk(const struct item *t, real *scratch, int64_t head0, int64_t heads)
{
    enum { AHEAD = 16384 }; /* bytes */
    const struct attn_problem *p = t->u->p;
    const int64_t token = p->k.token * (int64_t)sizeof(elem);
    const int64_t ahead = round_up(AHEAD / (token > 0 && token < AHEAD ? token : AHEAD), t->kb);
    /* Heads inside, if a token's heads lie closer together than a head's tokens. */
    const bool by_token = p->k.head < p->k.token;
    for (int64_t outer = 0; outer < (by_token ? 1 : heads); outer++)
        for (int64_t j = t->lo / t->kb * t->kb; j < t->hi; j += t->kb) {
            bool none;
            const bool whole = step_whole(t, j, &none);
            const int64_t end = none ? 0 : by_token ? heads : outer + 1;
            for (int64_t n = by_token ? 0 : outer; n < end; n++) {
                const struct head h = head_at(t, scratch, n, head0 + n);
                if (!whole) {
                    part_step(t, &h, j);
                    continue;
                }
                any_step(t, &h,
                         (const elem *)attn_view_at(&p->k, &p->key, t->u->b, j, h.head_kv,
                                                    sizeof(elem)),
                         (const elem *)attn_view_at(&p->v, &p->key, t->u->b, j, h.head_kv,
                                                    sizeof(elem)),
                         j + ahead + t->kb <= t->hi ? ahead : 0);
            }
        }
}

/* out and lse of one row from its sums; `o` is changed. */
static void finish_row(const struct item *t, int64_t head_kv, int64_t r, real m, real l, real *o)
{
    const struct row row = row_at(t, head_kv, r);
    l = vec_first(final_sum(t->u->p, vec_set(m), vec_set(l)));
    const vec by = vec_set(1 / l);
    const vmask none = vec_le(vec_set(l), vec_zero());
    vec bad = vec_zero();
    for (int64_t c = 0; c < t->value_room; c += VEC_N) {
        const vec x = vec_select(none, vec_zero(), vec_fma(vec_load(o + c), by, vec_zero()));
        bad = vec_fma(x, vec_zero(), bad);
        vec_store(o + c, x);
    }
    const bool finite = vmask_all(vec_le(bad, vec_zero()));
    store_row(out_row(&row), o, t->dv);
    store_lse(&row, m, l);
    if (!finite && l > 0 && l < (real)INFINITY)
        careful_row(&row, o);
}

static void item_init(struct item *t, const struct attn_unit *u)
{
    t->u = u;
    item_shape(t, u->p, u->nq * u->p->group);
    t->scale = score_exponent(u->p);
    for (int64_t r = 0; r < t->groups * t->rb; r++)
        t->see[r] = attn_band_row(u->band, query_of(t, r));
}

/* Partial results of a chunk: for each head and row m, l and o, each `stride` numbers. */
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
                finish_row(&t, h.head_kv, r, h.m[lane], l, o);
                continue;
            }
            real *to = partial_at(&t, partial, n, h.head_kv, r);
            to[0] = h.m[lane];
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
        real m = -INFINITY, l = 0;
        for (int64_t i = 0; i < chunks; i++) {
            const real *part = partial_at(&t, partial, i, head_kv, r);
            m = part[0] > m ? part[0] : m;
        }
        memset(row, 0, (size_t)t.value_room * sizeof *row);
        for (int64_t i = 0; i < chunks; i++) {
            const real *part = partial_at(&t, partial, i, head_kv, r);
            if (part[1] == 0)
                continue; /* saw nothing */
            const vec by = exponential(&t, vec_set(part[0]), vec_set(m));
            l += part[1] * vec_first(by);
            for (int64_t c = 0; c < t.value_room; c += VEC_N)
                vec_store(row + c, vec_fma(vec_load(part + 2 + c), by, vec_load(row + c)));
        }
        finish_row(&t, head_kv, r, m, l, row);
    }
}

const struct attn_cpu_decode KERNEL(attn_decode) = {
    .scratch_bytes = scratch_bytes,
    .partial_bytes = partial_bytes,
    .chunk = chunk,
    .merge = merge,
};
