/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The cuda backend's side of the host, on emulated devices: memory of the host, of one device and
 * of another, of the caller's for work; what is refused.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "context.h"
#include "device_call.h"
#include "device_parts.h"
#include "emulator/runtime.h"
#include "expect.h"

/* A program that keeps to the CPU begins no work with a device. */
static void test_idle(void)
{
    static const char *const questions[] = {"cudaGetDeviceCount",
                                            "cudaGetDriverEntryPointByVersion"};
    const attn_desc d = call_desc();
    for (int n = 0; n < 2; n++) {
        emulated_fail(questions[n], 1, cudaErrorLaunchFailure);
        call_expect_refused(questions[n], ATTN_BACKEND_AUTO, &d, ATTN_DEVICE_ERROR,
                            cudaGetErrorString(cudaErrorLaunchFailure));
    }
    const long asked = emulated_calls(questions[0]);
    EXPECT(attn_forward(NULL, &d) == ATTN_OK, "auto: %s", attn_last_message(NULL));
    EXPECT(emulated_calls(questions[0]) == asked, "the devices are counted once more");
    EXPECT(!emulated_begun(), "the CPU's call begins work on a device");
    call_fill();
}

static void test_choice(void)
{
    const attn_desc d = call_desc();
    EXPECT(call_serving(ATTN_BACKEND_AUTO, &d) == ATTN_BACKEND_CPU, "host memory, not to the CPU");
    call_expect_result("host memory", ATTN_BACKEND_CUDA, &d);
    call_move(0, 0);
    EXPECT(call_serving(ATTN_BACKEND_AUTO, &d) == ATTN_BACKEND_CUDA,
           "a device's memory, not to it");
    const long waits = emulated_calls("cudaStreamSynchronize");
    call_expect_result("a device's memory", ATTN_BACKEND_AUTO, &d);
    EXPECT(emulated_calls("cudaStreamSynchronize") == waits + 1, "the call waits for its stream");
    call_expect_refused("cpu, a device's memory", ATTN_BACKEND_CPU, &d, ATTN_UNSUPPORTED,
                        "q: lies");
    call_move(0, 1);
    call_expect_result("managed memory", ATTN_BACKEND_AUTO, &d);
    EXPECT(call_serving(ATTN_BACKEND_AUTO, &d) == ATTN_BACKEND_CUDA,
           "managed memory, not to the device");
    EXPECT(call_serving(ATTN_BACKEND_CPU, &d) == ATTN_BACKEND_CPU,
           "managed memory, refused by the CPU");
    emulated_own(now.q, sizeof now.q, 0, 0); /* begins where all of it does: the rest is managed */
    emulated_own(now.k, (size_t)((char *)(&now + 1) - (char *)now.k), 0, 1);
    EXPECT(call_serving(ATTN_BACKEND_CPU, &d) == -1, "q on a device, not refused by the CPU");
    emulated_own(now.k, 0, -1, 0);
    call_move(-1, 0);
    emulated_own(&now, sizeof now, 1, 0);
    call_expect_result("another device", ATTN_BACKEND_AUTO, &d);
    int current = -1;
    cudaGetDevice(&current);
    EXPECT(current == 0, "device %d after a call on device 1", current);
    call_move(-1, 0);
}

static void test_mixtures(void)
{
    attn_desc d = call_desc();
    emulated_own(now.k, sizeof now.k, 0, 0);
    call_expect_refused("k on a device", ATTN_BACKEND_AUTO, &d, ATTN_INVALID_CONFLICT,
                        "k: lies in memory of");
    emulated_own(now.k, sizeof now.k, -1, 0);
    emulated_own(now.q, sizeof now.q, 1, 0);
    emulated_own(now.k, (size_t)((char *)(&now + 1) - (char *)now.k), 0, 0);
    call_expect_refused("q on another", ATTN_BACKEND_AUTO, &d, ATTN_INVALID_CONFLICT,
                        "q in memory of device 1");
    emulated_own(now.k, 0, -1, 0);
    emulated_own(now.q, 0, -1, 0);

    call_move(0, 0);
    d.probs_fn = (attn_probs_fn)abort;
    call_expect_refused("probs_fn", ATTN_BACKEND_AUTO, &d, ATTN_UNSUPPORTED, "probs_fn");
    call_move(-1, 0);
}

/* The backward pass is no part of this backend: it says so by name, and writes nothing. */
static void test_backward(void)
{
    static struct {
        uint16_t q[TQ * HQ * D], k[TK * HKV * D], v[TK * HKV * D];
    } to, none;
    attn_desc d = call_desc();
    d.dout = (attn_input){.data = now.out, .dtype = ATTN_F16};
    d.dq = (attn_output){.data = to.q, .dtype = ATTN_F16};
    d.dk = (attn_output){.data = to.k, .dtype = ATTN_F16};
    d.dv = (attn_output){.data = to.v, .dtype = ATTN_F16};
    for (int n = -1; n < 1; n++) {
        attn_context *c = context_of(ATTN_BACKEND_CUDA);
        call_move(n, 0);
        emulated_own(&to, sizeof to, n, 0);
        const attn_status status = attn_backward(c, &d);
        EXPECT(status == ATTN_UNSUPPORTED && strstr(attn_last_message(c), "dout: not offered"),
               "backward, memory of %d: %s, \"%s\"", n, attn_status_name(status),
               attn_last_message(c));
        EXPECT(call_untouched() && memcmp(&to, &none, sizeof to) == 0,
               "backward, memory of %d: something was written", n);
        attn_context_destroy(c);
    }
    emulated_own(&to, sizeof to, -1, 0);
    call_move(-1, 0);
}

