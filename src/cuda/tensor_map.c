/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda/tensor_map.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "cuda/runtime.h"

/* The driver's names for these. */
enum { TYPE_UINT16 = 1, TYPE_UINT32 = 2, NO_INTERLEAVE = 0, L2_LINES_OF_128 = 2, FILL_ZEROS = 0 };

attn_cuda_encode attn_cuda_find_encode(void)
{
    static void *_Atomic known;
    enum cudaDriverEntryPointQueryResult result;
    attn_cuda_encode encode = NULL;
    void *function = atomic_load(&known);
    if (!function) {
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                             cudaEnableDefault, &result) != cudaSuccess) {
            cudaGetLastError(); /* so that nobody else meets it */
            return NULL;
        }
        atomic_store(&known, function);
    }
    memcpy(&encode, &function, sizeof encode);
    return encode;
}

/* What the driver asks of a tensor: a map that it would refuse is an error to tools that watch it. */
static bool can_be(const struct attn_cuda_tensor *t)
{
    bool fits = (uintptr_t)t->data % 16 == 0;
    for (int n = 0; n < t->rank; n++)
        fits = fits && t->box[n] >= 1 && t->box[n] <= 256;
    for (int n = 0; n + 1 < t->rank; n++)
        fits = fits && t->stride[n] % 16 == 0;
    return fits;
}

bool attn_cuda_make_map(attn_cuda_encode encode, const struct attn_cuda_tensor *t,
                        struct attn_cuda_tensor_map *map)
{
    static const uint32_t step[ATTN_CUDA_MAP_RANK] = {1, 1, 1, 1, 1};
    return encode && can_be(t) &&
           encode(map, t->element_size == 2 ? TYPE_UINT16 : TYPE_UINT32, (uint32_t)t->rank,
                  (void *)(uintptr_t)t->data, t->size, t->stride, t->box, step, NO_INTERLEAVE,
                  (int)t->swizzle, L2_LINES_OF_128, FILL_ZEROS) == 0;
}
