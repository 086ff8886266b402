/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The cuda backend's side of the host, on emulated devices: memory of the host, of one device and of
 * another, what is refused, what fails and is told, graphs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "device_parts.h"
#include "emulator/runtime.h"
#include "expect.h"

enum { B = 3, TQ = 12, TK = 20, HQ = 2, HKV = 1, D = 8, MANY = 1100 };

/* One call: packed, with rows of no query, an empty sequence and one without keys. */
static struct {
    _Alignas(64) uint16_t q[TQ * HQ * D], k[TK * HKV * D], v[TK * HKV * D], out[TQ * HQ * D];
    float lse[HQ * TQ];
} t, before;
static int32_t cu_q[B + 1], cu_k[B + 1];
static uint16_t expected[TQ * HQ * D];
static float expected_lse[HQ * TQ];

static void fill(void)
{
    static const int32_t starts_q[B + 1] = {0, 5, 5, 9}, starts_k[B + 1] = {0, 17, 18, 18};
    for (int n = 0; n < TQ * HQ * D; n++)
        t.q[n] = (uint16_t)(0x3c00 + n * 37 % 512); /* 1 to 2, in f16 */
    for (int n = 0; n < TK * HKV * D; n++) {
        t.k[n] = (uint16_t)(0xb800 + n * 53 % 1024);
        t.v[n] = (uint16_t)(0x3800 + n * 71 % 1024);
    }
    memset(t.out, 0xff, sizeof t.out);
    memset(t.lse, 0xff, sizeof t.lse);
    memcpy(cu_q, starts_q, sizeof cu_q);
    memcpy(cu_k, starts_k, sizeof cu_k);
    before = t;
}

static attn_desc desc(void)
{
    attn_desc d = attn_desc_init();
    d.batch = B;
    d.heads_q = HQ;
    d.heads_kv = HKV;
    d.head_dim = D;
    d.query.layout = d.key.layout = ATTN_PACKED;
    d.query.tokens = TQ;
    d.key.tokens = TK;
    d.query.max_seqlen = 5;
    d.key.max_seqlen = 17;
    d.query.cu_seqlens.data = cu_q;
    d.key.cu_seqlens.data = cu_k;
    d.q.data = t.q;
    d.k.data = t.k;
    d.v.data = t.v;
    d.out.data = t.out;
    d.lse.data = t.lse;
    d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = ATTN_F16;
    return d;
}

static attn_context *context(attn_backend backend)
{
    attn_options o = attn_options_init();
    attn_context *c = NULL;
    o.backend = backend;
    if (attn_context_create(&c, &o) != ATTN_OK)
        exit(1);
    return c;
}

/* All tensors to device n, -1 for the host. */
static void move(int n, int managed) { emulated_own(&t, sizeof t, n, managed); }

static bool as_expected(void)
{
    return memcmp(t.out, expected, sizeof expected) == 0 &&
           memcmp(t.lse, expected_lse, sizeof expected_lse) == 0;
}

static bool untouched(void) { return memcmp(&t, &before, sizeof t) == 0; }

/* A call is refused with the status, in words that have `word`, and nothing is written. */
static void expect_refused(const char *what, attn_backend backend, const attn_desc *d,
                           attn_status status, const char *word)
{
    attn_context *c = context(backend);
    const attn_status got = attn_forward(c, d);
    EXPECT(got == status && strstr(attn_last_message(c), word), "%s: %s, \"%s\"; expected %s and %s",
           what, attn_status_name(got), attn_last_message(c), attn_status_name(status), word);
    EXPECT(untouched(), "%s: something was written", what);
    attn_context_destroy(c);
}

static void expect_result(const char *what, attn_backend backend, const attn_desc *d)
{
    attn_context *c = context(backend);
    fill();
    const attn_status got = attn_forward(c, d);
    const cudaError_t error = cudaStreamSynchronize(NULL);
    EXPECT(got == ATTN_OK && error == cudaSuccess, "%s: %s, \"%s\", %s", what,
           attn_status_name(got), attn_last_message(c), cudaGetErrorString(error));
    EXPECT(as_expected(), "%s: other results", what);
    EXPECT(emulated_allocations() == 0, "%s: %ld allocations are left", what,
           emulated_allocations());
    fill();
    attn_context_destroy(c);
}

static int serving(attn_backend backend, const attn_desc *d)
{
    attn_explanation e = attn_explanation_init();
    attn_context *c = context(backend);
    const attn_status status = attn_explain(c, d, ATTN_PASS_FORWARD, &e);
    attn_context_destroy(c);
    return status == ATTN_OK && e.chosen >= 0 ? (int)e.candidates[e.chosen].backend : -1;
}

