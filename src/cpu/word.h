/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the products multiply: words, as large as a `real`, of PAIR numbers side by side along the
 * summed dimension. A vec may hold VEC_N words, whose bits mean nothing to its other functions. The
 * build names a word_<kind>.h, which gives
 *
 *   vec_mac(a, b, c)      c plus the products of the words' numbers
 *   word_load(p)          VEC_N words of the PAIR * VEC_N elements from p on
 *   word_zip(row)         VEC_N words, each of one element from each of PAIR rows
 *   word_pack(a)          the same of numbers in the computing type, rounded to nearest even; for
 *                         matrices ties go away from 0, and NaN, which a row's sum tells of, may
 *                         become any number
 *   word_lower(w, root, least)
 *                         each number of a word as lower() makes it, below; none is below 0
 *   word_seen(w, seen)    0 in place of numbers that are not seen
 *   word_spoil(w, bad)    bad, made NaN where a number is not finite
 *   word_negate(w)        each number of a word times -1
 *
 * and, where the set multiplies matrices, MATRIX, their rows and the words of one, as many as a vec
 * has, and what matrix.h works with:
 *
 *   word_weigh(x, c)      WEIGHT_ONE 2^(x c.by), and 0 where the power is 2^EXP2_LOW or less, for
 *                         weights that become words: the exponent is rounded, too; NaN stays
 *   word_largest(a, b)    the sizes of numbers of b, or those in a where they are larger
 *   word_all_finite(a)    whether they are all finite
 *   matrix_begin(), matrix_end()
 *                         around all use by a thread; nothing that is called between them may use
 *                         matrices of its own
 *   matrix_zero(i), matrix_load(i, p, step), matrix_store(i, p, step)
 *                         matrix i, a constant from 0 to 7; rows lie `step` words apart
 *   matrix_mac(i, a, b)   matrix i of f32 plus rows a times columns b: to row r, place c go the
 *                         products of word w of row r of a and word c of row w of b, for all w;
 *                         first and second numbers are summed apart, then added
 */
#ifndef ATTN_CPU_WORD_H
#define ATTN_CPU_WORD_H

#include "cpu/elem.h"

/* a, but 0 where its size is below `least`. */
INLINE vec unless_small(vec a, vec least)
{
    return vec_unless(vec_lt(vec_max(a, vec_sub(vec_zero(), a)), least), a);
}

/* a times root, twice; 0 where its size is below `least`. */
INLINE vec lower(vec a, vec root, vec least)
{
    return vec_mul(vec_mul(unless_small(a, least), root), root);
}

#include WORD_H

#ifndef BESIDE_MATRIX
#define BESIDE_MATRIX 0 /* whether blocks of the same set multiply matrices where this does not */
#endif

#ifndef MATRIX
#define MATRIX 0
INLINE void matrix_begin(void) {}
INLINE void matrix_end(void) {}
#endif

#endif
