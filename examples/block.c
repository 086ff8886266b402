/* SPDX-License-Identifier: BSD-3-Clause */
#include "block.h"

#include <math.h>
#include <string.h>

#include "draw.h"

/* ------------------------------------------------------------------------------------------------
 * Weights
 * --------------------------------------------------------------------------------------------- */

/* Of a size that keeps the variance of what the matrix multiplies, times `size`. */
static void draw_matrix(uint64_t *seed, real *w, int inputs, int outputs, float size)
{
    for (int n = 0; n < inputs * outputs; n++)
        w[n] = (real)(size * sqrtf(3.0F / (float)inputs) * draw(seed));
}

static void set_norm(real *w)
{
    for (int n = 0; n < WIDTH; n++)
        w[n] = 1;
}

void block_draw(struct block *m, uint64_t seed)
{
    draw_matrix(&seed, &m->embedding[0][0], 3, VOCABULARY * WIDTH / 3, 1); /* variance 1 */
    for (int n = 0; n < LAYERS; n++) {
        struct layer *l = &m->layers[n];
        set_norm(l->attention_norm);
        set_norm(l->mlp_norm);
        draw_matrix(&seed, &l->qkv[0][0], WIDTH, QKV, 1);
        draw_matrix(&seed, &l->attention_out[0][0], MIXED, WIDTH, 0.5F);
        draw_matrix(&seed, &l->gate[0][0], WIDTH, HIDDEN, 1);
        draw_matrix(&seed, &l->up[0][0], WIDTH, HIDDEN, 1);
        draw_matrix(&seed, &l->down[0][0], HIDDEN, WIDTH, 0.5F);
    }
    set_norm(m->final_norm);
    draw_matrix(&seed, &m->head[0][0], WIDTH, VOCABULARY, 0.5F);
}

/* ------------------------------------------------------------------------------------------------
 * Activations
 * --------------------------------------------------------------------------------------------- */

/* What the gradient of a layer needs of its forward pass, [rows] of each width. */
struct layer_state {
    real *x, *normed, *qkv, *mixed, *lse;      /* WIDTH, WIDTH, QKV, MIXED, HEADS_Q */
    real *middle, *mlp_normed, *gate, *up, *y; /* WIDTH, WIDTH, HIDDEN, HIDDEN, HIDDEN */
};

struct state {
    struct layer_state layers[LAYERS];
    real *x, *normed, *logits;                    /* WIDTH, WIDTH, VOCABULARY */
    real *dx, *dnormed, *more, *dqkv, *dmixed;    /* WIDTH, WIDTH, WIDTH, QKV, MIXED */
    real *dgate, *dup, *dy;                       /* HIDDEN */
};
enum {
    PER_LAYER = 4 * WIDTH + QKV + MIXED + HEADS_Q + 3 * HIDDEN,
    PER_ROW = LAYERS * PER_LAYER + 5 * WIDTH + VOCABULARY + QKV + MIXED + 3 * HIDDEN
};

size_t block_room(int64_t rows) { return (size_t)rows * PER_ROW; }

static real *take(real **room, int64_t rows, int width)
{
    real *here = *room;
    *room += rows * width;
    return here;
}

static struct state share_out(real *room, int64_t rows)
{
    struct state s;
    for (int n = 0; n < LAYERS; n++) {
        struct layer_state *l = &s.layers[n];
        l->x = take(&room, rows, WIDTH);
        l->normed = take(&room, rows, WIDTH);
        l->qkv = take(&room, rows, QKV);
        l->mixed = take(&room, rows, MIXED);
        l->lse = take(&room, rows, HEADS_Q);
        l->middle = take(&room, rows, WIDTH);
        l->mlp_normed = take(&room, rows, WIDTH);
        l->gate = take(&room, rows, HIDDEN);
        l->up = take(&room, rows, HIDDEN);
        l->y = take(&room, rows, HIDDEN);
    }
    s.x = take(&room, rows, WIDTH);
    s.normed = take(&room, rows, WIDTH);
    s.logits = take(&room, rows, VOCABULARY);
    s.dx = take(&room, rows, WIDTH);
    s.dnormed = take(&room, rows, WIDTH);
    s.more = take(&room, rows, WIDTH);
    s.dqkv = take(&room, rows, QKV);
    s.dmixed = take(&room, rows, MIXED);
    s.dgate = take(&room, rows, HIDDEN);
    s.dup = take(&room, rows, HIDDEN);
    s.dy = take(&room, rows, HIDDEN);
    return s;
}

