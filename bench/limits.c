/* SPDX-License-Identifier: BSD-3-Clause */
#include "limits.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include "timing.h"

#define PROBE_SECONDS 0.004
enum { PEAK_STEPS = 4096 }; /* some 20 microseconds */

int32_t bench_default_threads(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

/* Work done by one thread of the team in one go, in the probe's unit. */
typedef double (*work_fn)(void *arg, int32_t thread, int32_t team);

/* Work per second of a team that repeats `work` for the time of a probe. */
static double team_rate(int32_t threads, work_fn work, void *arg)
{
    double done = 0, first = bench_now() + 1e9, last = 0;
#pragma omp parallel num_threads(threads) reduction(+ : done) reduction(min : first) \
    reduction(max : last)
    {
        int32_t thread = 0, team = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num();
        team = omp_get_num_threads();
#endif
#pragma omp barrier
        first = bench_now();
        do {
            done += work(arg, thread, team);
            last = bench_now();
        } while (last - first < PROBE_SECONDS);
    }
    (void)threads;
    return done / (last - first);
}

static double peak_work(void *arg, int32_t thread, int32_t team)
{
    const bench_peak_fn *peak = arg;
    (void)thread;
    (void)team;
    return (*peak)(PEAK_STEPS);
}

double bench_limit_flops(bench_peak_fn peak, int32_t threads)
{
    return 1e-9 * team_rate(threads, peak_work, &peak);
}

typedef uint64_t block __attribute__((vector_size(64), may_alias));

/* Reads `bytes`, a multiple of 128, at an address aligned to 64; returns something of all of it. */
static uint64_t read_all(const char *data, size_t bytes)
{
    block a = {0}, b = {0};
    for (size_t n = 0; n < bytes; n += 128) {
        __builtin_prefetch(data + n + 4096);
        __builtin_prefetch(data + n + 4096 + 64);
        a ^= *(const block *)(data + n);
        b ^= *(const block *)(data + n + 64);
    }
    a ^= b;
    return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];
}

struct reading {
    const struct bench_set *set;
    size_t kv_bytes;
};

static double read_work(void *arg, int32_t thread, int32_t team)
{
    const struct reading *r = arg;
    const size_t part = r->kv_bytes / (size_t)team / 128 * 128;
    const uint64_t k = read_all(r->set->k + (size_t)thread * part, part);
    const uint64_t v = read_all(r->set->v + (size_t)thread * part, part);
    volatile uint64_t both = k ^ v; /* so that nothing is left out */
    return both == (k ^ v) ? 2.0 * (double)part : 0;
}

double bench_limit_read(struct bench_buffers *b, int32_t threads)
{
    struct reading r = {bench_buffers_turn(b), b->kv_bytes};
    return 1e-9 * team_rate(threads, read_work, &r);
}
