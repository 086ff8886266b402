/* SPDX-License-Identifier: BSD-3-Clause */
/* Null pointers, sizes of structures, the caller's workspace, messages. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "args.h"
#include "args_more.h"
#include "context.h"
#include "expect.h"

static void test_nulls(attn_context *c)
{
    const attn_desc d = sound_desc(PADDED);
    attn_explanation e = attn_explanation_init();
    size_t bytes;
    EXPECT(attn_forward(c, NULL) == ATTN_INVALID_NULL, "attn_forward without a descriptor");
    EXPECT(attn_last_message(c)[0], "no message without a descriptor");
    EXPECT(attn_backward(c, NULL) == ATTN_INVALID_NULL, "attn_backward without a descriptor");
    EXPECT(attn_workspace_size(c, NULL, ATTN_PASS_FORWARD, &bytes) == ATTN_INVALID_NULL,
           "attn_workspace_size without a descriptor");
    EXPECT(attn_workspace_size(c, &d, ATTN_PASS_FORWARD, NULL) == ATTN_INVALID_NULL,
           "attn_workspace_size into nowhere");
    EXPECT(attn_explain(c, NULL, ATTN_PASS_FORWARD, &e) == ATTN_INVALID_NULL,
           "attn_explain without a descriptor");
    EXPECT(attn_explain(c, &d, ATTN_PASS_FORWARD, NULL) == ATTN_INVALID_NULL,
           "attn_explain into nowhere");
    EXPECT(attn_explain(c, &d, (attn_pass)7, &e) == ATTN_INVALID_ENUM, "attn_explain of pass 7");
    EXPECT(attn_workspace_size(c, &d, (attn_pass)-1, &bytes) == ATTN_INVALID_ENUM,
           "attn_workspace_size of pass -1");
    EXPECT(attn_workspace_status(c, NULL, ATTN_PASS_FORWARD) == ATTN_INVALID_NULL,
           "attn_workspace_status without a descriptor");
    EXPECT(attn_workspace_status(c, &d, (attn_pass)2) == ATTN_INVALID_ENUM,
           "attn_workspace_status of pass 2");
    EXPECT(attn_workspace_status(c, &d, ATTN_PASS_FORWARD) == ATTN_OK,
           "attn_workspace_status, host memory: %s", attn_last_message(c));
    EXPECT(attn_workspace_status(c, &d, ATTN_PASS_BACKWARD) == ATTN_INVALID_NULL,
           "attn_workspace_status of gradients of nothing: %s", attn_last_message(c));
    e.size = 8;
    EXPECT(attn_explain(c, &d, ATTN_PASS_FORWARD, &e) == ATTN_INVALID_SIZE,
           "attn_explain into a structure of 8 bytes");
    EXPECT(attn_backward(c, &d) == ATTN_INVALID_NULL, "gradients of nothing: %s",
           attn_last_message(c));
}

static void test_sizes(attn_context *c)
{
    static const size_t unknown[] = {0, 1, 8, sizeof(attn_desc) - 8, sizeof(attn_desc) - 1,
                                     SIZE_MAX};
    const struct buffers before = buf;
    for (size_t n = 0; n < sizeof unknown / sizeof *unknown; n++) {
        attn_desc d = sound_desc(PADDED);
        d.size = unknown[n];
        const attn_status got = attn_forward(c, &d);
        EXPECT(got == ATTN_INVALID_SIZE, "a descriptor of %zu bytes: %s", unknown[n],
               attn_status_name(got));
        EXPECT(strstr(attn_last_message(c), "size") != NULL, "a descriptor of %zu bytes: \"%s\"",
               unknown[n], attn_last_message(c));
    }
    EXPECT(memcmp(&before, &buf, sizeof buf) == 0, "a wrong size: something was written");
}

/* A descriptor of a later header: fields that this library does not know have to be zero. */
static void test_newer(attn_context *c)
{
    struct {
        attn_desc desc;
        int64_t more[4];
    } newer = {sound_desc(PADDED), {0, 0, 0, 0}};
    newer.desc.size = sizeof newer;
    EXPECT(attn_forward(c, &newer.desc) == ATTN_OK, "a newer descriptor, new fields 0: %s",
           attn_last_message(c));
    buffers_fill();
    const struct buffers before = buf;
    newer.more[3] = INT64_C(1) << 56;
    const attn_status got = attn_forward(c, &newer.desc);
    EXPECT(got == ATTN_UNSUPPORTED, "a newer descriptor, a new field set: %s",
           attn_status_name(got));
    EXPECT(memcmp(&before, &buf, sizeof buf) == 0,
           "a newer descriptor, a new field set: something was written");
}

