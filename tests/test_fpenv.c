/* SPDX-License-Identifier: BSD-3-Clause */
/* The caller's floating-point environment is neither used nor lost. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* feenableexcept */
#endif
#include <fenv.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "compare.h"
#include "gen.h"
#include "memory.h"
#include "report.h"
#include "rng.h"
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
static forward_fn now_call;
static bool now_offered, now_kept;
static char now_line[LINE]; /* the running check, for the signal handler */

/* The call in the environment of now_set(). */
static attn_status call_in(attn_context *context, const attn_desc *desc)
{
    fenv_t own;

    fegetenv(&own);
    fesetenv(FE_DFL_ENV);
    feclearexcept(FE_ALL_EXCEPT);
    now_offered = now_set();
    const struct state before = state_now();
    const attn_status status = now_call(context, desc);
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
    bool same = true;

    for (int n = 0; n < COMPARES; n++)
        same = same && (!want->part[n] ||
                        compare_bits(want->part[n], got->part[n], want->count[n]) < 0);
    if (same) {
        report_pass();
        return;
    }
    problem_print(p, text, sizeof text);
    report_fail("%s: other bits (%s)", now_line, text);
}

/* Odd environments first: threads that the library starts in them may inherit them. */
static void check(const struct options *o, const struct problem *p, struct target *t)
{
    struct result got[MODES], want;
    char line[LINE / 2];
    bool ran[MODES] = {false};

    run_line(o, p, t, line, sizeof line);
    now_call = run_pass(p);
    for (int n = 0; n < MODES; n++) {
        now_set = modes[n].set;
        snprintf(now_line, sizeof now_line, "FAIL %s, %s:", line, modes[n].name);
        now_offered = true;
        ran[n] = run_or_report(o, p, t, call_in, &got[n]) && now_offered;
        if (!now_offered)
            report_skip("%s: not on this machine", modes[n].name);
        else if (ran[n] && !now_kept)
            report_fail("%s, %s: the environment was changed", line, modes[n].name);
    }
    if (run_or_report(o, p, t, now_call, &want))
        for (int n = 0; n < MODES; n++) {
            snprintf(now_line, sizeof now_line, "%s, %s", line, modes[n].name);
            if (ran[n] && t->exact)
                report_result(p, &want, &got[n]);
        }
    for (int n = 0; n < MODES; n++)
        result_free(&got[n]);
    result_free(&want);
}

static void check_all(const struct options *o, struct problem *p, struct target *targets, int count)
{
    for (int t = 0; t < count; t++)
        check(o, p, &targets[t]);
    problem_free(p);
}

/* ------------------------------------------------------------------------------------------------
 * The calls around attention
 * --------------------------------------------------------------------------------------------- */

enum { TOKENS = 700, HEADS = 6, SIZE = 80, ELEMENTS = TOKENS * HEADS * SIZE };

struct blocks {
    float x[ELEMENTS], turned[ELEMENTS], cache[ELEMENTS], merged[ELEMENTS];
    float lse[2][TOKENS * HEADS], merged_lse[TOKENS * HEADS];
};

/* Rotary, append and merge on numbers that raise every exception there is. */
static bool run_blocks(attn_context *context, struct blocks *b)
{
    attn_rotary_desc r = attn_rotary_desc_init();
    r.batch = 1;
    r.heads = HEADS;
    r.head_dim = SIZE;
    r.tokens.seqlen = TOKENS;
    r.x.data = b->x;
    r.out.data = b->turned;

    static const int32_t none;
    attn_append_desc a = attn_append_desc_init();
    a.batch = 1;
    a.heads_kv = HEADS;
    a.head_dim = SIZE;
    a.tokens.seqlen = a.cache.seqlen = TOKENS;
    a.cache.seqused.data = &none;
    a.k.data = b->x;
    a.k_cache.data = b->cache;
    a.rotary = 1;
    a.rotation.base = 500000;

    const attn_input outs[2] = {{.data = b->x}, {.data = b->turned}};
    const attn_input lses[2] = {{.data = b->lse[0]}, {.data = b->lse[1]}};
    attn_merge_desc m = attn_merge_desc_init();
    m.batch = 1;
    m.seqlen = TOKENS;
    m.heads = HEADS;
    m.head_dim = SIZE;
    m.parts = 2;
    m.part_out = outs;
    m.part_lse = lses;
    m.out.data = b->merged;
    m.lse.data = b->merged_lse;
    return attn_rotary(context, &r) == ATTN_OK && attn_cache_append(context, &a) == ATTN_OK &&
           attn_merge(context, &m) == ATTN_OK;
}

