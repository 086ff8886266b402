/* SPDX-License-Identifier: BSD-3-Clause */
/* Options of the test programs, and the backends they leave. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"
#include "context.h"
#include "gen.h"
#include "report.h"
#include "run.h"

/* The programs whose forward problems are options.gen's. */
static bool takes_many_keys(const char *name)
{
    static const char *const names[] = {"laws", "matrix", "poison", "repeat"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        if (strcmp(name, names[n]) == 0)
            return true;
    return false;
}

static void usage(const char *name)
{
    fprintf(stderr, "usage: %s [--seed N] [--count N] [--long] [--backend NAME] [--isa NAME] "
                    "[--threads N] [--orders N]%s [-v]\n", name,
            takes_many_keys(name) ? " [--many-keys]" : "");
    exit(2);
}

struct options options_parse(int argc, char **argv, const char *name, int64_t count)
{
    struct options o = {.program = name, .seed = 1, .count = count, .threads = 1,
                        .orders = BUDGET_ORDERS, .gen = gen_problem};
    bool counted = false;

    for (int n = 1; n < argc; n++) {
        const char *word = argv[n];
        if (strcmp(word, "--long") == 0) {
            o.lengthy = true;
        } else if (strcmp(word, "-v") == 0) {
            o.verbose = true;
        } else if (strcmp(word, "--many-keys") == 0 && takes_many_keys(name)) {
            o.gen = gen_many_keys;
        } else if (n + 1 == argc) {
            usage(name);
        } else if (strcmp(word, "--seed") == 0) {
            o.seed = strtoull(argv[++n], NULL, 0);
            o.seed_given = true;
        } else if (strcmp(word, "--count") == 0) {
            o.count = strtoll(argv[++n], NULL, 0);
            counted = true;
        } else if (strcmp(word, "--backend") == 0) {
            o.backend = argv[++n];
        } else if (strcmp(word, "--isa") == 0) {
            o.isa = argv[++n];
        } else if (strcmp(word, "--threads") == 0) {
            o.threads = (int32_t)strtol(argv[++n], NULL, 0);
        } else if (strcmp(word, "--orders") == 0) {
            o.orders = (int)strtol(argv[++n], NULL, 0);
        } else {
            usage(name);
        }
    }
    if (o.seed_given && !counted)
        o.count = 1;
    if (o.lengthy)
        o.count *= 20;
    return o;
}

attn_context *target_context(const struct target *t, int32_t threads)
{
    attn_options o = attn_options_init();
    attn_context *context = NULL;

    o.backend = t->backend;
    o.isa = t->isa;
    o.threads = threads;
    attn_context_create(&context, &o);
    return context;
}

static void target_open(struct target *list, int *count, const struct options *o,
                        attn_backend backend, const char *isa)
{
    struct target t = {.backend = backend, .name = attn_backend_name(backend), .isa = isa,
                       .exact = backend != ATTN_BACKEND_EAGER};

    if (*count == MOST_TARGETS || (o->backend && strcmp(o->backend, t.name) != 0) ||
        (o->isa && (!isa || strcmp(o->isa, isa) != 0)))
        return;
    t.context = target_context(&t, o->threads);
    if (t.context && (!isa || context_serves(t.context, isa))) {
        list[(*count)++] = t;
    } else if (t.context) {
        attn_context_destroy(t.context);
        report_skip("instruction set %s: the system does not allow it", isa);
    } else {
        report_skip("backend %s%s%s: not built in or no device", t.name, isa ? " " : "",
                    isa ? isa : "");
    }
}

/* Whether the cuda backend is built in and has a device, whatever it offers. */
static bool has_device(void)
{
    attn_explanation e = attn_explanation_init();
    attn_desc d = attn_desc_init();
    d.head_dim = 1;
    attn_explain(NULL, &d, ATTN_PASS_FORWARD, &e);
    for (int32_t n = 0; n < e.count; n++)
        if (e.candidates[n].backend == ATTN_BACKEND_CUDA)
            return e.candidates[n].status == ATTN_OK || e.candidates[n].status == ATTN_UNSUPPORTED;
    return false;
}

int targets_open(struct target *list, const struct options *o)
{
    const char *isa;
    int32_t usable;
    int count = 0;

    for (int32_t n = 0; (isa = attn_isa_name(n, &usable)) != NULL; n++) {
        if (usable)
            target_open(list, &count, o, ATTN_BACKEND_CPU, isa);
        else
            report_skip("instruction set %s: not on this machine", isa);
    }
    target_open(list, &count, o, ATTN_BACKEND_EAGER, NULL);
    if (has_device())
        target_open(list, &count, o, ATTN_BACKEND_CUDA, NULL);
    else if (!o->isa && (!o->backend || strcmp(o->backend, "cuda") == 0))
        report_skip("backend cuda: not built in or no device");
    if (count == 0 && !o->isa)
        report_fail("no backend%s%s to run", o->backend ? " " : "", o->backend ? o->backend : "");
    return count;
}

void targets_close(struct target *list, int count)
{
    for (int n = 0; n < count; n++)
        attn_context_destroy(list[n].context);
}

const char *run_line(const struct options *o, const struct problem *p, const struct target *t,
                     char *line, size_t size)
{
    snprintf(line, size, "%s%s --seed %llu --backend %s%s%s", o->program,
             o->gen == gen_many_keys ? " --many-keys" : "", (unsigned long long)p->seed, t->name,
             t->isa ? " --isa " : "", t->isa ? t->isa : "");
    return line;
}
