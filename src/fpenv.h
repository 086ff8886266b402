/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The default floating-point environment around a computation: round to nearest, denormals kept,
 * exceptions masked. Vector units are controlled by one register; writing it directly costs a few
 * cycles where fesetenv() costs a hundred, and covers flush-to-zero, which C does not name.
 */
#ifndef ATTN_FPENV_H
#define ATTN_FPENV_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

typedef unsigned int attn_fpenv;

static inline attn_fpenv attn_fpenv_enter(void)
{
    const attn_fpenv saved = _mm_getcsr();
    _mm_setcsr(0x1f80);
    return saved;
}

static inline void attn_fpenv_leave(attn_fpenv saved) { _mm_setcsr(saved); }

#elif defined(__aarch64__)

typedef struct attn_fpenv {
    uint64_t control, status;
} attn_fpenv;

static inline attn_fpenv attn_fpenv_enter(void)
{
    attn_fpenv saved;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved.control));
    __asm__ volatile("mrs %0, fpsr" : "=r"(saved.status));
    __asm__ volatile("msr fpcr, %0" : : "r"(UINT64_C(0)));
    return saved;
}

static inline void attn_fpenv_leave(attn_fpenv saved)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(saved.control));
    __asm__ volatile("msr fpsr, %0" : : "r"(saved.status));
}

#else
#include <fenv.h>

typedef fenv_t attn_fpenv;

static inline attn_fpenv attn_fpenv_enter(void)
{
    fenv_t saved;
    fegetenv(&saved);
    fesetenv(FE_DFL_ENV);
    return saved;
}

static inline void attn_fpenv_leave(attn_fpenv saved) { fesetenv(&saved); }
#endif

#endif
