/* SPDX-License-Identifier: BSD-3-Clause */
/* The instruction sets that the kernels were built for, and what this machine can run. */
#ifndef ATTN_CPU_ISA_H
#define ATTN_CPU_ISA_H

#include <stdbool.h>
#include <stdint.h>

#include "cpu/kernel.h"

/* Index, as attn_isa_name() counts, of the best set that this machine can run. */
int32_t attn_isa_best(void);

/* The set that serves the tiled form for an element type where n is to: a lower one where the
 * system does not let the process use it. Only this asks, once. */
int32_t attn_isa_allowed(int32_t n, attn_dtype dtype);

/* The kernels of set n for an element type; null where there is none. */
const struct attn_cpu_kernel *attn_isa_kernel(int32_t n, attn_dtype dtype);
const struct attn_cpu_backward *attn_isa_backward(int32_t n, attn_dtype dtype);

/* Those with blocks of more rows, for the forward pass beside these; null where there are none. */
const struct attn_cpu_kernel *attn_isa_wide(int32_t n, attn_dtype dtype);

/* How memory that is read once had better be asked for: the first caches of AMD's processors wait
 * for memory on few lines at a time; from Zen 5 on they follow what is read in its order. */
enum attn_asks attn_isa_asks(void);

/* Whether the third cache is slow: the cores of Intel's servers share it over a mesh. */
bool attn_isa_third_is_slow(void);

#endif
