/* SPDX-License-Identifier: BSD-3-Clause */
/* A text as sentences of characters, and batches of them. */
#ifndef EXAMPLES_SENTENCES_H
#define EXAMPLES_SENTENCES_H

#include <stdbool.h>

#include "block.h"

/* Characters of a sentence, with the one that stands before the first and after the last of each;
 * sentences of a text; sentences of a batch. */
enum { LONGEST = 256, MOST_SENTENCES = 4096, SEQUENCES = 8, MOST_ROWS = SEQUENCES * LONGEST };

struct sentences {
    char *text;                   /* ASCII, one space between words */
    int count, longest, shortest; /* in characters */
    int start[MOST_SENTENCES], length[MOST_SENTENCES];
};

/* Reads and cuts a file. Null, or what went wrong. */
const char *sentences_read(struct sentences *s, const char *path);
void sentences_free(struct sentences *s);

/* The loss of a model that knows how often each character comes, and nothing else. */
double sentences_entropy(const struct sentences *s);

/* A batch with its arrays. */
struct filled {
    struct batch batch;
    int32_t lengths[SEQUENCES], cu_seqlens[SEQUENCES + 1];
    int64_t row[MOST_ROWS], inputs[MOST_ROWS], targets[MOST_ROWS];
};

/* SEQUENCES sentences, drawn at random, as a packed batch or a padded one with seqused. Each
 * character is to be told from those before it, the first from nothing. */
void sentences_draw(const struct sentences *s, attn_layout layout, uint64_t *seed,
                    struct filled *f);

#endif
