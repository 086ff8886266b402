/* SPDX-License-Identifier: BSD-3-Clause */
/* Shapes, lengths, masks and numbers of a problem. */
#include "gen.h"

#include <stdlib.h>
#include <string.h>

#include "memory.h"

static int64_t draw_length(struct rng *r, int64_t most)
{
    static const int16_t edges[] = {0,  1,  1,  2,  3,   5,   7,   8,   9,   11,  13,  15,  16,
                                    17, 19, 23, 31, 32,  33,  37,  47,  48,  49,  61,  63,  64,
                                    65, 67, 95, 96, 97,  101, 127, 128, 129, 131, 191, 192, 193,
                                    251, 255, 256, 257, 293, 383, 384, 385, 509, 640, 761, 1031};

    for (;;) {
        const int64_t n = rng_chance(r, 75) ? RNG_PICK(r, edges) : rng_below(r, most + 1);
        if (n <= most)
            return n;
    }
}

static int64_t draw_head_dim(struct rng *r)
{
    static const int16_t usual[] = {1, 3, 8, 16, 24, 40, 63, 64, 64, 65, 80, 128, 128, 129};
    static const int16_t rare[] = {2, 7, 17, 31, 32, 33, 96, 100, 160, 192, 256, 300};

    return rng_chance(r, 85) ? RNG_PICK(r, usual) : RNG_PICK(r, rare);
}

/* Narrow heads in a part of all problems; drawn apart, which leaves the others as they are. */
static void draw_narrow(struct problem *p)
{
    static const int16_t dims[] = {4, 5, 6, 9, 10, 11, 12};
    struct rng r = rng_seeded(p->seed ^ UINT64_C(0x4a44));

    if (!rng_chance(&r, 12))
        return;
    p->d = RNG_PICK(&r, dims);
    p->dv = rng_chance(&r, 70) ? p->d : RNG_PICK(&r, dims);
}

static void draw_heads(struct problem *p, struct rng *r)
{
    static const int8_t groups[] = {1, 1, 1, 2, 3, 4, 8};
    const int64_t group = RNG_PICK(r, groups);

    p->hkv = 1 + rng_below(r, 8 / group);
    p->hq = p->hkv * group;
    p->tell_hkv = p->hq != p->hkv || rng_chance(r, 50);
    p->d = draw_head_dim(r);
    p->dv = rng_chance(r, 70) ? p->d : draw_head_dim(r);
    draw_narrow(p);
    p->tell_dv = p->dv != p->d || rng_chance(r, 50);
}

/* Lengths that take part, of one side. */
static void draw_used(struct problem *p, struct side *s, int64_t most, struct rng *r)
{
    const bool alike = rng_chance(r, 25);

    for (int64_t b = 0; b < p->batch; b++)
        s->used[b] = alike && b ? s->used[0] : draw_length(r, most);
}

/* The rows around those lengths: room of each sequence, tails, the number types. */
static void draw_room(struct problem *p, struct side *s, struct rng *r)
{
    int64_t longest = 0;
    bool equal = true;

    for (int64_t b = 0; b < p->batch; b++) {
        equal = equal && s->used[b] == s->used[0];
        longest = s->used[b] > longest ? s->used[b] : longest;
    }
    s->has_used = rng_chance(r, s->packed ? 30 : 40) || (!s->packed && !equal);
    s->seqlen = longest + (s->has_used && rng_chance(r, 40) ? rng_below(r, 9) : 0);
    longest = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        s->room[b] = s->packed ? s->used[b] : s->seqlen;
        if (s->packed && s->has_used && rng_chance(r, 60))
            s->room[b] += rng_below(r, rng_chance(r, 80) ? 6 : 70);
        longest = s->room[b] > longest ? s->room[b] : longest;
        s->start[b + 1] = s->packed ? s->start[b] + s->room[b] : 0;
    }
    s->tokens = s->start[p->batch] + (rng_chance(r, 30) ? 1 + rng_below(r, 9) : 0);
    s->cu_type = rng_chance(r, 30) ? ATTN_I64 : ATTN_I32;
    s->used_type = rng_chance(r, 30) ? ATTN_I64 : ATTN_I32;
    if (s->packed && rng_chance(r, 50))
        s->max_seqlen = longest + (rng_chance(r, 50) ? rng_below(r, 1000) : 0);
}

