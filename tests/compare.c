/* SPDX-License-Identifier: BSD-3-Clause */
#include "compare.h"

#include <math.h>

#include "element.h"
#include "truth.h"

const char *const compare_names[COMPARES] = {"out", "lse", "probs", "probs_fn", "key_sums", "dq",
                                           "dk",  "dv",  "dbias", "dsink"};

long double compare_ulp(attn_dtype type, long double x)
{
    const struct element_format *f = element_format(type);
    int exponent = f->least;

    if (x != 0)
        frexpl(x, &exponent);
    return ldexpl(1, (exponent > f->least ? exponent : f->least) - f->digits);
}

static bool is_gradient(enum compare_what what) { return what >= COMPARE_DQ; }

long double compare_allowed(enum compare_what what, attn_dtype type, const long double *truth,
                            const long double *eager, int64_t n)
{
    long double most = what == COMPARE_LSE ? 1 : 0, error = 0;

    for (int64_t i = 0; i < n; i++) { /* comparisons: calls would take a third of some suites */
        const long double size = truth[i] < 0 ? -truth[i] : truth[i], off = eager[i] - truth[i];
        if (!(size < TRUTH_OPEN))
            continue;
        most = size > most ? size : most;
        if (eager[i] < TRUTH_OPEN && eager[i] > -TRUTH_OPEN)
            error = off > error ? off : -off > error ? -off : error;
    }
    const bool element = what == COMPARE_OUT || what == COMPARE_PROBS ||
                         (is_gradient(what) && what != COMPARE_DSINK);
    const attn_dtype unit = element ? type : element_computing(type);
    const long double least =
        what == COMPARE_LSE && type == ATTN_BF16 ? BUDGET_BF16_LSE * most : 0;
    const long double allowed =
        fmaxl(least, BUDGET_FACTOR * error + BUDGET_ULPS * compare_ulp(unit, most));
    /* What may be off by more than the type holds may be infinite. */
    return allowed > element_format(unit)->most ? INFINITY : allowed;
}

static bool same_kind(enum compare_what what, long double truth, double got)
{
    if (is_gradient(what))
        return !isfinite(got);
    if (isnan(truth))
        return isnan(got);
    return what == COMPARE_OUT ? !isfinite(got) : (long double)got == truth;
}

static bool within(enum compare_what what, long double truth, long double allowed, double got)
{
    if (truth == TRUTH_OPEN)
        return true;
    if (!isfinite(truth))
        return same_kind(what, truth, got);
    if (truth == TRUTH_NONE || (truth == 0 && what >= COMPARE_PROBS && !is_gradient(what)))
        return got == 0;
    return fabsl((long double)got - truth) <= allowed;
}

bool compare_values(enum compare_what what, const long double *truth, long double allowed,
                    const double *got, int64_t n, double *worst, struct compare_fault *fault)
{
    long double most = 0;

    for (int64_t i = 0; i < n; i++) {
        const long double error = fabsl((long double)got[i] - truth[i]);
        if (!within(what, truth[i], allowed, got[i])) {
            *fault = (struct compare_fault){i, got[i], truth[i], error, allowed};
            return false;
        }
        if (error > most && isfinite(truth[i]) && truth[i] != TRUTH_OPEN)
            most = error;
    }
    if (worst && allowed > 0)
        *worst = fmax(*worst, (double)(most / allowed));
    return true;
}

int64_t compare_bits(const double *a, const double *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const bool alike = isnan(a[i]) ? isnan(b[i]) != 0
                                       : a[i] == b[i] && !signbit(a[i]) == !signbit(b[i]);
        if (!alike)
            return i;
    }
    return -1;
}
