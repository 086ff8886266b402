/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Forward kernel: tiled online softmax, built once per instruction set and element type.
 *
 * Queries lie in the lanes. A block of BQ = NV * VEC_N rows is transposed once to qt[d][BQ]; scores
 * and probabilities are [keys][BQ], the output accumulator o[dv][BQ], so the softmax has no
 * horizontal operation and both products are the same register block: MR broadcast elements of a
 * packed operand by NV vectors.
 *
 * The softmax works in powers of two, p = 2^((s - m) * scale * log2(e)), with a reference m per row
 * that is not always the maximum: it is the maximum of the first tile in which the row sees a key,
 * and is raised only if the probabilities of MR keys sum to more than RAISE_ABOVE. Each row decides
 * that for itself, and a row that keeps its reference is multiplied by 1, so that no row's bits
 * depend on another's.
 *
 * What a row does not see gets the score -inf, hence the probability 0. A value it does not see
 * may be NaN, and 0 * NaN is NaN: packing notes the tiles that hold such values, and where a row of
 * the block does not see all of such a tile the product takes the careful form.
 */
#include "cpu/tmpl.h"

enum {
    BQ = NV * VEC_N,     /* rows in a block */
    BK = ATTN_TILE_KEYS  /* keys in a tile */
};

/* ---- Packing ---------------------------------------------------------------------------------
 * A tile holds its keys as rows of words, [room][d / PAIR], then its values in panels of MR
 * columns, [dv / MR][room / PAIR][MR] words. Rows up to the next multiple of MR are 0, and so are
 * keys and values that the mask hides. */

enum { CHUNK = (int)MR > VEC_N ? (int)MR : VEC_N }; /* value columns packed at a time */

/* Words from one panel to the next; the gap keeps panels off the same cache sets. */
static int64_t panel_words(int64_t room) { return room / PAIR * MR + 64 / (int64_t)sizeof(real); }

static int64_t tile_bytes(int64_t d, int64_t dv, int64_t room)
{
    const int64_t reals = room * words(d) + round_up(dv, MR) / MR * panel_words(room);
    return round_up(reals * (int64_t)sizeof(real), 64);
}

static real *tile_keys(const struct attn_unit *u, int64_t t)
{
    const int64_t bytes = tile_bytes(u->p->head_dim, u->p->head_dim_v, u->room);
    return (real *)(void *)(u->packed + t * bytes);
}

static real *tile_values(const struct attn_unit *u, int64_t t)
{
    return tile_keys(u, t) + u->room * words(u->p->head_dim);
}

/* A key; null: zeros. */
INLINE void pack_key(real *to, const elem *row, int64_t d)
{
    int64_t c = 0;
    for (; row && (c + VEC_N) * PAIR <= d; c += VEC_N)
        vec_store(to + c, word_load(row + c * PAIR));
    for (; c * PAIR < d; c++)
        to[c] = row ? word_get(row + c * PAIR, d - c * PAIR) : 0;
}

/* PAIR values, each null for zeros, to one row of all panels, which lie `panel` words apart.
 * Returns bad, NaN if one is not finite. */
INLINE vec pack_values(real *to, int64_t panel, const elem *const row[PAIR], int64_t dv, vec bad)
{
    for (int64_t c = 0; c < dv; c += CHUNK) {
        elem part[PAIR][CHUNK];
        const elem *from[PAIR];
        for (int i = 0; i < PAIR; i++) {
            const int64_t n = row[i] ? min64(CHUNK, dv - c) : 0;
            from[i] = n == CHUNK ? row[i] + c : part[i];
            if (n < CHUNK)
                memset(part[i], 0, sizeof part[i]);
            if (n > 0 && n < CHUNK)
                memcpy(part[i], row[i] + c, (size_t)n * sizeof(elem));
        }
        real word[CHUNK];
        for (int n = 0; n < CHUNK; n += VEC_N) {
            const vec w = word_zip(from);
            bad = word_spoil(w, bad);
            vec_store(word + n, w);
            for (int i = 0; i < PAIR; i++)
                from[i] += VEC_N;
        }
        for (int i = 0; i < CHUNK && c + i < dv; i += MR, to += panel)
            memcpy(to, word + i, MR * sizeof(real));
    }
    return bad;
}

