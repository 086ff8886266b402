/* SPDX-License-Identifier: BSD-3-Clause */
/* Tensor maps as the emulated driver makes them. */
#ifndef EMULATOR_TENSOR_MAP_H
#define EMULATOR_TENSOR_MAP_H

#include "cuda/tensor_map.h"

namespace emulator {

/* What the bits of a map are. */
struct tensor_map {
    uint64_t mark;
    uint64_t base;
    uint32_t rank, element_size;
    uint64_t size[5], stride[4];
    uint32_t box[5], swizzle;
};
static_assert(sizeof(tensor_map) <= sizeof(attn_cuda_tensor_map), "a map of 128 bytes");
static const uint64_t MAP_MARK = UINT64_C(0x70616d726f736e74);

/* cuTensorMapEncodeTiled(), with the limits that the driver documents: 1 where one is not kept. */
int encode_tiled(struct attn_cuda_tensor_map *map, int type, uint32_t rank, void *data,
                 const uint64_t *size, const uint64_t *stride, const uint32_t *box,
                 const uint32_t *step, int interleave, int swizzle, int l2_promotion, int fill);

} // namespace emulator

#endif
