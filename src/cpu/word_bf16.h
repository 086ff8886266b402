/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the words of two bf16 numbers have in common, whatever the instruction set. Included at the
 * end of a word_<set>.h, which gives the rest of word.h and
 *
 *   low_half(w), high_half(w)   the first and the second numbers of words, widened
 *
 * Dot product instructions take numbers below 2^-126 as 0, in inputs and results.
 */
enum { PAIR = 2 };

INLINE vec lower_weight(vec w, vec root, vec least)
{
    return vec_mul(vec_mul(vec_unless(vec_lt(w, least), w), root), root);
}

INLINE vec word_lower(vec w, vec root, vec least)
{
    const vec a[] = {lower_weight(low_half(w), root, least),
                     lower_weight(high_half(w), root, least)};
    return word_pack(a);
}

INLINE vec word_spoil(vec w, vec bad)
{
    return vec_fma(high_half(w), vec_zero(), vec_fma(low_half(w), vec_zero(), bad));
}
