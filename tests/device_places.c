/* SPDX-License-Identifier: BSD-3-Clause */
/* Which memory goes together, which backend works there, what fails. */
#include <math.h>
#include <string.h>

#include "attn/attn.h"
#include "context.h"
#include "device_arrays.h"
#include "element.h"
#include "emulator/runtime.h"
#include "expect.h"
#include "test_device_helpers.h"

enum { B = 2, S = 4, TOTAL = 6, CALLS = 10, INPUTS = 11 };

/* Arrays of one small call of each kind, one after the other in memory of its own. */
static struct few {
    uint8_t mask[B * S];
    int32_t lengths[B], cu[B + 1], used[B], after[B];
    int64_t indices[TOTAL], positions[TOTAL];
    float x[B * S * 2], packed[TOTAL * 2], out[B * S * 2], lse[B * S];
} few;

static struct {
    const char *name;
    void *data;
    size_t bytes;
} const arrays[INPUTS] = {
    {"mask", few.mask, sizeof few.mask},          {"lengths", few.lengths, sizeof few.lengths},
    {"cu_seqlens", few.cu, sizeof few.cu},        {"cache.seqused", few.used, sizeof few.used},
    {"lengths", few.after, sizeof few.after},     {"indices", few.indices, sizeof few.indices},
    {"positions", few.positions, sizeof few.positions},
    {"x", few.x, sizeof few.x},                   {"packed", few.packed, sizeof few.packed},
    {"out", few.out, sizeof few.out},             {"lse", few.lse, sizeof few.lse}};

static void fill_few(void)
{
    static const struct few start = {.mask = {1, 1, 0, 0, 1, 1, 1, 1},
                                     .lengths = {2, 4},
                                     .cu = {0, 2, 6},
                                     .used = {1, 2},
                                     .indices = {0, 1, 4, 5, 6, 7}};
    few = start;
    for (int n = 0; n < B * S * 2; n++)
        few.x[n] = (float)(n % 7);
    for (int n = 0; n < TOTAL * 2; n++)
        few.packed[n] = (float)(n % 5);
}

static attn_status rotary_few(attn_context *c)
{
    attn_rotary_desc d = attn_rotary_desc_init();
    d.batch = B;
    d.heads = 1;
    d.head_dim = 2;
    d.tokens.seqlen = S;
    d.x.data = few.x;
    d.out.data = few.out;
    return attn_rotary(c, &d);
}

static attn_status append_few(attn_context *c)
{
    attn_append_desc d = attn_append_desc_init();
    d.batch = B;
    d.heads_kv = 1;
    d.head_dim = 2;
    d.tokens.seqlen = 1;
    d.cache.seqlen = S;
    d.cache.seqused.data = few.used;
    d.k.data = few.x;
    d.k_cache.data = few.out;
    d.lengths = few.after;
    return attn_cache_append(c, &d);
}

static attn_status merge_few(attn_context *c)
{
    const attn_input outs[2] = {{few.x, ATTN_F32, 0, 0, 0}, {few.out, ATTN_F32, 0, 0, 0}};
    const attn_input lses[2] = {{few.lse, ATTN_F32, 0, 0, 0}, {few.lse, ATTN_F32, 0, 0, 0}};
    attn_merge_desc d = attn_merge_desc_init();
    d.batch = B;
    d.seqlen = S;
    d.heads = 1;
    d.head_dim = 2;
    d.parts = 2;
    d.part_out = outs;
    d.part_lse = lses;
    d.out.data = few.out;
    return attn_merge(c, &d);
}

static attn_status call_few(attn_context *c, int n)
{
    attn_packing p = {.lengths = few.after};
    switch (n) {
    case 0: return attn_packing_from_mask(c, B, S, few.mask, &p);
    case 1: return attn_packing_from_lengths(c, B, S, few.lengths, &p);
    case 2: return attn_position_ids(c, B, few.cu, NULL, few.positions);
    case 3: return attn_unpad(c, ATTN_F32, B, S, 2, few.x, few.mask, few.packed, &p);
    case 4: return attn_pad(c, ATTN_F32, B * S, 2, few.packed, few.indices, TOTAL, few.out);
    case 5: return attn_gather(c, ATTN_F32, B * S, 2, few.x, few.indices, TOTAL, few.packed);
    case 6:
        return attn_gather_backward(c, ATTN_F32, B * S, 2, few.packed, few.indices, TOTAL, few.out);
    case 7: return rotary_few(c);
    case 8: return append_few(c);
    default: return merge_few(c);
    }
}

/* By call: t, a tensor of it; i, integers that may lie anywhere. */
static const char *const taken[CALLS] = {
    /* in the order of the arrays */
    "t...t......", ".i..t......", "..i...t....", "t...t..tt..", ".....i..tt.",
    ".....i.tt..", ".....i..tt.", ".......t.t.", "...it..t.t.", ".......t.tt"};

