/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Merging of partial results: against plain sums on random problems, what is not finite, and wrong
 * arguments.
 */
#include <math.h>
#include <string.h>

#include "attn/attn.h"
#include "compare.h"
#include "element.h"
#include "expect.h"
#include "memory.h"
#include "strided.h"

enum { CASES = 1500, MOST_PARTS = 6 };

struct problem {
    attn_dtype dtype;
    int64_t batch, seqlen, heads, head_dim, parts;
    int64_t out_into, lse_into; /* the part that is merged into; -1: none */
    bool no_lse;
    struct strided part_out[MOST_PARTS], part_lse[MOST_PARTS], out, lse;
};

static void draw(struct problem *p, struct rng *r)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};
    memset(p, 0, sizeof *p);
    p->dtype = RNG_PICK(r, types);
    p->batch = rng_below(r, 4);
    p->seqlen = rng_below(r, 6);
    p->heads = 1 + rng_below(r, 4);
    p->head_dim = 1 + rng_below(r, rng_chance(r, 15) ? 300 : 20);
    p->parts = 1 + rng_below(r, MOST_PARTS);
    p->out_into = rng_chance(r, 30) ? rng_below(r, p->parts) : -1;
    p->lse_into = rng_chance(r, 30) ? rng_below(r, p->parts) : -1;
    p->no_lse = rng_chance(r, 15);
    for (int64_t n = 0; n <= p->parts; n++) {
        struct strided *o = n < p->parts ? &p->part_out[n] : &p->out;
        struct strided *l = n < p->parts ? &p->part_lse[n] : &p->lse;
        *o = strided_make(r, p->dtype, p->batch, p->seqlen, p->heads, p->head_dim, false);
        *l = strided_make(r, element_computing(p->dtype), p->batch, p->seqlen, p->heads, 1, true);
        if (n < p->parts) {
            strided_fill(o, r);
            strided_fill(l, r);
        }
    }
}

/* LSEs of all kinds: close, far apart, of a part that saw nothing and has NaN for an out. */
static void draw_lse(struct problem *p, struct rng *r, int64_t b, int64_t s, int64_t h)
{
    static const double spreads[] = {1, 20, 400};
    const double spread = RNG_PICK(r, spreads);
    for (int64_t n = 0; n < p->parts; n++) {
        const bool neutral = rng_chance(r, 20);
        strided_set(&p->part_lse[n], b, s, h, 0, neutral ? -INFINITY : spread * rng_normal(r));
        for (int64_t c = 0; neutral && c < p->head_dim; c++)
            strided_set(&p->part_out[n], b, s, h, c, NAN);
    }
}

static attn_merge_desc desc_of(const struct problem *p, attn_input *outs, attn_input *lses)
{
    attn_merge_desc d = attn_merge_desc_init();
    for (int64_t n = 0; n < p->parts; n++) {
        outs[n] = strided_input(&p->part_out[n]);
        lses[n] = strided_input(&p->part_lse[n]);
    }
    d.batch = p->batch;
    d.seqlen = p->seqlen;
    d.heads = p->heads;
    d.head_dim = p->head_dim;
    d.parts = p->parts;
    d.part_out = outs;
    d.part_lse = lses;
    d.out = strided_output(p->out_into < 0 ? &p->out : &p->part_out[p->out_into]);
    d.lse = strided_output(p->lse_into < 0 ? &p->lse : &p->part_lse[p->lse_into]);
    if (p->no_lse)
        d.lse.data = NULL;
    return d;
}

