/* SPDX-License-Identifier: BSD-3-Clause */
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"

/* ------------------------------------------------------------------------------------------------
 * Weights
 * --------------------------------------------------------------------------------------------- */

/* Of a size that keeps the variance of what the matrix multiplies. */
static void draw_matrix(uint64_t *state, float *w, int inputs, int outputs)
{
    const float size = sqrtf(3.0F / (float)inputs);
    for (int n = 0; n < inputs * outputs; n++)
        w[n] = size * draw(state);
}

static void draw_norm(uint64_t *state, float *w)
{
    for (int n = 0; n < WIDTH; n++)
        w[n] = 1 + 0.1F * draw(state);
}

struct model *model_make(uint64_t seed)
{
    struct model *m = malloc(sizeof *m);
    if (!m)
        return NULL;
    draw_matrix(&seed, &m->embedding[0][0], 3, VOCABULARY * WIDTH / 3); /* variance 1 */
    for (int n = 0; n < LAYERS; n++) {
        struct layer *l = &m->layers[n];
        draw_norm(&seed, l->attention_norm);
        draw_norm(&seed, l->mlp_norm);
        draw_matrix(&seed, &l->qkv[0][0], WIDTH, QKV);
        draw_matrix(&seed, &l->attention_out[0][0], HEADS_Q * HEAD_DIM, WIDTH);
        draw_matrix(&seed, &l->gate[0][0], WIDTH, HIDDEN);
        draw_matrix(&seed, &l->up[0][0], WIDTH, HIDDEN);
        draw_matrix(&seed, &l->down[0][0], HIDDEN, WIDTH);
    }
    draw_norm(&seed, m->final_norm);
    draw_matrix(&seed, &m->head[0][0], WIDTH, VOCABULARY);
    return m;
}

/* ------------------------------------------------------------------------------------------------
 * Everything but attention works on each row by itself: padded or packed makes no difference
 * --------------------------------------------------------------------------------------------- */

void model_embed(const struct model *m, const uint8_t *tokens, int64_t rows, float *x)
{
    for (int64_t r = 0; r < rows; r++)
        memcpy(x + r * WIDTH, m->embedding[tokens[r] % VOCABULARY], sizeof m->embedding[0]);
}

/* y [rows][outputs] = x [rows][inputs] w [inputs][outputs]. A real model has a BLAS do this. */
static void multiply(const float *x, const float *w, int64_t rows, int inputs, int outputs,
                     float *y)
{
    memset(y, 0, (size_t)(rows * outputs) * sizeof *y);
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < inputs; i++)
            for (int o = 0; o < outputs; o++)
                y[r * outputs + o] += x[r * inputs + i] * w[i * outputs + o];
}

/* y = x / sqrt(mean of x^2) * weight, row by row. */
static void normalize(const float *x, const float *weight, int64_t rows, float *y)
{
    for (int64_t r = 0; r < rows; r++) {
        float squares = 0;
        for (int n = 0; n < WIDTH; n++)
            squares += x[r * WIDTH + n] * x[r * WIDTH + n];
        const float scale = 1 / sqrtf(squares / WIDTH + 1e-6F);
        for (int n = 0; n < WIDTH; n++)
            y[r * WIDTH + n] = x[r * WIDTH + n] * scale * weight[n];
    }
}

static void add(float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
}

