/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernel of product.h for a GPU, to see that it compiles. */
#include "emulator/product.h"

namespace product {

#define INSTANCE(transposed)                                                                       \
    template __global__ void multiply<SOUND, transposed>(const uint16_t *, const uint16_t *,       \
                                                         float *, float *, int, int, int);
INSTANCE(false)
INSTANCE(true)

} // namespace product
