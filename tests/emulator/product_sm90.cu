/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernel of product_sm90.h for a GPU, to see that it compiles. */
#include "emulator/product_sm90.h"

namespace product_sm90 {

#define INSTANCE(transposed, swizzle, held)                                                        \
    template __global__ void multiply<SOUND, transposed, swizzle, held>(GRID_CONSTANT const tensors);
INSTANCE(false, 3, false)
INSTANCE(true, 3, true)
INSTANCE(true, 0, false)

} // namespace product_sm90
