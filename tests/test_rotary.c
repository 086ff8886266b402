/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Rotary embedding against plain loops on random problems, known values at far positions, there and
 * back, as a gradient, threads, and wrong arguments.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "attn/attn.h"
#include "compare.h"
#include "element.h"
#include "expect.h"
#include "memory.h"
#include "strided.h"

enum { CASES = 600, MOST_B = 4, MOST_S = 24, MOST_D = 140, ROWS = MOST_B * MOST_S };

/* A random problem. */
struct problem {
    attn_dtype dtype;
    int64_t batch, heads, head_dim, seqlen, rows; /* rows: of the tensors, in all */
    bool packed, by_position, in_place;
    int64_t lengths[MOST_B], offsets[MOST_B], cu[MOST_B + 1], positions[ROWS];
    int32_t lengths32[MOST_B], cu32[MOST_B + 1], positions32[ROWS];
    bool seqused, wide; /* wide: 64-bit integers */
    double frequency[MOST_D / 2];
    attn_rotation rotation;
    struct strided x, out;
};

static int64_t draw_position(struct rng *r)
{
    switch (rng_below(r, 4)) {
    case 0: return rng_below(r, 40) - 10;
    case 1: return rng_below(r, 5000);
    default: return 1000000 + rng_below(r, 1000000);
    }
}

static void draw_lengths(struct problem *p, struct rng *r)
{
    int64_t end = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t room = p->packed ? rng_below(r, MOST_S + 1) : p->seqlen;
        p->lengths[b] = p->seqused ? rng_below(r, room + 1) : room;
        p->lengths32[b] = (int32_t)p->lengths[b];
        p->cu[b] = end;
        p->cu32[b] = (int32_t)end;
        p->offsets[b] = draw_position(r);
        end += room;
    }
    p->cu[p->batch] = end;
    p->cu32[p->batch] = (int32_t)end;
    p->rows = p->packed ? end + rng_below(r, 3) : p->batch * p->seqlen;
    for (int64_t n = 0; n < ROWS; n++) {
        p->positions[n] = draw_position(r);
        p->positions32[n] = (int32_t)p->positions[n];
    }
}

static void draw_rotation(struct problem *p, struct rng *r)
{
    static const double bases[] = {0, 10000, 500000, 1, 1e6};
    attn_rotation *m = &p->rotation;
    m->pairing = rng_chance(r, 50) ? ATTN_INTERLEAVED : ATTN_HALF_SPLIT;
    if (p->head_dim % 2 || rng_chance(r, 40))
        m->dim = 2 * (1 + rng_below(r, p->head_dim / 2));
    m->base = RNG_PICK(r, bases);
    if (rng_chance(r, 25)) {
        m->base = 0;
        m->frequency = p->frequency;
    }
    for (int n = 0; n < MOST_D / 2; n++)
        p->frequency[n] = rng_uniform(r) * 2;
}

static void draw(struct problem *p, struct rng *r)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};
    memset(p, 0, sizeof *p);
    p->dtype = RNG_PICK(r, types);
    p->batch = rng_below(r, MOST_B + 1);
    p->heads = 1 + rng_below(r, 4);
    p->head_dim = 2 + rng_below(r, rng_chance(r, 20) ? MOST_D - 1 : 20);
    p->seqlen = rng_below(r, MOST_S + 1);
    p->packed = rng_chance(r, 50);
    p->seqused = rng_chance(r, 40);
    p->by_position = rng_chance(r, 40);
    p->wide = rng_chance(r, 50);
    p->in_place = rng_chance(r, 40);
    draw_lengths(p, r);
    draw_rotation(p, r);
    const int64_t outer = p->packed ? 1 : p->batch, tokens = p->packed ? p->rows : p->seqlen;
    p->x = strided_make(r, p->dtype, outer, tokens, p->heads, p->head_dim, false);
    p->out = strided_make(r, p->dtype, outer, tokens, p->heads, p->head_dim, false);
    strided_fill(&p->x, r);
}

