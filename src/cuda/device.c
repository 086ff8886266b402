/* SPDX-License-Identifier: BSD-3-Clause */
/* Devices, and whose memory is whose. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "cuda/host.h"

/*
 * What this process has been seen to have. A driver does not come later, and to look for one anew
 * takes longer than a small call on the CPU; a device that is once in use is taken to stay so. The
 * answers are the same for all threads, whichever asks first.
 */
enum { UNKNOWN, NO_DRIVER, IN_USE };
static _Atomic int seen = UNKNOWN;

/* Forgets the last error, so that the caller's next question to the runtime does not meet it. */
static void forget(cudaError_t error)
{
    if (error != cudaSuccess)
        cudaGetLastError();
}

static cudaError_t count_devices(int *count)
{
    *count = 0;
    if (atomic_load(&seen) == NO_DRIVER)
        return cudaErrorInsufficientDriver;
    const cudaError_t error = cudaGetDeviceCount(count);
    forget(error);
    if (error == cudaErrorInsufficientDriver)
        atomic_store(&seen, NO_DRIVER);
    return error;
}

/* The driver's question whether a device is in use, which begins no work with it: the runtime has
 * none. Null where there is no driver. */
static void *primary_state(void)
{
    static void *_Atomic known;
    enum cudaDriverEntryPointQueryResult result;
    void *function = atomic_load(&known);
    if (function)
        return function;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(
        "cuDevicePrimaryCtxGetState", &function, 12000, cudaEnableDefault, &result);
    forget(error);
    if (error != cudaSuccess)
        return NULL;
    atomic_store(&known, function);
    return function;
}

/* Whether anybody in this process works with a device. Otherwise no memory is a device's, and the
 * runtime's question alone would begin work with one, which takes long and a good part of its
 * memory. */
static bool in_use(void)
{
    int (*is_active)(int device, unsigned *flags, int *active);
    int devices;
    if (atomic_load(&seen) != UNKNOWN)
        return atomic_load(&seen) == IN_USE;
    if (count_devices(&devices) != cudaSuccess)
        return false;
    void *const function = primary_state();
    if (!function)
        return false;
    memcpy(&is_active, &function, sizeof function);
    for (int n = 0; n < devices; n++) {
        unsigned flags;
        int active = 0;
        if (is_active(n, &flags, &active) == 0 && active) {
            atomic_store(&seen, IN_USE);
            return true;
        }
    }
    return false;
}

struct attn_place attn_cuda_place(const void *data)
{
    struct cudaPointerAttributes a;
    const struct attn_place host = {ATTN_HOST, true};
    if (!data || !in_use())
        return host;
    const cudaError_t error = cudaPointerGetAttributes(&a, data);
    forget(error);
    if (error != cudaSuccess)
        return host;
    switch (a.type) {
    case cudaMemoryTypeDevice: return (struct attn_place){a.device, false};
    case cudaMemoryTypeManaged: return (struct attn_place){a.device, true};
    default: return host;
    }
}

bool attn_cuda_find_device(int32_t number, struct attn_cuda_device *d, char *why, size_t size)
{
    int count, current = number, major = 0, minor = 0, shared = 0;
    cudaError_t error = count_devices(&count);
    if (error == cudaSuccess && number == ATTN_HOST)
        error = cudaGetDevice(&current);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, current);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, current);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, current);
    if (error != cudaSuccess) {
        snprintf(why, size, "%s", error == cudaErrorInsufficientDriver
                                      ? "no driver, or one older than the CUDA runtime"
                                      : cudaGetErrorString(error));
        forget(error);
        return false;
    }
    *d = (struct attn_cuda_device){current, 10 * major + minor, shared};
    return true;
}

attn_status attn_cuda_status(cudaError_t error, const char *what, struct attn_message *m)
{
    if (error == cudaSuccess)
        return ATTN_OK;
    forget(error);
    return attn_say(m, error == cudaErrorMemoryAllocation ? ATTN_NO_MEMORY : ATTN_DEVICE_ERROR,
                    "cuda: %s: %s", what, cudaGetErrorString(error));
}
