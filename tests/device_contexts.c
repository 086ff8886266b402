/* SPDX-License-Identifier: BSD-3-Clause */
/* Contexts that a program has made through the driver: calls work in the one that their memory is
 * of, whichever is current, and leave the thread's as it was. */
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "device_parts.h"
#include "emulator/runtime.h"
#include "expect.h"

enum { S = 7, D = 8, WORKSPACE = 1 << 16 };

static struct {
    _Alignas(64) uint16_t q[S * D], k[S * D], v[S * D], out[S * D];
} t;
static struct {
    float x[S * D], out[S * D];
} turned;
static uint16_t expected[S * D];
static float expected_turned[S * D];

static attn_desc desc(void)
{
    attn_desc d = attn_desc_init();
    d.batch = d.heads_q = 1;
    d.head_dim = D;
    d.query.seqlen = d.key.seqlen = S;
    d.q.data = t.q;
    d.k.data = t.k;
    d.v.data = t.v;
    d.out.data = t.out;
    d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = ATTN_F16;
    return d;
}

/* A call of another kind. */
static attn_status turn(void)
{
    attn_rotary_desc d = attn_rotary_desc_init();
    d.batch = d.heads = 1;
    d.head_dim = D;
    d.tokens.seqlen = S;
    d.x.data = turned.x;
    d.out.data = turned.out;
    return attn_rotary(NULL, &d);
}

static void move(int device, void *context)
{
    emulated_own_in(&t, sizeof t, device, context);
    emulated_own_in(&turned, sizeof turned, device, context);
}

static void move_home(void)
{
    emulated_own(&t, 0, -1, 0);
    emulated_own(&turned, 0, -1, 0);
}

static void expect_results(const char *what, attn_context *c)
{
    const attn_desc d = desc();
    void *const before = emulated_get_context();
    int device = -1, after = -1;
    cudaGetDevice(&device);
    memset(t.out, 0xff, sizeof t.out);
    memset(turned.out, 0xff, sizeof turned.out);
    EXPECT(attn_forward(c, &d) == ATTN_OK && cudaStreamSynchronize(NULL) == cudaSuccess &&
               memcmp(t.out, expected, sizeof expected) == 0,
           "%s: \"%s\"", what, attn_last_message(c));
    EXPECT(turn() == ATTN_OK && cudaStreamSynchronize(NULL) == cudaSuccess &&
               memcmp(turned.out, expected_turned, sizeof expected_turned) == 0,
           "%s, rotary: \"%s\"", what, attn_last_message(NULL));
    cudaGetDevice(&after);
    EXPECT((emulated_get_context() == before || !before) && after == device,
           "%s: another context or device after it", what);
}

static void expect_conflict(const char *what, const attn_desc *d, attn_status status,
                            const char *word)
{
    EXPECT(attn_forward(NULL, d) == status && strstr(attn_last_message(NULL), word), "%s: \"%s\"",
           what, attn_last_message(NULL));
}

/* Memory of different contexts, and of none, which goes with any. */
static void test_mixtures(void *own, void *other)
{
    const size_t rest = (size_t)((char *)(&t + 1) - (char *)t.k);
    attn_desc d = desc();
    emulated_own_in(&turned, sizeof turned, 0, NULL);
    emulated_own_in(t.q, sizeof t.q, 0, NULL);
    emulated_own_in(t.k, rest, 0, own);
    expect_results("a pool's memory first", NULL);
    emulated_own_in(t.q, sizeof t.q, 0, own);
    emulated_own_in(t.k, rest, 0, NULL);
    expect_results("a pool's memory last", NULL);
    emulated_own_in(t.k, rest, 0, other);
    expect_conflict("two contexts", &d, ATTN_INVALID_CONFLICT, "in another context than q");
    emulated_own_in(t.k, rest, 0, own);
    d.workspace = aligned_alloc(64, WORKSPACE);
    d.workspace_bytes = WORKSPACE;
    emulated_own_in(d.workspace, WORKSPACE, 0, other);
    expect_conflict("a workspace of another context", &d, ATTN_INVALID_WORKSPACE, "workspace");
    emulated_own(d.workspace, 0, -1, 0);
    free(d.workspace);
    emulated_own(t.k, 0, -1, 0);
    emulated_own(turned.x, sizeof turned.x, 0, 0);
    emulated_own_in(turned.out, sizeof turned.out, 0, own);
    EXPECT(turn() == ATTN_INVALID_CONFLICT && strstr(attn_last_message(NULL), "another context"),
           "rotary, two contexts: \"%s\"", attn_last_message(NULL));
    emulated_own(turned.out, 0, -1, 0);
    move_home();
}