static void own_few(int n, int device, int managed)
{
    for (int i = 0; i < INPUTS; i++)
        if (n < 0 || taken[n][i] == 't' || device < 0)
            emulated_own(arrays[i].data, arrays[i].bytes, device, managed);
}

static bool untouched(const struct few *before) { return memcmp(before, &few, sizeof few) == 0; }

/* Call n is refused, by a word, and nothing is written or put on the stream. */
static void expect_refused(const char *what, attn_backend backend, int n, attn_status status,
                           const char *word)
{
    attn_context *c = context_of(backend);
    const struct few before = few;
    const attn_status got = call_few(c, n);
    cudaStreamSynchronize(NULL);
    EXPECT(got == status && strstr(attn_last_message(c), word) && untouched(&before),
           "%s, call %d: %s, \"%s\"; expected %s and %s", what, n, attn_status_name(got),
           attn_last_message(c), attn_status_name(status), word);
    attn_context_destroy(c);
}

/* One array on the device, or elsewhere. */
static void test_mixtures(void)
{
    for (int n = 0; n < CALLS; n++)
        for (int i = 0; i < INPUTS; i++) {
            const char kind = taken[n][i];
            fill_few();
            if (kind == '.' || (kind == 't' && strchr(taken[n], 't') == strrchr(taken[n], 't')))
                continue; /* the only tensor decides */
            emulated_own(arrays[i].data, arrays[i].bytes, 0, 0);
            expect_refused("one array on a device", ATTN_BACKEND_AUTO, n,
                           ATTN_INVALID_CONFLICT, kind == 't' ? "memory" : arrays[i].name);
            own_few(n, 0, 0);
            emulated_own(arrays[i].data, arrays[i].bytes, kind == 't' ? -1 : 1, 0);
            expect_refused("one array elsewhere", ATTN_BACKEND_AUTO, n,
                           ATTN_INVALID_CONFLICT, kind == 't' ? "memory" : arrays[i].name);
            own_few(n, -1, 0);
        }
}

/* The named backend; managed memory; another device. */
static void test_backends(void)
{
    for (int n = 0; n < CALLS; n++) {
        struct few expected, before;
        int current = -1;
        fill_few();
        before = few;
        EXPECT(call_few(NULL, n) == ATTN_OK && !untouched(&before), "call %d: \"%s\"", n,
               attn_last_message(NULL));
        expected = few;
        attn_context *cpu = context_of(ATTN_BACKEND_CPU);
        attn_context *cuda = context_of(ATTN_BACKEND_CUDA);

        fill_few();
        EXPECT(call_few(cuda, n) == ATTN_OK && untouched(&expected),
               "call %d, cuda, host memory", n);
        fill_few();
        own_few(n, 1, 0);
        expect_refused("cpu", ATTN_BACKEND_CPU, n, ATTN_UNSUPPORTED, "backend cpu");
        EXPECT(call_few(cuda, n) == ATTN_OK && cudaStreamSynchronize(NULL) == cudaSuccess &&
                   untouched(&expected), "call %d, device 1: \"%s\"", n, attn_last_message(cuda));
        cudaGetDevice(&current);
        EXPECT(current == 0, "call %d: device %d after it", n, current);
        own_few(n, -1, 0);

        fill_few();
        own_few(n, 0, 1);
        EXPECT(call_few(cpu, n) == ATTN_OK && untouched(&expected), "call %d, cpu, managed", n);
        fill_few();
        EXPECT(call_few(NULL, n) == ATTN_OK && untouched(&before), "call %d, managed: it waits", n);
        EXPECT(cudaStreamSynchronize(NULL) == cudaSuccess && untouched(&expected),
               "call %d, managed", n);
        own_few(n, -1, 0);
        attn_context_destroy(cpu);
        attn_context_destroy(cuda);
    }
}

/* What the host can read of a call but for one array is not for the host. */
static void test_partly_managed(void)
{
    for (int n = 0; n < CALLS; n++)
        for (int i = 0; i < INPUTS; i++) {
            if (taken[n][i] == '.')
                continue;
            fill_few();
            own_few(n, 0, 1);
            emulated_own(arrays[i].data, arrays[i].bytes, 0, 0);
            expect_refused("managed memory, but one array", ATTN_BACKEND_CPU, n, ATTN_UNSUPPORTED,
                           "memory of device 0");
            own_few(n, -1, 0);
        }
}

/* Managed memory that work on the stream is still to write is not read before. */
static void test_pending(void)
{
    attn_packing p = {.indices = few.indices};
    fill_few();
    memset(few.indices, 0xff, sizeof few.indices);
    emulated_own(&few, sizeof few, 0, 1);
    EXPECT(attn_packing_from_mask(NULL, B, S, few.mask, &p) == ATTN_OK &&
               call_few(NULL, 5) == ATTN_OK && cudaStreamSynchronize(NULL) == cudaSuccess &&
               few.packed[2 * 2] == few.x[4 * 2],
           "indices of a packing to come: \"%s\"", attn_last_message(NULL));
    emulated_own(&few, sizeof few, -1, 0);
}