/* Asks for a row that will be read a little later: rows lie far apart, which hardware does not
 * foresee. */
INLINE void fetch_row(const elem *row, int64_t n)
{
    for (int64_t i = 0; i < n; i += 64 / (int64_t)sizeof(elem))
        __builtin_prefetch(row + i);
}

/* How far packing asks ahead: more waits for the cache's own queue, less for memory. */
enum { FETCH_BYTES = 2048 };

static uint8_t pack(const struct attn_unit *u, int64_t t)
{
    const struct attn_problem *p = u->p;
    const int64_t d = p->head_dim, dv = p->head_dim_v;
    const int64_t ahead = 1 + FETCH_BYTES / ((d + dv) * (int64_t)sizeof(elem)); /* rows */
    const int64_t k0 = t * BK, n = min64(BK, u->nk - k0);
    real *keys = tile_keys(u, t), *values = tile_values(u, t);
    const elem *k = (const elem *)attn_view_at(&p->k, &p->key, u->b, k0, u->head_kv, sizeof(elem));
    const elem *v = (const elem *)attn_view_at(&p->v, &p->key, u->b, k0, u->head_kv, sizeof(elem));
    vec bad = vec_zero();
    int64_t hidden = 0;

    for (int64_t j = 0; j < round_up(n, MR); j += PAIR) {
        const elem *value[PAIR];
        for (int i = 0; i < PAIR; i++) {
            const bool given = j + i < n && (!u->key_mask || u->key_mask[k0 + j + i]);
            if (k0 + j + i + ahead < u->nk) {
                fetch_row(k + (j + i + ahead) * p->k.token, d);
                fetch_row(v + (j + i + ahead) * p->v.token, dv);
            }
            hidden += j + i < n && !given;
            value[i] = given ? v + (j + i) * p->v.token : NULL;
            pack_key(keys + (j + i) * words(d), given ? k + (j + i) * p->k.token : NULL, d);
        }
        bad = pack_values(values + j / PAIR * MR, panel_words(u->room), value, dv, bad);
    }
    const bool finite = vmask_all(vec_le(bad, vec_zero()));
    return (uint8_t)((hidden > 0 ? ATTN_TILE_HIDES : 0) | (hidden == n ? ATTN_TILE_HIDDEN : 0) |
                     (finite ? 0 : ATTN_TILE_NONFINITE));
}

/* ---- State of a block of rows ---------------------------------------------------------------- */

struct block {
    const struct attn_unit *u;
    int64_t row0, rows; /* rows row0 .. row0 + rows - 1 of the unit; lanes past them repeat the
                           last row, unseen */
    int64_t d, dv, dv_panels; /* dv rounded up to MR */
    struct exponent scale; /* of the scores, without its sign */
    bool begun;         /* o holds sums */
    real *qt;           /* [d / PAIR][BQ] words, with the sign of the scale */
    real *s;            /* [room][BQ] scores of the tile, where they are not used at once */
    real *p;            /* [room / PAIR][BQ] probabilities of the tile, as words */
    real *o;            /* [dv][BQ] sums of p v */
    real *m;            /* [BQ] references, as scores without scale */
    real *l;            /* [BQ] sums of p; 0: no reference yet */
    real *lo, *hi;      /* [BQ] keys of the tile that each lane sees */
    int64_t query[BQ];  /* of each lane */
    const elem *q[BQ];  /* row of each lane */
    elem *out[BQ];
    struct attn_range see[BQ]; /* keys that each lane sees */
};

static int64_t scratch_bytes(int64_t d, int64_t dv, int64_t room)
{
    const int64_t rows = words(d) + room + room / PAIR + round_up(dv, MR) + 4;
    return round_up(BQ * rows * (int64_t)sizeof(real), 64);
}

