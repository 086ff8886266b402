/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a transformer does with each token by itself, and its gradients, by plain loops over the
 * tokens in their order. Where their rows lie makes no difference to any sum, and rows that are no
 * token's are not touched. Matrices are [inputs][outputs]. Gradients of weights are added to.
 */
#ifndef EXAMPLES_LAYERS_H
#define EXAMPLES_LAYERS_H

#include <stdint.h>

#ifdef BLOCK_F64
typedef double real;
#define REAL_TYPE ATTN_F64
#else
typedef float real;
#define REAL_TYPE ATTN_F32
#endif

/* The rows that have a token, ascending. */
struct tokens {
    const int64_t *row;
    int64_t count;
};

/* y = x w */
void multiply(struct tokens t, const real *x, const real *w, int inputs, int outputs, real *y);

/* dx = dy w^T, dw += x^T dy */
void multiply_back(struct tokens t, const real *x, const real *w, const real *dy, int inputs,
                   int outputs, real *dx, real *dw);

/* y = x / sqrt(mean of x^2) * w */
void normalize(struct tokens t, const real *x, const real *w, int width, real *y);

/* dx += the gradient, as what is normalized goes past the norm too. */
void normalize_back(struct tokens t, const real *x, const real *w, const real *dy, int width,
                    real *dx, real *dw);

/* y = gate / (1 + exp(-gate)) * up */
void apply_gate(struct tokens t, const real *gate, const real *up, int width, real *y);
void apply_gate_back(struct tokens t, const real *gate, const real *up, const real *dy, int width,
                     real *dgate, real *dup);

/* y += x */
void add(struct tokens t, const real *x, int width, real *y);

/* The mean over the tokens of -log softmax(logits)[target], whose gradient takes the place of the
 * logits. targets: by row. */
double cross_entropy(struct tokens t, const int64_t *targets, int width, real *logits);

#endif
