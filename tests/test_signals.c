/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A thread whose stack for signals is small. Linux gives no AMX to a process that has one, and no
 * such stack to one that has AMX: the library is not to ask before a call wants it, and to do
 * without where it is refused.
 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* sigaltstack */
#endif
#include <signal.h>
#include <string.h>

#include "attn/attn.h"
#include "expect.h"

enum { SMALL = 8192, TOKENS = 40, WIDTH = 32 }; /* bytes; more rows than are few */

static uint16_t x[TOKENS * WIDTH], out[TOKENS * WIDTH];
static float wide[TOKENS * WIDTH], wide_out[TOKENS * WIDTH];

static attn_desc desc_of(attn_dtype type, const void *from, void *to)
{
    attn_desc d = attn_desc_init();
    d.batch = d.heads_q = 1;
    d.head_dim = WIDTH;
    d.query.seqlen = d.key.seqlen = TOKENS;
    d.q.data = d.k.data = d.v.data = from;
    d.out.data = to;
    d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = type;
    return d;
}

/* Out of equal values are these. */
static void call_bf16(const char *isa)
{
    attn_options o = attn_options_init();
    attn_context *context;
    const attn_desc d = desc_of(ATTN_BF16, x, out);
    attn_explanation e = attn_explanation_init();

    o.isa = isa;
    o.backend = ATTN_BACKEND_CPU;
    EXPECT(attn_context_create(&context, &o) == ATTN_OK, "%s: no context", isa);
    memset(out, 0xff, sizeof out);
    EXPECT(attn_forward(context, &d) == ATTN_OK && memcmp(out, x, sizeof x) == 0,
           "%s: %s, or out is wrong", isa, attn_last_message(context));
    attn_explain(context, &d, ATTN_PASS_FORWARD, &e);
    for (int32_t n = 0; n < e.count; n++)
        if (e.candidates[n].backend == ATTN_BACKEND_CPU)
            EXPECT(!strstr(e.candidates[n].kernel, "amxbf16") || strstr(isa, "emulated"),
                   "%s: \"%s\" served, which is not allowed", isa, e.candidates[n].kernel);
    attn_context_destroy(context);
}

int main(void)
{
    static char memory[SMALL];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
    const char *name;
    int32_t usable;

    report_begin("signals");
    for (int n = 0; n < TOKENS * WIDTH; n++)
        x[n] = 0x3f80; /* 1 */
    for (int32_t n = 0; attn_isa_name(n, &usable); n++)
        report_pass();
    const attn_desc d = desc_of(ATTN_F32, wide, wide_out);
    EXPECT(attn_forward(NULL, &d) == ATTN_OK, "f32: %s", attn_last_message(NULL));
    if (sigaltstack(&stack, NULL) == 0)
        for (int32_t n = 0; (name = attn_isa_name(n, &usable)) != NULL; n++) {
            if (usable)
                call_bf16(name);
            else
                report_skip("instruction set %s: not on this machine", name);
        }
    else
        report_fail("a stack for signals of %d bytes is no longer allowed", SMALL);
    return report_end();
}
