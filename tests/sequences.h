/* SPDX-License-Identifier: BSD-3-Clause */
/* The sequences of a problem, free of any layout: the truth of each, and new problems of them. */
#ifndef TESTS_SEQUENCES_H
#define TESTS_SEQUENCES_H

#include "compare.h"
#include "problem_image.h"
#include "run.h"
#include "truth.h"

struct batch {
    int64_t count;
    struct truth_seq seq[MOST_BATCH];
};

struct batch batch_of(const struct problem *p);
struct batch batch_copy(const struct batch *b);
void batch_free(struct batch *b);

/* How batch_problem() lays sequences out. */
struct arrange {
    bool packed_q, packed_k;
    int64_t spare; /* rows past those that take part, per sequence and at the end: NaN */
    const int64_t *order; /* which sequences, in which order; null: all of them */
    int64_t count;
};

/* A contiguous problem of some of the sequences; LSE asked for. */
void batch_problem(struct problem *p, const struct batch *b, const struct arrange *a);

/* The truth and what the budget allows, in the order of struct result. */
struct judge {
    const struct batch *batch;
    int64_t count;
    int64_t at_out[MOST_BATCH + 1], at_lse[MOST_BATCH + 1]; /* where each sequence starts */
    int64_t hq, dv;
    attn_dtype dtype;
    int orders;                             /* of sums in which the plain loops may be run */
    bool wide[MOST_BATCH];                  /* all of them were */
    long double *out, *lse;                 /* the truth */
    long double *allowed_out, *allowed_lse; /* [count][hq] */
};

/* The batch has to stay. */
void judge_open(struct judge *j, const struct batch *b, int orders);
void judge_close(struct judge *j);

/* Runs the plain loops in all orders, which is otherwise done for those sequences only where a
 * result exceeds what one order allows. */
void judge_widen(struct judge *j);

/* Where a value of a result stands, in words. */
void judge_where(const struct judge *j, enum compare_what what, int64_t index, char *text,
                 size_t size);

/* Whether a result is within the budget; otherwise `why` tells the first value that is not. */
bool judge_result(struct judge *j, const struct result *r, double *worst, char *why,
                  size_t size);

#endif
