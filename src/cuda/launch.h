/* SPDX-License-Identifier: BSD-3-Clause */
/* Puts a kernel on a stream. */
#ifndef ATTN_CUDA_LAUNCH_H
#define ATTN_CUDA_LAUNCH_H

#include "cuda/runtime.h"

namespace {

struct grid {
    int64_t blocks; /* at least 1 */
    int32_t threads, shared;
    cudaStream_t stream;
};

/* All kernels have one argument. (static, as nvcc exports what only the namespace hides.) */
template <class T> static cudaError_t launch(void (*kernel)(T), const grid &g, T argument)
{
    void *arguments[] = {&argument};
#ifdef __CUDACC__
    const void *const function = (const void *)kernel;
#else
    const emulated_function function = {(const void *)kernel, emulated_addresses(argument),
                                        [=] { kernel(argument); }};
#endif
    const cudaError_t error = cudaFuncSetAttribute(
        function, cudaFuncAttributeMaxDynamicSharedMemorySize, g.shared);
    if (error != cudaSuccess)
        return error;
    return cudaLaunchKernel(function, dim3((unsigned)g.blocks), dim3((unsigned)g.threads),
                            arguments, (size_t)g.shared, g.stream);
}

} // namespace

#endif
