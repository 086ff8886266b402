/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls answered by kernels for GPUs, on the emulator. */
#ifndef EMULATOR_FORWARD_H
#define EMULATOR_FORWARD_H

#include "attn/attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* attn_forward(), but for the context, which is not looked at. ATTN_UNSUPPORTED where no kernel is
 * for the problem; ATTN_DEVICE_ERROR, with a line that says why, where the emulator finds fault. */
attn_status emulated_forward(attn_context *context, const attn_desc *desc);

#ifdef __cplusplus
}
#endif

#endif
