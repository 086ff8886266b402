/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The same bits for a sequence alone, on one thread, as among others, on several, and whether a
 * mask that hides nothing is there or not: at sizes near those at which kernels choose another
 * form, where keys and values of a head, or of all heads, are more than caches hold. And for a row
 * among rows whose scores are smaller or larger, or which see more keys or fewer. And the right
 * values.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "element.h"
#include "expect.h"
#include "memory.h"
#include "rng.h"
#include "run.h"

enum { SEQUENCES = 3, THREADS = 2 };

/* Of the first two sequences; the third has about half as many rows and keys. */
static const struct shape {
    int64_t rows, keys, heads, d;
    bool causal; /* the last row sees all keys */
} shapes[] = {
    {20, 300, 2, 2, false},
    {90, 200, 3, 64, false}, /* f32: four blocks of 24 rows */
    {48, 100, 3, 40, false},
    {27, 3107, 8, 64, false}, /* over 12 MB in heads side by side: two blocks and a rest, or three */
    {13, 183, 4, 1024, false}, /* f64: 12 MB in all heads; with both 24 */
    {13, 215, 5, 1024, false}, /* f64: over 16 MB, less than 4 in a head */
    {19, 366, 4, 1024, false}, /* f32: 12 MB; f64 over 4 in a head */
    {19, 430, 5, 1024, false}, /* f32: over 16 MB */
    {21, 560, 2, 1024, false}, /* over 4 MB in a head */
    {15, 2072, 4, 127, false},
    {24, 3000, 2, 96, false},
    {16, 300, 3, 64, true}, /* f64: 9 rows of the third have an edge, which the first one's would */
    {25, 200, 3, 64, true}, /* not be with so few keys; f32: 13 */
};

struct batch {
    const struct shape *shape;
    attn_dtype type, computing;
    size_t size, lse_size; /* bytes of a number */
    int32_t cu_q[SEQUENCES + 1], cu_k[SEQUENCES + 1];
    char *q, *k, *v; /* packed, [tokens][heads][d] */
    uint8_t *seen;   /* of each key: 1 */
    uint8_t *mask;   /* [rows][keys] of the first sequence, for calls with it alone; or null */
    void *slopes;    /* [heads] of ALiBi, or null */
    void *bias;      /* as the mask */
};

/* out [tokens][heads][d], then lse [tokens][heads]. */
struct outcome {
    char *out, *lse;
};

static size_t row_bytes(const struct batch *p)
{
    return (size_t)(p->shape->heads * p->shape->d) * p->size;
}

static char *draw(const struct batch *p, struct rng *r, int64_t tokens, double scale)
{
    const int64_t count = tokens * p->shape->heads * p->shape->d;
    char *x = test_alloc((size_t)count * p->size);
    for (int64_t n = 0; n < count; n++)
        element_set(p->type, x, n, scale * rng_normal(r));
    return x;
}

static struct batch batch_of(const struct shape *s, attn_dtype type)
{
    struct batch p = {.shape = s, .type = type, .computing = element_computing(type),
                      .size = type == ATTN_BF16 ? 2 : type == ATTN_F64 ? 8 : 4};
    struct rng r = rng_seeded((uint64_t)(s - shapes));
    p.lse_size = p.computing == ATTN_F64 ? 8 : 4;
    for (int b = 0; b < SEQUENCES; b++) {
        const bool last = b == SEQUENCES - 1;
        p.cu_q[b + 1] = p.cu_q[b] + (int32_t)(last ? s->rows / 2 + 1 : s->rows);
        p.cu_k[b + 1] = p.cu_k[b] + (int32_t)(last ? s->keys / 2 + 1 : s->keys);
    }
    p.q = draw(&p, &r, p.cu_q[SEQUENCES], 2);
    p.k = draw(&p, &r, p.cu_k[SEQUENCES], 1);
    p.v = draw(&p, &r, p.cu_k[SEQUENCES], 1);
    p.seen = test_alloc((size_t)p.cu_k[SEQUENCES]);
    memset(p.seen, 1, (size_t)p.cu_k[SEQUENCES]);
    return p;
}

static void batch_free(struct batch *p)
{
    free(p->q);
    free(p->k);
    free(p->v);
    free(p->seen);
    free(p->mask);
    free(p->slopes);
    free(p->bias);
}

