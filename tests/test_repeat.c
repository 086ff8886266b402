/* SPDX-License-Identifier: BSD-3-Clause */
/* The same bits from run to run, on any number of threads, and inside the caller's own threads. */
#include <stdio.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "compare.h"
#include "gen.h"
#include "report.h"
#include "run.h"

enum { LINE = 1200, CALLERS = 3, COUNTS = 4 };

static const int32_t thread_counts[COUNTS] = {1, 2, 3, 7};

static bool same(const struct result *a, const struct result *b)
{
    for (int n = 0; n < COMPARES; n++)
        if (a->part[n] && compare_bits(a->part[n], b->part[n], a->count[n]) >= 0)
            return false;
    return true;
}

static void report(const struct options *o, const struct problem *p, const struct target *t,
                   bool good, const char *what)
{
    char line[LINE], text[LINE];

    if (good) {
        report_pass();
        return;
    }
    problem_print(p, text, sizeof text);
    report_fail("%s: other bits %s (%s)", run_line(o, p, t, line, sizeof line), what, text);
}

static void check_threads(const struct options *o, const struct problem *p, const struct target *t,
                          const struct result *first)
{
    char what[LINE];

    for (int n = 0; n < 2 * COUNTS; n++) { /* each number twice */
        struct target other = *t;
        struct result r;
        other.context = target_context(t, thread_counts[n % COUNTS]);
        if (!other.context) {
            report_fail("%s: no context", o->program);
            return;
        }
        if (run_or_report(o, p, &other, run_pass(p), &r)) {
            snprintf(what, sizeof what, "on %d threads", (int)thread_counts[n % COUNTS]);
            report(o, p, t, same(first, &r), what);
            result_free(&r);
        }
        attn_context_destroy(other.context);
    }
}

#ifdef _OPENMP
/* Several callers at once, each with a context of its own. */
static void check_parallel(const struct options *o, const struct problem *p,
                           const struct target *t, const struct result *first)
{
    int good = 0, callers = 0;

#pragma omp parallel num_threads(CALLERS) reduction(+ : good, callers)
    {
        struct target own = *t;
        struct result r;
        char why[LINE];

        own.context = target_context(t, 2);
        if (own.context && run_problem(p, &own, run_pass(p), &r, why, sizeof why) == RUN_OK) {
            good += same(first, &r);
            result_free(&r);
        }
        attn_context_destroy(own.context);
        callers++;
    }
    report(o, p, t, good == callers, "inside an OpenMP parallel region");
}
#else
static void check_parallel(const struct options *o, const struct problem *p,
                           const struct target *t, const struct result *first)
{
    (void)o, (void)p, (void)t, (void)first;
    report_skip("calls inside an OpenMP parallel region: built without OpenMP");
}
#endif

static void check_problem(const struct options *o, struct problem *p, struct target *targets,
                          int count)
{
    struct result first;

    for (int t = 0; t < count; t++) {
        if (!targets[t].exact || !run_or_report(o, p, &targets[t], run_pass(p), &first))
            continue;
        check_threads(o, p, &targets[t], &first);
        check_parallel(o, p, &targets[t], &first);
        result_free(&first);
    }
    problem_free(p);
}

int main(int argc, char **argv)
{
    const struct options o = options_parse(argc, argv, "repeat", 150);
    struct target targets[MOST_TARGETS];
    struct problem p;

    report_begin(o.program);
    const int count = targets_open(targets, &o);
    for (int64_t n = 0; n < o.count; n++) {
        o.gen(&p, o.seed + (uint64_t)n);
        check_problem(&o, &p, targets, count);
        gen_backward(&p, o.seed + (uint64_t)n);
        check_problem(&o, &p, targets, count);
    }
    targets_close(targets, count);
    return report_end();
}
