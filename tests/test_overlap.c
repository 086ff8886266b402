/* SPDX-License-Identifier: BSD-3-Clause */
/* Overlap of strided tensors: random layouts against bytes marked one by one, and large layouts of
 * the kind that attention calls have, whose answers are known. No address here is ever followed. */
#include <stdio.h>
#include <string.h>

#include "overlap.h"

enum { ARENA = 1 << 15, CASES = 30000 };

static uint64_t state = UINT64_C(0x9e3779b97f4a7c15);
static int passed, failed;

static int64_t draw(int64_t n) /* 0 to n - 1 */
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int64_t)(state >> 11) % n;
}

static void print_bytes(const char *name, const struct attn_bytes *a)
{
    printf("  %s: base %lld, run %lld", name, (long long)a->base, (long long)a->run);
    for (int32_t n = 0; n < a->axes; n++)
        printf(", %lld x %lld", (long long)a->extent[n], (long long)a->stride[n]);
    printf("\n");
}

static void expect(bool got, bool want, const char *what, const struct attn_bytes *a,
                   const struct attn_bytes *b)
{
    if (got == want) {
        passed++;
        return;
    }
    failed++;
    printf("%s: %s, should be %s\n", what, got ? "yes" : "no", want ? "yes" : "no");
    print_bytes("a", a);
    if (b)
        print_bytes("b", b);
}

/* Adds 1 to the mark of each byte, once for each index that reaches it; the largest mark. */
static int mark(const struct attn_bytes *a, unsigned char *marks)
{
    int most = 0;
    int64_t index[ATTN_BYTES_AXES] = {0}, total = 1;
    for (int32_t n = 0; n < a->axes; n++)
        total *= a->extent[n];
    for (int64_t t = 0; t < total; t++) {
        int64_t at = (int64_t)a->base, rest = t;
        for (int32_t n = 0; n < a->axes; n++) {
            index[n] = rest % a->extent[n];
            rest /= a->extent[n];
            at += index[n] * a->stride[n];
        }
        for (int64_t r = 0; r < a->run; r++) {
            if (marks[at + r] < 255)
                marks[at + r]++;
            most = marks[at + r] > most ? marks[at + r] : most;
        }
    }
    return most;
}

/* Strides that nest with or without gaps, in any order of axes. */
static void draw_nested(struct attn_bytes *a)
{
    int64_t inner = a->run + draw(3) * draw(9);
    for (int32_t n = 0; n < a->axes; n++) {
        a->stride[n] = inner;
        inner = inner * a->extent[n] + (draw(2) ? draw(2 * inner + 1) : 0);
        if (inner > 4096)
            inner = 1 + draw(600);
    }
    for (int32_t n = a->axes - 1; n > 0; n--) {
        const int32_t k = (int32_t)draw(n + 1);
        const int64_t stride = a->stride[n], extent = a->extent[n];
        a->stride[n] = a->stride[k];
        a->extent[n] = a->extent[k];
        a->stride[k] = stride;
        a->extent[k] = extent;
    }
}

static struct attn_bytes draw_bytes(int64_t unit)
{
    struct attn_bytes a = {.base = (uintptr_t)(draw(1 + draw(400)) * unit)};
    a.axes = (int32_t)draw(ATTN_BYTES_AXES + 1);
    a.run = (draw(40) ? 1 + draw(1 + draw(12)) : 0) * unit;
    for (int32_t n = 0; n < a.axes; n++)
        a.extent[n] = draw(40) ? 1 + draw(5) : 0;
    if (draw(2))
        draw_nested(&a);
    else
        for (int32_t n = 0; n < a.axes; n++)
            a.stride[n] = draw(12) ? draw(1 + draw(300)) * unit : 0;
    return a;
}

