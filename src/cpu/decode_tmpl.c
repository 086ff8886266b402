/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Forward kernel for few rows (see most_rows()), built once per instruction set and element type.
 * What counts here is to read keys and values once, in the order of memory, for all rows that share
 * them. They are used where they lie; only those of narrow heads are copied, run by run.
 *
 * A long sequence is cut into chunks of keys, by its length alone, and merge() adds what they gave;
 * the last rows of one in the tiled form take all keys at once. Either is walked in runs of keys
 * (decode_run.h).
 */
#include "cpu/decode_run.h"

enum { LEAST_ROWS = FEW * 3 / 8 }; /* most_rows(), at least */

/* Whether keys and values of a head, or of all heads, are so many that blocks wait for memory. */
static bool head_is_long(const struct attn_problem *p, int64_t nk)
{
    return are_more(p, nk, 8 * FAR_BYTES);
}

static bool heads_are_long(const struct attn_problem *p, int64_t nk)
{
    return are_more(p, nk, 32 * FAR_BYTES / max64(p->heads_kv, 1));
}

/* most_rows() where the fewest lanes of a block are one vector's: it loads each number of a key for
 * a single product, and one of a few more rows is twice as wide, so some more rows had better be
 * here where heads are wide, or turned; where it packs keys for its rows, the more rows the more
 * keys. */
static int64_t rows_of_one(const struct attn_problem *p, int64_t nk, bool turns)
{
    const bool far = are_more(p, nk, 4 * FAR_BYTES);
    const int64_t d = p->head_dim, whole = round_up(d, VEC_N);
    if (turns && REAL_BITS == 64)
        return nk < 400 ? WIDE_ROWS : ROWS;
    if (turns)
        return nk >= 2 * MANY_KEYS ? WIDE_ROWS : FEW * 5 / 4;
    if (d >= 4 * VEC_N && REAL_BITS == 64)
        return far ? 2 * FEW : d >= 24 * VEC_N ? ROWS : FEW * 7 / 4;
    if (d >= 4 * VEC_N)
        return WIDE_ROWS - FEW / 8;
    if (d > 2 * VEC_N && REAL_BITS == 64)
        return far ? WIDE_ROWS : FEW * 6 / 8;
    if (d < VEC_N && p->head_dim_v < MR)
        return (REAL_BITS == 64 ? 8 + nk / 16 : 5 + nk / 22) * FEW / 16;
    if (d < VEC_N && REAL_BITS == 32 && nk < MANY_KEYS)
        return LEAST_ROWS;
    if (d >= 32 && (far || 6 * whole <= 7 * d))
        return FEW * 6 / 8;
    return nk >= 8 * MANY_KEYS ? FEW * 5 / 8 : FEW / 2; /* threads share so many only here */
}

/* The same where they are several vectors', and for types that are always packed. */
static int64_t rows_of_several(const struct attn_problem *p, int64_t nk, bool turns)
{
    const bool same_type = sizeof(elem) == sizeof(real), far = are_more(p, nk, 4 * FAR_BYTES);
    const int64_t d = p->head_dim;
    if (turns)
        return same_type && d < MR ? MORE_ROWS : FEW;
    if (d >= 4 * VEC_N && REAL_BITS == 64 && head_is_long(p, nk))
        return d < 128 ? MORE_ROWS : 2 * FEW;
    if (d >= 4 * VEC_N && same_type && heads_are_long(p, nk))
        return REAL_BITS == 64 ? 2 * FEW : FEW * 5 / 4;
    if (d >= 4 * VEC_N)
        return same_type && !far ? FEW * 6 / 8 : FEW;
    return REAL_BITS == 32 && d < VEC_N && nk < 64 ? LEAST_ROWS : FEW * 5 / 8;
}