/* The truth of a row; `most` is the largest number in its out that counts. */
static long double truth_of_row(const struct problem *p, int64_t b, int64_t s, int64_t h,
                                long double *out, long double *most)
{
    long double sum = 0, max = -HUGE_VALL;
    *most = 0;
    for (int64_t n = 0; n < p->parts; n++)
        max = fmaxl(max, strided_get(&p->part_lse[n], b, s, h, 0));
    for (int64_t c = 0; c < p->head_dim; c++)
        out[c] = 0;
    for (int64_t n = 0; n < p->parts; n++) {
        const long double l = strided_get(&p->part_lse[n], b, s, h, 0);
        const long double weight = isinf(l) ? 0 : expl(l - max);
        sum += weight;
        for (int64_t c = 0; !isinf(l) && c < p->head_dim; c++) {
            const long double x = strided_get(&p->part_out[n], b, s, h, c);
            out[c] += weight * x;
            *most = fmaxl(*most, fabsl(x));
        }
    }
    for (int64_t c = 0; c < p->head_dim && sum > 0; c++)
        out[c] /= sum;
    return sum > 0 ? max + logl(sum) : -HUGE_VALL;
}

static bool close_to(long double got, long double truth, long double allowed)
{
    return isinf(truth) ? got == truth : fabsl(got - truth) <= allowed;
}

/* Whether a row is right; it is then written to what is expected of the whole memory. */
static bool check_row(const struct problem *before, const struct strided *out,
                      const struct strided *lse, struct strided *want_out,
                      struct strided *want_lse, int64_t b, int64_t s, int64_t h)
{
    const attn_dtype type = before->dtype;
    const long double ulps = type == ATTN_F64 ? 4 : 1;
    long double truth[300], most;
    const long double l = truth_of_row(before, b, s, h, truth, &most);
    bool good = true;
    for (int64_t c = 0; c < before->head_dim; c++) {
        const double x = strided_get(out, b, s, h, c);
        good &= close_to(x, truth[c], isinf(l) ? 0 : ulps * compare_ulp(type, most));
        strided_set(want_out, b, s, h, c, x);
    }
    if (before->no_lse)
        return good;
    const double got = strided_get(lse, b, s, h, 0);
    strided_set(want_lse, b, s, h, 0, got);
    const long double unit = compare_ulp(element_computing(type), fmaxl(1, fabsl(l)));
    return good && close_to(got, l, ulps * unit);
}

static void test_case(struct problem *p, int64_t seed)
{
    struct problem before = *p;
    attn_input outs[MOST_PARTS], lses[MOST_PARTS];
    bool good = true;
    for (int64_t n = 0; n < p->parts; n++) {
        before.part_out[n] = strided_copy(&p->part_out[n]);
        before.part_lse[n] = strided_copy(&p->part_lse[n]);
    }
    struct strided *out = p->out_into < 0 ? &p->out : &p->part_out[p->out_into];
    struct strided *lse = p->lse_into < 0 ? &p->lse : &p->part_lse[p->lse_into];
    struct strided want_out = strided_copy(out), want_lse = strided_copy(lse);
    const attn_merge_desc d = desc_of(p, outs, lses);
    const attn_status status = attn_merge(NULL, &d);
    for (int64_t n = 0; n < p->batch * p->seqlen * p->heads; n++)
        good &= check_row(&before, out, lse, &want_out, &want_lse, n / p->heads / p->seqlen,
                          n / p->heads % p->seqlen, n % p->heads);
    EXPECT(status == ATTN_OK, "case %lld: %s", (long long)seed, attn_last_message(NULL));
    EXPECT(good, "case %lld: not the weighted sum", (long long)seed);
    EXPECT(strided_same(out, &want_out) && strided_same(lse, &want_lse),
           "case %lld: something else was written", (long long)seed);
    for (int64_t n = 0; n < p->parts; n++) {
        EXPECT((n == p->out_into || strided_same(&p->part_out[n], &before.part_out[n])) &&
                   (n == p->lse_into || strided_same(&p->part_lse[n], &before.part_lse[n])),
               "case %lld: part %lld was written", (long long)seed, (long long)n);
        strided_free(&before.part_out[n]);
        strided_free(&before.part_lse[n]);
    }
    strided_free(&want_out);
    strided_free(&want_lse);
}