/* ---- Which backend, which memory ------------------------------------------------------------- */

/* A program that keeps to the CPU begins no work with a device. */
static void test_idle(void)
{
    static const char *const questions[] = {"cudaGetDeviceCount",
                                            "cudaGetDriverEntryPointByVersion"};
    const attn_desc d = desc();
    for (int n = 0; n < 2; n++) {
        emulated_fail(questions[n], 1, cudaErrorLaunchFailure);
        expect_refused(questions[n], ATTN_BACKEND_AUTO, &d, ATTN_DEVICE_ERROR,
                       cudaGetErrorString(cudaErrorLaunchFailure));
    }
    const long asked = emulated_calls(questions[0]);
    EXPECT(attn_forward(NULL, &d) == ATTN_OK, "auto: %s", attn_last_message(NULL));
    EXPECT(emulated_calls(questions[0]) == asked, "the devices are counted once more");
    EXPECT(!emulated_begun(), "the CPU's call begins work on a device");
    fill();
}

static void test_choice(void)
{
    const attn_desc d = desc();
    EXPECT(serving(ATTN_BACKEND_AUTO, &d) == ATTN_BACKEND_CPU, "host memory, not to the CPU");
    expect_result("host memory", ATTN_BACKEND_CUDA, &d);
    move(0, 0);
    EXPECT(serving(ATTN_BACKEND_AUTO, &d) == ATTN_BACKEND_CUDA, "a device's memory, not to it");
    const long waits = emulated_calls("cudaStreamSynchronize");
    expect_result("a device's memory", ATTN_BACKEND_AUTO, &d);
    EXPECT(emulated_calls("cudaStreamSynchronize") == waits + 1, "the call waits for its stream");
    expect_refused("cpu, a device's memory", ATTN_BACKEND_CPU, &d, ATTN_UNSUPPORTED, "q: lies");
    move(0, 1);
    expect_result("managed memory", ATTN_BACKEND_AUTO, &d);
    EXPECT(serving(ATTN_BACKEND_AUTO, &d) == ATTN_BACKEND_CUDA, "managed memory, not to the device");
    EXPECT(serving(ATTN_BACKEND_CPU, &d) == ATTN_BACKEND_CPU, "managed memory, refused by the CPU");
    emulated_own(t.q, sizeof t.q, 0, 0); /* begins where t does: the rest is managed */
    emulated_own(t.k, (size_t)((char *)(&t + 1) - (char *)t.k), 0, 1);
    EXPECT(serving(ATTN_BACKEND_CPU, &d) == -1, "q on a device, not refused by the CPU");
    emulated_own(t.k, 0, -1, 0);
    move(-1, 0);
    emulated_own(&t, sizeof t, 1, 0);
    expect_result("another device", ATTN_BACKEND_AUTO, &d);
    int current = -1;
    cudaGetDevice(&current);
    EXPECT(current == 0, "device %d after a call on device 1", current);
    move(-1, 0);
}

static void test_mixtures(void)
{
    attn_desc d = desc();
    emulated_own(t.k, sizeof t.k, 0, 0);
    expect_refused("k on a device", ATTN_BACKEND_AUTO, &d, ATTN_INVALID_CONFLICT, "k: lies in memory of");
    emulated_own(t.k, sizeof t.k, -1, 0);
    emulated_own(t.q, sizeof t.q, 1, 0);
    emulated_own(t.k, (size_t)((char *)(&t + 1) - (char *)t.k), 0, 0);
    expect_refused("q on another", ATTN_BACKEND_AUTO, &d, ATTN_INVALID_CONFLICT, "q in memory of device 1");
    emulated_own(t.k, 0, -1, 0);
    emulated_own(t.q, 0, -1, 0);

    move(0, 0);
    d.probs_fn = (attn_probs_fn)abort;
    expect_refused("probs_fn", ATTN_BACKEND_AUTO, &d, ATTN_UNSUPPORTED, "probs_fn");
    move(-1, 0);
}

/* The backward pass is no part of this backend: it says so by name, and writes nothing. */
static void test_backward(void)
{
    static struct {
        uint16_t q[TQ * HQ * D], k[TK * HKV * D], v[TK * HKV * D];
    } to, none;
    attn_desc d = desc();
    d.dout = (attn_input){.data = t.out, .dtype = ATTN_F16};
    d.dq = (attn_output){.data = to.q, .dtype = ATTN_F16};
    d.dk = (attn_output){.data = to.k, .dtype = ATTN_F16};
    d.dv = (attn_output){.data = to.v, .dtype = ATTN_F16};
    for (int n = -1; n < 1; n++) {
        attn_context *c = context(ATTN_BACKEND_CUDA);
        move(n, 0);
        emulated_own(&to, sizeof to, n, 0);
        const attn_status status = attn_backward(c, &d);
        EXPECT(status == ATTN_UNSUPPORTED && strstr(attn_last_message(c), "dout: not offered"),
               "backward, memory of %d: %s, \"%s\"", n, attn_status_name(status),
               attn_last_message(c));
        EXPECT(untouched() && memcmp(&to, &none, sizeof to) == 0,
               "backward, memory of %d: something was written", n);
        attn_context_destroy(c);
    }
    emulated_own(&to, sizeof to, -1, 0);
    move(-1, 0);
}

