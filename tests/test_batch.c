/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Batch helpers against plain loops on random masks, there and back, their gradients, threads, and
 * wrong arguments.
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "element.h"
#include "expect.h"
#include "memory.h"
#include "rng.h"

enum { CASES = 1500, MOST_B = 6, MOST_S = 40, MOST_WIDTH = 17, ROWS = MOST_B * MOST_S };
enum { CANARY = -77 };

/* A random batch and what a packing of it has to be. */
struct batch {
    attn_dtype dtype;
    int64_t size, b, s, width, total, longest; /* size: bytes of an element */
    uint8_t mask[ROWS];
    int64_t indices[ROWS];
    int32_t cu[MOST_B + 1], lengths[MOST_B];
};

/* What the library said, one guard entry behind each array. */
struct answer {
    int64_t indices[ROWS + 1];
    int32_t cu[MOST_B + 2], lengths[MOST_B + 1];
    attn_packing packing;
};

static attn_packing answer_begin(struct answer *a)
{
    attn_packing p = {a->indices, a->cu, a->lengths, CANARY, CANARY};
    for (int n = 0; n <= ROWS; n++)
        a->indices[n] = CANARY;
    for (int n = 0; n < MOST_B + 2; n++)
        a->cu[n] = CANARY;
    for (int n = 0; n <= MOST_B; n++)
        a->lengths[n] = CANARY;
    return p;
}

/* Holes, left padding, right padding, nothing, everything: each row draws its own. */
static void draw_row(struct rng *r, uint8_t *mask, int64_t s)
{
    const int64_t kind = rng_below(r, 5), cut = rng_below(r, s + 1);
    for (int64_t n = 0; n < s; n++) {
        const bool keep = kind == 0   ? rng_chance(r, 60)
                          : kind == 1 ? n >= cut
                          : kind == 2 ? n < cut
                                      : kind == 3;
        mask[n] = keep ? (uint8_t)(1 + rng_below(r, 255)) : 0;
    }
}

static void plain_packing(struct batch *x)
{
    x->total = x->longest = 0;
    for (int64_t b = 0; b < x->b; b++) {
        x->cu[b] = (int32_t)x->total;
        for (int64_t n = b * x->s; n < (b + 1) * x->s; n++)
            if (x->mask[n])
                x->indices[x->total++] = n;
        x->lengths[b] = (int32_t)x->total - x->cu[b];
        if (x->lengths[b] > x->longest)
            x->longest = x->lengths[b];
    }
    x->cu[x->b] = (int32_t)x->total;
}

static struct batch draw(struct rng *r)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16, ATTN_BOOL};
    static const int64_t sizes[] = {4, 8, 2, 2, 1};
    const int64_t type = rng_below(r, 5);
    struct batch x = {.dtype = types[type], .size = sizes[type], .b = rng_below(r, MOST_B + 1),
                      .s = rng_below(r, MOST_S + 1), .width = 1 + rng_below(r, MOST_WIDTH)};
    for (int64_t b = 0; b < x.b; b++)
        draw_row(r, x.mask + b * x.s, x.s);
    plain_packing(&x);
    return x;
}

static bool packing_is(const struct batch *x, const struct answer *a)
{
    const size_t n = (size_t)x->total, b = (size_t)x->b;
    return memcmp(a->indices, x->indices, n * sizeof *x->indices) == 0 &&
           memcmp(a->cu, x->cu, (b + 1) * sizeof *x->cu) == 0 &&
           memcmp(a->lengths, x->lengths, b * sizeof *x->lengths) == 0 &&
           a->packing.total == x->total && a->packing.max_seqlen == x->longest &&
           a->indices[n] == CANARY && a->cu[b + 1] == CANARY && a->lengths[b] == CANARY;
}

static void test_from_mask(const struct batch *x, int64_t seed)
{
    struct answer a;
    a.packing = answer_begin(&a);
    const attn_status s = attn_packing_from_mask(NULL, x->b, x->s, x->mask, &a.packing);
    EXPECT(s == ATTN_OK && packing_is(x, &a), "case %lld: packing_from_mask: %s %s",
           (long long)seed, attn_status_name(s), attn_last_message(NULL));

    attn_packing numbers = {NULL, NULL, NULL, CANARY, CANARY};
    EXPECT(attn_packing_from_mask(NULL, x->b, x->s, x->mask, &numbers) == ATTN_OK &&
               numbers.total == x->total && numbers.max_seqlen == x->longest,
           "case %lld: packing_from_mask, numbers only: %s", (long long)seed,
           attn_last_message(NULL));
}

