/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Pair n of a head is elements n * step and n * step + partner. The pairs are turned in doubles and
 * rounded once; they are all read before one is written, so that out may be x.
 */
static void TYPED(turn)(const void *from, void *to, int64_t step, int64_t partner,
                        const struct attn_circle *by, int64_t pairs)
{
    const ELEM *x = from;
    ELEM *out = to;
    double a[ATTN_ANGLE_PAIRS], b[ATTN_ANGLE_PAIRS];
    for (int64_t n = 0; n < pairs; n++) {
        a[n] = GET(x[n * step]);
        b[n] = GET(x[n * step + partner]);
    }
    for (int64_t n = 0; n < pairs; n++) {
        const struct attn_turn t = {by->cos[n], by->sin[n]};
        out[n * step] = PUT(attn_turned_first(t, a[n], b[n]));
        out[n * step + partner] = PUT(attn_turned_second(t, a[n], b[n]));
    }
}