static void block_init(struct block *t, const struct attn_unit *u, int64_t row0, void *scratch)
{
    const struct attn_problem *p = u->p;
    t->u = u;
    t->row0 = row0;
    t->rows = min64(BQ, u->nq * p->group - row0);
    t->d = p->head_dim;
    t->dv = p->head_dim_v;
    t->dv_panels = round_up(t->dv, MR);
    t->scale = score_exponent(p);
    t->begun = false;

    real *at = scratch;
    t->qt = at, at += words(t->d) * BQ;
    t->s = at, at += u->room * BQ;
    t->p = at, at += u->room / PAIR * BQ;
    t->m = at, at += BQ;
    t->l = at, at += BQ;
    t->lo = at, at += BQ;
    t->hi = at, at += BQ;
    t->o = at;

    const int64_t h = u->head_kv * p->group;
    const elem *q = (const elem *)attn_view_at(&p->q, &p->query, u->b, 0, h, sizeof(elem));
    elem *out = (elem *)attn_view_at(&p->out, &p->query, u->b, 0, h, sizeof(elem));
    int64_t query = row0 / p->group, head = row0 % p->group;
    for (int64_t lane = 0; lane < BQ; lane++) {
        t->m[lane] = 0;
        t->l[lane] = 0;
        t->query[lane] = query;
        t->q[lane] = q + query * p->q.token + head * p->q.head;
        t->out[lane] = out + query * p->out.token + head * p->out.head;
        t->see[lane] = attn_band_row(u->band, query);
        if (lane + 1 < t->rows && ++head == p->group) {
            head = 0;
            query++;
        }
    }
}

/* Asks for the queries of the block of rows at row0, to the second cache. */
static void fetch_queries(const struct attn_unit *u, int64_t row0)
{
    const struct attn_problem *p = u->p;
    const int64_t rows = min64(BQ, u->nq * p->group - row0), h = u->head_kv * p->group;
    const elem *q = (const elem *)attn_view_at(&p->q, &p->query, u->b, 0, h, sizeof(elem));
    int64_t query = row0 / p->group, head = row0 % p->group;
    for (int64_t r = 0; r < rows; r++) {
        const elem *row = q + query * p->q.token + head * p->q.head;
        for (int64_t c = 0; c < p->head_dim; c += 64 / (int64_t)sizeof(elem))
            __builtin_prefetch(row + c, 0, 2);
        if (++head == p->group) {
            head = 0;
            query++;
        }
    }
}

/* VEC_N queries, from lane `lane` on, to columns of qt. */
static void load_queries(struct block *t, int64_t lane)
{
    const bool negative = t->u->p->scale < 0;
    const elem *const *row = t->q + lane;
    int64_t c = 0;
    vec r[VEC_N];
    for (; (c + VEC_N) * PAIR <= t->d; c += VEC_N) {
        UNROLL for (int i = 0; i < VEC_N; i++)
            r[i] = word_load(row[i] + c * PAIR);
        vec_transpose(r);
        UNROLL for (int i = 0; i < VEC_N; i++)
            vec_store(t->qt + (c + i) * BQ + lane, r[i]);
    }
    for (; c * PAIR < t->d; c++)
        for (int i = 0; i < VEC_N; i++)
            t->qt[c * BQ + lane + i] = word_get(row[i] + c * PAIR, t->d - c * PAIR);
    if (negative)
        for (c = 0; c < words(t->d); c++)
            vec_store(t->qt + c * BQ + lane, word_negate(vec_load(t->qt + c * BQ + lane)));
}

/* ---- Scores ---------------------------------------------------------------------------------- */