static attn_index index_of(const struct problem *p, const int64_t *wide, const int32_t *narrow)
{
    return p->wide ? (attn_index){wide, ATTN_I64} : (attn_index){narrow, ATTN_I32};
}

static attn_rotary_desc desc_of(const struct problem *p)
{
    attn_rotary_desc d = attn_rotary_desc_init();
    d.batch = p->batch;
    d.heads = p->heads;
    d.head_dim = p->head_dim;
    d.tokens.layout = p->packed ? ATTN_PACKED : ATTN_PADDED;
    if (p->packed) {
        d.tokens.tokens = p->rows;
        d.tokens.cu_seqlens = index_of(p, p->cu, p->cu32);
    } else {
        d.tokens.seqlen = p->seqlen;
    }
    if (p->seqused)
        d.tokens.seqused = index_of(p, p->lengths, p->lengths32);
    if (p->by_position)
        d.positions = index_of(p, p->positions, p->positions32);
    else
        d.offsets = (attn_index){p->offsets, ATTN_I64};
    d.rotation = p->rotation;
    d.x = strided_input(&p->x);
    d.out = strided_output(p->in_place ? &p->x : &p->out);
    return d;
}

/* ------------------------------------------------------------------------------------------------
 * By plain loops
 * --------------------------------------------------------------------------------------------- */

struct place {
    int64_t b, i;         /* sequence and index in it; b -1: belongs to none that takes part */
    int64_t outer, token; /* in the tensors */
    int64_t position;
};

static struct place place_of(const struct problem *p, int64_t row)
{
    struct place at = {-1, 0, 0, row, 0};
    if (!p->packed) {
        at = (struct place){row / p->seqlen, row % p->seqlen, row / p->seqlen, row % p->seqlen, 0};
    } else {
        for (int64_t b = 0; b < p->batch; b++)
            if (row >= p->cu[b] && row < p->cu[b + 1]) {
                at.b = b;
                at.i = row - p->cu[b];
            }
    }
    if (at.b >= 0 && at.i >= p->lengths[at.b])
        at.b = -1;
    if (at.b >= 0)
        at.position = p->by_position ? p->positions[row] : p->offsets[at.b] + at.i;
    return at;
}

static long double frequency_of(const struct problem *p, int64_t pair, int64_t dim)
{
    const double base = p->rotation.base == 0 ? 10000 : p->rotation.base;
    if (p->rotation.frequency)
        return p->frequency[pair];
    return powl(base, -2 * (long double)pair / (long double)dim);
}

/* How far the result is from the truth, in what is allowed. */
static double pair_error(const struct problem *p, const struct place *at, const struct strided *x,
                         const struct strided *got, int64_t h, int64_t pair, int64_t dim)
{
    const bool neighbours = p->rotation.pairing == ATTN_INTERLEAVED;
    const int64_t n = neighbours ? 2 * pair : pair, m = neighbours ? n + 1 : n + dim / 2;
    const long double angle = (long double)at->position * frequency_of(p, pair, dim);
    const long double a = strided_get(x, at->outer, at->token, h, n);
    const long double b = strided_get(x, at->outer, at->token, h, m);
    const long double first = a * cosl(angle) - b * sinl(angle);
    const long double second = b * cosl(angle) + a * sinl(angle);
    const long double size = hypotl(a, b);
    /* What the long double of the truth leaves unknown of the angle. */
    const long double blur = size * fabsl(angle) * 4 * LDBL_EPSILON;
    const long double allowed =
        compare_ulp(p->dtype, size) * (p->dtype == ATTN_F64 ? 4 : 1) + blur;
    const long double e1 = fabsl(strided_get(got, at->outer, at->token, h, n) - first);
    const long double e2 = fabsl(strided_get(got, at->outer, at->token, h, m) - second);
    return e1 <= allowed && e2 <= allowed ? (double)(fmaxl(e1, e2) / allowed) : HUGE_VAL;
}

/* Writes what is not turned to *want, and what is turned from *got once it has been found right:
 * then all bytes have to be the same. */