static void test_workspace(attn_context *c, const char *backend)
{
    const struct buffers fresh = buf;
    attn_desc d = sound_desc(PADDED);
    size_t bytes = 0;
    EXPECT(attn_workspace_size(c, &d, ATTN_PASS_FORWARD, &bytes) == ATTN_OK, "%s: no size",
           backend);
    if (bytes == 0 || bytes + 128 > sizeof buf.workspace) {
        report_skip("caller's workspace: %s asks for %zu bytes", backend, bytes);
        return;
    }
    d.workspace = buf.workspace + 8;
    d.workspace_bytes = sizeof buf.workspace - 8;
    EXPECT(attn_forward(c, &d) == ATTN_INVALID_WORKSPACE, "%s: misaligned workspace: \"%s\"",
           backend, attn_last_message(c));
    d.workspace = buf.workspace;
    d.workspace_bytes = bytes - 1;
    EXPECT(attn_forward(c, &d) == ATTN_INVALID_WORKSPACE &&
               strstr(attn_last_message(c), "workspace_bytes") != NULL,
           "%s: small workspace: \"%s\"", backend, attn_last_message(c));
    EXPECT(memcmp(&fresh, &buf, sizeof buf) == 0, "%s: wrong workspace: something was written",
           backend);
    d.workspace_bytes = bytes;
    EXPECT(attn_forward(c, &d) == ATTN_OK, "%s: workspace of %zu bytes: %s", backend, bytes,
           attn_last_message(c));
    const size_t rest = sizeof buf.workspace - bytes;
    EXPECT(memcmp(fresh.workspace + bytes, buf.workspace + bytes, rest) == 0,
           "%s: wrote past a workspace of %zu bytes", backend, bytes);
    buffers_fill();
}

static void *wrong_elsewhere(void *unused)
{
    attn_desc d = sound_desc(PADDED);
    d.batch = -5;
    attn_forward(NULL, &d);
    return unused;
}

/* The null context's message is the thread's own. */
static void test_messages(void)
{
    attn_desc d = sound_desc(PADDED);
    pthread_t thread;
    d.head_dim = -9;
    EXPECT(attn_forward(NULL, &d) == ATTN_INVALID_SHAPE, "head_dim -9");
    if (pthread_create(&thread, NULL, wrong_elsewhere, NULL) == 0)
        pthread_join(thread, NULL);
    EXPECT(strstr(attn_last_message(NULL), "-9") != NULL, "another thread's message: \"%s\"",
           attn_last_message(NULL));
    d.head_dim = D;
    EXPECT(attn_forward(NULL, &d) == ATTN_OK && !attn_last_message(NULL)[0],
           "a message after a success: \"%s\"", attn_last_message(NULL));
    buffers_fill();
}

void test_calls(void)
{
    buffers_fill();
    for (int b = ATTN_BACKEND_AUTO; b <= ATTN_BACKEND_CUDA; b++) {
        if ((b == ATTN_BACKEND_EAGER && !eager_built()) ||
            (b == ATTN_BACKEND_CUDA && cuda_status() != ATTN_OK))
            continue;
        attn_context *c = context_of((attn_backend)b);
        test_nulls(c);
        test_sizes(c);
        test_newer(c);
        test_workspace(c, attn_backend_name((attn_backend)b));
        attn_context_destroy(c);
    }
    test_messages();
}
