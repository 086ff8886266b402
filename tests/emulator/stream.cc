/* SPDX-License-Identifier: BSD-3-Clause */
/* Launches and the kernels that go before, compiled for the emulator. */
#include "cuda/stream.cu"