static void test_from_lengths(const struct batch *x, int64_t seed)
{
    struct batch prefix = *x;
    struct answer a;
    for (int64_t n = 0; n < x->b * x->s; n++)
        prefix.mask[n] = n % x->s < x->lengths[n / x->s];
    plain_packing(&prefix);
    a.packing = answer_begin(&a);
    const attn_status s =
        attn_packing_from_lengths(NULL, x->b, x->s, x->lengths, &a.packing);
    EXPECT(s == ATTN_OK && packing_is(&prefix, &a), "case %lld: packing_from_lengths: %s %s",
           (long long)seed, attn_status_name(s), attn_last_message(NULL));
}

/* unpad against the plain loop, and pad of that against x with its hidden rows 0. */
static void test_there_and_back(const struct batch *x, struct rng *r, int64_t seed)
{
    const size_t row = (size_t)(x->width * x->size), rows = (size_t)(x->b * x->s);
    const size_t total = (size_t)x->total;
    unsigned char *padded = test_alloc(rows * row), *packed = test_alloc(rows * row + 1);
    unsigned char *back = test_alloc(rows * row + 1);
    struct answer a;
    bool same = true;
    for (size_t n = 0; n < rows * row; n++)
        padded[n] = (unsigned char)rng_next(r);
    packed[total * row] = back[rows * row] = 99;
    a.packing = answer_begin(&a);

    attn_status s = attn_unpad(NULL, x->dtype, x->b, x->s, x->width, padded, x->mask, packed,
                               &a.packing);
    for (size_t n = 0; n < total; n++)
        same &= memcmp(packed + n * row, padded + (size_t)x->indices[n] * row, row) == 0;
    EXPECT(s == ATTN_OK && same && packing_is(x, &a) && packed[total * row] == 99,
           "case %lld: unpad: %s %s", (long long)seed, attn_status_name(s),
           attn_last_message(NULL));

    for (size_t n = 0; n < rows; n++)
        if (!x->mask[n])
            memset(padded + n * row, 0, row);
    s = attn_pad(NULL, x->dtype, (int64_t)rows, x->width, packed, x->indices, x->total, back);
    EXPECT(s == ATTN_OK && memcmp(back, padded, rows * row) == 0 && back[rows * row] == 99,
           "case %lld: pad: %s %s", (long long)seed, attn_status_name(s), attn_last_message(NULL));
    free(padded);
    free(packed);
    free(back);
}

static void test_gather(const struct batch *x, struct rng *r, int64_t seed)
{
    const size_t row = (size_t)(x->width * x->size), rows = (size_t)(x->b * x->s);
    const int64_t count = rows ? rng_below(r, ROWS) : 0;
    unsigned char *from = test_alloc(rows * row), *to = test_alloc((size_t)count * row + 1);
    int64_t indices[ROWS];
    bool same = true;
    for (size_t n = 0; n < rows * row; n++)
        from[n] = (unsigned char)rng_next(r);
    for (int64_t n = 0; n < count; n++)
        indices[n] = rng_below(r, (int64_t)rows);
    to[(size_t)count * row] = 99;
    const attn_status s =
        attn_gather(NULL, x->dtype, (int64_t)rows, x->width, from, indices, count, to);
    for (int64_t n = 0; n < count; n++)
        same &= memcmp(to + (size_t)n * row, from + (size_t)indices[n] * row, row) == 0;
    EXPECT(s == ATTN_OK && same && to[(size_t)count * row] == 99, "case %lld: gather: %s %s",
           (long long)seed, attn_status_name(s), attn_last_message(NULL));
    free(from);
    free(to);
}

