/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a kernel does to the scores of a tile, which lie in t->s, where a call asks for more than
 * the product and a range of keys: the rules of score.h for a block of rows at a time. Included
 * by block.h.
 */

/* ---- Visibility ------------------------------------------------------------------------------ */

/* The first of some lanes. */
INLINE int first_lane(lane_bits lanes)
{
    return sizeof lanes > 4 ? __builtin_ctzll(lanes) : __builtin_ctz((uint32_t)lanes);
}

/* Lanes from this one on that see the same blocks. */
static lane_bits alike(const struct block *t, int64_t lane)
{
    const struct attn_problem *p = t->u->p;
    const bool any_head = p->block_mask.head == 0;
    const int64_t end = (t->query[lane] / p->block_q + 1) * p->block_q; /* of the block's queries */
    lane_bits lanes = 0;
    for (int64_t i = lane; i < BQ && t->query[i] < end; i++)
        lanes |= (lane_bits)(any_head || t->head[i] == t->head[lane]) << i;
    return lanes;
}

/* Whether the masks that each query has for itself show lane i what they show another lane. */
INLINE bool own_alike(const struct block *t, int64_t lane, int64_t i)
{
    const struct attn_unit *u = t->u;
    const struct attn_problem *p = u->p;
    const struct attn_integers *docs = &p->query_docs;
    const uint8_t *const mask = u->seq.query_mask;
    const int64_t a = t->query[lane], b = t->query[i], first = u->seq.query0;
    const bool other_head = t->head[i] != t->head[lane];
    if (p->mask.data && ((p->mask.query && a != b) || (p->mask.head && other_head)))
        return false;
    return a == b || ((!mask || !mask[a] == !mask[b]) &&
                      (!docs->data || attn_index_at(docs->data, docs->is64, first + a) ==
                                          attn_index_at(docs->data, docs->is64, first + b)));
}

/* Lanes from this one to the last that follows and sees the same by them. */
INLINE lane_bits alike_by_own(const struct block *t, int64_t lane)
{
    int64_t end = lane + 1;
    while (end < BQ && own_alike(t, lane, end))
        end++;
    return ALL_LANES >> (BQ - (end - lane)) << lane;
}

/* Of keys `key` to key + n - 1, by the block mask alone. */
static enum sight see_blocks(const struct block *t, int64_t key, int64_t n)
{
    const struct attn_problem *p = t->u->p;
    const struct attn_score_view *m = &p->block_mask;
    const int64_t k0 = key / p->block_k, k1 = (key + n - 1) / p->block_k;
    int64_t seen = 0, asked = 0;
    for (lane_bits left = ALL_LANES; left;) {
        const int lane = first_lane(left);
        const int64_t block = t->query[lane] / p->block_q;
        for (int64_t k = k0; k <= k1; k++, asked++)
            seen += m->data[attn_score_at(m, t->u->b, t->head[lane], block, k)] != 0;
        left &= ~alike(t, lane);
    }
    return seen == 0 ? SEE_NONE : seen == asked ? SEE_ALL : SEE_SOME;
}

/* Takes lanes out of t->seen from which the block mask hides a key of `keys`, of the tile at k0, or
 * masks that each query has for itself, if `own`; and keys at both ends out of `keys` that no lane
 * sees then, by multiples of STEP. Whether any is left. */
static bool look_at_masks(struct block *t, int64_t k0, struct attn_range *keys, bool own)
{
    const int64_t first = keys->lo, n = min64(keys->hi, t->u->nk - k0) - first;
    lane_bits *restrict const seen = t->seen + first;
    int64_t lo = 0, hi = n;
    for (lane_bits left = ALL_LANES, lanes; left; left &= ~lanes) {
        const int lane = first_lane(left);
        uint8_t ok[BK];
        memset(ok, 1, sizeof ok);
        lanes = own ? alike_by_own(t, lane) : alike(t, lane);
        if (own)
            keep_own(ok, t->u, t->head[lane], t->query[lane], k0 + first, n);
        else
            keep_blocks(ok, t->u, t->head[lane], t->query[lane], k0 + first, n);
        for (int64_t j = 0; j < n; j++)
            seen[j] &= -(lane_bits)ok[j] | ~lanes;
    }
    while (lo < n && !seen[lo])
        lo++;
    while (hi > lo && !seen[hi - 1])
        hi--;
    *keys = (struct attn_range){first + lo / STEP * STEP, first + round_up(hi, STEP)};
    return lo < hi;
}

