/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Vectors of each instruction set that the machine has: conversions of 16-bit numbers against
 * src/half.h, bit by bit, over all numbers to widen and all places where narrowing turns; bits that
 * become masks; tanh and powers against the C library's.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "attn/attn.h"
#include "context.h"
#include "expect.h"
#include "half.h"
#include "rng.h"
#include "vectors.h"

enum { LANES = 16, TYPES = 2 }; /* at most; f16 and bf16 */

#define KINDS(isa) extern const struct vectors vectors_f32_##isa, vectors_f64_##isa;
#define ROW(isa) {#isa, &vectors_f32_##isa, &vectors_f64_##isa, NULL}
#define DOT_ROW(isa) {#isa, NULL, NULL, &vectors_bf16_##isa}
KINDS(scalar)
KINDS(neon)
KINDS(avx2)
KINDS(avx512)
extern const struct vectors vectors_bf16_avx512bf16, vectors_bf16_neonbf16, vectors_bf16_amxbf16,
    vectors_bf16_amxbf16_emulated;

static const struct set {
    const char *isa;
    const struct vectors *f32, *f64;
    const struct vectors *words; /* of a set that multiplies two bf16 at a time */
} sets[] = {
#if ATTN_HAVE_SCALAR
    ROW(scalar),
#endif
#if ATTN_HAVE_NEON
    ROW(neon),
#endif
#if ATTN_HAVE_NEONBF16
    DOT_ROW(neonbf16),
#endif
#if ATTN_HAVE_AVX2
    ROW(avx2),
#endif
#if ATTN_HAVE_AVX512
    ROW(avx512),
#endif
#if ATTN_HAVE_AVX512BF16
    DOT_ROW(avx512bf16),
#endif
#if ATTN_HAVE_AMXBF16
    DOT_ROW(amxbf16),
#endif
#if ATTN_HAVE_AMXBF16_EMULATED
    DOT_ROW(amxbf16_emulated),
#endif
};

static const char *const type_names[TYPES] = {"f16", "bf16"};

static float widened(int type, uint16_t x)
{
    return type == 0 ? attn_f16_to_f32(x) : attn_bf16_to_f32(x);
}

static uint16_t narrowed(int type, float x)
{
    return type == 0 ? attn_f32_to_f16(x) : attn_f32_to_bf16(x);
}

static bool alike(int type, uint16_t a, uint16_t b)
{
    return a == b || (isnan(widened(type, a)) && isnan(widened(type, b)));
}

/* ---- 16-bit numbers -------------------------------------------------------------------------- */

static void check_widening(const struct vectors *v, const char *isa, int type)
{
    uint16_t from[LANES];
    float to[LANES];

    for (uint32_t n = 0; n < 0x10000; n += (uint32_t)v->lanes) {
        for (int i = 0; i < v->lanes; i++)
            from[i] = (uint16_t)(n + (uint32_t)i);
        v->widen[type](to, from);
        for (int i = 0; i < v->lanes; i++) {
            const float x = widened(type, from[i]);
            EXPECT(isnan(x) ? isnan(to[i]) != 0 : attn_bits_of(to[i]) == attn_bits_of(x),
                   "%s: %s %04x becomes %a, expected %a", isa, type_names[type],
                   (unsigned)from[i], (double)to[i], (double)x);
        }
    }
}

/* Numbers to narrow, taken together until they fill a vector, each in every lane in turn. */
struct queue {
    const struct vectors *v;
    const char *isa;
    int type, count, turn;
    float x[LANES];
};

/* Both numbers of words: a set may take those below 2^-126, before or after rounding, for 0. */
static void check_words(const struct queue *q)
{
    const int lanes = q->v->lanes;
    float second[LANES] = {0};
    uint16_t to[2 * LANES];

    for (int i = 0; i < lanes; i++)
        second[i] = q->x[lanes - 1 - i];
    q->v->pack(to, q->x, second);
    for (int i = 0; i < 2 * lanes; i++) {
        const float x = i % 2 ? second[i / 2] : q->x[i / 2];
        const uint32_t bits = attn_bits_of(x);
        const bool tie = q->v->rough && bits % 0x10000 == 0x8000;
        const uint16_t expected = tie ? (uint16_t)(bits / 0x10000 + 1) : narrowed(1, x);
        const bool none = fabsf(x) < FLT_MIN && to[i] == (expected & 0x8000);
        EXPECT(none || (q->v->rough && isnan(x)) || alike(1, to[i], expected),
               "%s: %a becomes %04x in a word, expected %04x", q->isa, (double)x, (unsigned)to[i],
               (unsigned)expected);
    }
}