/* s[r][v] = k[r] . q[v]: MR keys, rows of n words, by BQ queries. */
INLINE void dot_keys(const struct block *t, vec s[MR][NV], const real *k, int64_t n)
{
    UNROLL for (int r = 0; r < MR; r++)
        UNROLL for (int v = 0; v < NV; v++)
            s[r][v] = vec_zero();
    for (int64_t c = 0; c < n; c++) {
        vec q[NV];
        UNROLL for (int v = 0; v < NV; v++) {
            q[v] = vec_load(t->qt + c * BQ + v * VEC_N);
            vec_keep(&q[v]);
        }
        UNROLL for (int r = 0; r < MR; r++) {
            vec b = vec_set(k[r * n + c]);
            vec_keep(&b);
            UNROLL for (int v = 0; v < NV; v++)
                s[r][v] = vec_mac(b, q[v], s[r][v]);
        }
    }
}

/* Scores of keys j0 .. j1 - 1 of a tile to t->s, for when they are not used at once. */
INLINE void store_scores(struct block *t, const real *keys, int64_t j0, int64_t j1, int64_t n)
{
    for (int64_t j = j0; j < j1; j += MR) {
        vec s[MR][NV];
        dot_keys(t, s, keys + j * n, n);
        UNROLL for (int r = 0; r < MR; r++)
            UNROLL for (int v = 0; v < NV; v++)
                vec_store(t->s + (j + r) * BQ + v * VEC_N, s[r][v]);
    }
}

/* ---- Visibility ------------------------------------------------------------------------------ */

/* The keys of the tile that starts at k0 that each lane sees, as positions in the tile. */
static void see_tile(struct block *t, int64_t k0)
{
    for (int64_t lane = 0; lane < BQ; lane++) {
        const struct attn_range r = t->see[lane];
        t->lo[lane] = (real)min64(r.lo > k0 ? r.lo - k0 : 0, BK);
        t->hi[lane] = (real)min64(r.hi > k0 ? r.hi - k0 : 0, BK);
    }
}

/* Lanes of vector v that see key j of the tile. */
INLINE vmask sees(const struct block *t, int64_t j, int v)
{
    const vec at = vec_set((real)j);
    return vmask_and(vec_le(vec_load(t->lo + v * VEC_N), at),
                     vec_lt(at, vec_load(t->hi + v * VEC_N)));
}

/* -inf to the scores in t->s that a lane does not see, or that the key mask hides. */
static void hide(struct block *t, int64_t k0, int64_t j0, int64_t j1)
{
    const uint8_t *mask = t->u->key_mask;
    const vec nothing = vec_set(-INFINITY);
    for (int64_t j = j0; j < j1; j++) {
        const bool hidden = mask && k0 + j < t->u->nk && !mask[k0 + j];
        for (int v = 0; v < NV; v++) {
            real *s = t->s + j * BQ + v * VEC_N;
            vec_store(s, hidden ? nothing : vec_select(sees(t, j, v), vec_load(s), nothing));
        }
    }
}

/* ---- Softmax --------------------------------------------------------------------------------- */

/* Gives lanes without a reference the largest score of the tile, if they see one above -inf. */
static void first_reference(struct block *t, int64_t j0, int64_t j1)
{
    const vec lowest = vec_set(-INFINITY);
    for (int v = 0; v < NV; v++) {
        vec most = lowest;
        for (int64_t j = j0; j < j1; j++)
            most = vec_max(vec_load(t->s + j * BQ + v * VEC_N), most);
        const vec m = vec_load(t->m + v * VEC_N), l = vec_load(t->l + v * VEC_N);
        const vmask set = vmask_and(vec_le(l, vec_zero()), vec_lt(lowest, most));
        vec_store(t->m + v * VEC_N, vec_select(set, most, m));
    }
}

/* Probabilities of one vector of MR keys, stored from p on; returns their sum. */
INLINE vec exp_keys(real *p, const vec s[MR], struct exponent scale, vec m)
{
    vec e[MR];
    UNROLL for (int r = 0; r < MR; r++)
        e[r] = vec_exp2(vec_sub(s[r], m), scale);
    UNROLL for (int r = 0; r < MR; r += PAIR)
        vec_store(p + r / PAIR * BQ, word_pack(e + r));
    UNROLL for (int half = MR / 2; half > 0; half /= 2)
        UNROLL for (int r = 0; r < half; r++)
            e[r] = vec_add(e[r], e[r + half]);
    return e[0];
}

