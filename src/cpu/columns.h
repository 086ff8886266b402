/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Probabilities for key_sums and probs_fn, made when the weights of all rows are known: one tile of
 * keys against all rows in their order, so that sums do not depend on who makes them. Included in
 * fwd_tmpl.c.
 */

/* Scratch of columns(), besides that of a block. */
struct columns {
    real *probs; /* [BQ][BK], of each lane */
    real *sums;  /* [group][BK] */
};

static int64_t columns_bytes(const struct attn_problem *p, int64_t room)
{
    const int64_t most = INT64_MAX / 64 * 64;
    int64_t bytes;
    if (__builtin_mul_overflow(BQ + p->group, BK * (int64_t)sizeof(real), &bytes) ||
        __builtin_add_overflow(bytes, scratch_bytes(p->head_dim, p->head_dim_v, room, 1), &bytes) ||
        bytes > most)
        return most;
    return round_up(bytes, 64);
}

/* Scores in t->s become probabilities in c->probs, dropped ones 0. */
static void make_probs(struct block *t, struct columns *c, int64_t k0, int64_t j0, int64_t j1)
{
    const vec lowest = vec_set(-INFINITY);
    const bool dropout = t->u->p->dropout.on;
    if (dropout)
        draw_kept(t, k0, j0, j1);
    for (int v = 0; v < NV; v++) {
        const vec r = vec_load(t->r + v * VEC_N), by = vec_load(t->l + v * VEC_N);
        const vec share = vec_load(t->sum + v * VEC_N);
        for (int64_t j = j0; j < j1; j++) {
            const vec s = vec_load(t->s + j * BQ + v * VEC_N);
            vec p = vec_mul(vec_mul(probability(s, t->scale, r), by), share);
            p = vec_select(vec_le(s, lowest), vec_zero(), p);
            if (dropout)
                p = vec_select(vmask_of(t->kept[j] >> v * VEC_N), p, vec_zero());
            real part[VEC_N];
            vec_store(part, p);
            for (int i = 0; i < VEC_N; i++)
                c->probs[(v * VEC_N + i) * BK + j] = part[i];
        }
    }
}

/* Hands out the probabilities of a block: lanes of one head are `group` apart. */
static void hand_out(const struct block *t, const struct columns *c, int64_t k0, int64_t j0,
                     int64_t j1)
{
    const struct attn_problem *p = t->u->p;
    for (int64_t first = 0; first < min64(p->group, t->rows); first++) {
        real *sums = c->sums + (t->head[first] - t->u->head_kv * p->group) * BK;
        const int64_t n = (t->rows - first + p->group - 1) / p->group;
        for (int64_t i = 0; p->key_sums.data && i < n; i++)
            for (int64_t j = j0; j < j1; j++)
                sums[j] += c->probs[(first + i * p->group) * BK + j];
        if (p->probs_fn)
            p->probs_fn(p->probs_user, t->u->b, t->head[first], t->query[first], n, k0 + j0,
                        j1 - j0, c->probs + first * BK + j0, p->group * BK);
    }
}

/* Whether the block may see some keys of tile n, of those of `j`, which become what it may see, and
 * whose scores are in t->s then. */
static bool score_tile(struct block *t, int64_t n, const real *keys, struct attn_range *j)
{
    if (j->lo >= j->hi || (t->masked && !see_masks(t, n * BK, j)))
        return false;
    load_queries(t);
    matrix_begin();
    score_keys(t, keys, j->lo, j->hi);
    matrix_end();
    if (t->shaped)
        shape_scores(t, n * BK, j->lo, j->hi);
    see_tile(t, n * BK);
    hide(t, n * BK, j->lo, j->hi);
    return true;
}

static void columns(const struct attn_unit *u, int64_t n, const char *tile, void *scratch)
{
    const struct attn_problem *p = u->p;
    const int64_t k0 = n * BK, keys = min64(BK, u->nk - k0);
    struct own *const own = own_at(u, scratch, 0);
    struct block *const t = &own->block;
    struct columns c;
    c.probs = (real *)(void *)((char *)scratch +
                               scratch_bytes(p->head_dim, p->head_dim_v, u->room, 1));
    c.sums = c.probs + BQ * BK;
    memset(c.sums, 0, (size_t)(p->group * BK) * sizeof *c.sums);
    for (int64_t row0 = 0; row0 < u->nq * p->group; row0 += BQ) {
        block_init(t, u, row0, u->nq * p->group);
        begin(own, scratch, 0);
        for (int64_t lane = 0; lane < BQ; lane++) {
            const struct weight *w = weight_of(u, t->query[lane], t->head[lane]);
            t->r[lane] = w->r;
            t->l[lane] = w->by;
            t->sum[lane] = w->share;
        }
        const struct attn_range see = attn_band_any(u->seq.band, t->query[0], t->query[BQ - 1] + 1);
        const int64_t lo = see.lo > k0 ? see.lo - k0 : 0, hi = min64(see.hi - k0, keys);
        struct attn_range j = {lo / STEP * STEP, hi > 0 ? round_up(hi, STEP) : 0};
        if (!score_tile(t, n, (const real *)(const void *)tile, &j))
            continue;
        make_probs(t, &c, k0, j.lo, j.hi);
        hand_out(t, &c, k0, j.lo, min64(j.hi, keys));
    }
    for (int64_t g = 0; p->key_sums.data && g < p->group; g++)
        for (int64_t j = 0; j < keys; j++)
            ((real *)(void *)p->key_sums.data)[attn_number_index(
                &p->key_sums, &p->key, u->b, k0 + j, u->head_kv * p->group + g)] =
                c.sums[g * BK + j];
}