static void check_numbers(const struct queue *q)
{
    uint16_t to[LANES];

    q->v->narrow[q->type](to, q->x);
    for (int i = 0; i < q->v->lanes; i++) {
        const uint16_t expected = narrowed(q->type, q->x[i]);
        EXPECT(alike(q->type, to[i], expected), "%s: %a becomes %s %04x, expected %04x", q->isa,
               (double)q->x[i], type_names[q->type], (unsigned)to[i], (unsigned)expected);
    }
}

static void put(struct queue *q, float x)
{
    q->x[(q->count + q->turn) % q->v->lanes] = x;
    if (++q->count < q->v->lanes)
        return;
    if (q->v->pack)
        check_words(q);
    check_numbers(q);
    q->count = 0;
    q->turn++;
}

static void put_all_signs(struct queue *q, float x)
{
    put(q, x);
    put(q, -x);
    put(q, nextafterf(x, INFINITY));
    put(q, -nextafterf(x, INFINITY));
    put(q, nextafterf(x, -INFINITY));
    put(q, -nextafterf(x, -INFINITY));
}

/* Every number of the type, every tie and what lies beside them. The tie above the largest number
 * is that to a next one in which the type would go on. */
static void put_turns(struct queue *q)
{
    const uint16_t infinite = q->type == 0 ? 0x7c00 : 0x7f80;

    for (uint16_t n = 0; n < infinite; n++) {
        const float x = widened(q->type, n), next = widened(q->type, (uint16_t)(n + 1));
        put_all_signs(q, x);
        put_all_signs(q, isinf(next) ? x + (x - widened(q->type, (uint16_t)(n - 1))) / 2
                                     : x + (next - x) / 2);
    }
}

static void check_narrowing(const struct vectors *v, const char *isa, int type)
{
    static const uint32_t special[] = {0x7f800000, 0x7f800001, 0x7f800fff, 0x7f801fff, 0x7f80ffff,
                                       0x7fbfffff, 0x7fc00000, 0x7fffffff, 0x7f7fffff, 0x00000001,
                                       0x007fffff, 0x00800000, 0x32ffffff, 0x33000000, 0x33000001,
                                       0x477fefff, 0x477ff000, 0x47800000};
    struct queue q = {.v = v, .isa = isa, .type = type};
    struct rng r = rng_seeded(1);

    put_turns(&q);
    for (size_t n = 0; n < sizeof special / sizeof special[0]; n++) {
        put(&q, attn_from_bits(special[n]));
        put(&q, attn_from_bits(special[n] | 0x80000000));
    }
    for (int n = 0; n < 100000 || q.count > 0; n++)
        put(&q, attn_from_bits((uint32_t)rng_next(&r)));
}

/* Words of 16-bit numbers, of which none changes. */
static void check_zip(const struct vectors *v, const char *isa)
{
    uint16_t first[LANES], second[LANES], to[2 * LANES];

    for (uint32_t n = 0; n < 0x10000; n += (uint32_t)v->lanes) {
        for (int i = 0; i < v->lanes; i++) {
            first[i] = (uint16_t)(n + (uint32_t)i);
            second[i] = (uint16_t)~first[i];
        }
        v->zip(to, first, second);
        for (int i = 0; i < v->lanes; i++)
            EXPECT(to[2 * i] == first[i] && to[2 * i + 1] == second[i],
                   "%s: %04x and %04x make a word of %04x and %04x", isa, (unsigned)first[i],
                   (unsigned)second[i], (unsigned)to[2 * i], (unsigned)to[2 * i + 1]);
    }
}

/* ---- Masks, tanh and powers ------------------------------------------------------------------ */

/* Numbers of the computing type, which is f64 where `wide`. */
union numbers {
    float narrow[LANES];
    double wide[LANES];
};

static double number(const union numbers *a, bool wide, int i)
{
    return wide ? a->wide[i] : (double)a->narrow[i];
}

static void check_masks(const struct vectors *v, const char *isa, bool wide)
{
    union numbers to;

    for (uint32_t bits = 0; bits < 1u << v->lanes; bits++)
        for (uint32_t beyond = 0; beyond < 2; beyond++) {
            bool ok = true;
            v->mask(&to, bits | (beyond ? UINT32_C(0xffffffff) << v->lanes : 0));
            for (int i = 0; i < v->lanes; i++)
                ok = ok && number(&to, wide, i) == (double)(bits >> i & 1);
            EXPECT(ok, "%s f%d: bits %x do not become that mask", isa, wide ? 64 : 32,
                   (unsigned)bits);
        }
}