static struct outcome outcome_new(const struct batch *p)
{
    const size_t tokens = (size_t)p->cu_q[SEQUENCES];
    struct outcome x = {test_alloc(tokens * row_bytes(p)),
                        test_alloc(tokens * (size_t)p->shape->heads * p->lse_size)};
    memset(x.out, 0xff, tokens * row_bytes(p));
    memset(x.lse, 0xff, tokens * (size_t)p->shape->heads * p->lse_size);
    return x;
}

static void outcome_free(struct outcome *x)
{
    free(x->out);
    free(x->lse);
}

/* Sequences b0 .. b1 - 1, to where they have their place in x. */
static attn_status run(const struct batch *p, attn_context *c, int b0, int b1, bool masked,
                       const struct outcome *x)
{
    const size_t rows = (size_t)p->cu_q[b0], keys = (size_t)p->cu_k[b0];
    const size_t heads = (size_t)p->shape->heads;
    int32_t cu_q[SEQUENCES + 1], cu_k[SEQUENCES + 1];
    attn_desc d = attn_desc_init();
    for (int b = b0; b <= b1; b++) {
        cu_q[b - b0] = p->cu_q[b] - p->cu_q[b0];
        cu_k[b - b0] = p->cu_k[b] - p->cu_k[b0];
    }
    d.batch = b1 - b0;
    d.heads_q = d.heads_kv = p->shape->heads;
    d.head_dim = p->shape->d;
    d.query.layout = d.key.layout = ATTN_PACKED;
    d.query.tokens = cu_q[b1 - b0];
    d.key.tokens = cu_k[b1 - b0];
    d.query.cu_seqlens.data = cu_q;
    d.key.cu_seqlens.data = cu_k;
    d.q.data = p->q + rows * row_bytes(p);
    d.k.data = p->k + keys * row_bytes(p);
    d.v.data = p->v + keys * row_bytes(p);
    d.key_mask.data = masked ? p->seen + keys : NULL;
    d.causal = p->shape->causal;
    d.align = p->shape->causal ? ATTN_BOTTOM_RIGHT : ATTN_ALIGN_NONE;
    if (p->mask)
        d.mask = (attn_score_input){p->mask, ATTN_BOOL, 0, 0, p->cu_k[1], 1};
    d.alibi.data = p->slopes;
    d.alibi.dtype = p->computing;
    if (p->bias)
        d.bias = (attn_score_input){p->bias, p->computing, 0, 0, p->cu_k[1], 1};
    d.out.data = x->out + rows * row_bytes(p);
    d.lse.data = x->lse + rows * heads * p->lse_size;
    d.lse.token_stride = p->shape->heads;
    d.lse.head_stride = 1;
    d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = p->type;
    d.lse.dtype = p->computing;
    return attn_forward(c, &d);
}

static bool same(const struct batch *p, const struct outcome *a, const struct outcome *b, int to)
{
    const size_t rows = (size_t)p->cu_q[to];
    return memcmp(a->out, b->out, rows * row_bytes(p)) == 0 &&
           memcmp(a->lse, b->lse, rows * (size_t)p->shape->heads * p->lse_size) == 0;
}

/* Whether the last row of each head of sequence b is what a plain loop makes of it. A product of d
 * terms is off by d + 2 roundings of the sum of their sizes, a weight by twice what scores are and
 * by some of its own, a sum of nk of them by nk; values are 4 at most, of 16 bits 5. In bf16 weights
 * may be rounded to the type, and results are; LSE has what docs/semantics.md allows. */
static bool is_right(const struct batch *p, const struct outcome *x, int b)
{
    const int64_t d = p->shape->d, heads = p->shape->heads, nk = p->cu_k[b + 1] - p->cu_k[b];
    const double unit = p->computing == ATTN_F64 ? 0x1p-53 : 0x1p-24;
    const double half = p->type == ATTN_BF16 ? 0x1p-9 : 0; /* of a unit in the last place */
    double *score = test_alloc((size_t)nk * sizeof *score);
    bool right = true;
    for (int64_t h = 0; h < heads; h++) {
        const int64_t row = (p->cu_q[b + 1] - 1) * heads + h;
        double most = -INFINITY, largest = 0, sum = 0;
        for (int64_t j = 0; j < nk; j++) {
            const int64_t key = (p->cu_k[b] + j) * heads + h;
            double dot = 0, size = 0;
            for (int64_t c = 0; c < d; c++) {
                const double a = element_get(p->type, p->q, row * d + c);
                const double term = a * element_get(p->type, p->k, key * d + c);
                dot += term;
                size += fabs(term);
            }
            score[j] = dot / sqrt((double)d);
            most = fmax(most, score[j]);
            largest = fmax(largest, size / sqrt((double)d));
        }
        for (int64_t j = 0; j < nk; j++)
            sum += exp(score[j] - most);
        const double error = unit * (2 * (double)(d + 2) * largest + (double)nk + 8);
        for (int64_t c = 0; c < d; c++) {
            double o = 0;
            for (int64_t j = 0; j < nk; j++)
                o += exp(score[j] - most) / sum *
                     element_get(p->type, p->v, ((p->cu_k[b] + j) * heads + h) * d + c);
            const double rounding = half > 0 ? half * (5 + fabs(o)) + error : 0;
            right = right && fabs(element_get(p->type, x->out, row * d + c) - o) <=
                                 4 * error + rounding;
        }
        const double lse = most + log(sum), least = half > 0 ? 1e-5 * fmax(1, fabs(lse)) : 0;
        right = right && fabs(element_get(p->computing, x->lse, row) - lse) <= error + least;
    }
    free(score);
    return right;
}