/* The same beside blocks that multiply matrices, which only have to pack for it. */
static int64_t rows_beside_matrices(const struct attn_problem *p, int64_t nk)
{
    if (nk >= MANY_KEYS && max64(p->head_dim, p->head_dim_v) <= ALWAYS_NARROW)
        return FEW;
    return nk <= 16 ? FEW * 6 / 8 : FEW / 2;
}

/*
 * Up to how many rows are better here than in the tiled form, whose blocks compute no fewer than
 * the lanes of HALF vectors: sums of products, or turning, weigh more where heads are small, and
 * what each row takes by itself where keys are few, too. Many keys of narrow heads had better be
 * turned than packed, which the tiled form does if type or width ask for it. More rows had better
 * be here where keys are so many that they come from memory: here they are read in its order, of
 * all heads at once. What else makes the tiled form pack is where keys lie and what hides them, on
 * which no result may depend.
 */
static int64_t most_rows(const struct attn_problem *p, int64_t nk)
{
    if (BESIDE_MATRIX)
        return rows_beside_matrices(p, nk);
    const bool same_type = sizeof(elem) == sizeof(real), packs = !same_type || p->head_dim_v < MR;
    const bool turns = packs && nk >= MANY_KEYS &&
                       is_narrow(p, FEW * 5 / 8 + 1, same_type ? nk : SOME_KEYS - 1);
    return same_type && LANES == VEC_N ? rows_of_one(p, nk, turns) : rows_of_several(p, nk, turns);
}

/* So few keys are not worth turning queries and results around for, however many rows there are;
 * where the fewest lanes of a block are several vectors' they are. */
enum { FEW_KEYS = LANES == VEC_N ? 4 : 0 };

/* Whether they are better here, a few more than those, because blocks would have to pack a single
 * tile of keys for them: a causal edge or that of a window lies in it. Measured with AVX2 only. */
static bool gains_by_edge(const struct attn_problem *p, int64_t b, int64_t rows, int64_t nk)
{
    enum { MOST = REAL_BITS == 64 ? FEW * 5 / 4 : FEW * 7 / 8 };
    const bool same_type = sizeof(elem) == sizeof(real), wide = p->head_dim >= 8 * VEC_N;
    const int64_t bytes = nk * (int64_t)sizeof(real); /* of a column */
    if (BESIDE_MATRIX || LANES == VEC_N || !same_type || !wide || rows > MOST || bytes < 256 ||
        nk > ATTN_TILE_KEYS)
        return false;
    const struct attn_band band = attn_band_at(p, b);
    const struct attn_range seeing = attn_band_rows(band, attn_axis_len(&p->query, b));
    return !attn_band_whole(band, seeing.lo, seeing.hi, 0, nk);
}

static bool takes(const struct attn_problem *p, int64_t b, int64_t rows)
{
    const int64_t nk = attn_axis_len(&p->key, b);
    const bool few_keys = nk <= FEW_KEYS && p->head_dim >= 2 * VEC_N;
    return few_keys || rows <= LEAST_ROWS || rows <= most_rows(p, nk) ||
           gains_by_edge(p, b, rows, nk);
}

/* Blocks compute the lanes of HALF or of all vectors, however few rows are left for the last one:
 * a few past either had better be here, more of them where heads are wide or keys many, but not too
 * many, as both read them, and none where that takes longer than to compute idle lanes. */
