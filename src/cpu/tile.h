/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Packed tiles of the forward pass. A tile holds its keys as rows of words, [room][d / PAIR], then
 * its values in panels. Rows up to the next multiple of STEP are 0, and so are keys and values that
 * the mask hides. Where few rows share a tile only its last keys are packed, those that fill no
 * group of MR: to pack the others would take longer than it saves.
 */
#ifndef ATTN_CPU_TILE_H
#define ATTN_CPU_TILE_H

#include "cpu/pack.h"

/* Where tiles are used as they lie, keys and values are asked for so many keys ahead. */
enum { AHEAD = 16 };

/* Whether a head's keys, and its values, follow each other without a gap. */
static bool are_dense(const struct attn_problem *p)
{
    return p->k.token == p->head_dim && p->v.token == p->head_dim_v;
}

/* How many rows use them so, at most. Keys that lie apart, as where other heads' are between, have
 * few places in the first caches, those a page apart fewest of all, and packing pays for itself
 * sooner where what falls out of them comes from a slow third cache, and where it lets exponentials
 * go in halves beside products. What is far is better read once, row by row, and copied than read
 * for each block and column by column; measured with AVX2 only. */
static int64_t direct_rows(const struct attn_unit *u)
{
    enum { PAGE = 4096, SECOND = 1 << 20 }; /* bytes, the latter of a cache */
    const struct attn_problem *p = u->p;
    const double far = 3 << 21; /* bytes */
    const bool dense = are_dense(p);
    const double apart = (double)(p->k.token > p->v.token ? p->k.token : p->v.token) * sizeof(elem);
    if (NV == 3 && !WIDE_BLOCKS && attn_key_bytes(p) > far)
        return BQ;
    if (u->slow_third && !dense && apart >= PAGE)
        return u->nk > 64 ? BQ : 2 * BQ;
    if (u->slow_third && !dense && apart * (double)u->nk >= SECOND)
        return 2 * BQ;
    return (EXP2_BESIDE == 3 && !dense ? 3 : 4) * BQ;
}

static int64_t tile_bytes(int64_t d, int64_t dv, int64_t room)
{
    const int64_t reals = key_words(room, d) + round_up(dv, COLUMNS) / COLUMNS * panel_words(room);
    return round_up(reals * (int64_t)sizeof(real), 64);
}

/* Where the words of a tile lie: packed, key j at packed_keys + j words(d); column c of value j, or
 * pair of values, at packed_values + c / MR panel + (j / PAIR) MR + c % MR, or where pack.h says so
 * for matrices. The first `direct` keys
 * are not packed but in the caller's tensors: key j at keys + j key_step, column c of value j at
 * values + j value_step + c. Where there are none of those, `keys` are the packed ones. */
struct place {
    const real *packed_keys, *packed_values, *keys, *values;
    int64_t key_step, value_step, panel;
    int64_t direct; /* a multiple of MR */
};

/* Where key j stands in a tensor of elements on the key side. */
static const elem *row_of_key(const struct attn_unit *u, const struct attn_view *v, int64_t j)
{
    return (const elem *)attn_view_at(v, &u->p->key, u->b, j, u->head_kv, sizeof(elem));
}

static struct place place_of(const struct attn_unit *u, int64_t t)
{
    const struct attn_problem *p = u->p;
    const int64_t bytes = tile_bytes(p->head_dim, p->head_dim_v, u->room);
    struct place at;
    at.packed_keys = (const real *)(const void *)(u->packed + t % u->places * bytes);
    at.packed_values = at.packed_keys + key_words(u->room, p->head_dim);
    at.panel = panel_words(u->room);
    at.keys = at.packed_keys;
    at.values = at.packed_values;
    at.key_step = words(p->head_dim);
    at.value_step = MR;
    at.direct = 0;
    if (u->tile_info[t] & ATTN_TILE_DIRECT) {
        at.keys = (const real *)(const void *)row_of_key(u, &p->k, t * BK);
        at.values = (const real *)(const void *)row_of_key(u, &p->v, t * BK);
        at.key_step = p->k.token;
        at.value_step = p->v.token;
        at.direct = min64(BK, u->nk - t * BK) / MR * MR;
    }
    return at;
}

