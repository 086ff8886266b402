/* SPDX-License-Identifier: BSD-3-Clause */
#include "device_memory.h"

#include <stdio.h>

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

#ifdef ATTN_CUDA_EMULATED

#include "emulator/runtime.h"

bool device_is_for(const struct problem *p, const struct target *t)
{
    return t->backend == ATTN_BACKEND_CUDA && p->seed % 2 == 1;
}

/* The host's memory is the device's for the time. Where there is nothing its address still is. */
void device_lend(struct lent *l)
{
    emulated_own(l->data, l->bytes > 0 ? l->bytes : 1, 0, 0);
    l->at = l->data;
}

void device_fetch(const struct lent *l) { (void)l; }

void device_release(struct lent *l)
{
    emulated_own(l->data, l->bytes > 0 ? l->bytes : 1, -1, 0);
    l->at = NULL;
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

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "report.h"

#ifndef ATTN_TEST_DRIVER
#define ATTN_TEST_DRIVER "libcuda.so.1"
#endif

enum { ALIGN = 64 };

/* The driver's own interface, which is there wherever a GPU can be used. */
static struct {
    bool usable; /* there is a GPU */
    void *context; /* the one that the runtime uses */
    int (*set_current)(void *context);
    int (*alloc)(uint64_t *memory, size_t bytes);
    int (*release)(uint64_t memory);
    int (*to_device)(uint64_t to, const void *from, size_t bytes);
    int (*to_host)(void *to, uint64_t from, size_t bytes);
    int (*wait)(void);
} driver;

/* Functions are no data to C, but to dlsym(). */
static bool find(void *library, const char *name, void *function)
{
    void *const found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
    return found;
}

static void open_driver(void)
{
    void *const library = dlopen(ATTN_TEST_DRIVER, RTLD_NOW);
    int (*init)(unsigned flags), (*get)(int *device, int number);
    int (*retain)(void **context, int device);
    int device;
    driver.usable = library && find(library, "cuInit", &init) &&
                    find(library, "cuDeviceGet", &get) &&
                    find(library, "cuDevicePrimaryCtxRetain", &retain) &&
                    find(library, "cuCtxSetCurrent", &driver.set_current) &&
                    find(library, "cuMemAlloc_v2", &driver.alloc) &&
                    find(library, "cuMemFree_v2", &driver.release) &&
                    find(library, "cuMemcpyHtoD_v2", &driver.to_device) &&
                    find(library, "cuMemcpyDtoH_v2", &driver.to_host) &&
                    find(library, "cuCtxSynchronize", &driver.wait) && init(0) == 0 &&
                    get(&device, 0) == 0 && retain(&driver.context, device) == 0;
}

/* Whatever the thread. */
static bool begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_driver);
    return driver.usable && driver.set_current(driver.context) == 0;
}

bool device_is_for(const struct problem *p, const struct target *t)
{
    return t->backend == ATTN_BACKEND_CUDA && p->seed % 2 == 1 && begin();
}

static uint64_t address(const void *at) { return (uint64_t)(uintptr_t)at; }

/* As far from a multiple of ALIGN as the host's. */
void device_lend(struct lent *l)
{
    uint64_t memory = 0;
    if (!begin() || driver.alloc(&memory, l->whole + ALIGN) != 0) {
        report_fail("no %zu bytes of the GPU's memory", l->whole);
        return;
    }
    l->memory = (void *)(uintptr_t)memory;
    l->at = (unsigned char *)l->memory + address(l->base) % ALIGN + (l->data - l->base);
    if (driver.to_device(address(l->at - (l->data - l->base)), l->base, l->whole) != 0)
        report_fail("%zu bytes do not get to the GPU", l->whole);
}

void device_fetch(const struct lent *l)
{
    if (begin() && driver.to_host(l->base, address(l->at - (l->data - l->base)), l->whole) != 0)
        report_fail("%zu bytes do not come back from the GPU", l->whole);
}

void device_release(struct lent *l)
{
    if (begin())
        driver.release(address(l->memory));
    l->at = NULL;
}

long device_waits(void) { return 0; }

bool device_wait(char *why, size_t size)
{
    const int error = begin() ? driver.wait() : -1;
    if (error != 0)
        snprintf(why, size, "on the device: error %d of the driver", error);
    return error == 0;
}

#endif