static void test_positions(const struct batch *x, struct rng *r, int64_t seed)
{
    int64_t got[ROWS + 1];
    int32_t offsets[MOST_B];
    const bool shifted = rng_chance(r, 50);
    bool same = true;
    for (int b = 0; b < MOST_B; b++)
        offsets[b] = (int32_t)rng_below(r, 1000) - 100;
    got[x->total] = CANARY;
    const attn_status s =
        attn_position_ids(NULL, x->b, x->cu, shifted ? offsets : NULL, got);
    for (int64_t b = 0; b < x->b; b++)
        for (int64_t n = x->cu[b]; n < x->cu[b + 1]; n++)
            same &= got[n] == n - x->cu[b] + (shifted ? offsets[b] : 0);
    EXPECT(s == ATTN_OK && same && got[x->total] == CANARY, "case %lld: position_ids: %s %s",
           (long long)seed, attn_status_name(s), attn_last_message(NULL));
}

/* ------------------------------------------------------------------------------------------------
 * Gradients
 * --------------------------------------------------------------------------------------------- */

static double *draw_numbers(struct rng *r, int64_t n)
{
    double *x = test_alloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = rng_normal(r);
    return x;
}

/* In order; *size the sum of the sizes of the terms. */
static double dot(const double *a, const double *b, int64_t n, double *size)
{
    double sum = 0;
    *size = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
        *size += fabs(a[i] * b[i]);
    }
    return sum;
}

/* <dy, f(x)> = <f'(dy), x>. What only copies keeps the bits: the one sum has the other's terms in
 * the other's order, and zeros. */
static void test_unpad_pad_gradients(const struct batch *x, struct rng *r, int64_t seed)
{
    const int64_t rows = x->b * x->s, all = rows * x->width, kept = x->total * x->width;
    double *padded = draw_numbers(r, all), *packed = draw_numbers(r, kept), size;
    double *unpadded = test_alloc((size_t)all * 8), *filled = test_alloc((size_t)all * 8);
    double *gathered = test_alloc((size_t)kept * 8);
    attn_packing packing = {0};
    const bool made =
        attn_unpad(NULL, ATTN_F64, x->b, x->s, x->width, padded, x->mask, unpadded, &packing) ==
            ATTN_OK &&
        attn_pad(NULL, ATTN_F64, rows, x->width, packed, x->indices, x->total, filled) == ATTN_OK &&
        attn_gather(NULL, ATTN_F64, rows, x->width, padded, x->indices, x->total, gathered) ==
            ATTN_OK;
    const double one = dot(packed, unpadded, kept, &size), other = dot(filled, padded, all, &size);
    EXPECT(made && one == other && memcmp(unpadded, gathered, (size_t)kept * 8) == 0,
           "case %lld: unpad and pad as gradients: %g, %g: %s", (long long)seed, one, other,
           attn_last_message(NULL));
    free(padded);
    free(packed);
    free(unpadded);
    free(filled);
    free(gathered);
}

/* A random gather of rows, and what its gradient has to be. */
struct gathering {
    attn_dtype dtype;
    int64_t rows, width, count, *indices;
    size_t row; /* bytes */
    unsigned char *dout, *want;
};

/* The sum that belongs to an element of dx, by the definition. */
static double plain_sum(const struct gathering *g, int64_t row, int64_t c)
{
    double sum = 0;
    for (int64_t n = 0; n < g->count; n++)
        if (g->indices[n] == row) {
            sum += element_get(g->dtype, g->dout, n * g->width + c);
            sum = element_round(element_computing(g->dtype), sum);
        }
    return sum;
}

/* few: more than half of the indices name one of three rows. */
static struct gathering draw_gathering(struct rng *r, attn_dtype dtype, int64_t rows,
                                       int64_t width, int64_t count, bool few)
{
    struct gathering g = {.dtype = dtype, .rows = rows, .width = width, .count = count,
                          .row = (size_t)width * element_size(dtype)};
    g.indices = test_alloc((size_t)count * sizeof *g.indices);
    g.dout = test_alloc((size_t)count * g.row);
    g.want = test_alloc((size_t)rows * g.row);
    for (int64_t n = 0; n < count; n++)
        g.indices[n] = rng_below(r, few && rows > 3 && rng_chance(r, 60) ? 3 : rows);
    for (int64_t n = 0; n < count * width; n++)
        element_set(dtype, g.dout, n, rng_normal(r));
    for (int64_t n = 0; n < rows * width; n++)
        element_set(dtype, g.want, n, plain_sum(&g, n / width, n % width));
    return g;
}

