/* SPDX-License-Identifier: BSD-3-Clause */
#include "cases.h"

#include <stdio.h>

enum { MAX_CASES = 96, LONG_BATCH = 301 };

/* 27 sequences of 16 to 988 tokens, 16384 in all. */
static const int32_t lengths_27[27] = {16,  988, 327, 437, 685, 224, 405, 811, 971,
                                       412, 699, 492, 740, 296, 722, 987, 412, 568,
                                       425, 680, 719, 599, 847, 725, 867, 480, 850};
static int32_t cu_27[27 + 1];
static int32_t cu_long[LONG_BATCH + 1];
static int32_t cu_equal[16 + 1]; /* twice the tokens are to cost twice the time */

/* Padded, one sequence: every head size with every length. Lists end at 0. */
struct family {
    const char *name; /* the case's name up to "-d<head_dim>-s<keys>" */
    bool causal;
    int64_t heads_q, heads_kv;
    int64_t queries; /* 0: as many as keys */
    int64_t head_dims[8];
    int64_t seqlens[8];
    enum bench_feature feature;
};

#define POWERS {64, 128, 256, 512, 1024, 2048, 4096}
static const struct family families[] = {
    {"full", false, 16, 16, 0, {64, 128}, POWERS, BENCH_PLAIN},
    {"causal", true, 16, 16, 0, {64, 128}, POWERS, BENCH_PLAIN},
    {"full", false, 16, 16, 0, {40, 72, 80, 96, 112, 129}, {2048}, BENCH_PLAIN},
    {"gqa", false, 32, 8, 0, {128}, {512, 2048}, BENCH_PLAIN},
    {"gqa-causal", true, 32, 8, 0, {128}, {512, 2048}, BENCH_PLAIN},
    {"decode-h32-kv8", false, 32, 8, 1, {128}, {8192, 32768}, BENCH_PLAIN},
    {"q16", false, 16, 16, 16, {64, 128}, {512, 8192}, BENCH_PLAIN},
    {"q64", false, 16, 16, 64, {64, 128}, {512, 8192}, BENCH_PLAIN},
    {"bias", false, 16, 16, 0, {64, 128}, {2048}, BENCH_BIAS},
    {"mask", false, 16, 16, 0, {128}, {2048}, BENCH_MASK},
    {"blocks", false, 16, 16, 0, {128}, {4096}, BENCH_BLOCKS},
    {"window", true, 16, 16, 0, {128}, {4096}, BENCH_WINDOW},
    {"alibi", false, 16, 16, 0, {128}, {2048}, BENCH_ALIBI},
    {"softcap", false, 16, 16, 0, {128}, {2048}, BENCH_SOFTCAP},
    {"wide", false, 16, 16, 0, {64, 128}, {2048}, BENCH_WIDE},
    {"q16-mask", false, 16, 16, 16, {128}, {2048}, BENCH_MASK},
    {"q16-alibi", false, 16, 16, 16, {128}, {2048}, BENCH_ALIBI},
};

/* Packed; each entry's offsets are filled in by fill_offsets(). */
static const struct bench_case packed[] = {
    {"varlen-27", false, 12, 12, 64, 27, 0, 0, cu_27, BENCH_PLAIN},
    {"varlen-27-causal", true, 12, 12, 64, 27, 0, 0, cu_27, BENCH_PLAIN},
    {"one-long-d64", false, 4, 4, 64, LONG_BATCH, 0, 0, cu_long, BENCH_PLAIN},
    {"equal-8-d64-s512", false, 8, 8, 64, 8, 0, 0, cu_equal, BENCH_PLAIN},
    {"equal-16-d64-s512", false, 8, 8, 64, 16, 0, 0, cu_equal, BENCH_PLAIN},
};

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

static void fill_offsets(void)
{
    for (int b = 0; b < 27; b++)
        cu_27[b + 1] = cu_27[b] + lengths_27[b];
    /* One of 16384, then 300 of 16 to 128, scattered by a step that shares no factor with 113. */
    cu_long[1] = 16384;
    for (int b = 1; b < LONG_BATCH; b++)
        cu_long[b + 1] = cu_long[b] + 16 + b * 37 % 113;
    for (int b = 0; b < 16; b++)
        cu_equal[b + 1] = cu_equal[b] + 512;
}

static int add_family(const struct family *f, struct bench_case *to)
{
    int n = 0;
    for (const int64_t *d = f->head_dims; *d; d++)
        for (const int64_t *s = f->seqlens; *s; s++) {
            struct bench_case *c = &to[n++];
            snprintf(c->name, sizeof c->name, "%s-d%d-s%d", f->name, (int)*d, (int)*s);
            c->causal = f->causal;
            c->heads_q = f->heads_q;
            c->heads_kv = f->heads_kv;
            c->head_dim = *d;
            c->batch = 1;
            c->seqlen_q = f->queries ? f->queries : *s;
            c->seqlen_k = *s;
            c->feature = f->feature;
        }
    return n;
}

const struct bench_case *bench_cases(int32_t *count)
{
    static struct bench_case cases[MAX_CASES];
    static int n;
    if (n == 0) {
        fill_offsets();
        for (int f = 0; f < COUNT(families); f++)
            n += add_family(&families[f], cases + n);
        for (int p = 0; p < COUNT(packed); p++)
            cases[n++] = packed[p];
    }
    *count = n;
    return cases;
}

int64_t bench_case_nq(const struct bench_case *c, int64_t b)
{
    return c->cu_seqlens ? c->cu_seqlens[b + 1] - c->cu_seqlens[b] : c->seqlen_q;
}

int64_t bench_case_nk(const struct bench_case *c, int64_t b)
{
    return c->cu_seqlens ? c->cu_seqlens[b + 1] - c->cu_seqlens[b] : c->seqlen_k;
}

int64_t bench_case_rows_q(const struct bench_case *c)
{
    return c->cu_seqlens ? c->cu_seqlens[c->batch] : c->batch * c->seqlen_q;
}

int64_t bench_case_rows_k(const struct bench_case *c)
{
    return c->cu_seqlens ? c->cu_seqlens[c->batch] : c->batch * c->seqlen_k;
}

bool bench_case_is_decode(const struct bench_case *c)
{
    return !c->cu_seqlens && c->seqlen_q == 1;
}

/* Causal: queries and keys are equal in number. */
static double visible_pairs(const struct bench_case *c, double nq, double nk)
{
    /* rows past the window's width */
    const double far = nq > BENCH_WIDTH ? nq - BENCH_WIDTH - 1 : 0;
    switch (c->feature) {
    case BENCH_WINDOW: return nq * (nq + 1) / 2 - far * (far + 1) / 2;
    case BENCH_BLOCKS: return nq * nk / 2; /* an even number of blocks */
    default: return c->causal ? nq * (nq + 1) / 2 : nq * nk;
    }
}

double bench_case_flops(const struct bench_case *c, enum bench_pass pass)
{
    static const double forwards[] = {[BENCH_FWD] = 1, [BENCH_BWD] = 2.5, [BENCH_FWDBWD] = 3.5};
    double pairs = 0;
    for (int64_t b = 0; b < c->batch; b++)
        pairs += visible_pairs(c, (double)bench_case_nq(c, b), (double)bench_case_nk(c, b));
    return forwards[pass] * 4 * pairs * (double)(c->heads_q * c->head_dim);
}

double bench_case_kv_bytes(const struct bench_case *c, int64_t element_size)
{
    return 2.0 * (double)(bench_case_rows_k(c) * c->heads_kv * c->head_dim * element_size);
}
