/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernels of the calls around attention, compiled for the emulator. */
#include "cuda/helpers.cu"
