/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The kernels for capability 9.0 where random problems seldom show what they do: which of them
 * takes a call, the order of their work, dropout in tiles without a mask, scores far from 0, heads
 * that share keys or repeat, pages, values that are not finite; and many splits of one sequence's
 * keys. All of it in f16, of numbers whose results are known.
 */
#include <math.h>
#include <string.h>

#include "check.h"
#include "context.h"
#include "cuda/stream.h"
#include "element.h"
#include "emulator/runtime.h"
#include "expect.h"

enum { H = 3, GROUP = 4, SQ = 70, SK = 300, D = 64 };

static struct {
    _Alignas(64) uint16_t q[SQ * H * GROUP * D], k[H * SK * D], v[H * SK * D];
    uint16_t out[SQ * H * GROUP * D];
} t;

static void set(uint16_t *x, int64_t at, double to) { element_set(ATTN_F16, x, at, to); }
static double get(const uint16_t *x, int64_t at) { return element_get(ATTN_F16, x, at); }

/* q and out are [SQ, H, D], k and v [H, SK, D]. */
static attn_desc desc(int heads)
{
    attn_desc d = attn_desc_init();
    d.batch = 1;
    d.heads_q = heads;
    d.head_dim = D;
    d.query.seqlen = SQ;
    d.key.seqlen = SK;
    d.q = (attn_input){.data = t.q, .token_stride = heads * D, .head_stride = D};
    d.k = (attn_input){.data = t.k, .token_stride = D, .head_stride = SK * D};
    d.v = (attn_input){.data = t.v, .token_stride = D, .head_stride = SK * D};
    d.out.data = t.out;
    d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = ATTN_F16;
    d.scale = 1;
    return d;
}

/* All zeros, but that value j is 1 in column j % D. */
static void clear(void)
{
    memset(&t, 0, sizeof t);
    for (int j = 0; j < H * SK; j++)
        set(t.v, j * D + j % SK % D, 1);
}

static bool computes(const attn_desc *d)
{
    emulated_own(&t, sizeof t, 0, 0);
    const bool done =
        attn_forward(NULL, d) == ATTN_OK && cudaStreamSynchronize(NULL) == cudaSuccess;
    emulated_own(&t, 0, -1, 0);
    return done;
}

/* Rows of out are means of values, of which `counted` are in each column, over n keys; `counted` of
 * row i begins at i * step. */
static bool is_mean(const int *counted, int step, double n)
{
    bool good = true;
    for (int i = 0; i < SQ; i++)
        for (int c = 0; c < D; c++) {
            const double x = counted[i * step + c] / n;
            good = good && fabs(get(t.out, i * D + c) - x) <= x * 0x1p-10;
        }
    return good;
}

/* Scores that are all the same, and so large that their exponents cannot be rounded. */
static void test_far(void)
{
    attn_desc d = desc(1);
    int counted[D] = {0};
    clear();
    for (int n = 0; n < SQ * D; n++)
        set(t.q, n, 32752);
    for (int n = 0; n < SK * D; n++)
        set(t.k, n, 32752);
    for (int j = 0; j < SK; j++)
        counted[j % D]++;
    EXPECT(computes(&d) && is_mean(counted, 0, SK), "scores of 2^36: \"%s\", %g of %g",
           attn_last_message(NULL), get(t.out, 0), counted[0] / (double)SK);
    d.scale = 0.3;
    EXPECT(computes(&d) && is_mean(counted, 0, SK), "scores of 2^34: \"%s\", %g of %g",
           attn_last_message(NULL), get(t.out, 0), counted[0] / (double)SK);
}

static void test_dropout(void)
{
    static uint8_t keep[SQ * SK];
    static int counted[SQ * D];
    const attn_score_output mask = {.data = keep, .dtype = ATTN_BOOL};
    attn_desc d = desc(1);
    clear();
    d.dropout = 0.5;
    d.dropout_seed = 7;
    EXPECT(attn_dropout_mask(NULL, &d, &mask) == ATTN_OK, "what is kept: \"%s\"",
           attn_last_message(NULL));
    for (int i = 0; i < SQ; i++)
        for (int j = 0; j < SK; j++)
            counted[i * D + j % D] += keep[i * SK + j];
    EXPECT(computes(&d) && is_mean(counted, D, SK * 0.5), "dropout: \"%s\"",
           attn_last_message(NULL));
}