static void test_random(void)
{
    for (int64_t seed = 0; seed < CASES; seed++) {
        struct rng r = rng_seeded((uint64_t)seed);
        struct problem p;
        draw(&p, &r);
        for (int64_t n = 0; n < p.batch * p.seqlen * p.heads; n++)
            draw_lse(&p, &r, n / p.heads / p.seqlen, n / p.heads % p.seqlen, n % p.heads);
        test_case(&p, seed);
        for (int64_t n = 0; n < p.parts; n++) {
            strided_free(&p.part_out[n]);
            strided_free(&p.part_lse[n]);
        }
        strided_free(&p.out);
        strided_free(&p.lse);
    }
}

/* ------------------------------------------------------------------------------------------------
 * What is not finite, and what is kept to the bit
 * --------------------------------------------------------------------------------------------- */

static bool alike(float a, float b) { return isnan(a) ? isnan(b) != 0 : a == b; }

/* Two parts of one number each. */
static const struct {
    const char *name;
    float out[2], lse[2], merged_out, merged_lse;
} pairs[] = {
    {"two neutral ones", {0, 0}, {-INFINITY, -INFINITY}, 0, -INFINITY},
    {"two neutral ones, NaN in them", {NAN, NAN}, {-INFINITY, -INFINITY}, 0, -INFINITY},
    {"a neutral one first", {NAN, 0.1F}, {-INFINITY, 3.3F}, 0.1F, 3.3F},
    {"a neutral one last", {0.1F, NAN}, {-1e30F, -INFINITY}, 0.1F, -1e30F},
    {"an LSE that is NaN", {1, 2}, {NAN, 1}, NAN, NAN},
    {"the other LSE", {1, 2}, {1, NAN}, NAN, NAN},
    {"NaN beside neutral", {1, 0}, {NAN, -INFINITY}, NAN, NAN},
    {"a sink of +inf", {0, 2}, {INFINITY, 1}, 0, INFINITY},
    {"two of them", {0, 0}, {INFINITY, INFINITY}, 0, INFINITY},
    {"a sink of +inf and nothing", {0, 0}, {INFINITY, -INFINITY}, 0, INFINITY},
    {"a sink of +inf and NaN", {0, 0}, {INFINITY, NAN}, NAN, NAN},
    {"a NaN value, far behind", {NAN, 1}, {-1e6F, 1}, NAN, 1},
    {"an infinite value", {INFINITY, 1}, {0, 0}, INFINITY, 0.6931472F},
    {"equal parts", {1, 2}, {5, 5}, 1.5F, 5.6931472F},
};

static void test_pairs(void)
{
    for (size_t n = 0; n < sizeof pairs / sizeof pairs[0]; n++) {
        float out = 77, lse = 77;
        attn_merge_desc d = attn_merge_desc_init();
        const attn_input outs[2] = {{&pairs[n].out[0], ATTN_F32, 0, 0, 0},
                                    {&pairs[n].out[1], ATTN_F32, 0, 0, 0}};
        const attn_input lses[2] = {{&pairs[n].lse[0], ATTN_F32, 0, 0, 0},
                                    {&pairs[n].lse[1], ATTN_F32, 0, 0, 0}};
        d.batch = d.seqlen = d.heads = d.head_dim = 1;
        d.parts = 2;
        d.part_out = outs;
        d.part_lse = lses;
        d.out.data = &out;
        d.lse.data = &lse;
        const attn_status status = attn_merge(NULL, &d);
        EXPECT(status == ATTN_OK && alike(out, pairs[n].merged_out) &&
                   alike(lse, pairs[n].merged_lse),
               "%s: %g, %g (expected %g, %g)", pairs[n].name, (double)out, (double)lse,
               (double)pairs[n].merged_out, (double)pairs[n].merged_lse);
    }
}

/* ------------------------------------------------------------------------------------------------
 * Wrong arguments
 * --------------------------------------------------------------------------------------------- */

static struct {
    float part_out[2][2][3][4], part_lse[2][2][3], out[2][3][4], lse[2][3];
} w;

struct wrong {
    attn_input outs[2], lses[2];
    attn_merge_desc d;
};

