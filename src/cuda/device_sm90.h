/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What kernels for sm_90a use besides device.h, in the same way: a function is an instruction.
 *
 * Barriers that count bytes, uint64_t in shared memory. A barrier goes through phases, which have
 * the parities 0, 1, 0, ...; one ends when all have arrived and all bytes expected are there.
 *
 *   mbarrier_init(b, n)            n arrivals in a phase; fence_async() and a barrier of the block
 *                                  come before any use
 *   mbarrier_invalidate(b)         its memory can be used for other things
 *   mbarrier_arrive(b)             once
 *   mbarrier_expect(b, bytes)      once, and the phase has so many more bytes to come
 *   mbarrier_wait(b, parity)       until the phase of that parity has ended: 1 passes at first
 *
 * Bulk copies, begun by one thread. They and products see shared memory as of a fence_async(): what
 * threads store there for copies or products to read, or where copies will write, needs one after
 * it, and then a barrier or another order between the threads.
 *
 *   load_tensor(to, map, b, x, y)  a box from column x, row y on, of a tensor of two axes, to
 *                                  shared memory; 0 outside the tensor; b is told as many bytes as
 *                                  the box has. load_tensor(..., x, y, z) and (..., x, y, z, w): of
 *                                  three and of four axes. Boxes are aligned to 128 bytes, and with
 *                                  a swizzle to its pattern, 8 rows; x is to 16 bytes, or the
 *                                  hardware knows no such instruction
 *   store_tensor(map, from, x, y)  the other way; nothing behind the tensor's end, and before its
 *                                  beginning the hardware knows no such instruction. Likewise with
 *                                  z and w
 *   load_bulk(to, from, bytes, b)  bytes side by side, multiples of 16, from global memory
 *   store_bulk(to, from, bytes)    the other way
 *   commit_stores()                this thread's stores since the last one are a group
 *   wait_stores_read<n>()          until all groups but the last n have read shared memory
 *   wait_stores<n>()               until they are where they belong
 *   fence_async()
 *
 * Products of warpgroups: four warps from a multiple of four on, all of which come to all of these.
 * A warpgroup's sums are 64 rows, of which its warps have 16 each; within a warp c[4 j + e] is
 * element e of columns 8 j .. 8 j + 7 as multiply_bf16() has it.
 *
 *   matrix_at<SWIZZLE>(p, lead, stride)
 *                                  a descriptor: a matrix in shared memory from p on, in patterns
 *                                  of 8 rows of 16, 32, 64 or 128 bytes (SWIZZLE 0 to 3).
 *                                  Depth side by side: 8 rows later is `stride` bytes further, and
 *                                  without a swizzle 8 of depth are `lead`. Rows side by side: a
 *                                  pattern is 8 of depth, and the next 8 are `stride`, the next
 *                                  rows `lead` bytes further; without a swizzle the other way round
 *   wg_begin()                     what threads did to c and a in registers comes before products;
 *                                  once before each group
 *   wg_multiply_bf16<N, ROWS>(c, a, b, add)  c[64 x N] = a[64 x 16] b[16 x N], or += if add. a:
 *                                  a descriptor with its depth side by side, or four registers, as
 *                                  multiply_bf16() has them. b: with its N rows side by side if
 *                                  ROWS, else its depth. Nobody looks at c, and nobody changes a,
 *                                  until that has been waited for. wg_multiply_f16 likewise
 *   wg_commit()                    the products since the last one are a group
 *   wg_wait<n>()                   until all groups but the last n are done
 *   hold<n>(x)                     the compiler keeps n sums, or words of a, here: after a wait, and
 *                                  sums before a begin
 *
 *   raise_registers<n>()           the warpgroup's threads have n registers from here on, once
 *   lower_registers<n>()           others have given up as many; a multiple of 8, 24 to 256
 *   elect()                        whether this lane is the one, the same every time, of its warp
 */
#ifndef ATTN_CUDA_DEVICE_SM90_H
#define ATTN_CUDA_DEVICE_SM90_H

#include "cuda/device.h"
#include "cuda/tensor_map.h"

namespace dev {

typedef struct attn_cuda_tensor_map tensor_map;

} // namespace dev

#ifdef __CUDACC__
#include "cuda/device_ptx_sm90.h"
#else
#include "emulator/device_host_sm90.h"
#endif

namespace dev {

template <int SWIZZLE> DEVICE uint64_t matrix_at(const void *p, uint32_t lead, uint32_t stride)
{
    constexpr uint64_t MODE = SWIZZLE == 0 ? 0 : 4 - SWIZZLE;
    return (uint64_t)(shared_address(p) >> 4 & 0x3fff) | (uint64_t)(lead >> 4 & 0x3fff) << 16 |
           (uint64_t)(stride >> 4 & 0x3fff) << 32 | MODE << 62;
}

/* A descriptor of what lies `bytes` further. */
DEVICE uint64_t matrix_on(uint64_t matrix, uint32_t bytes) { return matrix + (bytes >> 4); }

} // namespace dev

#endif
