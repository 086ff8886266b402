/* SPDX-License-Identifier: BSD-3-Clause */
/* Elements that are f64, computed in f64. See elem.h. */
typedef double elem;

INLINE vec elem_load(const elem *p) { return vec_load(p); }
INLINE void elem_store(elem *p, vec a) { vec_store(p, a); }
INLINE real elem_get(elem a) { return a; }
INLINE elem elem_put(real a) { return a; }
