/* SPDX-License-Identifier: BSD-3-Clause */
/* out = the parts of a row, weighted; columns lo to hi - 1, at most MERGE_COLUMNS of them, which
 * are all read before one is written. */
static void TYPED(mix)(const struct merge *m, const struct weights *w, int64_t b, int64_t s,
                       int64_t h, int64_t lo, int64_t hi)
{
    double sum[MERGE_COLUMNS] = {0};
    ELEM *out = (ELEM *)m->out.data + row_at(&m->out, b, s, h) + lo;
    for (int64_t p = 0; p < m->parts; p++) {
        const double weight = weight_of(m, w, p, b, s, h);
        const struct attn_view part = part_view(m->part_out[p], m->contiguous_out);
        const ELEM *x = (const ELEM *)part.data + row_at(&part, b, s, h) + lo;
        if (!(weight >= 0)) /* a part that saw nothing */
            continue;
        for (int64_t c = 0; c < hi - lo; c++)
            sum[c] += weight * GET(x[c]);
    }
    for (int64_t c = 0; c < hi - lo; c++)
        out[c] = PUT(sum[c]);
}

/* Every column the same. */
static void TYPED(fill)(const struct merge *m, double value, int64_t b, int64_t s, int64_t h)
{
    ELEM *out = (ELEM *)m->out.data + row_at(&m->out, b, s, h);
    for (int64_t c = 0; c < m->head_dim; c++)
        out[c] = PUT(value);
}
