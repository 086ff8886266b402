/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A small decoder-only language model on libattn: RMSNorm, attention with grouped heads, rotary
 * positions and a causal mask, RMSNorm, gated MLP. Its weights are drawn from a seed. The same code
 * runs padded and packed batches: only what describes the batch differs.
 */
#ifndef EXAMPLES_MODEL_H
#define EXAMPLES_MODEL_H

#include <attn/attn.h>
#include <stdbool.h>

enum {
    VOCABULARY = 128, /* tokens are ASCII characters */
    WIDTH = 96,
    LAYERS = 4,
    HEADS_Q = 6,
    HEADS_KV = 2,
    HEAD_DIM = 16,
    HIDDEN = 256, /* of the MLP */
    QKV = (HEADS_Q + 2 * HEADS_KV) * HEAD_DIM
};

/* Matrices are [inputs][outputs]. */
struct layer {
    float attention_norm[WIDTH], mlp_norm[WIDTH];
    float qkv[WIDTH][QKV];
    float attention_out[HEADS_Q * HEAD_DIM][WIDTH];
    float gate[WIDTH][HIDDEN], up[WIDTH][HIDDEN], down[HIDDEN][WIDTH];
};

struct model {
    float embedding[VOCABULARY][WIDTH];
    struct layer layers[LAYERS];
    float final_norm[WIDTH];
    float head[WIDTH][VOCABULARY];
};

/* How the rows of a batch make up sequences. */
struct batch {
    int64_t sequences, rows;
    attn_side side;           /* of queries and keys alike */
    const uint8_t *mask;      /* padded: [B, S], 0 = no token; packed: null */
    const int64_t *positions; /* [rows]: place of each token in its sequence */
};

/* Null where there is no memory; free() it. */
struct model *model_make(uint64_t seed);

/* x [rows][WIDTH] = embeddings of the tokens. */
void model_embed(const struct model *m, const uint8_t *tokens, int64_t rows, float *x);

/* logits [rows][VOCABULARY] from x, which is overwritten. On failure false, and attn_last_message()
 * of the context tells why; it is "" where memory was short. */
bool model_run(const struct model *m, attn_context *context, const struct batch *batch, float *x,
               float *logits);

#endif
