/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Tensor maps: what bulk tensor copies of sm_90 know of a tensor in a device's memory. The driver
 * makes them, on the host, which costs about a microsecond and no work of the device. Compiles as
 * C11 and as C++.
 */
#ifndef ATTN_CUDA_TENSOR_MAP_H
#define ATTN_CUDA_TENSOR_MAP_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { ATTN_CUDA_MAP_RANK = 5 }; /* at most */

/* In shared memory, 16 bytes at a time: which of a row's places they are in depends on the row, so
 * that reading down a column meets all banks. Values are the driver's. */
enum attn_cuda_swizzle {
    ATTN_CUDA_PLAIN,
    ATTN_CUDA_SWIZZLE_32, /* rows of a box have that many bytes */
    ATTN_CUDA_SWIZZLE_64,
    ATTN_CUDA_SWIZZLE_128
};

/* A tensor and the boxes that are copied of it; axis 0 is the innermost, without gaps. */
struct attn_cuda_tensor {
    const void *data;     /* aligned to 16 bytes */
    int32_t rank;         /* 1 to ATTN_CUDA_MAP_RANK */
    int32_t element_size; /* bytes: 2 or 4 */
    enum attn_cuda_swizzle swizzle;
    uint64_t size[ATTN_CUDA_MAP_RANK];      /* elements, 1 to 2^32; boxes beyond are 0 there */
    uint64_t stride[ATTN_CUDA_MAP_RANK - 1]; /* bytes, multiples of 16: of axes 1 and up */
    uint32_t box[ATTN_CUDA_MAP_RANK];       /* elements, 1 to 256 */
};

/* As kernels are given it, by value. */
struct attn_cuda_tensor_map {
#ifdef __cplusplus
    alignas(64)
#else
    _Alignas(64)
#endif
        uint64_t bits[16];
};

/* cuTensorMapEncodeTiled() of the driver: 0 if it could. */
typedef int (*attn_cuda_encode)(struct attn_cuda_tensor_map *map, int type, uint32_t rank,
                                void *data, const uint64_t *size, const uint64_t *stride,
                                const uint32_t *box, const uint32_t *step, int interleave,
                                int swizzle, int l2_promotion, int fill);

/* The driver's function; null where there is none. */
attn_cuda_encode attn_cuda_find_encode(void);

/* False: no such map can be. */
bool attn_cuda_make_map(attn_cuda_encode encode, const struct attn_cuda_tensor *t,
                        struct attn_cuda_tensor_map *map);

#ifdef __cplusplus
}
#endif

#endif