static int64_t rest_rows(const struct attn_problem *p, int64_t rows, int64_t nk)
{
    if (BESIDE_MATRIX) /* whose lanes cost little once keys are packed */
        return 0;
    const bool same_type = sizeof(elem) == sizeof(real), many = nk >= MANY_KEYS;
    const bool wide = p->head_dim >= (same_type ? 2 : 4) * VEC_N;
    const bool widest = same_type && p->head_dim >= 4 * VEC_N;
    const bool far = are_more(p, nk, 4 * FAR_BYTES);
    const bool once = same_type && LANES > VEC_N && (head_is_long(p, nk) || heads_are_long(p, nk));
    const bool more = same_type && LANES == VEC_N && p->head_dim > VEC_N;
    const int64_t past = rows % BQ, past_half = past - LANES;
    const bool longer = more && REAL_BITS == 64 && p->head_dim > 8 * VEC_N;
    const int64_t some = longer ? 0 : !more ? 1 : widest ? 3 : 2;
    if (past_half > 0)
        return (wide || many) && !once && past_half <= FEW * some / 8 ? past_half : 0;
    const int64_t most = widest && !far                 ? FEW * 3 / 4
                         : wide || (many && same_type)  ? FEW * (far ? 3 : 4) / 8
                         : many || p->head_dim >= VEC_N ? FEW / 4
                                                        : FEW / 8;
    return past < rows && past <= most ? past : 0;
}

static int64_t scratch_bytes(const struct attn_problem *p, int64_t rows, int64_t heads)
{
    struct item t;
    item_shape(&t, p, min64(rows, ROWS), INT64_MAX);
    return round_up((heads * head_reals(&t) + t.value_room) * (int64_t)sizeof(real), 64);
}

/* ---- A chunk --------------------------------------------------------------------------------- */

/* What the rows see of a run, by the band and the key mask. */
static enum sight look_at(const struct item *t, const struct run *run)
{
    const struct attn_unit *u = t->u;
    int64_t kept = run->n;
    for (int64_t i = 0; u->key_mask && i < run->n; i++)
        kept -= u->key_mask[run->j + i] == 0;
    if (kept == 0)
        return SEE_NONE;
    return kept == run->n && attn_band_whole(u->seq.band, t->queries.lo, t->queries.hi, run->j,
                                             run->j + run->n)
               ? SEE_ALL
               : SEE_SOME;
}

/* Rows of `width` numbers of heads head0 .. head0 + heads - 1. */
static void rows_init(struct rows *rows, const struct item *t, const struct attn_view *v,
                      int64_t width, int64_t head0, int64_t heads)
{
    const struct attn_axis *axis = &t->u->p->key;
    const int64_t size = (int64_t)sizeof(elem);
    const bool paged = axis->table != NULL;
    rows->view = v;
    rows->first = paged ? NULL : (const elem *)attn_view_at(v, axis, t->u->b, 0, head0, size);
    rows->width = width;
    rows->step = paged ? 0 : v->token;
    rows->one = v->head == width && v->token == heads * width;
    rows->apart = rows->one ? width : v->token;
    rows->before = rows->behind = 0;
}

/* Finds those of head head0 + n in a run, and which to ask memory for: those `ahead` keys further
 * on, or, where the rows of all `heads` heads are one array, the n-th share of theirs, in the order
 * of memory; none past the chunk. */
static void find_rows(const struct item *t, const struct run *run, int64_t ahead, int64_t head0,
                      int64_t n, struct rows *rows)
{
    const struct attn_view *v = rows->view;
    const int64_t width = rows->width;
    const int64_t end = t->narrow ? round_up(run->n, VEC_N) : round_up(run->n, MOST_KB);
    if (rows->first) {
        const elem *row = rows->first + run->j * rows->step + n * v->head;
        for (int64_t i = 0; i < run->n; i++, row += rows->step)
            rows->at[i] = row;
    } else {
        for (int64_t i = 0; i < run->n; i++)
            rows->at[i] = (const elem *)attn_view_at(v, &t->u->p->key, t->u->b, run->j + i,
                                                     head0 + n, sizeof(elem));
    }
    for (int64_t i = run->n; i < end; i++)
        rows->at[i] = rows->at[run->n - 1];
    if (t->narrow && v->head == width) {
        rows->before = (head0 + n) * width;
        rows->behind = (t->u->p->heads_kv - 1 - head0 - n) * width;
    }
    rows->next = NULL;
    if (ahead > 0 && rows->first && run->j + ahead + run->n <= t->hi)
        rows->next = rows->first + (run->j + ahead) * rows->step +
                     n * (rows->one ? run->n * width : v->head);
}

