/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The cpu backend beside the eager one on random sizes, call by call in one process on the same
 * tensors: where is it behind? A size that looks so is measured again, longer, after all others, so
 * that a loud moment does not count, nor the choice of the worst among many.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blas_setup.h"
#include "buffers.h"
#include "options.h"
#include "timing.h"

static const char usage[] =
    "attnrace: the cpu backend beside eager on random sizes.\n"
    "\n"
    "  --dtype NAME    f32, f64, f16, bf16 (default: f32)\n"
    "  --threads N     of a call (default: 1)\n"
    "  --seed N        draws other sizes (default: 1)\n"
    "  --count N       sizes (default: 1000)\n"
    "  --only N        this size alone, for long\n"
    "  --size TEXT     one of your own: batch,heads_q,heads_kv,queries,keys,head_dim,causal\n"
    "  --small         up to 64 queries, 256 keys\n"
    "  --alone         against the cpu backend on one thread instead of eager\n"
    "  --all           prints every size, not only those behind\n"
    "\n"
    "CSV: ratio is the cpu backend's time over eager's, the median of pairs of samples that\n"
    "alternate; again is the same of those behind, measured once more.\n";

enum { ROUNDS = 9, ROUNDS_AGAIN = 41, MOST_ROUNDS = 401 };

static const double SAMPLE = 40e-6; /* seconds of calls in a sample, at least */
static const double MOST_WORK = 1.5e8; /* multiply-adds of a call, about */

struct race {
    attn_dtype dtype;
    int32_t threads, count, only;
    uint64_t seed;
    bool small, all, alone;
    const char *size;
    attn_context *contexts[2]; /* cpu, eager */
};

struct result {
    double us[2], ratio, again;
};

static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static double uniform(uint64_t *state) { return (double)(next(state) >> 11) * 0x1p-53; }

/* From 1 to most, each power of two as likely as another. */
static int64_t about(uint64_t *state, int64_t most)
{
    return (int64_t)exp(uniform(state) * log((double)most + 0.999));
}

static double work_of(const struct bench_case *c)
{
    const double pairs = (double)(c->batch * c->heads_q * c->seqlen_q) * (double)c->seqlen_k;
    return pairs * (2 * (double)c->head_dim + 10);
}

/* Size n of the race. */
static struct bench_case draw_case(const struct race *race, int32_t n)
{
    static const int64_t common[] = {16, 32, 40, 64, 64, 80, 96, 128, 128, 256};
    uint64_t state = race->seed * UINT64_C(1000003) + (uint64_t)n;
    struct bench_case c;
    do {
        memset(&c, 0, sizeof c);
        c.batch = uniform(&state) < 0.6 ? 1 : about(&state, 8);
        c.heads_kv = about(&state, 16);
        c.heads_q = c.heads_kv * (uniform(&state) < 0.7 ? 1 : about(&state, 8));
        c.head_dim = uniform(&state) < 0.4 ? common[next(&state) % 10] : about(&state, 256);
        c.seqlen_q = about(&state, race->small ? 64 : 2048);
        c.seqlen_k = uniform(&state) < 0.3 ? c.seqlen_q : about(&state, race->small ? 256 : 8192);
        c.causal = uniform(&state) < 0.3;
    } while (work_of(&c) > MOST_WORK);
    return c;
}

static double time_calls(attn_context *context, const struct bench_buffers *b, int64_t calls)
{
    const double start = bench_now();
    for (int64_t n = 0; n < calls; n++)
        if (bench_call(context, b, &b->sets[0]) != ATTN_OK)
            return NAN;
    return (bench_now() - start) / (double)calls;
}