/* Lengths in a device's memory: whom they go with, what has to be told beside them. */
static void test_lengths(void)
{
    static float bias[HQ * 5 * 17];
    static int32_t at[B + 1], docs[TK];
    int32_t starts[B + 1];
    attn_desc d = desc();
    size_t whole = 0, bytes = 0;

    emulated_own(cu_k, sizeof cu_k, 0, 0);
    expect_refused("lengths of host tensors", ATTN_BACKEND_CUDA, &d, ATTN_INVALID_CONFLICT,
                   "key.cu_seqlens: lies in memory of device 0");
    EXPECT(attn_dropout_mask(NULL, &d, &(attn_score_output){bias, ATTN_BOOL, 0, 0, 0, 0}) ==
                   ATTN_UNSUPPORTED &&
               strstr(attn_last_message(NULL), "key.cu_seqlens"),
           "a keep mask, lengths on a device: \"%s\"", attn_last_message(NULL));
    move(0, 1);
    expect_refused("lengths, cpu", ATTN_BACKEND_CPU, &d, ATTN_UNSUPPORTED,
                   "key.cu_seqlens: lies in memory of device 0, which the cpu");
    d.query_docs.data = d.key_docs.data = docs;
    d.key.cu_seqlens.data = memcpy(starts, cu_k, sizeof starts);
    emulated_own(docs, sizeof docs, 0, 0);
    expect_refused("documents, cpu", ATTN_BACKEND_CPU, &d, ATTN_UNSUPPORTED,
                   "query_docs: lies in memory of device 0, which the cpu");
    emulated_own(docs, sizeof docs, -1, 0);
    d = desc();
    move(0, 0);
    expect_result("lengths of keys", ATTN_BACKEND_AUTO, &d);
    emulated_own(cu_q, sizeof cu_q, 0, 0);
    expect_result("all lengths", ATTN_BACKEND_AUTO, &d);
    emulated_own(cu_q, sizeof cu_q, 1, 0);
    expect_refused("lengths on two devices", ATTN_BACKEND_AUTO, &d, ATTN_INVALID_CONFLICT,
                   "query.cu_seqlens: lies in memory of device 1");
    emulated_own(cu_q, sizeof cu_q, 0, 1);
    expect_result("managed lengths", ATTN_BACKEND_AUTO, &d);
    emulated_own(cu_q, 0, -1, 0);
    for (int n = -1; n < 1; n++) {
        d.key.max_seqlen = n;
        expect_refused("no bound", ATTN_BACKEND_AUTO, &d, ATTN_INVALID_LENGTHS, "key.max_seqlen: ");
    }
    d.key.max_seqlen = INT64_C(1) << 50;
    expect_result("a far bound", ATTN_BACKEND_AUTO, &d);

    EXPECT(attn_workspace_size(NULL, &d, ATTN_PASS_FORWARD, &whole) == ATTN_OK, "size: \"%s\"",
           attn_last_message(NULL));
    d.q.data = d.k.data = d.v.data = NULL;
    d.out.data = d.lse.data = NULL;
    EXPECT(attn_workspace_size(NULL, &d, ATTN_PASS_FORWARD, &bytes) == ATTN_OK && bytes == whole &&
               bytes > 0,
           "size without tensors: \"%s\", %zu, not %zu", attn_last_message(NULL), bytes, whole);
    emulated_own(cu_k, 0, -1, 0);

    d = desc();
    d.bias.data = bias;
    d.bias_offset.data = at;
    emulated_own(at, sizeof at, 0, 0);
    emulated_own(bias, sizeof bias, 0, 0);
    expect_refused("no extent", ATTN_BACKEND_AUTO, &d, ATTN_INVALID_CONFLICT, "bias_elements: 0");
    emulated_own(at, 0, -1, 0);
    emulated_own(bias, 0, -1, 0);
    move(-1, 0);
}

