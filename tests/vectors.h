/* SPDX-License-Identifier: BSD-3-Clause */
/* Functions of src/cpu/vec.h and word.h as one instruction set has them, on memory. */
#ifndef TESTS_VECTORS_H
#define TESTS_VECTORS_H

#include <stdbool.h>
#include <stdint.h>

enum { POWERS = 4 };

/* All take and give `lanes` numbers of the computing type, where they do not say otherwise. */
struct vectors {
    int lanes;
    void (*tanh)(void *to, const void *from);
    /* exp(scale * from), scale as the computing type has it: alone; and `one` times as much: alone,
     * in steps, and in rough ones or, for matrices, in one. most: the exponent of 2 from which on
     * the result is as large, or NaN. */
    void (*power[POWERS])(void *to, const void *from, double scale);
    int most[POWERS];
    double one; /* a power of 2 */
    void (*mask)(void *to, uint32_t bits); /* 1 where a bit is set, else 0 */
    /* `lanes` 16-bit numbers from and to f32, f16 first; null where the computing type is f64. */
    void (*widen[2])(float *to, const uint16_t *from);
    void (*narrow[2])(uint16_t *to, const float *from);
    /* 2 * lanes numbers from and to words of two, lane by lane; null where words are one number.
     * zip: the first numbers of all words, then the second ones. rough: in packing, ties go away
     * from 0, and NaN may become any number. */
    void (*pack)(uint16_t *to, const float *first, const float *second);
    void (*zip)(uint16_t *to, const uint16_t *first, const uint16_t *second);
    bool rough;
    /* Rows times columns added to sums[lanes][lanes]: rows[lanes][2 * lanes], and
     * columns[lanes][lanes] words of two; null where the set multiplies no matrices. */
    void (*multiply)(float *sums, const uint16_t *rows, const uint16_t *columns);
};

#endif
