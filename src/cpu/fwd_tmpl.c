/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Forward kernel: tiled online softmax, built once per instruction set and element type.
 *
 * Queries lie in the lanes. A block of BQ = NV * VEC_N rows is transposed once to qt[d][BQ]; scores
 * and probabilities are [keys][BQ], the output accumulator o[dv][BQ], so the softmax has no
 * horizontal operation and both products are the same register block: MR broadcast elements of a
 * packed operand by NV vectors (multiply.h), or matrices of as many rows as lanes (matrix.h).
 *
 * The softmax works in powers of two, relative to a reference per row that is not always the
 * maximum: it comes from the first keys that the row sees, and is raised only if the weights of MR
 * keys sum to more than a limit (see limit_of(); of which keys, largest_soon()). Each row decides
 * that for itself, and a row that keeps its reference is multiplied by 1, so that no row's bits
 * depend on another's.
 *
 * What a row does not see gets the score -inf, hence the probability 0. A value it does not see
 * may be NaN, and 0 * NaN is NaN: packing notes the tiles that hold such values, and where a row of
 * the block does not see all of such a tile the product takes the careful form.
 */
#include "cpu/weigh.h"

/* ---- Memory of a block ----------------------------------------------------------------------- */

/* What each block of an item keeps, before its arrays; and, where the item has several heads, the
 * unit of its head. */
struct own {
    struct block block;
    struct attn_unit unit;
};

/* Bytes of what blocks share, scores and probabilities of a tile, and of what each keeps. */
static int64_t shared_bytes(int64_t room)
{
    const int64_t all = round_up(room, STEP);
    return round_up(BQ * (all + all / PAIR) * (int64_t)sizeof(real), 64);
}

static int64_t own_bytes(int64_t d, int64_t dv)
{
    return round_up((int64_t)sizeof(struct own), 64) +
           round_up(BQ * (words(d) + round_up(dv, COLUMNS) + 4) * (int64_t)sizeof(real), 64);
}

static int64_t scratch_bytes(int64_t d, int64_t dv, int64_t room, int64_t blocks)
{
    return shared_bytes(room) + blocks * own_bytes(d, dv);
}

/* The n-th block of an item. */
static struct own *own_at(const struct attn_unit *u, char *scratch, int64_t n)
{
    const int64_t bytes = own_bytes(u->p->head_dim, u->p->head_dim_v);
    return (struct own *)(void *)(scratch + shared_bytes(u->room) + n * bytes);
}

/* Lays the memory of a block out, the n-th of its head. */
static void begin(struct own *own, char *scratch, int64_t n)
{
    struct block *const t = &own->block;
    const struct attn_problem *p = t->u->p;
    const int64_t room = t->u->room;
    real *at = (real *)(void *)((char *)own + round_up((int64_t)sizeof *own, 64));
    t->loaded = t->begun = false;
    t->leads = n == 0;
    t->scaled = p->sink.data || p->dropout.on;
    t->far = t->u->places > FAR_BYTES / tile_bytes(t->d, p->head_dim_v, room);
    t->dv = p->head_dim_v;
    t->dv_panels = round_up(t->dv, MATRIX ? (int)COLUMNS : MR / 2);
    t->s = (real *)(void *)scratch;
    t->p = t->s + round_up(room, STEP) * BQ;
    t->qt = at, at += words(t->d) * BQ;
    t->r = at, at += BQ;
    t->limit = at, at += BQ;
    t->l = at, at += BQ;
    t->sum = at, at += BQ;
    t->o = at;
    if (MATRIX) /* whose sums go on from what is there */
        memset(t->o, 0, (size_t)(t->dv_panels * BQ) * sizeof *t->o);
    for (int64_t lane = 0; lane < BQ; lane++) {
        t->r[lane] = 0;
        t->limit[lane] = FIRM_LIMIT;
        t->l[lane] = t->sum[lane] = 0;
        t->out[lane] = (elem *)attn_view_at(&p->out, &p->query, t->u->b, t->query[lane],
                                            t->head[lane], sizeof(elem));
    }
}

/* ---- Output ---------------------------------------------------------------------------------- */