/* What attn_workspace_status() says before, after and without a call. */
static void test_status(void)
{
    attn_desc d = desc();
    void *room;

    EXPECT(attn_workspace_status(NULL, NULL, ATTN_PASS_FORWARD) == ATTN_INVALID_NULL &&
               attn_workspace_status(NULL, &d, (attn_pass)2) == ATTN_INVALID_ENUM,
           "no descriptor, no pass");
    EXPECT(attn_workspace_status(NULL, &d, ATTN_PASS_FORWARD) == ATTN_OK, "host memory: \"%s\"",
           attn_last_message(NULL));
    move(0, 0);
    const long waits = emulated_calls("cudaStreamSynchronize");
    EXPECT(attn_workspace_status(NULL, &d, ATTN_PASS_FORWARD) == ATTN_OK &&
               emulated_calls("cudaStreamSynchronize") == waits,
           "host lengths: \"%s\"", attn_last_message(NULL));
    emulated_own(cu_k, sizeof cu_k, 0, 0);
    EXPECT(attn_workspace_status(NULL, &d, ATTN_PASS_FORWARD) == ATTN_INVALID_NULL &&
               strstr(attn_last_message(NULL), "workspace: null"),
           "the library's workspace: \"%s\"", attn_last_message(NULL));

    attn_workspace_size(NULL, &d, ATTN_PASS_FORWARD, &d.workspace_bytes);
    cudaMalloc(&room, d.workspace_bytes);
    d.workspace = room;
    memset(room, 0xa5, d.workspace_bytes);
    EXPECT(attn_workspace_status(NULL, &d, ATTN_PASS_FORWARD) == ATTN_INVALID_WORKSPACE &&
               strstr(attn_last_message(NULL), "no call"),
           "no call: \"%s\"", attn_last_message(NULL));
    d.workspace_bytes--;
    EXPECT(attn_workspace_status(NULL, &d, ATTN_PASS_FORWARD) == ATTN_INVALID_WORKSPACE &&
               strstr(attn_last_message(NULL), "workspace_bytes"),
           "a small workspace: \"%s\"", attn_last_message(NULL));
    d.workspace_bytes++;
    for (int wrong = 0; wrong < 2; wrong++) {
        cu_k[2] = wrong ? 16 : 18; /* below cu_k[1] */
        attn_status status = attn_forward(NULL, &d);
        EXPECT(status == ATTN_OK, "wrong lengths: \"%s\"", attn_last_message(NULL));
        for (int again = 0; again < 2; again++) {
            status = attn_workspace_status(NULL, &d, ATTN_PASS_FORWARD);
            EXPECT(wrong ? status == ATTN_INVALID_LENGTHS &&
                               strstr(attn_last_message(NULL), "key.cu_seqlens[2]:")
                         : status == ATTN_OK,
                   "lengths, wrong %d: %s, \"%s\"", wrong, attn_status_name(status),
                   attn_last_message(NULL));
        }
    }
    fill();

    static const char *const calls[] = {"cudaMemcpyAsync", "cudaStreamSynchronize", "kernel"};
    for (int n = 0; n < 3; n++) {
        emulated_fail(calls[n], 1, cudaErrorLaunchFailure);
        attn_forward(NULL, &d);
        EXPECT(attn_workspace_status(NULL, &d, ATTN_PASS_FORWARD) == ATTN_DEVICE_ERROR &&
                   cudaGetLastError() == cudaSuccess,
               "%s fails: \"%s\"", calls[n], attn_last_message(NULL));
        cudaStreamSynchronize(NULL);
        cudaGetLastError();
    }
    emulated_fail(NULL, 0, cudaSuccess);
    emulated_capture_begin();
    EXPECT(attn_workspace_status(NULL, &d, ATTN_PASS_FORWARD) == ATTN_DEVICE_ERROR,
           "status in a capture: \"%s\"", attn_last_message(NULL));
    emulated_capture_end();
    cudaFree(room);
    emulated_own(cu_k, 0, -1, 0);
    move(-1, 0);
    fill();
}

static void test_workspaces(void)
{
    attn_desc d = desc();
    void *room;
    d.workspace_bytes = 1 << 20;
    d.workspace = aligned_alloc(64, d.workspace_bytes);
    expect_result("own workspace", ATTN_BACKEND_CUDA, &d);
    cudaMalloc(&room, d.workspace_bytes);
    move(0, 0);
    expect_refused("host workspace", ATTN_BACKEND_AUTO, &d, ATTN_INVALID_WORKSPACE, "workspace");
    free(d.workspace);
    d.workspace = room;
    fill();
    EXPECT(attn_forward(NULL, &d) == ATTN_OK && cudaStreamSynchronize(NULL) == cudaSuccess &&
               as_expected() && emulated_allocations() == 1,
           "workspace on the device: \"%s\"", attn_last_message(NULL));
    fill();
    move(-1, 0);
    cudaFree(room);
}