/* Samples of the two by turns. */
static void measure(const struct race *race, const struct bench_buffers *b, int32_t rounds,
                    struct result *r, double *ratio)
{
    double times[2][MOST_ROUNDS], ratios[MOST_ROUNDS];
    int64_t calls[2];
    for (int32_t w = 0; w < 2; w++) {
        time_calls(race->contexts[w], b, 2);
        calls[w] = 1 + (int64_t)(SAMPLE / time_calls(race->contexts[w], b, 2));
    }
    for (int32_t n = 0; n < rounds; n++) {
        for (int32_t i = 0; i < 2; i++) {
            const int32_t w = (n + i) % 2;
            times[w][n] = time_calls(race->contexts[w], b, calls[w]);
        }
        ratios[n] = times[0][n] / times[1][n];
    }
    for (int32_t w = 0; w < 2; w++)
        r->us[w] = 1e6 * bench_quantile(times[w], rounds, 0.5);
    *ratio = bench_quantile(ratios, rounds, 0.5);
}

static bool run_size(const struct race *race, const struct bench_case *c, int32_t rounds,
                     struct result *r, double *ratio)
{
    struct bench_buffers b;
    if (!bench_buffers_create(&b, c, race->dtype, BENCH_FWD, false)) {
        fprintf(stderr, "attnrace: no memory\n");
        return false;
    }
    measure(race, &b, rounds, r, ratio);
    bench_buffers_destroy(&b);
    return true;
}

static void print_size(int32_t n, const struct bench_case *c, const struct result *r)
{
    printf("%d,%d,%d,%d,%d,%d,%d,%d,%.2f,%.2f,%.3f,%.3f\n", (int)n, (int)c->batch,
           (int)c->heads_q, (int)c->heads_kv, (int)c->seqlen_q, (int)c->seqlen_k, (int)c->head_dim,
           (int)c->causal, r->us[0], r->us[1], r->ratio, r->again);
    fflush(stdout);
}

static bool is_behind(const struct result *r) { return r->ratio > 1 && r->again > 1; }

/* All sizes once, then those that look behind once more, for longer. */
static bool take_all(const struct race *race, struct result *results)
{
    for (int32_t n = 0; n < race->count; n++) {
        const struct bench_case c = draw_case(race, n);
        if (!run_size(race, &c, ROUNDS, &results[n], &results[n].ratio))
            return false;
        results[n].again = results[n].ratio;
    }
    for (int32_t n = 0; n < race->count; n++) {
        const struct bench_case c = draw_case(race, n);
        if (results[n].ratio > 1 &&
            !run_size(race, &c, ROUNDS_AGAIN, &results[n], &results[n].again))
            return false;
    }
    return true;
}

static void sum_up(const struct race *race, const struct result *results)
{
    static const double limits[] = {1, 1.02, 1.05, 1.10};
    int32_t by[4] = {0};
    double worst = 0;
    for (int32_t n = 0; n < race->count; n++)
        for (int32_t i = 0; i < 4 && is_behind(&results[n]); i++) {
            by[i] += results[n].again > limits[i];
            worst = fmax(worst, results[n].again);
        }
    fprintf(stderr, "%s, %d threads, %d sizes: %d behind, %d by more than 2 %%, %d 5 %%, %d 10 %%; "
            "worst %.2f\n", bench_dtype_name(race->dtype), (int)race->threads, (int)race->count,
            (int)by[0], (int)by[1], (int)by[2], (int)by[3], worst);
}

static int race_sizes(const struct race *race)
{
    struct result *results = calloc((size_t)race->count, sizeof *results);
    puts("n,batch,heads_q,heads_kv,queries,keys,head_dim,causal,cpu_us,other_us,ratio,again");
    const bool done = results && take_all(race, results);
    for (int32_t n = 0; done && n < race->count; n++) {
        const struct bench_case c = draw_case(race, n);
        if (is_behind(&results[n]) || race->all)
            print_size(n, &c, &results[n]);
    }
    if (done)
        sum_up(race, results);
    free(results);
    return !done;
}

static bool read_size(const char *text, struct bench_case *c)
{
    int n[7];
    memset(c, 0, sizeof *c);
    if (sscanf(text, "%d,%d,%d,%d,%d,%d,%d", &n[0], &n[1], &n[2], &n[3], &n[4], &n[5], &n[6]) != 7)
        return false;
    for (int32_t i = 0; i < 6; i++)
        if (n[i] < 1)
            return false;
    c->batch = n[0];
    c->heads_q = n[1];
    c->heads_kv = n[2];
    c->seqlen_q = n[3];
    c->seqlen_k = n[4];
    c->head_dim = n[5];
    c->causal = n[6] != 0;
    return true;
}

