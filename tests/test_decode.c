/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Sequences decoded step by step over a KV cache, contiguous and paged: a prompt, then a few tokens
 * at a time, keys turned as they are appended and queries alike, against the truth of one causal
 * call over the whole.
 */
#include <string.h>

#include "attn/attn.h"
#include "element.h"
#include "expect.h"
#include "kv.h"
#include "whole.h"

struct target {
    const char *name;
    attn_backend backend;
    bool exact; /* its results are defined bit by bit */
    attn_context *context;
};

enum { STORIES = 16, STEPS = 120, SEQUENCES = 3, ROOM = 60, HQ = 4, HKV = 2, D = 16, DV = 12 };

/* Sequences of up to ROOM tokens, [SEQUENCES, ROOM, H, D] and so on, and what came of them. */
struct story {
    attn_dtype dtype;
    int64_t seed;
    int64_t tokens[SEQUENCES]; /* of each sequence, in the end */
    struct strided q, k, v, turned_q, turned_k, out, lse;
};

/* One step: so many new tokens of each sequence, packed. */
struct step {
    int32_t before[SEQUENCES], after[SEQUENCES], cu[SEQUENCES + 1];
    struct strided q, k, v, out, lse;
};

static struct strided step_tensor(const struct story *s, const struct step *t, struct rng *r,
                                  const struct strided *from)
{
    struct strided x = strided_make(r, s->dtype, 1, t->cu[SEQUENCES], from->extent[2], from->run,
                                    false);
    for (int b = 0; b < SEQUENCES; b++)
        for (int64_t i = t->cu[b]; i < t->cu[b + 1]; i++)
            strided_put(&x, 0, i, from, b, t->before[b] + i - t->cu[b]);
    return x;
}

static void step_begin(struct step *t, const struct story *s, struct rng *steps, struct rng *r)
{
    const bool prompt = t->before[0] + t->before[1] + t->before[2] == 0;
    for (int b = 0; b < SEQUENCES; b++) {
        const int64_t left = s->tokens[b] - t->before[b];
        const int64_t n = prompt ? rng_below(steps, left + 1) : rng_below(steps, 4);
        t->cu[b + 1] = t->cu[b] + (int32_t)(n < left ? n : left);
    }
    const int64_t n = t->cu[SEQUENCES];
    t->q = step_tensor(s, t, r, &s->q);
    t->k = step_tensor(s, t, r, &s->k);
    t->v = step_tensor(s, t, r, &s->v);
    t->out = strided_make(r, s->dtype, 1, n, HQ, DV, false);
    t->lse = strided_make(r, element_computing(s->dtype), 1, n, HQ, 1, true);
}

static void step_end(struct step *t)
{
    struct strided *all[] = {&t->q, &t->k, &t->v, &t->out, &t->lse};
    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++)
        strided_free(all[n]);
    memcpy(t->before, t->after, sizeof t->before);
}

/* Keys into the cache, queries turned where they are, attention over the cache. */
static attn_status step_run(struct step *t, attn_context *context, const struct kv *c)
{
    attn_side tokens;
    memset(&tokens, 0, sizeof tokens);
    tokens.layout = ATTN_PACKED;
    tokens.tokens = t->cu[SEQUENCES];
    tokens.cu_seqlens.data = t->cu;

    attn_append_desc a = attn_append_desc_init();
    a.batch = SEQUENCES;
    a.heads_kv = HKV;
    a.head_dim = D;
    a.head_dim_v = DV;
    a.tokens = tokens;
    a.cache = kv_side(c, (attn_index){t->before, ATTN_I32});
    a.k = strided_input(&t->k);
    a.v = strided_input(&t->v);
    a.k_cache = strided_output(&c->k);
    a.v_cache = strided_output(&c->v);
    a.rotary = 1;
    a.lengths = t->after;

    attn_rotary_desc q = attn_rotary_desc_init();
    q.batch = SEQUENCES;
    q.heads = HQ;
    q.head_dim = D;
    q.tokens = tokens;
    q.x = strided_input(&t->q);
    q.out = strided_output(&t->q);
    q.offsets.data = t->before;

    attn_desc d = attn_desc_init();
    d.batch = SEQUENCES;
    d.heads_q = HQ;
    d.heads_kv = HKV;
    d.head_dim = D;
    d.head_dim_v = DV;
    d.query = tokens;
    d.key = a.cache;
    d.key.seqused.data = t->after;
    d.q = q.x;
    d.k = strided_input(&c->k);
    d.v = strided_input(&c->v);
    d.out = strided_output(&t->out);
    d.lse = strided_output(&t->lse);
    d.causal = 1;
    d.align = ATTN_BOTTOM_RIGHT;
    attn_status status = attn_cache_append(context, &a);
    if (status == ATTN_OK)
        status = attn_rotary(context, &q);
    return status == ATTN_OK ? attn_forward(context, &d) : status;
}