/* Multiplications of the whole problem. */
static int64_t work_of(const struct problem *p)
{
    int64_t pairs = 0;

    for (int64_t b = 0; b < p->batch; b++)
        pairs += p->query.used[b] * p->key.used[b];
    return pairs * p->hq * (p->d + p->dv);
}

/* More than two tiles of keys, and mostly one tile of rows; head sizes of each kernel that there is
 * for such by turns (fwd_bf16_sm90.cu), and others. */
static void draw_many_keys(struct problem *p, struct rng *r)
{
    static const int16_t dims[][2] = {{64, 64},   {96, 96},   {128, 64}, {128, 128},
                                      {192, 128}, {192, 192}, {256, 256}};
    static const int8_t groups[] = {1, 1, 2, 3, 8};
    const int16_t *const d = dims[p->seed % (sizeof dims / sizeof dims[0])];
    const bool wide = rng_chance(r, 10); /* values wider than keys */
    const int64_t group = RNG_PICK(r, groups);

    p->hkv = 1 + rng_below(r, 2);
    p->hq = p->hkv * group;
    p->tell_hkv = p->tell_dv = true;
    p->d = d[wide] - (rng_chance(r, 70) ? 0 : rng_below(r, 60));
    p->dv = d[!wide] - (rng_chance(r, 70) ? 0 : rng_below(r, 60));
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t rows = rng_chance(r, 85) ? 17 + rng_below(r, 90) : rng_below(r, 260);
        p->query.used[b] = (rows + group - 1) / group;
        p->key.used[b] = rng_chance(r, 85) ? 258 + rng_below(r, 800) : draw_length(r, 300);
    }
}

/* Some blocks of rows, and keys that fill a second cache. */
static void draw_some_rows(struct problem *p, struct rng *r, int64_t group)
{
    static const int16_t dims[] = {100, 128, 160, 256};
    const bool more = rng_chance(r, 50);
    const int64_t most = more ? 600 : 180;

    if (more)
        p->batch = p->hkv = 1, p->hq = group;
    p->d = RNG_PICK(r, dims);
    p->dv = rng_chance(r, 70) ? p->d : RNG_PICK(r, dims);
    for (int64_t b = 0; b < p->batch; b++) {
        p->query.used[b] = (20 + rng_below(r, most) + group - 1) / group;
        p->key.used[b] = 400 + rng_below(r, rng_chance(r, 30) && !more ? 1200 : 500);
    }
}

/* Few rows and many keys in a part of all problems, which lengths drawn one by one hardly ever
 * give; drawn apart. False: not in this one. */
static bool draw_few_rows(struct problem *p)
{
    static const int16_t dims[] = {7, 9, 12, 13, 15, 17, 18, 20, 23, 24, 32, 64, 100, 128, 129};
    static const int8_t groups[] = {1, 1, 2, 3, 8};
    struct rng r = rng_seeded(p->seed ^ UINT64_C(0x4a46));
    const int64_t group = RNG_PICK(&r, groups);

    if (p->smooth || p->backward || p->many_keys || !rng_chance(&r, 8))
        return false;
    p->hkv = 1 + rng_below(&r, 2);
    p->hq = p->hkv * group;
    p->d = RNG_PICK(&r, dims);
    p->dv = rng_chance(&r, 70) ? p->d : RNG_PICK(&r, dims);
    p->tell_hkv = p->tell_dv = true;
    p->batch = p->batch > 2 ? 2 : p->batch;
    for (int64_t b = 0; b < p->batch; b++) {
        p->query.used[b] = (rng_below(&r, 27) + group - 1) / group;
        p->key.used[b] = rng_chance(&r, 90) ? 250 + rng_below(&r, 400) : draw_length(&r, 70);
    }
    if (rng_chance(&r, 15))
        draw_some_rows(p, &r, group);
    return true;
}