/* The rare case of push_keys(): raises the references of lanes whose sum of the MR keys from j on
 * is too large, rescales all that was made with the old ones, and does the keys again. Their
 * scores are in t->s. j0 is where the tile starts. */
static NOINLINE void raise_references(struct block *t, int64_t j0, int64_t j)
{
    const vec one = vec_set(1);
    for (int v = 0; v < NV; v++) {
        const int64_t at = v * VEC_N;
        const vec m = vec_load(t->m + at), l = vec_load(t->l + at);
        vec s[MR], most = m;
        for (int r = 0; r < MR; r++) {
            s[r] = vec_load(t->s + (j + r) * BQ + at);
            most = vec_max(s[r], most);
        }
        real *p = t->p + j / PAIR * BQ + at;
        const vmask keep = below_limit(exp_keys(p, s, t->scale, m));
        const vec raised = vec_select(keep, m, most);
        const vec by = vec_select(keep, one, vec_exp2(vec_sub(m, raised), t->scale));
        for (real *old = t->p + j0 / PAIR * BQ + at; old < p; old += BQ)
            vec_store(old, word_times(vec_load(old), by));
        for (int64_t c = 0; t->begun && c < t->dv_panels; c++) {
            real *o = t->o + c * BQ + at;
            vec_store(o, vec_mul(vec_load(o), by));
        }
        const vec sum = exp_keys(p, s, t->scale, raised);
        vec_store(t->m + at, raised);
        vec_store(t->l + at, vec_add(vec_mul(l, by), sum));
    }
}

/* Takes the scores of MR keys into the softmax: probabilities to t->p, sums to t->l. Returns false,
 * with t->l as it was, if a lane's reference has to be raised. */
INLINE bool push_keys(struct block *t, vec s[MR][NV], int64_t j)
{
    vec sum[NV];
    vmask fits;
    UNROLL for (int v = 0; v < NV; v++) {
        vec column[MR];
        UNROLL for (int r = 0; r < MR; r++)
            column[r] = s[r][v];
        sum[v] = exp_keys(t->p + j / PAIR * BQ + v * VEC_N, column, t->scale,
                          vec_load(t->m + v * VEC_N));
        const vmask ok = below_limit(sum[v]);
        fits = v == 0 ? ok : vmask_and(fits, ok);
    }
    if (__builtin_expect(!vmask_all(fits), 0))
        return false;
    UNROLL for (int v = 0; v < NV; v++) {
        real *l = t->l + v * VEC_N;
        vec_store(l, vec_add(vec_load(l), sum[v]));
    }
    return true;
}

/* The softmax of scores that lie in t->s. */
static void push_scores(struct block *t, int64_t j0, int64_t j1)
{
    for (int64_t j = j0; j < j1; j += MR) {
        vec s[MR][NV];
        for (int r = 0; r < MR; r++)
            for (int v = 0; v < NV; v++)
                s[r][v] = vec_load(t->s + (j + r) * BQ + v * VEC_N);
        if (!push_keys(t, s, j))
            raise_references(t, j0, j);
    }
}

/* Scores and softmax in one go, without a mask: the scores never leave the registers. */
INLINE void push_products(struct block *t, const real *keys, int64_t j0, int64_t j1, int64_t n)
{
    for (int64_t j = j0; j < j1; j += MR) {
        vec s[MR][NV];
        dot_keys(t, s, keys + j * n, n);
        if (!push_keys(t, s, j)) {
            store_scores(t, keys, j, j + MR, n);
            raise_references(t, j0, j);
        }
    }
}

/* ---- Output ---------------------------------------------------------------------------------- */

