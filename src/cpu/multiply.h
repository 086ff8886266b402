/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A tile of keys against a block of rows, by products of vectors: scores and weights, then sums of
 * values. Included in fwd_tmpl.c.
 */

/* ---- Scores and weights ---------------------------------------------------------------------- */

/* Whether they are made beside the products of the next keys. In two halves that pays for whole
 * blocks, packed keys and sizes that are constants. */
INLINE bool goes_beside(const struct block *t, const struct place *at)
{
    return EXP2_BESIDE == 3 ? (t->d == 64 || t->d == 128) && !is_half(t) && !at->direct
                            : !WIDE_BLOCKS && in_steps(words(t->d));
}

/* Gives lanes without a reference the largest of MR scores; -inf is none, and shows as a sum that
 * is not a number. */
INLINE void begin_references(struct block *t, vec s[MR][NV], int nv)
{
    UNROLL for (int v = 0; v < nv; v++) {
        const vec r = vec_load(t->r + v * VEC_N), l = sum_of(t, v);
        vec most = s[0][v];
        UNROLL for (int i = 1; i < MR; i++)
            most = vec_max(s[i][v], most);
        set_reference(t, v, vec_select(vec_le(l, vec_zero()), most, r));
    }
}

/* That of MR keys from j on once more, as a reference has to be raised. */
static NOINLINE void push_again(struct block *t, const struct place *at, int64_t j0, int64_t j)
{
    if (!goes_beside(t, at)) { /* else their scores are still there */
        if (is_half(t))
            store_scores(t, at->keys, j, j + MR, at->key_step, words(t->d), HALF);
        else
            store_scores(t, at->keys, j, j + MR, at->key_step, words(t->d), NV);
    }
    push_scores(t, j0, j, j + MR);
}

#if EXP2_BESIDE == 3
/* n columns from c on. */
INLINE void dot_columns(const real *qt, vec s[MR][NV], const real *k, int64_t step, int64_t c,
                        int64_t n, int nv)
{
    UNROLL_BY(1) for (int64_t m = 0; m < n; m++) {
#ifdef VEC_COLUMN
        if (nv == NV) {
            vec_column(s, k + c + m, step, qt + (c + m) * BQ);
            continue;
        }
#endif
        dot_column(qt, s, k, step, c + m, nv);
    }
}

/* Scores of MR keys from j on, `keys`, to t->s, and beside their products the probabilities of the
 * MR keys before, and the sums of these to `sums`. n words a key. Half of the work on each vector
 * goes before some columns and half behind them. Beside the last columns there is none: the branch
 * of take_sums() waits for the last probabilities. */