static void free_gathering(struct gathering *g)
{
    free(g->indices);
    free(g->dout);
    free(g->want);
}

/* dx: of rows and a guard of one byte. NaN before, and whole afterwards. */
static bool gradient_is(const struct gathering *g, attn_context *context, unsigned char *dx)
{
    const size_t bytes = (size_t)g->rows * g->row;
    memset(dx, 0xff, bytes);
    dx[bytes] = 99;
    return attn_gather_backward(context, g->dtype, g->rows, g->width, g->dout, g->indices,
                                g->count, dx) == ATTN_OK &&
           memcmp(dx, g->want, bytes) == 0 && dx[bytes] == 99;
}

static void test_gather_gradient(const struct batch *x, struct rng *r, int64_t seed)
{
    const int64_t rows = x->b * x->s, count = rows && rng_chance(r, 90) ? rng_below(r, 60) : 0;
    const attn_dtype dtype = x->dtype == ATTN_BOOL ? ATTN_F64 : x->dtype;
    struct gathering g = draw_gathering(r, dtype, rows, x->width, count, rng_chance(r, 60));
    unsigned char *dx = test_alloc((size_t)rows * g.row + 1);
    EXPECT(gradient_is(&g, NULL, dx), "case %lld: gather_backward, %s: %s", (long long)seed,
           element_name(dtype), attn_last_message(NULL));
    if (dtype == ATTN_F64) {
        double *from = draw_numbers(r, rows * x->width), size, size_x;
        double *out = test_alloc((size_t)count * g.row);
        attn_gather(NULL, dtype, rows, x->width, from, g.indices, count, out);
        const double one = dot((double *)g.dout, out, count * x->width, &size);
        const double other = dot((double *)dx, from, rows * x->width, &size_x);
        EXPECT(fabs(one - other) <= 1e-12 * size, "case %lld: gather's gradient: %.17g, %.17g",
               (long long)seed, one, other);
        free(from);
        free(out);
    }
    free(dx);
    free_gathering(&g);
}

/* The same bits on any number of threads, most of the work being that of three rows. */
static void test_gather_threads(void)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};
    static const int32_t counts[] = {1, 2, 3, 7};
    enum { GATHERED = 3000, TABLE = 40, WIDE = 300 };
    struct rng r = rng_seeded(5);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        struct gathering g = draw_gathering(&r, types[t], TABLE, WIDE, GATHERED, true);
        unsigned char *dx = test_alloc(TABLE * g.row + 1);
        for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
            attn_options o = attn_options_init();
            attn_context *context = NULL;
            o.threads = counts[n];
            EXPECT(attn_context_create(&context, &o) == ATTN_OK && gradient_is(&g, context, dx),
                   "gather_backward, %s: differs on %d threads: %s", element_name(types[t]),
                   (int)counts[n], attn_last_message(context));
            attn_context_destroy(context);
        }
        free(dx);
        free_gathering(&g);
    }
}

/* NaN in a row of dout stays with the row that it came from. */
static void test_gather_nan(void)
{
    static const int64_t indices[] = {2, 0, 2};
    const float dout[3][2] = {{1, 2}, {3, NAN}, {5, 6}};
    float dx[4][2];
    EXPECT(attn_gather_backward(NULL, ATTN_F32, 4, 2, dout, indices, 3, dx) == ATTN_OK &&
               dx[0][0] == 3 && isnan(dx[0][1]) && dx[1][0] == 0 && dx[1][1] == 0 &&
               dx[2][0] == 6 && dx[2][1] == 8 && dx[3][0] == 0 && dx[3][1] == 0,
           "gather_backward: NaN in a row of dout: %s", attn_last_message(NULL));
}

/* ------------------------------------------------------------------------------------------------
 * Wrong arguments
 * --------------------------------------------------------------------------------------------- */

static struct {
    uint8_t mask[8];
    int32_t lengths[2], long_lengths[2], negative[2], cu[3], falls[3], late[3];
    float x[16], packed[16];
    int64_t indices[8], outside[8], twice[8], positions[8];
    struct answer answer;
} w;

