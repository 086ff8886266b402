/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The same prompts through the same model twice: as a padded batch, and packed end to end by
 * attn_unpad() before the first layer and attn_pad() after the last. The logits of all tokens agree
 * within BUDGET; the exit status tells if they do not.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model.h"

/* Largest difference of two logits, relative to the largest logit. Both runs make the same sums,
 * attention perhaps in another order: a few roundings of f32, 6e-8 each, per layer. */
#define BUDGET 1e-5F

static const char *const prompts[] = {
    "The sea was calm.",
    ("Packing puts sequences end to end, so that nobody computes on padding; a long one like this "
     "sets the width of the padded batch, and all others pay for it."),
    "Why?",
    "A sentence of middling length, no more and no less.",
    "Two words",
    "",
    "Rain in the morning, sun by noon, and a wind from the west that nobody had forecast.",
    "So it goes.",
};
enum { SEQUENCES = sizeof prompts / sizeof prompts[0], MOST_TOKENS = 200 };

/* Where padding goes. */
enum padding { RIGHT, LEFT, HOLES, PADDINGS };
static const char *const padding_names[PADDINGS] = {"right-padded", "left-padded", "with holes"};

/* A padded batch. */
struct input {
    int64_t seqlen;
    uint8_t tokens[SEQUENCES * MOST_TOKENS];    /* [B, S] */
    uint8_t mask[SEQUENCES * MOST_TOKENS];      /* [B, S], 1 = a token */
    int64_t positions[SEQUENCES * MOST_TOKENS]; /* [B, S] */
};

static void make_input(enum padding padding, struct input *in)
{
    int64_t longest = 0;
    memset(in, 0, sizeof *in);
    for (int b = 0; b < SEQUENCES; b++)
        if (longest < (int64_t)strlen(prompts[b]))
            longest = (int64_t)strlen(prompts[b]);
    in->seqlen = longest + longest / 8 + 1;
    for (int b = 0; b < SEQUENCES; b++) {
        const int64_t length = (int64_t)strlen(prompts[b]);
        int64_t position = 0; /* tokens of the sequence so far */
        for (int64_t s = 0; s < in->seqlen; s++) {
            const int64_t at = b * in->seqlen + s;
            const bool token = padding == RIGHT  ? s < length
                               : padding == LEFT ? s >= in->seqlen - length
                                                 : s % 9 != 4 && position < length;
            in->positions[at] = position;
            if (!token)
                continue;
            in->mask[at] = 1;
            in->tokens[at] = (uint8_t)prompts[b][position++];
        }
    }
}

static double seconds(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Everything on [B, S] rows, padding included; the mask keeps others from seeing it. */
static bool run_padded(const struct model *m, const struct input *in, float *x, float *logits)
{
    const struct batch batch = {.sequences = SEQUENCES, .rows = SEQUENCES * in->seqlen,
                                .side = {.layout = ATTN_PADDED, .seqlen = in->seqlen},
                                .mask = in->mask, .positions = in->positions};
    return model_run(m, NULL, &batch, x, logits);
}

/* The same on the rows that have a token. scratch has room for a padded batch of logits. */
static bool run_packed(const struct model *m, const struct input *in, const float *x,
                       float *packed_x, float *scratch, float *logits, int64_t *rows)
{
    static int64_t indices[SEQUENCES * MOST_TOKENS], positions[SEQUENCES * MOST_TOKENS];
    int32_t cu_seqlens[SEQUENCES + 1];
    attn_packing packing = {.indices = indices, .cu_seqlens = cu_seqlens};
    if (attn_unpad(NULL, ATTN_F32, SEQUENCES, in->seqlen, WIDTH, x, in->mask, packed_x,
                   &packing) != ATTN_OK ||
        attn_position_ids(NULL, SEQUENCES, cu_seqlens, NULL, positions) != ATTN_OK)
        return false;
    *rows = packing.total;

    const struct batch batch = {.sequences = SEQUENCES, .rows = packing.total,
                                .side = {.layout = ATTN_PACKED, .tokens = packing.total,
                                         .cu_seqlens = {cu_seqlens, ATTN_I32}},
                                .positions = positions};
    return model_run(m, NULL, &batch, packed_x, scratch) &&
           attn_pad(NULL, ATTN_F32, SEQUENCES * in->seqlen, VOCABULARY, scratch, indices,
                    packing.total, logits) == ATTN_OK;
}

/* Whether tokens have the same logits and padding has zeros; *worst relative to the largest. */
static bool agree(const struct input *in, const float *padded, const float *packed, float *worst)
{
    float largest = 0, difference = 0;
    bool zeros = true;
    for (int64_t r = 0; r < SEQUENCES * in->seqlen; r++)
        for (int64_t n = r * VOCABULARY; n < (r + 1) * VOCABULARY; n++) {
            if (!in->mask[r]) {
                zeros = zeros && packed[n] == 0;
                continue;
            }
            largest = fmaxf(largest, fabsf(padded[n]));
            if (!(fabsf(padded[n] - packed[n]) <= difference))
                difference = fabsf(padded[n] - packed[n]);
        }
    *worst = difference / largest;
    return zeros && *worst <= BUDGET; /* false for NaN */
}

/* Memory for one comparison: [B, S] rows of each. */
struct arrays {
    float *x, *packed_x, *scratch, *padded, *packed;
};

static bool compare(const struct model *m, enum padding padding, const struct arrays *a)
{
    static struct input in;
    int64_t rows = 0;
    float worst = 0;
    make_input(padding, &in);

    double padded_time = HUGE_VAL, packed_time = HUGE_VAL; /* the best of a few */
    bool ran = true;
    for (int n = 0; n < 3 && ran; n++) {
        const double start = seconds();
        model_embed(m, in.tokens, SEQUENCES * in.seqlen, a->x);
        ran = run_packed(m, &in, a->x, a->packed_x, a->scratch, a->packed, &rows);
        const double between = seconds();
        model_embed(m, in.tokens, SEQUENCES * in.seqlen, a->x);
        ran = ran && run_padded(m, &in, a->x, a->padded);
        packed_time = fmin(packed_time, between - start);
        padded_time = fmin(padded_time, seconds() - between);
    }
    if (!ran) {
        fprintf(stderr, "%s: %s\n", padding_names[padding], attn_last_message(NULL));
        return false;
    }
    const bool good = agree(&in, a->padded, a->packed, &worst);
    printf("%-13s %5lld -> %4lld rows, %6.1f -> %5.1f ms, largest difference %.1e of the largest "
           "logit%s\n", padding_names[padding], (long long)(SEQUENCES * in.seqlen),
           (long long)rows, 1e3 * padded_time, 1e3 * packed_time, (double)worst,
           good ? "" : ": they DIFFER");
    return good;
}

int main(void)
{
    const size_t rows = SEQUENCES * MOST_TOKENS;
    struct model *model = model_make(2024);
    float *memory = malloc(rows * (2 * WIDTH + 3 * VOCABULARY) * sizeof *memory);
    bool good = model && memory;
    if (!good)
        fprintf(stderr, "no memory\n");
    if (good) {
        float *logits = memory + 2 * rows * WIDTH;
        const struct arrays a = {memory, memory + rows * WIDTH, logits, logits + rows * VOCABULARY,
                                 logits + 2 * rows * VOCABULARY};
        printf("%d prompts through %d layers, padded -> packed\n", SEQUENCES, LAYERS);
        for (int padding = 0; padding < PADDINGS; padding++)
            good = compare(model, (enum padding)padding, &a) && good;
    }
    free(memory);
    free(model);
    return good ? 0 : 1;
}
