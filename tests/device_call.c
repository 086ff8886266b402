/* SPDX-License-Identifier: BSD-3-Clause */
#include "device_call.h"

#include <string.h>

#include "context.h"
#include "emulator/runtime.h"
#include "expect.h"

struct call_tensors now;
int32_t cu_q[B + 1], cu_k[B + 1];

static struct call_tensors before;
static uint16_t expected[TQ * HQ * D];
static float expected_lse[HQ * TQ];

void call_fill(void)
{
    static const int32_t starts_q[B + 1] = {0, 5, 5, 9}, starts_k[B + 1] = {0, 17, 18, 18};
    for (int n = 0; n < TQ * HQ * D; n++)
        now.q[n] = (uint16_t)(0x3c00 + n * 37 % 512); /* 1 to 2, in f16 */
    for (int n = 0; n < TK * HKV * D; n++) {
        now.k[n] = (uint16_t)(0xb800 + n * 53 % 1024);
        now.v[n] = (uint16_t)(0x3800 + n * 71 % 1024);
    }
    memset(now.out, 0xff, sizeof now.out);
    memset(now.lse, 0xff, sizeof now.lse);
    memcpy(cu_q, starts_q, sizeof cu_q);
    memcpy(cu_k, starts_k, sizeof cu_k);
    before = now;
}

attn_desc call_desc(void)
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
    d.q.data = now.q;
    d.k.data = now.k;
    d.v.data = now.v;
    d.out.data = now.out;
    d.lse.data = now.lse;
    d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = ATTN_F16;
    return d;
}

void call_move(int n, int managed) { emulated_own(&now, sizeof now, n, managed); }

void call_expect(void)
{
    memcpy(expected, now.out, sizeof expected);
    memcpy(expected_lse, now.lse, sizeof expected_lse);
}

bool call_as_expected(void)
{
    return memcmp(now.out, expected, sizeof expected) == 0 &&
           memcmp(now.lse, expected_lse, sizeof expected_lse) == 0;
}

bool call_untouched(void) { return memcmp(&now, &before, sizeof now) == 0; }

void call_expect_refused(const char *what, attn_backend backend, const attn_desc *d,
                         attn_status status, const char *word)
{
    attn_context *c = context_of(backend);
    const attn_status got = attn_forward(c, d);
    EXPECT(got == status && strstr(attn_last_message(c), word),
           "%s: %s, \"%s\"; expected %s and %s", what, attn_status_name(got), attn_last_message(c),
           attn_status_name(status), word);
    EXPECT(call_untouched(), "%s: something was written", what);
    attn_context_destroy(c);
}

void call_expect_result(const char *what, attn_backend backend, const attn_desc *d)
{
    attn_context *c = context_of(backend);
    call_fill();
    const attn_status got = attn_forward(c, d);
    const cudaError_t error = cudaStreamSynchronize(NULL);
    EXPECT(got == ATTN_OK && error == cudaSuccess, "%s: %s, \"%s\", %s", what,
           attn_status_name(got), attn_last_message(c), cudaGetErrorString(error));
    EXPECT(call_as_expected(), "%s: other results", what);
    EXPECT(emulated_allocations() == 0, "%s: %ld allocations are left", what,
           emulated_allocations());
    call_fill();
    attn_context_destroy(c);
}

int call_serving(attn_backend backend, const attn_desc *d)
{
    attn_explanation e = attn_explanation_init();
    attn_context *c = context_of(backend);
    const attn_status status = attn_explain(c, d, ATTN_PASS_FORWARD, &e);
    attn_context_destroy(c);
    return status == ATTN_OK && e.chosen >= 0 ? (int)e.candidates[e.chosen].backend : -1;
}