/* Whether a tile is used where it lies, but for the keys that fill no group: its elements are the
 * computing type's, all rows see all of it, nothing asks what its values are, and values fill a
 * panel. */
static bool is_direct(const struct attn_unit *u, int64_t k0, int64_t n)
{
    const struct attn_problem *p = u->p;
    const struct attn_range rows = attn_unit_tiled(u);
    return sizeof(elem) == sizeof(real) && rows.hi - rows.lo <= direct_rows(u) &&
           n >= MR && p->head_dim_v >= MR && !p->key.table && !u->key_mask && !u->weights &&
           !has_masks(p) && !shapes_scores(p) &&
           attn_band_whole(u->seq.band, u->seeing.lo, u->seeing.hi, k0, k0 + n);
}

/* Numbers of rows that are packed one by one, where vectors of them would be mostly empty. */
enum { FEW_NUMBERS = sizeof(elem) == sizeof(real) ? 4 : 0 };

/* A tile of such rows, none of them hidden. Returns 0, or NaN if a value is not finite. */
INLINE real pack_numbers(const struct attn_unit *u, const elem *k, const elem *v, int64_t n,
                         real *keys, real *values)
{
    const struct attn_problem *p = u->p;
    const int64_t d = p->head_dim, dv = p->head_dim_v, all = round_up(n, MR);
    real bad = 0;
    for (int64_t j = 0; j < n; j++, k += p->k.token)
        for (int64_t c = 0; c < d; c++)
            keys[j * d + c] = elem_get(k[c]);
    memset(keys + n * d, 0, (size_t)((all - n) * d) * sizeof *keys);
    memset(values, 0, (size_t)(all * MR) * sizeof *values);
    for (int64_t j = 0; j < n; j++, v += p->v.token)
        for (int64_t c = 0; c < dv; c++) {
            values[j * MR + c] = elem_get(v[c]);
            bad += values[j * MR + c] * 0;
        }
    return bad;
}

static uint8_t pack(const struct attn_unit *u, int64_t t, char *to)
{
    const struct attn_problem *p = u->p;
    const int64_t d = p->head_dim, dv = p->head_dim_v;
    const int64_t k_step = p->k.token, v_step = p->v.token, panel = panel_words(u->room);
    const int64_t k0 = t * BK, n = min64(BK, u->nk - k0);
    const int64_t ahead = rows_ahead(d + dv), more = u->nk - k0 - ahead;
    const bool direct = is_direct(u, k0, n);
    const int64_t first = direct ? n / MR * MR : 0;
    const bool paged = p->key.table != NULL;
    real *keys = (real *)(void *)to, *values = keys + key_words(u->room, d);
    const elem *k = row_of_key(u, &p->k, k0), *v = row_of_key(u, &p->v, k0);
    vec bad = vec_zero();
    int64_t hidden = 0;

    if (max64(d, dv) <= FEW_NUMBERS && !direct && !paged && !u->key_mask)
        return isnan(pack_numbers(u, k, v, n, keys, values)) ? ATTN_TILE_NONFINITE : 0;
    for (int64_t j = first; j < n; j += STEP) {
        const elem *key[STEP], *value[STEP];
        if (!paged) {
            fetch_rows(k + (j + ahead) * k_step, k_step, min64(STEP, more - j), d);
            fetch_rows(v + (j + ahead) * v_step, v_step, min64(STEP, more - j), dv);
        }
        for (int i = 0; i < STEP; i++) {
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
        bad = pack_values(values + j / PAIR * COLUMNS, panel, value, dv, bad);
    }
    if (direct)
        return ATTN_TILE_DIRECT;
    const bool finite = vmask_all(vec_le(bad, vec_zero()));
    return (uint8_t)((hidden > 0 ? ATTN_TILE_HIDES : 0) | (hidden == n ? ATTN_TILE_HIDDEN : 0) |
                     (finite ? 0 : ATTN_TILE_NONFINITE));
}

#endif
