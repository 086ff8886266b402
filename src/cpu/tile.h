/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Packed tiles of the forward pass. A tile holds its keys as rows of words, [room][d / PAIR], then
 * its values in panels. Rows up to the next multiple of MR are 0, and so are keys and values that
 * the mask hides.
 */
#ifndef ATTN_CPU_TILE_H
#define ATTN_CPU_TILE_H

#include "cpu/pack.h"

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

static uint8_t pack(const struct attn_unit *u, int64_t t, char *to)
{
    const struct attn_problem *p = u->p;
    const int64_t d = p->head_dim, dv = p->head_dim_v;
    const int64_t ahead = rows_ahead(d + dv);
    const int64_t k0 = t * BK, n = min64(BK, u->nk - k0);
    real *keys = (real *)(void *)to, *values = keys + u->room * words(d);
    const bool paged = p->key.table != NULL;
    const elem *k = (const elem *)attn_view_at(&p->k, &p->key, u->b, k0, u->head_kv, sizeof(elem));
    const elem *v = (const elem *)attn_view_at(&p->v, &p->key, u->b, k0, u->head_kv, sizeof(elem));
    vec bad = vec_zero();
    int64_t hidden = 0;

    for (int64_t j = 0; j < round_up(n, MR); j += PAIR) {
        const elem *value[PAIR];
        for (int i = 0; i < PAIR; i++) {
            const bool given = j + i < n && (!u->key_mask || u->key_mask[k0 + j + i]);
            if (!paged && k0 + j + i + ahead < u->nk) {
                fetch_row(k + (j + i + ahead) * p->k.token, d);
                fetch_row(v + (j + i + ahead) * p->v.token, dv);
            }
            hidden += j + i < n && !given;
            const elem *key = given ? k + (j + i) * p->k.token : NULL;
            value[i] = given ? v + (j + i) * p->v.token : NULL;
            if (given && paged) {
                key = (const elem *)attn_view_at(&p->k, &p->key, u->b, k0 + j + i, u->head_kv,
                                                 sizeof(elem));
                value[i] = (const elem *)attn_view_at(&p->v, &p->key, u->b, k0 + j + i, u->head_kv,
                                                      sizeof(elem));
            }
            pack_key(keys + (j + i) * words(d), key, d);
        }
        bad = pack_values(values + j / PAIR * MR, panel_words(u->room), value, dv, bad);
    }
    const bool finite = vmask_all(vec_le(bad, vec_zero()));
    return (uint8_t)((hidden > 0 ? ATTN_TILE_HIDES : 0) | (hidden == n ? ATTN_TILE_HIDDEN : 0) |
                     (finite ? 0 : ATTN_TILE_NONFINITE));
}

#endif