/* ------------------------------------------------------------------------------------------------
 * Attention
 * --------------------------------------------------------------------------------------------- */

/* Heads of one kind inside rows of QKV; padded batches need the way to the next sequence too. */
static attn_input heads_in(const real *qkv, int first, const attn_side *side)
{
    return (attn_input){qkv + first * HEAD_DIM, REAL_TYPE, side->seqlen * QKV, QKV, HEAD_DIM};
}

static attn_output heads_out(real *qkv, int first, const attn_side *side)
{
    return (attn_output){qkv + first * HEAD_DIM, REAL_TYPE, side->seqlen * QKV, QKV, HEAD_DIM};
}

/* Turns queries and keys, which lie side by side, in place; inverse: their gradients. */
static attn_status rotate(attn_context *context, const struct batch *b, int32_t inverse, real *qkv)
{
    attn_rotary_desc d = attn_rotary_desc_init();
    d.batch = b->sequences;
    d.heads = HEADS_Q + HEADS_KV;
    d.head_dim = HEAD_DIM;
    d.tokens = b->side;
    d.x = heads_in(qkv, 0, &b->side);
    d.out = heads_out(qkv, 0, &b->side);
    d.inverse = inverse;
    return attn_rotary(context, &d);
}

static attn_desc attention(const struct batch *b, const struct layer_state *s)
{
    attn_desc d = attn_desc_init();
    d.batch = b->sequences;
    d.heads_q = HEADS_Q;
    d.heads_kv = HEADS_KV;
    d.head_dim = HEAD_DIM;
    d.query = d.key = b->side;
    d.q = heads_in(s->qkv, 0, &b->side);
    d.k = heads_in(s->qkv, HEADS_Q, &b->side);
    d.v = heads_in(s->qkv, HEADS_Q + HEADS_KV, &b->side);
    d.out = (attn_output){s->mixed, REAL_TYPE, 0, 0, 0};
    d.lse = (attn_output){s->lse, REAL_TYPE, 0, 0, 0};
    d.causal = 1;
    d.align = ATTN_TOP_LEFT;
    return d;
}

/* mixed and lse from qkv before the turn */
static attn_status attend(attn_context *context, const struct batch *b, const struct layer_state *s)
{
    const attn_desc d = attention(b, s);
    const attn_status status = rotate(context, b, 0, s->qkv);
    return status == ATTN_OK ? attn_forward(context, &d) : status;
}

/* dqkv from dmixed */
static attn_status attend_back(attn_context *context, const struct batch *b,
                               const struct layer_state *s, const real *dmixed, real *dqkv)
{
    attn_desc d = attention(b, s);
    d.dout = (attn_input){dmixed, REAL_TYPE, 0, 0, 0};
    d.dq = heads_out(dqkv, 0, &b->side);
    d.dk = heads_out(dqkv, HEADS_Q, &b->side);
    d.dv = heads_out(dqkv, HEADS_Q + HEADS_KV, &b->side);
    const attn_status status = attn_backward(context, &d);
    return status == ATTN_OK ? rotate(context, b, 1, dqkv) : status;
}

/* ------------------------------------------------------------------------------------------------
 * A layer
 * --------------------------------------------------------------------------------------------- */

/* y = what the layer makes of s->x */
static attn_status layer_forward(const struct layer *l, attn_context *context,
                                 const struct batch *b, const struct layer_state *s, real *y)
{
    const struct tokens t = b->tokens;
    normalize(t, s->x, l->attention_norm, WIDTH, s->normed);
    multiply(t, s->normed, &l->qkv[0][0], WIDTH, QKV, s->qkv);
    const attn_status status = attend(context, b, s);
    if (status != ATTN_OK)
        return status;
    multiply(t, s->mixed, &l->attention_out[0][0], MIXED, WIDTH, s->middle);
    add(t, s->x, WIDTH, s->middle);

    normalize(t, s->middle, l->mlp_norm, WIDTH, s->mlp_normed);
    multiply(t, s->mlp_normed, &l->gate[0][0], WIDTH, HIDDEN, s->gate);
    multiply(t, s->mlp_normed, &l->up[0][0], WIDTH, HIDDEN, s->up);
    apply_gate(t, s->gate, s->up, HIDDEN, s->y);
    multiply(t, s->y, &l->down[0][0], HIDDEN, WIDTH, y);
    add(t, s->middle, WIDTH, y);
    return ATTN_OK;
}