/* 0 in place of dropped probabilities in t->p. */
static void drop(struct block *t, int64_t k0, int64_t j0, int64_t j1)
{
    draw_kept(t, k0, j0, j1);
    for (int64_t j = j0; j < j1; j += PAIR)
        for (int v = 0; v < t->vectors; v++) {
            real *p = weights_at(t, j) + v * VEC_N;
            vmask kept[PAIR];
            for (int i = 0; i < PAIR; i++)
                kept[i] = vmask_of(t->kept[j + i] >> v * VEC_N);
            vec_store(p, word_seen(vec_load(p), kept));
        }
}

/* Takes keys that a bias of -inf hides out of t->seen. */
static NOINLINE void see_bias(struct block *t, int64_t k0, int64_t j0, int64_t j1)
{
    const struct attn_score_view *b = &t->bias;
    const int64_t end = min64(j1, t->u->nk - k0);
    if (!t->partly)
        memset(t->seen + j0, 0xff, (size_t)(j1 - j0) * sizeof *t->seen);
    t->partly = true;
    for (int64_t lane = 0; lane < BQ; lane++)
        for (int64_t j = j0; j < end; j++)
            if (attn_number_at(b->data, t->u->p->bias_dtype,
                               attn_score_at(b, 0, t->head[lane], t->query[lane], k0 + j)) ==
                -(double)INFINITY)
                t->seen[j] &= ~((lane_bits)1 << lane);
}

/* The keys of tile n that every lane sees, as positions in it, both multiples of STEP. */
static struct attn_range whole_part(const struct block *t, int64_t n, int64_t j0, int64_t j1)
{
    const int64_t k0 = n * BK;
    const struct attn_range first = t->see[0], last = t->see[BQ - 1];
    struct attn_range r = {j0, j1};
    if (t->u->tile_info[n] & ATTN_TILE_HIDES || t->partly) {
        r.hi = j0;
        return r;
    }
    if (last.lo > k0 + j0)
        r.lo = min64(round_up(last.lo - k0, STEP), j1);
    if (first.hi < k0 + j1)
        r.hi = first.hi > k0 + r.lo ? (first.hi - k0) / STEP * STEP : r.lo;
    return r;
}

#if MATRIX
#include "cpu/matrix.h"
#else
#include "cpu/multiply.h"
#endif

static struct row row_of(const struct block *t, int64_t lane)
{
    const struct row row = {t->u, t->u->head_kv, t->query[lane], t->head[lane], t->see[lane]};
    return row;
}

/* What the sums of values of each lane are multiplied by, or a number below 0, as in struct
 * outcome; t->l becomes final. `x` takes what becomes of each row where that is `wanted`. */
static void settle(struct block *t, real *factor, struct outcome *x, bool wanted)
{
    for (int64_t lane = 0; lane < BQ; lane += VEC_N) {
        const vec l = final_sum(t->u->p, vec_load(t->r + lane), vec_load(t->l + lane));
        const vec inverse = vec_mul(vec_div(vec_set(1), l), vec_set(1 / WEIGHT_ONE));
        vec_store(t->l + lane, l);
        vec_store(factor + lane, vec_select(vec_le(l, vec_zero()), vec_set(-1), inverse));
    }
    for (int64_t lane = 0; wanted && lane < t->rows; lane++) {
        const struct row row = row_of(t, lane);
        x[lane] = outcome_of(&row, t->r[lane], t->l[lane]);
        factor[lane] = factor_of_sums(&x[lane], t->l[lane], t->o + lane, t->dv, BQ);
    }
}

static void finish(struct block *t)
{
    const bool wanted = t->scaled || t->u->p->lse.data || t->u->weights;
    real bad[BQ], factor[BQ];
    struct outcome x[BQ];
    if (!t->begun)
        memset(t->o, 0, (size_t)(t->dv_panels * BQ) * sizeof *t->o);
    settle(t, factor, x, wanted);
    bool finite = true;
    for (int64_t lane = 0; lane < t->rows; lane += VEC_N) {
        store_lanes(t->out + lane, min64(VEC_N, t->rows - lane), t->o + lane, t->dv,
                    factor + lane, bad + lane);
        finite = finite && vmask_all(vec_le(vec_load(bad + lane), vec_zero()));
    }
    if (finite && !wanted)
        return;
    for (int64_t lane = 0; lane < t->rows; lane++) {
        const real l = t->l[lane];
        const struct row row = row_of(t, lane);
        if (wanted) {
            store_lse(&row, x[lane].lse);
            store_weight(&row, t->r[lane], l, &x[lane]);
        }
        if (isnan(bad[lane]) && l > 0 && l < (real)INFINITY && factor[lane] >= 0)
            careful_row(&row, t->o); /* where the sums were */
    }
}