/* Word j of a value column, 0 for the lanes of vector v that do not see it. */
INLINE vec value_seen(const struct block *t, vec b, int64_t j, int v)
{
    vmask seen[PAIR];
    for (int i = 0; i < PAIR; i++)
        seen[i] = sees(t, j * PAIR + i, v);
    return word_seen(b, seen);
}

/* o += p v over keys j0 .. j1 - 1 of the tile. careful: a value that a lane does not see is 0. */
INLINE void mix(struct block *t, const real *values, int64_t j0, int64_t j1, bool careful)
{
    for (int64_t c = 0; c < t->dv_panels; c += MR, values += panel_words(t->u->room)) {
        real *o = t->o + c * BQ;
        vec acc[MR][NV];
        UNROLL for (int r = 0; r < MR; r++)
            UNROLL for (int v = 0; v < NV; v++)
                acc[r][v] = t->begun ? vec_load(o + r * BQ + v * VEC_N) : vec_zero();
        for (int64_t j = j0 / PAIR; j < j1 / PAIR; j++) {
            vec p[NV];
            UNROLL for (int v = 0; v < NV; v++) {
                p[v] = vec_load(t->p + j * BQ + v * VEC_N);
                vec_keep(&p[v]);
            }
            UNROLL for (int r = 0; r < MR; r++) {
                vec b = vec_set(values[j * MR + r]);
                vec_keep(&b);
                UNROLL for (int v = 0; v < NV; v++) {
                    const vec seen = careful ? value_seen(t, b, j, v) : b;
                    acc[r][v] = vec_mac(seen, p[v], acc[r][v]);
                }
            }
        }
        UNROLL for (int r = 0; r < MR; r++)
            UNROLL for (int v = 0; v < NV; v++)
                vec_store(o + r * BQ + v * VEC_N, acc[r][v]);
    }
}

static NOINLINE void mix_whole(struct block *t, const real *values, int64_t j0, int64_t j1)
{
    mix(t, values, j0, j1, false);
}

static NOINLINE void mix_careful(struct block *t, const real *values, int64_t j0, int64_t j1)
{
    mix(t, values, j0, j1, true);
}

/* Keys j0 .. j1 - 1 of tile n, both multiples of MR; `words` is a constant where that is common. */
INLINE void tile(struct block *t, int64_t n, int64_t j0, int64_t j1, int64_t words)
{
    const struct attn_unit *u = t->u;
    const int64_t k0 = n * BK;
    const int64_t i0 = t->query[0], i1 = t->query[BQ - 1] + 1;
    const bool whole = !(u->tile_info[n] & ATTN_TILE_HIDES) &&
                       attn_band_whole(u->band, i0, i1, k0 + j0, k0 + j1);
    bool settled = true; /* every lane has a reference */
    for (int v = 0; v < NV; v++)
        settled = settled && vmask_all(vec_lt(vec_zero(), vec_load(t->l + v * VEC_N)));

    if (whole && settled) {
        push_products(t, tile_keys(u, n), j0, j1, words);
    } else {
        store_scores(t, tile_keys(u, n), j0, j1, words);
        if (!whole) {
            see_tile(t, k0);
            hide(t, k0, j0, j1);
        }
        if (!settled)
            first_reference(t, j0, j1);
        push_scores(t, j0, j1);
    }
    if (!whole && u->tile_info[n] & ATTN_TILE_NONFINITE)
        mix_careful(t, tile_values(u, n), j0, j1);
    else
        mix_whole(t, tile_values(u, n), j0, j1);
    t->begun = true;
}

/* o / l of the VEC_N lanes from `lane` on to rows of out; bad[]: 0, or NaN for a row that is not
 * finite. 0 is added so that a sum of zeros has the same sign whatever stood at places of weight
 * 0. */