/* Keys of a run, where a token has so many bytes of them, in all heads that are walked through
 * together. */
static int64_t run_keys(const struct item *t, int64_t token)
{
    /* Bytes of keys in a run, of all its heads and at least of one. */
    enum { NEAR = 16000, LEAST = 16384, LEAST_ASKED = 4096 };
    enum { APART = 2048, SPREAD = 3 << 17 }; /* bytes from token to token, and of all keys so */
    const bool asks = t->asks != ATTN_ASKS_NOTHING;
    const int64_t most = t->narrow ? turned_keys(t) : RUN, key = t->d * (int64_t)sizeof(elem);
    /* Short where memory is asked for beside them, or where one row reads again what few others
     * have read: products of more rows need not wait for the second cache, unless many keys lie
     * apart and so fall out of it into a slow third one. */
    const bool one = t->filled % 2 == 1 && t->rows > 1 && t->rows < 2 * MOST_RB;
    const double apart = (double)t->u->p->k.token * sizeof(elem);
    const bool again = t->u->slow_third && t->rows > MOST_RB && apart >= APART &&
                       apart * (double)t->u->nk >= SPREAD;
    if (!asks && (t->narrow || !(one || again)))
        return most;
    const int64_t some = 1 + NEAR / token;
    const int64_t least = asks ? LEAST_ASKED / key : max64(LEAST / key, 16);
    return min64(most, round_up(max64(some, least), VEC_N));
}

/* Of n keys from j on those that make a run: where the band hides some keys from some rows, those
 * that all rows see have runs of their own, in which nothing asks what is hidden. */
static int64_t cut_run(const struct item *t, int64_t j, int64_t n)
{
    const int64_t first = attn_band_row(t->u->seq.band, t->queries.hi - 1).lo - j;
    const int64_t end = attn_band_row(t->u->seq.band, t->queries.lo).hi - j;
    if (first > 0)
        return min64(n, round_up(first, VEC_N));
    return end < n && end >= 2 * VEC_N ? end / VEC_N * VEC_N : n;
}

