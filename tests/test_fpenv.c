/* SPDX-License-Identifier: BSD-3-Clause */
/* The caller's floating-point environment is neither used nor lost. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* feenableexcept */
#endif
#include <fenv.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "compare.h"
#include "gen.h"
#include "report.h"
#include "run.h"

enum { LINE = 1200 };

/* All that a call could leave behind. */
struct state {
    unsigned vector; /* control and flags of the vector unit */
    unsigned x87;
    int rounding, flags, traps;
};

#if defined(__aarch64__)
static uint64_t control_now(void)
{
    uint64_t control;

    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return control;
}
#endif

static struct state state_now(void)
{
    struct state s = {0, 0, fegetround(), fetestexcept(FE_ALL_EXCEPT), 0};

#if defined(__x86_64__)
    unsigned short control;
    __asm__ volatile("fnstcw %0" : "=m"(control));
    s.vector = _mm_getcsr();
    s.x87 = control;
#elif defined(__aarch64__)
    s.vector = (unsigned)control_now();
#endif
#if defined(__GLIBC__)
    s.traps = fegetexcept();
#endif
    return s;
}

static bool state_same(const struct state *a, const struct state *b)
{
    return a->vector == b->vector && a->x87 == b->x87 && a->rounding == b->rounding &&
           a->flags == b->flags && a->traps == b->traps;
}

static bool set_flush(void)
{
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040); /* flush to zero, denormals are zero */
    return true;
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(control_now() | UINT64_C(1) << 24));
    return true;
#else
    return false;
#endif
}

static bool set_upward(void) { return fesetround(FE_UPWARD) == 0; }

static bool set_traps(void)
{
#if defined(__GLIBC__)
    return feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW) != -1;
#else
    return false;
#endif
}

static bool set_pending(void) { return feraiseexcept(FE_ALL_EXCEPT) == 0; }

static bool set_all(void) { return set_flush() && set_upward() && set_traps(); }

static const struct mode {
    const char *name;
    bool (*set)(void); /* false: not on this machine */
} modes[] = {{"flush to zero", set_flush}, {"upward rounding", set_upward},
             {"traps", set_traps},         {"pending exceptions", set_pending},
             {"all at once", set_all}};
enum { MODES = sizeof modes / sizeof *modes };

static bool (*now_set)(void);
static bool now_offered, now_kept;
static char now_line[LINE]; /* the running check, for the signal handler */

/* attn_forward in the environment of now_set(). */
static attn_status forward_in(attn_context *context, const attn_desc *desc)
{
    fenv_t own;

    fegetenv(&own);
    fesetenv(FE_DFL_ENV);
    feclearexcept(FE_ALL_EXCEPT);
    now_offered = now_set();
    const struct state before = state_now();
    const attn_status status = attn_forward(context, desc);
    const struct state after = state_now();
    fesetenv(&own);
    now_kept = state_same(&before, &after);
    return status;
}

static void trapped(int signal_number)
{
    static const char text[] = " trapped\n";
    ssize_t n = write(STDOUT_FILENO, now_line, strlen(now_line));

    (void)signal_number;
    n += write(STDOUT_FILENO, text, sizeof text - 1);
    _exit(n > 0 ? 1 : 2);
}

static void report_result(const struct problem *p, const struct result *want,
                          const struct result *got)
{
    char text[LINE];

    if (compare_bits(want->out, got->out, want->n_out) < 0 &&
        (!want->lse || compare_bits(want->lse, got->lse, want->n_lse) < 0)) {
        report_pass();
        return;
    }
    problem_print(p, text, sizeof text);
    report_fail("%s: other bits (%s)", now_line, text);
}

/* Odd environments first: threads that the library starts in them may inherit them. */
static void check(const struct options *o, const struct problem *p, struct target *t)
{
    struct result got[MODES] = {{0}}, want = {0};
    char line[LINE / 2];
    bool ran[MODES] = {false};

    run_line(o, p, t, line, sizeof line);
    for (int n = 0; n < MODES; n++) {
        now_set = modes[n].set;
        snprintf(now_line, sizeof now_line, "FAIL %s, %s:", line, modes[n].name);
        now_offered = true;
        ran[n] = run_or_report(o, p, t, forward_in, &got[n]) && now_offered;
        if (!now_offered)
            report_skip("%s: not on this machine", modes[n].name);
        else if (ran[n] && !now_kept)
            report_fail("%s, %s: the environment was changed", line, modes[n].name);
    }
    if (run_or_report(o, p, t, attn_forward, &want))
        for (int n = 0; n < MODES; n++) {
            snprintf(now_line, sizeof now_line, "%s, %s", line, modes[n].name);
            if (ran[n] && t->exact)
                report_result(p, &want, &got[n]);
        }
    for (int n = 0; n < MODES; n++)
        result_free(&got[n]);
    result_free(&want);
}

int main(int argc, char **argv)
{
    struct options o = options_parse(argc, argv, "fpenv", 400);
    struct target targets[MOST_TARGETS];
    struct problem p;

    o.threads = o.threads > 1 ? o.threads : 2;
    report_begin(o.program);
    signal(SIGFPE, trapped);
    const int count = targets_open(targets, &o);
    for (int64_t n = 0; n < o.count; n++) {
        gen_problem(&p, o.seed + (uint64_t)n);
        for (int t = 0; t < count; t++)
            check(&o, &p, &targets[t]);
        problem_free(&p);
    }
    targets_close(targets, count);
    return report_end();
}
