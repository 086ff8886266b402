/* SPDX-License-Identifier: BSD-3-Clause */
/* What the check makes of sound descriptors: each field arrives in the problem, defaults filled
 * in. */
#include <math.h>
#include <string.h>

#include "args.h"
#include "check.h"
#include "expect.h"
#include "score.h"

enum { LEN_Q1 = 4, LEN_K1 = 3 }; /* of sequence 1 of the packed descriptor */

/* The problem of a descriptor that has to be sound. */
static struct attn_problem problem_of(const char *name, const attn_desc *d, attn_pass pass)
{
    struct attn_problem p;
    struct attn_message m = {""};
    attn_desc copy;
    const attn_status got = attn_check(d, pass, ATTN_CHECK_RUN, &copy, &p, &m);
    EXPECT(got == ATTN_OK, "%s: %s, \"%s\"", name, attn_status_name(got), m.text);
    return p;
}

static void expect_view(const char *name, const struct attn_view *v, const void *data,
                        int64_t batch, int64_t token, int64_t head)
{
    EXPECT((const void *)v->data == data && v->batch == batch && v->token == token &&
               v->head == head, "%s: %s, strides %lld %lld %lld", name,
           (const void *)v->data == data ? "its data" : "other data", (long long)v->batch,
           (long long)v->token, (long long)v->head);
}

static void expect_score(const char *name, const struct attn_score_view *v, const void *data,
                         int64_t batch, int64_t head, int64_t query, int64_t key)
{
    EXPECT((const void *)v->data == data && v->batch == batch && v->head == head &&
               v->query == query && v->key == key, "%s: %s, strides %lld %lld %lld %lld", name,
           (const void *)v->data == data ? "its data" : "other data", (long long)v->batch,
           (long long)v->head, (long long)v->query, (long long)v->key);
}

static void test_plain(void)
{
    const attn_desc d = sound_desc(PADDED);
    const struct attn_problem p = problem_of("plain", &d, ATTN_PASS_FORWARD);
    EXPECT(p.scale == 1 / sqrt((double)D) && p.softcap == 0, "scale %g, softcap %g", p.scale,
           p.softcap);
    EXPECT(!p.bias.data && !p.bias_offset.data && !p.alibi.data && !p.sink.data, "scores shaped");
    EXPECT(!p.query_mask.data && !p.key_mask.data && !p.mask.data && !p.block_mask.data &&
               !p.query_docs.data && !p.key_docs.data && !p.prefix.data, "masks given");
    EXPECT(!p.dropout.on && p.dropout.least == 0 && p.dropout.scale == 1, "dropout");
    EXPECT(!p.probs.data && !p.probs_fn && !p.key_sums.data, "further outputs");
    EXPECT(!p.key.table && p.key.page_size == 0, "pages");
}

static void test_bias(void)
{
    attn_desc d = sound_desc(PADDED);
    d.softcap = 30;
    d.bias = (attn_score_input){buf.bias, ATTN_F32, SQ * SK, ATTN_BROADCAST, SK, 1};
    struct attn_problem p = problem_of("bias", &d, ATTN_PASS_FORWARD);
    EXPECT(p.softcap == 30, "softcap %g", p.softcap);
    expect_score("bias", &p.bias, buf.bias, SQ * SK, 0, SK, 1);
    EXPECT(p.bias_dtype == ATTN_F32, "bias of %s", attn_dtype_name(p.bias_dtype));

    const attn_dtype types[] = {ATTN_F32, ATTN_F16};
    for (int n = 0; n < 2; n++) {
        d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = ATTN_F16;
        d.bias.dtype = types[n];
        p = problem_of("bias of an f16 call", &d, ATTN_PASS_FORWARD);
        EXPECT(p.bias_dtype == types[n], "bias of %s", attn_dtype_name(p.bias_dtype));
    }
}

