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
    bool wanted[COMPARES]; /* what is asked for besides `out` */
    bool backward;         /* then: dq, dk, dv, and what else is wanted of gradients */
    struct plane dbias;    /* of which elements there are: see problem_dbias_dense() */
    int64_t dbias_count;
    struct truth_seq seq[MOST_BATCH];
};

struct batch batch_of(const struct problem *p);
struct batch batch_copy(const struct batch *b);
void batch_free(struct batch *b);

/* Backward: out and LSE become those of the truth, as their types hold them. */
void batch_results(struct batch *b);

/* How batch_problem() lays sequences out. */
struct arrange {
    bool packed_q, packed_k;
    int64_t page_size; /* not 0: keys and values in pages of so many tokens, packed_k is not used */
    int64_t spare; /* rows past those that take part, per sequence and at the end: NaN */
    const int64_t *order; /* which sequences, in which order; null: all of them */
    int64_t count;
};

/*
 * A problem of some of the sequences with contiguous tensors; LSE asked for, and of the rest what
 * the batch wants. Biases lie at offsets where both sides are packed and they repeat over no query
 * or key. Dropout draws by the number of the first sequence, and so on from there: with it the
 * order has to be ascending without gaps.
 */
void batch_problem(struct problem *p, const struct batch *b, const struct arrange *a);

/* Moves q, k and v of sequence b between a problem and the arrays of the truth. */
void batch_move(struct problem *p, int64_t b, const struct truth_seq *s, bool into_problem);

/* Of one kind of results: the truth, in the order of struct result, and what the budget allows. */
struct judge_part {
    int64_t at[MOST_BATCH + 1]; /* where each sequence starts; all 0 where it is not wanted */
    int64_t groups; /* that have a budget each: [count][heads], or 1 for all of dbias or dsink */
    int64_t *from;  /* [groups + 1]: where each of them starts */
    long double *truth;
    long double *allowed; /* [groups] */
};

struct judge {
    const struct batch *batch;
    int64_t count;
    int64_t hq, dv;
    attn_dtype dtype;
    int orders;            /* of sums in which the plain loops may be run */
    int ran[MOST_BATCH];   /* so many of them were; backward: the same for all, the first */
    struct judge_part part[COMPARES];
};

/* The batch has to stay. */
void judge_open(struct judge *j, const struct batch *b, int orders);
void judge_close(struct judge *j);

/* Runs the plain loops in twice as many orders; false if they were run in all. Otherwise that is
 * done only where a result exceeds what one order allows. */
bool judge_widen(struct judge *j);

/* Where a value of a result stands, in words. */
void judge_where(const struct judge *j, enum compare_what what, int64_t index, char *text,
                 size_t size);

/* The first kind of results in which a and b differ in a bit, with the place in `where`; COMPARES
 * where none does. Kinds that one of them lacks are left out. */
enum compare_what judge_same(const struct judge *j, const struct result *a, const struct result *b,
                             char *where, size_t size);

/* Whether a result is within the budget; otherwise `why` tells the first value that is not. */
bool judge_result(struct judge *j, const struct result *r, double *worst, char *why,
                  size_t size);

#endif
