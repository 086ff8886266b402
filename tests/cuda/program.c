/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a program sees of a library with the cuda backend. Without a device: the backend says so, and
 * all else works, also afterwards. With one: the same call on either backend, by a setting.
 */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { S = 5, D = 4 };

static float x[S][D], out[S][D];
static int failed;

#define EXPECT(good, ...) ((good) ? (void)0 : (failed = 1, printf(__VA_ARGS__), (void)putchar('\n')))

static attn_desc desc(void)
{
    attn_desc d = attn_desc_init();
    d.batch = d.heads_q = 1;
    d.head_dim = D;
    d.query.seqlen = d.key.seqlen = S;
    d.q.data = d.k.data = d.v.data = x;
    d.out.data = out;
    return d;
}

/* The status of a call on a backend, by its option or by the environment variable. */
static attn_status call(attn_backend option, const char *environment, char message[256])
{
    attn_options o = attn_options_init();
    attn_context *c;
    o.backend = option;
    if (environment)
        setenv("ATTN_BACKEND", environment, 1);
    attn_status status = attn_context_create(&c, &o);
    unsetenv("ATTN_BACKEND");
    const attn_desc d = desc();
    memset(out, 0xff, sizeof out);
    if (status == ATTN_OK)
        status = attn_forward(c, &d);
    snprintf(message, 256, "%s", attn_last_message(c));
    attn_context_destroy(c);
    return status;
}

static attn_status explained(attn_backend backend)
{
    attn_explanation e = attn_explanation_init();
    const attn_desc d = desc();
    attn_explain(NULL, &d, ATTN_PASS_FORWARD, &e);
    for (int32_t n = 0; n < e.count; n++)
        if (e.candidates[n].backend == backend)
            return e.candidates[n].status;
    return ATTN_NO_BACKEND;
}

int main(void)
{
    char message[256];
    float expected[S][D];
    for (int i = 0; i < S * D; i++)
        x[i / D][i % D] = (float)(i % 7) / 7;

    EXPECT(call(ATTN_BACKEND_CPU, NULL, message) == ATTN_OK, "cpu: %s", message);
    memcpy(expected, out, sizeof out);
    const attn_status there = explained(ATTN_BACKEND_CUDA);
    EXPECT(there == ATTN_OK || there == ATTN_NO_DEVICE, "explain says %s of cuda",
           attn_status_name(there));
    for (int by_name = 0; by_name < 2; by_name++) {
        const attn_status got = by_name ? call(ATTN_BACKEND_DEFAULT, "cuda", message)
                                        : call(ATTN_BACKEND_CUDA, NULL, message);
        EXPECT(got == there, "cuda: %s, \"%s\"", attn_status_name(got), message);
        EXPECT(got == ATTN_OK || strstr(message, "cuda"), "cuda: message \"%s\"", message);
        for (int i = 0; got == ATTN_OK && i < S * D; i++)
            EXPECT(fabsf(out[i / D][i % D] - expected[i / D][i % D]) < 1e-5f, "cuda: %g at %d",
                   (double)out[i / D][i % D], i);
    }
    EXPECT(call(ATTN_BACKEND_AUTO, NULL, message) == ATTN_OK, "auto: %s", message);
    EXPECT(memcmp(out, expected, sizeof out) == 0, "auto has not taken the cpu backend");
    if (there == ATTN_NO_DEVICE)
        printf("no device\n");
    return failed;
}
