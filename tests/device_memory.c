/* SPDX-License-Identifier: BSD-3-Clause */
#include "device_memory.h"

#ifdef ATTN_CUDA_EMULATED

#include <stdio.h>

#include "emulator/runtime.h"

bool device_is_for(const struct problem *p, const struct target *t)
{
    return t->backend == ATTN_BACKEND_CUDA && p->seed % 2 == 1;
}

bool device_has(const struct problem *p, int n)
{
    switch (n) {
    case BUFFER_CU_Q:
    case BUFFER_CU_K:
    case BUFFER_USED_Q:
    case BUFFER_USED_K:
    case BUFFER_TABLE:
    case BUFFER_BIAS_OFFSET:
    case BUFFER_PREFIX:
    case BUFFER_DOCS_Q:
    case BUFFER_DOCS_K: return p->seed * UINT64_C(0x9e3779b97f4a7c15) >> (20 + n) & 1;
    default: return true;
    }
}

/* Where there is nothing its address is still the device's. */
void device_own(void *data, size_t bytes, bool own)
{
    emulated_own(data, bytes > 0 ? bytes : 1, own ? 0 : -1, 0);
}

long device_waits(void) { return emulated_calls("cudaStreamSynchronize"); }

bool device_wait(char *why, size_t size)
{
    const cudaError_t error = cudaStreamSynchronize(NULL);
    if (error != cudaSuccess)
        snprintf(why, size, "on the device: %s", cudaGetErrorString(error));
    return error == cudaSuccess;
}

#else

bool device_is_for(const struct problem *p, const struct target *t)
{
    (void)p, (void)t;
    return false;
}

bool device_has(const struct problem *p, int n)
{
    (void)p, (void)n;
    return false;
}

void device_own(void *data, size_t bytes, bool own) { (void)data, (void)bytes, (void)own; }
long device_waits(void) { return 0; }

bool device_wait(char *why, size_t size)
{
    (void)why, (void)size;
    return true;
}

#endif
