/* SPDX-License-Identifier: BSD-3-Clause */
/* out = the parts of a row, weighted; columns lo to hi - 1, at most MERGE_COLUMNS of them, which
 * are all read before one is written. */
static void TYPED(mix)(const struct attn_partials *m, const struct attn_weights *w, int64_t b,
                       int64_t s, int64_t h, int64_t lo, int64_t hi)
{
    double sum[MERGE_COLUMNS] = {0};
    ELEM *out = (ELEM *)m->out.data + attn_row_at(&m->out, b, s, h) + lo;
    for (int64_t p = 0; p < m->parts; p++) {
        const double weight = attn_part_weight(w, attn_part_lse(m, p, b, s, h));
        const struct attn_view part = attn_part_view(m->part_out[p], m->contiguous_out);
        const ELEM *x = (const ELEM *)part.data + attn_row_at(&part, b, s, h) + lo;
        if (!(weight >= 0)) /* a part that saw nothing */
            continue;
        for (int64_t c = 0; c < hi - lo; c++)
            sum[c] += weight * GET(x[c]);
    }
    for (int64_t c = 0; c < hi - lo; c++)
        out[c] = PUT(sum[c]);
}

/* Every column the same. */
static void TYPED(fill)(const struct attn_partials *m, double value, int64_t b, int64_t s,
                        int64_t h)
{
    ELEM *out = (ELEM *)m->out.data + attn_row_at(&m->out, b, s, h);
    for (int64_t c = 0; c < m->head_dim; c++)
        out[c] = PUT(value);
}