/* Heads that share keys: every query and head finds one key alone. Of 256 keys threads put no tile;
 * of 100 a cache holds the first two heads, and then the last one. */
static void test_groups(void)
{
    static const int keys[GROUP] = {SK, 256, 100, 256};
    for (int group = 1; group <= GROUP; group++) {
        attn_desc d = desc(H * group);
        bool good = true;
        clear();
        d.heads_kv = H;
        d.key.seqlen = keys[group - 1];
        for (int n = 0; n < SQ * H * group; n++)
            set(t.q, n * D + n * 7 % D, 16);
        for (int n = 0; n < H * D; n++) /* of each head those from its own number on */
            set(t.k, (n / D * (SK + 1) + n % D) * D + n % D, 16);
        EXPECT(computes(&d), "groups of %d: \"%s\"", group, attn_last_message(NULL));
        for (int n = 0; n < SQ * H * group * D; n++)
            good = good && get(t.out, n) == (n % D == (n / D * 7 + n / D % (H * group) / group) % D);
        EXPECT(good, "groups of %d", group);
    }
}

/* What a value is that is not finite shows where it is seen, and there alone. */
static void test_hidden(void)
{
    enum { AT = 40 };
    attn_desc d = desc(1);
    bool good = true;
    clear();
    set(t.v, AT * D + 3, NAN);
    d.causal = 1;
    d.align = ATTN_TOP_LEFT;
    EXPECT(computes(&d), "a value that is NaN: \"%s\"", attn_last_message(NULL));
    for (int n = 0; n < SQ * D; n++)
        good = good && isnan(get(t.out, n)) == (n / D >= AT && n % D == 3);
    EXPECT(good, "NaN where it is not seen, or none where it is");
}

/* Every query finds one key alone, another one in each head where keys do not repeat. */
static void test_repeated(void)
{
    for (int keys = 0; keys < 2; keys++) {
        attn_desc d = desc(H);
        bool good = true;
        clear();
        *(keys ? &d.k.head_stride : &d.v.head_stride) = 0;
        for (int n = 0; n < SQ * H; n++)
            set(t.q, n * D, 16);
        for (int h = 0; h < H; h++)
            set(t.k, (h * SK + 17 + 5 * h) * D, 16);
        EXPECT(computes(&d), "repeated heads: \"%s\"", attn_last_message(NULL));
        for (int n = 0; n < SQ * H * D; n++)
            good = good && get(t.out, n) == (n % D == 17 + (keys ? 0 : 5 * (n / D % H)));
        EXPECT(good, "repeated heads of %s", keys ? "keys" : "values");
    }
}

/* Every query finds one key alone, in a page past as many keys as there are. */
static void test_pages(void)
{
    enum { PAGE = 100, AT = 17 };
    static const int32_t table[SK / PAGE] = {5, 2, 7}, used[] = {SK};
    attn_desc d = desc(1);
    bool good = true;
    clear();
    d.key = (attn_side){.layout = ATTN_PAGED, .pages = H * SK / PAGE, .page_size = PAGE,
                        .max_pages = SK / PAGE, .block_table.data = table,
                        .seqused.data = used};
    d.k.token_stride = d.k.head_stride = d.v.token_stride = d.v.head_stride = 0;
    for (int n = 0; n < SQ; n++)
        set(t.q, n * D, 16);
    set(t.k, (table[2] * PAGE + AT) * D, 16);
    EXPECT(computes(&d), "pages: \"%s\"", attn_last_message(NULL));
    for (int n = 0; n < SQ * D; n++)
        good = good && get(t.out, n) == (n % D == (table[2] * PAGE + AT) % SK % D);
    EXPECT(good, "a key of the third page");
}