/* Often the same strides again, from another start: slices of one buffer. */
static struct attn_bytes draw_neighbour(const struct attn_bytes *a, int64_t unit)
{
    struct attn_bytes b = draw_bytes(unit);
    if (draw(3) == 0)
        return b;
    b.axes = a->axes;
    for (int32_t n = 0; n < a->axes; n++) {
        b.stride[n] = draw(12) ? a->stride[n] : a->stride[n] * 2;
        b.extent[n] = draw(3) ? a->extent[n] : draw(5);
    }
    b.base = (uintptr_t)((int64_t)a->base + draw(1 + draw(1 + draw(200))) * unit);
    return b;
}

static void test_random(void)
{
    static unsigned char of_a[ARENA], of_b[ARENA];
    int together = 0, apart = 0, twice = 0, once = 0;
    for (int n = 0; n < CASES; n++) {
        const int64_t unit = INT64_C(1) << draw(4);
        const struct attn_bytes a = draw_bytes(unit), b = draw_neighbour(&a, unit);
        const int64_t end_a = (int64_t)a.base + attn_bytes_reach(&a);
        const int64_t end_b = (int64_t)b.base + attn_bytes_reach(&b);
        const int64_t end = end_a > end_b ? end_a : end_b;
        if (end > ARENA)
            continue;
        memset(of_a, 0, (size_t)end);
        memset(of_b, 0, (size_t)end);
        const bool self = mark(&a, of_a) > 1;
        mark(&b, of_b);
        bool both = false;
        for (int64_t i = 0; i < end; i++)
            both = both || (of_a[i] && of_b[i]);
        expect(attn_bytes_overlap(&a, &b), both, "overlap", &a, &b);
        expect(attn_bytes_overlap(&b, &a), both, "overlap, swapped", &b, &a);
        expect(attn_bytes_overlap_self(&a), self, "overlap with itself", &a, NULL);
        *(both ? &together : &apart) += 1;
        *(self ? &twice : &once) += 1;
    }
    printf("drawn: %d pairs overlap, %d do not; %d tensors overlap themselves, %d do not\n",
           together, apart, twice, once);
    const bool varied = together > 3000 && apart > 3000 && twice > 3000 && once > 3000;
    const struct attn_bytes none = {.run = 0};
    expect(varied, true, "both answers are drawn often", &none, NULL);
}

struct known {
    const char *what;
    struct attn_bytes a, b;
    bool overlap, self; /* self: a alone */
};

#define MI (INT64_C(1) << 20)
#define GI (INT64_C(1) << 30)

