/* SPDX-License-Identifier: BSD-3-Clause */
/* The line of English that goes with a status. */
#ifndef ATTN_MESSAGE_H
#define ATTN_MESSAGE_H

#include "attn/attn.h"

struct attn_message {
    char text[256];
};

/* Writes the message, in the manner of printf, and returns the status. */
attn_status attn_say(struct attn_message *m, attn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