/* Where the bias of sequence 1 lies, for each head and for all in one. */
static void test_bias_offset(void)
{
    static const int64_t offsets[B + 1] = {5, 20, 32}; /* for all heads in one */
    attn_desc d = sound_desc(PACKED);
    d.bias.data = buf.bias;
    d.bias_offset.data = buf.bias_at;
    struct attn_problem p = problem_of("bias_offset", &d, ATTN_PASS_FORWARD);
    struct attn_sequence s = attn_sequence_of(&p, 1);
    struct attn_score_view v = attn_bias_of(&s);
    expect_score("bias of a sequence", &v, buf.bias + HQ * 2 * 7, 0, LEN_Q1 * LEN_K1, LEN_K1, 1);

    d.bias.head_stride = ATTN_BROADCAST;
    d.bias_offset = (attn_index){offsets, ATTN_I64};
    p = problem_of("bias_offset, one head", &d, ATTN_PASS_FORWARD);
    s = attn_sequence_of(&p, 1);
    v = attn_bias_of(&s);
    expect_score("bias of a sequence, one head", &v, buf.bias + 20, 0, 0, LEN_K1, 1);
}

static void test_heads(void)
{
    attn_desc d = sound_desc(PADDED);
    d.alibi.data = d.sink.data = buf.per_head;
    struct attn_problem p = problem_of("alibi, sink", &d, ATTN_PASS_FORWARD);
    expect_view("alibi", &p.alibi, buf.per_head, 0, 0, 1);
    expect_view("sink", &p.sink, buf.per_head, 0, 0, 1);

    d.alibi = (attn_input){buf.bias, ATTN_F32, HQ, 0, 1};
    d.sink.head_stride = 3;
    d.sink.data = buf.bias;
    p = problem_of("alibi per sequence", &d, ATTN_PASS_FORWARD);
    expect_view("alibi per sequence", &p.alibi, buf.bias, HQ, 0, 1);
    expect_view("sink apart", &p.sink, buf.bias, 0, 0, 3);

    d.alibi = (attn_input){buf.per_head, ATTN_F32, 1, 0, ATTN_BROADCAST};
    d.sink.head_stride = ATTN_BROADCAST;
    p = problem_of("alibi for all heads", &d, ATTN_PASS_FORWARD);
    expect_view("alibi for all heads", &p.alibi, buf.per_head, 1, 0, 0);
    expect_view("sink for all heads", &p.sink, buf.bias, 0, 0, 0);
}

static void test_token_masks(void)
{
    static const struct {
        enum base base;
        int64_t given, query, key;
    } cases[] = {{PADDED, 0, SQ, SK}, {PADDED, 6, 6, 6}, {PADDED, ATTN_BROADCAST, 0, 0},
                 {PACKED, 6, 0, 0}};
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        attn_desc d = sound_desc(cases[n].base);
        d.query_mask = (attn_token_mask){buf.mask, cases[n].given};
        d.key_mask = (attn_token_mask){buf.mask + 1, cases[n].given};
        const struct attn_problem p = problem_of("token masks", &d, ATTN_PASS_FORWARD);
        EXPECT(p.query_mask.data == buf.mask && p.query_mask.batch == cases[n].query &&
                   p.key_mask.data == buf.mask + 1 && p.key_mask.batch == cases[n].key,
               "token masks with batch_stride %lld: %lld, %lld", (long long)cases[n].given,
               (long long)p.query_mask.batch, (long long)p.key_mask.batch);
    }
}

static void test_masks(void)
{
    static const int64_t docs64[TQ];
    attn_desc d = sound_desc(PADDED);
    d.mask = (attn_score_input){buf.mask, ATTN_BOOL, ATTN_BROADCAST, 0, 0, 1};
    d.block_mask = (attn_score_input){buf.mask + 7, ATTN_BOOL, 12, 6, 3, 1};
    d.block_q = 2;
    d.block_k = 3;
    d.causal = 1;
    d.align = ATTN_BOTTOM_RIGHT;
    d.prefix.data = buf.used_k;
    d.query_docs = (attn_index){docs64, ATTN_I64};
    d.key_docs.data = buf.docs;
    const struct attn_problem p = problem_of("masks", &d, ATTN_PASS_FORWARD);
    expect_score("mask", &p.mask, buf.mask, 0, 0, 0, 1);
    expect_score("block_mask", &p.block_mask, buf.mask + 7, 12, 6, 3, 1);
    EXPECT(p.block_q == 2 && p.block_k == 3, "blocks of %lld x %lld", (long long)p.block_q,
           (long long)p.block_k);
    EXPECT(p.rule.causal && p.rule.bottom_right && p.prefix.data == buf.used_k && !p.prefix.is64 &&
               attn_prefix_of(&p, 0) == 4, "prefix");
    EXPECT(p.query_docs.data == docs64 && p.query_docs.is64 && p.key_docs.data == buf.docs &&
               !p.key_docs.is64, "documents");
}