/* Mostly f32 with heads of 64: 256 bytes a head, 16 heads. */
static const struct known known[] = {
    {"q and out, fused [T, 4, H, D]", {0, 2, {4 * MI, 16}, {16384, 256}, 256},
     {12288, 2, {4 * MI, 16}, {16384, 256}, 256}, false, false},
    {"q and out, one byte too far", {0, 2, {4 * MI, 16}, {16384, 256}, 256},
     {4095, 2, {4 * MI, 16}, {16384, 256}, 256}, true, false},
    {"q and v, fused [T, H, 3, D]", {0, 2, {64 * MI, 16}, {12288, 768}, 256},
     {512, 2, {64 * MI, 16}, {12288, 768}, 256}, false, false},
    {"k of fewer heads, fused", {0, 2, {MI, 16}, {6144, 256}, 256},
     {4096, 2, {MI, 4}, {6144, 256}, 256}, false, false},
    {"k of fewer heads reaches the next row", {0, 2, {MI, 16}, {6144, 256}, 256},
     {4096, 2, {MI, 9}, {6144, 256}, 256}, true, false},
    {"fused [B, S, 3, H, D]", {0, 3, {512, 65536, 16}, {65536 * INT64_C(12288), 12288, 256}, 256},
     {8192, 3, {512, 65536, 16}, {65536 * INT64_C(12288), 12288, 256}, 256}, false, false},
    {"[B, H, S, D] and the same bytes as [B, S, H, D]",
     {0, 3, {8, 16, 4096}, {16 * MI, MI, 256}, 256},
     {0, 3, {8, 4096, 16}, {16 * MI, 4096, 256}, 256}, true, false},
    {"even and odd heads of [B, H, S, D]", {0, 3, {8, 8, 4096}, {16 * MI, 2 * MI, 256}, 256},
     {MI, 3, {8, 8, 4096}, {16 * MI, 2 * MI, 256}, 256}, false, false},
    {"even and odd sequences", {0, 3, {GI, 128, 2}, {131072, 512, 256}, 256},
     {65536, 3, {GI, 128, 2}, {131072, 512, 256}, 256}, false, false},
    {"one after the other", {0, 2, {MI, 16}, {4096, 256}, 256},
     {(uintptr_t)(4096 * MI), 2, {MI, 16}, {4096, 256}, 256}, false, false},
    {"one after the other, one byte too early", {0, 2, {MI, 16}, {4096, 256}, 256},
     {(uintptr_t)(4096 * MI) - 1, 2, {MI, 16}, {4096, 256}, 256}, true, false},
    {"lse in the gaps of out's heads", {0, 2, {MI, 16}, {16 * 272, 272}, 256},
     {256, 2, {MI, 16}, {16 * 272, 272}, 4}, false, false},
    {"rows of 1000 and 1500 bytes, level in the end", {0, 1, {MI}, {1000}, 100},
     {550, 1, {MI}, {1500}, 100}, true, false},
    {"rows of 1000 and 1500 bytes, kept apart", {0, 1, {MI}, {1000}, 100},
     {200, 1, {MI}, {1500}, 100}, false, false},
    {"broadcast tokens", {0, 2, {MI, 16}, {0, 256}, 256}, {4096, 1, {1}, {0}, 64}, false, true},
    {"heads one byte too close", {0, 2, {MI, 16}, {4096, 255}, 256}, {0, 0, {0}, {0}, 0}, false,
     true},
    {"tokens between heads", {0, 2, {4096, 16}, {256, MI}, 256}, {0, 0, {0}, {0}, 0}, false, false},
    {"crossing strides without a common byte", {0, 2, {3, 2}, {200, 300}, 100}, {500, 0, {0}, {0},
     100}, true, false},
    {"strides past the reach of any memory", {0, 2, {2, 2}, {INT64_C(1) << 61, 8}, 8},
     {8, 1, {2}, {INT64_C(1) << 61}, 8}, true, false},
};

static void test_known(void)
{
    for (size_t n = 0; n < sizeof known / sizeof known[0]; n++) {
        const struct known *k = &known[n];
        expect(attn_bytes_overlap(&k->a, &k->b), k->overlap, k->what, &k->a, &k->b);
        expect(attn_bytes_overlap(&k->b, &k->a), k->overlap, k->what, &k->b, &k->a);
        expect(attn_bytes_overlap_self(&k->a), k->self, k->what, &k->a, NULL);
    }
}

/* Prime strides of equal size and huge extents: the search has to end, whatever it says. */
static void test_search_ends(void)
{
    const struct attn_bytes a = {0, 4, {9973, 9967, 9949, 9941},
                                 {1000003 * 8, 1000033 * 8, 1000037 * 8, 1000039 * 8}, 8};
    const struct attn_bytes b = {4, 4, {9973, 9967, 9949, 9941},
                                 {1000081 * 8, 1000099 * 8, 1000117 * 8, 1000121 * 8}, 4};
    expect(attn_bytes_overlap(&a, &b), true, "prime strides", &a, &b);
    const struct attn_bytes odd = {5, 1, {MI}, {1000}, 2};
    const struct attn_bytes even = {0, 4, {9973, 9967, 9949, 9941}, {46340, 46350, 46360, 46370},
                                    5};
    expect(attn_bytes_overlap(&odd, &even), false, "apart by a common divisor", &odd, &even);
}

int main(void)
{
    test_random();
    test_known();
    test_search_ends();
    printf("overlap: %d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
