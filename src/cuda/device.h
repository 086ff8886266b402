/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What kernels use of the machine. Under nvcc each function is the instruction that it names; under
 * a host compiler tests/emulator computes what the hardware documents (PTX ISA; fragment layouts:
 * its chapters on mma and ldmatrix). Kernels use nothing else of CUDA, so that the same source runs
 * on a GPU and in the tests. What <math.h> has is used as well, by its names there.
 *
 *   thread(), lane(), warp()     of this thread in its block, in its warp; of its warp in the block
 *   block(), blocks()            of this block in the grid, along x; how many there are
 *   shared()                     the block's shared memory, as much as the launch asked for
 *   sync()                       all threads of the block
 *   sync_some(id, n)             n threads, a multiple of 32, at barrier id, 1 .. 15
 *   arrive(id, n)                counts at such a barrier without waiting
 *   sync_warp()                  all lanes
 *   shuffle(x, from)             x of lane `from`; shuffle_xor(x, mask): of lane() ^ mask
 *   ballot(p)                    bit i: p of lane i
 *   copy_async<bytes>(to, from, valid)  4, 8 or 16 bytes from global to shared memory; not valid:
 *                                zeros, and `from` is not read. Lands by wait_copies()
 *   commit_copies()              the copies since the last one are a group
 *   wait_copies<n>()             until all groups but the last n of this thread have landed
 *   load_matrices(r, row)        ldmatrix.x4: four 8 x 8 matrices of 16-bit numbers; lane l gives
 *                                the address of row l % 8 of matrix l / 8, aligned to 16 bytes
 *   load_transposed(r, row)      the same, each matrix transposed
 *   multiply_bf16(c, a, b)       c[16 x 8] += a[16 x 16] b[16 x 8], in f32; multiply_f16 likewise
 *   multiply_tf32(c, a, b)       c[16 x 8] += a[16 x 8] b[8 x 8], of what round_tf32() gives
 *   round_tf32(x)                x with 10 bits after the first, as bits; halves away from 0
 *   multiply_f64(c, a, b)        c[8 x 8] += a[8 x 4] b[4 x 8]
 *   load_16<T>(from)             16 bytes of shared memory at once, aligned to as many
 *   pack_bf16(low, high)         the two as bf16, in the lower and the upper half; pack_f16 likewise
 *   exp2_fast(x)                 2^x to 2 units in the last place; denormals are 0
 *   exp(x)                       e^x in f32 or f64, to 2 units in the last place
 *   add_atomic(p, x)             the value before
 *   least_atomic(p, x)           *p, of 64 bits, becomes x where that is less
 *   max_atomic(p, x)             *p becomes x where that is more
 *   count_bits(x)                that are 1
 *
 * Collective functions (sync_warp to ballot, load_*, multiply_*) are called by all lanes of a warp.
 */
#ifndef ATTN_CUDA_DEVICE_H
#define ATTN_CUDA_DEVICE_H

#include <stdint.h>

#ifdef __CUDACC__
#include "cuda/device_ptx.h"
#else
#include "emulator/device_host.h"
#endif

#endif
