/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Elements of q, k, v and out as seen by a kernel that computes in `real`: the build names an
 * elem_<type>.h, which gives elem, and elem_load, elem_store (VEC_N of them), elem_get, elem_put
 * (one). Widening is exact; narrowing rounds to nearest, ties to even.
 */
#ifndef ATTN_CPU_ELEM_H
#define ATTN_CPU_ELEM_H

#include "cpu/vec.h"

#include ELEM_H

#endif
