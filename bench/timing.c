/* SPDX-License-Identifier: BSD-3-Clause */
#include "timing.h"

#include <stdlib.h>
#include <time.h>

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(double *numbers, int32_t n, double q)
{
    qsort(numbers, (size_t)n, sizeof *numbers, compare);
    const double place = q * (n - 1);
    const int32_t below = (int32_t)place;
    const int32_t above = below + 1 < n ? below + 1 : below;
    return numbers[below] + (place - below) * (numbers[above] - numbers[below]);
}