/* Asks for the rows of out that the block will write. Inlined as fetch_queries() is. */
INLINE void fetch_results(const struct block *t)
{
    for (int64_t lane = 0, rows = t->u->near ? 0 : t->rows; lane < rows; lane++) {
        const elem *const out = t->out[lane];
        for (uintptr_t at = line_of(out); at < (uintptr_t)(out + t->dv); at += LINE)
            __builtin_prefetch((const void *)at, 1, 2);
    }
}

/* How many keys of the next tile are asked for before it is packed. Rows that lie apart by a power
 * of two, as where other heads' are between, share few places in a second cache, as many as its
 * bytes over the distance. What is asked for beyond a part of these may be gone when it is wanted,
 * and so may be what was there; where it is no further than a fast third cache it is worth it. */
static int64_t keys_ahead(const struct attn_unit *u)
{
    const double stretch = 1 << 18; /* bytes, a quarter of a second cache */
    const double step = ((double)u->p->k.token + (double)u->p->v.token) * sizeof(elem);
    const bool apart = u->slow_third && !are_dense(u->p) && step * BK > stretch;
    return apart ? (int64_t)(stretch / step) : BK;
}

/* Keys to ask for during the products with tile n: where tiles are used as they lie those that come
 * soon, once for all blocks of an item, unless they are near; else the next tile's, by the thread
 * that has packed this one and so is likely to pack that. */
static struct attn_range keys_to_ask(const struct block *t, int64_t n, bool packed)
{
    const struct attn_unit *u = t->u;
    const bool direct = u->tile_info[n] & ATTN_TILE_DIRECT;
    const int64_t first = n * BK + (direct ? AHEAD : (int64_t)BK);
    if (u->p->key.table || !(direct ? t->leads && !u->near : packed))
        return (struct attn_range){0, 0};
    return (struct attn_range){first, min64(first + (direct ? BK : keys_ahead(u)), u->nk)};
}

/* Tile n against a block, of whose rows some see some of it. */
static void take_tile(struct block *t, int64_t n, struct attn_range see,
                      bool (*need)(void *arg, int64_t t), void *arg)
{
    const struct attn_unit *u = t->u;
    const int64_t k0 = n * BK;
    const int64_t end = min64(BK, see.hi - k0);
    struct attn_range keys = {see.lo > k0 ? (see.lo - k0) / STEP * STEP : 0, round_up(end, STEP)};
    if (t->masked && !see_masks(t, k0, &keys))
        return;
    t->next = keys_to_ask(t, n, need(arg, n));
    if (!t->loaded) {
        load_queries(t);
        if (t->row0 > u->rows.lo)
            fetch_queries(u, t->row0 - BQ); /* the next item may be the block before */
        t->loaded = true;
    }
    if (u->tile_info[n] & ATTN_TILE_HIDDEN)
        return;
    if ((n + 1) * BK >= see.hi)
        fetch_results(t);
    take_keys(t, n, keys.lo, keys.hi, min64(end, keys.hi));
}

/* Where an item has several heads their blocks take turns at a tile, and it is packed for those of
 * each: what the first one needs the others find. */
struct turn {
    const struct attn_unit *u;
    bool packed;
};

static bool need_in_turn(void *arg, int64_t n)
{
    struct turn *turn = arg;
    if (turn->packed)
        return false;
    turn->u->tile_info[n] = pack(turn->u, n, turn->u->packed);
    return turn->packed = true;
}

extern const struct attn_cpu_decode BASE_KERNEL(attn_decode);

/* The unit's rows that are in no block, against tile n of those that the blocks see, and all keys
 * before the first and behind the last of these. */
static void join(const struct attn_unit *u, int64_t n, struct attn_range tiles, void *scratch)
{
    const struct attn_range keys = {n == tiles.lo ? 0 : n * BK,
                                    n == tiles.hi - 1 ? u->nk : (n + 1) * BK};
    BASE_KERNEL(attn_decode).rest(u, keys, scratch);
}