/* Lengths in a device's memory: whom they go with, what has to be told beside them. */
static void test_lengths(void)
{
    static float bias[HQ * 5 * 17];
    static int32_t at[B + 1], docs[TK];
    int32_t starts[B + 1];
    attn_desc d = call_desc();
    size_t whole = 0, bytes = 0;

    emulated_own(cu_k, sizeof cu_k, 0, 0);
    call_expect_refused("lengths of host tensors", ATTN_BACKEND_CUDA, &d, ATTN_INVALID_CONFLICT,
                        "key.cu_seqlens: lies in memory of device 0");
    EXPECT(attn_dropout_mask(NULL, &d, &(attn_score_output){bias, ATTN_BOOL, 0, 0, 0, 0}) ==
                   ATTN_UNSUPPORTED &&
               strstr(attn_last_message(NULL), "key.cu_seqlens"),
           "a keep mask, lengths on a device: \"%s\"", attn_last_message(NULL));
    call_move(0, 1);
    call_expect_refused("lengths, cpu", ATTN_BACKEND_CPU, &d, ATTN_UNSUPPORTED,
                        "key.cu_seqlens: lies in memory of device 0, which the cpu");
    d.query_docs.data = d.key_docs.data = docs;
    d.key.cu_seqlens.data = memcpy(starts, cu_k, sizeof starts);
    emulated_own(docs, sizeof docs, 0, 0);
    call_expect_refused("documents, cpu", ATTN_BACKEND_CPU, &d, ATTN_UNSUPPORTED,
                        "query_docs: lies in memory of device 0, which the cpu");
    emulated_own(docs, sizeof docs, -1, 0);
    d = call_desc();
    call_move(0, 0);
    call_expect_result("lengths of keys", ATTN_BACKEND_AUTO, &d);
    emulated_own(cu_q, sizeof cu_q, 0, 0);
    call_expect_result("all lengths", ATTN_BACKEND_AUTO, &d);
    emulated_own(cu_q, sizeof cu_q, 1, 0);
    call_expect_refused("lengths on two devices", ATTN_BACKEND_AUTO, &d, ATTN_INVALID_CONFLICT,
                        "query.cu_seqlens: lies in memory of device 1");
    emulated_own(cu_q, sizeof cu_q, 0, 1);
    call_expect_result("managed lengths", ATTN_BACKEND_AUTO, &d);
    emulated_own(cu_q, 0, -1, 0);
    for (int n = -1; n < 1; n++) {
        d.key.max_seqlen = n;
        call_expect_refused("no bound", ATTN_BACKEND_AUTO, &d, ATTN_INVALID_LENGTHS,
                            "key.max_seqlen: ");
    }
    d.key.max_seqlen = INT64_C(1) << 50;
    call_expect_result("a far bound", ATTN_BACKEND_AUTO, &d);

    EXPECT(attn_workspace_size(NULL, &d, ATTN_PASS_FORWARD, &whole) == ATTN_OK, "size: \"%s\"",
           attn_last_message(NULL));
    d.q.data = d.k.data = d.v.data = NULL;
    d.out.data = d.lse.data = NULL;
    EXPECT(attn_workspace_size(NULL, &d, ATTN_PASS_FORWARD, &bytes) == ATTN_OK && bytes == whole &&
               bytes > 0,
           "size without tensors: \"%s\", %zu, not %zu", attn_last_message(NULL), bytes, whole);
    emulated_own(cu_k, 0, -1, 0);

    d = call_desc();
    d.bias.data = bias;
    d.bias_offset.data = at;
    emulated_own(at, sizeof at, 0, 0);
    emulated_own(bias, sizeof bias, 0, 0);
    call_expect_refused("no extent", ATTN_BACKEND_AUTO, &d, ATTN_INVALID_CONFLICT,
                        "bias_elements: 0");
    emulated_own(at, 0, -1, 0);
    emulated_own(bias, 0, -1, 0);
    call_move(-1, 0);
}

/* What attn_workspace_status() says before, after and without a call. */
static void test_status(void)
{
    attn_desc d = call_desc();
    void *room;

    EXPECT(attn_workspace_status(NULL, NULL, ATTN_PASS_FORWARD) == ATTN_INVALID_NULL &&
               attn_workspace_status(NULL, &d, (attn_pass)2) == ATTN_INVALID_ENUM,
           "no descriptor, no pass");
    EXPECT(attn_workspace_status(NULL, &d, ATTN_PASS_FORWARD) == ATTN_OK, "host memory: \"%s\"",
           attn_last_message(NULL));
    call_move(0, 0);
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
    call_fill();

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
    call_move(-1, 0);
    call_fill();
}