/* The mean of so many keys that their splits are more than a warp has lanes. */
static void test_decode(void)
{
    enum { KEYS = 36 * 256 };
    static uint16_t keys[KEYS * D], values[KEYS * D];
    attn_desc d = desc(GROUP);
    int counted[D] = {0};
    bool good = true;
    clear();
    for (int j = 0; j < KEYS; j++) {
        set(values, j * D + j % D, 1);
        counted[j % D]++;
    }
    d.heads_kv = 1;
    d.query.seqlen = 1;
    d.key.seqlen = KEYS;
    d.k = (attn_input){.data = keys, .dtype = ATTN_F16};
    d.v = (attn_input){.data = values, .dtype = ATTN_F16};
    emulated_own(keys, sizeof keys, 0, 0);
    emulated_own(values, sizeof values, 0, 0);
    EXPECT(computes(&d), "many splits: \"%s\"", attn_last_message(NULL));
    emulated_own(keys, 0, -1, 0);
    emulated_own(values, 0, -1, 0);
    for (int n = 0; n < GROUP * D; n++) {
        const double x = counted[n % D] / (double)KEYS;
        good = good && fabs(get(t.out, n) - x) <= x * 0x1p-10;
    }
    EXPECT(good, "the mean of %d keys: %g of %g", KEYS, get(t.out, 0), counted[0] / (double)KEYS);
}

/* ---- Which kernel, in which order ------------------------------------------------------------ */

static void test_names(void)
{
    static const struct {
        int d, dv;
        const char *name;
    } all[] = {{1, 1, "wgmma f16 d64"},          {64, 64, "wgmma f16 d64"},
               {65, 8, "wgmma f16 d96"},         {96, 96, "wgmma f16 d96"},
               {97, 64, "wgmma f16 d128 dv64"},  {128, 65, "wgmma f16 d128"},
               {40, 128, "wgmma f16 d128"},      {192, 128, "wgmma f16 d192 dv128"},
               {192, 129, "wgmma f16 d192"},     {193, 64, "wgmma f16 d256"},
               {257, 64, "mma f16"}};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
        attn_explanation e = attn_explanation_init();
        attn_desc d = desc(1);
        d.q = d.k = d.v = (attn_input){.data = NULL, .dtype = ATTN_F16};
        d.out.data = NULL;
        d.head_dim = all[n].d;
        d.head_dim_v = all[n].dv;
        attn_context *c = context_of(ATTN_BACKEND_CUDA);
        const attn_status status = attn_explain(c, &d, ATTN_PASS_FORWARD, &e);
        EXPECT(status == ATTN_OK && e.chosen >= 0 &&
                   strcmp(e.candidates[e.chosen].kernel, all[n].name) == 0,
               "heads of %d and %d: %s", all[n].d, all[n].dv,
               e.chosen >= 0 ? e.candidates[e.chosen].kernel : attn_last_message(c));
        attn_context_destroy(c);
    }
}

/* Launched again, a graph computes the same: nothing of its work has been taken. */
static void test_graph(void)
{
    attn_desc d = desc(1);
    int counted[D] = {0};
    clear();
    for (int j = 0; j < SK; j++)
        counted[j % D]++;
    emulated_own(&t, sizeof t, 0, 0);
    emulated_capture_begin();
    const attn_status status = attn_forward(NULL, &d);
    emulated_capture_end();
    EXPECT(status == ATTN_OK, "capture: \"%s\"", attn_last_message(NULL));
    for (int n = 0; n < 3; n++) {
        memset(t.out, 0xff, sizeof t.out);
        EXPECT(emulated_graph_launch() == cudaSuccess && is_mean(counted, 0, SK),
               "launch %d of a graph", n);
    }
    emulated_own(&t, 0, -1, 0);
}

