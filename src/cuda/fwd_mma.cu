/* SPDX-License-Identifier: BSD-3-Clause */
/* The forward kernel for 16-bit types: the head sizes and tiles that there are. */
#include "cuda/fwd_mma.h"

namespace fwd_mma {

#define INSTANCES(type)                                                                            \
    template __global__ void forward<type, 64, 64>(struct attn_problem, int);                      \
    template __global__ void forward<type, 128, 64>(struct attn_problem, int);
INSTANCES(bf16)
INSTANCES(f16)

} // namespace fwd_mma