static void sound(struct wrong *x)
{
    memset(&w, 0, sizeof w);
    memset(x, 0, sizeof *x);
    for (int n = 0; n < 2; n++) {
        x->outs[n].data = w.part_out[n];
        x->lses[n].data = w.part_lse[n];
    }
    x->d = attn_merge_desc_init();
    x->d.batch = 2;
    x->d.seqlen = 3;
    x->d.heads = 1;
    x->d.head_dim = 4;
    x->d.parts = 2;
    x->d.part_out = x->outs;
    x->d.part_lse = x->lses;
    x->d.out.data = w.out;
    x->d.lse.data = w.lse;
    memset(w.out, 0x11, sizeof w.out);
    memset(w.lse, 0x11, sizeof w.lse);
}

static void expect_wrong(const struct wrong *x, attn_status want, const char *field)
{
    unsigned char before[sizeof w];
    memcpy(before, &w, sizeof w);
    const attn_status got = attn_merge(NULL, &x->d);
    EXPECT(got == want && strstr(attn_last_message(NULL), field),
           "%s: %s (\"%s\"), expected %s", field, attn_status_name(got), attn_last_message(NULL),
           attn_status_name(want));
    EXPECT(memcmp(before, &w, sizeof w) == 0, "%s: something was written", field);
}

#define WRONG(change, status, field)                                                               \
    do {                                                                                           \
        struct wrong x;                                                                            \
        sound(&x);                                                                                 \
        change;                                                                                    \
        expect_wrong(&x, status, field);                                                           \
    } while (0)

static void test_wrong(void)
{
    WRONG(x.d.size = 1, ATTN_INVALID_SIZE, "size");
    WRONG(x.d.batch = -1, ATTN_INVALID_SHAPE, "batch");
    WRONG(x.d.seqlen = -1, ATTN_INVALID_SHAPE, "seqlen");
    WRONG(x.d.heads = -1, ATTN_INVALID_SHAPE, "heads");
    WRONG(x.d.head_dim = 0, ATTN_INVALID_SHAPE, "head_dim");
    WRONG(x.d.parts = 0, ATTN_INVALID_SHAPE, "parts");
    WRONG(x.d.batch = x.d.seqlen = INT64_C(1) << 40, ATTN_INVALID_OVERFLOW, "batch * seqlen");
    WRONG(x.d.part_out = NULL, ATTN_INVALID_NULL, "part_out");
    WRONG(x.d.part_lse = NULL, ATTN_INVALID_NULL, "part_lse");
    WRONG(x.outs[1].data = NULL, ATTN_INVALID_NULL, "part_out[1]");
    WRONG(x.lses[1].data = NULL, ATTN_INVALID_NULL, "part_lse[1]");
    WRONG(x.d.out.data = NULL, ATTN_INVALID_NULL, "out");
    WRONG(x.outs[1].dtype = ATTN_F16, ATTN_INVALID_DTYPE, "part_out[1].dtype");
    WRONG(x.lses[1].dtype = ATTN_F64, ATTN_INVALID_DTYPE, "part_lse[1].dtype");
    WRONG(x.d.out.dtype = ATTN_BOOL, ATTN_INVALID_DTYPE, "out.dtype");
    WRONG(x.d.out.dtype = (attn_dtype)-1, ATTN_INVALID_ENUM, "out.dtype");
    WRONG(x.outs[1].token_stride = -4, ATTN_INVALID_STRIDE, "part_out[1].token_stride");
    WRONG(x.d.out.batch_stride = 12, ATTN_INVALID_OVERLAP, "out");
    WRONG(x.d.out.data = &w.part_out[0][0][1], ATTN_INVALID_OVERLAP, "part_out");
    WRONG(x.d.lse.data = &w.part_lse[0][0][1], ATTN_INVALID_OVERLAP, "part_lse[0]");
    WRONG(x.d.lse.data = w.out, ATTN_INVALID_OVERLAP, "out");
    WRONG(x.d.out.data = w.part_lse, ATTN_INVALID_OVERLAP, "part_lse[0]");
    EXPECT(attn_merge(NULL, NULL) == ATTN_INVALID_NULL, "a null descriptor");
}

int main(void)
{
    report_begin("merge");
    test_random();
    test_pairs();
    test_wrong();
    return report_end();
}
