/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The part of the CUDA runtime's interface that src/cuda uses, on the emulator. A device's memory
 * is the host's, marked by its addresses. What is put on a stream happens when somebody waits for
 * it and not before, so that host memory that a call must not look at any more is looked at too
 * late. Names, values and arguments are the toolkit's.
 */
#ifndef EMULATOR_RUNTIME_H
#define EMULATOR_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#include <functional>
extern "C" {
#endif

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorCudartUnloading = 4,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorDeviceUninitialized = 201,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorSymbolNotFound = 500,
    cudaErrorLaunchOutOfResources = 701,
    cudaErrorLaunchFailure = 719,
    cudaErrorStreamCaptureUnsupported = 900
} cudaError_t;

enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0 };
enum { cudaEnableDefault = 0 };
enum { cudaHostAllocPortable = 1, cudaEventDisableTiming = 2 };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1 };

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t cudaMalloc(void **data, size_t bytes);
cudaError_t cudaFree(void *data);
cudaError_t cudaMallocAsync(void **data, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void *data, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaHostAlloc(void **data, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *data);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                             unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result);

/* ---- For tests ------------------------------------------------------------------------------ */

/* The machine as calls to come find it. */
struct emulated_machine {
    int devices; /* 0: cudaErrorNoDevice; -1: no driver */
    int capability; /* 80, 86, 90 */
    int shared_bytes; /* of a block, at most */
};
/* At first {2, 80, 166912}, or what EMULATED_CAPABILITY=90 in the environment asks for: {2, 90,
 * 232448}. */
void emulated_set_machine(struct emulated_machine m);

/* Marks [data, data + bytes) as memory of a device, of its primary context, or, device -1, as the
 * host's again. Managed memory is the device's and the host's. */
void emulated_own(void *data, size_t bytes, int device, int managed);

/* A context of the program's own on a device; it lasts as long as the program. The same of memory,
 * which no other context reaches; null: memory that all contexts of a device reach. */
void *emulated_context(int device);
void emulated_own_in(void *data, size_t bytes, int device, void *context);

/* The calling thread's context, as cuCtxSetCurrent() and cuCtxGetCurrent() have it; whether any
 * device's primary context has begun to be. */
void emulated_set_context(void *context);
void *emulated_get_context(void);
int emulated_begun(void);

/* From now on nobody can touch allocations but the work on streams, or, 0, all can again. */
void emulated_hide(int hide);

/* The count-th call of a function, from now on, answers `error`; 1 is the next. Names as above;
 * "kernel": the kernel fails, which its stream's next wait answers. "all": from the count-th call
 * of any function on each of them answers it, as after an error that stays. Null: none does. */
void emulated_fail(const char *function, int count, cudaError_t error);

/* How often this thread has called a function. */
long emulated_calls(const char *function);

/* Allocations of a device's memory that have not been given back; pinned memory and events. */
long emulated_allocations(void);
long emulated_pinned(void);

/* Capture: work put on streams from begin to end makes a graph, and waiting or what else is no work
 * is an error. launch() repeats the work and waits for it: cudaSuccess or what went wrong. */
void emulated_capture_begin(void);
void emulated_capture_end(void);
cudaError_t emulated_graph_launch(void);

#ifdef __cplusplus
} /* extern "C" */

struct dim3 {
    unsigned x, y, z;
    explicit dim3(unsigned n) : x(n), y(1), z(1) {}
};

/* A kernel with its argument. */
struct emulated_function {
    const void *entry;
    size_t bytes;              /* of the argument that may hold addresses */
    std::function<void()> run; /* as one thread */
};

/* The bytes of a kernel's argument that may hold addresses: all of them, once what lies between the
 * members is 0 and does not pass for one. Compilers that cannot do that leave none. */
template <class T> size_t emulated_addresses_of(T &argument, long)
{
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&argument);
    return sizeof argument;
#endif
#endif
    (void)argument;
    return 0;
}

/* struct attn_cuda_args: all addresses come before the forms, an array of structures, behind which
 * GCC 12 clears other bytes than those between members. */
template <class T>
auto emulated_addresses_of(T &argument, int) -> decltype(argument.form, argument.p, size_t())
{
    return emulated_addresses_of(argument.p, 0L) > 0 ? offsetof(T, form) : 0;
}

/* prepare::words: what is put to the device's memory may be anything. */
template <class T>
auto emulated_addresses_of(T &argument, int) -> decltype(argument.word, size_t())
{
    (void)argument;
    return offsetof(T, count);
}

template <class T> size_t emulated_addresses(T &argument)
{
    return emulated_addresses_of(argument, 0);
}

cudaError_t cudaFuncSetAttribute(const emulated_function &f, cudaFuncAttribute attribute,
                                 int value);
cudaError_t cudaLaunchKernel(const emulated_function &f, dim3 blocks, dim3 threads,
                             void **arguments, size_t shared_bytes, cudaStream_t stream);
#endif

#endif
