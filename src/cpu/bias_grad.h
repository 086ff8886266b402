/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The gradient of the bias: a second round, in which the scores of a piece of dbias are computed
 * and differentiated again. A piece is a range of queries and a tile of keys for the query heads of
 * one key head of one sequence, or all there are along each axis that is summed over. Its sums are
 * in double and in one order, so they depend on no thread. Included by bwd_tmpl.c.
 */

enum { PIECE_ROWS = 128 };

/* How dbias is cut: the number of pieces along each axis, 1 where it is summed over. */
struct cut {
    bool sum_batch, sum_heads, sum_queries, sum_keys;
    int64_t batch, heads, queries, keys;
    int64_t rows; /* queries to a piece */
};

static struct cut cut_of(const struct attn_problem *p)
{
    const struct attn_score_view *v = &p->dbias;
    const bool offsets = p->bias_offset.data;
    struct cut c;
    c.sum_batch = !offsets && v->batch == 0;
    c.sum_heads = offsets ? !p->bias_per_head : v->head == 0;
    c.sum_queries = !offsets && v->query == 0;
    c.sum_keys = !offsets && v->key == 0;
    c.rows = p->group < PIECE_ROWS ? PIECE_ROWS / (p->group > 0 ? p->group : 1) : 1;
    c.batch = c.sum_batch ? 1 : p->batch;
    c.heads = c.sum_heads ? 1 : p->heads_kv;
    const int64_t queries = offsets ? p->query.max : p->query.span; /* no sequence has more */
    const int64_t keys = offsets ? p->key.max : p->key.span;
    c.queries = c.sum_queries ? 1 : (queries + c.rows - 1) / c.rows;
    c.keys = c.sum_keys ? 1 : (keys + BK - 1) / BK;
    return c;
}

static int64_t biases(const struct attn_problem *p)
{
    const struct cut c = cut_of(p);
    return c.batch * c.heads * c.queries * c.keys;
}

static int64_t bias_bytes(const struct attn_problem *p)
{
    const int64_t most = INT64_MAX / 64 * 64;
    const int64_t rows = p->group > PIECE_ROWS ? p->group : PIECE_ROWS;
    int64_t bytes;
    if (__builtin_mul_overflow(rows, BK * (int64_t)sizeof(double), &bytes) ||
        __builtin_add_overflow(bytes, ready_bytes(p) + work_bytes(p, BK), &bytes) || bytes > most)
        return most;
    return round_up(bytes, 64);
}

/* A piece in work. */
struct piece {
    const struct attn_problem *p;
    struct cut cut;
    int64_t b, head_kv, query, tile; /* of its first places */
    struct ready *ready;
    void *work;
    double *sums; /* [heads of a group][cut.rows][BK], each 1 where summed over */
};

static double *sum_at(const struct piece *c, int64_t g, int64_t query, int64_t key)
{
    g = c->cut.sum_heads ? 0 : g;
    query = c->cut.sum_queries ? 0 : query;
    return c->sums + (g * c->cut.rows + query) * BK + (c->cut.sum_keys ? 0 : key);
}

/* Adds the gradients of a block's scores; query: that of the piece's first row. */
static void add_block(const struct piece *c, const struct work *w, int64_t query)
{
    const struct block *t = &w->t[0];
    for (int64_t lane = 0; w->part[0].lo < w->part[0].hi && lane < t->rows; lane++)
        for (int64_t j = w->part[0].lo; j < min64(w->part[0].hi, w->keys); j++)
            *sum_at(c, t->head[lane] - w->u->head_kv * c->p->group, t->query[lane] - query, j) +=
                (double)w->ds[j * BQ + lane];
}

/* One tile of keys against the piece's queries. */
static void add_tile(const struct piece *c, const struct attn_unit *u, int64_t tile)
{
    const int64_t group = c->p->group;
    const int64_t first = c->cut.sum_queries ? 0 : c->query;
    const int64_t last = c->cut.sum_queries ? u->nq : min64(c->query + c->cut.rows, u->nq);
    const real *dout_t = arrays_of(c->p, c->ready).dout_t;
    struct work *w = work_begin(u, c->work);
    load_tile(w, tile);
    for (int64_t row = first * group; row < last * group; row += BQ) {
        prepare_block(u, row, last * group, c->ready);
        do_any_block(w, c->ready, dout_t, 0, false, dout_t);
        add_block(c, w, first);
    }
}

/* What one key head of one sequence adds. */
static void add_unit(const struct piece *c, int64_t b, int64_t head_kv)
{
    struct attn_unit u;
    attn_unit_describe(&u, c->p, b, head_kv);
    u.room = BK;
    const int64_t tiles = (u.nk + BK - 1) / BK;
    const int64_t first = c->cut.sum_keys ? 0 : c->tile;
    const int64_t last = c->cut.sum_keys ? tiles : min64(c->tile + 1, tiles);
    for (int64_t tile = first; tile < last; tile++)
        add_tile(c, &u, tile);
}

/* The piece's sums to dbias; with offsets only where the sequence has elements. */
static void store_piece(const struct piece *c)
{
    const struct attn_problem *p = c->p;
    const bool offsets = p->bias_offset.data;
    struct attn_sequence s = {.p = p}; /* there may be none, in a sum */
    if (c->b < p->batch)
        s = attn_sequence_of(p, c->b);
    const struct attn_score_view v = attn_sequence_bias(&s, p->dbias);
    const int64_t heads = c->cut.sum_heads ? 1 : p->group;
    const int64_t rows = c->cut.sum_queries
                             ? 1
                             : min64(c->cut.rows, (offsets ? s.nq : p->query.span) - c->query);
    const int64_t keys =
        c->cut.sum_keys ? 1 : min64(BK, (offsets ? s.nk : p->key.span) - c->tile * BK);
    for (int64_t g = 0; g < heads; g++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < keys; j++)
                attn_put_number(v.data, p->bias_dtype,
                                attn_score_at(&v, 0, c->head_kv * p->group + g, c->query + i,
                                              c->tile * BK + j),
                                *sum_at(c, g, i, j));
}

static void bias(const struct attn_problem *p, int64_t n, void *scratch)
{
    struct piece c = {.p = p, .cut = cut_of(p)};
    const int64_t rows = p->group > PIECE_ROWS ? p->group : PIECE_ROWS;
    c.tile = n % c.cut.keys, n /= c.cut.keys;
    c.query = n % c.cut.queries * c.cut.rows, n /= c.cut.queries;
    c.head_kv = n % c.cut.heads;
    c.b = n / c.cut.heads;
    c.sums = scratch;
    c.ready = (void *)(c.sums + rows * BK);
    c.work = (char *)c.ready + ready_bytes(p);
    memset(c.sums, 0, (size_t)(rows * BK) * sizeof *c.sums);
    for (int64_t b = c.b; b < (c.cut.sum_batch ? p->batch : c.b + 1); b++)
        for (int64_t h = c.head_kv; h < (c.cut.sum_heads ? p->heads_kv : c.head_kv + 1); h++)
            add_unit(&c, b, h);
    store_piece(&c);
}
