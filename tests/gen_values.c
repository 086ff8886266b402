/* SPDX-License-Identifier: BSD-3-Clause */
/* The numbers that stand in q, k and v, seen or unseen. */
#include <math.h>

#include "gen.h"

enum values {
    NORMAL,
    WIDE,     /* q 64 times as large: a softmax close to a maximum */
    OVERFLOW, /* single products far beyond the type's range, others huge but inside */
    TINY,     /* denormal products, denormal values */
    EQUAL,    /* one number for q, one for k, one for v */
    INTEGERS, /* -3 to 3: many equal scores */
    LARGE_V,
    NOT_FINITE, /* normal, with a NaN or an infinity here and there */
    HUGE_V      /* values near the end of the type's range: sums of two of them leave it */
};

static const char *const value_names[] = {"normal", "wide",     "overflow", "tiny",
                                          "equal",  "integers", "large-v",  "not-finite",
                                          "huge-v"};

/*
 * Powers of ten for the kinds above, and the largest value. What comes out is a mean of values, so
 * that no result leaves a range that the values keep to. Kernels of bf16 take numbers below 2^-126
 * for 0, because its dot product instructions do: its values stay far above that.
 */
static const struct {
    double tiny_qk, tiny_v, large_v, most_v;
} powers[] = {
    [ATTN_F32] = {-20, -39, 30, 3e38},
    [ATTN_F64] = {-160, -309, 300, 1.5e308},
    [ATTN_F16] = {-5, -6, 4, 6e4},
    [ATTN_BF16] = {-14, -28, 30, 3e38},
};

static double draw_value(enum values kind, attn_dtype type, enum role role, const double *equal,
                         struct rng *r)
{
    const double x = rng_normal(r);

    switch (kind) {
    case WIDE: return role == ROLE_Q ? 64 * x : x;
    case OVERFLOW: return type == ATTN_F16 && role == ROLE_Q ? 0 : x; /* see overflow() */
    case TINY: return x * pow(10, role == ROLE_V ? powers[type].tiny_v : powers[type].tiny_qk);
    case EQUAL: return equal[role];
    case INTEGERS: return (double)(rng_below(r, 7) - 3);
    case LARGE_V: {
        const double power = rng_uniform(r);
        return role == ROLE_V ? x * pow(10, powers[type].large_v * power) : x;
    }
    case HUGE_V: {
        const double part = 1 - rng_uniform(r) / 2;
        return role == ROLE_V ? (x < -1 ? -part : part) * powers[type].most_v : x;
    }
    default: return x;
    }
}

/* Tensors may share a buffer: each buffer is filled once, by role. */
static void fill_buffer(struct problem *p, struct buffer *b, enum values kind, struct rng *r)
{
    const double equal[] = {0, rng_normal(r), rng_normal(r), rng_normal(r)};

    for (int64_t n = 0; n < b->count; n++)
        if (b->role[n] >= ROLE_Q && b->role[n] <= ROLE_V)
            element_set(p->dtype, b->image, n,
                        draw_value(kind, p->dtype, (enum role)b->role[n], equal, r));
}

/*
 * Element 0 of some rows of one side becomes +-2^power. The rest of the rows get a multiple of 1/16
 * there: two scores of 2^power times such numbers are equal or far apart, whatever the rounding.
 */
static void set_heads(struct problem *p, const struct tensor *t, const struct side *s, int power,
                      int percent, bool signs, struct rng *r)
{
    struct buffer *buffer = &p->buffers[t->buffer];

    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t i = 0; i < s->used[b]; i++)
            for (int64_t h = 0; h < t->heads; h++) {
                const int64_t at = tensor_at(t, s, b, i, h);
                double x = ldexp(1, power);
                if (!rng_chance(r, percent))
                    x = (double)(rng_below(r, 101) - 50) / 16;
                if (signs && rng_chance(r, 50))
                    x = -x;
                if (buffer->role[at] != ROLE_UNSEEN)
                    element_set(p->dtype, buffer->image, at, x);
            }
}

/* The products 2^(q + k) exceed the computing type, and 2^q times a normal number never comes near
 * it. In f16 it takes a scale to exceed it, which makes every difference of scores huge: only
 * element 0 of the queries is not 0, so that all of them are exact. */
