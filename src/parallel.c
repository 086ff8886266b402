/* SPDX-License-Identifier: BSD-3-Clause */
#include "parallel.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include "fpenv.h"

int32_t attn_default_threads(void)
{
#ifdef _OPENMP
    const int n = omp_get_max_threads();
    return n < 1 ? 1 : n;
#else
    return 1;
#endif
}

int32_t attn_most_threads(void)
{
    enum { MOST = 1024 }; /* an OpenMP runtime that cannot start its threads ends the program */
#ifdef _OPENMP
    const int limit = omp_get_thread_limit();
    return limit < MOST ? limit : MOST;
#else
    return 1;
#endif
}

int32_t attn_threads_worth(int64_t bytes, int32_t allowed)
{
    /* 1 MiB takes a thread about 100 us, ten times what starting a team costs. */
    const int64_t worth = bytes >> 20;
    return worth < 1 ? 1 : worth + 1 < allowed ? (int32_t)worth + 1 : allowed;
}

static void one(void (*body)(void *, int32_t, int32_t), void *arg, int32_t thread, int32_t team)
{
    const attn_fpenv env = attn_fpenv_enter();
    body(arg, thread, team);
    attn_fpenv_leave(env);
}

void attn_parallel(int32_t threads, void (*body)(void *arg, int32_t thread, int32_t team),
                   void *arg)
{
#ifdef _OPENMP
    if (threads > 1) {
#pragma omp parallel num_threads(threads)
        one(body, arg, omp_get_thread_num(), omp_get_num_threads());
        return;
    }
#endif
    (void)threads;
    one(body, arg, 0, 1);
}