INLINE void dot_and_weigh(struct block *t, const real *keys, int64_t step, int64_t n,
                          const real *next, int64_t j, real *sums, int nv)
{
    const struct exponent scale = t->scale;
    const real *const before = t->s + (j - MR) * BQ, *const qt = t->qt, *const r = t->r;
    real *const p = t->p + (j - MR) * BQ;
    const int64_t each = n / (MR * nv), line = LINE / (int64_t)sizeof(real);
    vec s[MR][NV], sum[NV];
    clear_products(s, nv);
    UNROLL for (int v = 0; v < nv; v++)
        sum[v] = vec_zero();
    UNROLL_BY(1) for (int i = 0; i < MR; i++)
        UNROLL for (int v = 0; v < nv; v++) {
            const int lane = i * BQ + v * VEC_N;
            const int64_t c = (i * nv + v) * each;
            const int64_t from = n * v / nv / line * line, to = n * (v + 1) / nv / line * line;
            struct exp2_steps e;
            fetch_ahead(next, i * n + from, (int)(to - from));
            exp2_begin(&e, vec_sub(vec_load(before + lane), vec_load(r + v * VEC_N)), scale, false);
            vec_spill(&e.rest);
            vec_spill(&e.power);
            UNROLL_BY(1) for (int64_t m = 0; m < each / 2; m++) {
                dot_columns(qt, s, keys, step, c + 2 * m, 1, nv);
                dot_columns(qt, s, keys, step, c + 2 * m + 1, 1, nv);
            }
            dot_columns(qt, s, keys, step, c + each / 2 * 2, each % 2, nv);
            const vec w = exp2_end(&e);
            vec_store(p + lane, w);
            sum[v] = vec_add(sum[v], w);
        }
    UNROLL for (int v = 0; v < nv; v++)
        vec_store(sums + v * VEC_N, sum[v]);
    dot_columns(qt, s, keys, step, MR * nv * each, n % (MR * nv), nv);
    keep_products(t->s + j * BQ, s, nv);
}
#else
/* The same with a step of each word after a column; at least BESIDE nv words a key. */
INLINE void dot_and_weigh(struct block *t, const real *keys, int64_t step, int64_t n,
                          const real *next, int64_t j, real *sums, int nv)
{
    const struct exponent scale = t->scale;
    const real *const before = t->s + (j - MR) * BQ;
    real *const p = t->p + (j - MR) / PAIR * BQ;
    int64_t c = 0;
    vec s[MR][NV];
    _Static_assert((int)DOT_COLUMNS == 4, "a column for each step");
    clear_products(s, nv);
    UNROLL for (int v = 0; v < nv; v++) {
        const vec r = vec_load(t->r + v * VEC_N);
        vec sum = vec_zero();
        UNROLL_BY(1) for (int i = 0; i < MR; i += PAIR, c += DOT_COLUMNS) {
            struct exp2_steps e[PAIR];
            vec w[PAIR];
            fetch_ahead(next, c * MR, DOT_COLUMNS * MR);
            dot_column(t->qt, s, keys, step, c, nv);
            UNROLL for (int h = 0; h < PAIR; h++) {
                const vec score = vec_load(before + (i + h) * BQ + v * VEC_N);
                exp2_begin(&e[h], vec_sub(score, r), scale, PAIR > 1);
            }
            dot_column(t->qt, s, keys, step, c + 1, nv);
            UNROLL for (int h = 0; h < PAIR; h++)
                exp2_split(&e[h], scale, PAIR > 1);
            dot_column(t->qt, s, keys, step, c + 2, nv);
            UNROLL for (int h = 0; h < PAIR; h++)
                exp2_square(&e[h]);
            dot_column(t->qt, s, keys, step, c + 3, nv);
            UNROLL for (int h = 0; h < PAIR; h++) {
                w[h] = exp2_end(&e[h]);
                sum = vec_add(sum, w[h]);
            }
            vec_store(p + i / PAIR * BQ + v * VEC_N, word_pack(w));
        }
        vec_store(sums + v * VEC_N, sum);
    }
    dot_from(t->qt, s, keys, step, c, n, next, nv);
    keep_products(t->s + j * BQ, s, nv);
}
#endif

/* Adds the sums of the probabilities of MR keys from j on, unless a reference has to be raised. */
INLINE void take_sums(struct block *t, const struct place *at, int64_t j0, int64_t j,
                      const vec sum[NV], int nv)
{
    bool fits = true;
    UNROLL for (int v = 0; v < nv; v++)
        fits &= vmask_all(are_below(sum[v], vec_load(t->limit + v * VEC_N))) != 0;
    if (__builtin_expect(!fits, 0))
        push_again(t, at, j0, j);
    else
        UNROLL for (int v = 0; v < nv; v++)
            vec_store(t->sum + v * VEC_N, vec_add(vec_load(t->sum + v * VEC_N), sum[v]));
}

/* Scores and softmax of keys j .. j1 - 1, which every lane sees, the probabilities of MR keys
 * beside the products of the next ones: scores of these with probabilities of those, then the sums
 * of those, and only then the references of these. step, n: at->key_step and words of a key, which
 * may be constants. */
INLINE void push_beside(struct block *t, const struct place *at, int64_t j0, int64_t j, int64_t j1,
                        int64_t step, int64_t n, int nv)
{
    const int64_t ahead = t->far ? MR * step : 0;
    bool begun = settled(t);
    real sums[BQ];
    vec sum[NV];
    if (j >= j1)
        return;
    fetch_next(t, j);
    store_scores(t, at->keys, j, j + MR, step, n, nv);
    if (!begun)
        first_reference(t, j);
    for (j += MR; j < j1; j += MR) {
        const real *const keys = at->keys + j * step, *next = at->direct ? t->qt : keys + ahead;
        fetch_next(t, j);
        dot_and_weigh(t, keys, step, n, next, j, sums, nv);
        UNROLL for (int v = 0; v < nv; v++)
            sum[v] = vec_load(sums + v * VEC_N);
        take_sums(t, at, j0, j - MR, sum, nv);
        begun = begun || settled(t);
        if (!begun)
            first_reference(t, j);
    }
    UNROLL for (int v = 0; v < nv; v++)
        sum[v] = exp_scores(t, j - MR, v);
    take_sums(t, at, j0, j - MR, sum, nv);
}

/* That for common sizes and for any: functions, so that compilers find registers for each. */
static NOINLINE void push_beside_64(struct block *t, const struct place *at, int64_t j0, int64_t j,
                                    int64_t j1)
{
    push_beside(t, at, j0, j, j1, 64 / PAIR, 64 / PAIR, NV);
}