static int race_one(const struct race *race)
{
    struct bench_case c = draw_case(race, race->only);
    struct result r = {{0}, 0, 0};
    if (race->size && !read_size(race->size, &c)) {
        fprintf(stderr, "attnrace: --size: \"%s\" is not seven numbers from 1 on, the last one 0 "
                "or 1\n", race->size);
        return 2;
    }
    if (!run_size(race, &c, ROUNDS_AGAIN, &r, &r.ratio) ||
        !run_size(race, &c, MOST_ROUNDS, &r, &r.again))
        return 1;
    print_size(race->only, &c, &r);
    return 0;
}

static bool make_contexts(struct race *race)
{
    for (int32_t w = 0; w < 2; w++) {
        attn_options options = attn_options_init();
        options.backend = w == 0 || race->alone ? ATTN_BACKEND_CPU : ATTN_BACKEND_EAGER;
        options.threads = w == 0 || !race->alone ? race->threads : 1;
        if (attn_context_create(&race->contexts[w], &options) != ATTN_OK) {
            fprintf(stderr, "attnrace: %s\n", attn_last_message(NULL));
            return false;
        }
    }
    return true;
}

static bool read_dtype(struct race *race, const char *name)
{
    for (int t = ATTN_F32; t <= ATTN_BF16; t++)
        if (strcmp(name, bench_dtype_name((attn_dtype)t)) == 0) {
            race->dtype = (attn_dtype)t;
            return true;
        }
    return false;
}

static bool read_count(const char *text, int32_t least, int32_t *to)
{
    char *end;
    const long number = strtol(text, &end, 10);
    *to = (int32_t)number;
    return end != text && *end == 0 && number >= least && number <= 1000000;
}

static int wrong(const char *option, const char *value)
{
    fprintf(stderr, "attnrace: --%s: \"%s\" is not among its values\n", option, value);
    return 2;
}

/* -1 to go on, else the exit status. */
static int read_option(struct race *race, int option, const char *value)
{
    int32_t seed;
    switch (option) {
    case 'd': return read_dtype(race, value) ? -1 : wrong("dtype", value);
    case 't': return read_count(value, 1, &race->threads) ? -1 : wrong("threads", value);
    case 's':
        if (!read_count(value, 0, &seed))
            return wrong("seed", value);
        race->seed = (uint64_t)seed;
        return -1;
    case 'c': return read_count(value, 1, &race->count) ? -1 : wrong("count", value);
    case 'o': return read_count(value, 0, &race->only) ? -1 : wrong("only", value);
    case 'z': race->size = value; return -1;
    case 'm': race->small = true; return -1;
    case 'a': race->all = true; return -1;
    case 'l': race->alone = true; return -1;
    case 'h': fputs(usage, stdout); return 0;
    default: fputs("attnrace: --help tells the options\n", stderr); return 2;
    }
}

int main(int argc, char **argv)
{
    static const struct option names[] = {
        {"dtype", required_argument, NULL, 'd'}, {"threads", required_argument, NULL, 't'},
        {"seed", required_argument, NULL, 's'},  {"count", required_argument, NULL, 'c'},
        {"only", required_argument, NULL, 'o'},  {"size", required_argument, NULL, 'z'},
        {"small", no_argument, NULL, 'm'},       {"all", no_argument, NULL, 'a'},
        {"alone", no_argument, NULL, 'l'},       {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0}};
    struct race race = {.dtype = ATTN_F32, .threads = 1, .count = 1000, .only = -1, .seed = 1};
    for (int option; (option = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        const int status = read_option(&race, option, optarg);
        if (status >= 0)
            return status;
    }
    bench_blas_setup(argv, 0);
    int status = 1;
    if (make_contexts(&race))
        status = race.only >= 0 || race.size ? race_one(&race) : race_sizes(&race);
    attn_context_destroy(race.contexts[0]);
    attn_context_destroy(race.contexts[1]);
    return status;
}
