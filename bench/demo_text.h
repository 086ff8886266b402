/* SPDX-License-Identifier: BSD-3-Clause */
/* A text cut into sentences, and these into tokens. */
#ifndef BENCH_DEMO_TEXT_H
#define BENCH_DEMO_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Tokens of one sequence at most, rows of the padded batch at most, bytes of a file at most. */
enum { DEMO_LONGEST = 1024, DEMO_PADDED_ROWS = 65536, DEMO_BYTES = 16 << 20 };

enum demo_unit { DEMO_SENTENCES, DEMO_PARAGRAPHS };

struct demo_text {
    char *bytes;
    size_t size;
    size_t *starts, *ends; /* of each token, in bytes */
    int32_t tokens;
    int32_t *cu_seqlens; /* sequences + 1 */
    int32_t sequences, longest, shortest;
    bool cut;          /* the file is longer than DEMO_BYTES */
    int32_t split;     /* sequences longer than DEMO_LONGEST, which were split */
    int32_t left_out;  /* sequences at the end, for which there is no room in the padded batch */
};

/* Reads and cuts a file. Words, runs of punctuation marks and single ideographs are tokens.
 * Any bytes will do; what is not UTF-8 is taken byte by byte. Returns null, or what went wrong. */
const char *demo_text_read(struct demo_text *t, const char *path, enum demo_unit unit);
void demo_text_free(struct demo_text *t);

#endif