static NOINLINE void push_beside_128(struct block *t, const struct place *at, int64_t j0,
                                     int64_t j, int64_t j1)
{
    push_beside(t, at, j0, j, j1, 128 / PAIR, 128 / PAIR, NV);
}

static NOINLINE void push_beside_any(struct block *t, const struct place *at, int64_t j0,
                                     int64_t j, int64_t j1)
{
    push_beside(t, at, j0, j, j1, at->key_step, words(t->d), NV);
}

static NOINLINE void push_beside_half(struct block *t, const struct place *at, int64_t j0,
                                      int64_t j, int64_t j1)
{
    push_beside(t, at, j0, j, j1, at->key_step, words(t->d), HALF);
}

/* The same where scores never leave the registers. In wide blocks, where nothing goes beside
 * products, probabilities are made by the steps of the smaller ones, so that bits are the same. */
INLINE void push_products(struct block *t, const struct place *at, int64_t j0, int64_t j,
                          int64_t j1, int64_t step, int64_t n, int nv)
{
    const bool by_steps = EXP2_BESIDE == 3 || WIDE_BLOCKS;
    bool begun = false;
    for (; j < j1; j += MR) {
        const real *const keys = at->keys + j * step;
        vec s[MR][NV], sum[NV];
        fetch_next(t, j);
        dot_keys(t->qt, s, keys, step, n, at->direct ? t->qt : keys + (t->far ? MR * step : 0), nv);
        begun = begun || settled(t);
        if (!begun)
            begin_references(t, s, nv);
        UNROLL for (int v = 0; v < nv; v++) {
            const vec r = vec_load(t->r + v * VEC_N);
            vec p[MR];
            UNROLL for (int i = 0; i < MR; i++)
                p[i] = by_steps && in_steps(n)
                           ? exp2_all_steps(vec_sub(s[i][v], r), t->scale, PAIR > 1)
                           : vec_exp2(vec_sub(s[i][v], r), t->scale, WEIGHT_BITS);
            sum[v] = add_keys(t, j, v, p);
        }
        take_sums(t, at, j0, j, sum, nv);
    }
}

/* The same of keys that every lane sees, and whose scores are products. */
INLINE void push_whole(struct block *t, const struct place *at, int64_t j0,
                       struct attn_range whole, int64_t step, int64_t words, int nv)
{
    const bool beside = goes_beside(t, at);
    if (beside && nv == NV && words == 64 / PAIR && step == words)
        push_beside_64(t, at, j0, whole.lo, whole.hi);
    else if (beside && nv == NV && words == 128 / PAIR && step == words)
        push_beside_128(t, at, j0, whole.lo, whole.hi);
    else if (beside && EXP2_BESIDE == 5 && nv == NV)
        push_beside_any(t, at, j0, whole.lo, whole.hi);
    else if (beside && EXP2_BESIDE == 5)
        push_beside_half(t, at, j0, whole.lo, whole.hi);
    else
        push_products(t, at, j0, whole.lo, whole.hi, step, words, nv);
}

/* Products of packed keys j .. j1 - 1 with `width` vectors from the first-th on, to t->s. Two
 * groups go together where one has too few sums to keep multiply-adds busy. */
INLINE void store_part(struct block *t, const real *keys, int64_t j, int64_t j1, int first,
                       int width)
{
    const int64_t n = words(t->d);
    const real *const qt = t->qt + first * VEC_N;
    real *const to = t->s + first * VEC_N;
    for (; MR * width < 8 && j + 2 * MR <= j1; j += 2 * MR) {
        vec s[2][MR][NV];
        clear_products(s[0], width);
        clear_products(s[1], width);
        UNROLL_BY(1) for (int64_t c = 0; c < n; c++) {
            dot_column(qt, s[0], keys + j * n, n, c, width);
            dot_column(qt, s[1], keys + (j + MR) * n, n, c, width);
        }
        keep_products(to + j * BQ, s[0], width);
        keep_products(to + (j + MR) * BQ, s[1], width);
    }
    store_products(to, qt, keys, j, j1, n, n, keys + (j + (t->far ? MR : 0)) * n, width);
}

/* The same with the vectors that see some of them: all but the first, which has seen those before,
 * then all but two. */
static NOINLINE void store_parts(struct block *t, const real *keys, int64_t j, int64_t j1, int nv)
{
    for (int first = 1; first < nv; first++) {
        const int64_t end = min64(j1, t->ends[first]);
        if (j >= end)
            continue;
        switch (nv - first) {
        case 1: store_part(t, keys, j, end, first, 1); break;
        case 2: store_part(t, keys, j, end, first, NV > 2 ? 2 : 1); break;
        default: store_part(t, keys, j, end, first, NV > 3 ? 3 : 1); break;
        }
        j = end;
    }
}
_Static_assert(NV <= 4, "as many widths");

