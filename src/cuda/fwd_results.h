/* SPDX-License-Identifier: BSD-3-Clause */
/* The end of a block of fwd.h: the sums of warps are put together, made right where they are not
 * finite, and put down. */
#ifndef ATTN_CUDA_FWD_RESULTS_H
#define ATTN_CUDA_FWD_RESULTS_H

#include "cuda/fwd_softmax.h"

namespace fwd {

/* A warp's sums to shared memory, and what is to be said of them. */
template <class S>
DEVICE void put_sums(struct work<S> *w, int base, int part, int pass, typename S::real *results,
                     const typename S::real (*out)[4], const struct state<S> *r)
{
    typedef typename S::real real;
    UNROLLED for (int n = 0; n < 2 * S::M; n++) {
        real *const to = results + (part * S::ROWS + row_of(base, n)) * S::RESULT;
        const real sum = row::sum_of<4>(r->sum[n]);
        real zero = 0; /* NaN if a number is not finite */
        if (dev::lane() % 4 == 0) {
            to[0] = r->most[n];
            to[1] = sum;
        }
        UNROLLED for (int c = 0; c < S::DV / 8; c++) {
            const real *const x = out[n / 2 * (S::DV / 8) + c] + n % 2 * 2;
            const int at = S::SUMS_AT + S::T::column(c);
            zero += 0 * x[0];
            zero += 0 * x[1];
            *(pair_of<real> *)(to + at) = {{x[0], x[1]}};
        }
        if (isnan(zero) && !isnan(sum) && w->row[row_of(base, n)].given)
            w->bad[pass][row_of(base, n)] = w->again[pass] = true;
    }
}

/* Numbers of a tile of values that are not finite become 0. */
template <class S, class Crew> DEVICE void clean(char *values)
{
    typedef typename S::element element;
    for (int i = Crew::me(); i < S::KEYS * S::DV; i += Crew::SIZE)
        if (!isfinite(S::T::number(((element *)values)[i])))
            ((element *)values)[i] = 0;
}

/* Columns of bad rows in which a value is seen that is not finite: NaN; a row by a warp. */
template <class S>
DEVICE void spoil(const struct attn_problem &p, const struct work<S> *w, typename S::real *results)
{
    typedef typename S::element element;
    for (int i = dev::warp(); i < S::ROWS; i += S::WARPS) {
        const struct row::row *const r = &w->row[i];
        for (int64_t j = w->key0; w->bad[PLAIN][i] && j < w->key1; j++) {
            if (j < r->see.lo || j >= r->see.hi || !row::sees(&w->s, r, j))
                continue;
            const element *const v = (const element *)key_row<S>(w, p, p.v, w->v, j) + w->column0;
            for (int64_t c = dev::lane(); c < w->columns; c += 32)
                if (!isfinite(S::T::number(v[c])))
                    results[i * S::RESULT + S::SUMS_AT + c] = (typename S::real)NAN;
        }
    }
    dev::sync_warp();
}

/* What is the same for all columns of a row's results: where column w->column0 goes, null for
 * nowhere; what the parts' sums of values are multiplied by, each at once, as all of them may be
 * beyond the range that the result is in; whether all columns are 0. */
template <class S> struct ending {
    char *to;
    typename S::real by[S::KEY_WARPS];
    bool zero;
};

/* Of a row, by a lane; if it is `mine`, what belongs to the row as a whole is put down. */
template <class S>
DEVICE struct ending<S> end_row(const struct attn_cuda_args *a, const struct work<S> *w,
                                const typename S::real *results, int r, bool mine)
{
    typedef typename S::real real;
    typedef typename S::T T;
    const struct row::row *const row = &w->row[r];
    const struct row::parts<real> x = {results + r * S::RESULT, S::ROWS * S::RESULT, S::KEY_WARPS};
    const real most = row::most_of(&x), sum = row::weights_of<T>(&x, most);
    struct ending<S> end = {nullptr, {0}, false};
    real by;
    mine = mine && row->given && w->column0 == 0;
    if (w->slot >= 0) {
        real *const to = share::partial_at<real>(a, &a->form[a->which], w->slot, w->head_kv, r);
        by = unit_of<S>(w, r) / row::unit_of(sum);
        end.to = (char *)(to + 2 + w->column0);
        if (mine) {
            to[0] = most;
            to[1] = sum;
        }
    } else {
        const struct row::outcome<real> o = row::outcome_at(&a->p, row->head, most, sum);
        by = o.by * unit_of<S>(w, r);
        end.to = (char *)(row::out_at<T>(&w->s, row) + w->column0);
        end.zero = o.by < 0;
        if (mine)
            row::put_lse<T>(&w->s, row, o.lse);
    }
    if (!row->given)
        end.to = nullptr;
    UNROLLED for (int i = 0; i < S::KEY_WARPS; i++)
        end.by[i] = row::weight_of<T>(x.data[i * x.stride], most) * by;
    return end;
}

/* N numbers to where n of them belong, 1 or more: in pieces as large as the address is aligned
 * to. */
template <class X, int N> struct stored {
    static DEVICE void put(X *to, const X *x, int n)
    {
        if (n >= N && (uintptr_t)to % sizeof(struct few<X, N>) == 0) {
            struct few<X, N> all;
            UNROLLED for (int e = 0; e < N; e++)
                all.x[e] = x[e];
            *(struct few<X, N> *)to = all;
            return;
        }
        stored<X, N / 2>::put(to, x, n);
        if (n > N / 2)
            stored<X, N / 2>::put(to + N / 2, x + N / 2, n - N / 2);
    }
};
template <class X> struct stored<X, 1> {
    static DEVICE void put(X *to, const X *x, int) { *to = *x; }
};

/* The columns of a warp's rows, n of each, as T stores them, from the parts' sums of values. Each
 * lane has the ending of one row. A lane takes N columns at a time: the next ones are the next
 * lane's, and the next row's where lanes are left; some steps of these together, so that none waits
 * for the one before. */
template <class S, class T>
DEVICE void put_columns(const struct ending<S> &mine, const typename S::real *results, int n)
{
    typedef typename S::real real;
    typedef typename T::element element;
    enum { N = S::AT_ONCE, WIDE = S::DV / N, EACH = S::ROWS / S::WARPS };
    enum { STEPS = WIDE < 32 ? EACH * WIDE / 32 : EACH, SOME = STEPS % 4 ? 2 : 4 };
    static_assert(S::RESULT % N == 0 && S::SUMS_AT % N == 0, "what is read at once is aligned");
    static_assert(STEPS % SOME == 0 && (WIDE >= 32 || EACH * WIDE % 32 == 0), "whole steps");
    ROLLED for (int step = 0; step < STEPS; step += SOME) {
        struct ending<S> end[SOME];
        const real *sums[SOME];
        int first[SOME];
        UNROLLED for (int i = 0; i < SOME; i++) {
            const int at = (step + i) * 32 + dev::lane();
            const int row = WIDE < 32 ? at / WIDE : step + i;
            first[i] = N * (WIDE < 32 ? at % WIDE : dev::lane());
            sums[i] = results + (dev::warp() + row * S::WARPS) * S::RESULT + S::SUMS_AT;
            end[i].to = (char *)(uintptr_t)dev::shuffle((uint64_t)(uintptr_t)mine.to, row);
            end[i].zero = dev::shuffle((int)mine.zero, row);
            UNROLLED for (int k = 0; k < S::KEY_WARPS; k++)
                end[i].by[k] = dev::shuffle(mine.by[k], row);
        }
        ROLLED for (int further = 0; further < S::DV; further += 32 * N) {
            real x[SOME][N];
            UNROLLED for (int i = 0; i < SOME; i++) {
                const int c = first[i] + further < S::DV ? first[i] + further : 0;
                UNROLLED for (int e = 0; e < N; e++)
                    x[i][e] = 0;
                UNROLLED for (int k = 0; k < S::KEY_WARPS; k++) {
                    const struct few<real, N> part =
                        *(const struct few<real, N> *)(sums[i] + k * S::ROWS * S::RESULT + c);
                    UNROLLED for (int e = 0; e < N; e++)
                        x[i][e] += part.x[e] * end[i].by[k];
                }
            }
            UNROLLED for (int i = 0; i < SOME; i++) {
                const int c = first[i] + further;
                element y[N];
                UNROLLED for (int e = 0; e < N; e += 2) {
                    const pair_of<element> both = T::put(end[i].zero ? 0 : x[i][e],
                                                         end[i].zero ? 0 : x[i][e + 1]);
                    y[e] = both.x[0];
                    y[e + 1] = both.x[1];
                }
                if (end[i].to && c < n)
                    stored<element, N>::put((element *)end[i].to + c, y, n - c);
            }
        }
    }
}

/* The block's rows, each by one warp; what does not depend on columns by a lane for each row. */
template <class S>
DEVICE void finish(const struct attn_cuda_args *a, const struct work<S> *w,
                   const typename S::real *results)
{
    enum { EACH = S::ROWS / S::WARPS };
    typedef typename S::real real;
    const int own = dev::warp() + dev::lane() % EACH * S::WARPS;
    const struct ending<S> mine = end_row<S>(a, w, results, own, dev::lane() < EACH);
    if (w->slot >= 0)
        put_columns<S, itself<real>>(mine, results, (int)w->columns);
    else
        put_columns<S, typename S::T>(mine, results, (int)w->columns);
}

} // namespace fwd

#endif