static double expect_token(const struct problem *p, const struct place *at,
                           const struct strided *x, const struct strided *got,
                           struct strided *want)
{
    const int64_t dim = p->rotation.dim ? p->rotation.dim : p->head_dim;
    double worst = 0;
    for (int64_t h = 0; h < p->heads; h++) {
        for (int64_t pair = 0; at->b >= 0 && pair < dim / 2; pair++)
            worst = fmax(worst, pair_error(p, at, x, got, h, pair, dim));
        for (int64_t n = 0; n < p->head_dim; n++) {
            const struct strided *from = n < dim ? got : x;
            strided_set(want, at->outer, at->token, h, n,
                        at->b < 0 ? 0 : strided_get(from, at->outer, at->token, h, n));
        }
    }
    return worst;
}

static void test_case(const struct problem *p, int64_t seed)
{
    struct strided x = strided_copy(&p->x), want = strided_copy(p->in_place ? &p->x : &p->out);
    const struct strided *got = p->in_place ? &p->x : &p->out;
    const attn_rotary_desc d = desc_of(p);
    const attn_status status = attn_rotary(NULL, &d);
    double worst = 0;
    for (int64_t row = 0; row < p->rows; row++) {
        const struct place at = place_of(p, row);
        worst = fmax(worst, expect_token(p, &at, &x, got, &want));
    }
    EXPECT(status == ATTN_OK, "case %lld: %s", (long long)seed, attn_last_message(NULL));
    EXPECT(worst <= 1, "case %lld: %s, not as plain loops have it", (long long)seed,
           element_name(p->dtype));
    EXPECT(strided_same(got, &want), "case %lld: wrong where nothing turns", (long long)seed);
    EXPECT(p->in_place || strided_same(&p->x, &x), "case %lld: x was written", (long long)seed);
    strided_free(&x);
    strided_free(&want);
}

/* Turned and turned back is what it was, within the roundings of both. */
static void test_back(struct problem *p, int64_t seed)
{
    struct strided x = strided_copy(&p->x);
    attn_rotary_desc d = desc_of(p);
    bool close = true;
    d.out = strided_output(&p->x);
    attn_status status = attn_rotary(NULL, &d);
    d.inverse = 1;
    status = status == ATTN_OK ? attn_rotary(NULL, &d) : status;
    for (int64_t row = 0; row < p->rows; row++) {
        const struct place at = place_of(p, row);
        for (int64_t h = 0; at.b >= 0 && h < p->heads; h++)
            for (int64_t n = 0; n < p->head_dim; n++) {
                const double a = strided_get(&x, at.outer, at.token, h, n);
                const double b = strided_get(&p->x, at.outer, at.token, h, n);
                close &= fabs(a - b) <= 8 * (double)compare_ulp(p->dtype, 4);
            }
    }
    EXPECT(status == ATTN_OK && close, "case %lld: there and back: %s", (long long)seed,
           attn_last_message(NULL));
    strided_free(&x);
}

/* <dout, f(x)> = <f'(dout), x>, f' being the inverse; over all rows, those of no token too. */
static void test_gradient(struct problem *p, struct rng *r, int64_t seed)
{
    struct strided dout = strided_copy(&p->x), dx = strided_copy(&p->out);
    attn_rotary_desc d = desc_of(p);
    double one = 0, other = 0, size = 0;
    strided_fill(&dout, r);
    d.out = strided_output(&p->out);
    attn_status status = attn_rotary(NULL, &d);
    d.x = strided_input(&dout);
    d.out = strided_output(&dx);
    d.inverse = 1;
    status = status == ATTN_OK ? attn_rotary(NULL, &d) : status;
    const int64_t *const e = p->x.extent;
    for (int64_t row = 0; row < e[0] * e[1] * e[2]; row++)
        for (int64_t n = 0; n < p->head_dim; n++) {
            const int64_t b = row / (e[1] * e[2]), token = row / e[2] % e[1], h = row % e[2];
            const double y = strided_get(&dout, b, token, h, n);
            one += y * strided_get(&p->out, b, token, h, n);
            other += strided_get(&dx, b, token, h, n) * strided_get(&p->x, b, token, h, n);
            size += fabs(y) * 4;
        }
    EXPECT(status == ATTN_OK && fabs(one - other) <= 1e-12 * size,
           "case %lld: the inverse as the gradient: %.17g, %.17g: %s", (long long)seed, one, other,
           attn_last_message(NULL));
    strided_free(&dout);
    strided_free(&dx);
}

