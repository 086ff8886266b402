/* SPDX-License-Identifier: BSD-3-Clause */
#include "verify.h"

#include <math.h>
#include <stdlib.h>

#include "number.h"

/* row [D] = attention of query i of sequence b, head h; score is scratch for nk numbers. */
static void plain_row(const struct bench_buffers *bb, const struct bench_set *set, int64_t b,
                      int64_t h, int64_t i, double *score, double *row)
{
    const struct bench_case *c = bb->c;
    const int64_t d = c->head_dim, hk = h / (c->heads_q / c->heads_kv);
    const int64_t q0 = c->cu_seqlens ? c->cu_seqlens[b] : b * c->seqlen_q;
    const int64_t k0 = c->cu_seqlens ? c->cu_seqlens[b] : b * c->seqlen_k;
    const int64_t nq = bench_case_nq(c, b), nk = bench_case_nk(c, b);
    const int64_t seen = c->causal ? i + nk - nq + 1 : nk;
    double max = -INFINITY, sum = 0;

    for (int64_t j = 0; j < seen; j++) {
        score[j] = 0;
        for (int64_t e = 0; e < d; e++)
            score[j] +=
                bench_number(set->q, bb->dtype, ((q0 + i) * c->heads_q + h) * d + e) *
                bench_number(set->k, bb->dtype, ((k0 + j) * c->heads_kv + hk) * d + e);
        score[j] /= sqrt((double)d);
        max = fmax(max, score[j]);
    }
    for (int64_t e = 0; e < d; e++)
        row[e] = 0;
    for (int64_t j = 0; j < seen; j++) {
        const double p = exp(score[j] - max);
        sum += p;
        for (int64_t e = 0; e < d; e++)
            row[e] += p * bench_number(set->v, bb->dtype, ((k0 + j) * c->heads_kv + hk) * d + e);
    }
    for (int64_t e = 0; e < d; e++)
        row[e] /= sum;
}

static double row_difference(const struct bench_buffers *bb, const struct bench_set *set, int64_t b,
                             int64_t h, int64_t i, double *score, double *row)
{
    const struct bench_case *c = bb->c;
    const int64_t q0 = c->cu_seqlens ? c->cu_seqlens[b] : b * c->seqlen_q;
    double worst = 0;
    plain_row(bb, set, b, h, i, score, row);
    for (int64_t e = 0; e < c->head_dim; e++) {
        const int64_t n = ((q0 + i) * c->heads_q + h) * c->head_dim + e;
        const double difference = fabs(bench_number(set->out, bb->dtype, n) - row[e]);
        if (!(difference <= worst)) /* so that NaN counts */
            worst = isnan(difference) ? INFINITY : difference;
    }
    return worst;
}

double bench_verify(const struct bench_buffers *bb, const struct bench_set *set)
{
    const struct bench_case *c = bb->c;
    double worst = 0;
    double *score = malloc((size_t)bench_case_rows_k(c) * sizeof *score);
    double *row = malloc((size_t)c->head_dim * sizeof *row);
    for (int64_t n = 0; n < 27 && score && row; n++) { /* first, middle, last of each */
        const int64_t b = n % 3 * (c->batch - 1) / 2;
        const int64_t h = n / 3 % 3 * (c->heads_q - 1) / 2;
        const int64_t i = n / 9 * (bench_case_nq(c, b) - 1) / 2;
        worst = fmax(worst, row_difference(bb, set, b, h, i, score, row));
    }
    if (!score || !row)
        worst = INFINITY;
    free(score);
    free(row);
    return worst;
}

double bench_tolerance(attn_dtype dtype)
{
    switch (dtype) {
    case ATTN_F64: return 1e-13;
    case ATTN_F16: return 2e-3;
    case ATTN_BF16: return 2e-2;
    default: return 1e-5;
    }
}
