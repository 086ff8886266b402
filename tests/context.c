/* SPDX-License-Identifier: BSD-3-Clause */
#include "context.h"

#include <stdio.h>
#include <stdlib.h>

attn_context *context_of(attn_backend backend)
{
    attn_options o = attn_options_init();
    attn_context *c;
    o.backend = backend;
    if (attn_context_create(&c, &o) != ATTN_OK) {
        printf("no context: %s\n", attn_last_message(NULL));
        exit(1);
    }
    return c;
}