static void test_devices(void)
{
    fill_few();
    emulated_set_machine((struct emulated_machine){1, 75, 65536});
    for (int n = 0; n < CALLS; n++) {
        own_few(n, 0, 0);
        expect_refused("an old device", ATTN_BACKEND_AUTO, n, ATTN_NO_DEVICE, "7.5");
        own_few(n, -1, 0);
    }
    emulated_set_machine((struct emulated_machine){2, 80, 166912});
}

/* Each call of the function fails once, and there are `least` of them or more; what the call takes
 * is given back. */
static void fail_each(int n, const char *function, cudaError_t error, attn_status status, int least)
{
    int count = 1;
    attn_status got = status;
    for (; got == status && count < 200; count++) {
        fill_few();
        emulated_fail(function, count, error);
        got = call_few(NULL, n);
        if (got == status)
            EXPECT(strstr(attn_last_message(NULL), cudaGetErrorString(error)) != NULL,
                   "call %d, %s %d fails: \"%s\"", n, function, count, attn_last_message(NULL));
        emulated_fail(NULL, 0, cudaSuccess);
        EXPECT(cudaGetLastError() == cudaSuccess, "call %d, %s %d fails: the error stays", n,
               function, count);
        cudaStreamSynchronize(NULL);
        cudaSetDevice(0); /* where going back failed */
        EXPECT(emulated_allocations() == 0, "call %d, %s %d fails: %ld allocations are left", n,
               function, count, emulated_allocations());
    }
    EXPECT(got == ATTN_OK, "call %d, %s fails: %s", n, function, attn_status_name(got));
    EXPECT(count - 2 >= least, "call %d, %s: %d failures told", n, function, count - 2);
}

static void test_failures(void)
{
    for (int n = 0; n < 2 * CALLS; n++) {
        const int call = n / 2, device = n % 2;
        const cudaError_t fault = cudaErrorLaunchFailure;
        own_few(call, device, 0);
        fail_each(call, "cuPointerGetAttributes", fault, ATTN_DEVICE_ERROR, 2);
        fail_each(call, "cudaGetDeviceCount", fault, ATTN_DEVICE_ERROR, 1);
        fail_each(call, "cudaDeviceGetAttribute", fault, ATTN_DEVICE_ERROR, 3);
        fail_each(call, "cudaGetDevice", fault, ATTN_DEVICE_ERROR, 1);
        fail_each(call, "cuCtxSetCurrent", fault, ATTN_DEVICE_ERROR, 2 * device);
        fail_each(call, "cudaMallocAsync", cudaErrorMemoryAllocation, ATTN_NO_MEMORY, 0);
        fail_each(call, "cudaFreeAsync", fault, ATTN_DEVICE_ERROR, 0);
        fail_each(call, "cudaLaunchKernel", cudaErrorLaunchOutOfResources, ATTN_DEVICE_ERROR, 1);
        fail_each(call, "cudaFuncSetAttribute", cudaErrorInvalidValue, ATTN_DEVICE_ERROR, 1);
        fail_each(call, "all", fault, ATTN_DEVICE_ERROR, 8);
        own_few(call, -1, 0);
    }
}

/* What the host would have to read, or cannot know. */
static void test_unsupported(void)
{
    static double frequency[1] = {1};
    attn_packing p = {.lengths = few.after};
    attn_rotary_desc d = attn_rotary_desc_init();
    fill_few();
    own_few(0, 0, 0);
    EXPECT(attn_packing_from_mask(NULL, 1 << 16, 1 << 15, few.mask, &p) == ATTN_UNSUPPORTED &&
               strstr(attn_last_message(NULL), "32 bits"), "2^31 tokens: \"%s\"",
           attn_last_message(NULL));
    own_few(0, -1, 0);
    d.batch = d.heads = 1;
    d.head_dim = 2;
    d.tokens.seqlen = 1;
    d.x.data = few.x;
    d.out.data = few.out;
    d.rotation.frequency = frequency;
    own_few(7, 0, 0);
    emulated_own(frequency, sizeof frequency, 0, 0);
    EXPECT(attn_rotary(NULL, &d) == ATTN_UNSUPPORTED &&
               strstr(attn_last_message(NULL), "rotation.frequency"), "frequencies: \"%s\"",
           attn_last_message(NULL));
    emulated_own(frequency, sizeof frequency, -1, 0);
    own_few(7, -1, 0);

    own_few(8, 0, 1);
    emulated_own(few.used, sizeof few.used, 0, 0);
    expect_refused("lengths on a device, tensors anybody's", ATTN_BACKEND_CPU, 8, ATTN_UNSUPPORTED,
                   "cache.seqused: lies in memory of device 0, and backend cpu");
    emulated_own(few.used, sizeof few.used, -1, 0);
    own_few(8, -1, 0);
}

void test_places(void)
{
    test_mixtures();
    test_backends();
    test_partly_managed();
    test_pending();
    test_devices();
    test_failures();
    test_unsupported();
}
