/* SPDX-License-Identifier: BSD-3-Clause */
/* A sequence whose attention was computed piece by piece, against the truth of the whole. */
#ifndef TESTS_WHOLE_H
#define TESTS_WHOLE_H

#include "strided.h"
#include "truth.h"

struct whole {
    struct truth_seq s; /* causal, bottom-right, unless it is changed */
    double *out, *lse;  /* what was computed: [hq][nq][dv], [hq][nq] */
    double *sums;       /* and key_sums, [hq][nk]; whole_faults() looks at them if `summed` */
    bool summed;
    struct truth_values truth; /* once it is known */
    long double *out_allowed, *lse_allowed, *sums_allowed; /* [hq], likewise */
    int orders; /* of the plain loops that these go by so far */
};

struct whole whole_make(attn_dtype dtype, int64_t nq, int64_t nk, int64_t hq, int64_t hkv,
                        int64_t d, int64_t dv);
void whole_free(struct whole *w);

/* Query i is that of row `token` of the tensor's sequence b; key and value j likewise; the result
 * of query i likewise. */
void whole_query(struct whole *w, int64_t i, const struct strided *q, int64_t b, int64_t token);
void whole_key(struct whole *w, int64_t j, const struct strided *k, const struct strided *v,
               int64_t b, int64_t token);
void whole_result(struct whole *w, int64_t i, const struct strided *out, const struct strided *lse,
                  int64_t b, int64_t token);

/* Heads whose out or LSE is not within the budget (compare.h). After the first call only results
 * may change. */
int64_t whole_faults(struct whole *w);

#endif
