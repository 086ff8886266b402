/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A small causal language model with its gradient: RMSNorm, attention with grouped heads and rotary
 * positions, RMSNorm, gated MLP; characters in, logits of the next character out. The same code
 * takes padded and packed batches: only what describes the batch differs.
 */
#ifndef EXAMPLES_BLOCK_H
#define EXAMPLES_BLOCK_H

#include <attn/attn.h>
#include <stddef.h>

#include "layers.h"

enum {
    VOCABULARY = 128, /* tokens are ASCII characters */
    WIDTH = 64,
    LAYERS = 2,
    HEADS_Q = 4,
    HEADS_KV = 2,
    HEAD_DIM = 16,
    HIDDEN = 128, /* of the MLP */
    MIXED = HEADS_Q * HEAD_DIM,
    QKV = MIXED + 2 * HEADS_KV * HEAD_DIM
};

struct layer {
    real attention_norm[WIDTH], mlp_norm[WIDTH];
    real qkv[WIDTH][QKV], attention_out[MIXED][WIDTH];
    real gate[WIDTH][HIDDEN], up[WIDTH][HIDDEN], down[HIDDEN][WIDTH];
};

/* Weights, or what belongs to each of them: gradients, averages. */
struct block {
    real embedding[VOCABULARY][WIDTH];
    struct layer layers[LAYERS];
    real final_norm[WIDTH];
    real head[WIDTH][VOCABULARY];
};
enum { PARAMETERS = sizeof(struct block) / sizeof(real) };

/* How the rows of a batch make up sequences. */
struct batch {
    int64_t sequences, rows;
    attn_side side;                  /* of queries and keys alike */
    struct tokens tokens;            /* the rows in use: all of a packed batch */
    const int64_t *inputs, *targets; /* [rows]: characters; 0 where there is no token */
};

void block_draw(struct block *m, uint64_t seed);

/* Room for the activations and gradients of a batch of so many rows: block_room() reals. */
size_t block_room(int64_t rows);

/* The mean loss over the tokens; *gradient gets the gradient unless it is null. */
attn_status block_loss(const struct block *m, attn_context *context, const struct batch *batch,
                       real *room, double *loss, struct block *gradient);

#endif