/* Products of packed keys j .. j1 - 1, of which none is seen from `end` on, to t->s; if only those
 * of `some` vectors are wanted, of those that see keys of a group. */
INLINE void store_seen(struct block *t, const real *keys, int64_t j, int64_t j1, int64_t end,
                       bool some, int64_t n, int nv)
{
    const int64_t last = end <= j1 - MR / 2 ? j1 - MR : j1; /* of which half is seen by nobody */
    const int64_t all = some ? max64(j, min64(last, t->ends[0])) : last;
    store_scores(t, keys, j, all, n, n, nv);
    if (all < last)
        store_parts(t, keys, all, last, nv);
    if (last < j1)
        store_half(t->s, t->qt, keys, last, n, n, nv);
}

/* Scores and softmax of keys that some lane does not see. */
INLINE void push_seen(struct block *t, const real *keys, int64_t k0, int64_t j0, int64_t j,
                      int64_t j1, int64_t end, int64_t n, int nv)
{
    if (j >= j1)
        return;
    store_seen(t, keys, j, j1, end, true, n, nv);
    hide(t, k0, j, j1);
    push_scores(t, j0, j, j1);
}

/* The same of all keys, if their scores are shaped; whole: those that every lane sees. */
INLINE void push_shaped(struct block *t, const real *keys, int64_t k0, int64_t j0, int64_t j1,
                        struct attn_range whole, int64_t end, int64_t n, int nv)
{
    for (int64_t j = j0; j < j1; j += MR)
        fetch_next(t, j);
    store_seen(t, keys, j0, j1, end, false, n, nv);
    shape_scores(t, k0, j0, j1);
    hide(t, k0, j0, whole.lo);
    hide(t, k0, whole.hi, j1);
    t->scored = j1;
    if (t->u->p->alibi.data)
        raise_ahead(t, j0);
    push_scores(t, j0, j0, j1);
}

/* Scores of packed keys j0 .. j1 - 1 to t->s. */
static void score_keys(struct block *t, const real *keys, int64_t j0, int64_t j1)
{
    store_scores(t, keys, j0, j1, words(t->d), words(t->d), NV);
}

/* ---- Sums of values -------------------------------------------------------------------------- */

/* `columns` columns of o from c on, of keys j0 .. j1 - 1 of a tile that is used where it lies.
 * Where fewer are left, those before are computed once more, and stay as they are. */
INLINE void mix_direct(struct block *t, const struct place *at, int64_t c, int64_t j0, int64_t j1,
                       int columns, int nv)
{
    const int64_t again = max64(c + columns - t->dv, 0), first = c - again;
    const size_t bytes = (size_t)(again * BQ) * sizeof(real);
    real kept[MR * BQ], *const o = t->o + first * BQ;
    if (again > 0)
        memcpy(kept, o, bytes);
    mix_panel(t, o, t->begun, NULL, at->values + first, at->value_step, 0, t->p, j0, j1, NULL,
              false, columns, nv);
    if (again > 0)
        memcpy(o, kept, bytes);
}

/* The same where the keys from `packed` on are packed: they are summed as those of one tile. */
INLINE void mix_both(struct block *t, const struct place *at, int64_t c, int64_t j0,
                     int64_t packed, int64_t j1, int columns, int nv)
{
    const int64_t again = max64(c + columns - t->dv, 0);
    _Alignas(64) real sums[2 * MR * BQ];
    mix_panel(t, sums, false, NULL, at->values + c - again, at->value_step, 0, t->p, j0, packed,
              NULL, false, columns, nv);
    for (int64_t i = 0; i < again * BQ; i += VEC_N)
        vec_store(sums + columns * BQ + i, vec_zero());
    mix_panel(t, t->o + c * BQ, t->begun, sums + again * BQ, at->packed_values + c / MR * at->panel,
              MR, t->far ? at->panel : 0, t->p, packed, j1, NULL, false, columns, nv);
}

/* `columns` columns of o from c on, of keys j0 .. j1 - 1 of a tile of which some are used where
 * they lie. */
INLINE void mix_columns(struct block *t, const struct place *at, int64_t c, int64_t j0, int64_t j1,
                        int columns, int nv)
{
    if (j1 <= at->direct)
        mix_direct(t, at, c, j0, j1, columns, nv);
    else
        mix_both(t, at, c, j0, at->direct, j1, columns, nv);
}

