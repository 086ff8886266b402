/* SPDX-License-Identifier: BSD-3-Clause */
/* A stand-in for a trained model: the same text always gives the same q, k and v. */
#ifndef BENCH_DEMO_MODEL_H
#define BENCH_DEMO_MODEL_H

#include "demo_text.h"

enum { DEMO_HEADS = 8, DEMO_HEAD_DIM = 64, DEMO_WIDTH = DEMO_HEADS * DEMO_HEAD_DIM };

/* q, k, v [tokens, DEMO_WIDTH], packed: each token's letter trigrams hashed to a vector, sines of
 * its place in the sequence added, and the sum projected by three fixed random matrices. False: no
 * memory. */
bool demo_model_qkv(const struct demo_text *t, float *q, float *k, float *v);

#endif
