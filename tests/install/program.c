/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A program of somebody else's: one packed causal call against plain loops, alone, with
 * floating-point traps on, and from every thread of a parallel region at once.
 */
#define _GNU_SOURCE
#include <attn/attn.h>

#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { B = 3, T = 40, H = 2, D = 16 };
static const int32_t cu[B + 1] = {0, 17, 17, T};
static float q[T * H * D], k[T * H * D], v[T * H * D];
static double truth[T * H * D];

/* Row i of the head whose first element, in token 0 of its sequence, is at `at`. */
static void plain_row(int at, int i)
{
    double denominator = 0, sum[D] = {0};
    for (int j = 0; j <= i; j++) {
        double s = 0;
        for (int c = 0; c < D; c++)
            s += (double)q[at + i * H * D + c] * (double)k[at + j * H * D + c];
        const double p = exp(s / sqrt(D));
        denominator += p;
        for (int c = 0; c < D; c++)
            sum[c] += p * (double)v[at + j * H * D + c];
    }
    for (int c = 0; c < D; c++)
        truth[at + i * H * D + c] = sum[c] / denominator;
}

static void prepare(void)
{
    for (int n = 0; n < T * H * D; n++) {
        q[n] = (float)(n * 7 % 31 - 15) / 8;
        k[n] = (float)(n * 11 % 29 - 14) / 8;
        v[n] = (float)(n * 5 % 37 - 18) / 8;
    }
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (int i = 0; i < cu[b + 1] - cu[b]; i++)
                plain_row((cu[b] * H + h) * D, i);
}

/* 0 if a call on `context` gives the truth. */
static int call(attn_context *context, const char *where)
{
    float *out = malloc(sizeof q);
    int bad = !out;
    const attn_status status =
        out ? attn_varlen(context, ATTN_F32, B, T, T, H, H, D, D, q, k, v, cu, cu, 0, 0, 0, 0, 0, 1,
                          -1, -1, 0, NULL, out, NULL)
            : ATTN_NO_MEMORY;
    for (int n = 0; status == ATTN_OK && n < T * H * D; n++)
        bad += !(fabs((double)out[n] - truth[n]) < 1e-5);
    if (status != ATTN_OK || bad)
        printf("%s: %s, %s, %d elements wrong\n", where, attn_status_name(status),
               attn_last_message(context), bad);
    free(out);
    return status != ATTN_OK || bad;
}

static int call_all(const char *where)
{
    int bad = call(NULL, where);
    attn_options o = attn_options_init();
    attn_context *c = NULL;
    o.threads = 2;
    if (attn_context_create(&c, &o) != ATTN_OK)
        return bad + 1;
    bad += call(c, where);
    attn_context_destroy(c);
    return bad;
}

int main(void)
{
    int bad = 0, teams = 0;
    prepare();
    bad += call_all("alone");
#ifdef __GLIBC__
    feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
    bad += call_all("traps on");
    fedisableexcept(FE_ALL_EXCEPT);
#endif
#ifdef _OPENMP
#pragma omp parallel num_threads(4) reduction(+ : bad, teams)
    {
        teams++;
        bad += call_all("parallel region");
    }
#endif
    printf("attn %s: %d calls at once, %d wrong\n", attn_version(), teams, bad);
    return bad != 0;
}
