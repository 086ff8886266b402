/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernels of sm_90a, compiled for the emulator. */
#include "cuda/fwd_bf16_sm90.cu"
#include "cuda/fwd_f16_sm90.cu"