static void test_dropout(void)
{
    static const struct {
        double p, scale;
        uint64_t least;
    } cases[] = {
        {0.5, 2, UINT64_C(1) << 31}, {1, 0, UINT64_C(1) << 32}, {0.75, 4, UINT64_C(3) << 30},
        {0x1p-33, 1 / (1 - 0x1p-33), 1}, {0x1p-34, 1 / (1 - 0x1p-34), 0},
        {1 - 0x1p-40, 0x1p40, UINT64_C(1) << 32},
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        attn_desc d = sound_desc(PADDED);
        d.dropout = cases[n].p;
        d.dropout_seed = UINT64_C(0x8877665544332211);
        d.dropout_offset = 9;
        d.first_sequence = 1000;
        const struct attn_dropout got = problem_of("dropout", &d, ATTN_PASS_FORWARD).dropout;
        EXPECT(got.on && got.least == cases[n].least && got.scale == cases[n].scale,
               "dropout %g: least %llu, scale %g", cases[n].p, (unsigned long long)got.least,
               got.scale);
        EXPECT(got.seed == d.dropout_seed && got.offset == 9 && got.first_sequence == 1000,
               "dropout: seed, offset or first sequence");
    }
}

/* Words of the counter at their last value, and one beyond. */
static void test_counters(void)
{
    const int64_t words = INT64_C(1) << 32;
    static const char *const names[] = {"first_sequence", "query", "key"};
    for (int field = 0; field < 3; field++)
        for (int beyond = 0; beyond < 2; beyond++) {
            struct attn_problem p = {.batch = 2, .heads_q = 4};
            char reason[192] = "";
            p.query.max = field == 1 ? words + beyond : 1;
            p.key.max = field == 2 ? 4 * words + beyond : 1;
            p.dropout.first_sequence = field == 0 ? words / 4 - 2 + beyond : 0;
            const bool fits = attn_dropout_fits(&p, reason, sizeof reason);
            EXPECT(fits == !beyond && (fits || strstr(reason, names[field])), "%s %s: \"%s\"",
                   names[field], beyond ? "beyond" : "at the end", reason);
        }
}

static void no_probs(void *user, int64_t sequence, int64_t head, int64_t i0, int64_t ni,
                     int64_t j0, int64_t nj, const void *p, int64_t stride)
{
    (void)user, (void)sequence, (void)head, (void)i0, (void)ni, (void)j0, (void)nj, (void)p;
    (void)stride;
}

static void test_outputs(void)
{
    attn_desc d = sound_desc(PADDED);
    d.probs.data = buf.probs;
    d.probs_fn = no_probs;
    d.probs_user = buf.mask;
    d.key_sums.data = buf.key_sums;
    struct attn_problem p = problem_of("outputs", &d, ATTN_PASS_FORWARD);
    expect_score("probs", &p.probs, buf.probs, HQ * SQ * SK, SQ * SK, SK, 1);
    EXPECT(p.probs_fn == no_probs && p.probs_user == buf.mask, "probs_fn");
    expect_view("key_sums", &p.key_sums, buf.key_sums, HQ * SK, 1, SK);

    d.key_sums = (attn_output){buf.key_sums, ATTN_F32, SK * HQ, HQ, 1};
    d.dout.data = buf.dout;
    d.dq.data = buf.dq;
    d.dk.data = buf.dk;
    d.dv.data = buf.dv;
    p = problem_of("heads last", &d, ATTN_PASS_FORWARD);
    expect_view("key_sums, heads last", &p.key_sums, buf.key_sums, SK * HQ, HQ, 1);
    p = problem_of("gradients", &d, ATTN_PASS_BACKWARD);
    EXPECT(!p.probs.data && !p.probs_fn && !p.key_sums.data, "forward outputs of a backward call");

    d = sound_desc(PACKED);
    d.key_sums.data = buf.key_sums;
    p = problem_of("outputs, packed", &d, ATTN_PASS_FORWARD);
    expect_view("key_sums, packed", &p.key_sums, buf.key_sums, 0, 1, TK);
}