static void walk(const struct item *t, real *scratch, int64_t head0, int64_t heads)
{
    enum { AHEAD = 8192 }; /* bytes of keys to be on their way */
    const struct attn_problem *p = t->u->p;
    /* Heads inside, if a token's heads lie closer together than a head's tokens. */
    const bool by_token = p->k.head < p->k.token;
    const int64_t token = (by_token ? heads : 1) * t->d * (int64_t)sizeof(elem);
    const int64_t keys = run_keys(t, token);
    const int64_t ahead =
        t->asks == ATTN_ASKS_NOTHING ? 0 : round_up(1 + AHEAD / token, keys);
    const bool whole = !t->u->key_mask && attn_band_whole(t->u->seq.band, t->queries.lo,
                                                          t->queries.hi, t->lo, t->hi);
    struct run run;
    struct seen seen;
    rows_init(&run.k, t, &p->k, t->d, head0, heads);
    rows_init(&run.v, t, &p->v, t->dv, head0, heads);
    for (int64_t outer = 0; outer < (by_token ? 1 : heads); outer++)
        for (int64_t j = t->lo; j < t->hi; j += run.n) {
            run.j = j;
            run.n = min64(keys, t->hi - j);
            if (!whole)
                run.n = cut_run(t, j, run.n);
            const enum sight sight = whole ? SEE_ALL : look_at(t, &run);
            const bool hides = sight == SEE_SOME || t->masked;
            const int64_t end = sight == SEE_NONE ? 0 : by_token ? heads : outer + 1;
            for (int64_t n = by_token ? 0 : outer; n < end; n++) {
                const struct head h = head_at(t, scratch, n, head0 + n);
                if (hides && !see_run(t, h.head_kv, &run, &seen))
                    continue;
                find_rows(t, &run, ahead, head0, n, &run.k);
                find_rows(t, &run, ahead, head0, n, &run.v);
                if (t->narrow)
                    narrow_run(t, &h, &run, hides ? &seen : NULL);
                else
                    head_run(t, &h, &run, hides ? &seen : NULL);
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
    const vec by = vec_set(factor_of_sums(&x, l, o, t->dv, 1));
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

/* Reading in order pays where one group of rows reads each key once, of no more than a KB, and a
 * vector is a line; numbers of 16 bits have more to do for each line, and had better be asked for
 * in the first cache, others in the second. */
static enum attn_asks asks_of(const struct item *t)
{
    if (t->u->asks != ATTN_ASKS_IN_ORDER)
        return t->u->asks;
    if (sizeof(elem) == 2)
        return ATTN_ASKS_FIRST;
    const bool once = t->rows >= MOST_RB && t->rows < 2 * MOST_RB && !t->narrow;
    const bool fits = t->d <= 1024 / (int64_t)sizeof(elem) && VEC_N * sizeof(real) == LINE;
    return once && fits ? ATTN_ASKS_IN_ORDER : ATTN_ASKS_SECOND;
}

/* Some rows of the unit, of `all` that have its form. */
static void item_init(struct item *t, const struct attn_unit *u, struct attn_range rows,
                      struct attn_range all)
{
    t->u = u;
    item_shape(t, u->p, all.hi - all.lo, u->nk);
    set_rows(t, rows.hi - rows.lo);
    const int64_t group = u->p->group;
    int64_t query = attn_quotient(rows.lo, group), head = rows.lo - query * group;
    for (int64_t r = 0; r < t->rows; r++) {
        t->query[r] = query;
        t->head[r] = head;
        t->see[r] = attn_band_row(u->seq.band, query);
        if (++head == group) {
            head = 0;
            query++;
        }
    }
    for (int64_t r = t->rows; r < t->filled; r++) {
        t->query[r] = t->query[r - 1];
        t->head[r] = t->head[r - 1];
        t->see[r] = t->see[r - 1];
    }
    t->queries = (struct attn_range){attn_quotient(all.lo, group), u->seeing.hi};
    make_groups(t);
    t->asks = asks_of(t);
    t->scale = score_exponent(u->p);
    t->span = score_span(u->p);
    t->shaped = shapes_scores(u->p);
    t->masked = hides_keys(u->p);
    t->plain = !t->shaped && !u->p->dropout.on;
    t->bias = attn_bias_of(&u->seq);
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

/* The sum of n numbers, a power of two: in four chains, as each addition waits for the last. */
static real sum_of(const real *x, int64_t n)
{
    real a = 0, b = 0, c = 0, d = 0;
    if (n < 4)
        return n == 1 ? x[0] : x[0] + x[1];
    for (; n > 0; n -= 4, x += 4) {
        a += x[0];
        b += x[1];
        c += x[2];
        d += x[3];
    }
    return (a + c) + (b + d);
}

/* Row r of a group, the index-th, when its keys are done: to out and lse, or to `partial`. */
static void close_row(const struct item *t, const struct head *h, int64_t index, int64_t r,
                      real *partial)
{
    const struct group *const g = &t->group[index];
    const int64_t lane = index * VEC_N + r * g->kb, row = g->first + r;
    real *o = h->o + row * t->sum_room;
    if (t->narrow)
        add_lanes(o, t->dv);
    const real l = sum_of(h->l + lane, g->kb);
    if (!partial) {
        finish_row(t, h->head_kv, row, h->r[lane], l, o);
        return;
    }
    partial[0] = h->r[lane];
    partial[1] = l;
    memcpy(partial + 2, o, (size_t)t->value_room * sizeof(real));
}

static void begin_heads(const struct item *t, int64_t head0, int64_t heads, void *scratch)
{
    for (int64_t i = 0; i < heads; i++) {
        const struct head h = head_at(t, scratch, i, head0 + i);
        head_init(t, &h);
    }
}

/* Some keys for heads head0 .. head0 + heads - 1. */
static void do_keys(struct item *t, struct attn_range keys, int64_t head0, int64_t heads,
                    void *scratch)
{
    const struct attn_range see = attn_band_any(t->u->seq.band, t->queries.lo, t->queries.hi);
    t->lo = keys.lo > see.lo ? keys.lo : see.lo;
    t->hi = min64(keys.hi, see.hi);
    if (t->lo < t->hi)
        walk(t, scratch, head0, heads);
}

/* What the heads have: to chunk `chunk` of `partial`, or, if that is null, to out and lse. */
static void close_heads(const struct item *t, int64_t head0, int64_t heads, void *scratch,
                        int64_t chunk, char *partial)
{
    for (int64_t i = 0; i < heads; i++) {
        const struct head h = head_at(t, scratch, i, head0 + i);
        for (int64_t g = 0; g < t->groups; g++)
            for (int64_t r = 0; r < min64(t->group[g].rb, t->rows - t->group[g].first); r++)
                close_row(t, &h, g, r,
                          partial ? partial_at(t, partial, chunk, h.head_kv, t->group[g].first + r)
                                  : NULL);
    }
}

/* All rows of the unit's sequence that see a key. */
static struct attn_range all_rows(const struct attn_unit *u)
{
    return (struct attn_range){u->seeing.lo * u->p->group, u->seeing.hi * u->p->group};
}

static void chunk(const struct attn_unit *u, struct attn_range rows, int64_t n, int64_t head0,
                  int64_t heads, void *scratch, char *partial)
{
    const struct attn_range keys = attn_chunk(u->p, u->nk, n);
    struct item t;
    item_init(&t, u, rows, all_rows(u));
    begin_heads(&t, head0, heads, scratch);
    do_keys(&t, keys, head0, heads, scratch);
    close_heads(&t, head0, heads, scratch, n, partial);
}

/* Where those who take keys part by part come to a stop at `key`, if steps start at `first`: behind
 * a whole one, as lanes of sums, and so bits, depend on what is a step. */
static int64_t last_step(int64_t first, int64_t key)
{
    return key > first ? first + (key - first) / VEC_N * VEC_N : key;
}

static void rest(const struct attn_unit *u, struct attn_range keys, void *scratch)
{
    const struct attn_range rows = {attn_unit_tiled(u).hi, u->rows.hi};
    struct item t;
    item_init(&t, u, rows, rows);
    const int64_t first = attn_band_any(u->seq.band, t.queries.lo, t.queries.hi).lo;
    const struct attn_range part = {last_step(first, keys.lo),
                                    keys.hi == u->nk ? u->nk : last_step(first, keys.hi)};
    if (keys.lo == 0)
        begin_heads(&t, u->head_kv, 1, scratch);
    do_keys(&t, part, u->head_kv, 1, scratch);
    if (keys.hi == u->nk)
        close_heads(&t, u->head_kv, 1, scratch, 0, NULL);
}

/* Adds the chunks of each row in their order, those in which the rows' bands are. One of scores of
 * -inf alone has the weight 0, under which a NaN shows. */
static void merge(const struct attn_unit *u, int64_t chunks, void *scratch, char *partial)
{
    struct item t;
    item_init(&t, u, u->rows, all_rows(u));
    const struct attn_range see = attn_band_any(u->seq.band, t.queries.lo, t.queries.hi);
    const int64_t keys = attn_chunk_keys(u->p);
    const int64_t first = min64(see.lo / keys, chunks - 1);
    const int64_t end = min64(chunks, round_up(see.hi, keys) / keys);
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
    .item_rows = ROWS,
    .takes = takes,
    .scratch_bytes = scratch_bytes,
    .partial_bytes = partial_bytes,
    .chunk = chunk,
    .merge = merge,
    .rest_rows = rest_rows,
    .rest = rest,
};
