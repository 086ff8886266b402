/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The kernels for capability 9.0 where random problems seldom show what they do: which of them
 * takes a call, the order of their work, launching it again; hopper_shapes.c has what they compute.
 */
#include <stdbool.h>
#include <string.h>

#include "check.h"
#include "context.h"
#include "cuda/stream.h"
#include "emulator/runtime.h"
#include "expect.h"
#include "hopper.h"

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
        attn_desc d = hopper_desc(1);
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
    attn_desc d = hopper_desc(1);
    hopper_clear();
    hopper_own(true);
    emulated_capture_begin();
    const attn_status status = attn_forward(NULL, &d);
    emulated_capture_end();
    EXPECT(status == ATTN_OK, "capture: \"%s\"", attn_last_message(NULL));
    for (int n = 0; n < 3; n++) {
        hopper_clear_out();
        EXPECT(emulated_graph_launch() == cudaSuccess && hopper_is_mean(),
               "launch %d of a graph", n);
    }
    hopper_own(false);
}

/* The device is asked for its size when work is launched, and may fail to tell. */
static void test_failures(void)
{
    static const char *const calls[] = {"cudaGetDevice", "cudaDeviceGetAttribute"};
    const attn_desc d = hopper_desc(1);
    hopper_clear();
    hopper_own(true);
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
    hopper_own(false);
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
    attn_desc d = hopper_desc(1), copy;
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
    hopper_own(true);
    attn_cuda_forward_args(&f, 0, &p, memory, &args);
    EXPECT(attn_cuda_start(&f.launch[0], &args, NULL) == cudaSuccess &&
               cudaStreamSynchronize(NULL) == cudaSuccess, "the list");
    emulated_own(cu, 0, -1, 0);
    hopper_own(false);
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

/* Items of as many short sequences as there are. */
static void test_room(void)
{
    enum { B = 40, SHORT = 17 };
    static int32_t cu[B + 1];
    struct attn_message m = {""};
    struct attn_cuda_forward f;
    struct attn_problem p;
    attn_desc d = hopper_desc(1), copy;
    for (int b = 0; b < B; b++)
        cu[b + 1] = cu[b] + SHORT;
    d.batch = B;
    d.query = (attn_side){.layout = ATTN_PACKED, .tokens = cu[B], .cu_seqlens.data = cu};
    d.key = d.query;
    EXPECT(attn_check(&d, ATTN_PASS_FORWARD, ATTN_CHECK_SHAPE, &copy, &p, &m) == ATTN_OK, "%s",
           m.text);
    attn_cuda_plan_forward(&p, attn_cuda_pick(&p, 90, 227 << 10), &f);
    EXPECT(f.form[ATTN_CUDA_TALL].most >= B, "room for %d items", (int)f.form[ATTN_CUDA_TALL].most);
}

int main(int argc, char **argv)
{
    report_begin("hopper");
    emulated_set_machine((struct emulated_machine){1, 90, 227 << 10});
    hopper_shapes(report_count(argc, argv, HOPPER_SHAPES));
    test_names();
    test_order();
    test_room();
    test_graph();
    test_failures();
    return report_end();
}
