/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernels that compute, compiled for the emulator, but for those of sm_90a; stream.cc has what
 * goes before them. */
#include "cuda/around.cu"
#include "cuda/fwd_bf16.cu"
#include "cuda/fwd_f16.cu"
#include "cuda/fwd_f32.cu"
#include "cuda/fwd_f64.cu"
