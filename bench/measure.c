/* SPDX-License-Identifier: BSD-3-Clause */
#include "measure.h"

#include <math.h>
#include <stdlib.h>

#include "limits.h"
#include "timing.h"

#define AGREE 0.05 /* limits before and after a sample differ by no more than this share */
#define NEAR 0.90  /* and are no lower than this share of the best */
enum { TRIES = 5 }; /* samples taken at most, per sample wanted */

struct sample {
    double seconds; /* per call */
    double limit;   /* mean of before and after */
    bool agreed;
};

struct samples {
    struct sample *all;
    int32_t count;
};

static double limit_now(const struct bench_job *job)
{
    if (bench_case_is_decode(job->buffers->c))
        return bench_limit_read(job->buffers, job->threads);
    return bench_limit_flops(job->peak, job->threads);
}

static attn_status time_calls(const struct bench_job *job, int64_t calls, double *seconds)
{
    attn_status status = ATTN_OK;
    const double start = bench_now();
    for (int64_t n = 0; n < calls && status == ATTN_OK; n++)
        status = bench_call(job->context, job->buffers, bench_buffers_turn(job->buffers));
    *seconds = (bench_now() - start) / (double)calls;
    return status;
}

static bool counts(const struct sample *s, double best)
{
    return s->agreed && s->limit >= NEAR * best;
}

static int32_t counted(const struct samples *s, double best)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->count; i++)
        n += counts(&s->all[i], best);
    return n;
}

static attn_status take(const struct bench_job *job, struct samples *s)
{
    double first;
    attn_status status = time_calls(job, 2, &first); /* warm up, and how long a call is */
    const int64_t calls = first > 0 ? (int64_t)ceil(job->seconds / first) : 1;
    double before = limit_now(job);

    while (status == ATTN_OK && s->count < TRIES * job->rounds &&
           counted(s, *job->best_limit) < job->rounds) {
        struct sample *next = &s->all[s->count++];
        status = time_calls(job, calls < 1 ? 1 : calls, &next->seconds);
        const double after = limit_now(job);
        next->limit = (before + after) / 2;
        next->agreed = fabs(before - after) <= AGREE * fmax(before, after);
        if (next->agreed)
            *job->best_limit = fmax(*job->best_limit, next->limit);
        before = after;
    }
    return status;
}

/* Keeps the samples that count and drops the others; keeps all if too few count. */
static bool keep_steady(struct samples *s, double best, int32_t wanted)
{
    if (counted(s, best) < wanted)
        return false;
    int32_t n = 0;
    for (int32_t i = 0; i < s->count; i++)
        if (counts(&s->all[i], best))
            s->all[n++] = s->all[i];
    s->count = n;
    return true;
}

/* work: of one call, in the limit's unit times seconds. room: for as many numbers as samples. */
static void summarize(const struct samples *s, double work, double *room, struct bench_result *r)
{
    const int32_t n = s->count;
    for (int32_t i = 0; i < n; i++)
        room[i] = s->all[i].seconds;
    const double median = bench_quantile(room, n, 0.5);
    r->median_ms = 1e3 * median;
    r->spread = (bench_quantile(room, n, 0.75) - bench_quantile(room, n, 0.25)) / median;
    r->rate = work / median;
    for (int32_t i = 0; i < n; i++)
        room[i] = s->all[i].limit;
    r->limit = bench_quantile(room, n, 0.5);
    for (int32_t i = 0; i < n; i++)
        room[i] = work / s->all[i].seconds / s->all[i].limit;
    r->share = bench_quantile(room, n, 0.5);
}

attn_status bench_measure(const struct bench_job *job, struct bench_result *result)
{
    const struct bench_buffers *b = job->buffers;
    const double work = bench_case_is_decode(b->c) ? bench_case_kv_bytes(b->c, b->element_size)
                                                   : bench_case_flops(b->c, b->pass);
    const size_t most = (size_t)(TRIES * job->rounds);
    struct samples s = {malloc(most * sizeof *s.all), 0};
    double *room = malloc(most * sizeof *room);
    attn_status status = ATTN_NO_MEMORY;
    if (s.all && room)
        status = take(job, &s);
    if (status == ATTN_OK) {
        result->steady = keep_steady(&s, *job->best_limit, job->rounds);
        summarize(&s, 1e-9 * work, room, result);
    }
    free(s.all);
    free(room);
    return status;
}