static void wrong_begin(void)
{
    memset(&w, 0, sizeof w);
    memset(w.mask, 1, sizeof w.mask);
    memset(w.packed, 0xa5, sizeof w.packed);
    w.lengths[0] = 3;
    w.lengths[1] = 2;
    w.long_lengths[1] = 5;
    w.negative[1] = -1;
    w.cu[1] = 3;
    w.cu[2] = 5;
    w.falls[1] = 5;
    w.falls[2] = 3;
    w.late[0] = 1;
    w.late[2] = 5;
    for (int n = 0; n < 8; n++)
        w.indices[n] = w.outside[n] = n;
    w.outside[2] = 8;
    w.twice[1] = w.twice[2] = 4;
    w.answer.packing = answer_begin(&w.answer);
}

/* A call that has just been made on a copy of `w` taken before: its status, and nothing written. */
static void expect_wrong(const char *name, attn_status got, attn_status want, const void *before)
{
    EXPECT(got == want, "%s: %s (\"%s\"), expected %s", name, attn_status_name(got),
           attn_last_message(NULL), attn_status_name(want));
    EXPECT(attn_last_message(NULL)[0], "%s: no message", name);
    EXPECT(memcmp(&w, before, sizeof w) == 0, "%s wrote something", name);
    wrong_begin();
}

#define WRONG(call, want) expect_wrong(#call, (call), (want), before)

/* An address that is none of an entry. */
static void *off(void *data, int bytes) { return (char *)data + bytes; }

static void test_wrong_packings(const void *before)
{
    attn_packing *const p = &w.answer.packing;
    WRONG(attn_packing_from_mask(NULL, -1, 4, w.mask, p), ATTN_INVALID_SHAPE);
    WRONG(attn_packing_from_mask(NULL, 2, -4, w.mask, p), ATTN_INVALID_SHAPE);
    WRONG(attn_packing_from_mask(NULL, 2, 4, NULL, p), ATTN_INVALID_NULL);
    WRONG(attn_packing_from_mask(NULL, 2, 4, w.mask, NULL), ATTN_INVALID_NULL);
    WRONG(attn_packing_from_mask(NULL, INT64_MAX, 4, w.mask, p), ATTN_INVALID_OVERFLOW);
    WRONG(attn_packing_from_lengths(NULL, 2, 4, NULL, p), ATTN_INVALID_NULL);
    WRONG(attn_packing_from_lengths(NULL, 2, 4, w.long_lengths, p), ATTN_INVALID_LENGTHS);
    WRONG(attn_packing_from_lengths(NULL, 2, 4, w.negative, p), ATTN_INVALID_LENGTHS);
    WRONG(attn_packing_from_lengths(NULL, -2, 4, w.lengths, p), ATTN_INVALID_SHAPE);
    WRONG(attn_packing_from_lengths(NULL, 2, 4, off(w.lengths, 2), p), ATTN_INVALID_STRIDE);
    attn_packing q[] = {{.indices = off(w.positions, 4)},
                        {.cu_seqlens = off(w.positions, 2)},
                        {.lengths = off(w.positions, 1)}};
    WRONG(attn_packing_from_mask(NULL, 2, 4, w.mask, &q[0]), ATTN_INVALID_STRIDE);
    WRONG(attn_packing_from_mask(NULL, 2, 4, w.mask, &q[1]), ATTN_INVALID_STRIDE);
    WRONG(attn_unpad(NULL, ATTN_F32, 2, 4, 2, w.x, w.mask, w.packed, &q[2]), ATTN_INVALID_STRIDE);
}

