/* SPDX-License-Identifier: BSD-3-Clause */
#include "sentences.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"

enum { MOST_BYTES = 1 << 20, EDGE = 0 }; /* EDGE: the character around a sentence */

/* ------------------------------------------------------------------------------------------------
 * Reading
 * --------------------------------------------------------------------------------------------- */

static const char *read_file(const char *path, char *text)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return strerror(errno);
    const size_t size = fread(text, 1, MOST_BYTES, file);
    const char *wrong = ferror(file) ? "cannot be read" : NULL;
    text[size] = 0;
    fclose(file);
    return wrong;
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* Whether a sentence ends with the last of n characters: a stop, and quotes behind it. */
static bool stops(const char *text, int n)
{
    while (n > 0 && strchr("\"')", text[n - 1]))
        n--;
    return n > 0 && strchr(".!?", text[n - 1]);
}

/* Puts '\n' between sentences and at empty lines, one ' ' between words. */
static void tidy(char *text)
{
    int to = 0;
    for (int at = 0; text[at];) {
        int lines = 0;
        if (!is_space(text[at])) {
            text[to++] = (unsigned char)text[at] < 128 ? text[at] : '?';
            at++;
            continue;
        }
        for (; text[at] && is_space(text[at]); at++)
            lines += text[at] == '\n';
        text[to] = lines > 1 || stops(text, to) ? '\n' : ' ';
        to++;
    }
    text[to] = 0;
}

static void add_sentence(struct sentences *s, int start, int length)
{
    if (length == 0 || s->count == MOST_SENTENCES)
        return;
    s->start[s->count] = start;
    s->length[s->count++] = length;
    s->longest = length > s->longest ? length : s->longest;
    s->shortest = s->count == 1 || length < s->shortest ? length : s->shortest;
}

/* What is too long is cut where it is too long. */
static void cut(struct sentences *s)
{
    for (int start = 0; s->text[start];) {
        const int line = (int)strcspn(s->text + start, "\n");
        const int length = line < LONGEST - 1 ? line : LONGEST - 1;
        add_sentence(s, start, length);
        start += length + (s->text[start + length] == '\n');
    }
}

const char *sentences_read(struct sentences *s, const char *path)
{
    memset(s, 0, sizeof *s);
    s->text = malloc(MOST_BYTES + 1);
    if (!s->text)
        return "no memory";
    const char *wrong = read_file(path, s->text);
    if (!wrong) {
        tidy(s->text);
        cut(s);
    }
    return wrong ? wrong : s->count == 0 ? "no sentence in it" : NULL;
}

void sentences_free(struct sentences *s) { free(s->text); }

double sentences_entropy(const struct sentences *s)
{
    double often[128] = {0}, all = 0, sum = 0;
    for (int n = 0; n < s->count; n++) {
        for (int i = 0; i < s->length[n]; i++)
            often[(int)s->text[s->start[n] + i]]++;
        often[EDGE]++;
        all += s->length[n] + 1;
    }
    for (int c = 0; c < 128; c++)
        if (often[c] > 0)
            sum += often[c] * log(all / often[c]);
    return sum / all;
}

/* ------------------------------------------------------------------------------------------------
 * Batches
 * --------------------------------------------------------------------------------------------- */

/* Sentence n to the rows from `row` on. */
static void put(const struct sentences *s, int n, int64_t row, struct filled *f)
{
    const char *text = s->text + s->start[n];
    const int length = s->length[n];
    for (int i = 0; i <= length; i++) {
        f->inputs[row + i] = i == 0 ? EDGE : text[i - 1];
        f->targets[row + i] = i == length ? EDGE : text[i];
        f->row[f->batch.tokens.count++] = row + i;
    }
}

void sentences_draw(const struct sentences *s, attn_layout layout, uint64_t *seed,
                    struct filled *f)
{
    int chosen[SEQUENCES];
    int64_t longest = 0;
    memset(f, 0, sizeof *f);
    for (int b = 0; b < SEQUENCES; b++) {
        chosen[b] = (int)(draw_bits(seed) % (uint64_t)s->count);
        f->lengths[b] = s->length[chosen[b]] + 1;
        f->cu_seqlens[b + 1] = f->cu_seqlens[b] + f->lengths[b];
        longest = f->lengths[b] > longest ? f->lengths[b] : longest;
    }
    for (int b = 0; b < SEQUENCES; b++)
        put(s, chosen[b], layout == ATTN_PACKED ? f->cu_seqlens[b] : b * longest, f);

    struct batch *batch = &f->batch;
    batch->sequences = SEQUENCES;
    batch->side.layout = layout;
    if (layout == ATTN_PACKED) {
        batch->rows = batch->side.tokens = f->cu_seqlens[SEQUENCES];
        batch->side.cu_seqlens.data = f->cu_seqlens;
    } else {
        batch->rows = SEQUENCES * longest;
        batch->side.seqlen = longest;
        batch->side.seqused.data = f->lengths;
    }
    batch->tokens.row = f->row;
    batch->inputs = f->inputs;
    batch->targets = f->targets;
}
