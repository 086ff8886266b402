/* SPDX-License-Identifier: BSD-3-Clause */
/* Times the named cases on each backend; see options.c for what is printed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blas_setup.h"
#include "limits.h"
#include "measure.h"
#include "options.h"
#include "verify.h"

/* Who computes a case. */
struct runner {
    attn_backend backend;
    const char *isa;   /* given to the context; null: its own choice */
    const char *limit; /* instruction set that the limit is of */
    const char *label; /* what the isa column says */
    double best[ATTN_BOOL]; /* by element type: the best that the prefill limit has been */
};

struct tally {
    int32_t rows, wrong;
    int32_t checks, right; /* with --check */
};

static const char *best_isa(void)
{
    const char *best = NULL, *name;
    int32_t usable;
    for (int32_t n = 0; (name = attn_isa_name(n, &usable)) != NULL; n++)
        if (usable)
            best = name;
    return best;
}

static attn_context *make_context(const struct bench_options *o, const struct runner *r)
{
    attn_options options = attn_options_init();
    attn_context *context;
    options.backend = r->backend;
    options.threads = o->threads;
    options.isa = r->isa;
    if (attn_context_create(&context, &options) != ATTN_OK) {
        fprintf(stderr, "attnbench: %s\n", attn_last_message(NULL));
        return NULL;
    }
    return context;
}

static void print_row(const struct bench_buffers *b, const struct runner *r,
                      const struct bench_options *o, const struct bench_result *result)
{
    const char *pass = bench_pass_name(b->pass), *backend = attn_backend_name(r->backend);
    printf("%s,%s,%s,%s,%s,%d,%.4f,%.3f,%.2f,%s,%.2f,", b->c->name, pass, backend, r->label,
           bench_dtype_name(b->dtype), (int)o->threads, result->median_ms, result->spread,
           result->rate, bench_case_is_decode(b->c) ? "GB/s" : "GFLOP/s", result->limit);
    if (result->steady)
        printf("%.3f", result->share);
    else
        fprintf(stderr, "%s %s %s: the limit did not stand still beside enough samples; no share\n",
                b->c->name, pass, backend);
    printf("\n");
    fflush(stdout);
}

/* The forward call and the pass on the first set, compared with a plain loop. False: nothing to
 * time. */
static bool check_result(attn_context *context, struct bench_buffers *b, const struct runner *r,
                         struct tally *tally)
{
    const struct bench_set *set = &b->sets[0];
    const char *pass = bench_pass_name(b->pass), *backend = attn_backend_name(r->backend), *what;
    bench_buffers_spoil(b);
    attn_status status = bench_call_forward(context, b, set);
    if (status == ATTN_OK && b->pass != BENCH_FWD)
        status = bench_call(context, b, set);
    if (status != ATTN_OK) {
        fprintf(stderr, "%s %s %s: %s: %s\n", b->c->name, pass, backend, attn_status_name(status),
                attn_last_message(context));
        return false;
    }
    bench_buffers_spread(b);
    const double difference = bench_verify(b, set, &what);
    if (difference <= bench_tolerance(b->c, b->dtype))
        return true;
    fprintf(stderr, "%s %s %s: wrong %s, off by %g\n", b->c->name, pass, backend, what, difference);
    tally->wrong++;
    return false;
}

/* Gradients of 16-bit types are computed in f32, even where the forward pass multiplies such
 * numbers as they are. */
static attn_dtype limit_dtype(const struct bench_buffers *b)
{
    return b->pass == BENCH_FWD || b->dtype == ATTN_F64 ? b->dtype : ATTN_F32;
}

static void run_one(const struct bench_options *o, struct bench_buffers *b, struct runner *r,
                    struct tally *tally)
{
    const attn_dtype dtype = limit_dtype(b);
    double best_read = 0; /* that of reading depends on the buffers */
    struct bench_job job = {.buffers = b, .threads = o->threads, .rounds = o->rounds,
                            .seconds = o->seconds, .peak = bench_peak(r->limit, dtype)};
    struct bench_result result;
    job.best_limit = bench_case_is_decode(b->c) ? &best_read : &r->best[dtype];
    job.context = make_context(o, r);
    const bool right = job.context && check_result(job.context, b, r, tally);
    if (o->check) {
        tally->checks++;
        tally->right += right;
    } else if (right) {
        const attn_status status = bench_measure(&job, &result);
        if (status == ATTN_OK) {
            print_row(b, r, o, &result);
            tally->rows++;
        } else {
            fprintf(stderr, "%s: %s\n", b->c->name, attn_status_name(status));
        }
    }
    attn_context_destroy(job.context);
}

/* The cpu backend once per instruction set, the others once. */
static int32_t list_runners(const struct bench_options *o, struct runner *runners)
{
    const char *best = best_isa(), *wanted = getenv("ATTN_ISA");
    int32_t n = 0;
    for (int32_t b = 0; b < o->backend_count; b++) {
        if (o->backends[b] != ATTN_BACKEND_CPU) {
            runners[n++] = (struct runner){o->backends[b], NULL, best, bench_blas_kernel(), {0}};
            continue;
        }
        for (int32_t i = 0; i < o->isa_count || i == 0; i++) {
            const char *isa = o->isa_count ? o->isas[i] : wanted && *wanted ? wanted : best;
            runners[n++] = (struct runner){ATTN_BACKEND_CPU, isa, isa, isa, {0}};
        }
    }
    return n;
}

static void run_pass(const struct bench_options *o, const struct bench_case *c,
                     enum bench_pass pass, struct runner *runners, int32_t count,
                     struct tally *tally)
{
    if (pass != BENCH_FWD && bench_case_is_decode(c)) {
        fprintf(stderr, "%s %s: decode has no backward pass\n", c->name, bench_pass_name(pass));
        return;
    }
    for (int32_t t = 0; t < o->dtype_count; t++) {
        struct bench_buffers buffers;
        if (!bench_buffers_create(&buffers, c, o->dtypes[t], pass, o->cold)) {
            fprintf(stderr, "%s: no memory for its tensors\n", c->name);
            continue;
        }
        for (int32_t r = 0; r < count; r++)
            run_one(o, &buffers, &runners[r], tally);
        bench_buffers_destroy(&buffers);
    }
}

int main(int argc, char **argv)
{
    struct bench_options options;
    struct runner runners[BENCH_MOST * BENCH_MOST];
    struct tally tally = {0};
    int32_t count;
    const int status = bench_options_read(&options, argc, argv);
    if (status >= 0)
        return status;
    if (!options.list)
        bench_blas_setup(argv, 0);

    const struct bench_case *cases = bench_cases(&count);
    const int32_t runner_count = list_runners(&options, runners);
    if (!options.list && !options.check)
        puts("case,pass,backend,isa,dtype,threads,median_ms,spread,rate,unit,limit,share");
    for (int32_t n = 0; n < count; n++) {
        if (!bench_options_match(&options, cases[n].name))
            continue;
        if (options.list)
            puts(cases[n].name);
        for (int32_t p = 0; !options.list && p < options.pass_count; p++)
            run_pass(&options, &cases[n], options.passes[p], runners, runner_count, &tally);
    }
    if (options.check)
        printf("%d of %d results are right\n", (int)tally.right, (int)tally.checks);
    else if (tally.rows == 0 && !options.list)
        fprintf(stderr, "attnbench: nothing was measured\n");
    return tally.wrong > 0 || tally.right < tally.checks ||
           (tally.rows + tally.right == 0 && !options.list);
}
