/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_CONTEXT_H
#define TESTS_CONTEXT_H

#include <stdbool.h>

#include "attn/attn.h"

/* A context with a backend, all else default; ends the program where there is none. */
attn_context *context_of(attn_backend backend);
/* The same of backend cpu, with an instruction set that the machine has. */
attn_context *context_of_isa(const char *isa);

/* Whether the system lets the process use the set, which the context asks for: the library asks the
 * system where a call in bf16 wants it, and a lower set serves where it may not. */
bool context_serves(attn_context *context, const char *isa);

#endif
