/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The part of the driver's interface that bench/peers/gpu_driver.py uses, on the emulated device,
 * and of cuBLAS': a library that is built with the emulator is a driver with a GPU to it. Events
 * tell the host's time, which says nothing of any GPU's; products take none, and give nothing.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "emulator/runtime.h"

namespace {

double milliseconds()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

int wait() { return cudaStreamSynchronize(nullptr); }

} // namespace

extern "C" {

int cuInit(unsigned) { return cudaSetDevice(0); }

int cuDeviceGet(int *device, int number)
{
    *device = number;
    return cudaSuccess;
}

int cuDeviceGetName(char *name, int size, int)
{
    snprintf(name, (size_t)size, "emulated GPU");
    return cudaSuccess;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    return cudaDeviceGetAttribute(value, (cudaDeviceAttr)attribute, device);
}

int cuDriverGetVersion(int *version)
{
    *version = 12050;
    return cudaSuccess;
}

int cuGetErrorString(int error, const char **text)
{
    *text = cudaGetErrorString((cudaError_t)error);
    return cudaSuccess;
}

int cuDevicePrimaryCtxRetain(void **context, int)
{
    *context = nullptr;
    return cudaSuccess;
}

int cuCtxSetCurrent(void *) { return cudaSuccess; }
int cuCtxSynchronize() { return wait(); }
int cuMemAlloc_v2(void **data, size_t bytes) { return cudaMalloc(data, bytes); }
int cuMemFree_v2(void *data) { return wait() != cudaSuccess ? wait() : cudaFree(data); }

int cuMemcpyHtoD_v2(void *to, const void *from, size_t bytes)
{
    const int error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, nullptr);
    return error != cudaSuccess ? error : wait();
}

int cuMemcpyDtoH_v2(void *to, const void *from, size_t bytes)
{
    const int error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, nullptr);
    return error != cudaSuccess ? error : wait();
}

/* What is on the stream comes before; none of the device's memory is hidden here. */
int cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t bytes, void *)
{
    const int error = wait();
    memmove(to, from, bytes);
    return error;
}

int cuMemsetD32Async(void *to, unsigned word, size_t count, void *)
{
    const int error = wait();
    for (size_t n = 0; n < count; n++)
        memcpy((char *)to + n * sizeof word, &word, sizeof word);
    return error;
}

int cuEventCreate(double **event, unsigned)
{
    *event = new double(0);
    return cudaSuccess;
}

/* After all that comes before it. */
int cuEventRecord(double *event, void *)
{
    const int error = wait();
    *event = milliseconds();
    return error;
}

int cuEventSynchronize(double *) { return cudaSuccess; }

int cuEventElapsedTime(float *elapsed, const double *start, const double *end)
{
    *elapsed = (float)(*end - *start);
    return cudaSuccess;
}

int cublasCreate_v2(void **handle)
{
    *handle = nullptr;
    return 0;
}

int cublasGemmEx(void *, ...) { return 0; }

} /* extern "C" */