static void store_rows(struct block *t, int64_t lane, real *bad)
{
    const vec l = final_sum(t->u->p, vec_load(t->m + lane), vec_load(t->l + lane));
    vec_store(t->l + lane, l);
    const vec by = vec_div(vec_set(1), l);
    const vmask none = vec_le(l, vec_zero());
    const int64_t lanes = min64(VEC_N, t->rows - lane);
    const real *o = t->o + lane;
    vec sum = vec_zero(), r[VEC_N];
    int64_t c = 0;
    for (; c + VEC_N <= t->dv; c += VEC_N) {
        UNROLL for (int i = 0; i < VEC_N; i++) {
            r[i] = vec_fma(vec_load(o + (c + i) * BQ), by, vec_zero());
            r[i] = vec_select(none, vec_zero(), r[i]);
            sum = vec_fma(r[i], vec_zero(), sum);
        }
        vec_transpose(r);
        if (lanes == VEC_N)
            UNROLL for (int i = 0; i < VEC_N; i++)
                elem_store(t->out[lane + i] + c, r[i]);
        else
            for (int i = 0; i < lanes; i++)
                elem_store(t->out[lane + i] + c, r[i]);
    }
    for (; c < t->dv; c++) {
        const vec x = vec_select(none, vec_zero(),
                                 vec_fma(vec_load(o + c * BQ), by, vec_zero()));
        real part[VEC_N];
        vec_store(part, x);
        sum = vec_fma(x, vec_zero(), sum);
        for (int i = 0; i < lanes; i++)
            t->out[lane + i][c] = elem_put(part[i]);
    }
    vec_store(bad, sum);
}

static void finish(struct block *t)
{
    real bad[BQ];
    if (!t->begun)
        memset(t->o, 0, (size_t)(t->dv_panels * BQ) * sizeof *t->o);
    for (int64_t lane = 0; lane < t->rows; lane += VEC_N)
        store_rows(t, lane, bad + lane);
    const int64_t group = t->u->p->group;
    for (int64_t lane = 0; lane < t->rows; lane++) {
        const real m = t->m[lane], l = t->l[lane];
        const struct row row = {t->u, t->u->head_kv, t->query[lane],
                                t->u->head_kv * group + (t->row0 + lane) % group, t->see[lane]};
        store_lse(&row, m, l);
        if (isnan(bad[lane]) && l > 0 && l < (real)INFINITY)
            careful_row(&row, t->o); /* where the sums were */
    }
}

static void rows(const struct attn_unit *u, int64_t row0, void *scratch,
                 void (*need)(void *arg, int64_t t), void *arg)
{
    struct block t;
    block_init(&t, u, row0, scratch);
    const struct attn_range see = attn_band_any(u->band, t.query[0], t.query[BQ - 1] + 1);
    if (see.lo < see.hi) {
        /* The first tile is packed while the queries come; the next block is the one before. */
        if (row0 + BQ >= u->nq * u->p->group)
            fetch_queries(u, row0);
        need(arg, see.lo / BK);
        for (int64_t lane = 0; lane < BQ; lane += VEC_N)
            load_queries(&t, lane);
        if (row0 > 0)
            fetch_queries(u, row0 - BQ);
    }
    for (int64_t n = see.lo / BK; n * BK < see.hi; n++) {
        need(arg, n);
        if (u->tile_info[n] & ATTN_TILE_HIDDEN)
            continue;
        const int64_t k0 = n * BK;
        const int64_t j0 = see.lo > k0 ? (see.lo - k0) / MR * MR : 0;
        const int64_t j1 = round_up(min64(BK, see.hi - k0), MR);
        switch (t.d) { /* constants let the compiler fold the row addresses */
        case 64: tile(&t, n, j0, j1, 64 / PAIR); break;
        case 128: tile(&t, n, j0, j1, 128 / PAIR); break;
        default: tile(&t, n, j0, j1, words(t.d));
        }
    }
    finish(&t);
}

extern const struct attn_cpu_decode KERNEL(attn_decode);

const struct attn_cpu_kernel KERNEL(attn_fwd) = {
    .block_rows = BQ,
    .tile_bytes = tile_bytes,
    .scratch_bytes = scratch_bytes,
    .pack = pack,
    .rows = rows,
    .decode = &KERNEL(attn_decode),
};