/* The device is asked for its size when work is launched, and may fail to tell. */
static void test_failures(void)
{
    static const char *const calls[] = {"cudaGetDevice", "cudaDeviceGetAttribute"};
    const attn_desc d = desc(1);
    emulated_own(&t, sizeof t, 0, 0);
    for (int i = 0; i < 2; i++) {
        attn_status status = ATTN_DEVICE_ERROR;
        int n = 0;
        while (status != ATTN_OK && n < 20) {
            emulated_fail(calls[i], ++n, cudaErrorLaunchFailure);
            status = attn_forward(NULL, &d);
            EXPECT((status == ATTN_OK || status == ATTN_DEVICE_ERROR) &&
                       cudaGetLastError() == cudaSuccess, "%s, call %d fails: %s", calls[i], n,
                   attn_status_name(status));
            emulated_fail(NULL, 0, cudaSuccess);
            cudaStreamSynchronize(NULL);
        }
        EXPECT(n > 2 && n < 20, "%s fails %d times", calls[i], n - 1);
    }
    emulated_own(&t, 0, -1, 0);
}

/* The list of a causal call: what takes longest comes first, but for less than a factor of 2, and
 * rows of a short sequence from the last on. */
static void test_order(void)
{
    enum { B = 40, LONG = 3000, REUSED = 0xa5 };
    static int32_t cu[B + 1];
    static bool seen[B][(LONG + 127) / 128];
    struct attn_message m = {""};
    struct attn_cuda_forward f;
    struct attn_cuda_args args;
    struct attn_problem p;
    attn_desc d = desc(1), copy;
    void *memory = NULL;
    int64_t before = INT64_C(1) << 40, items = 0;
    bool sorted = true, once = true;

    for (int b = 0; b < B; b++)
        cu[b + 1] = cu[b] + (b == B / 2 ? LONG : 17 + b * 61 % 200);
    d.batch = B;
    d.causal = 1;
    d.align = ATTN_TOP_LEFT;
    d.query.layout = ATTN_PACKED;
    d.query.seqlen = 0;
    d.query.tokens = cu[B];
    d.query.max_seqlen = LONG;
    d.query.cu_seqlens.data = cu;
    d.key = d.query;
    EXPECT(attn_check(&d, ATTN_PASS_FORWARD, ATTN_CHECK_SHAPE, &copy, &p, &m) == ATTN_OK, "%s",
           m.text);
    attn_cuda_plan_forward(&p, attn_cuda_pick(&p, 90, 227 << 10), &f);
    cudaMalloc(&memory, f.workspace);
    memset(memory, REUSED, f.workspace);
    emulated_own(cu, sizeof cu, 0, 0);
    emulated_own(&t, sizeof t, 0, 0);
    attn_cuda_forward_args(&f, 0, &p, memory, &args);
    EXPECT(attn_cuda_start(&f.launch[0], &args, NULL) == cudaSuccess &&
               cudaStreamSynchronize(NULL) == cudaSuccess, "the list");
    emulated_own(cu, 0, -1, 0);
    emulated_own(&t, 0, -1, 0);
    const struct attn_cuda_form *const form = &f.form[ATTN_CUDA_TALL];
    const int32_t *const count = (const int32_t *)((char *)memory + form->count);
    const struct attn_cuda_item *const item =
        (const struct attn_cuda_item *)((char *)memory + form->items);
    for (int n = 0; n < count[0]; n++) {
        const int64_t keys = item[n].past - item[n].first;
        const bool same = n > 0 && item[n].sequence == item[n - 1].sequence &&
                          item[n].sequence != B / 2;
        sorted = sorted && keys < 2 * before && (!same || item[n].tile < item[n - 1].tile);
        before = keys < before ? keys : before;
        once = once && !seen[item[n].sequence][item[n].tile];
        seen[item[n].sequence][item[n].tile] = true;
    }
    for (int b = 0; b < B; b++)
        items += (cu[b + 1] - cu[b] + 127) / 128;
    EXPECT(count[0] == items && count[1] == 0 && once, "%d items of %d, %d of them taken",
           (int)count[0], (int)items, (int)count[1]);
    EXPECT(sorted && item[0].sequence == B / 2, "items in another order");
    cudaFree(memory);
}

int main(void)
{
    report_begin("hopper");
    emulated_set_machine((struct emulated_machine){1, 90, 227 << 10});
    test_far();
    test_dropout();
    test_groups();
    test_hidden();
    test_repeated();
    test_pages();
    test_decode();
    test_names();
    test_order();
    test_graph();
    test_failures();
    return report_end();
}
