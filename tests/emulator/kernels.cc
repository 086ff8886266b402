/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernels that compute, compiled for the emulator; stream.cc has the others. */
#include "cuda/around.cu"
#include "cuda/fwd_bf16.cu"
#include "cuda/fwd_bf16_sm90.cu"
#include "cuda/fwd_f16.cu"
#include "cuda/fwd_f16_sm90.cu"
#include "cuda/fwd_f32.cu"
#include "cuda/fwd_f64.cu"