static void test_wrong_rows(const void *before)
{
    attn_packing *const p = &w.answer.packing;
    WRONG(attn_unpad(NULL, ATTN_F32, 2, 4, 2, NULL, w.mask, w.packed, p), ATTN_INVALID_NULL);
    WRONG(attn_unpad(NULL, ATTN_F32, 2, 4, -2, w.x, w.mask, w.packed, p), ATTN_INVALID_SHAPE);
    WRONG(attn_unpad(NULL, (attn_dtype)9, 2, 4, 2, w.x, w.mask, w.packed, p), ATTN_INVALID_ENUM);
    WRONG(attn_unpad(NULL, ATTN_F32, 2, 4, 2, w.x, w.mask, NULL, p), ATTN_INVALID_NULL);
    WRONG(attn_unpad(NULL, ATTN_F32, 2, 4, 2, w.x, w.mask, w.x, p), ATTN_INVALID_OVERLAP);
    WRONG(attn_unpad(NULL, ATTN_F32, 2, 4, INT64_MAX / 4, w.x, w.mask, w.packed, p),
          ATTN_INVALID_OVERFLOW);
    WRONG(attn_pad(NULL, ATTN_F32, 8, 2, w.x, w.outside, 4, w.packed), ATTN_INVALID_INDEX);
    WRONG(attn_pad(NULL, ATTN_F32, 8, 2, w.x, w.twice, 3, w.packed), ATTN_INVALID_INDEX);
    WRONG(attn_pad(NULL, ATTN_F32, 8, 2, w.x, NULL, 3, w.packed), ATTN_INVALID_NULL);
    WRONG(attn_pad(NULL, ATTN_F32, 8, 2, w.x, w.indices, 9, w.packed), ATTN_INVALID_INDEX);
    WRONG(attn_pad(NULL, ATTN_F32, 8, 2, w.x, w.indices, 4, w.x), ATTN_INVALID_OVERLAP);
    WRONG(attn_gather(NULL, ATTN_F32, 8, 2, w.x, w.outside, 4, w.packed), ATTN_INVALID_INDEX);
    WRONG(attn_gather(NULL, ATTN_F32, -8, 2, w.x, w.indices, 4, w.packed), ATTN_INVALID_SHAPE);
    WRONG(attn_gather(NULL, ATTN_F32, 8, 2, w.x, w.indices, -4, w.packed), ATTN_INVALID_SHAPE);
    WRONG(attn_gather(NULL, ATTN_F32, 8, 2, w.x, w.indices, 4, w.x), ATTN_INVALID_OVERLAP);
    WRONG(attn_gather(NULL, ATTN_F32, 8, 2, w.x, w.indices, 4, NULL), ATTN_INVALID_NULL);
    WRONG(attn_gather(NULL, ATTN_F32, 8, 2, w.x, off(w.indices, 4), 4, w.packed),
          ATTN_INVALID_STRIDE);
    WRONG(attn_pad(NULL, ATTN_F32, 8, 2, w.x, off(w.indices, 1), 4, w.packed),
          ATTN_INVALID_STRIDE);
}

static void test_wrong_gradients(const void *before)
{
    const int64_t *const i = w.indices;
    WRONG(attn_gather_backward(NULL, ATTN_BOOL, 8, 2, w.x, i, 4, w.packed), ATTN_INVALID_DTYPE);
    WRONG(attn_gather_backward(NULL, (attn_dtype)9, 8, 2, w.x, i, 4, w.packed), ATTN_INVALID_ENUM);
    WRONG(attn_gather_backward(NULL, ATTN_F32, 8, 2, w.x, w.outside, 4, w.packed),
          ATTN_INVALID_INDEX);
    WRONG(attn_gather_backward(NULL, ATTN_F32, -8, 2, w.x, i, 4, w.packed), ATTN_INVALID_SHAPE);
    WRONG(attn_gather_backward(NULL, ATTN_F32, 8, -2, w.x, i, 4, w.packed), ATTN_INVALID_SHAPE);
    WRONG(attn_gather_backward(NULL, ATTN_F32, 8, 2, w.x, i, -4, w.packed), ATTN_INVALID_SHAPE);
    WRONG(attn_gather_backward(NULL, ATTN_F16, INT64_MAX / 4, 1, w.x, i, 4, w.packed),
          ATTN_INVALID_OVERFLOW);
    WRONG(attn_gather_backward(NULL, ATTN_F32, 8, 2, w.packed, i, 4, w.packed),
          ATTN_INVALID_OVERLAP);
    WRONG(attn_gather_backward(NULL, ATTN_F32, 8, 2, w.x, i, 4, w.indices), ATTN_INVALID_OVERLAP);
    WRONG(attn_gather_backward(NULL, ATTN_F32, 8, 2, w.x, NULL, 4, w.packed), ATTN_INVALID_NULL);
    WRONG(attn_gather_backward(NULL, ATTN_F32, 8, 2, NULL, i, 4, w.packed), ATTN_INVALID_NULL);
    WRONG(attn_gather_backward(NULL, ATTN_F32, 8, 2, w.x, i, 0, NULL), ATTN_INVALID_NULL);
    WRONG(attn_gather_backward(NULL, ATTN_F32, 6, 2, off(w.x, 2), i, 4, w.packed),
          ATTN_INVALID_STRIDE);
    WRONG(attn_gather_backward(NULL, ATTN_F32, 6, 2, w.x, i, 4, off(w.packed, 1)),
          ATTN_INVALID_STRIDE);
    WRONG(attn_gather_backward(NULL, ATTN_F16, 6, 2, w.x, off(w.indices, 2), 4, w.packed),
          ATTN_INVALID_STRIDE);
}