static void test_shape(const struct options *o, struct target *t, attn_context *several,
                       const struct shape *s, attn_dtype type)
{
    struct batch p = batch_of(s, type);
    struct outcome alone = outcome_new(&p), other = outcome_new(&p);
    const char *const name = element_name(type), *const isa = t->isa ? t->isa : "";
    const int n = (int)(s - shapes);
    for (int b = 0; b < SEQUENCES; b++) {
        EXPECT(run(&p, t->context, b, b + 1, false, &alone) == ATTN_OK && is_right(&p, &alone, b),
               "%s %s %s, shape %d: sequence %d alone is wrong", o->program, isa, name, n, b);
        EXPECT(run(&p, several, b, b + 1, true, &other) == ATTN_OK, "%s %s %s, shape %d: masked",
               o->program, isa, name, n);
    }
    EXPECT(same(&p, &alone, &other, SEQUENCES), "%s %s %s, shape %d: differs under a mask",
           o->program, isa, name, n);
    for (int to = 2; to <= SEQUENCES; to++) {
        EXPECT(run(&p, several, 0, to, false, &other) == ATTN_OK && same(&p, &alone, &other, to),
               "%s %s %s, shape %d: differs among %d", o->program, isa, name, n, to);
    }
    outcome_free(&alone);
    outcome_free(&other);
    batch_free(&p);
}

/* Gives rows of the first sequence scores of sizes of their own. In rows with an even number they
 * are always the same, and mostly ordinary; in the others `odd` draws them, of the first so many. */
static void size_rows(const struct batch *p, uint64_t odd, int64_t most)
{
    static const double sizes[] = {0.0625, 1, 8, 64, 256};
    const int64_t width = p->shape->heads * p->shape->d;
    struct rng r[2] = {rng_seeded(0), rng_seeded(odd)};
    for (int64_t i = 0; i < p->cu_q[1]; i++) {
        const double size = sizes[rng_below(&r[i % 2], i % 2 ? most : i % 40 == 38 ? 5 : 3)];
        for (int64_t c = i * width; c < (i + 1) * width; c++)
            element_set(p->type, p->q, c, size * element_get(p->type, p->q, c));
    }
}

/* Rows with an even number see the same keys, the same at all times, in stretches: where the others
 * see none, whole runs of keys are hidden from all. These see stretches that `odd` draws, or, if
 * `all` is not negative, all keys or none. */
static void mask_rows(struct batch *p, uint64_t odd, int all)
{
    const int64_t keys = p->cu_k[1];
    struct rng others = rng_seeded(odd);
    p->mask = test_alloc((size_t)(p->cu_q[1] * keys));
    for (int64_t i = 0; i < p->cu_q[1]; i++) {
        struct rng even = rng_seeded(0), *const row = i % 2 ? &others : &even;
        for (int64_t j = 0, end; j < keys; j = end) {
            const int64_t left = keys - j, drawn = 1 + rng_below(row, 150);
            const bool sees = rng_below(row, 3) == 0;
            end = j + (drawn < left ? drawn : left);
            memset(p->mask + i * keys + j, i % 2 && all >= 0 ? all : sees, (size_t)(end - j));
        }
    }
}

/* Slopes of which the steepest takes scores far down in a tile, and the flattest in many. */
static void draw_slopes(struct batch *p)
{
    p->slopes = test_alloc((size_t)p->shape->heads * p->lse_size);
    for (int64_t h = 0; h < p->shape->heads; h++)
        element_set(p->computing, p->slopes, h, ldexp(1, -2 * (int)h));
}