static void draw_shape(struct problem *p, struct rng *r)
{
    static const int16_t mosts[] = {2, 17, 17, 65, 65, 130, 130, 300, 300, 1100};
    const int64_t whole = rng_chance(r, 90) ? 1000000 : rng_chance(r, 80) ? 5000000 : 30000000;
    const int64_t most_work = p->many_keys && whole < 12000000 ? 12000000 : whole;
    const int64_t limit = p->smooth ? 6000 : p->backward ? whole / 4 : most_work;
    const int64_t drawn = RNG_PICK(r, mosts), most = p->smooth && drawn > 17 ? 17 : drawn;

    p->batch = rng_chance(r, 3) ? 0 : 1 + rng_below(r, p->many_keys ? 3 : 6);
    p->query.packed = rng_chance(r, 50);
    p->key.packed = rng_chance(r, 70) ? p->query.packed : !p->query.packed;
    do {
        if (p->many_keys) {
            draw_many_keys(p, r);
            continue;
        }
        draw_heads(p, r);
        draw_used(p, &p->query, rng_chance(r, 15) ? 4 : most, r);
        draw_used(p, &p->key, rng_chance(r, 10) ? 4 : most, r);
        if (p->batch > 1 && rng_chance(r, 20))
            p->batch--;
    } while (work_of(p) > limit);
    const bool few = draw_few_rows(p);
    draw_room(p, &p->query, r);
    draw_room(p, &p->key, r);
    if (p->query.packed == p->key.packed && !p->many_keys && rng_chance(r, 45) && !few) {
        const struct side key = p->key;
        p->key = p->query; /* self-attention: both sides are the same tokens */
        if (work_of(p) > 2 * limit)
            p->key = key;
    }
}

static int64_t draw_reach(struct rng *r, int64_t most)
{
    static const int64_t huge[] = {INT64_MAX, INT64_MAX - 1, INT64_C(1) << 40, INT32_MAX};

    switch (rng_below(r, 6)) {
    case 0: return -1;
    case 1: return 0;
    case 2: return RNG_PICK(r, huge);
    case 3: return rng_below(r, 2 * most + 2);
    default: return rng_below(r, most / 4 + 3);
    }
}

static void draw_rules(struct problem *p, struct rng *r)
{
    int64_t longest = 0;

    for (int64_t b = 0; b < p->batch; b++)
        longest = p->key.used[b] > longest ? p->key.used[b] : longest;
    p->causal = rng_chance(r, 40);
    p->window = rng_chance(r, 30);
    if (p->window) {
        p->left = draw_reach(r, longest);
        p->right = draw_reach(r, longest);
    }
    if (p->causal || p->window || rng_chance(r, 10))
        p->align = rng_chance(r, 50) ? ATTN_TOP_LEFT : ATTN_BOTTOM_RIGHT;
}

static void draw_scale(struct problem *p, struct rng *r)
{
    switch (rng_below(r, 10)) {
    case 0: p->scale = -0.3 - rng_uniform(r); break;
    case 1: p->scale = 0.02 + rng_uniform(r); break;
    case 2: p->scale = 0.125; break;
    case 3: p->scale = 1; break;
    case 4: p->scale = rng_chance(r, 50) ? 1e-30 : -1e-5; break;
    default: p->scale = 0;
    }
    if (p->smooth && p->scale > -0.01 && p->scale < 0.01)
        p->scale = 0;
}

