/* SPDX-License-Identifier: BSD-3-Clause */
/* What fwd.h does to a warp's scores: what is seen of them, references, weights and their sums. */
#ifndef ATTN_CUDA_FWD_SOFTMAX_H
#define ATTN_CUDA_FWD_SOFTMAX_H

#include "cuda/fwd_work.h"

namespace fwd {

DEVICE int clamp(int64_t x, int most) { return x < 0 ? 0 : x > most ? most : (int)x; }

/* A lane's rows, two of each band: the largest score so far, and its own part of the sum of
 * weights. */
template <class S> struct state {
    typename S::real most[2 * S::M], sum[2 * S::M];
};

/* Of a lane's n-th row in the block. */
DEVICE int row_of(int base, int n) { return base + dev::lane() / 4 + 8 * n; }

/* Whether a lane's rows see keys k0 .. k0 + S::PART - 1, but for what rules hide. */
template <class S> DEVICE bool sees_all(const struct work<S> *w, int base, int64_t k0)
{
    bool all = true;
    UNROLLED for (int n = 0; n < 2 * S::M; n++) {
        const struct attn_range see = w->row[row_of(base, n)].see;
        all = all && see.lo <= k0 && k0 + S::PART <= see.hi;
    }
    return all;
}

/* Scores of products with keys k0 .. k0 + S::PART - 1; of them what hides no key and is the same
 * for all at once, the rest one by one. `bare`: the products themselves, where they are seen. */
template <class S>
DEVICE void score(const struct work<S> *w, int base, typename S::real (*s)[4], int64_t k0,
                  bool bare)
{
    typedef typename S::real real;
    const int t = dev::lane() % 4;
    const real scale = bare ? 1 : (real)w->s.p->scale;
    if (w->plain && !dev::ballot(!sees_all<S>(w, base, k0))) {
        UNROLLED for (int i = 0; i < S::SCORES * 4; i++)
            s[i / 4][i % 4] *= scale;
        return;
    }
    if (w->plain) {
        UNROLLED for (int n = 0; n < 2 * S::M; n++) {
            const struct attn_range see = w->row[row_of(base, n)].see;
            const int lo = clamp(see.lo - k0, S::PART), hi = clamp(see.hi - k0, S::PART);
            UNROLLED for (int j = 0; j < S::PART / 8; j++)
                UNROLLED for (int half = 0; half < 2; half++) {
                    const int key = 8 * j + 2 * t + half;
                    real *const x = &s[n / 2 * (S::PART / 8) + j][n % 2 * 2 + half];
                    *x = key >= lo && key < hi ? *x * scale : -(real)INFINITY;
                }
        }
        return;
    }
    real x[S::SCORES * 4];
    UNROLLED for (int i = 0; i < S::SCORES * 4; i++)
        x[i] = s[i / 4][i % 4];
    ROLLED for (int i = 0; i < S::SCORES * 4; i++) {
        const struct row::row *const r =
            &w->row[row_of(base, i / (S::PART / 2) * 2 + i % 4 / 2)];
        const int64_t key = k0 + i / 4 % (S::PART / 8) * 8 + 2 * t + i % 2;
        if (key < r->see.lo || key >= r->see.hi || (bare && !row::sees(&w->s, r, key)))
            x[i] = -(real)INFINITY;
        else if (!bare)
            x[i] = row::score_of<real>(&w->s, r, x[i], key);
    }
    UNROLLED for (int i = 0; i < S::SCORES * 4; i++)
        s[i / 4][i % 4] = x[i];
}

/* What its sums of values lack of a row. */
template <class S> DEVICE typename S::real unit_of(const struct work<S> *w, int r)
{
    return w->bad[CLEANED][r] ? (typename S::real)((int64_t)1 << LARGE) : 1;
}

/* Weights of dropped keys become 0, those of rows that are too large smaller. */
template <class S>
DEVICE void lessen(const struct attn_problem &p, const struct work<S> *w, int base,
                 typename S::real (*s)[4], int64_t k0)
{
    typename S::real x[S::SCORES * 4];
    UNROLLED for (int i = 0; i < S::SCORES * 4; i++)
        x[i] = s[i / 4][i % 4];
    ROLLED for (int i = 0; i < S::SCORES * 4; i++) {
        const int n = row_of(base, i / (S::PART / 2) * 2 + i % 4 / 2);
        const struct row::row *const r = &w->row[n];
        const int64_t key = k0 + i / 4 % (S::PART / 8) * 8 + dev::lane() % 4 * 2 + i % 2;
        if (x[i] > 0 && p.dropout.on && attn_drops(&p, w->s.b, r->head, r->query, key))
            x[i] = 0;
        x[i] *= 1 / unit_of<S>(w, n);
    }
    UNROLLED for (int i = 0; i < S::SCORES * 4; i++)
        s[i / 4][i % 4] = x[i];
}

/* Scores become weights, relative to the largest so far. What was summed before is to follow it,
 * multiplied by `kept`; false: in no row of the warp has it grown, and that changes nothing. */
template <class S>
DEVICE bool weigh(typename S::real (*s)[4], struct state<S> *r, typename S::real *kept)
{
    typedef typename S::real real;
    typedef typename S::T T;
    bool grown = false;
    UNROLLED for (int n = 0; n < 2 * S::M; n++) {
        typename S::real (*const mine)[4] = s + n / 2 * (S::PART / 8);
        const int e = n % 2 * 2;
        real most = r->most[n];
        UNROLLED for (int j = 0; j < S::PART / 8; j++)
            UNROLLED for (int half = 0; half < 2; half++)
                most = mine[j][e + half] > most ? mine[j][e + half] : most;
        most = row::most_of<4>(most);
        const real from = most == -(real)INFINITY ? 0 : most; /* what differences are taken from */
        kept[n] = T::exp_of(r->most[n] - from);
        grown = grown || !(kept[n] == 1);
        r->most[n] = most;
        r->sum[n] *= kept[n];
        UNROLLED for (int j = 0; j < S::PART / 8; j++) {
            UNROLLED for (int half = 0; half < 2; half++) {
                real *const x = &mine[j][e + half];
                *x = T::exp_of(*x - from);
                r->sum[n] += *x;
            }
            if (sizeof(real) == 8 && j % 2 == 1)
                dev::sync_warp(); /* four of f64 at once: for more there are not the registers */
        }
    }
    return dev::ballot(grown) != 0;
}

template <class S> DEVICE void keep(typename S::real (*out)[4], const typename S::real *kept)
{
    UNROLLED for (int i = 0; i < S::SUMS * 4; i++)
        out[i / 4][i % 4] *= kept[i / (S::DV / 2) * 2 + i % 4 / 2];
}

} // namespace fwd

#endif
