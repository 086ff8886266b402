/* SPDX-License-Identifier: BSD-3-Clause */
/* Batch helpers against plain loops on random masks, there and back, and wrong arguments. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
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
}

static void test_wrong_positions(const void *before)
{
    WRONG(attn_position_ids(NULL, -1, w.cu, NULL, w.positions), ATTN_INVALID_SHAPE);
    WRONG(attn_position_ids(NULL, 2, NULL, NULL, w.positions), ATTN_INVALID_NULL);
    WRONG(attn_position_ids(NULL, 2, w.cu, NULL, NULL), ATTN_INVALID_NULL);
    WRONG(attn_position_ids(NULL, 2, w.falls, NULL, w.positions), ATTN_INVALID_LENGTHS);
    WRONG(attn_position_ids(NULL, 2, w.late, NULL, w.positions), ATTN_INVALID_LENGTHS);
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
        test_positions(&x, &r, seed);
    }
    wrong_begin();
    void *before = test_alloc(sizeof w);
    memcpy(before, &w, sizeof w);
    test_wrong_packings(before);
    test_wrong_rows(before);
    test_wrong_positions(before);
    free(before);
    return report_end();
}