/* Sets t->seen of those of `keys`, of the tile at k0, that some row may see by the masks other than
 * the bias, and leaves only them and what is between them in `keys`, by multiples of STEP. Sets
 * t->partly if what they see differs from row to row or key to key; else t->seen is not looked at.
 * Whether any is seen. */
static bool see_masks(struct block *t, int64_t k0, struct attn_range *keys)
{
    const struct attn_problem *p = t->u->p;
    const int64_t end = min64(keys->hi, t->u->nk - k0);
    lane_bits common = ALL_LANES;
    t->partly = false;
    if (keys->lo >= end)
        return false;
    const enum sight blocks =
        p->block_mask.data ? see_blocks(t, k0 + keys->lo, end - keys->lo) : SEE_ALL;
    if (blocks == SEE_NONE || (blocks == SEE_ALL && !has_own_masks(p)))
        return blocks == SEE_ALL;
    for (int64_t j = keys->lo; j < keys->hi; j++)
        t->seen[j] = ALL_LANES;
    if (blocks == SEE_SOME) /* so there are some */
        look_at_masks(t, k0, keys, false);
    if (has_own_masks(p) && !look_at_masks(t, k0, keys, true))
        return false;
    for (int64_t j = keys->lo; j < min64(keys->hi, end); j++)
        common &= t->seen[j];
    t->partly = common != ALL_LANES;
    return true;
}

/* ---- Scores ---------------------------------------------------------------------------------- */

/* Biases of keys `key` to key + n - 1, n <= VEC_N, for the lanes of vector v: to row[j]. */
static void load_bias(const struct block *t, int v, int64_t key, int64_t n, vec row[VEC_N])
{
    const struct attn_score_view *b = &t->bias;
    const attn_dtype type = t->u->p->bias_dtype;
    if (b->query == 0 && b->head == 0) {
        for (int64_t j = 0; j < n; j++)
            row[j] = vec_set((real)attn_number_at(b->data, type, (key + j) * b->key));
        return;
    }
    const attn_dtype own = t->u->p->dtype, computing = attn_compute_dtype(own);
    const bool f32_beside_f64 = type != computing && type != own;
    const bool direct = b->key == 1 && n == VEC_N && !f32_beside_f64;
    for (int i = 0; i < VEC_N; i++) {
        const int64_t lane = v * VEC_N + i;
        const int64_t at = attn_score_at(b, 0, t->head[lane], t->query[lane], key);
        if (direct) { /* asked for: the same of the next tile */
            const int64_t size = type == computing ? sizeof(real) : sizeof(elem);
            const void *const from = b->data + at * size;
            __builtin_prefetch((const void *)((uintptr_t)from + (size_t)(BK * size)), 0, 2);
            row[i] = type == computing ? vec_load(from) : elem_load(from);
            continue;
        }
        real part[VEC_N] = {0};
        for (int64_t j = 0; j < n; j++)
            part[j] = (real)attn_number_at(b->data, type, at + j * b->key);
        row[i] = vec_load(part);
    }
    vec_transpose(row);
}

/* Adds biases to `by` times the scores of keys j0 .. j1 - 1 of the tile at k0. */
INLINE void add_bias(struct block *t, int64_t k0, int64_t j0, int64_t j1, real by)
{
    const vec lowest = vec_set(-INFINITY), scale = vec_set(by);
    const int64_t end = min64(j1, t->u->nk - k0);
    for (int v = 0; v < t->vectors; v++)
        for (int64_t j = j0; j < end; j += VEC_N) {
            const int64_t n = min64(VEC_N, end - j);
            vec row[VEC_N];
            load_bias(t, v, k0 + j, n, row);
            for (int64_t i = 0; i < n; i++) {
                real *s = scores_at(t, j + i) + v * VEC_N;
                const vec sum = vec_fma(vec_load(s), scale, row[i]); /* -inf hides NaN, too */
                vec_store(s, vec_select(vec_le(row[i], lowest), lowest, sum));
            }
        }
}