/* o += p v over keys j0 .. j1 - 1 of the tile. */
INLINE void mix_keys(struct block *t, const struct place *at, int64_t j0, int64_t j1, int nv)
{
    int64_t c = 0;
    if (at->direct <= j0) {
        mix(t, t->o, t->dv_panels, t->begun, at->packed_values, MR, at->panel, t->p, j0, j1, NULL,
            false, nv);
        return;
    }
    for (; c + MR <= t->dv_panels; c += MR)
        mix_columns(t, at, c, j0, j1, MR, nv);
    if (c < t->dv_panels)
        mix_columns(t, at, c, j0, j1, MR / 2, nv);
}

static NOINLINE void mix_whole(struct block *t, const struct place *at, int64_t j0, int64_t j1)
{
    if (is_half(t))
        mix_keys(t, at, j0, j1, HALF);
    else
        mix_keys(t, at, j0, j1, NV);
}

static NOINLINE void mix_careful(struct block *t, const struct place *at, int64_t j0, int64_t j1)
{
    mix(t, t->o, t->dv_panels, t->begun, at->packed_values, MR, at->panel, t->p, j0, j1, NULL, true,
        NV);
}

/* The same along an edge: of each vector only those that some lane sees. They are packed. */
static NOINLINE void mix_edge(struct block *t, const struct place *at, int64_t j0, int64_t j1)
{
    if (is_half(t))
        mix(t, t->o, t->dv_panels, t->begun, at->packed_values, MR, at->panel, t->p, j0, j1,
            t->ends, false, HALF);
    else
        mix(t, t->o, t->dv_panels, t->begun, at->packed_values, MR, at->panel, t->p, j0, j1,
            t->ends, false, NV);
}

/* Where each vector's keys end, of keys j0 .. j1 - 1 of the tile that starts at k0. */
static void find_ends(struct block *t, int64_t k0, int64_t j0, int64_t j1)
{
    for (int v = 0; v < NV; v++) {
        const int64_t end = t->see[(v + 1) * VEC_N - 1].hi - k0;
        t->ends[v] = end <= j0 ? j0 : min64(round_up(end, MR), j1);
    }
}

/* Keys j0 .. j1 - 1 of tile n, both multiples of MR, which lies at `at`, and of which none is seen
 * from `end` on; `words` and `step`, its key_step, are constants where those are common. */
INLINE void tile(struct block *t, int64_t n, const struct place *at, int64_t j0, int64_t j1,
                 int64_t end, int64_t step, int64_t words, int nv)
{
    const struct attn_unit *u = t->u;
    const int64_t k0 = n * BK;
    const struct attn_range whole = whole_part(t, n, j0, j1);
    const bool part = whole.hi - whole.lo < j1 - j0;

    find_ends(t, k0, j0, j1);
    if (part)
        see_tile(t, k0);
    if (t->shaped) {
        push_shaped(t, at->packed_keys, k0, j0, j1, whole, end, words, nv);
    } else {
        push_seen(t, at->packed_keys, k0, j0, j0, whole.lo, end, words, nv);
        push_whole(t, at, j0, whole, step, words, nv);
        push_seen(t, at->packed_keys, k0, j0, whole.hi, j1, end, words, nv);
    }
    add_sums(t);
    if (u->p->dropout.on)
        drop(t, k0, j0, j1);
    if ((part || t->bias.data) && u->tile_info[n] & ATTN_TILE_NONFINITE) {
        see_tile(t, k0);
        if (t->bias.data)
            see_bias(t, k0, j0, j1);
        mix_careful(t, at, j0, j1);
    } else {
        const int64_t last = min64(j1, round_up(end, AT_ONCE * PAIR));
        if (t->ends[0] < last)
            mix_edge(t, at, j0, last);
        else
            mix_whole(t, at, j0, last);
    }
    t->begun = true;
}

/* The same of any size. */
static void take_keys(struct block *t, int64_t n, int64_t j0, int64_t j1, int64_t end)
{
    const struct place at = place_of(t->u, n);
    if (is_half(t))
        tile(t, n, &at, j0, j1, end, at.key_step, words(t->d), HALF);
    else if (!at.direct && t->d == 64) /* constants let the compiler fold the row addresses */
        tile(t, n, &at, j0, j1, end, 64 / PAIR, 64 / PAIR, NV);
    else if (!at.direct && t->d == 128)
        tile(t, n, &at, j0, j1, end, 128 / PAIR, 128 / PAIR, NV);
    else
        tile(t, n, &at, j0, j1, end, at.key_step, words(t->d), NV);
}
