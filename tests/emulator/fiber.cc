/* SPDX-License-Identifier: BSD-3-Clause */
#include "emulator/fiber.h"

#include <stdint.h>

namespace emulator {

#if defined(__x86_64__)

/* The registers that a callee keeps (System V ABI), then the address to go on at. */
enum { KEPT = 6 };

extern "C" void emulator_switch(void **from, void *to);
__asm__(".text\n"
        ".type emulator_switch, @function\n"
        "emulator_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size emulator_switch, .-emulator_switch\n");

void fiber_begin(fiber *f, char *stack, char *end, void (*body)())
{
    (void)stack;
    /* body() finds its stack as after a call: 8 bytes below a multiple of 16. */
    void **top = (void **)((uintptr_t)end & ~(uintptr_t)15);
    *--top = nullptr;
    *--top = (void *)body;
    for (int i = 0; i < KEPT; i++)
        *--top = nullptr;
    f->stack_pointer = top;
}

void fiber_switch(fiber *from, fiber *to)
{
    emulator_switch(&from->stack_pointer, to->stack_pointer);
}

#else

void fiber_begin(fiber *f, char *stack, char *end, void (*body)())
{
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = (size_t)(end - stack);
    f->context.uc_link = nullptr;
    makecontext(&f->context, body, 0);
}

void fiber_switch(fiber *from, fiber *to) { swapcontext(&from->context, &to->context); }

#endif

} // namespace emulator