static void test_workspaces(void)
{
    attn_desc d = call_desc();
    void *room;
    d.workspace_bytes = 1 << 20;
    d.workspace = aligned_alloc(64, d.workspace_bytes);
    call_expect_result("own workspace", ATTN_BACKEND_CUDA, &d);
    cudaMalloc(&room, d.workspace_bytes);
    call_move(0, 0);
    call_expect_refused("host workspace", ATTN_BACKEND_AUTO, &d, ATTN_INVALID_WORKSPACE,
                        "workspace");
    free(d.workspace);
    d.workspace = room;
    call_fill();
    EXPECT(attn_forward(NULL, &d) == ATTN_OK && cudaStreamSynchronize(NULL) == cudaSuccess &&
               call_as_expected() && emulated_allocations() == 1,
           "workspace on the device: \"%s\"", attn_last_message(NULL));
    call_fill();
    call_move(-1, 0);
    cudaFree(room);
}

/* The CPU's workspace is the host's, or managed, wherever tensors that it can read lie. */
static void test_cpu_workspaces(void)
{
    attn_desc d = call_desc();
    d.workspace_bytes = 1 << 20;
    d.workspace = aligned_alloc(64, d.workspace_bytes);
    call_move(0, 1);
    attn_context *c = context_of(ATTN_BACKEND_CPU);
    for (int managed = 0; managed < 2; managed++) {
        emulated_own(d.workspace, d.workspace_bytes, managed ? 0 : -1, managed);
        EXPECT(attn_forward(c, &d) == ATTN_OK, "cpu, managed tensors, %s workspace: \"%s\"",
               managed ? "managed" : "host", attn_last_message(c));
        call_fill();
    }
    attn_context_destroy(c);
    emulated_own(d.workspace, d.workspace_bytes, 0, 0);
    call_expect_refused("cpu, managed tensors, a device's workspace", ATTN_BACKEND_CPU, &d,
                        ATTN_INVALID_WORKSPACE, "workspace");
    emulated_own(d.workspace, 0, -1, 0);
    free(d.workspace);
    call_move(-1, 0);
}

static void test_devices(void)
{
    const attn_desc d = call_desc();
    emulated_set_machine((struct emulated_machine){0, 80, 166912});
    call_expect_refused("no device", ATTN_BACKEND_CUDA, &d, ATTN_NO_DEVICE,
                        "no CUDA-capable device");
    EXPECT(call_serving(ATTN_BACKEND_AUTO, &d) == ATTN_BACKEND_CPU, "no device, and not the CPU");
    emulated_set_machine((struct emulated_machine){1, 75, 65536});
    call_expect_refused("an old device", ATTN_BACKEND_CUDA, &d, ATTN_NO_DEVICE, "7.5");
    emulated_set_machine((struct emulated_machine){1, 80, 1024});
    call_expect_refused("little shared memory", ATTN_BACKEND_CUDA, &d, ATTN_UNSUPPORTED, "1024");
    emulated_set_machine((struct emulated_machine){2, 86, 99 << 10});
    call_expect_result("a device again", ATTN_BACKEND_CUDA, &d);
}

/* Calls without a token, whose arrays are the device's all the same. */
static void test_empty(void)
{
    static int32_t docs[4];
    attn_desc d = attn_desc_init();
    d.batch = 2;
    d.heads_q = d.head_dim = 1;
    d.q.data = now.q;
    d.k.data = now.k;
    d.v.data = now.v;
    d.out.data = now.out;
    d.query_docs.data = d.key_docs.data = docs;
    call_move(0, 0);
    emulated_own(docs, sizeof docs, 0, 0);
    EXPECT(attn_forward(NULL, &d) == ATTN_OK && call_untouched(), "nothing, on a device: \"%s\"",
           attn_last_message(NULL));
    EXPECT(call_serving(ATTN_BACKEND_AUTO, &d) == ATTN_BACKEND_CUDA,
           "nothing, on a device: not to it");
    emulated_own(docs, sizeof docs, -1, 0);
    d.key.seqlen = 2; /* and no query */
    d.query_docs.data = NULL;
    d.key_docs.data = NULL;
    EXPECT(attn_forward(NULL, &d) == ATTN_OK && call_untouched(), "no query, on a device: \"%s\"",
           attn_last_message(NULL));
    call_move(-1, 0);
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
    call_fill();
    test_idle();
    test_contexts();

    attn_desc d = call_desc();
    attn_context *c = context_of(ATTN_BACKEND_CUDA);
    EXPECT(attn_forward(c, &d) == ATTN_OK, "cuda: %s", attn_last_message(c));
    attn_context_destroy(c);
    call_expect();
    EXPECT(!call_untouched(), "nothing was written");
    call_fill();

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
    call_expect_refused("no driver", ATTN_BACKEND_CUDA, &d, ATTN_NO_DEVICE, "no driver");
    EXPECT(attn_forward(NULL, &d) == ATTN_OK, "auto, no driver: %s", attn_last_message(NULL));
    EXPECT(emulated_pinned() == 0, "%ld pieces of pinned memory and events are left",
           emulated_pinned());
    return report_end();
}