/* An allocator with room for a context. */
static void *no_room(void *user, size_t bytes, size_t align)
{
    (void)align;
    *(size_t *)user = bytes;
    return bytes < 2048 ? test_alloc(bytes) : NULL;
}

static void take_back(void *user, void *data, size_t bytes)
{
    (void)user, (void)bytes;
    free(data);
}

/* The sort's memory, which is not there. */
static void test_no_memory(const void *before)
{
    enum { FAR = 1000 };
    static float dx[FAR];
    size_t asked = 0;
    attn_options o = attn_options_init();
    attn_context *context = NULL;
    o.allocator = (attn_allocator){no_room, take_back, &asked};
    EXPECT(attn_context_create(&context, &o) == ATTN_OK, "a context with an allocator");
    const attn_status got =
        attn_gather_backward(context, ATTN_F32, FAR, 1, w.x, w.indices, 8, dx);
    EXPECT(got == ATTN_NO_MEMORY && attn_last_message(context)[0] && asked == 8 * (FAR + 8 + 1),
           "gather_backward without memory: %s, %zu bytes", attn_status_name(got), asked);
    EXPECT(memcmp(&w, before, sizeof w) == 0, "gather_backward without memory wrote something");
    attn_context_destroy(context);
}

static void test_wrong_positions(const void *before)
{
    WRONG(attn_position_ids(NULL, -1, w.cu, NULL, w.positions), ATTN_INVALID_SHAPE);
    WRONG(attn_position_ids(NULL, 2, NULL, NULL, w.positions), ATTN_INVALID_NULL);
    WRONG(attn_position_ids(NULL, 2, w.cu, NULL, NULL), ATTN_INVALID_NULL);
    WRONG(attn_position_ids(NULL, 2, w.falls, NULL, w.positions), ATTN_INVALID_LENGTHS);
    WRONG(attn_position_ids(NULL, 2, w.late, NULL, w.positions), ATTN_INVALID_LENGTHS);
    WRONG(attn_position_ids(NULL, 2, off(w.late, 2), NULL, w.positions), ATTN_INVALID_STRIDE);
    WRONG(attn_position_ids(NULL, 2, w.cu, off(w.late, 1), w.positions), ATTN_INVALID_STRIDE);
    WRONG(attn_position_ids(NULL, 2, w.cu, NULL, off(w.indices, 4)), ATTN_INVALID_STRIDE);
}

int main(void)
{
    report_begin("batch");
    for (int64_t seed = 0; seed < CASES; seed++) {
        struct rng r = rng_seeded((uint64_t)seed);
        const struct batch x = draw(&r);
        test_from_mask(&x, seed);
        test_from_lengths(&x, seed);
        test_there_and_back(&x, &r, seed);
        test_gather(&x, &r, seed);
        test_unpad_pad_gradients(&x, &r, seed);
        test_gather_gradient(&x, &r, seed);
        test_positions(&x, &r, seed);
    }
    test_gather_threads();
    test_gather_nan();
    wrong_begin();
    void *before = test_alloc(sizeof w);
    memcpy(before, &w, sizeof w);
    test_wrong_packings(before);
    test_wrong_rows(before);
    test_wrong_gradients(before);
    test_no_memory(before);
    test_wrong_positions(before);
    free(before);
    return report_end();
}