/* ------------------------------------------------------------------------------------------------
 * Far positions
 * --------------------------------------------------------------------------------------------- */

/* cos and sin of position * base^(-2 pair / dim), from arithmetic with 60 digits. */
static const struct known {
    int64_t position, dim, pair;
    double base, cos, sin;
} known[] = {
    {1000003, 8, 0, 10000, -0.87798649158500287242, 0.47868540879606689794},
    {1000003, 8, 1, 10000, -0.96529033731233749736, -0.26117918119833689134},
    {1000003, 8, 3, 10000, 0.55989591068611796201, 0.82856295427502828834},
    {1000003, 128, 17, 500000, -0.58749895570537461001, -0.8092249236430464034},
    {1000003, 128, 63, 10000, -0.72457190819084227949, 0.68919920912656423826},
    {1000000007, 8, 0, 10000, 0.27307320362937090097, 0.96199325645224360637},
    {1000000007, 8, 1, 10000, -0.87811058595437588241, 0.47845772941281097593},
    {1000000007, 8, 3, 10000, 0.93917911170702051191, -0.34342771602363704221},
    {1000000007, 128, 17, 500000, -0.97387174584070895811, 0.22709870685050052514},
    {1000000007, 128, 63, 10000, 0.89450063313651962664, -0.44706668106487820223},
    {4503599627370497, 8, 0, 10000, -0.99796410319531713216, 0.063778121119757187246},
    {4503599627370497, 8, 1, 10000, 0.0063821005029489298179, 0.99997963418920200478},
    {4503599627370497, 8, 3, 10000, 0.49540323011080581426, -0.86866313355395714262},
    {4503599627370497, 128, 17, 500000, -0.04727545689735041413, -0.9988818905031499084},
    {4503599627370497, 128, 63, 10000, 0.99845551023226387452, 0.055557124537088934598},
    {-77777777, 8, 0, 10000, -0.46932230173604185393, 0.88302694018539643048},
    {-77777777, 8, 1, 10000, 0.1080161609177862103, 0.99414913819838063313},
    {-77777777, 8, 3, 10000, -0.20172739021701807054, 0.97944170834012930657},
    {-77777777, 128, 17, 500000, 0.86022396076513643222, -0.50991640229114126438},
    {-77777777, 128, 63, 10000, -0.98458208639001887413, -0.17492316930549083358},
};

static void test_known(void)
{
    for (size_t n = 0; n < sizeof known / sizeof known[0]; n++) {
        const struct known *k = &known[n];
        double x[128] = {0};
        attn_rotary_desc d = attn_rotary_desc_init();
        x[2 * k->pair] = 1;
        d.batch = d.heads = d.tokens.seqlen = 1;
        d.head_dim = k->dim;
        d.x = (attn_input){x, ATTN_F64, 0, 0, 0};
        d.out = (attn_output){x, ATTN_F64, 0, 0, 0};
        d.offsets = (attn_index){&k->position, ATTN_I64};
        d.rotation.base = k->base;
        d.rotation.pairing = ATTN_INTERLEAVED;
        const attn_status status = attn_rotary(NULL, &d);
        EXPECT(status == ATTN_OK && fabs(x[2 * k->pair] - k->cos) <= 0x1p-51 &&
                   fabs(x[2 * k->pair + 1] - k->sin) <= 0x1p-51,
               "position %lld, pair %lld of %lld: %.17g, %.17g (expected %.17g, %.17g)",
               (long long)k->position, (long long)k->pair, (long long)k->dim, x[2 * k->pair],
               x[2 * k->pair + 1], k->cos, k->sin);
    }
}

