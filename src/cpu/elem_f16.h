/* SPDX-License-Identifier: BSD-3-Clause */
/* Elements that are IEEE binary16, computed in f32. See elem.h. */
typedef uint16_t elem;

INLINE vec elem_load(const elem *p) { return vec_from_f16(p); }
INLINE void elem_store(elem *p, vec a) { vec_to_f16(p, a); }
INLINE real elem_get(elem a) { return attn_f16_to_f32(a); }
INLINE elem elem_put(real a) { return attn_f32_to_f16(a); }
