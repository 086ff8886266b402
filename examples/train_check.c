/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * train_check TEXT: the gradient of the whole model of block.h, in f64, against central differences
 * of its loss: for each matrix and norm along a random direction, and along the weight with the
 * largest gradient. The gradient of the same sentences in a padded batch has to be the same bit for
 * bit.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"
#include "sentences.h"

/* Largest difference, relative to the length of the gradient by the matrix or norm. */
#define BUDGET 1e-8

/* Few tokens, so that it is quick, if a draw of some has so few. */
enum { MOST_TOKENS = 250, DRAWS = 1000 };

static struct block model, moved, direction, gradient, padded_gradient;
static struct sentences sentences;
static struct filled filled;
static attn_context *context;
static real *room;

static double loss_at(double step)
{
    double loss = NAN;
    for (int n = 0; n < PARAMETERS; n++)
        ((real *)&moved)[n] = ((real *)&model)[n] + step * ((real *)&direction)[n];
    return block_loss(&moved, context, &filled.batch, room, &loss, NULL) == ATTN_OK ? loss : NAN;
}

/* The loss' derivative along the direction; of fourth order. */
static double difference(void)
{
    const double h = 1e-3;
    return (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h);
}

static double product(const struct block *a, const struct block *b, size_t first, size_t count)
{
    double sum = 0;
    for (size_t n = first; n < first + count; n++)
        sum += ((const real *)a)[n] * ((const real *)b)[n];
    return sum;
}

/* A random unit vector in these weights. */
static void draw_direction(size_t first, size_t count, uint64_t *seed)
{
    real *d = (real *)&direction;
    memset(&direction, 0, sizeof direction);
    for (size_t n = first; n < first + count; n++)
        d[n] = draw(seed);
    const double length = sqrt(product(&direction, &direction, first, count));
    for (size_t n = first; n < first + count; n++)
        d[n] /= length;
}

/* That one of these weights whose gradient is the largest. */
static void choose_weight(size_t first, size_t count)
{
    const real *g = (const real *)&gradient;
    size_t most = first;
    for (size_t n = first; n < first + count; n++)
        most = fabs(g[n]) > fabs(g[most]) ? n : most;
    memset(&direction, 0, sizeof direction);
    ((real *)&direction)[most] = 1;
}

/* 1 where the gradient by these weights is wrong along the direction. */
static int check(const char *name, const char *along, size_t first, size_t count)
{
    const double length = sqrt(product(&gradient, &gradient, first, count));
    const double error = fabs(difference() - product(&gradient, &direction, first, count)) / length;
    printf("%-26s %-11s %.1e\n", name, along, error);
    return !(error <= BUDGET);
}

static int check_part(const char *name, size_t offset, size_t bytes, uint64_t *seed)
{
    const size_t first = offset / sizeof(real), count = bytes / sizeof(real);
    draw_direction(first, count, seed);
    const int wrong = check(name, "a direction", first, count);
    choose_weight(first, count);
    return wrong + check(name, "one weight", first, count);
}

#define MEMBER(type, name) {#name, offsetof(struct type, name), sizeof(((struct type *)0)->name)}

static int check_all(void)
{
    static const struct {
        const char *name;
        size_t offset, bytes;
    } members[] = {MEMBER(block, embedding), MEMBER(block, final_norm), MEMBER(block, head)},
      layer_members[] = {MEMBER(layer, attention_norm), MEMBER(layer, qkv),
                         MEMBER(layer, attention_out), MEMBER(layer, mlp_norm),
                         MEMBER(layer, gate), MEMBER(layer, up), MEMBER(layer, down)};
    uint64_t seed = 3;
    int wrong = 0;
    for (size_t n = 0; n < sizeof members / sizeof *members; n++)
        wrong += check_part(members[n].name, members[n].offset, members[n].bytes, &seed);
    for (size_t n = 0; n < LAYERS * sizeof layer_members / sizeof *layer_members; n++) {
        const size_t k = n / LAYERS, l = n % LAYERS;
        const size_t layer = offsetof(struct block, layers) + l * sizeof(struct layer);
        char name[40];
        snprintf(name, sizeof name, "layer %zu, %s", l, layer_members[k].name);
        wrong += check_part(name, layer + layer_members[k].offset, layer_members[k].bytes, &seed);
    }
    return wrong;
}

/* The gradient of sentences that are drawn alike for both layouts. */
static attn_status gradient_of(attn_layout layout, struct block *result)
{
    double loss;
    uint64_t seed = 4;
    sentences_draw(&sentences, layout, &seed, &filled);
    for (int n = 1; n < DRAWS && filled.batch.tokens.count > MOST_TOKENS; n++)
        sentences_draw(&sentences, layout, &seed, &filled);
    return block_loss(&model, context, &filled.batch, room, &loss, result);
}

static const char *prepare(const char *path)
{
    attn_options o = attn_options_init();
    const char *wrong = sentences_read(&sentences, path);
    o.backend = ATTN_BACKEND_CPU;
    o.threads = 1;
    room = malloc(block_room(MOST_ROWS) * sizeof *room);
    if (wrong || !room)
        return wrong ? wrong : "no memory";
    if (attn_context_create(&context, &o) != ATTN_OK)
        return attn_last_message(NULL);
    memset(room, 0xff, block_room(MOST_ROWS) * sizeof *room); /* NaN wherever nothing is written */
    block_draw(&model, 1);
    if (gradient_of(ATTN_PADDED, &padded_gradient) != ATTN_OK ||
        gradient_of(ATTN_PACKED, &gradient) != ATTN_OK)
        return attn_last_message(context);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: train_check TEXT\n");
        return 2;
    }
    const char *stopped = prepare(argv[1]);
    bool right = false;
    if (stopped) {
        fprintf(stderr, "train_check: %s: %s\n", argv[1], stopped);
    } else {
        const int wrong = check_all();
        const bool same = memcmp(&gradient, &padded_gradient, sizeof gradient) == 0;
        printf("%d wrong; the gradient of the padded batch %s\n", wrong,
               same ? "is the same bit for bit" : "DIFFERS");
        right = wrong == 0 && same;
    }
    attn_context_destroy(context);
    sentences_free(&sentences);
    free(room);
    return right ? 0 : 1;
}