/* Biases that rise or fall with the keys: in rows with an even number always alike, in the others
 * as steeply as `odd` draws. */
static void draw_bias(struct batch *p, uint64_t odd)
{
    const int64_t rows = p->cu_q[1], keys = p->cu_k[1];
    struct rng r[2] = {rng_seeded(0), rng_seeded(odd)};
    p->bias = test_alloc((size_t)(rows * keys) * p->lse_size);
    for (int64_t i = 0; i < rows; i++) {
        const double slope = 2 * rng_uniform(&r[i % 2]) - 1;
        for (int64_t j = 0; j < keys; j++)
            element_set(p->computing, p->bias, i * keys + j, slope * (double)j);
    }
}

/* What rows have for neighbours. */
enum kind { SIZES, MASKED, SLOPED, BIASED, KINDS };
static const char *const kinds[KINDS] = {"of sizes", "that see other keys",
                                         "that see other keys, with ALiBi",
                                         "that see other keys, with biases"};

/* Whether rows with an even number have the same bits. */
static bool even_rows_same(const struct batch *p, const struct outcome *a, const struct outcome *b)
{
    const size_t out = row_bytes(p), lse = (size_t)p->shape->heads * p->lse_size;
    bool good = true;
    for (size_t i = 0; i < (size_t)p->cu_q[1]; i += 2)
        good = good && memcmp(a->out + i * out, b->out + i * out, out) == 0 &&
               memcmp(a->lse + i * lse, b->lse + i * lse, lse) == 0;
    return good;
}

static void test_rows(const struct options *o, struct target *t, const struct shape *s,
                      attn_dtype type, enum kind kind)
{
    static const int64_t most[] = {5, 5, 1};
    static const int all[] = {-1, 1, 0};
    const char *const name = element_name(type), *const isa = t->isa ? t->isa : "";
    const int n = (int)(s - shapes);
    struct outcome x[3];
    for (int time = 0; time < 3; time++) {
        const uint64_t seed = (uint64_t)time + 1;
        struct batch p = batch_of(s, type);
        size_rows(&p, seed, most[time]);
        if (kind != SIZES)
            mask_rows(&p, seed, all[time]);
        if (kind == SLOPED)
            draw_slopes(&p);
        if (kind == BIASED)
            draw_bias(&p, seed);
        x[time] = outcome_new(&p);
        const bool good = run(&p, t->context, 0, 1, false, &x[time]) == ATTN_OK;
        EXPECT(good && (kind != SIZES || time > 0 || is_right(&p, &x[time], 0)),
               "%s %s %s, shape %d: rows of sizes %d are wrong", o->program, isa, name, n, time);
        EXPECT(good && even_rows_same(&p, &x[0], &x[time]),
               "%s %s %s, shape %d: rows differ among others %s, %d", o->program, isa, name, n,
               kinds[kind], time);
        batch_free(&p);
    }
    for (int time = 0; time < 3; time++)
        outcome_free(&x[time]);
}

static void test_type(const struct options *o, struct target *t, attn_context *several,
                      const struct shape *s, attn_dtype type)
{
    test_shape(o, t, several, s, type);
    const enum kind end = s->keys * s->heads < 10000 ? KINDS : SLOPED; /* they take longest */
    for (enum kind kind = 0; s->d < 1024 && kind < end; kind++)
        test_rows(o, t, s, type, kind);
}

int main(int argc, char **argv)
{
    const int64_t most = sizeof shapes / sizeof *shapes;
    const struct options o = options_parse(argc, argv, "neighbours", most); /* of these */
    struct target targets[MOST_TARGETS];
    report_begin("neighbours");
    const int count = targets_open(targets, &o);
    for (int i = 0; i < count; i++) {
        if (!targets[i].exact)
            continue;
        attn_context *several = target_context(&targets[i], THREADS);
        for (int64_t n = 0; n < o.count && n < most; n++) {
            test_type(&o, &targets[i], several, &shapes[n], ATTN_BF16);
            if (targets[i].isa && strstr(targets[i].isa, "bf16"))
                continue; /* the others are those of the set that it extends */
            test_type(&o, &targets[i], several, &shapes[n], ATTN_F32);
            test_type(&o, &targets[i], several, &shapes[n], ATTN_F64);
        }
        attn_context_destroy(several);
    }
    targets_close(targets, count);
    return report_end();
}
