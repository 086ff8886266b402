/* SPDX-License-Identifier: BSD-3-Clause */
/* dx[row] = the sum of the rows of dout that were gathered from it, in order; 0 without any. */
static void TYPED(sum_row)(const struct attn_sums *s, int64_t row)
{
    ELEM *dx = (ELEM *)s->dx + row * s->width;
    if (s->starts[row] == s->starts[row + 1]) { /* most rows of a large table */
        memset(dx, 0, (size_t)s->width * sizeof *dx);
        return;
    }
    for (int64_t lo = 0; lo < s->width; lo += SUM_COLUMNS) {
        const int64_t columns = lo + SUM_COLUMNS < s->width ? SUM_COLUMNS : s->width - lo;
        REAL sum[SUM_COLUMNS] = {0};
        for (int64_t n = s->starts[row]; n < s->starts[row + 1]; n++) {
            const ELEM *dout = (const ELEM *)s->dout + s->order[n] * s->width + lo;
            for (int64_t c = 0; c < columns; c++)
                sum[c] += (REAL)GET(dout[c]);
        }
        for (int64_t c = 0; c < columns; c++)
            dx[lo + c] = PUT(sum[c]);
    }
}