static void story_begin(struct story *s, attn_dtype dtype, int64_t seed, struct rng *r)
{
    s->dtype = dtype;
    s->seed = seed;
    for (int b = 0; b < SEQUENCES; b++)
        s->tokens[b] = rng_below(r, ROOM + 1);
    s->q = strided_make(r, dtype, SEQUENCES, ROOM, HQ, D, false);
    s->k = strided_make(r, dtype, SEQUENCES, ROOM, HKV, D, false);
    s->v = strided_make(r, dtype, SEQUENCES, ROOM, HKV, DV, false);
    strided_fill(&s->q, r);
    strided_fill(&s->k, r);
    strided_fill(&s->v, r);
    s->turned_q = strided_copy(&s->q);
    s->turned_k = strided_copy(&s->k);
    s->out = strided_make(r, dtype, SEQUENCES, ROOM, HQ, DV, false);
    s->lse = strided_make(r, element_computing(dtype), SEQUENCES, ROOM, HQ, 1, true);
    attn_rotary_desc d = attn_rotary_desc_init();
    d.batch = SEQUENCES;
    d.head_dim = D;
    d.tokens.seqlen = ROOM;
    for (int keys = 0; keys < 2; keys++) {
        d.heads = keys ? HKV : HQ;
        d.x = strided_input(keys ? &s->k : &s->q);
        d.out = strided_output(keys ? &s->turned_k : &s->turned_q);
        EXPECT(attn_rotary(NULL, &d) == ATTN_OK, "rotary: %s", attn_last_message(NULL));
    }
}

static void story_end(struct story *s)
{
    struct strided *all[] = {&s->q, &s->k, &s->v, &s->turned_q, &s->turned_k, &s->out, &s->lse};
    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++)
        strided_free(all[n]);
}

/* Whether a sequence is within the budget of one causal call over all of it. */
static int64_t sequence_faults(const struct story *s, int b)
{
    struct whole w = whole_make(s->dtype, s->tokens[b], s->tokens[b], HQ, HKV, D, DV);
    for (int64_t i = 0; i < s->tokens[b]; i++) {
        whole_query(&w, i, &s->turned_q, b, i);
        whole_key(&w, i, &s->turned_k, &s->v, b, i);
        whole_result(&w, i, &s->out, &s->lse, b, i);
    }
    const int64_t faults = whole_faults(&w);
    whole_free(&w);
    return faults;
}

/* Steps drawn from the seed over a cache of that layout; memory from r. False where the backend
 * does not serve it. */
static bool tell(struct story *s, struct target *on, attn_layout layout, struct rng *r)
{
    struct kv c = kv_make(r, layout, s->dtype, SEQUENCES, ROOM, HKV, D, DV);
    struct rng steps = rng_seeded((uint64_t)s->seed);
    struct step t;
    attn_status status = ATTN_OK;
    memset(&t, 0, sizeof t);
    for (int n = 0; n < STEPS && status == ATTN_OK; n++) {
        step_begin(&t, s, &steps, r);
        status = step_run(&t, on->context, &c);
        for (int b = 0; b < SEQUENCES; b++)
            for (int64_t i = t.cu[b]; i < t.cu[b + 1]; i++) {
                strided_put(&s->out, b, t.before[b] + i - t.cu[b], &t.out, 0, i);
                strided_put(&s->lse, b, t.before[b] + i - t.cu[b], &t.lse, 0, i);
            }
        step_end(&t);
    }
    kv_free(&c);
    if (status == ATTN_UNSUPPORTED || status == ATTN_NO_BACKEND) {
        report_skip("%s: %s", on->name, attn_last_message(on->context));
        return false;
    }
    EXPECT(status == ATTN_OK, "story %lld, %s: %s", (long long)s->seed, on->name,
           attn_last_message(on->context));
    for (int b = 0; b < SEQUENCES; b++)
        EXPECT(t.before[b] == s->tokens[b] && sequence_faults(s, b) == 0,
               "story %lld, %s, %s: sequence %d is not what one call makes of it",
               (long long)s->seed, on->name, element_name(s->dtype), b);
    return true;
}

/* The same steps in each layout; where bits are promised they are the same. */
static void test_story(int64_t seed, struct target *on)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};
    static const attn_layout layouts[] = {ATTN_PADDED, ATTN_PACKED, ATTN_PAGED};
    struct rng r = rng_seeded((uint64_t)seed);
    struct story s;
    story_begin(&s, types[seed % 4], seed, &r);
    struct strided first = {.data = NULL};
    for (int n = 0; n < 3; n++) {
        if (!tell(&s, on, layouts[n], &r))
            continue;
        if (n == 0)
            first = strided_copy(&s.out);
        EXPECT(!on->exact || !first.data || strided_same(&s.out, &first),
               "story %lld, %s: another layout, other bits", (long long)seed, on->name);
    }
    strided_free(&first);
    story_end(&s);
}

/* --count N: only so many of the stories. */
int main(int argc, char **argv)
{
    const int64_t count = report_count(argc, argv, STORIES);
    struct target targets[] = {{"cpu", ATTN_BACKEND_CPU, true, NULL},
                               {"eager", ATTN_BACKEND_EAGER, false, NULL}};
    report_begin("decode");
    for (int n = 0; n < 2; n++) {
        attn_options o = attn_options_init();
        o.backend = targets[n].backend;
        if (attn_context_create(&targets[n].context, &o) != ATTN_OK) {
            report_skip("%s: not built in", targets[n].name);
            continue;
        }
        for (int64_t seed = 0; seed < count; seed++)
            test_story(seed, &targets[n]);
        attn_context_destroy(targets[n].context);
    }
    return report_end();
}
