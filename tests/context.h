/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_CONTEXT_H
#define TESTS_CONTEXT_H

#include "attn/attn.h"

/* A context with a backend, all else default; ends the program where there is none. */
attn_context *context_of(attn_backend backend);

#endif
