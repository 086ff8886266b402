/* SPDX-License-Identifier: BSD-3-Clause */
/* Several flows of control on one thread, switched by hand. */
#ifndef EMULATOR_FIBER_H
#define EMULATOR_FIBER_H

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulator {

struct fiber {
#if defined(__x86_64__)
    void *stack_pointer;
#else
    ucontext_t context;
#endif
};

/* Prepares `f` to call body() on the memory [stack, end); body never returns. */
void fiber_begin(fiber *f, char *stack, char *end, void (*body)());

/* Leaves `from`, which goes on when somebody switches to it, for `to`. */
void fiber_switch(fiber *from, fiber *to);

} // namespace emulator

#endif
