/* SPDX-License-Identifier: BSD-3-Clause */
#include "matrix.h"

#include <stdio.h>

#include "report.h"
#include "sequences.h"

enum { LINE = 1200 };

static void check(const struct options *o, const struct problem *p, struct judge *j,
                  struct target *t, const struct pass *pass, double *worst)
{
    char why[LINE], line[LINE], what[LINE];
    struct result r;

    if (!run_or_report(o, p, t, pass->call, &r))
        return;
    if (judge_result(j, &r, worst, why, sizeof why)) {
        report_pass();
    } else {
        problem_print(p, what, sizeof what);
        report_fail("%s: %s (%s)", run_line(o, p, t, line, sizeof line), why, what);
    }
    result_free(&r);
}

static void check_seed(const struct options *o, uint64_t seed, struct target *targets, int count,
                       const struct pass *pass, double *worst)
{
    struct problem p;
    struct judge j;
    char what[LINE];

    pass->gen(&p, seed);
    if (o->verbose) {
        problem_print(&p, what, sizeof what);
        printf("seed %llu: %s\n", (unsigned long long)seed, what);
    }
    struct batch n = batch_of(&p);
    judge_open(&j, &n, o->orders);
    for (int t = 0; t < count; t++)
        check(o, &p, &j, &targets[t], pass, &worst[t]);
    judge_close(&j);
    batch_free(&n);
    problem_free(&p);
}

/* A set that never ran would pass by default. */
static void check_names(const struct target *t)
{
    if (t->served > 0 && t->kernel_named == 0)
        report_fail("%s: no kernel's name tells %s in %ld calls", t->name, t->isa, t->served);
}

void matrix(const struct options *o, struct target *targets, int count, const struct pass *pass)
{
    double worst[MOST_TARGETS] = {0};

    for (int64_t n = 0; n < o->count; n++)
        check_seed(o, o->seed + (uint64_t)n, targets, count, pass, worst);
    for (int t = 0; t < count; t++) {
        check_names(&targets[t]);
        printf("%s%s%s: largest error %.3f of what is allowed\n", targets[t].name,
               targets[t].isa ? " " : "", targets[t].isa ? targets[t].isa : "", worst[t]);
    }
}
