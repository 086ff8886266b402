/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Packed tiles of the forward pass. A tile holds its keys as rows of words, [room][d / PAIR], then
 * its values in panels. Rows up to the next multiple of MR are 0, and so are keys and values that
 * the mask hides. Where few rows share a tile it is not packed: that would take longer than it
 * saves.
 */
#ifndef ATTN_CPU_TILE_H
#define ATTN_CPU_TILE_H

#include "cpu/pack.h"

/* So many rows at most use tiles where they lie, and ask for keys and values so many keys ahead. */
enum { DIRECT_ROWS = 4 * BQ, AHEAD = 16 };

static int64_t tile_bytes(int64_t d, int64_t dv, int64_t room)
{
    const int64_t reals = key_words(room, d) + round_up(dv, MR) / MR * panel_words(room);
    return round_up(reals * (int64_t)sizeof(real), 64);
}

/* Where the words of a tile lie: key j at keys + j key_step; column c of value j, or pair of
 * values, at values + c / MR panel + j value_step + c % MR. */
struct place {
    const real *keys, *values;
    int64_t key_step, value_step, panel;
    bool direct; /* in the caller's tensors */
};

/* Where key j stands in a tensor of elements on the key side. */
static const elem *row_of_key(const struct attn_unit *u, const struct attn_view *v, int64_t j)
{
    return (const elem *)attn_view_at(v, &u->p->key, u->b, j, u->head_kv, sizeof(elem));
}

static struct place place_of(const struct attn_unit *u, int64_t t)
{
    const struct attn_problem *p = u->p;
    struct place at;
    at.direct = u->tile_info[t] & ATTN_TILE_DIRECT;
    if (at.direct) {
        at.keys = (const real *)(const void *)row_of_key(u, &p->k, t * BK);
        at.values = (const real *)(const void *)row_of_key(u, &p->v, t * BK);
        at.key_step = p->k.token;
        at.value_step = p->v.token;
        at.panel = MR;
        return at;
    }
    const int64_t bytes = tile_bytes(p->head_dim, p->head_dim_v, u->room);
    at.keys = (const real *)(const void *)(u->packed + t % u->places * bytes);
    at.values = at.keys + key_words(u->room, p->head_dim);
    at.key_step = words(p->head_dim);
    at.value_step = MR;
    at.panel = panel_words(u->room);
    return at;
}

/* Whether a tile is used where it lies: its elements are the computing type's, all rows see all of
 * it, nothing asks what its values are, groups of keys have no ends, and values fill a panel. */
static bool is_direct(const struct attn_unit *u, int64_t k0, int64_t n)
{
    const struct attn_problem *p = u->p;
    return sizeof(elem) == sizeof(real) && attn_unit_tiled(u) <= DIRECT_ROWS &&
           n % MR == 0 && p->head_dim_v >= MR && !p->key.table && !u->key_mask && !u->weights &&
           !has_masks(p) && !shapes_scores(p) &&
           attn_band_whole(u->band, 0, u->nq, k0, k0 + n);
}

static uint8_t pack(const struct attn_unit *u, int64_t t, char *to)
{
    const struct attn_problem *p = u->p;
    const int64_t d = p->head_dim, dv = p->head_dim_v;
    const int64_t k_step = p->k.token, v_step = p->v.token, panel = panel_words(u->room);
    const int64_t k0 = t * BK, n = min64(BK, u->nk - k0);
    const int64_t ahead = rows_ahead(d + dv), more = u->nk - k0 - ahead;
    if (is_direct(u, k0, n))
        return ATTN_TILE_DIRECT;
    const bool paged = p->key.table != NULL;
    real *keys = (real *)(void *)to, *values = keys + key_words(u->room, d);
    const elem *k = row_of_key(u, &p->k, k0), *v = row_of_key(u, &p->v, k0);
    vec bad = vec_zero();
    int64_t hidden = 0;

    for (int64_t j = 0; j < n; j += MR) {
        const elem *key[MR], *value[MR];
        if (!paged) {
            fetch_rows(k + (j + ahead) * k_step, k_step, min64(MR, more - j), d);
            fetch_rows(v + (j + ahead) * v_step, v_step, min64(MR, more - j), dv);
        }
        for (int i = 0; i < MR; i++) {
            const bool given = j + i < n && (!u->key_mask || u->key_mask[k0 + j + i]);
            hidden += j + i < n && !given;
            key[i] = given ? k + (j + i) * k_step : NULL;
            value[i] = given ? v + (j + i) * v_step : NULL;
            if (given && paged) {
                key[i] = row_of_key(u, &p->k, k0 + j + i);
                value[i] = row_of_key(u, &p->v, k0 + j + i);
            }
        }
        pack_keys(keys + j * words(d), key, d);
        bad = pack_values(values + j / PAIR * MR, panel, value, dv, bad);
    }
    const bool finite = vmask_all(vec_le(bad, vec_zero()));
    return (uint8_t)((hidden > 0 ? ATTN_TILE_HIDES : 0) | (hidden == n ? ATTN_TILE_HIDDEN : 0) |
                     (finite ? 0 : ATTN_TILE_NONFINITE));
}

#endif
