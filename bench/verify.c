/* SPDX-License-Identifier: BSD-3-Clause */
#include "verify.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "number.h"

enum result { OUT, LSE, DQ, DK, DV, RESULTS };
static const char *const names[RESULTS] = {"out", "lse", "dq", "dk", "dv"};

/* A head of a result, [D], and the sizes of its terms added up. */
struct head {
    double *sum, *size;
};

struct checking {
    const struct bench_buffers *bb;
    const struct bench_set *set;
    double worst[RESULTS]; /* the largest difference so far */
    double *score;         /* [keys] */
    struct head x, y;
};

/* What a query and a key have to do with each other. */
struct pair {
    double p;        /* the probability */
    double ds, size; /* gradient of their product, and the size of its terms */
};

/* Element 0 of query i of sequence b in q, out and their gradients. */
static int64_t query_at(const struct bench_case *c, int64_t b, int64_t h, int64_t i)
{
    const int64_t first = c->cu_seqlens ? c->cu_seqlens[b] : b * c->seqlen_q;
    return ((first + i) * c->heads_q + h) * c->head_dim;
}

/* The same of key j, for query head h, in k, v and their gradients. */
static int64_t key_at(const struct bench_case *c, int64_t b, int64_t h, int64_t j)
{
    const int64_t first = c->cu_seqlens ? c->cu_seqlens[b] : b * c->seqlen_k;
    return ((first + j) * c->heads_kv + h / (c->heads_q / c->heads_kv)) * c->head_dim;
}

static double lse_of(const struct checking *k, int64_t b, int64_t h, int64_t i)
{
    const struct bench_case *c = k->bb->c;
    const int64_t n = c->cu_seqlens ? h * bench_case_rows_q(c) + c->cu_seqlens[b] + i
                                    : (b * c->heads_q + h) * c->seqlen_q + i;
    return bench_number(k->set->lse, bench_lse_dtype(k->bb->dtype), n);
}

static double dot(const struct bench_buffers *bb, const char *x, int64_t x0, const char *y,
                  int64_t y0)
{
    double sum = 0;
    for (int64_t e = 0; e < bb->c->head_dim; e++)
        sum += bench_number(x, bb->dtype, x0 + e) * bench_number(y, bb->dtype, y0 + e);
    return sum;
}

/* head += factor x; size: that of the factor's terms. */
static void add(const struct bench_buffers *bb, struct head *head, double factor, double size,
                const char *x, int64_t x0)
{
    for (int64_t e = 0; e < bb->c->head_dim; e++) {
        const double number = bench_number(x, bb->dtype, x0 + e);
        head->sum[e] += factor * number;
        head->size[e] += size * fabs(number);
    }
}

static void clear(struct head *head, int64_t d)
{
    for (int64_t e = 0; e < d; e++)
        head->sum[e] = head->size[e] = 0;
}

/* What the feature makes of the score of query i and key j; -inf: hidden. */
static double shaped(const struct bench_buffers *bb, int64_t h, int64_t i, int64_t j, double score)
{
    const int64_t nk = bb->c->seqlen_k, blocks = nk / BENCH_BLOCK;
    const int64_t before = i + nk - bb->c->seqlen_q - j; /* ends line up */
    const float *numbers = bb->extra;
    const uint8_t *bytes = bb->extra;
    bool seen = true;
    switch (bb->c->feature) {
    case BENCH_BIAS: score += (double)numbers[i * nk + j]; break;
    case BENCH_MASK: seen = bytes[i * nk + j]; break;
    case BENCH_BLOCKS: seen = bytes[i / BENCH_BLOCK * blocks + j / BENCH_BLOCK]; break;
    case BENCH_WINDOW: seen = j >= i - BENCH_WIDTH; break;
    case BENCH_ALIBI:
        score -= bench_number(bb->extra, bench_lse_dtype(bb->dtype), h) *
                 (double)(before < 0 ? -before : before);
        break;
    case BENCH_SOFTCAP: score = BENCH_CAP * tanh(score / BENCH_CAP); break;
    case BENCH_WIDE:
    case BENCH_PLAIN: break;
    }
    return seen ? score : -(double)INFINITY;
}

/* The score of query i of sequence b, head h, and key j; -inf: hidden. */
static double score_of(const struct checking *k, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const struct bench_case *c = k->bb->c;
    if (c->causal && j > i + bench_case_nk(c, b) - bench_case_nq(c, b))
        return -(double)INFINITY;
    const double product =
        dot(k->bb, k->set->q, query_at(c, b, h, i), k->set->k, key_at(c, b, h, j));
    return shaped(k->bb, h, i, j, product / sqrt((double)c->head_dim));
}

static struct pair pair_of(const struct checking *k, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const struct bench_case *c = k->bb->c;
    const struct bench_set *set = k->set;
    const int64_t q = query_at(c, b, h, i), v = key_at(c, b, h, j);
    const double score = score_of(k, b, h, i, j);
    if (isinf(score))
        return (struct pair){0, 0, 0};
    const double p = exp(score - lse_of(k, b, h, i));
    const double dp = dot(k->bb, set->dout, q, set->v, v);
    const double mean = dot(k->bb, set->dout, q, set->out, q);
    double slope = p / sqrt((double)c->head_dim);
    if (c->feature == BENCH_SOFTCAP)
        slope *= 1 - score / BENCH_CAP * (score / BENCH_CAP);
    return (struct pair){p, slope * (dp - mean), slope * (fabs(dp) + fabs(mean))};
}