/* A token's bits do not depend on threads, on neighbours or on what was asked for before. */
static void test_alone(void)
{
    enum { S = 2000, H = 5, D = 136 };
    struct rng r = rng_seeded(11);
    float *x = test_alloc(S * H * D * sizeof *x), *all = test_alloc(S * H * D * sizeof *all);
    attn_options o = attn_options_init();
    attn_context *context;
    bool same = true;
    o.threads = 3;
    attn_rotary_desc d = attn_rotary_desc_init();
    for (int n = 0; n < S * H * D; n++)
        x[n] = (float)rng_normal(&r);
    d.batch = 1;
    d.heads = H;
    d.head_dim = D;
    d.tokens.seqlen = S;
    d.x.data = x;
    d.out.data = all;
    EXPECT(attn_context_create(&context, &o) == ATTN_OK && attn_rotary(context, &d) == ATTN_OK,
           "three threads: %s", attn_last_message(context));
    d.tokens.seqlen = 1;
    for (int64_t s = 0; s < S; s += 7) {
        float one[H * D];
        d.offsets = (attn_index){&s, ATTN_I64};
        d.x.data = x + s * H * D;
        d.out.data = one;
        same &= attn_rotary(NULL, &d) == ATTN_OK &&
                memcmp(one, all + s * H * D, sizeof one) == 0;
    }
    EXPECT(same, "a token alone has other bits");
    attn_context_destroy(context);
    free(x);
    free(all);
}

/* ------------------------------------------------------------------------------------------------
 * Wrong arguments
 * --------------------------------------------------------------------------------------------- */

static float wrong_x[2][3][2][6], wrong_out[2][3][2][6];
static int64_t far_offsets[2] = {0, INT64_C(1) << 61};
static const int32_t positions[6], falling[3] = {0, 3, 2}, beyond[2] = {4, 0};
static const double infinite[3] = {1, HUGE_VAL, 1};

static attn_rotary_desc sound(void)
{
    attn_rotary_desc d = attn_rotary_desc_init();
    d.batch = 2;
    d.heads = 2;
    d.head_dim = 6;
    d.tokens.seqlen = 3;
    d.x.data = wrong_x;
    d.out.data = wrong_out;
    return d;
}

static void expect_wrong(const attn_rotary_desc *d, attn_status want, const char *field)
{
    static const float zero[2][3][2][6];
    const attn_status got = attn_rotary(NULL, d);
    EXPECT(got == want && strstr(attn_last_message(NULL), field),
           "%s: %s (\"%s\"), expected %s", field, attn_status_name(got), attn_last_message(NULL),
           attn_status_name(want));
    EXPECT(memcmp(wrong_out, zero, sizeof zero) == 0, "%s: something was written", field);
}

#define WRONG(change, status, field)                                                               \
    do {                                                                                           \
        attn_rotary_desc d = sound();                                                              \
        change;                                                                                    \
        expect_wrong(&d, status, field);                                                           \
    } while (0)

