/* SPDX-License-Identifier: BSD-3-Clause */
/* What fails on a device and is told; what the library keeps of pinned memory, then and
 * otherwise. */
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "device_call.h"
#include "device_parts.h"
#include "emulator/runtime.h"
#include "expect.h"

/* Each call of the function that attn_forward() makes fails once, and there are `least` of them or
 * more. `later`: a failure that the call may not hear of, but who waits for the stream. */
static void fail_each(const char *function, cudaError_t error, attn_status status, int least,
                      bool later)
{
    enum { MOST = 500 };
    const attn_desc d = call_desc();
    attn_context *c = context_of(ATTN_BACKEND_CUDA);
    int n = 1;
    for (; n < MOST; n++) {
        emulated_fail(function, n, error);
        attn_status got = attn_forward(c, &d);
        EXPECT(cudaGetLastError() == cudaSuccess, "%s, call %d fails: the error stays", function,
               n);
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
        call_fill();
        EXPECT(attn_forward(c, &d) == ATTN_OK && cudaStreamSynchronize(NULL) == cudaSuccess &&
                   call_as_expected(), "%s, call %d fails: then \"%s\"", function, n,
               attn_last_message(c));
        call_fill();
    }
    EXPECT(n > least && n < MOST, "%s: %d failures told", function, n - 1);
    call_fill();
    attn_context_destroy(c);
}

void test_failures(void)
{
    for (int n = -1; n < 3; n++) { /* of the host; of a device; with lengths on it; of another */
        const int device = n < 0 ? -1 : n / 2, lengths = n == 1 ? 0 : -1;
        call_move(-1, 0);
        call_move(device, 0);
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
    call_move(-1, 0);
}

/* Pinned memory is a context's, from its first call on; it is as much as the calls need, and of
 * their device. A call without a context takes its own, and a failure to have it leaves nothing. */
void test_pinned(void)
{
    static const struct {
        const char *function;
        cudaError_t error;
        attn_status status;
    } failures[] = {{"cudaHostAlloc", cudaErrorMemoryAllocation, ATTN_NO_MEMORY},
                    {"cudaEventCreateWithFlags", cudaErrorInvalidValue, ATTN_DEVICE_ERROR}};
    attn_desc d = call_desc(), small = call_desc();
    attn_context *c = context_of(ATTN_BACKEND_CUDA);

    for (int n = 0; n < 4; n++) {
        const int calls = n / 2 + 1;
        emulated_fail(failures[n % 2].function, calls, failures[n % 2].error);
        EXPECT(attn_forward(c, &d) == failures[n % 2].status && emulated_pinned() == 0 &&
                   cudaGetLastError() == cudaSuccess && call_untouched(),
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
        call_fill();
        EXPECT(attn_forward(c, &d) == ATTN_OK && call_as_expected(), "pinned: \"%s\"",
               attn_last_message(c));
    }
    EXPECT(emulated_calls("cudaHostAlloc") == taken + 2 && emulated_pinned() == 4,
           "%ld buffers for three calls, %ld are left", emulated_calls("cudaHostAlloc") - taken,
           emulated_pinned());
    cudaSetDevice(1);
    call_fill();
    EXPECT(attn_forward(c, &d) == ATTN_OK && call_as_expected() &&
               emulated_calls("cudaHostAlloc") == taken + 4 && emulated_pinned() == 4,
           "pinned on another device: \"%s\"", attn_last_message(c));
    cudaSetDevice(0);
    attn_context_destroy(c);
    EXPECT(emulated_pinned() == 0, "a context leaves %ld behind", emulated_pinned());
    setenv("ATTN_BACKEND", "cuda", 1);
    call_fill();
    EXPECT(attn_forward(NULL, &d) == ATTN_OK && call_as_expected() && emulated_pinned() == 0,
           "no context: \"%s\", %ld are left", attn_last_message(NULL), emulated_pinned());
    unsetenv("ATTN_BACKEND");
    call_fill();
}
