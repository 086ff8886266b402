/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef ATTN_CONTEXT_H
#define ATTN_CONTEXT_H

#include "backend.h"
#include "message.h"

struct attn_context {
    struct attn_settings settings;
    struct attn_message message;
    struct attn_ferry ferry;
    uintptr_t keys;
};

/* The context of one call: the caller's, or for null one made of the defaults. Clears
 * the last message. Fails where an environment variable holds nonsense. */
struct attn_call {
    const struct attn_settings *settings;
    struct attn_message *message;
    struct attn_settings fallback;
};
attn_status attn_call_begin(struct attn_call *call, attn_context *context);

#endif