/* What the backward pass has besides, told no strides and told some. */
static void test_gradients(void)
{
    attn_desc d = sound_backward(PADDED);
    d.dlse.data = buf.probs;
    d.sink.data = buf.per_head;
    d.dsink.data = buf.key_sums;
    d.bias = (attn_score_input){buf.bias, ATTN_F32, SQ * SK, 0, SK, 1};
    d.dbias = (attn_score_output){buf.workspace, ATTN_F32, ATTN_BROADCAST, 0, 0, 2};
    struct attn_problem p = problem_of("gradients", &d, ATTN_PASS_BACKWARD);
    expect_view("dout", &p.dout, buf.dout, SQ * HQ * DV, HQ * DV, DV);
    expect_view("dlse", &p.dlse, buf.probs, HQ * SQ, 1, SQ);
    expect_view("dq", &p.dq, buf.dq, SQ * HQ * D, HQ * D, D);
    expect_view("dk", &p.dk, buf.dk, SK * HKV * D, HKV * D, D);
    expect_view("dv", &p.dv, buf.dv, SK * HKV * DV, HKV * DV, DV);
    expect_view("dsink", &p.dsink, buf.key_sums, 0, 0, 1);
    expect_score("dbias", &p.dbias, buf.workspace, 0, 0, 0, 2);
    EXPECT(p.pass == ATTN_PASS_BACKWARD, "pass %d", (int)p.pass);

    d.dout = (attn_input){buf.dout, ATTN_F32, 0, 0, ATTN_BROADCAST};
    d.dsink.head_stride = 3;
    d.dq = (attn_output){buf.dq, ATTN_F32, D, B * HQ * D, B * D};
    p = problem_of("gradients apart", &d, ATTN_PASS_BACKWARD);
    expect_view("dout for all", &p.dout, buf.dout, 0, 0, 0);
    expect_view("dsink apart", &p.dsink, buf.key_sums, 0, 0, 3);
    expect_view("dq apart", &p.dq, buf.dq, D, B * HQ * D, B * D);

    d = sound_backward(PACKED);
    d.dlse.data = buf.probs;
    d.bias.data = buf.bias;
    d.bias_offset.data = buf.bias_at;
    d.dbias.data = buf.workspace;
    p = problem_of("gradients, packed", &d, ATTN_PASS_BACKWARD);
    expect_view("dq, packed", &p.dq, buf.dq, 0, HQ * D, D);
    expect_view("dv, packed", &p.dv, buf.dv, 0, HKV * DV, DV);
    expect_view("dlse, packed", &p.dlse, buf.probs, 0, 1, TQ);
    const struct attn_sequence s = attn_sequence_of(&p, 1);
    const struct attn_score_view v = attn_sequence_bias(&s, p.dbias);
    expect_score("dbias of a sequence", &v, (float *)buf.workspace + HQ * 2 * 7, 0,
                 LEN_Q1 * LEN_K1, LEN_K1, 1);
}

/* The features that the backward pass is asked for. */
static void test_gradient_features(void)
{
    static const uint32_t own = ATTN_BIT(ATTN_USES_BACKWARD) | ATTN_BIT(ATTN_USES_DLSE) |
                                ATTN_BIT(ATTN_USES_DBIAS) | ATTN_BIT(ATTN_USES_DSINK);
    attn_desc d = sound_backward(PADDED);
    struct attn_problem p = problem_of("plain gradients", &d, ATTN_PASS_BACKWARD);
    EXPECT((p.features & own) == ATTN_BIT(ATTN_USES_BACKWARD), "features %x", (unsigned)p.features);
    d.dlse.data = buf.probs;
    d.bias.data = d.sink.data = buf.per_head;
    d.dbias.data = buf.key_sums;
    d.dsink.data = buf.key_sums + 1;
    p = problem_of("all gradients", &d, ATTN_PASS_BACKWARD);
    EXPECT((p.features & own) == own, "features %x", (unsigned)p.features);
    p = problem_of("a forward call", &d, ATTN_PASS_FORWARD);
    EXPECT((p.features & own) == 0, "features %x", (unsigned)p.features);
    EXPECT(!p.dout.data && !p.dlse.data && !p.dq.data && !p.dbias.data && !p.dsink.data,
           "gradients of a forward call");
}

