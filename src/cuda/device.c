/* SPDX-License-Identifier: BSD-3-Clause */
/* Devices, and whose memory is whose. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "cuda/host.h"

/*
 * What this process has been seen to have. A driver does not come later, and to look for one anew
 * takes longer than a small call on the CPU. The answers are the same for all threads, whichever
 * asks first.
 */
static _Atomic bool no_driver;
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
    if (atomic_load(&no_driver))
        return cudaErrorInsufficientDriver;
    const cudaError_t error = cudaGetDeviceCount(count);
    forget(error);
    if (error == cudaErrorInsufficientDriver)
        atomic_store(&no_driver, true);
    return error;
}

/* Whether an error says no more than that there is none to work with. */
static bool is_none(cudaError_t error)
{
    return error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice;
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

/* ---- The driver's functions ----------------------------------------------------------------- */

/* One of them. The runtime's own question where memory lies begins work with a device, which takes
 * long and a good part of its memory, and knows of no context but its own and the current one. The
 * driver's begin nothing. Their errors have the runtime's numbers. */
struct driver_function {
    const char *name;
    void *_Atomic known;
};
static struct driver_function pointer_attributes = {"cuPointerGetAttributes", NULL};
static struct driver_function get_context = {"cuCtxGetCurrent", NULL};
static struct driver_function set_context = {"cuCtxSetCurrent", NULL};

static cudaError_t find(struct driver_function *f, void **function)
{
    enum cudaDriverEntryPointQueryResult result;
    *function = atomic_load(&f->known);
    if (*function)
        return cudaSuccess;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(f->name, function, 12000,
                                                               cudaEnableDefault, &result);
    forget(error);
    if (error == cudaSuccess && !*function)
        return cudaErrorSymbolNotFound;
    if (error == cudaSuccess)
        atomic_store(&f->known, *function);
    return error;
}

/* Whether the driver answers that it knows of no memory, as nobody has begun to use it; of an
 * address that is none of its memory it tells only zeros. */
static bool knows_nothing(int error)
{
    return error == cudaErrorInvalidValue || error == cudaErrorInitializationError ||
           error == cudaErrorCudartUnloading || error == cudaErrorDeviceUninitialized;
}

static cudaError_t ask_place(const void *data, struct attn_place *place)
{
    enum { CONTEXT = 1, MEMORY_TYPE = 2, IS_MANAGED = 8, DEVICE = 9 }; /* the driver's numbers */
    enum { OF_A_DEVICE = 2 };
    int (*ask)(unsigned count, const int *attributes, void **values, unsigned long long pointer);
    const int attributes[] = {CONTEXT, MEMORY_TYPE, IS_MANAGED, DEVICE};
    unsigned type = 0, managed = 0;
    int device = 0;
    void *context = NULL, *function = NULL;
    void *values[] = {&context, &type, &managed, &device};
    cudaError_t error = find(&pointer_attributes, &function);
    if (error != cudaSuccess)
        return error;
    memcpy(&ask, &function, sizeof function);
    error = (cudaError_t)ask(4, attributes, values, (uintptr_t)data);
    if (error == cudaSuccess && (managed || type == OF_A_DEVICE))
        *place = (struct attn_place){.device = device, .host = managed, .context = context};
    return knows_nothing(error) ? cudaSuccess : error;
}

struct attn_place attn_cuda_place(const void *data)
{
    struct attn_place place = attn_host_place();
    int count = 0;
    if (!data)
        return place;
    cudaError_t error = known_devices(&count);
    if (error == cudaSuccess && count > 0)
        error = ask_place(data, &place);
    if (error != cudaSuccess && !is_none(error))
        place = (struct attn_place){.device = ATTN_HOST, .unknown = cudaGetErrorString(error)};
    return place;
}

cudaError_t attn_cuda_context(void **context)
{
    int (*get)(void **context);
    void *function = NULL;
    const cudaError_t error = find(&get_context, &function);
    if (error != cudaSuccess)
        return error;
    memcpy(&get, &function, sizeof function);
    return (cudaError_t)get(context);
}

static cudaError_t make_current(void *context)
{
    int (*set)(void *context);
    void *function = NULL;
    const cudaError_t error = find(&set_context, &function);
    if (error != cudaSuccess)
        return error;
    memcpy(&set, &function, sizeof function);
    return (cudaError_t)set(context);
}

attn_status attn_cuda_enter(struct attn_place at, struct attn_cuda_before *before,
                            struct attn_message *m)
{
    *before = (struct attn_cuda_before){0};
    if (at.device == ATTN_HOST)
        return ATTN_OK;
    cudaError_t error = cudaGetDevice(&before->device);
    if (error == cudaSuccess)
        error = attn_cuda_context(&before->context);
    if (error == cudaSuccess && at.context && at.context != before->context) {
        error = make_current(at.context);
        before->left = error == cudaSuccess ? ATTN_CUDA_CONTEXT_LEFT : ATTN_CUDA_NOTHING_LEFT;
    } else if (error == cudaSuccess && !at.context && at.device != before->device) {
        error = cudaSetDevice(at.device);
        before->left = error == cudaSuccess ? ATTN_CUDA_DEVICE_LEFT : ATTN_CUDA_NOTHING_LEFT;
    }
    return attn_cuda_status(error, "device", m);
}

/* A thread without a context had a device all the same. */
attn_status attn_cuda_go_back(attn_status so_far, const struct attn_cuda_before *before,
                              struct attn_message *m)
{
    cudaError_t error = cudaSuccess;
    if (before->left == ATTN_CUDA_DEVICE_LEFT && !before->context)
        error = cudaSetDevice(before->device);
    else if (before->left != ATTN_CUDA_NOTHING_LEFT)
        error = make_current(before->context);
    return attn_cuda_ended(so_far, error, "going back to the thread's device", m);
}

/* ---- Devices -------------------------------------------------------------------------------- */

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
    forget(error);
    if (error != cudaSuccess) {
        snprintf(why, size, "backend: cuda%s: %s", is_none(error) ? " has no device" : "",
                 error == cudaErrorInsufficientDriver
                     ? "no driver, or one older than the CUDA runtime"
                     : cudaGetErrorString(error));
        return is_none(error) ? ATTN_NO_DEVICE : ATTN_DEVICE_ERROR;
    }
    if (major < 8) {
        snprintf(why, size, "backend: cuda needs a device of capability 8.0, and device %d has "
                 "%d.%d", current, major, minor);
        return ATTN_NO_DEVICE;
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
