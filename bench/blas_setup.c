/* SPDX-License-Identifier: BSD-3-Clause */
#define _GNU_SOURCE /* RTLD_DEFAULT, cpu_set_t */
#include "blas_setup.h"

#include <dlfcn.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

const char *bench_blas_kernel(void)
{
    char *(*corename)(void);
    void *symbol = dlsym(RTLD_DEFAULT, "openblas_get_corename");
    if (!symbol)
        return "blas";
    memcpy(&corename, &symbol, sizeof corename);
    return corename();
}

/* OpenBLAS looks at processor models; for those it does not know it takes kernels without
 * AVX-512. */
static bool kernels_lag(void)
{
#if defined(__x86_64__)
    static const char *const wide[] = {"blas", "SkylakeX", "Cooperlake", "SapphireRapids"};
    const char *kernel = bench_blas_kernel();
    for (size_t n = 0; n < sizeof wide / sizeof wide[0]; n++)
        if (strcasecmp(kernel, wide[n]) == 0)
            return false;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

static bool set(const char *name, const char *value, int quiet)
{
    if (getenv(name) || setenv(name, value, 0) != 0)
        return false;
    if (!quiet)
        fprintf(stderr, "%s=%s\n", name, value);
    return true;
}

/* Lets this thread run where all threads may: with OMP_PROC_BIND it is bound to one place when the
 * program starts, and what it executes would take that for the whole machine. */
static void unbind(void)
{
#ifdef _OPENMP
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int place = 0; place < omp_get_num_places(); place++) {
        int ids[CPU_SETSIZE];
        const int count = omp_get_place_num_procs(place);
        if (count > CPU_SETSIZE)
            return;
        omp_get_place_proc_ids(place, ids);
        for (int i = 0; i < count; i++)
            CPU_SET((size_t)ids[i], &all);
    }
    if (CPU_COUNT(&all) > 0)
        sched_setaffinity(0, sizeof all, &all);
#endif
}

void bench_blas_setup(char **argv, int quiet)
{
    bool again = set("OPENBLAS_NUM_THREADS", "1", quiet);
    const bool lag = kernels_lag();
    if (lag)
        again |= set("OPENBLAS_CORETYPE", "SkylakeX", quiet);
    if (again) {
        unbind();
        execv("/proc/self/exe", argv); /* where this fails the program runs as it is */
    }
    if (lag && !quiet)
        fprintf(stderr, "OPENBLAS_CORETYPE=%s: not the best kernels for this machine\n",
                getenv("OPENBLAS_CORETYPE"));
}