/* Rows of dq, dk and dv that belong to no token become 0, others stay. */
static void test_gradient_rows(void)
{
    attn_desc d = sound_backward(PADDED);
    d.query.seqused.data = buf.used_q; /* 2 and 1 of 3 */
    d.key.seqused.data = buf.used_k;   /* 4 and 0 of 5 */
    buffers_fill();
    for (int n = 0; n < TQ * HQ * D; n++)
        buf.dq[n] = 7;
    for (int n = 0; n < TK * HKV * D; n++)
        buf.dk[n] = 7;
    for (int n = 0; n < TK * HKV * DV; n++)
        buf.dv[n] = 7;
    const struct attn_problem p = problem_of("rows of gradients", &d, ATTN_PASS_BACKWARD);
    attn_clear_unused_rows(&p);
    int wrong = 0;
    for (int row = 0; row < TQ; row++)
        for (int n = 0; n < HQ * D; n++)
            wrong += buf.dq[row * HQ * D + n] != (row % SQ < buf.used_q[row / SQ] ? 7 : 0);
    for (int row = 0; row < TK; row++)
        for (int n = 0; n < HKV * D; n++)
            wrong += buf.dk[row * HKV * D + n] != (row % SK < buf.used_k[row / SK] ? 7 : 0);
    for (int row = 0; row < TK; row++)
        for (int n = 0; n < HKV * DV; n++)
            wrong += buf.dv[row * HKV * DV + n] != (row % SK < buf.used_k[row / SK] ? 7 : 0);
    EXPECT(wrong == 0, "%d numbers of dq, dk and dv are wrong", wrong);
    buffers_fill();
}

enum { PAGES = 5, PAGE = 2 };

static attn_desc paged_desc(void)
{
    attn_desc d = sound_desc(PADDED);
    d.key = (attn_side){.layout = ATTN_PAGED, .pages = PAGES, .page_size = PAGE, .max_pages = 4};
    d.key.block_table.data = buf.pages;
    d.key.seqused.data = buf.used_k;
    return d;
}

static void test_pages(void)
{
    attn_desc d = paged_desc();
    d.key_sums.data = buf.key_sums;
    d.key_mask.data = buf.mask;
    struct attn_problem p = problem_of("pages", &d, ATTN_PASS_FORWARD);
    const struct attn_axis *a = &p.key;
    EXPECT(a->table == buf.pages && !a->table64 && a->max_pages == 4 && a->page_size == PAGE,
           "table");
    EXPECT(a->room == 8 && a->rows == B * 8 && a->max == 4 && a->span == 4,
           "room %lld, rows %lld, longest %lld, span %lld", (long long)a->room, (long long)a->rows,
           (long long)a->max, (long long)a->span);
    expect_view("k", &p.k, buf.k, PAGE * HKV * D, HKV * D, D);
    expect_view("v", &p.v, buf.v, PAGE * HKV * DV, HKV * DV, DV);
    expect_view("key_sums, paged", &p.key_sums, buf.key_sums, HQ * 4, 1, 4);
    EXPECT(p.key_mask.batch == 4, "key_mask from sequence to sequence: %lld",
           (long long)p.key_mask.batch);
    for (int t = 0; t < 4; t++) { /* pages 4 and 0 */
        const float *at = buf.k + ((t < 2 ? 4 : 0) * PAGE + t % 2) * HKV * D + D;
        EXPECT(attn_view_at(&p.k, a, 0, t, 1, sizeof *at) == (const char *)at, "token %d", t);
    }

    d.key.max_seqlen = 5;
    d.k = (attn_input){buf.k, ATTN_F32, D, PAGES * D, PAGES * PAGE * D};
    p = problem_of("pages apart", &d, ATTN_PASS_FORWARD);
    EXPECT(p.key.span == 5 && p.key_mask.batch == 5, "span %lld", (long long)p.key.span);
    EXPECT(attn_view_at(&p.k, &p.key, 0, 3, 1, 4) ==
               (const char *)(buf.k + PAGES * D + PAGES * PAGE * D), "token 3 of pages apart");
}