/* The CPU's workspace is the host's, or managed, wherever tensors that it can read lie. */
static void test_cpu_workspaces(void)
{
    attn_desc d = desc();
    d.workspace_bytes = 1 << 20;
    d.workspace = aligned_alloc(64, d.workspace_bytes);
    move(0, 1);
    attn_context *c = context(ATTN_BACKEND_CPU);
    for (int managed = 0; managed < 2; managed++) {
        emulated_own(d.workspace, d.workspace_bytes, managed ? 0 : -1, managed);
        EXPECT(attn_forward(c, &d) == ATTN_OK, "cpu, managed tensors, %s workspace: \"%s\"",
               managed ? "managed" : "host", attn_last_message(c));
        fill();
    }
    attn_context_destroy(c);
    emulated_own(d.workspace, d.workspace_bytes, 0, 0);
    expect_refused("cpu, managed tensors, a device's workspace", ATTN_BACKEND_CPU, &d,
                   ATTN_INVALID_WORKSPACE, "workspace");
    emulated_own(d.workspace, 0, -1, 0);
    free(d.workspace);
    move(-1, 0);
}

static void test_devices(void)
{
    const attn_desc d = desc();
    emulated_set_machine((struct emulated_machine){0, 80, 166912});
    expect_refused("no device", ATTN_BACKEND_CUDA, &d, ATTN_NO_DEVICE, "no CUDA-capable device");
    EXPECT(serving(ATTN_BACKEND_AUTO, &d) == ATTN_BACKEND_CPU, "no device, and not the CPU");
    emulated_set_machine((struct emulated_machine){1, 75, 65536});
    expect_refused("an old device", ATTN_BACKEND_CUDA, &d, ATTN_NO_DEVICE, "7.5");
    emulated_set_machine((struct emulated_machine){1, 80, 1024});
    expect_refused("little shared memory", ATTN_BACKEND_CUDA, &d, ATTN_UNSUPPORTED, "1024");
    emulated_set_machine((struct emulated_machine){2, 86, 99 << 10});
    expect_result("a device again", ATTN_BACKEND_CUDA, &d);
}

/* ---- What fails ----------------------------------------------------------------------------- */

/* Each call of the function that attn_forward() makes fails once, and there are `least` of them or
 * more. `later`: a failure that the call may not hear of, but who waits for the stream. */
static void fail_each(const char *function, cudaError_t error, attn_status status, int least,
                      bool later)
{
    enum { MOST = 500 };
    const attn_desc d = desc();
    attn_context *c = context(ATTN_BACKEND_CUDA);
    int n = 1;
    for (; n < MOST; n++) {
        emulated_fail(function, n, error);
        attn_status got = attn_forward(c, &d);
        EXPECT(cudaGetLastError() == cudaSuccess, "%s, call %d fails: the error stays", function, n);
        const cudaError_t waited = cudaStreamSynchronize(NULL);
        cudaGetLastError();
        if (later && got == ATTN_OK && waited == error) {
            got = status;
        } else if (got != ATTN_OK) {
            EXPECT(strstr(attn_last_message(c), cudaGetErrorString(error)) != NULL,
                   "%s, call %d fails: \"%s\"", function, n, attn_last_message(c));
        }
        emulated_fail(NULL, 0, cudaSuccess);
        cudaSetDevice(0); /* where going back failed */
        EXPECT(got == status || got == ATTN_OK, "%s, call %d fails: %s", function, n,
               attn_status_name(got));
        EXPECT(emulated_allocations() == 0, "%s, call %d fails: %ld allocations are left", function,
               n, emulated_allocations());
        if (got == ATTN_OK)
            break;
        fill();
        EXPECT(attn_forward(c, &d) == ATTN_OK && cudaStreamSynchronize(NULL) == cudaSuccess &&
                   as_expected(), "%s, call %d fails: then \"%s\"", function, n,
               attn_last_message(c));
        fill();
    }
    EXPECT(n > least && n < MOST, "%s: %d failures told", function, n - 1);
    fill();
    attn_context_destroy(c);
}