void gen_token_mask(uint8_t *mask, int64_t n, struct rng *r)
{
    const int64_t kind = rng_below(r, 7), cut = rng_below(r, n + 1), density = 5 + rng_below(r, 90);
    const int64_t tile = INT64_C(16) << rng_below(r, 4);
    const int64_t hidden = rng_below(r, n / tile + 1);

    for (int64_t j = 0; j < n; j++) {
        bool see = true;
        switch (kind) {
        case 0: see = false; break;             /* nothing */
        case 1: see = j >= cut; break;          /* left padding */
        case 2: see = j < cut; break;           /* right padding */
        case 3: see = j / tile != hidden; break; /* a whole tile */
        case 4: see = j == cut; break;          /* one key at most */
        case 5: see = rng_chance(r, (int)density); break;
        default: break;
        }
        mask[j] = see ? (uint8_t)(1 + rng_below(r, 255)) : 0;
    }
}

static void draw_key_mask(struct problem *p, struct rng *r)
{
    const int64_t extra = rng_chance(r, 30) ? rng_below(r, 20) : 0;

    p->has_key_mask = rng_chance(r, p->many_keys ? 15 : 35);
    p->key_mask_stride = p->key.seqlen + extra;
    p->key_mask_given = extra || rng_chance(r, 50) ? p->key_mask_stride : 0;
    if (!p->has_key_mask)
        return;
    problem_mask_buffer(p, BUFFER_KEY_MASK);
    for (int64_t b = 0; b < p->batch; b++)
        gen_token_mask(p->buffers[BUFFER_KEY_MASK].image +
                           token_at(&p->key, b, 0, p->key_mask_stride), p->key.used[b], r);
}

static enum unseen draw_unseen(struct rng *r)
{
    const int64_t x = rng_below(r, 10);

    return x < 6 ? UNSEEN_NAN : x < 7 ? UNSEEN_INF : x < 8 ? UNSEEN_ZERO : UNSEEN_FINITE;
}

/* A third of all problems is in 16-bit types; drawn apart, which leaves the others as they are. */
static void draw_half_type(struct problem *p)
{
    struct rng r = rng_seeded(p->seed ^ UINT64_C(0x16));

    if (p->many_keys || rng_chance(&r, 33))
        p->dtype = rng_chance(&r, 50) ? ATTN_F16 : ATTN_BF16;
}

static void generate(struct problem *p, uint64_t seed)
{
    struct rng r = rng_seeded(seed), more = rng_seeded(seed ^ UINT64_C(0xfea7));
    struct rng back = rng_seeded(seed ^ UINT64_C(0xbacc));
    const bool features = rng_chance(&more, p->many_keys ? 30 : 55);

    p->seed = seed;
    p->plain = true;
    p->dtype = p->smooth || rng_chance(&r, 30) ? ATTN_F64 : ATTN_F32;
    if (!p->smooth)
        draw_half_type(p);
    draw_shape(p, &r);
    if (features && rng_chance(&more, 20) && !p->backward)
        gen_pages(p, &more);
    draw_rules(p, &r);
    draw_scale(p, &r);
    draw_key_mask(p, &r);
    problem_side_buffers(p);
    if (features)
        gen_features(p, &more);
    p->has_lse = rng_chance(&r, 85) || p->backward;
    p->own_workspace = rng_chance(&r, 50);
    gen_layout(p, &r);
    gen_layout_more(p, &more);
    if (p->backward)
        gen_gradients(p, &back);
    problem_roles(p);
    gen_values(p, &r);
    if (p->backward)
        gen_gradient_values(p, &back);
    gen_unseen(p, p->smooth ? UNSEEN_ZERO : draw_unseen(&r), &r);
    if (p->backward)
        gen_results(p);
}

void gen_problem(struct problem *p, uint64_t seed)
{
    memset(p, 0, sizeof *p);
    generate(p, seed);
}

void gen_many_keys(struct problem *p, uint64_t seed)
{
    memset(p, 0, sizeof *p);
    p->many_keys = true;
    generate(p, seed);
}

void gen_backward(struct problem *p, uint64_t seed)
{
    memset(p, 0, sizeof *p);
    p->backward = true;
    generate(p, seed);
}

void gen_smooth(struct problem *p, uint64_t seed)
{
    memset(p, 0, sizeof *p);
    p->backward = p->smooth = true;
    generate(p, seed);
}