static void test_wrong(void)
{
    memset(wrong_x, 1, sizeof wrong_x);
    WRONG(d.size = 0, ATTN_INVALID_SIZE, "size");
    WRONG(d.batch = -1, ATTN_INVALID_SHAPE, "batch");
    WRONG(d.heads = -1, ATTN_INVALID_SHAPE, "heads");
    WRONG(d.head_dim = 0, ATTN_INVALID_SHAPE, "head_dim");
    WRONG(d.tokens.seqlen = -3, ATTN_INVALID_SHAPE, "tokens.seqlen");
    WRONG(d.batch = INT64_C(1) << 59; d.tokens.seqlen = 99, ATTN_INVALID_OVERFLOW, "tokens");
    WRONG(d.tokens.layout = ATTN_PAGED, ATTN_INVALID_CONFLICT, "tokens.layout");
    WRONG(d.tokens.layout = (attn_layout)7, ATTN_INVALID_ENUM, "tokens.layout");
    WRONG(d.tokens.layout = ATTN_PACKED, ATTN_INVALID_NULL, "tokens.cu_seqlens");
    WRONG(d.tokens.cu_seqlens.data = falling, ATTN_INVALID_CONFLICT, "tokens.cu_seqlens");
    WRONG(d.tokens.layout = ATTN_PACKED; d.tokens.tokens = 6; d.tokens.cu_seqlens.data = falling,
          ATTN_INVALID_LENGTHS, "tokens.cu_seqlens");
    WRONG(d.tokens.seqused.data = beyond, ATTN_INVALID_LENGTHS, "tokens.seqused");
    WRONG(d.x.data = NULL, ATTN_INVALID_NULL, "x");
    WRONG(d.out.data = NULL, ATTN_INVALID_NULL, "out");
    WRONG(d.x.dtype = ATTN_BOOL, ATTN_INVALID_DTYPE, "x.dtype");
    WRONG(d.x.dtype = (attn_dtype)8, ATTN_INVALID_ENUM, "x.dtype");
    WRONG(d.out.dtype = ATTN_F16, ATTN_INVALID_DTYPE, "out.dtype");
    WRONG(d.x.token_stride = -2, ATTN_INVALID_STRIDE, "x.token_stride");
    WRONG(d.x.data = (char *)wrong_x + 1, ATTN_INVALID_STRIDE, "x");
    WRONG(d.x.data = &wrong_out[0][0][1][0], ATTN_INVALID_OVERLAP, "out");
    WRONG(d.out.head_stride = 6, ATTN_INVALID_OVERLAP, "out");
    WRONG(d.positions.data = wrong_out, ATTN_INVALID_OVERLAP, "out");
    WRONG(d.positions.data = positions; d.offsets.data = positions, ATTN_INVALID_CONFLICT,
          "offsets");
    WRONG(d.positions.data = positions; d.positions.type = (attn_itype)3, ATTN_INVALID_ENUM,
          "positions.type");
    WRONG(d.offsets = ((attn_index){far_offsets, ATTN_I64}), ATTN_INVALID_VALUE, "offsets[1]");
    WRONG(d.rotation.dim = 3, ATTN_INVALID_SHAPE, "rotation.dim");
    WRONG(d.rotation.dim = 8, ATTN_INVALID_SHAPE, "rotation.dim");
    WRONG(d.rotation.dim = -2, ATTN_INVALID_SHAPE, "rotation.dim");
    WRONG(d.head_dim = 5, ATTN_INVALID_SHAPE, "rotation.dim");
    WRONG(d.rotation.base = 0.5, ATTN_INVALID_VALUE, "rotation.base");
    WRONG(d.rotation.base = NAN, ATTN_INVALID_VALUE, "rotation.base");
    WRONG(d.rotation.frequency = infinite, ATTN_INVALID_VALUE, "rotation.frequency[1]");
    WRONG(d.rotation.frequency = infinite; d.rotation.base = 10, ATTN_INVALID_CONFLICT,
          "rotation.base");
    WRONG(d.rotation.pairing = (attn_pairing)2, ATTN_INVALID_ENUM, "rotation.pairing");
    WRONG(d.inverse = 2, ATTN_INVALID_ENUM, "inverse");
    EXPECT(attn_rotary(NULL, NULL) == ATTN_INVALID_NULL, "a null descriptor");
}

int main(void)
{
    report_begin("rotary");
    for (int64_t seed = 0; seed < CASES; seed++) {
        struct rng r = rng_seeded((uint64_t)seed);
        struct problem p;
        draw(&p, &r);
        test_case(&p, seed);
        strided_fill(&p.x, &r);
        if (p.dtype == ATTN_F64)
            test_gradient(&p, &r, seed);
        test_back(&p, seed);
        strided_free(&p.x);
        strided_free(&p.out);
    }
    test_known();
    test_alone();
    test_wrong();
    return report_end();
}
