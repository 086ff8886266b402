/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The CUDA runtime, in C. Builds for tests take tests/emulator's instead of the toolkit's: what is
 * used of it stands there.
 */
#ifndef ATTN_CUDA_RUNTIME_H
#define ATTN_CUDA_RUNTIME_H

#ifdef ATTN_CUDA_EMULATED
#include "emulator/runtime.h"
#else
#include <cuda_runtime_api.h>
#endif

#endif