/* Sets up the blocks of an item, those of each head in turn; see: keys that those of a head see. */
static void begin_all(const struct attn_unit *u, int64_t heads, int64_t row0, int64_t blocks,
                      void *scratch, struct attn_range *see)
{
    const int64_t end = attn_unit_tiled(u).hi;
    for (int64_t n = 0; n < heads * blocks; n++) {
        const int64_t h = n / blocks, i = n % blocks;
        struct own *const own = own_at(u, scratch, n);
        struct block *const t = &own->block;
        if (heads > 1) {
            own->unit = *u;
            own->unit.head_kv += h;
        }
        block_init(t, heads > 1 ? &own->unit : u, row0 + i * BQ, end);
        begin(own, scratch, i);
        t->vectors = t->rows <= HALF * VEC_N ? HALF : NV;
        see[i] = attn_band_any(u->seq.band, t->query[0], t->query[BQ - 1] + 1);
        if (h == 0 && row0 + blocks * BQ >= end)
            fetch_queries(u, t->row0); /* they come while the first tile is packed */
    }
}

static void rows(const struct attn_unit *u, int64_t heads, int64_t row0, int64_t blocks,
                 void *scratch, bool (*need)(void *arg, int64_t t), void *arg)
{
    const struct attn_problem *p = u->p;
    const int64_t rest_bytes = u->joins ? BASE_KERNEL(attn_decode).scratch_bytes(p, u->rest, 1) : 0;
    char *const rest =
        (char *)scratch + scratch_bytes(p->head_dim, p->head_dim_v, u->room, heads * blocks);
    struct attn_range see[ATTN_MOST_BLOCKS];
    begin_all(u, heads, row0, blocks, scratch, see);
    const int64_t last = min64(row0 + blocks * BQ, attn_unit_tiled(u).hi) - 1;
    const struct attn_range all =
        attn_band_any(u->seq.band, row0 / p->group, last / p->group + 1);
    const struct attn_range tiles = {all.lo / BK, (all.hi + BK - 1) / BK};
    matrix_begin();
    for (int64_t n = tiles.lo; n < tiles.hi; n++)
        for (int64_t h = 0; h < heads; h++) {
            struct turn turn = {own_at(u, scratch, h * blocks)->block.u, false};
            if (u->joins)
                join(turn.u, n, tiles, rest + h * rest_bytes);
            for (int64_t i = 0; i < blocks; i++)
                if (n >= see[i].lo / BK && n * BK < see[i].hi)
                    take_tile(&own_at(u, scratch, h * blocks + i)->block, n, see[i],
                              heads > 1 ? need_in_turn : need, heads > 1 ? &turn : arg);
        }
    matrix_end();
    for (int64_t n = 0; n < heads * blocks; n++)
        finish(&own_at(u, scratch, n)->block);
}

static void unseeing(const struct attn_unit *u, struct attn_range queries)
{
    const struct attn_problem *p = u->p;
    for (int64_t i = queries.lo; i < queries.hi; i++)
        for (int64_t g = 0; g < p->group; g++) {
            const struct row row = {u, u->head_kv, i, u->head_kv * p->group + g, {0, 0}};
            const struct outcome x = outcome_of(&row, 0, 0);
            elem *const out = out_row(&row);
            memset(out, 0, (size_t)p->head_dim_v * sizeof *out);
            for (int64_t c = 0; !(x.by < 0) && c < p->head_dim_v; c++)
                out[c] = elem_put(x.by); /* NaN */
            store_lse(&row, x.lse);
            store_weight(&row, 0, 0, &x);
        }
}

#include "cpu/columns.h"

const struct attn_cpu_kernel KERNEL(attn_fwd) = {
    .block_rows = BQ,
    .matrices = MATRIX > 0,
    .tile_bytes = tile_bytes,
    .scratch_bytes = scratch_bytes,
    .pack = pack,
    .unseeing = unseeing,
    .rows = rows,
    .columns = columns,
    .columns_bytes = columns_bytes,
    .weight_bytes = sizeof(struct weight),
    .decode = &BASE_KERNEL(attn_decode),
};
