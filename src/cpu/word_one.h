/* SPDX-License-Identifier: BSD-3-Clause */
/* Words of one number, multiplied in the computing type. See word.h. */
enum { PAIR = 1 };

INLINE vec vec_mac(vec a, vec b, vec c) { return vec_fma(a, b, c); }
INLINE vec word_load(const elem *p) { return elem_load(p); }
INLINE vec word_zip(const elem *const row[PAIR]) { return elem_load(row[0]); }
INLINE vec word_pack(const vec a[PAIR]) { return a[0]; }
INLINE vec word_lower(vec w, vec root, vec least) { return lower(w, root, least); }
INLINE vec word_seen(vec w, const vmask seen[PAIR]) { return vec_select(seen[0], w, vec_zero()); }
INLINE vec word_spoil(vec w, vec bad) { return vec_fma(w, vec_zero(), bad); }
INLINE vec word_negate(vec w) { return vec_mul(w, vec_set(-1)); }