/* The same with ALiBi, of nv vectors. -inf by a bias stays, whatever slopes are. */
INLINE void add_alibi(struct block *t, int64_t k0, int64_t j0, int64_t j1, real by, int nv)
{
    const vec scale = vec_set(by), lowest = vec_set(-INFINITY);
    const bool biased = t->u->p->bias.data;
    vec slope[NV], place[NV], at = vec_set((real)j0);
    UNROLL for (int v = 0; v < nv; v++) {
        real part[VEC_N];
        for (int i = 0; i < VEC_N; i++)
            part[i] = (real)(t->query[v * VEC_N + i] + t->u->nk - t->u->nq - k0);
        place[v] = vec_load(part);
        slope[v] = vec_sub(vec_zero(), vec_load(t->slope + v * VEC_N));
    }
    for (int64_t j = j0; j < j1; j++, at = vec_add(at, vec_set(1)))
        UNROLL for (int v = 0; v < nv; v++) {
            real *s = scores_at(t, j) + v * VEC_N;
            const vec distance = vec_max(vec_sub(place[v], at), vec_sub(at, place[v]));
            const vec sum = vec_fma(vec_load(s), scale, vec_mul(slope[v], distance));
            vec_store(s, biased ? vec_select(vec_le(vec_load(s), lowest), lowest, sum) : sum);
        }
}

/* Products of query and key j0 .. j1 - 1 of the tile at k0 become scores, in the order of
 * score.h. */
static NOINLINE void shape_scores(struct block *t, int64_t k0, int64_t j0, int64_t j1)
{
    const struct attn_problem *p = t->u->p;
    const struct scaling scaling = scaling_of(p);
    /* The scale goes in with the first of what is added, unless its product may be infinite. */
    const bool soon = !(p->softcap > 0) && !scaling.extreme && scaling.scale <= 1 &&
                      (p->bias.data || p->alibi.data);
    const real by = soon ? (real)scaling.scale : 1, rest = p->bias.data ? 1 : by;
    real *const scores = scores_at(t, j0);
    for (int64_t at = 0; !soon && at < (j1 - j0) * BQ; at += VEC_N)
        vec_store(scores + at, scaled_scores(scaling, vec_load(scores + at)));
    if (t->capped)
        memcpy(t->capped + j0 * BQ, scores, (size_t)((j1 - j0) * BQ) * sizeof *scores);
    if (p->bias.data)
        add_bias(t, k0, j0, j1, by);
    if (p->alibi.data && is_half(t))
        add_alibi(t, k0, j0, j1, rest, HALF);
    else if (p->alibi.data)
        add_alibi(t, k0, j0, j1, rest, NV);
}

/* ---- Dropout --------------------------------------------------------------------------------- */

/* Sets t->kept of keys j0 .. j1 - 1 of the tile at k0. */
static NOINLINE void draw_kept(struct block *t, int64_t k0, int64_t j0, int64_t j1)
{
    const struct attn_problem *p = t->u->p;
    const struct attn_dropout *d = &p->dropout;
    const struct keeping keeping = keeping_of(d);
    const int64_t first = (d->first_sequence + t->u->b) * p->heads_q;
    _Static_assert(MR % 4 == 0, "keys go in fours");
    for (int64_t j = j0; j < j1; j += 4) {
        uint32_t x[4][BQ];
        for (int lane = 0; lane < BQ; lane++) {
            x[0][lane] = (uint32_t)((k0 + j) / 4);
            x[1][lane] = (uint32_t)t->query[lane];
            x[2][lane] = (uint32_t)(first + t->head[lane]);
            x[3][lane] = d->offset;
        }
        draw(x, d->seed);
        for (int w = 0; w < 4; w++) {
            lane_bits kept = keeping.all ? ALL_LANES : 0;
            UNROLL for (int v = 0; v < NV; v++)
                kept |= (lane_bits)vec_words_above(x[w] + v * VEC_N, keeping.above) << v * VEC_N;
            t->kept[j + w] = kept;
        }
    }
}
