/* SPDX-License-Identifier: BSD-3-Clause */
#include "context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static attn_context *context_with(const attn_options *o)
{
    attn_context *c;
    if (attn_context_create(&c, o) != ATTN_OK) {
        printf("no context: %s\n", attn_last_message(NULL));
        exit(1);
    }
    return c;
}

attn_context *context_of(attn_backend backend)
{
    attn_options o = attn_options_init();
    o.backend = backend;
    return context_with(&o);
}

attn_context *context_of_isa(const char *isa)
{
    attn_options o = attn_options_init();
    o.backend = ATTN_BACKEND_CPU;
    o.isa = isa;
    return context_with(&o);
}

bool context_serves(attn_context *context, const char *isa)
{
    enum { TOKENS = 100 }; /* more than are few */
    static uint16_t x[TOKENS], out[TOKENS];
    attn_explanation e = attn_explanation_init();
    attn_desc d = attn_desc_init();
    d.batch = d.heads_q = d.head_dim = 1;
    d.query.seqlen = d.key.seqlen = TOKENS;
    d.q.data = d.k.data = d.v.data = x;
    d.out.data = out;
    d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = ATTN_BF16;
    attn_explain(context, &d, ATTN_PASS_FORWARD, &e);
    for (int32_t n = 0; n < e.count; n++) {
        const char *const last = strrchr(e.candidates[n].kernel, ' ');
        if (e.candidates[n].backend == ATTN_BACKEND_CPU)
            return last && strcmp(last + 1, isa) == 0;
    }
    return false;
}