static void test_failures(void)
{
    for (int n = -1; n < 3; n++) { /* of the host; of a device; with lengths on it; of another */
        const int device = n < 0 ? -1 : n / 2, lengths = n == 1 ? 0 : -1;
        move(-1, 0);
        move(device, 0);
        emulated_own(cu_q, sizeof cu_q, lengths, 0);
        emulated_own(cu_k, sizeof cu_k, lengths, 0);
        fail_each("cuPointerGetAttributes", cudaErrorLaunchFailure, ATTN_DEVICE_ERROR, 5, false);
        fail_each("cudaGetDeviceCount", cudaErrorLaunchFailure, ATTN_DEVICE_ERROR, 1, false);
        fail_each("cudaDeviceGetAttribute", cudaErrorLaunchFailure, ATTN_DEVICE_ERROR, 3, false);
        fail_each("cudaGetDevice", cudaErrorLaunchFailure, ATTN_DEVICE_ERROR, 1, false);
        fail_each("cudaFreeAsync", cudaErrorLaunchFailure, ATTN_DEVICE_ERROR, 1, false);
        if (device >= 0)
            fail_each("cuCtxGetCurrent", cudaErrorLaunchFailure, ATTN_DEVICE_ERROR, 1, false);
        if (device > 0)
            fail_each("cuCtxSetCurrent", cudaErrorLaunchFailure, ATTN_DEVICE_ERROR, 2, false);
        fail_each("cudaMallocAsync", cudaErrorMemoryAllocation, ATTN_NO_MEMORY, 1, false);
        fail_each("cudaFuncSetAttribute", cudaErrorInvalidValue, ATTN_DEVICE_ERROR, 2, false);
        fail_each("cudaLaunchKernel", cudaErrorLaunchOutOfResources, ATTN_DEVICE_ERROR, 2, false);
        fail_each("kernel", cudaErrorLaunchFailure, ATTN_DEVICE_ERROR, 2, device >= 0);
        fail_each("all", cudaErrorLaunchFailure, ATTN_DEVICE_ERROR, 20, false);
        if (device < 0) {
            fail_each("cudaMemcpyAsync", cudaErrorInvalidValue, ATTN_DEVICE_ERROR, 4, false);
            fail_each("cudaEventRecord", cudaErrorInvalidValue, ATTN_DEVICE_ERROR, 4, false);
            fail_each("cudaEventSynchronize", cudaErrorLaunchFailure, ATTN_DEVICE_ERROR, 2, false);
            fail_each("cudaStreamIsCapturing", cudaErrorInvalidValue, ATTN_DEVICE_ERROR, 1, false);
            fail_each("cudaStreamSynchronize", cudaErrorLaunchFailure, ATTN_DEVICE_ERROR, 1, false);
        }
    }
    move(-1, 0);
}

/* Pinned memory is a context's, from its first call on; it is as much as the calls need, and of their
 * device. A call without a context takes its own, and a failure to have it leaves nothing. */
static void test_pinned(void)
{
    static const struct {
        const char *function;
        cudaError_t error;
        attn_status status;
    } failures[] = {{"cudaHostAlloc", cudaErrorMemoryAllocation, ATTN_NO_MEMORY},
                    {"cudaEventCreateWithFlags", cudaErrorInvalidValue, ATTN_DEVICE_ERROR}};
    attn_desc d = desc(), small = desc();
    attn_context *c = context(ATTN_BACKEND_CUDA);

    for (int n = 0; n < 4; n++) {
        const int calls = n / 2 + 1;
        emulated_fail(failures[n % 2].function, calls, failures[n % 2].error);
        EXPECT(attn_forward(c, &d) == failures[n % 2].status && emulated_pinned() == 0 &&
                   cudaGetLastError() == cudaSuccess && untouched(),
               "%s, call %d fails: \"%s\", %ld are left", failures[n % 2].function, calls,
               attn_last_message(c), emulated_pinned());
    }
    emulated_fail(NULL, 0, cudaSuccess);

    small.batch = 1;
    memset(&small.query, 0, sizeof small.query);
    small.query.seqlen = 1;
    small.key = small.query;
    EXPECT(attn_forward(c, &small) == ATTN_OK, "a small call: \"%s\"", attn_last_message(c));
    const long taken = emulated_calls("cudaHostAlloc");
    for (int n = 0; n < 3; n++) {
        fill();
        EXPECT(attn_forward(c, &d) == ATTN_OK && as_expected(), "pinned: \"%s\"",
               attn_last_message(c));
    }
    EXPECT(emulated_calls("cudaHostAlloc") == taken + 2 && emulated_pinned() == 4,
           "%ld buffers for three calls, %ld are left", emulated_calls("cudaHostAlloc") - taken,
           emulated_pinned());
    cudaSetDevice(1);
    fill();
    EXPECT(attn_forward(c, &d) == ATTN_OK && as_expected() &&
               emulated_calls("cudaHostAlloc") == taken + 4 && emulated_pinned() == 4,
           "pinned on another device: \"%s\"", attn_last_message(c));
    cudaSetDevice(0);
    attn_context_destroy(c);
    EXPECT(emulated_pinned() == 0, "a context leaves %ld behind", emulated_pinned());
    setenv("ATTN_BACKEND", "cuda", 1);
    fill();
    EXPECT(attn_forward(NULL, &d) == ATTN_OK && as_expected() && emulated_pinned() == 0,
           "no context: \"%s\", %ld are left", attn_last_message(NULL), emulated_pinned());
    unsetenv("ATTN_BACKEND");
    fill();
}

