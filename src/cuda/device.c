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
static _Atomic int devices = -1; /* how many there are, once that is known */

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

/* Whether an error says no more than that there is none to work with. */
static bool is_none(cudaError_t error)
{
    return error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice;
}

/* A function of the driver's that begins no work with a device, as the runtime has none like it. */
struct question {
    const char *name;
    void *_Atomic known;
};
static struct question primary_state = {"cuDevicePrimaryCtxGetState", NULL};
static struct question current_context = {"cuCtxGetCurrent", NULL};

static cudaError_t find(struct question *q, void **function)
{
    enum cudaDriverEntryPointQueryResult result;
    *function = atomic_load(&q->known);
    if (*function)
        return cudaSuccess;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(q->name, function, 12000,
                                                               cudaEnableDefault, &result);
    forget(error);
    if (error == cudaSuccess)
        atomic_store(&q->known, *function);
    return error;
}

/* Whether the calling thread works in a context, be it one that the program made for itself, which
 * is no device's primary one. */
static cudaError_t is_current(bool *used)
{
    int (*get)(void **context);
    void *function = NULL, *context = NULL;
    const cudaError_t error = find(&current_context, &function);
    if (error != cudaSuccess || !function)
        return error;
    memcpy(&get, &function, sizeof function);
    *used = get(&context) == 0 && context;
    return cudaSuccess;
}

/* The number of devices, which is asked for once. */
static cudaError_t known_devices(int *count)
{
    cudaError_t error = cudaSuccess;
    *count = atomic_load(&devices);
    if (*count < 0) {
        error = count_devices(count);
        if (error == cudaSuccess || error == cudaErrorNoDevice)
            atomic_store(&devices, *count);
    }
    return is_none(error) ? cudaSuccess : error;
}

/* Whether anybody in this process works with a device. Otherwise no memory is a device's, and the
 * runtime's question alone would begin work with one, which takes long and a good part of its
 * memory. */
static cudaError_t in_use(bool *used)
{
    int (*is_active)(int device, unsigned *flags, int *active);
    void *function = NULL;
    int count = 0;
    const int known = atomic_load(&seen);
    *used = known == IN_USE;
    if (known != UNKNOWN)
        return cudaSuccess;
    cudaError_t error = known_devices(&count);
    if (error == cudaSuccess && count > 0)
        error = find(&primary_state, &function);
    if (error != cudaSuccess || !function)
        return error;
    memcpy(&is_active, &function, sizeof function);
    for (int n = 0; n < count && !*used; n++) {
        unsigned flags;
        int active = 0;
        *used = is_active(n, &flags, &active) == 0 && active;
    }
    if (!*used)
        return is_current(used);
    atomic_store(&seen, IN_USE);
    return cudaSuccess;
}

struct attn_place attn_cuda_place(const void *data)
{
    struct cudaPointerAttributes a;
    const struct attn_place host = {ATTN_HOST, true, NULL};
    bool used = false;
    if (!data)
        return host;
    cudaError_t error = in_use(&used);
    if (error == cudaSuccess && !used)
        return host;
    if (error == cudaSuccess)
        error = cudaPointerGetAttributes(&a, data);
    forget(error);
    if (is_none(error))
        return host;
    if (error != cudaSuccess)
        return (struct attn_place){ATTN_HOST, false, cudaGetErrorString(error)};
    switch (a.type) {
    case cudaMemoryTypeDevice: return (struct attn_place){a.device, false, NULL};
    case cudaMemoryTypeManaged: return (struct attn_place){a.device, true, NULL};
    default: return host;
    }
}

attn_status attn_cuda_find_device(int32_t number, struct attn_cuda_device *d, char *why,
                                  size_t size)
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
        return is_none(error) ? ATTN_NO_DEVICE : ATTN_DEVICE_ERROR;
    }
    *d = (struct attn_cuda_device){current, 10 * major + minor, shared};
    return ATTN_OK;
}

attn_status attn_cuda_status(cudaError_t error, const char *what, struct attn_message *m)
{
    if (error == cudaSuccess)
        return ATTN_OK;
    forget(error);
    return attn_say(m, error == cudaErrorMemoryAllocation ? ATTN_NO_MEMORY : ATTN_DEVICE_ERROR,
                    "cuda: %s: %s", what, cudaGetErrorString(error));
}

attn_status attn_cuda_ended(attn_status so_far, cudaError_t error, const char *what,
                            struct attn_message *m)
{
    if (so_far == ATTN_OK)
        return attn_cuda_status(error, what, m);
    forget(error);
    return so_far;
}
