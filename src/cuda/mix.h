/* SPDX-License-Identifier: BSD-3-Clause */
/* Partial results merged: a warp to a row of one head. */
#ifndef ATTN_CUDA_MIX_H
#define ATTN_CUDA_MIX_H

#include "cuda/device.h"
#include "cuda/helpers.h"

namespace mix {

enum { THREADS = 128, WARPS = THREADS / 32, COLUMNS = 8 }; /* columns of a lane at a time */

struct row {
    int64_t b, s, h;
};

/* The LSE of a lane's part, of 32 from p on; -inf past the last. */
DEVICE double lse_of(const struct attn_partials *m, const struct row *r, int64_t p)
{
    const int64_t part = p + dev::lane();
    return part < m->parts ? attn_part_lse(m, part, r->b, r->s, r->h) : -(double)INFINITY;
}

/* All lanes get the same. Sums are taken part by part. */
DEVICE struct attn_weights weights_of(const struct attn_partials *m, const struct row *r)
{
    struct attn_weights w = attn_weights_begin();
    for (int64_t p = 0; p < m->parts; p += 32)
        attn_weights_see(&w, lse_of(m, r, p));
    for (int mask = 16; mask > 0; mask /= 2)
        attn_weights_see(&w, dev::shuffle_xor(w.max, mask));
    w.nan = dev::ballot(w.nan) != 0;
    for (int64_t p = 0; p < m->parts && !attn_weights_are_special(&w); p += 32) {
        const double term = attn_part_term(&w, lse_of(m, r, p));
        for (int i = 0; i < 32 && p + i < m->parts; i++)
            w.sum += dev::shuffle(term, i);
    }
    return w;
}

/* Columns c, c + 32, ... of a lane. */
template <attn_dtype type>
DEVICE void add_part(const struct attn_partials *m, const struct row *r, int64_t part,
                     double weight, int64_t c, double sum[COLUMNS])
{
    const struct attn_view v = attn_part_view(m->part_out[part], m->contiguous_out);
    const int64_t at = attn_row_at(&v, r->b, r->s, r->h);
    UNROLLED
    for (int i = 0; i < COLUMNS; i++)
        if (c + 32 * i < m->head_dim)
            sum[i] += weight * attn_number_at(v.data, type, at + c + 32 * i);
}

template <attn_dtype type>
DEVICE void mix_columns(const struct attn_partials *m, const struct row *r,
                        const struct attn_weights *w, int64_t c)
{
    const int64_t at = attn_row_at(&m->out, r->b, r->s, r->h);
    double sum[COLUMNS] = {0};
    for (int64_t p = 0; p < m->parts; p += 32) {
        const double own = attn_part_weight(w, lse_of(m, r, p));
        for (int i = 0; i < 32 && p + i < m->parts; i++) {
            const double weight = dev::shuffle(own, i);
            if (weight >= 0) /* else the part saw nothing */
                add_part<type>(m, r, p + i, weight, c, sum);
        }
    }
    UNROLLED
    for (int i = 0; i < COLUMNS; i++)
        if (c + 32 * i < m->head_dim)
            attn_put_number(m->out.data, type, at + c + 32 * i, sum[i]);
}

/* The LSEs are read before lse is written, and a column of the parts before that of out: either may
 * be a part's. */
template <attn_dtype type> KERNEL merge(GRID_CONSTANT const struct attn_partials m)
{
    const int64_t rows = m.batch * m.seqlen * m.heads;
    for (int64_t n = dev::block() * (int64_t)WARPS + dev::warp(); n < rows;
         n += dev::blocks() * (int64_t)WARPS) {
        const int64_t token = n / m.heads;
        const struct row r = {token / m.seqlen, token % m.seqlen, n % m.heads};
        const struct attn_weights w = weights_of(&m, &r);
        const bool special = attn_weights_are_special(&w);
        if (special) {
            const int64_t at = attn_row_at(&m.out, r.b, r.s, r.h);
            for (int64_t c = dev::lane(); c < m.head_dim; c += 32)
                attn_put_number(m.out.data, type, at + c, attn_special_out(&w));
        }
        for (int64_t c = 0; c < m.head_dim && !special; c += 32 * COLUMNS)
            mix_columns<type>(&m, &r, &w, c + dev::lane());
        dev::sync_warp();
        if (dev::lane() == 0)
            attn_put_merged_lse(&m, r.b, r.s, r.h,
                                special ? attn_special_lse(&w) : attn_merged_lse(&w));
    }
}

} // namespace mix

#endif