/* ---- Graphs; many lengths -------------------------------------------------------------------- */

static void test_graph(void)
{
    const attn_desc d = desc();
    move(0, 0);
    emulated_capture_begin();
    const attn_status status = attn_forward(NULL, &d);
    emulated_capture_end();
    EXPECT(status == ATTN_OK && untouched(), "capture: \"%s\"", attn_last_message(NULL));
    for (int n = 0; n < 2; n++) {
        memset(t.out, 0xff, sizeof t.out);
        memset(cu_q, 0x7f, sizeof cu_q); /* the host's lengths have been looked at */
        memset(cu_k, 0x7f, sizeof cu_k);
        EXPECT(emulated_graph_launch() == cudaSuccess && as_expected(), "launch %d of a graph", n);
    }
    move(-1, 0);
    fill();
    emulated_capture_begin(); /* host memory cannot be part of one, and says so */
    expect_refused("capture of host memory", ATTN_BACKEND_CUDA, &d, ATTN_DEVICE_ERROR,
                   "q: lies in host memory, and the stream");
    emulated_capture_end();
}

/* A graph with lengths on the device computes with those that stand there when it is launched. */
static void test_graph_lengths(void)
{
    static const int32_t other_q[B + 1] = {0, 1, 6, 11}, other_k[B + 1] = {0, 2, 4, 20};
    attn_desc d = desc();
    uint16_t out[TQ * HQ * D];

    move(0, 0);
    memcpy(cu_q, other_q, sizeof cu_q);
    memcpy(cu_k, other_k, sizeof cu_k);
    EXPECT(attn_forward(NULL, &d) == ATTN_OK && cudaStreamSynchronize(NULL) == cudaSuccess,
           "other lengths: \"%s\"", attn_last_message(NULL));
    memcpy(out, t.out, sizeof out);
    fill();
    emulated_own(cu_q, sizeof cu_q, 0, 0);
    emulated_own(cu_k, sizeof cu_k, 0, 0);
    emulated_capture_begin();
    const attn_status status = attn_forward(NULL, &d);
    emulated_capture_end();
    EXPECT(status == ATTN_OK && untouched(), "capture: \"%s\"", attn_last_message(NULL));
    for (int n = 0; n < 4; n++) {
        fill();
        if (n % 2) {
            memcpy(cu_q, other_q, sizeof cu_q);
            memcpy(cu_k, other_k, sizeof cu_k);
        }
        EXPECT(emulated_graph_launch() == cudaSuccess &&
                   (n % 2 ? memcmp(t.out, out, sizeof out) == 0 : as_expected()),
               "launch %d of a graph with lengths on the device", n);
    }
    emulated_own(cu_q, 0, -1, 0);
    emulated_own(cu_k, 0, -1, 0);
    move(-1, 0);
    fill();
}

/* More lengths than one kernel's argument holds. */
static void test_many(void)
{
    static uint16_t x[MANY], y[MANY];
    static int32_t cu[MANY + 1];
    attn_desc d = attn_desc_init();
    for (int n = 0; n < MANY; n++) {
        x[n] = (uint16_t)(0x3c00 + n % 1024);
        cu[n + 1] = n + 1;
    }
    d.batch = MANY;
    d.heads_q = d.head_dim = 1;
    d.query.layout = ATTN_PACKED;
    d.query.tokens = MANY;
    d.query.cu_seqlens.data = cu;
    d.key = d.query;
    d.q.data = d.k.data = d.v.data = x;
    d.out.data = y;
    d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = ATTN_F16;
    emulated_own(x, sizeof x, 0, 0);
    emulated_own(y, sizeof y, 0, 0);
    EXPECT(attn_forward(NULL, &d) == ATTN_OK && cudaStreamSynchronize(NULL) == cudaSuccess &&
               memcmp(x, y, sizeof x) == 0,
           "%d sequences of one token: \"%s\"", MANY, attn_last_message(NULL));
    emulated_own(x, sizeof x, -1, 0);
    emulated_own(y, sizeof y, -1, 0);
}