static void overflow(struct problem *p, struct rng *r)
{
    static const struct {
        int q, k;
    } large[] = {[ATTN_F32] = {100, 60}, [ATTN_F64] = {800, 500}, [ATTN_F16] = {15, 15},
                 [ATTN_BF16] = {100, 60}};
    static const int8_t shares[] = {5, 30, 100};

    if (fabs(p->scale) > 0 && fabs(p->scale) < 0.02)
        p->scale = 0;
    if (p->dtype == ATTN_F16)
        p->scale = p->scale < 0 ? -0x1p100 : 0x1p100;
    set_heads(p, &p->q, &p->query, large[p->dtype].q, RNG_PICK(r, shares), true, r);
    set_heads(p, &p->k, &p->key, large[p->dtype].k, RNG_PICK(r, shares), rng_chance(r, 50), r);
}

static bool v_in_k(const struct problem *p)
{
    return p->v.buffer == p->k.buffer && p->v.offset == p->k.offset;
}

/* Makes the n-th seen element of q, k and v NaN or infinite. */
static void set_seen(struct problem *p, int64_t n, bool infinite_qk, struct rng *r)
{
    for (int name = BUFFER_Q; name <= BUFFER_V; name++) {
        struct buffer *b = &p->buffers[name];
        for (int64_t at = 0; at < b->count; at++) {
            if (b->role[at] < ROLE_Q || b->role[at] > ROLE_V || n-- > 0)
                continue;
            const bool infinite = (b->role[at] == ROLE_V) != infinite_qk && !v_in_k(p);
            const double x = infinite && rng_chance(r, 60) ? INFINITY : NAN;
            element_set(p->dtype, b->image, at, rng_chance(r, 50) ? x : -x);
            return;
        }
    }
}

/* Infinities stand either in q and k or in v: a score of -inf leaves open what an infinite value
 * under a weight of 0 gives. */
static void not_finite(struct problem *p, struct rng *r)
{
    const bool infinite_qk = rng_chance(r, 50);
    int64_t seen = 0;

    for (int name = BUFFER_Q; name <= BUFFER_V; name++)
        for (int64_t at = 0; at < p->buffers[name].count; at++) {
            const uint8_t role = p->buffers[name].role[at];
            seen += role >= ROLE_Q && role <= ROLE_V;
        }
    if (fabs(p->scale) > 0 && fabs(p->scale) < 0.02)
        p->scale = 0;
    for (int64_t n = 1 + rng_below(r, 3); n > 0 && seen > 0; n--)
        set_seen(p, rng_below(r, seen), infinite_qk, r);
}

/* Multiplies what is seen of queries and keys by 2^power. */
static void move_products(struct problem *p, int power)
{
    for (int name = BUFFER_Q; name <= BUFFER_V; name++) {
        struct buffer *b = &p->buffers[name];
        for (int64_t n = 0; n < b->count; n++)
            if (b->role[n] == ROLE_Q || b->role[n] == ROLE_K)
                element_set(p->dtype, b->image, n,
                            ldexp(element_get(p->dtype, b->image, n), power));
    }
}

/*
 * Here and there a softcap or scale at the end of the computing type's range or beyond it, drawn
 * apart. The scale of normal values takes products back from there. Where it makes every difference
 * of scores huge, products have to be exact: those of integers. In gradients such a scale is a
 * factor, and so is the slope of the cap: they are drawn more often.
 */
static void draw_extremes(struct problem *p, enum values kind)
{
    static const double caps[] = {1e39, 1e300, 1e-39, 1e-50, 1e-300};
    static const double scales[] = {1e39, -1e39, 1e300, 1e-39, -1e-50, 1e-300};
    struct rng r = rng_seeded(p->seed ^ UINT64_C(0xe7));
    const int power = (p->dtype == ATTN_F64 ? 480 : 54) * (rng_chance(&r, 50) ? 1 : -1);

    const bool often = p->backward && (kind == INTEGERS || p->softcap > 0);

    if (!rng_chance(&r, often ? 60 : 20) || p->smooth)
        return;
    if (p->softcap > 0 && rng_chance(&r, 50))
        p->softcap = RNG_PICK(&r, caps);
    if (kind == INTEGERS)
        p->scale = RNG_PICK(&r, scales);
    if ((kind == NORMAL || kind == WIDE) && p->dtype != ATTN_F16) {
        move_products(p, power);
        p->scale = ldexp(p->scale != 0 ? p->scale : 1 / sqrt((double)p->d), -2 * power);
    }
}

/* Half of the large values are huge, drawn apart; where dropout lets what is kept grow, none. */
static bool draw_huge(const struct problem *p)
{
    struct rng r = rng_seeded(p->seed ^ UINT64_C(0x4e));

    return rng_chance(&r, 50) && !p->backward && p->dropout == 0;
}