static struct blocks *blocks_make(void)
{
    static const float odd[] = {NAN, INFINITY, 3e38F, 1e-42F, 0, -INFINITY, 1e-30F};
    struct blocks *b = test_alloc(sizeof *b);
    struct rng r = rng_seeded(5);
    for (int n = 0; n < ELEMENTS; n++)
        b->x[n] = rng_chance(&r, 5) ? RNG_PICK(&r, odd) : (float)rng_normal(&r);
    for (int n = 0; n < 2 * TOKENS * HEADS; n++)
        b->lse[n % 2][n / 2] = rng_chance(&r, 20) ? RNG_PICK(&r, odd) : (float)rng_normal(&r);
    return b;
}

/* Bits, but for which NaN it is. */
static bool blocks_same(const struct blocks *a, const struct blocks *b)
{
    const float *x = (const float *)a, *y = (const float *)b;
    for (size_t n = 0; n < sizeof *a / sizeof *x; n++)
        if (memcmp(&x[n], &y[n], sizeof *x) != 0 && !(isnan(x[n]) && isnan(y[n])))
            return false;
    return true;
}

static void check_blocks(int32_t threads)
{
    struct blocks *want = blocks_make();
    attn_options o = attn_options_init();
    attn_context *context;
    fenv_t own;
    o.threads = threads;
    const bool made = attn_context_create(&context, &o) == ATTN_OK;
    if (!made || !run_blocks(context, want))
        report_fail("rotary, append, merge: %s", made ? attn_last_message(context) : "no context");
    for (int n = 0; n < MODES && made; n++) {
        struct blocks *got = blocks_make();
        snprintf(now_line, sizeof now_line, "FAIL blocks, %s:", modes[n].name);
        fegetenv(&own);
        fesetenv(FE_DFL_ENV);
        feclearexcept(FE_ALL_EXCEPT);
        const bool offered = modes[n].set();
        const struct state before = state_now();
        const bool ran = run_blocks(context, got);
        const struct state after = state_now();
        fesetenv(&own);
        if (!offered)
            report_skip("%s: not on this machine", modes[n].name);
        else if (!ran || !blocks_same(want, got) || !state_same(&before, &after))
            report_fail("%s %s", now_line,
                        blocks_same(want, got) ? "the environment was changed" : "other bits");
        else
            report_pass();
        free(got);
    }
    attn_context_destroy(context);
    free(want);
}

/* Every so many problems one backward. */
enum { BACKWARD = 8 };

int main(int argc, char **argv)
{
    struct options o = options_parse(argc, argv, "fpenv", 240);
    struct target targets[MOST_TARGETS];
    struct problem p;

    o.threads = o.threads > 1 ? o.threads : 2;
    report_begin(o.program);
    signal(SIGFPE, trapped);
    const int count = targets_open(targets, &o);
    for (int64_t n = 0; n < o.count; n++) {
        gen_problem(&p, o.seed + (uint64_t)n);
        check_all(&o, &p, targets, count);
        if (n % BACKWARD != 0)
            continue;
        gen_backward(&p, o.seed + (uint64_t)n);
        check_all(&o, &p, targets, count);
    }
    targets_close(targets, count);
    check_blocks(1);
    check_blocks(o.threads);
    return report_end();
}
