/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two runs share a byte where a bounded linear equation has a solution in integers: the difference
 * of the two addresses lies within the runs. With all coefficients made positive it reads
 *     lo <= c[0] z[0] + c[1] z[1] + ... <= hi,    0 <= z[k] <= n[k],
 * and is searched from the largest coefficient down: what the smaller ones can still add bounds
 * each z[k] to one or two values if strides nest.
 */
#include "overlap.h"

enum {
    TERMS = 2 * ATTN_BYTES_AXES,
    MOST_VISITS = 100000 /* about a millisecond */
};

/* Reaches from here on are no layout of real memory; sums of two of them still fit. */
#define TOO_FAR (INT64_C(1) << 61)

struct equation {
    int64_t c[TERMS + 1], n[TERMS];
    int terms;
    int64_t lo, hi;
    int64_t span[TERMS + 1]; /* the most that terms k and up add to the sum */
    int64_t gcd[TERMS + 1];  /* of the coefficients of terms k and up */
    bool gapless[TERMS + 1]; /* terms k and up reach every interval that meets 0 .. span[k] */
    int visits;
};

static int64_t gcd_of(int64_t a, int64_t b)
{
    while (b) {
        const int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

static int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b > 0); }

/* Adds stride * x, from <= x <= to, to the sum; coefficients stay sorted, largest first. */
static void add_term(struct equation *e, int64_t stride, int64_t from, int64_t to)
{
    e->lo -= stride * from;
    e->hi -= stride * from;
    if (stride == 0 || from == to)
        return;
    int k = e->terms;
    while (k > 0 && e->c[k - 1] < stride)
        k--;
    if (k > 0 && e->c[k - 1] == stride) {
        e->n[k - 1] += to - from;
        return;
    }
    for (int j = e->terms++; j > k; j--) {
        e->c[j] = e->c[j - 1];
        e->n[j] = e->n[j - 1];
    }
    e->c[k] = stride;
    e->n[k] = to - from;
}

/* Divides by what all coefficients have in common and fills in what bounds the search. */
static void prepare(struct equation *e)
{
    int64_t common = 0;
    for (int k = 0; k < e->terms; k++)
        common = gcd_of(common, e->c[k]);
    if (common > 1) {
        e->lo = ceil_div(e->lo, common);
        e->hi = floor_div(e->hi, common);
        for (int k = 0; k < e->terms; k++)
            e->c[k] /= common;
    }
    e->span[e->terms] = 0;
    e->gcd[e->terms] = 0;
    e->gapless[e->terms] = true;
    for (int k = e->terms - 1; k >= 0; k--) {
        e->span[k] = e->span[k + 1] + e->c[k] * e->n[k];
        e->gcd[k] = gcd_of(e->c[k], e->gcd[k + 1]);
        e->gapless[k] = e->gapless[k + 1] && e->c[k] <= e->span[k + 1] + (e->hi - e->lo) + 1;
    }
    e->visits = 0;
}

/* Whether terms k and up can add up to something from lo to hi. */
static bool search(struct equation *e, int k, int64_t lo, int64_t hi)
{
    if (lo > hi || hi < 0 || lo > e->span[k])
        return false;
    if (e->gapless[k] || ++e->visits > MOST_VISITS)
        return true;
    if (floor_div(hi, e->gcd[k]) < ceil_div(lo, e->gcd[k]))
        return false;
    const int64_t c = e->c[k];
    const int64_t first = lo > e->span[k + 1] ? ceil_div(lo - e->span[k + 1], c) : 0;
    const int64_t last = hi / c < e->n[k] ? hi / c : e->n[k];
    for (int64_t z = first; z <= last; z++)
        if (search(e, k + 1, lo - c * z, hi - c * z))
            return true;
    return false;
}

static bool has_solution(struct equation *e)
{
    prepare(e);
    return search(e, 0, e->lo, e->hi);
}

