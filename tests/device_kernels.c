/* SPDX-License-Identifier: BSD-3-Clause */
/* Which kernels devices get: every type and head size on all of them, in the shared memory that
 * they give a block. */
#include <stdio.h>
#include <string.h>

#include "attn/attn.h"
#include "context.h"
#include "device_parts.h"
#include "emulator/runtime.h"
#include "expect.h"

enum { KB = 1024, MOST_D = 600 };
static const struct emulated_machine gpus[] = {
    {1, 80, 163 * KB}, {1, 86, 99 * KB}, {1, 89, 99 * KB}, {1, 90, 227 * KB}, {1, 120, 99 * KB}};
enum { GPUS = sizeof gpus / sizeof gpus[0] };

static attn_context *cuda;
static int64_t queries; /* of a call */

/* The name of the kernels, or what refuses the call. */
static const char *kernel_for(const struct emulated_machine *gpu, attn_dtype type, int64_t d,
                              int64_t dv)
{
    static char name[64];
    attn_explanation e = attn_explanation_init();
    attn_desc call = attn_desc_init();
    emulated_set_machine(*gpu);
    call.batch = call.heads_q = 1;
    call.head_dim = d;
    call.head_dim_v = dv;
    call.query.seqlen = queries;
    call.key.seqlen = 1;
    call.q.dtype = call.k.dtype = call.v.dtype = call.out.dtype = type;
    if (attn_explain(cuda, &call, ATTN_PASS_FORWARD, &e) != ATTN_OK || e.chosen < 0)
        return attn_last_message(cuda);
    snprintf(name, sizeof name, "%s", e.candidates[e.chosen].kernel);
    return name;
}

static void expect_kernel(int gpu, attn_dtype type, int64_t d, int64_t dv, const char *name)
{
    const char *const got = kernel_for(&gpus[gpu], type, d, dv);
    EXPECT(strcmp(got, name) == 0,
           "capability %d, type %d, heads of %lld and %lld: \"%s\", not \"%s\"",
           gpus[gpu].capability, (int)type, (long long)d, (long long)dv, got, name);
}

/* The best there is for a head size, else those for any, by the size alone. */
static void test_sizes(void)
{
    for (int gpu = 0; gpu < GPUS; gpu++) {
        const bool little = gpus[gpu].shared_bytes == 99 * KB, wgmma = gpus[gpu].capability == 90;
        for (int64_t d = 1; d <= MOST_D; d++) {
            const char *const half[] = {"mma bf16 d64", "mma bf16 d128", "mma bf16 d256",
                                        "mma bf16"};
            const char *const best[] = {"wgmma bf16 d64",  "wgmma bf16 d96",  "wgmma bf16 d128",
                                        "wgmma bf16 d192", "wgmma bf16 d256", "mma bf16"};
            const char *const single[] = {"fma f32 d64", "fma f32 d128",
                                          little ? "fma f32" : "fma f32 d256", "fma f32"};
            const char *const twice[] = {"mma f64 d64", little ? "mma f64" : "mma f64 d128",
                                         "mma f64"};
            const int at = d <= 64 ? 0 : d <= 128 ? 1 : d <= 256 ? 2 : 3;
            const int at90 =
                d <= 64 ? 0 : d <= 96 ? 1 : d <= 128 ? 2 : d <= 192 ? 3 : d <= 256 ? 4 : 5;
            expect_kernel(gpu, ATTN_BF16, d, d, wgmma ? best[at90] : half[at]);
            expect_kernel(gpu, ATTN_F32, d, d, single[at]);
            expect_kernel(gpu, ATTN_F64, d, d, twice[at < 2 ? at : 2]);
        }
        expect_kernel(gpu, ATTN_BF16, 97, 64, wgmma ? "wgmma bf16 d128 dv64" : "mma bf16 d128");
        expect_kernel(gpu, ATTN_F16, 192, 128, wgmma ? "wgmma f16 d192 dv128" : "mma f16 d256");
        expect_kernel(gpu, ATTN_F16, 40, 200, wgmma ? "wgmma f16 d256" : "mma f16 d256");
        expect_kernel(gpu, ATTN_F16, 200, 40, wgmma ? "wgmma f16 d256" : "mma f16 d256");
        expect_kernel(gpu, ATTN_F32, 64, 65, "fma f32 d128");
    }
}

/* Where all sequences are of few rows. */
static void test_few_rows(void)
{
    for (int gpu = 0; gpu < GPUS; gpu++) {
        expect_kernel(gpu, ATTN_BF16, 96, 96, "mma bf16 d128");
        expect_kernel(gpu, ATTN_F16, 192, 128, "mma f16 d256");
    }
}

void test_kernels(void)
{
    cuda = context_of(ATTN_BACKEND_CUDA);
    queries = 17;
    test_sizes();
    queries = 16;
    test_few_rows();
    emulated_set_machine((struct emulated_machine){2, 80, 163 * KB});
    attn_context_destroy(cuda);
}
