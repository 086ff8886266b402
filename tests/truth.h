/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What attention is, by plain loops: one sequence at a time, every (query, key) pair asked by
 * itself whether it is visible. Shares nothing with the library but the names of element types.
 *
 * The truth is computed in long double for f64 and in double for all others. The same loops run in
 * the element type itself give the error of a straightforward computation, which the budget is made
 * of: in a 16-bit type everything is f32, with the probabilities rounded to the type before they
 * meet the values (their sum is taken before that) and the results rounded to it once.
 */
#ifndef TESTS_TRUTH_H
#define TESTS_TRUTH_H

#include <float.h>
#include <stdbool.h>
#include <stdint.h>

#include "attn/attn.h"

/* Numbers over (head, query, key), strides as they work: 0 repeats, and is no stride of an axis
 * that has numbers of its own, even if it is empty. x is null: none are given. */
struct truth_plane {
    double *x;
    int64_t head, query, key, count;
};

/* One sequence. The arrays are dense and hold elements of `dtype` as doubles; what is not asked for
 * is 0 or null. */
struct truth_seq {
    attn_dtype dtype;
    int64_t nq, nk, hq, hkv, d, dv;
    double scale; /* 0: 1 / sqrt(d) */
    bool exact;   /* scores have no rounding, however they are computed: no order of the plain loops
                     moves them, or exponentials, at random */

    bool causal, window;
    attn_align align;
    int64_t left, right; /* of the window; negative: unlimited */
    bool has_prefix;
    int64_t prefix;                   /* causal hides no key before it */
    uint8_t *key_mask, *query_mask;   /* [nk], [nq]: non-zero = attend */
    int64_t *query_docs, *key_docs;   /* [nq], [nk] */
    struct truth_plane mask;          /* non-zero = attend */
    struct truth_plane block;         /* likewise, over blocks of queries and keys */
    int64_t block_q, block_k;

    double softcap;
    struct truth_plane bias;
    attn_dtype bias_type;
    double *slopes, *sink; /* [hq] */

    double dropout; /* with the numbers that it draws by; `number` is that of the sequence */
    uint64_t dropout_seed;
    uint32_t dropout_offset;
    int64_t number;

    double *q;  /* [hq][nq][d] */
    double *kt; /* [hkv][d][nk] */
    double *v;  /* [hkv][nk][dv] */

    /* For the backward pass, else null. */
    double *dout, *dlse; /* [hq][nq][dv], [hq][nq]; dlse may be null */
    double *out, *lse;   /* likewise: what the call is given, which the truth does not look at */
};

/*
 * out [hq][nq][dv]; lse [hq][nq]; probs [hq][nq][nk], as they are before a 16-bit type rounds them;
 * sums [hq][nk], of their columns. probs and sums may be null. In the truth, an infinity in `out`
 * stands for "not finite": an infinite value that a row sees makes its column infinite or NaN, by
 * the weight it gets.
 *
 * TRUTH_OPEN stands where the contract says nothing, and anything is right there:
 * - `out` with a sink of +inf, in columns where a value that is seen is not finite; all of a row
 *   with such a sink and a score that is NaN or +inf;
 * - `out` with a sink of NaN where no score is above -inf;
 * - `out` with a dropout of 1 where the LSE is NaN;
 * - in a row whose LSE is NaN, the probabilities of dropped keys, and of scores of -inf.
 */
struct truth_values {
    long double *out, *lse, *probs, *sums;
};
#define TRUTH_OPEN LDBL_MAX

/* Whether query i of head h attends to key j, scores aside; and the same without the bias, which
 * hides by -inf. */
bool truth_visible(const struct truth_seq *s, int64_t h, int64_t i, int64_t j);
bool truth_allowed(const struct truth_seq *s, int64_t h, int64_t i, int64_t j);

/* Whether the range that causal, its prefix and the window leave to query i has key j in it. */
bool truth_in_band(const struct truth_seq *s, int64_t i, int64_t j);

/* Whether what is visible differs from head to head. */
bool truth_by_head(const struct truth_seq *s);

/* Whether dropout keeps the probability. */
bool truth_kept(const struct truth_seq *s, int64_t h, int64_t i, int64_t j);

static inline double truth_plane_at(const struct truth_plane *p, int64_t h, int64_t i, int64_t j)
{
    return p->x[h * p->head + i * p->query + j * p->key];
}

/* Dense strides of the axes that have numbers of their own, zeroed. */
struct truth_plane truth_plane_open(bool by_head, bool by_query, bool by_key, int64_t heads,
                                    int64_t queries, int64_t keys);

void truth_compute(const struct truth_seq *s, struct truth_values *values);

/*
 * The same loops in the element type. Order 0 takes all sums as they come; any other number names
 * one shuffled order of the head's elements and of the keys, with multiply-adds fused or not, the
 * division by the sum before or after the values, the probabilities as quotients or from the LSE,
 * the scale on the scores or on the query, one order for all keys or one for each, and sums at once
 * or in two or more parts, each with weights that are rounded relative to one of its own, all of
 * which is as plain and as good.
 */
void truth_eager_in_type(const struct truth_seq *s, int order, struct truth_values *values);

/*
 * The gradients of sum(dout * out) + sum(dlse * LSE): dq [hq][nq][d], dk [hkv][nk][d], dv
 * [hkv][nk][dv]. dbias and dsink may be null, are started by truth_none() and added to, as they may
 * sum over sequences: dbias over (head, query, key) with strides of which 0 sums, dsink [hq].
 *
 * TRUTH_NONE stands where nothing is added, which is exactly 0: rows that see no key, or whose LSE
 * is infinite; keys that no other row sees. TRUTH_OPEN stands where the contract says nothing:
 * - where an f32 (f64 for f64) cannot hold the LSE so that weights can be told from it, and where
 *   a score that is NaN or +inf meets a sink of +inf: all of the row, and what it adds to others;
 * - dk, dv and dbias of a key whose score is -inf in a row whose LSE is NaN;
 * - dq of a row that has its LSE from the sink alone, where what its gradients are made of is NaN;
 * - dv with a dropout of 1, under NaN;
 * - dsink where the sink is -inf and the row's gradients are not finite or its LSE is NaN, or a
 *   sink of NaN is all that a row has.
 */
struct truth_gradients {
    long double *dq, *dk, *dv, *dbias, *dsink;
    int64_t bias_head, bias_query, bias_key;
};
#define TRUTH_NONE LDBL_MIN /* the least normal one: processors trap denormals */

void truth_none(long double *x, int64_t n);
void truth_gradients(const struct truth_seq *s, struct truth_gradients *g);

/* The same loops in the element type, from the given out and LSE; orders are those of
 * truth_eager_in_type(), by which the scale may also go to sums or terms, rows and heads come
 * in any order, and probabilities and ds may be left as they are where a 16-bit type could round
 * them. dbias and dsink are left to be rounded. */
void truth_gradients_in_type(const struct truth_seq *s, int order, struct truth_gradients *g);

/* A sequence without arrays of its own: they are freed. And one with copies of them. */
void truth_seq_free(struct truth_seq *s);
struct truth_seq truth_seq_copy(const struct truth_seq *s);

#endif
