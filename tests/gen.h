/* SPDX-License-Identifier: BSD-3-Clause */
/* Problems drawn from a seed to hurt: the same seed gives the same problem everywhere. */
#ifndef TESTS_GEN_H
#define TESTS_GEN_H

#include "problem_image.h"
#include "rng.h"

void gen_problem(struct problem *p, uint64_t seed);

/* What stands at places that nobody may see. */
enum unseen { UNSEEN_FINITE, UNSEEN_NAN, UNSEEN_INF, UNSEEN_ZERO };

/* Fills them in q, k, v and the key mask. */
void gen_unseen(struct problem *p, enum unseen what, struct rng *r);

/* Parts of gen_problem(). */
void gen_layout(struct problem *p, struct rng *r); /* places the tensors, makes their buffers */
void gen_values(struct problem *p, struct rng *r); /* fills what is seen */

/* A tensor of this shape, contiguous in the way a call assumes when told no strides. */
struct tensor gen_contiguous(enum buffer_name buffer, attn_dtype type, const struct side *s,
                             int64_t heads, int64_t width);
/* LSE likewise: [B, H, S] or [H, T]. */
struct tensor gen_contiguous_lse(attn_dtype type, const struct side *s, int64_t heads);

#endif
