/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A tile of keys against a block of rows, by instructions that multiply matrices, see word.h:
 * scores are keys times queries, sums of values their columns times weights. Rows lie in the lanes
 * as everywhere, so that what comes between the products is the same.
 *
 * A row's keys are taken in steps of STEP, counted from the tile's first, each of them added to the
 * sums by itself: so no sum depends on what else is in the block. Values that are not finite are
 * packed as 0, and the sums of rows that see them marked afterwards. Included in fwd_tmpl.c.
 */

/* ---- Products -------------------------------------------------------------------------------- */

_Static_assert((int)VEC_N == (int)MATRIX && (int)BQ == 2 * MATRIX && (int)STEP == PAIR * MATRIX,
               "a block is two matrices wide, and a row of one has the words of STEP keys");

/* Sums are those of two times MATRIX rows and BQ lanes, or of half as many of either: `rows`, nv,
 * constants. Matrices 0 to 3 hold them: what(i, at) for each, which begins `at` words behind the
 * first. */
#define EACH_SUM(rows, nv, what) \
    do { \
        what(0, 0); \
        if ((rows) > 1) \
            what(1, MATRIX * BQ); \
        if ((nv) == NV) \
            what(2, MATRIX); \
        if ((rows) > 1 && (nv) == NV) \
            what(3, MATRIX * BQ + MATRIX); \
    } while (0)
#define CLEAR_SUM(i, at) matrix_zero(i)
#define LOAD_SUM(i, at) matrix_load(i, p + (at), BQ)
#define STORE_SUM(i, at) matrix_store(i, p + (at), BQ)

INLINE void clear_sums(int rows, int nv) { EACH_SUM(rows, nv, CLEAR_SUM); }
INLINE void load_sums(const real *p, int rows, int nv) { EACH_SUM(rows, nv, LOAD_SUM); }
INLINE void store_sums(real *p, int rows, int nv) { EACH_SUM(rows, nv, STORE_SUM); }

/* Adds MATRIX words of the rows from a on, `step` apart, and of those from `second` on, times
 * b[MATRIX][BQ]. */
INLINE void add_products(const real *a, const real *second, int64_t step, const real *b, int rows,
                         int nv)
{
    matrix_load(4, a, step);
    matrix_load(6, b, BQ);
    matrix_mac(0, 4, 6);
    if (rows > 1) {
        matrix_load(5, second, step);
        matrix_mac(1, 5, 6);
    }
    if (nv < NV)
        return;
    matrix_load(7, b + MATRIX, BQ);
    matrix_mac(2, 4, 7);
    if (rows > 1)
        matrix_mac(3, 5, 7);
}

/* Scores of packed keys j0 .. j1 - 1, n words each, to t->s. */
INLINE void score(struct block *t, const real *keys, int64_t j0, int64_t j1, int64_t n, int nv)
{
    for (int64_t j = j0; j < j1; j += STEP) {
        const real *const first = keys + j * n, *const second = first + MATRIX * n;
        clear_sums(2, nv);
        for (int64_t c = 0; c < n; c += MATRIX)
            add_products(first + c, second + c, n, t->qt + c * BQ, 2, nv);
        store_sums(scores_at(t, j), 2, nv);
    }
}

static void score_keys(struct block *t, const real *keys, int64_t j0, int64_t j1)
{
    score(t, keys, j0, j1, words(t->d), NV);
}

/* Adds the values of keys j0 .. j1 - 1, times their weights, to one or two times MATRIX columns of
 * o. */
INLINE void mix_columns(real *o, const real *values, int64_t panel, const real *p, int64_t j0,
                        int64_t j1, int rows, int nv)
{
    load_sums(o, rows, nv);
    for (int64_t j = j0 / PAIR; j < j1 / PAIR; j += MATRIX)
        add_products(values + j * MATRIX, values + panel + j * MATRIX, MATRIX, p + j * BQ, rows,
                     nv);
    store_sums(o, rows, nv);
}

/* The same of all columns. */
INLINE void mix_keys(struct block *t, const struct place *at, int64_t j0, int64_t j1, int nv)
{
    const real *values = at->packed_values;
    int64_t c = 0;
    for (; c + MATRIX < t->dv; c += 2 * MATRIX, values += 2 * at->panel)
        mix_columns(t->o + c * BQ, values, at->panel, t->p, j0, j1, 2, nv);
    if (c < t->dv)
        mix_columns(t->o + c * BQ, values, at->panel, t->p, j0, j1, 1, nv);
}

/* ---- A tile ---------------------------------------------------------------------------------- */