static void note(double *worst, double difference)
{
    if (!(difference <= *worst)) /* so that NaN counts */
        *worst = isnan(difference) ? (double)INFINITY : difference;
}

static void note_head(struct checking *k, enum result result, const char *got, int64_t at,
                      const struct head *head)
{
    for (int64_t e = 0; e < k->bb->c->head_dim; e++)
        note(&k->worst[result], fabs(bench_number(got, k->bb->dtype, at + e) - head->sum[e]) /
                                    (head->size[e] + DBL_MIN));
}

static void check_out(struct checking *k, int64_t b, int64_t h, int64_t i)
{
    const struct bench_case *c = k->bb->c;
    const int64_t nk = bench_case_nk(c, b);
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < nk; j++) {
        k->score[j] = score_of(k, b, h, i, j);
        max = fmax(max, k->score[j]);
    }
    for (int64_t j = 0; j < nk; j++)
        sum += exp(k->score[j] - max);
    clear(&k->x, c->head_dim);
    for (int64_t j = 0; j < nk; j++) {
        const double p = exp(k->score[j] - max) / sum;
        add(k->bb, &k->x, p, p, k->set->v, key_at(c, b, h, j));
    }
    note_head(k, OUT, k->set->out, query_at(c, b, h, i), &k->x);
    if (k->set->lse)
        note(&k->worst[LSE], fabs(lse_of(k, b, h, i) - (max + log(sum))));
}

static void check_dq(struct checking *k, int64_t b, int64_t h, int64_t i)
{
    const struct bench_case *c = k->bb->c;
    clear(&k->x, c->head_dim);
    for (int64_t j = 0; j < bench_case_nk(c, b); j++) {
        const struct pair pair = pair_of(k, b, h, i, j);
        add(k->bb, &k->x, pair.ds, pair.size, k->set->k, key_at(c, b, h, j));
    }
    note_head(k, DQ, k->set->dq, query_at(c, b, h, i), &k->x);
}

/* Key j, of the key/value head that query head h reads. */
static void check_dk_dv(struct checking *k, int64_t b, int64_t h, int64_t j)
{
    const struct bench_case *c = k->bb->c;
    const int64_t group = c->heads_q / c->heads_kv, first = h / group * group;
    clear(&k->x, c->head_dim);
    clear(&k->y, c->head_dim);
    for (int64_t n = first; n < first + group; n++)
        for (int64_t i = 0; i < bench_case_nq(c, b); i++) {
            const struct pair pair = pair_of(k, b, n, i, j);
            add(k->bb, &k->x, pair.ds, pair.size, k->set->q, query_at(c, b, n, i));
            add(k->bb, &k->y, pair.p, pair.p, k->set->dout, query_at(c, b, n, i));
        }
    note_head(k, DK, k->set->dk, key_at(c, b, h, j), &k->x);
    note_head(k, DV, k->set->dv, key_at(c, b, h, j), &k->y);
}

/* The first, the middle or the last of so many. */
static int64_t place(int64_t n, int64_t count) { return n % 3 * (count - 1) / 2; }

static void check_all(struct checking *k)
{
    const struct bench_case *c = k->bb->c;
    for (int64_t n = 0; n < 27; n++) {
        const int64_t b = place(n, c->batch), h = place(n / 3, c->heads_q);
        check_out(k, b, h, place(n / 9, bench_case_nq(c, b)));
        if (k->bb->pass == BENCH_FWD)
            continue;
        check_dq(k, b, h, place(n / 9, bench_case_nq(c, b)));
        check_dk_dv(k, b, h, place(n / 9, bench_case_nk(c, b)));
    }
}

double bench_verify(const struct bench_buffers *bb, const struct bench_set *set, const char **what)
{
    const int64_t d = bb->c->head_dim, keys = bench_case_rows_k(bb->c);
    double *room = malloc((size_t)(keys + 4 * d) * sizeof *room);
    enum result worst = OUT;
    *what = "memory for a check";
    if (!room)
        return INFINITY;
    double *heads = room + keys;
    struct checking k = {bb, set, {0}, room, {heads, heads + d}, {heads + 2 * d, heads + 3 * d}};
    check_all(&k);
    for (enum result r = OUT; r < RESULTS; r++)
        if (k.worst[r] > k.worst[worst])
            worst = r;
    free(room);
    *what = names[worst];
    return k.worst[worst];
}

double bench_tolerance(const struct bench_case *c, attn_dtype dtype)
{
    const double scores = c->feature == BENCH_WIDE ? BENCH_WIDER : 1; /* their errors grow with them */
    switch (dtype) {
    case ATTN_F64: return scores * 1e-13;
    case ATTN_F16: return 2e-3;
    case ATTN_BF16: return 2e-2;
    default: return scores * 1e-5;
    }
}
