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
#include "context.h"
#include "expect.h"

enum { SMALL = 8192, TOKENS = 40, WIDTH = 32 }; /* bytes; more rows than are few */

static uint16_t x[TOKENS * WIDTH], out[TOKENS * WIDTH];
static float wide[TOKENS * WIDTH], wide_out[TOKENS * WIDTH];

/* Out of equal values are these. before: the next slower set. */
static void call_bf16(const char *isa, const char *before)
{
    attn_context *context = context_of_isa(isa);
    const bool served = context_serves(context, isa), allowed = strcmp(isa, "amxbf16") != 0;
    memset(out, 0xff, sizeof out);
    EXPECT(attn_bidirectional(context, ATTN_BF16, 1, TOKENS, 1, WIDTH, x, x, x, NULL, out) ==
                   ATTN_OK && memcmp(out, x, sizeof x) == 0,
           "%s: %s, or out is wrong", isa, attn_last_message(context));
    EXPECT(served == allowed, "%s: it %s", isa, served ? "served" : "did not serve");
    EXPECT(served || (before && context_serves(context, before)), "%s: %s did not serve for it",
           isa, before ? before : "nothing");
    attn_context_destroy(context);
}

int main(void)
{
    static char memory[SMALL];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
    const char *name, *before = NULL;
    int32_t usable;

    report_begin("signals");
    for (int n = 0; n < TOKENS * WIDTH; n++)
        x[n] = 0x3f80; /* 1 */
    for (int32_t n = 0; attn_isa_name(n, &usable); n++)
        continue; /* asking what there is asks for nothing */
    EXPECT(attn_bidirectional(NULL, ATTN_F32, 1, TOKENS, 1, WIDTH, wide, wide, wide, NULL,
                              wide_out) == ATTN_OK,
           "f32: %s", attn_last_message(NULL));
    if (sigaltstack(&stack, NULL) == 0)
        for (int32_t n = 0; (name = attn_isa_name(n, &usable)) != NULL; n++) {
            if (!usable) {
                report_skip("instruction set %s: not on this machine", name);
                continue;
            }
            call_bf16(name, before);
            before = name;
        }
    else
        report_fail("a stack for signals of %d bytes is no longer allowed", SMALL);
    return report_end();
}
