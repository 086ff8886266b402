/* SPDX-License-Identifier: BSD-3-Clause */
/* Host memory to a device and back, through pinned buffers that a context keeps. */
#include <string.h>

#include "cuda/host.h"

/* Most bytes of a buffer: copying them takes far longer than putting the copy on a stream. Tests
 * make do with less, so that there are many parts. */
#ifndef ATTN_CUDA_PART
#define ATTN_CUDA_PART (4 << 20)
#endif

void attn_cuda_ferry_release(struct attn_ferry *ferry)
{
    for (int n = 0; n < 2; n++) {
        if (ferry->event[n] && cudaEventDestroy(ferry->event[n]) != cudaSuccess)
            cudaGetLastError();
        if (ferry->buffer[n] && cudaFreeHost(ferry->buffer[n]) != cudaSuccess)
            cudaGetLastError();
    }
    memset(ferry, 0, sizeof *ferry);
}

static cudaError_t take(struct attn_ferry *ferry, size_t bytes)
{
    cudaError_t error = cudaSuccess;
    ferry->bytes = bytes;
    for (int n = 0; n < 2 && error == cudaSuccess; n++) {
        cudaEvent_t event = NULL;
        error = cudaHostAlloc(&ferry->buffer[n], bytes, cudaHostAllocPortable);
        if (error == cudaSuccess)
            error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
        ferry->event[n] = event;
    }
    return error;
}

/* The thread's context; one that has none takes its device's primary one, as its first work would.
 */
static cudaError_t find_context(void **context)
{
    int device = 0;
    cudaError_t error = attn_cuda_context(context);
    if (error != cudaSuccess || *context)
        return error;
    error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaSetDevice(device);
    return error == cudaSuccess ? attn_cuda_context(context) : error;
}

cudaError_t attn_cuda_ferry_open(struct attn_ferry *ferry, const struct attn_cuda_image *image)
{
    const int64_t outputs = image->bytes - image->inputs;
    const int64_t most = image->inputs > outputs ? image->inputs : outputs;
    size_t bytes = ATTN_ALIGN;
    void *context = NULL;
    cudaError_t error = find_context(&context);
    if (error != cudaSuccess)
        return error;
    while (bytes < ATTN_CUDA_PART && (int64_t)bytes < most)
        bytes *= 2;
    if (ferry->bytes >= bytes && ferry->context == context)
        return cudaSuccess;
    attn_cuda_ferry_release(ferry);
    ferry->context = context;
    error = take(ferry, bytes);
    if (error != cudaSuccess)
        attn_cuda_ferry_release(ferry);
    return error;
}

static int64_t part_of(const struct attn_ferry *ferry, int64_t left)
{
    return left < (int64_t)ferry->bytes ? left : (int64_t)ferry->bytes;
}

cudaError_t attn_cuda_ferry_in(struct attn_ferry *ferry, const struct attn_problem *p,
                               const struct attn_cuda_image *image, char *memory,
                               cudaStream_t stream)
{
    cudaError_t error = cudaSuccess;
    int64_t n = 0, bytes;
    for (int64_t at = 0; at < image->inputs && error == cudaSuccess; at += bytes, n++) {
        char *const buffer = ferry->buffer[n % 2];
        bytes = part_of(ferry, image->inputs - at);
        if (n > 1)
            error = cudaEventSynchronize(ferry->event[n % 2]);
        if (error != cudaSuccess)
            break;
        attn_cuda_image_fill(p, at, bytes, buffer);
        error = cudaMemcpyAsync(memory + at, buffer, (size_t)bytes, cudaMemcpyHostToDevice, stream);
        if (error == cudaSuccess)
            error = cudaEventRecord(ferry->event[n % 2], stream);
    }
    return error;
}

/* Begins the n-th part of the outputs. */
static cudaError_t begin_out(struct attn_ferry *ferry, const struct attn_cuda_image *image,
                             const char *memory, int64_t n, cudaStream_t stream)
{
    const int64_t at = image->inputs + n * (int64_t)ferry->bytes;
    if (at >= image->bytes)
        return cudaSuccess;
    const cudaError_t error =
        cudaMemcpyAsync(ferry->buffer[n % 2], memory + at,
                        (size_t)part_of(ferry, image->bytes - at), cudaMemcpyDeviceToHost, stream);
    return error == cudaSuccess ? cudaEventRecord(ferry->event[n % 2], stream) : error;
}

cudaError_t attn_cuda_ferry_out(struct attn_ferry *ferry, const struct attn_problem *p,
                                const struct attn_cuda_image *image, const char *memory,
                                cudaStream_t stream)
{
    cudaError_t error = begin_out(ferry, image, memory, 0, stream);
    int64_t at = image->inputs;
    for (int64_t n = 0; at < image->bytes && error == cudaSuccess; n++) {
        const int64_t bytes = part_of(ferry, image->bytes - at);
        error = begin_out(ferry, image, memory, n + 1, stream);
        if (error == cudaSuccess)
            error = cudaEventSynchronize(ferry->event[n % 2]);
        if (error == cudaSuccess)
            attn_cuda_image_spread(p, at, bytes, ferry->buffer[n % 2]);
        at += bytes;
    }
    return error;
}