/* To 4 units in the last place, at numbers of all sizes and those where a result turns to 1. */
static void check_tanh(const struct vectors *v, const char *isa, bool wide)
{
    static const double special[] = {0, INFINITY, NAN, 1, 9, 10, 19, 20, 20.5, 1e30, 0x1p-126};
    const size_t specials = sizeof special / sizeof special[0];
    const double epsilon = wide ? DBL_EPSILON : (double)FLT_EPSILON;
    struct rng r = rng_seeded(2);
    union numbers from, to;

    for (size_t n = 0; n < 40000; n += (size_t)v->lanes) {
        for (int i = 0; i < v->lanes; i++) {
            const size_t at = n + (size_t)i;
            const double size = ldexp(1 + rng_uniform(&r), (int)rng_below(&r, 35) - 30);
            const double x = at / 2 < specials ? special[at / 2] : size;
            if (wide)
                from.wide[i] = at % 2 ? -x : x;
            else
                from.narrow[i] = (float)(at % 2 ? -x : x);
        }
        v->tanh(&to, &from);
        for (int i = 0; i < v->lanes; i++) {
            const double x = number(&from, wide, i), y = number(&to, wide, i), good = tanh(x);
            EXPECT(isnan(x) ? isnan(y) != 0 : fabs(y - good) <= 4 * epsilon * fabs(good),
                   "%s f%d: tanh of %a is %a, expected %a", isa, wide ? 64 : 32, x, y, good);
        }
    }
}

/* Whether p is 2^x, x being rounded to the type once where `rounds`: exactly 1 at 0, and 0, but
 * never denormal, from the least exponent down; from `most` on it is as large, of either sign, or
 * NaN. */
static bool is_power(double p, double x, bool wide, bool rounds, int most)
{
    const double epsilon = wide ? DBL_EPSILON : (double)FLT_EPSILON;
    const int least = wide ? DBL_MIN_EXP - 1 : FLT_MIN_EXP - 1;
    if (isnan(x))
        return isnan(p);
    if (x >= most)
        return isnan(p) || fabs(p) >= ldexp(1, most - 1);
    if (x <= least + 0.1)
        return p == 0 || (x >= least && fabs(p / exp2(x) - 1) <= 0.01);
    const double allowed = epsilon * (2.25 + (rounds ? fabs(x) * 0.35 : 0));
    return x == 0 ? p == 1 : fabs(p / exp2(x) - 1) <= allowed;
}

/* At exponents of all sizes, near 0 and near both ends. kind: of v->power. */
static void check_powers(const struct vectors *v, const char *isa, bool wide, int kind)
{
    static const double special[] = {0, 126, 127, 127.9, 128, 129, 200, 1000, 1023, 1e4, 1e6, 1e30,
                                     INFINITY, NAN, 0x1p-100, 125, 125.8, 126.1, 1021.8, 1022.1};
    const size_t specials = sizeof special / sizeof special[0];
    const double one = kind == 0 ? 1 : v->one;
    const int lift = ilogb(one);
    struct rng r = rng_seeded(3);
    union numbers from, to;

    for (size_t n = 0; n < 200000; n += (size_t)v->lanes) {
        const int power = (int)rng_below(&r, 9) - 5;
        const double scale = n % 3 == 0 ? 1 : ldexp(0.5 + rng_uniform(&r), power);
        const double wanted = scale * 0x1.71547652b82fep+0;
        const double by = wide ? wanted : (double)(float)wanted;
        for (int i = 0; i < v->lanes; i++) {
            const size_t at = n + (size_t)i;
            const int order = (int)rng_below(&r, 32) - 22;
            const double part = rng_uniform(&r);
            const double size = at % 4 < 2 ? 130 * part : ldexp(1 + part, order);
            const double x = (at / 2 < specials ? special[at / 2] : size) / by;
            if (wide)
                from.wide[i] = at % 2 ? x : -x;
            else
                from.narrow[i] = (float)(at % 2 ? x : -x);
        }
        v->power[kind](&to, &from, scale);
        for (int i = 0; i < v->lanes; i++) {
            const double x = number(&from, wide, i), p = number(&to, wide, i) / one;
            EXPECT(is_power(p, x * by, wide, wide || kind == POWERS - 1, v->most[kind] - lift),
                   "%s f%d: 2^(%a * %a), kind %d, is %a, expected %a", isa, wide ? 64 : 32, x, by,
                   kind, p, exp2(x * by));
        }
    }
}

/* ---- Matrices -------------------------------------------------------------------------------- */