int64_t attn_bytes_reach(const struct attn_bytes *a)
{
    int64_t reach = a->run;
    for (int32_t n = 0; n < a->axes; n++) {
        if (a->extent[n] == 0)
            return 0;
        if (a->run)
            reach += (a->extent[n] - 1) * a->stride[n];
    }
    return reach;
}

/* The axes that lead anywhere, smallest stride first. */
static struct attn_bytes sorted(const struct attn_bytes *a)
{
    struct attn_bytes s = {.base = a->base, .run = a->run};
    for (int32_t n = 0; n < a->axes; n++) {
        if (a->extent[n] == 1)
            continue;
        int32_t k = s.axes++;
        for (; k > 0 && s.stride[k - 1] > a->stride[n]; k--) {
            s.extent[k] = s.extent[k - 1];
            s.stride[k] = s.stride[k - 1];
        }
        s.extent[k] = a->extent[n];
        s.stride[k] = a->stride[n];
    }
    return s;
}

/* The same bytes in fewer axes: neighbouring runs join, and so do axes that continue each other. */
static struct attn_bytes folded(const struct attn_bytes *a)
{
    const struct attn_bytes s = sorted(a);
    struct attn_bytes f = {.base = s.base, .run = s.run};
    for (int32_t n = 0; n < s.axes; n++) {
        const int32_t last = f.axes - 1;
        if (last < 0 && s.stride[n] <= f.run) {
            f.run += (s.extent[n] - 1) * s.stride[n];
        } else if (last >= 0 && s.stride[n] % f.stride[last] == 0 &&
                   s.stride[n] / f.stride[last] <= f.extent[last]) {
            f.extent[last] += (s.extent[n] - 1) * (s.stride[n] / f.stride[last]);
        } else {
            f.extent[f.axes] = s.extent[n];
            f.stride[f.axes++] = s.stride[n];
        }
    }
    return f;
}

bool attn_bytes_overlap(const struct attn_bytes *a, const struct attn_bytes *b)
{
    const int64_t reach_a = attn_bytes_reach(a), reach_b = attn_bytes_reach(b);
    if (reach_a == 0 || reach_b == 0)
        return false;
    if (b->base >= a->base ? b->base - a->base >= (uintptr_t)reach_a
                           : a->base - b->base >= (uintptr_t)reach_b)
        return false;
    if (reach_a >= TOO_FAR || reach_b >= TOO_FAR)
        return true;

    const struct attn_bytes fa = folded(a), fb = folded(b);
    const int64_t apart =
        b->base >= a->base ? (int64_t)(b->base - a->base) : -(int64_t)(a->base - b->base);
    struct equation e = {.terms = 0, .lo = apart - (fa.run - 1), .hi = apart + fb.run - 1};
    for (int32_t n = 0; n < fa.axes; n++)
        add_term(&e, fa.stride[n], 0, fa.extent[n] - 1);
    for (int32_t n = 0; n < fb.axes; n++)
        add_term(&e, fb.stride[n], 1 - fb.extent[n], 0);
    return has_solution(&e);
}

bool attn_bytes_overlap_self(const struct attn_bytes *a)
{
    const int64_t reach = attn_bytes_reach(a);
    if (reach == 0)
        return false;
    const struct attn_bytes s = sorted(a);
    int64_t inner = s.run;
    int32_t nested = 0; /* axes that step over all that lies inside them */
    for (; nested < s.axes && s.stride[nested] >= inner; nested++)
        inner += (s.extent[nested] - 1) * s.stride[nested];
    if (nested == s.axes)
        return false;
    if (reach >= TOO_FAR)
        return true;

    /* Two indices differ on a first axis, there by 1 or more, after it by anything. */
    for (int32_t n = s.axes - 1; n >= 0; n--) {
        struct equation e = {.terms = 0, .lo = -(s.run - 1), .hi = s.run - 1};
        add_term(&e, s.stride[n], 1, s.extent[n] - 1);
        for (int32_t j = 0; j < n; j++)
            add_term(&e, s.stride[j], 1 - s.extent[j], s.extent[j] - 1);
        if (has_solution(&e))
            return true;
    }
    return false;
}