/* Launches of a call whose keys, of three sequences, have a table of so many columns; or -1. */
static long launches_with(int columns)
{
    enum { PAGE = 4, WIDE = 4000 };
    static int32_t table[B * WIDE], used[B] = {17, 0, 5};
    attn_desc d = desc();
    for (int n = 0; n < B * columns; n++)
        table[n] = n % columns < 5 ? n % columns : -1; /* past the lengths: none */
    d.key.layout = ATTN_PAGED;
    d.key.tokens = 0;
    d.key.cu_seqlens.data = NULL;
    d.key.seqused.data = used;
    d.key.pages = TK / PAGE;
    d.key.page_size = PAGE;
    d.key.max_pages = columns;
    d.key.block_table.data = table;
    const long launched = emulated_calls("cudaLaunchKernel");
    const attn_status status = attn_forward(NULL, &d);
    memset(table, 0x5a, sizeof table);
    if (status != ATTN_OK || cudaStreamSynchronize(NULL) != cudaSuccess)
        return -1;
    return emulated_calls("cudaLaunchKernel") - launched;
}

/* Of a table in host memory no more goes to the device than lengths can reach. */
static void test_wide_table(void)
{
    move(0, 0);
    const long narrow = launches_with(5), wide = launches_with(4000);
    EXPECT(narrow > 0 && wide == narrow, "%ld launches with 5 columns of pages, %ld with 4000",
           narrow, wide);
    move(-1, 0);
    fill();
}

/* Calls without a token, whose arrays are the device's all the same. */
static void test_empty(void)
{
    static int32_t docs[4];
    attn_desc d = attn_desc_init();
    d.batch = 2;
    d.heads_q = d.head_dim = 1;
    d.q.data = t.q;
    d.k.data = t.k;
    d.v.data = t.v;
    d.out.data = t.out;
    d.query_docs.data = d.key_docs.data = docs;
    move(0, 0);
    emulated_own(docs, sizeof docs, 0, 0);
    EXPECT(attn_forward(NULL, &d) == ATTN_OK && untouched(), "nothing, on a device: \"%s\"",
           attn_last_message(NULL));
    EXPECT(serving(ATTN_BACKEND_AUTO, &d) == ATTN_BACKEND_CUDA, "nothing, on a device: not to it");
    emulated_own(docs, sizeof docs, -1, 0);
    d.key.seqlen = 2; /* and no query */
    d.query_docs.data = NULL;
    d.key_docs.data = NULL;
    EXPECT(attn_forward(NULL, &d) == ATTN_OK && untouched(), "no query, on a device: \"%s\"",
           attn_last_message(NULL));
    move(-1, 0);
}

/* Calls that are the host's alone say so. */
static void test_host_calls(void)
{
    static uint8_t keep[HQ * TQ * TK];
    attn_desc d = attn_desc_init();
    attn_score_output mask = {keep, ATTN_BOOL, 0, 0, 0, 0};
    d.batch = 1;
    d.heads_q = HQ;
    d.head_dim = D;
    d.query.seqlen = TQ;
    d.key.seqlen = TK;
    d.dropout = 0.5;
    emulated_own(keep, sizeof keep, 0, 0);
    EXPECT(attn_dropout_mask(NULL, &d, &mask) == ATTN_UNSUPPORTED &&
               strstr(attn_last_message(NULL), "keep: lies"),
           "a keep mask on a device: \"%s\"", attn_last_message(NULL));
    emulated_own(keep, sizeof keep, -1, 0);
    EXPECT(attn_dropout_mask(NULL, &d, &mask) == ATTN_OK, "a keep mask: \"%s\"",
           attn_last_message(NULL));
}

int main(void)
{
    report_begin("device");
    unsetenv("ATTN_BACKEND");
    fill();
    test_idle();
    test_contexts();

    attn_desc d = desc();
    attn_context *c = context(ATTN_BACKEND_CUDA);
    EXPECT(attn_forward(c, &d) == ATTN_OK, "cuda: %s", attn_last_message(c));
    attn_context_destroy(c);
    memcpy(expected, t.out, sizeof expected);
    memcpy(expected_lse, t.lse, sizeof expected_lse);
    EXPECT(!untouched(), "nothing was written");
    fill();

    test_choice();
    test_mixtures();
    test_backward();
    test_lengths();
    test_status();
    test_workspaces();
    test_cpu_workspaces();
    test_devices();
    test_kernels();
    test_failures();
    test_pinned();
    test_graph();
    test_graph_lengths();
    test_many();
    test_wide_table();
    test_hidden_blocks();
    test_empty();
    test_host_calls();

    emulated_set_machine((struct emulated_machine){-1, 0, 0}); /* and none comes */
    expect_refused("no driver", ATTN_BACKEND_CUDA, &d, ATTN_NO_DEVICE, "no driver");
    EXPECT(attn_forward(NULL, &d) == ATTN_OK, "auto, no driver: %s", attn_last_message(NULL));
    EXPECT(emulated_pinned() == 0, "%ld pieces of pinned memory and events are left",
           emulated_pinned());
    return report_end();
}