/* The same of a batch helper. */
static void test_gather(void *own)
{
    static const int64_t indices[2] = {1, 0};
    static float x[2] = {3, 4}, out[2];
    emulated_own_in(x, sizeof x, 0, NULL);
    emulated_own_in(out, sizeof out, 0, own);
    EXPECT(attn_gather(NULL, ATTN_F32, 2, 1, x, indices, 2, out) == ATTN_OK &&
               cudaStreamSynchronize(NULL) == cudaSuccess && out[0] == 4 && out[1] == 3,
           "gather, a pool's memory first: \"%s\"", attn_last_message(NULL));
    emulated_own(x, 0, -1, 0);
    emulated_own(out, 0, -1, 0);
}

/* Tensors of the host go through the context that the thread has, with events that are its. */
static void test_staged(void *own, void *other)
{
    attn_options o = attn_options_init();
    attn_context *c = NULL;
    o.backend = ATTN_BACKEND_CUDA;
    EXPECT(attn_context_create(&c, &o) == ATTN_OK, "no context of the library's");
    for (int n = 0; n < 4; n++) {
        emulated_set_context(n % 2 ? other : own);
        expect_results("host memory", c);
    }
    emulated_set_context(NULL);
    expect_results("host memory, no context", c);
    const long taken = emulated_calls("cudaHostAlloc");
    expect_results("host memory, a primary context", c);
    emulated_set_context(NULL);
    expect_results("host memory, no context again", c);
    EXPECT(emulated_calls("cudaHostAlloc") == taken, "%ld buffers more for the same context",
           emulated_calls("cudaHostAlloc") - taken);
    emulated_set_context(NULL);
    attn_context_destroy(c);
    EXPECT(emulated_pinned() == 0, "a context leaves %ld behind", emulated_pinned());
}

void test_contexts(void)
{
    void *const own = emulated_context(0), *const other = emulated_context(0);
    void *const far = emulated_context(1);
    void *const current[] = {NULL, own, other, far};
    for (int n = 0; n < S * D; n++) {
        t.q[n] = (uint16_t)(0x3c00 + n * 37 % 512); /* 1 to 2, in f16 */
        t.k[n] = (uint16_t)(0xb800 + n * 53 % 1024);
        t.v[n] = (uint16_t)(0x3800 + n * 71 % 1024);
        turned.x[n] = (float)(n * 13 % 32);
    }
    for (int n = -1; n < 4; n++) {
        move(0, own);
        emulated_set_context(n < 0 ? own : current[n]);
        if (n < 0) {
            const attn_desc d = desc();
            EXPECT(attn_forward(NULL, &d) == ATTN_OK && turn() == ATTN_OK &&
                       cudaStreamSynchronize(NULL) == cudaSuccess,
                   "a context of one's own: \"%s\"", attn_last_message(NULL));
            memcpy(expected, t.out, sizeof expected);
            memcpy(expected_turned, turned.out, sizeof expected_turned);
            continue;
        }
        expect_results("a context of one's own", NULL);
        move(1, far);
        expect_results("a context of another device", NULL);
    }
    emulated_set_context(NULL);
    EXPECT(!emulated_begun(), "a call begins a primary context");
    for (int n = 0; n < 4; n++) {
        emulated_set_context(current[n]);
        move(1, NULL);
        expect_results("a pool's memory", NULL);
    }
    emulated_set_context(NULL);
    test_mixtures(own, other);
    test_gather(own);
    test_staged(own, other);
}