/* gate = gate / (1 + exp(-gate)) * up */
static void apply_gate(float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        gate[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
}

/* ------------------------------------------------------------------------------------------------
 * Attention
 * --------------------------------------------------------------------------------------------- */

/* Heads of one kind inside the rows of qkv; padded batches need the way to the next sequence
 * too. */
static attn_input heads_at(float *qkv, int first, const attn_side *side)
{
    return (attn_input){.data = qkv + first * HEAD_DIM, .batch_stride = side->seqlen * QKV,
                        .token_stride = QKV, .head_stride = HEAD_DIM};
}

/* Turns queries and keys, which lie side by side, by the positions of their tokens. */
static attn_status rotate(attn_context *context, const struct batch *batch, float *qkv)
{
    attn_rotary_desc d = attn_rotary_desc_init();
    d.batch = batch->sequences;
    d.heads = HEADS_Q + HEADS_KV;
    d.head_dim = HEAD_DIM;
    d.tokens = batch->side;
    d.positions = (attn_index){batch->positions, ATTN_I64};
    d.x = heads_at(qkv, 0, &batch->side);
    d.out = (attn_output){qkv, ATTN_F32, d.x.batch_stride, d.x.token_stride, d.x.head_stride};
    return attn_rotary(context, &d);
}

/* out [rows][HEADS_Q * HEAD_DIM] */
static attn_status attend(attn_context *context, const struct batch *batch, float *qkv, float *out)
{
    attn_desc d = attn_desc_init();
    d.batch = batch->sequences;
    d.heads_q = HEADS_Q;
    d.heads_kv = HEADS_KV;
    d.head_dim = HEAD_DIM;
    d.query = d.key = batch->side;
    d.key_mask.data = batch->mask;
    d.q = heads_at(qkv, 0, &batch->side);
    d.k = heads_at(qkv, HEADS_Q, &batch->side);
    d.v = heads_at(qkv, HEADS_Q + HEADS_KV, &batch->side);
    d.out.data = out;
    d.causal = 1;
    d.align = ATTN_BOTTOM_RIGHT;
    return attn_forward(context, &d);
}

/* ------------------------------------------------------------------------------------------------
 * The model
 * --------------------------------------------------------------------------------------------- */

/* What the layers work in. */
struct scratch {
    float *normed, *qkv, *mixed, *gate, *up; /* [rows] of WIDTH, QKV, WIDTH, HIDDEN, HIDDEN */
};

static attn_status run_layer(const struct layer *l, attn_context *context,
                             const struct batch *batch, const struct scratch *s, float *x)
{
    const int64_t rows = batch->rows;
    normalize(x, l->attention_norm, rows, s->normed);
    multiply(s->normed, &l->qkv[0][0], rows, WIDTH, QKV, s->qkv);
    attn_status status = rotate(context, batch, s->qkv);
    if (status == ATTN_OK)
        status = attend(context, batch, s->qkv, s->mixed);
    if (status != ATTN_OK)
        return status;
    multiply(s->mixed, &l->attention_out[0][0], rows, HEADS_Q * HEAD_DIM, WIDTH, s->normed);
    add(x, s->normed, rows * WIDTH);

    normalize(x, l->mlp_norm, rows, s->normed);
    multiply(s->normed, &l->gate[0][0], rows, WIDTH, HIDDEN, s->gate);
    multiply(s->normed, &l->up[0][0], rows, WIDTH, HIDDEN, s->up);
    apply_gate(s->gate, s->up, rows * HIDDEN);
    multiply(s->gate, &l->down[0][0], rows, HIDDEN, WIDTH, s->normed);
    add(x, s->normed, rows * WIDTH);
    return ATTN_OK;
}

bool model_run(const struct model *m, attn_context *context, const struct batch *batch, float *x,
               float *logits)
{
    enum { PER_ROW = WIDTH + QKV + HEADS_Q * HEAD_DIM + 2 * HIDDEN };
    const size_t rows = (size_t)batch->rows;
    float *memory = malloc((rows * PER_ROW + 1) * sizeof *memory);
    if (!memory)
        return false;
    const struct scratch s = {memory, memory + rows * WIDTH, memory + rows * (WIDTH + QKV),
                              memory + rows * (PER_ROW - 2 * HIDDEN),
                              memory + rows * (PER_ROW - HIDDEN)};
    attn_status status = ATTN_OK;
    for (int n = 0; n < LAYERS && status == ATTN_OK; n++)
        status = run_layer(&m->layers[n], context, batch, &s, x);
    if (status == ATTN_OK) {
        normalize(x, m->final_norm, batch->rows, s.normed);
        multiply(s.normed, &m->head[0][0], batch->rows, WIDTH, VOCABULARY, logits);
    }
    free(memory);
    return status == ATTN_OK;
}