/* Outputs may begin where the last page ends, and not before. */
static void test_page_ends(void)
{
    static const int32_t zeros[B * 4];
    attn_desc d = paged_desc();
    d.key.block_table.data = zeros;
    d.key.pages = d.key.page_size = 1;
    d.key.seqlen = 0;
    d.out.data = buf.k + HKV * D;
    problem_of("out after the last page", &d, ATTN_PASS_FORWARD);

    struct attn_problem p;
    struct attn_message m;
    attn_desc copy;
    d.out.data = buf.k + HKV * D - 1;
    EXPECT(attn_check(&d, ATTN_PASS_FORWARD, ATTN_CHECK_RUN, &copy, &p, &m) ==
               ATTN_INVALID_OVERLAP, "out on the end of the last page");
}

/* The sums of keys that take no part, and of keys that no query could attend, become 0. */
static void expect_sums(const char *name, const attn_desc *given, bool (*unused)(int, int))
{
    attn_desc d = *given;
    buffers_fill();
    d.key_sums.data = buf.key_sums;
    for (int n = 0; n < HQ * TK; n++)
        buf.key_sums[n] = 7;
    const struct attn_problem p = problem_of(name, &d, ATTN_PASS_FORWARD);
    attn_clear_unused_rows(&p);
    const int batches = p.key.cu ? 1 : B, span = p.key.cu ? TK : (int)p.key.span;
    int wrong = 0, n = 0;
    for (int b = 0; b < batches; b++)
        for (int h = 0; h < HQ; h++)
            for (int j = 0; j < span; j++)
                wrong += buf.key_sums[n++] != (unused(b, j) ? 0 : 7);
    for (; n < HQ * TK; n++)
        wrong += buf.key_sums[n] != 7;
    EXPECT(wrong == 0, "%s: %d of the sums are wrong", name, wrong);
    buffers_fill();
}

static bool none(int b, int j) { return (void)b, (void)j, false; }
static bool past_used(int b, int j) { return j >= (b == 0 ? 4 : 0); }
static bool past_packed_used(int b, int j) { return (void)b, j >= 4; } /* lengths 7 and 3 */
static bool past_offsets(int b, int j) { return (void)b, j >= 2; }
static bool without_query(int b, int j) { return (void)j, b == 1; }

static void test_key_sums(void)
{
    static const int32_t few[B + 1] = {0, 2, 2}, used_q[B] = {3, 0};
    attn_desc d = sound_desc(PADDED);
    expect_sums("padded", &d, none);
    d.key.seqused.data = buf.used_k;
    expect_sums("padded, seqused", &d, past_used);
    d.key.seqused.data = NULL;
    d.query.seqused.data = used_q;
    expect_sums("no query in a sequence", &d, without_query);
    d = paged_desc();
    d.key.max_seqlen = 5;
    expect_sums("paged", &d, past_used);
    d = sound_desc(PACKED);
    expect_sums("packed", &d, none);
    d.key.seqused.data = buf.used_k;
    expect_sums("packed, seqused", &d, past_packed_used);
    d.key.seqused.data = NULL;
    d.key.cu_seqlens.data = few;
    expect_sums("past cu_seqlens[B]", &d, past_offsets);
}

int main(void)
{
    report_begin("check");
    buffers_fill();
    test_plain();
    test_bias();
    test_bias_offset();
    test_heads();
    test_token_masks();
    test_masks();
    test_dropout();
    test_counters();
    test_outputs();
    test_gradients();
    test_gradient_features();
    test_gradient_rows();
    test_pages();
    test_page_ends();
    test_key_sums();
    return report_end();
}