/* Makes sums NaN of which a lane sees a value that is not finite. */
static NOINLINE void mark_nonfinite(struct block *t, int64_t k0, int64_t j0, int64_t j1)
{
    const struct attn_unit *u = t->u;
    see_tile(t, k0);
    if (t->bias.data)
        see_bias(t, k0, j0, j1);
    for (int64_t j = j0; j < min64(j1, u->nk - k0); j++) {
        if (u->key_mask && !u->key_mask[k0 + j])
            continue;
        const elem *const value = row_of_key(u, &u->p->v, k0 + j);
        for (int64_t c = 0; c < t->dv; c++)
            for (int v = 0; !isfinite(elem_get(value[c])) && v < t->vectors; v++) {
                real *const o = t->o + c * BQ + v * VEC_N;
                vec_store(o, vec_select(sees(t, j, v), vec_set(NAN), vec_load(o)));
            }
    }
}

/* Weights of keys j .. j1 - 1, 0 of those from `end` on, which nobody sees. */
static void weigh(struct block *t, int64_t j0, int64_t j, int64_t j1, int64_t end)
{
    const int64_t seen = min64(j1, round_up(end, MR));
    push_scores(t, j0, j, seen);
    if (seen < j1)
        memset(weights_at(t, seen), 0, (size_t)((j1 - seen) / PAIR * BQ) * sizeof *t->p);
}

/* Keys whose scores are held at a time: they stay in the first cache. Where pieces begin and end
 * does not depend on what the rows of a block see, as references do on what is in a piece. */
enum { PIECE = 2 * STEP };

/* A tile in work: its place, its first key, the keys that every lane sees, and words of a key. */
struct work {
    const struct place *at;
    int64_t k0;
    struct attn_range whole;
    int64_t words;
};

/* Scores of keys j .. end - 1 to t->s, behind those that are there. */
INLINE void add_scores(struct block *t, const struct work *w, int64_t j, int64_t end, int nv)
{
    score(t, w->at->packed_keys, j, end, w->words, nv);
    if (t->shaped)
        shape_scores(t, w->k0, j, end);
    if (j < w->whole.lo)
        hide(t, w->k0, j, min64(end, w->whole.lo));
    if (end > w->whole.hi)
        hide(t, w->k0, max64(j, w->whole.hi), end);
    t->scored = end;
}

/* If a row without a reference is to have the largest of all scores of the tile for one, not only
 * of those from j on that are there, the others are made, too, up to j1. */
static NOINLINE void look_ahead(struct block *t, const struct work *w, int64_t j, int64_t j1)
{
    bool narrow = true;
    for (int v = 0; v < t->vectors; v++) {
        const vmask without = vec_le(sum_of(t, v), vec_zero());
        const vec most = vec_select(without, largest_soon(t, j, v), vec_zero());
        narrow = narrow && vmask_all(are_narrow(t, most));
    }
    if (!narrow)
        add_scores(t, w, t->scored, j1, is_half(t) ? HALF : NV);
}

/* Keys j0 .. j1 - 1 of tile n, both multiples of STEP, which lies at `at`; none of them is seen
 * from `end` on. */
INLINE void tile(struct block *t, int64_t n, const struct place *at, int64_t j0, int64_t j1,
                 int64_t end, int64_t words, int nv)
{
    const struct work w = {at, n * BK, whole_part(t, n, j0, j1), words};
    if (w.whole.hi - w.whole.lo < j1 - j0)
        see_tile(t, w.k0);
    t->scored = j0;
    for (int64_t j = j0; j < j1; j = t->piece) {
        t->piece = min64(j / PIECE * PIECE + PIECE, j1);
        for (int64_t i = j; i < t->piece; i += MR)
            fetch_next(t, i);
        if (t->scored == j) {
            t->first = j;
            add_scores(t, &w, j, t->shaped ? j1 : t->piece, nv);
            if (t->u->p->alibi.data)
                raise_ahead(t, j);
        }
        if (t->scored < j1 && !settled(t))
            look_ahead(t, &w, j, j1);
        weigh(t, j0, j, t->piece, end);
        if (t->u->p->dropout.on)
            drop(t, w.k0, j, t->piece);
    }
    t->first = 0;
    mix_keys(t, at, j0, j1, nv);
    add_sums(t);
    if (t->u->tile_info[n] & ATTN_TILE_NONFINITE)
        mark_nonfinite(t, w.k0, j0, j1);
    t->begun = true;
}

/* The same of any size. */
static void take_keys(struct block *t, int64_t n, int64_t j0, int64_t j1, int64_t end)
{
    const struct place at = place_of(t->u, n);
    if (is_half(t))
        tile(t, n, &at, j0, j1, end, words(t->d), HALF);
    else
        tile(t, n, &at, j0, j1, end, words(t->d), NV);
}