/* Intel 64 and IA-32 Architectures Software Developer's Manual, TDPBF16PS: numbers below the
 * smallest normal one count as 0, given or made, and all roundings are to nearest; the first and the
 * second numbers of words are summed apart. */
static float flushed(float x) { return fabsf(x) < FLT_MIN ? copysignf(0, x) : x; }

static float expected_sum(float sum, const uint16_t *row, const uint16_t *column, int lanes)
{
    float part[2] = {0, 0};
    for (int w = 0; w < lanes; w++)
        for (int i = 0; i < 2; i++)
            part[i] = flushed(fmaf(flushed(attn_bf16_to_f32(row[2 * w + i])),
                                   flushed(attn_bf16_to_f32(column[w * 2 * lanes + i])), part[i]));
    return flushed(flushed(sum) + flushed(part[0] + part[1]));
}

/* Of some size, in one problem of four of sizes far apart; also numbers that are none. */
static uint16_t number_to_multiply(struct rng *r, int64_t problem)
{
    static const float special[] = {0.0f, -0.0f, 1e-40f, -1e-39f, FLT_MIN, INFINITY, NAN};
    const double size = problem % 4 == 3 ? ldexp(1, (int)rng_below(r, 250) - 130) : 1;
    if (problem % 8 > 3 && rng_below(r, 200) == 0)
        return attn_f32_to_bf16(special[rng_below(r, sizeof special / sizeof special[0])]);
    return attn_f32_to_bf16((float)((2 * rng_uniform(r) - 1) * size));
}

/* Makes the library ask for what a process may only use then. */
static bool may_multiply(const char *isa)
{
    attn_context *context = context_of_isa(isa);
    const bool serves = context_serves(context, isa);
    attn_context_destroy(context);
    return serves;
}

static void check_matrices(const struct vectors *v, const char *isa)
{
    enum { PROBLEMS = 200 };
    struct rng r = rng_seeded(16);
    const int n = v->lanes;
    for (int64_t problem = 0; problem < PROBLEMS; problem++) {
        uint16_t rows[LANES * 2 * LANES], columns[LANES * 2 * LANES];
        float sums[LANES * LANES], given[LANES * LANES];
        for (int i = 0; i < n * 2 * n; i++) {
            rows[i] = number_to_multiply(&r, problem);
            columns[i] = number_to_multiply(&r, problem);
        }
        for (int i = 0; i < n * n; i++)
            given[i] = sums[i] = attn_bf16_to_f32(number_to_multiply(&r, problem)) * 1.001f;
        v->multiply(sums, rows, columns);
        for (int i = 0; i < n * n; i++) {
            const float expected =
                expected_sum(given[i], rows + i / n * 2 * n, columns + i % n * 2, n);
            EXPECT(sums[i] == expected || (isnan(sums[i]) && isnan(expected)),
                   "%s: row %d, column %d of matrices %lld become %a, expected %a", isa, i / n,
                   i % n, (long long)problem, (double)sums[i], (double)expected);
        }
    }
}

/* ---------------------------------------------------------------------------------------------- */

static void check_set(const struct set *s)
{
    const struct vectors *v = s->words ? s->words : s->f32;

    for (int type = 0; type < TYPES; type++) {
        check_widening(v, s->isa, type);
        check_narrowing(v, s->isa, type);
    }
    if (s->words)
        check_zip(v, s->isa);
    if (v->multiply && may_multiply(s->isa))
        check_matrices(v, s->isa);
    else if (v->multiply)
        report_skip("instruction set %s: the system does not allow it", s->isa);
    check_masks(v, s->isa, false);
    check_tanh(v, s->isa, false);
    for (int kind = 0; kind < POWERS; kind++)
        check_powers(v, s->isa, false, kind);
    if (s->f64) {
        check_masks(s->f64, s->isa, true);
        check_tanh(s->f64, s->isa, true);
        for (int kind = 0; kind < POWERS; kind++)
            check_powers(s->f64, s->isa, true, kind);
    }
}

int main(void)
{
    report_begin("vectors");
    for (size_t n = 0; n < sizeof sets / sizeof sets[0]; n++) {
        int32_t usable = 0;
        const char *name = "";
        for (int32_t i = 0; name && strcmp(name, sets[n].isa) != 0; i++)
            name = attn_isa_name(i, &usable);
        if (!name)
            report_fail("%s: the library does not know this set", sets[n].isa);
        else if (usable)
            check_set(&sets[n]);
        else
            report_skip("instruction set %s: not on this machine", sets[n].isa);
    }
    return report_end();
}