static enum values draw_kind(struct rng *r)
{
    static const uint8_t share[] = {47, 8, 7, 6, 6, 8, 8, 10};
    int64_t x = rng_below(r, 100);
    int kind = NORMAL;

    while (x >= share[kind])
        x -= share[kind++];
    return (enum values)kind;
}

void gen_values(struct problem *p, struct rng *r)
{
    enum values kind = draw_kind(r);

    /* Kernels of bf16 may take what tiny values give for 0; the scale that makes f16 overflow does
     * so to any gradient. */
    if (p->smooth || (p->backward && p->dtype == ATTN_BF16 && kind == TINY) ||
        (p->backward && p->dtype == ATTN_F16 && kind == OVERFLOW))
        kind = NORMAL;
    if (kind == LARGE_V && v_in_k(p))
        kind = NORMAL; /* the scores would be large as well */
    if (p->dtype == ATTN_F16 && p->dropout > 0 &&
        (kind == LARGE_V || (kind == OVERFLOW && v_in_k(p))))
        kind = NORMAL; /* what is kept grows, beyond the range */
    if (kind == LARGE_V && draw_huge(p))
        kind = HUGE_V;
    p->values = value_names[kind];
    for (int name = BUFFER_Q; name <= BUFFER_V; name++)
        if (p->buffers[name].element)
            fill_buffer(p, &p->buffers[name], kind, r);
    if (kind == OVERFLOW)
        overflow(p, r);
    if (kind == NOT_FINITE)
        not_finite(p, r);
    draw_extremes(p, kind);
}

static double draw_unseen(attn_dtype type, enum unseen what, struct rng *r)
{
    const double huge = type == ATTN_F16 ? 1e4 : 1e37;

    switch (what) {
    case UNSEEN_NAN: return rng_chance(r, 90) ? NAN : -NAN;
    case UNSEEN_INF: return rng_chance(r, 80) ? INFINITY : -INFINITY;
    case UNSEEN_ZERO: return 0;
    default: return rng_normal(r) * (rng_chance(r, 10) ? huge : 10);
    }
}

/* Fills what nobody sees of a buffer of numbers. */
static void fill_unseen(struct problem *p, enum buffer_name name, attn_dtype type,
                        enum unseen what, struct rng *r)
{
    struct buffer *b = &p->buffers[name];

    for (int64_t n = 0; n < b->count; n++)
        if (b->role[n] == ROLE_UNSEEN)
            element_set(type, b->image, n, draw_unseen(type, what, r));
}

/* The same of bytes and integers: whatever. */
static void fill_bytes(struct problem *p, enum buffer_name name, struct rng *r)
{
    struct buffer *b = &p->buffers[name];

    for (int64_t n = 0; n < b->count; n++)
        for (size_t c = 0; b->role[n] == ROLE_UNSEEN && c < b->element; c++)
            b->image[(size_t)n * b->element + c] = (uint8_t)rng_below(r, 256);
}

void gen_unseen(struct problem *p, enum unseen what, struct rng *r)
{
    static const enum buffer_name bytes[] = {BUFFER_KEY_MASK, BUFFER_TABLE, BUFFER_QUERY_MASK,
                                             BUFFER_MASK, BUFFER_BLOCK_MASK, BUFFER_DOCS_Q,
                                             BUFFER_DOCS_K};

    for (int name = BUFFER_Q; name <= BUFFER_V; name++)
        fill_unseen(p, (enum buffer_name)name, p->dtype, what, r);
    fill_bytes(p, bytes[0], r);
    if (p->has_bias)
        fill_unseen(p, BUFFER_BIAS, p->bias.dtype, what, r);
    fill_unseen(p, BUFFER_ALIBI, element_computing(p->dtype), what, r);
    fill_unseen(p, BUFFER_SINK, element_computing(p->dtype), what, r);
    for (size_t n = 1; n < sizeof bytes / sizeof *bytes; n++)
        fill_bytes(p, bytes[n], r);
    if (!p->backward)
        return;
    fill_unseen(p, BUFFER_DOUT, p->dtype, what, r);
    fill_unseen(p, BUFFER_OUT, p->dtype, what, r);
    fill_unseen(p, BUFFER_LSE, element_computing(p->dtype), what, r);
    fill_unseen(p, BUFFER_DLSE, element_computing(p->dtype), what, r);
}
