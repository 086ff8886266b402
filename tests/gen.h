/* SPDX-License-Identifier: BSD-3-Clause */
/* Problems drawn from a seed to hurt: the same seed gives the same problem everywhere. */
#ifndef TESTS_GEN_H
#define TESTS_GEN_H

#include "problem_image.h"
#include "rng.h"

void gen_problem(struct problem *p, uint64_t seed);

/* The same in 16-bit types, with few rows that see many keys: what it takes for kernels that work
 * on several tiles at once. */
void gen_many_keys(struct problem *p, uint64_t seed);

/* The same backward; and in f64, small and smooth, so that differences tell its gradients. */
void gen_backward(struct problem *p, uint64_t seed);
void gen_smooth(struct problem *p, uint64_t seed);

/* What stands at places that nobody may see. */
enum unseen { UNSEEN_FINITE, UNSEEN_NAN, UNSEEN_INF, UNSEEN_ZERO };

/* Fills them in all inputs; masks and tables of pages get any number. */
void gen_unseen(struct problem *p, enum unseen what, struct rng *r);

/* Parts of gen_problem(). */
void gen_layout(struct problem *p, struct rng *r); /* places the tensors, makes their buffers */
void gen_values(struct problem *p, struct rng *r); /* fills what is seen */
void gen_token_mask(uint8_t *mask, int64_t n, struct rng *r); /* hides some of n tokens */

/* The same for what plain problems have not, in the order in which they are called: keys in pages,
 * before anything has a buffer; features, after those of plain problems; their layout. */
void gen_pages(struct problem *p, struct rng *r);
void gen_features(struct problem *p, struct rng *r);
void gen_layout_more(struct problem *p, struct rng *r);
void gen_scores(struct problem *p, struct rng *r); /* bias, slopes, sinks: part of features */

/* The same for the backward pass: tensors and their buffers; then, once everything has its role,
 * dout and dlse; then out and LSE, as the truth has them. */
void gen_gradients(struct problem *p, struct rng *r);
void gen_gradient_values(struct problem *p, struct rng *r);
void gen_results(struct problem *p);

/* Places a tensor, drawn as q or as out is, with its buffer; or one number to a query and head. */
struct tensor gen_input(struct problem *p, enum buffer_name buffer, attn_dtype type,
                        const struct side *s, int64_t heads, int64_t width, struct rng *r);
struct tensor gen_output(struct problem *p, enum buffer_name buffer, attn_dtype type,
                         const struct side *s, int64_t heads, int64_t width, struct rng *r);
struct tensor gen_numbers(struct problem *p, enum buffer_name buffer, struct rng *r);
/* dq, dk and dv in one buffer, where q, k and v could be and chance has it. */
bool gen_fused(struct problem *p, struct rng *r);

/* Places a tensor of `dtype` over scores, of these extents, that repeats over some axes, and makes
 * its buffer. */
struct plane gen_plane(struct problem *p, enum buffer_name name, attn_dtype dtype, int64_t rows,
                       int64_t columns, struct rng *r);

/* The same over given axes. */
struct plane gen_plane_over(struct problem *p, enum buffer_name name, attn_dtype dtype,
                            int64_t rows, int64_t columns, const bool axes[4], struct rng *r);

/* A tensor of this shape, contiguous in the way a call assumes when told no strides. */
struct tensor gen_contiguous(enum buffer_name buffer, attn_dtype type, const struct side *s,
                             int64_t heads, int64_t width);
/* One number to a token and head likewise: [B, H, S] or [H, T]. */
struct tensor gen_contiguous_numbers(enum buffer_name buffer, attn_dtype type,
                                     const struct side *s, int64_t heads);
/* The probabilities likewise, with their buffer. */
void gen_contiguous_probs(struct problem *p);

#endif