/* d->dx, the gradient by the layer's output, becomes that by its input. */
static attn_status layer_back(const struct layer *l, attn_context *context, const struct batch *b,
                              const struct layer_state *s, const struct state *d, struct layer *dl)
{
    const struct tokens t = b->tokens;
    multiply_back(t, s->y, &l->down[0][0], d->dx, HIDDEN, WIDTH, d->dy, &dl->down[0][0]);
    apply_gate_back(t, s->gate, s->up, d->dy, HIDDEN, d->dgate, d->dup);
    multiply_back(t, s->mlp_normed, &l->gate[0][0], d->dgate, WIDTH, HIDDEN, d->dnormed,
                  &dl->gate[0][0]);
    multiply_back(t, s->mlp_normed, &l->up[0][0], d->dup, WIDTH, HIDDEN, d->more, &dl->up[0][0]);
    add(t, d->more, WIDTH, d->dnormed);
    normalize_back(t, s->middle, l->mlp_norm, d->dnormed, WIDTH, d->dx, dl->mlp_norm);

    multiply_back(t, s->mixed, &l->attention_out[0][0], d->dx, MIXED, WIDTH, d->dmixed,
                  &dl->attention_out[0][0]);
    const attn_status status = attend_back(context, b, s, d->dmixed, d->dqkv);
    if (status != ATTN_OK)
        return status;
    multiply_back(t, s->normed, &l->qkv[0][0], d->dqkv, WIDTH, QKV, d->dnormed, &dl->qkv[0][0]);
    normalize_back(t, s->x, l->attention_norm, d->dnormed, WIDTH, d->dx, dl->attention_norm);
    return ATTN_OK;
}

/* ------------------------------------------------------------------------------------------------
 * The model
 * --------------------------------------------------------------------------------------------- */

static attn_status forward(const struct block *m, attn_context *context, const struct batch *b,
                           const struct state *s)
{
    attn_status status = attn_gather(context, REAL_TYPE, VOCABULARY, WIDTH, m->embedding,
                                     b->inputs, b->rows, s->layers[0].x);
    for (int n = 0; n < LAYERS && status == ATTN_OK; n++)
        status = layer_forward(&m->layers[n], context, b, &s->layers[n],
                               n + 1 < LAYERS ? s->layers[n + 1].x : s->x);
    if (status == ATTN_OK) {
        normalize(b->tokens, s->x, m->final_norm, WIDTH, s->normed);
        multiply(b->tokens, s->normed, &m->head[0][0], WIDTH, VOCABULARY, s->logits);
    }
    return status;
}

/* The logits have become their own gradient. Rows of dx without a token stay 0, so that they add
 * nothing to the embedding that they were gathered from. */
static attn_status backward(const struct block *m, attn_context *context, const struct batch *b,
                            const struct state *s, struct block *dm)
{
    attn_status status = ATTN_OK;
    memset(dm, 0, sizeof *dm);
    memset(s->dx, 0, (size_t)(b->rows * WIDTH) * sizeof *s->dx);
    multiply_back(b->tokens, s->normed, &m->head[0][0], s->logits, WIDTH, VOCABULARY, s->dnormed,
                  &dm->head[0][0]);
    normalize_back(b->tokens, s->x, m->final_norm, s->dnormed, WIDTH, s->dx, dm->final_norm);
    for (int n = LAYERS - 1; n >= 0 && status == ATTN_OK; n--)
        status = layer_back(&m->layers[n], context, b, &s->layers[n], s, &dm->layers[n]);
    return status == ATTN_OK ? attn_gather_backward(context, REAL_TYPE, VOCABULARY, WIDTH, s->dx,
                                                    b->inputs, b->rows, dm->embedding)
                             : status;
}

attn_status block_loss(const struct block *m, attn_context *context, const struct batch *batch,
                       real *room, double *loss, struct block *gradient)
{
    const struct state s = share_out(room, batch->rows);
    attn_status status = forward(m, context, batch, &s);
    if (status != ATTN_OK)
        return status;
    *loss = cross_entropy(batch->tokens, batch->targets, VOCABULARY, s.logits);
    return gradient ? backward(m, context, batch, &s, gradient) : ATTN_OK;
}
