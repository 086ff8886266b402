/* SPDX-License-Identifier: BSD-3-Clause */
/* Products of words of two bf16 numbers by AVX512-BF16. See word.h. */
#include "cpu/word_avx512pair.h"

INLINE __m512bh as_pairs(vec w) { return (__m512bh)_mm512_castps_si512(w); }

INLINE vec vec_mac(vec a, vec b, vec c) { return _mm512_dpbf16_ps(c, as_pairs(a), as_pairs(b)); }
