/* SPDX-License-Identifier: BSD-3-Clause */
/* The familiar forms: what is wrong in their own arguments, and in what they pass on. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "args.h"
#include "args_more.h"
#include "expect.h"

/* Arguments of a sound call of each form; a case changes one of them. */
struct form {
    attn_dtype dtype;
    int64_t batch, seqlen_q, seqlen_k, hq, hkv, d, dv;
    const void *q, *k, *v;
    void *out, *lse;
    const attn_score_input *mask;
    const int32_t *cu_q, *cu_k;
    int64_t max_q, left, right;
    int32_t causal, gqa;
    double dropout, scale, softcap;
};

static struct form sound(void)
{
    const struct form f = {.batch = B, .seqlen_q = SQ, .seqlen_k = SK, .hq = HQ, .hkv = HKV,
                           .d = D, .dv = DV, .q = buf.q, .k = buf.k, .v = buf.v, .out = buf.out,
                           .lse = buf.lse, .cu_q = buf.cu_q, .cu_k = buf.cu_k, .left = -1,
                           .right = -1, .gqa = 1};
    return f;
}

static attn_status sdpa(const struct form *f)
{
    return attn_sdpa(NULL, f->dtype, f->batch, f->hq, f->hkv, f->seqlen_q, f->seqlen_k, f->d, f->dv,
                     f->q, f->k, f->v, f->mask, f->dropout, 1, f->causal, f->scale, f->gqa, f->out);
}

static attn_status varlen(const struct form *f)
{
    return attn_varlen(NULL, f->dtype, f->batch, TQ, TK, f->hq, f->hkv, f->d, f->dv, f->q, f->k,
                       f->v, f->cu_q, f->cu_k, f->max_q, 0, f->dropout, 1, f->scale, f->causal,
                       f->left, f->right, f->softcap, NULL, f->out, f->lse);
}

static attn_status bidirectional(const struct form *f)
{
    return attn_bidirectional(NULL, f->dtype, f->batch, f->seqlen_q, f->hkv, f->d, f->q, f->k,
                              f->v, NULL, f->out);
}

static attn_status causal(const struct form *f)
{
    return attn_causal(NULL, f->dtype, f->batch, f->seqlen_q, f->hkv, f->d, f->q, f->k, f->v,
                       buf.mask, f->out);
}

static void expect_form(const char *name, attn_status (*call)(const struct form *),
                        const struct form *f, attn_status want)
{
    buffers_fill();
    const struct buffers before = buf;
    const attn_status got = call(f);
    EXPECT(got == want, "%s: %s (\"%s\"), expected %s", name, attn_status_name(got),
           attn_last_message(NULL), attn_status_name(want));
    EXPECT((got == ATTN_OK) == !attn_last_message(NULL)[0], "%s: message \"%s\"", name,
           attn_last_message(NULL));
    EXPECT(got == ATTN_OK || memcmp(&before, &buf, sizeof buf) == 0, "%s wrote something", name);
    EXPECT(got != ATTN_OK || memcmp(before.out, buf.out, sizeof buf.out) != 0,
           "%s wrote nothing", name);
}

static void test_sdpa(void)
{
    const attn_score_input none = {NULL, ATTN_BOOL, 0, 0, 0, 1};
    const attn_score_input mask = {buf.mask, ATTN_BOOL, 0, 0, 0, 1};
    struct form f = sound();
    expect_form("sdpa", sdpa, &f, ATTN_OK);
    f.causal = 1;
    expect_form("sdpa, causal", sdpa, &f, ATTN_OK);
    f.mask = &mask;
    expect_form("sdpa, mask and causal", sdpa, &f, ATTN_INVALID_CONFLICT);
    f.causal = 0;
    f.mask = &none;
    expect_form("sdpa, mask without data", sdpa, &f, ATTN_INVALID_NULL);
    f = sound();
    f.gqa = 0;
    expect_form("sdpa, groups not enabled", sdpa, &f, ATTN_INVALID_HEADS);
    f.gqa = 2;
    expect_form("sdpa, enable_gqa 2", sdpa, &f, ATTN_INVALID_ENUM);
    f = sound();
    f.causal = -1;
    expect_form("sdpa, is_causal -1", sdpa, &f, ATTN_INVALID_ENUM);
    f = sound();
    f.dropout = NAN;
    expect_form("sdpa, dropout NaN", sdpa, &f, ATTN_INVALID_VALUE);
    f.dropout = 0.5;
    expect_form("sdpa, dropout", sdpa, &f, ATTN_OK);
    f = sound();
    f.seqlen_k = INT64_MAX;
    expect_form("sdpa, seqlen_k overflows", sdpa, &f, ATTN_INVALID_OVERFLOW);
    f = sound();
    f.out = NULL;
    expect_form("sdpa, out null", sdpa, &f, ATTN_INVALID_NULL);
}

static void test_varlen(void)
{
    struct form f = sound();
    expect_form("varlen", varlen, &f, ATTN_OK);
    f.causal = 1;
    f.left = 2;
    f.right = 0;
    expect_form("varlen, causal window", varlen, &f, ATTN_OK);
    f.left = -2;
    expect_form("varlen, window_left -2", varlen, &f, ATTN_INVALID_VALUE);
    f = sound();
    f.cu_k = buf.cu_falls;
    expect_form("varlen, falling offsets", varlen, &f, ATTN_INVALID_LENGTHS);
    f.cu_k = NULL;
    expect_form("varlen, no offsets", varlen, &f, ATTN_INVALID_NULL);
    f = sound();
    f.max_q = 3;
    expect_form("varlen, max_seqlen_q too small", varlen, &f, ATTN_INVALID_LENGTHS);
    f = sound();
    f.hkv = 3;
    expect_form("varlen, heads do not divide", varlen, &f, ATTN_INVALID_HEADS);
    f.hkv = 0;
    expect_form("varlen, no key heads", varlen, &f, ATTN_INVALID_HEADS);
    f = sound();
    f.dv = 0;
    expect_form("varlen, head_dim_v 0", varlen, &f, ATTN_INVALID_SHAPE);
    f = sound();
    f.softcap = 20;
    expect_form("varlen, softcap", varlen, &f, ATTN_OK);
    f = sound();
    f.lse = buf.out;
    expect_form("varlen, lse on out", varlen, &f, ATTN_INVALID_OVERLAP);
}

void test_forms(void)
{
    struct form f = sound();
    test_sdpa();
    test_varlen();
    f.seqlen_q = -1;
    expect_form("bidirectional, seqlen -1", bidirectional, &f, ATTN_INVALID_SHAPE);
    expect_form("causal, seqlen -1", causal, &f, ATTN_INVALID_SHAPE);
    f = sound();
    f.dtype = ATTN_BOOL;
    expect_form("bidirectional, bytes", bidirectional, &f, ATTN_INVALID_DTYPE);
    f.dtype = (attn_dtype)40;
    expect_form("causal, dtype 40", causal, &f, ATTN_INVALID_ENUM);
    f = sound();
    f.v = NULL;
    expect_form("bidirectional, v null", bidirectional, &f, ATTN_INVALID_NULL);
    f = sound();
    f.out = buf.q;
    expect_form("causal in place", causal, &f, ATTN_INVALID_OVERLAP);
}
