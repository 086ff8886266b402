/* SPDX-License-Identifier: BSD-3-Clause */
#include "emulator/runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "emulator/machine.h"
#include "emulator/tensor_map.h"

namespace {

enum { ALIGN = 64 }; /* of allocations: less than a real one's, so that guards are near */

/* Of the driver's. */
struct context {
    int device;
};

struct range {
    size_t bytes;
    int device;
    bool managed, allocated;
    context *of; /* null: every context of the device reaches it */
};

struct work {
    std::function<cudaError_t()> run;
    bool always; /* also after something has failed */
    cudaEvent_t event; /* what is recorded here; null: nothing is */
};

struct failure {
    std::string function;
    int count;
    cudaError_t error;
};

emulated_machine first_machine()
{
    const char *const capability = getenv("EMULATED_CAPABILITY");
    if (capability && strcmp(capability, "90") == 0)
        return {2, 90, 232448};
    return {2, 80, 166912};
}

struct state {
    emulated_machine machine = first_machine();
    std::map<int, context> primary; /* that have begun, by device */
    bool hidden = false; /* allocations, but from work */
    std::map<uintptr_t, range> memory; /* by address */
    std::map<uintptr_t, size_t> pinned; /* the host's that copies look at when they are made */
    std::map<cudaEvent_t, context *> events; /* with what they are of */
    std::vector<work> queue, graph;
    bool capturing = false;
    failure next = {"", 0, cudaSuccess};
    std::map<const void *, int> opted; /* shared memory asked for, by kernel */
    uint64_t launches = 0;
};

/* Never destroyed: what ends the program may come later. */
state &s = *new state;

/* All of it is one thread's at a time; what the runtime keeps for each of them is here. */
std::recursive_mutex &busy = *new std::recursive_mutex;
thread_local int chosen = 0; /* the device of a thread without a context */
thread_local context *now = nullptr;
thread_local cudaError_t last = cudaSuccess;
thread_local std::map<std::string, long> calls;

typedef std::lock_guard<std::recursive_mutex> hold;

cudaError_t answer(cudaError_t error)
{
    if (error != cudaSuccess)
        last = error;
    return error;
}

/* Whether the call is the one to fail; it is counted. */
bool fails(const char *function)
{
    calls[function]++;
    if (s.next.count == 1 && s.next.function == "all")
        return strcmp(function, "kernel") != 0;
    return s.next.count > 0 && (s.next.function == function || s.next.function == "all") &&
           --s.next.count == 0;
}

/* A device's primary context, which begins to be. */
context *primary_of(int device)
{
    return &s.primary.insert({device, context{device}}).first->second;
}

int device_now() { return now ? now->device : chosen; }

/* The thread's context; one without takes its device's primary one. */
context *context_now()
{
    if (!now)
        now = primary_of(chosen);
    return now;
}

/* What every call answers first; the driver's, which keep no last error. */
cudaError_t enter_driver(const char *function)
{
    if (s.machine.devices <= 0)
        return s.machine.devices < 0 ? cudaErrorInsufficientDriver : cudaErrorNoDevice;
    return fails(function) ? s.next.error : cudaSuccess;
}

cudaError_t enter(const char *function) { return answer(enter_driver(function)); }

/* The range that holds the address; null: the host's memory. */
const range *range_of(const void *data)
{
    const uintptr_t at = (uintptr_t)data;
    auto next = s.memory.upper_bound(at);
    if (next == s.memory.begin())
        return nullptr;
    --next;
    return at - next->first < next->second.bytes ? &next->second : nullptr;
}

/* Whether all of it is one piece of a device's memory. */
bool is_device(const void *data, size_t bytes)
{
    const range *const first = range_of(data);
    return first && (bytes == 0 || range_of((const char *)data + bytes - 1) == first);
}

/* Whether a word may be the address of memory that a kernel in the thread's context cannot reach.
 * (The end of a piece of memory is where nothing lies.) */
bool is_foreign(uint64_t word)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char resident;
    if (word < 65536 || word >> 47)
        return false;
    const range *const r = range_of((const void *)word);
    if (r || range_of((const void *)(word - 1)))
        return r && (r->device != device_now() || (r->of && r->of != context_now()));
    return mincore((void *)(word / page * page), 1, &resident) == 0;
}

/* Puts work on the stream: there is one, and all work is in order. */
cudaError_t put(const std::function<cudaError_t()> &run, bool always = false)
{
    (s.capturing ? s.graph : s.queue).push_back({run, always, nullptr});
    return cudaSuccess;
}

/* The pages of an allocation, which is ended by a guard. */
void protect(const std::pair<const uintptr_t, range> &m, int how)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = m.first / page * page;
    const size_t whole = (m.second.bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (m.second.allocated && whole > 0)
        mprotect((void *)first, m.first + whole - first, how);
}

void protect_all(bool hide)
{
    for (const auto &m : s.memory)
        protect(m, hide ? PROT_NONE : PROT_READ | PROT_WRITE);
}

cudaError_t perform(const std::vector<work> &all)
{
    cudaError_t first = cudaSuccess;
    if (s.hidden)
        protect_all(false);
    for (const work &w : all) {
        const cudaError_t error = first == cudaSuccess || w.always ? w.run() : cudaSuccess;
        first = first == cudaSuccess ? error : first;
    }
    if (s.hidden)
        protect_all(true);
    return first;
}

bool is_pinned(const void *data, size_t bytes)
{
    const auto next = s.pinned.upper_bound((uintptr_t)data);
    if (next == s.pinned.begin())
        return false;
    const auto at = std::prev(next);
    return (uintptr_t)data - at->first + bytes <= at->second;
}

void release(void *data)
{
    const auto at = s.memory.find((uintptr_t)data);
    emulator::unmap_guarded(data, at->second.bytes, ALIGN);
    s.memory.erase(at);
}

/* ---- The driver's functions ----------------------------------------------------------------- */

/* Of what is no device's memory all is 0. */
int (*const pointer_attributes)(unsigned, const int *, void **, unsigned long long) =
    [](unsigned count, const int *attributes, void **values, unsigned long long pointer) -> int {
    enum { CONTEXT = 1, MEMORY_TYPE = 2, IS_MANAGED = 8, DEVICE_ORDINAL = 9 };
    const hold h(busy);
    const cudaError_t error = enter_driver("cuPointerGetAttributes");
    const range *const r = range_of((const void *)(uintptr_t)pointer);
    for (unsigned n = 0; error == cudaSuccess && n < count; n++)
        switch (attributes[n]) {
        case CONTEXT: *(void **)values[n] = r ? r->of : nullptr; break;
        case MEMORY_TYPE: *(unsigned *)values[n] = r ? 2 : 0; break;
        case IS_MANAGED: *(unsigned *)values[n] = r && r->managed; break;
        case DEVICE_ORDINAL: *(int *)values[n] = r ? r->device : 0; break;
        default: return cudaErrorInvalidValue;
        }
    return error;
};

int (*const get_context)(void **) = [](void **context) -> int {
    const hold h(busy);
    *context = now;
    return enter_driver("cuCtxGetCurrent");
};

int (*const set_context)(void *) = [](void *context) -> int {
    const hold h(busy);
    const cudaError_t error = enter_driver("cuCtxSetCurrent");
    if (error == cudaSuccess)
        now = (struct context *)context;
    return error;
};

} // namespace

extern "C" {

void emulated_set_machine(emulated_machine m)
{
    const hold h(busy);
    s.machine = m;
}

void emulated_own(void *data, size_t bytes, int device, int managed)
{
    const hold h(busy);
    s.memory.erase((uintptr_t)data);
    if (device >= 0 && bytes > 0)
        s.memory[(uintptr_t)data] = {bytes, device, managed != 0, false, primary_of(device)};
}

void *emulated_context(int device) { return new context{device}; }

void emulated_own_in(void *data, size_t bytes, int device, void *of)
{
    const hold h(busy);
    s.memory[(uintptr_t)data] = {bytes, device, false, false, (context *)of};
}

void emulated_set_context(void *context) { now = (struct context *)context; }
void *emulated_get_context(void) { return now; }

int emulated_begun(void)
{
    const hold h(busy);
    return !s.primary.empty();
}

void emulated_hide(int hide)
{
    const hold h(busy);
    s.hidden = hide != 0;
    protect_all(s.hidden);
}

void emulated_fail(const char *function, int count, cudaError_t error)
{
    const hold h(busy);
    s.next = {function ? function : "", count, error};
}

long emulated_calls(const char *function) { return calls[function]; } /* of this thread */

long emulated_allocations(void)
{
    const hold h(busy);
    long count = 0;
    for (const auto &m : s.memory)
        count += m.second.allocated;
    return count;
}

long emulated_pinned(void)
{
    const hold h(busy);
    return (long)(s.pinned.size() + s.events.size());
}

void emulated_capture_begin(void)
{
    const hold h(busy);
    s.graph.clear();
    s.capturing = true;
}

void emulated_capture_end(void)
{
    const hold h(busy);
    s.capturing = false;
}

cudaError_t emulated_graph_launch(void)
{
    const hold h(busy);
    return perform(s.graph);
}

cudaError_t cudaGetDeviceCount(int *count)
{
    const hold h(busy);
    *count = s.machine.devices < 0 ? 0 : s.machine.devices;
    return enter("cudaGetDeviceCount");
}

cudaError_t cudaGetDevice(int *device)
{
    const hold h(busy);
    *device = device_now();
    return enter("cudaGetDevice");
}

cudaError_t cudaSetDevice(int device)
{
    const hold h(busy);
    const cudaError_t error = enter("cudaSetDevice");
    if (error != cudaSuccess)
        return error;
    if (device < 0 || device >= s.machine.devices)
        return answer(cudaErrorInvalidDevice);
    chosen = device;
    now = primary_of(device);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    const hold h(busy);
    const cudaError_t error = enter("cudaDeviceGetAttribute");
    if (error != cudaSuccess)
        return error;
    if (device < 0 || device >= s.machine.devices)
        return answer(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 3; break;
    case cudaDevAttrComputeCapabilityMajor: *value = s.machine.capability / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = s.machine.capability % 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = s.machine.shared_bytes; break;
    }
    return cudaSuccess;
}

/* `of`: the context that alone reaches it; null: it is of a pool, which all of the device's do. */
static cudaError_t allocate(void **data, size_t bytes, context *of)
{
    *data = emulator::map_guarded(bytes, ALIGN);
    s.memory[(uintptr_t)*data] = {bytes, context_now()->device, false, true, of};
    if (s.hidden)
        protect_all(true);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **data, size_t bytes)
{
    const hold h(busy);
    const cudaError_t error = enter("cudaMalloc");
    if (s.capturing)
        return answer(cudaErrorStreamCaptureUnsupported);
    return error == cudaSuccess ? allocate(data, bytes, context_now()) : error;
}

cudaError_t cudaFree(void *data)
{
    const hold h(busy);
    const cudaError_t error = enter("cudaFree");
    if (s.capturing)
        return answer(cudaErrorStreamCaptureUnsupported);
    if (error == cudaSuccess && data)
        release(data);
    return error;
}

cudaError_t cudaMallocAsync(void **data, size_t bytes, cudaStream_t)
{
    const hold h(busy);
    const cudaError_t error = enter("cudaMallocAsync");
    return error == cudaSuccess ? allocate(data, bytes, nullptr) : error;
}

/* Memory of a graph stays, as it is launched again: full of NaN in between. An error is one of work
 * before: the memory is given back all the same. */
cudaError_t cudaFreeAsync(void *data, cudaStream_t)
{
    const hold h(busy);
    const cudaError_t error = enter("cudaFreeAsync");
    const auto at = s.memory.find((uintptr_t)data);
    if (at == s.memory.end() || !at->second.allocated)
        return answer(cudaErrorInvalidValue);
    const bool keep = s.capturing;
    const size_t bytes = at->second.bytes;
    put([=] {
        if (keep)
            memset(data, 0xff, bytes);
        else
            release(data);
        return cudaSuccess;
    }, true);
    return error;
}

cudaError_t cudaHostAlloc(void **data, size_t bytes, unsigned)
{
    const hold h(busy);
    const cudaError_t error = enter("cudaHostAlloc");
    if (error != cudaSuccess)
        return error;
    *data = emulator::map_guarded(bytes, ALIGN);
    s.pinned[(uintptr_t)*data] = bytes;
    context_now();
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *data)
{
    const hold h(busy);
    const cudaError_t error = enter("cudaFreeHost");
    const auto at = s.pinned.find((uintptr_t)data);
    if (at == s.pinned.end())
        return error == cudaSuccess && data ? answer(cudaErrorInvalidValue) : error;
    emulator::unmap_guarded(data, at->second, ALIGN);
    s.pinned.erase(at);
    return error;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    const hold h(busy);
    const cudaError_t error = enter("cudaEventCreateWithFlags");
    if (error == cudaSuccess) {
        *event = (cudaEvent_t)malloc(1);
        s.events[*event] = context_now();
    }
    return error;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    const hold h(busy);
    s.events.erase(event);
    free(event);
    return enter("cudaEventDestroy");
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t)
{
    const hold h(busy);
    const cudaError_t error = enter("cudaEventRecord");
    if (error == cudaSuccess && (!s.events.count(event) || s.events[event] != context_now()))
        return answer(cudaErrorInvalidResourceHandle);
    if (error == cudaSuccess)
        (s.capturing ? s.graph : s.queue).push_back({[] { return cudaSuccess; }, true, event});
    return error;
}

/* Does what stands before the event was last recorded. After a failure only what is always done is
 * left of the rest. */
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    const hold h(busy);
    const cudaError_t error = enter("cudaEventSynchronize");
    size_t n = s.queue.size();
    if (s.capturing)
        return answer(cudaErrorStreamCaptureUnsupported);
    while (n > 0 && s.queue[n - 1].event != event)
        n--;
    const std::vector<work> all(s.queue.begin(), s.queue.begin() + (ptrdiff_t)n);
    std::vector<work> rest(s.queue.begin() + (ptrdiff_t)n, s.queue.end());
    s.queue.clear();
    const cudaError_t done = perform(all);
    for (const work &w : rest)
        if (done == cudaSuccess || w.always)
            s.queue.push_back(w);
    return error != cudaSuccess ? error : answer(done);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *status)
{
    const hold h(busy);
    *status = s.capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return enter("cudaStreamIsCapturing");
}

/* From memory that is not pinned: what stands there is taken when the call is made, which no graph
 * can do. To it, and from and to pinned memory: when somebody waits. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t)
{
    const hold h(busy);
    const cudaError_t error = enter("cudaMemcpyAsync");
    const bool up = kind == cudaMemcpyHostToDevice;
    if (error != cudaSuccess)
        return error;
    if (s.capturing)
        return answer(cudaErrorStreamCaptureUnsupported);
    if (!is_device(up ? to : from, bytes) || range_of(up ? from : to))
        return answer(cudaErrorInvalidValue);
    const bool take = up && !is_pinned(from, bytes);
    const std::vector<char> taken((const char *)from, (const char *)from + (take ? bytes : 0));
    return put([=] {
        memcpy(to, take ? taken.data() : from, bytes);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    const hold h(busy);
    const cudaError_t error = enter("cudaStreamSynchronize");
    if (s.capturing)
        return answer(cudaErrorStreamCaptureUnsupported);
    std::vector<work> all;
    all.swap(s.queue);
    const cudaError_t done = perform(all);
    return error != cudaSuccess ? error : answer(done);
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last;
    last = cudaSuccess;
    return error;
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInitializationError: return "initialization error";
    case cudaErrorCudartUnloading: return "driver shutting down";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorDeviceUninitialized: return "invalid device context";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorSymbolNotFound: return "named symbol not found";
    case cudaErrorLaunchOutOfResources: return "too many resources requested for launch";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    }
    return "unrecognized error code";
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult *result)
{
    const hold h(busy);
    const cudaError_t error = enter("cudaGetDriverEntryPointByVersion");
    *function = nullptr;
    *result = cudaDriverEntryPointSuccess;
    const std::map<std::string, void *> known = {
        {"cuPointerGetAttributes", (void *)pointer_attributes},
        {"cuCtxGetCurrent", (void *)get_context},
        {"cuCtxSetCurrent", (void *)set_context},
        {"cuTensorMapEncodeTiled", (void *)emulator::encode_tiled}};
    if (error == cudaSuccess && known.count(symbol))
        *function = known.at(symbol);
    return error;
}

} /* extern "C" */

cudaError_t cudaFuncSetAttribute(const emulated_function &f, cudaFuncAttribute, int value)
{
    const hold h(busy);
    const cudaError_t error = enter("cudaFuncSetAttribute");
    if (error != cudaSuccess)
        return error;
    if (value > s.machine.shared_bytes)
        return answer(cudaErrorInvalidValue);
    s.opted[f.entry] = value;
    return cudaSuccess;
}

/* The emulator says what is wrong; all that a caller of the runtime learns is that something is. */
static cudaError_t run(const emulator::launch &l, const emulated_function &f)
{
    const std::string wrong = emulator::run(l, f.run);
    if (wrong.empty())
        return cudaSuccess;
    printf("emulator: %s\n", wrong.c_str());
    return cudaErrorLaunchFailure;
}

/* Kernels see no memory but the device's: addresses in their argument tell. */
static bool sees_foreign(const emulated_function &f, const void *argument)
{
    for (size_t at = 0; at + 8 <= f.bytes; at += 8) {
        uint64_t word;
        memcpy(&word, (const char *)argument + at, sizeof word);
        if (is_foreign(word)) {
            printf("emulator: byte %zu of a kernel's argument begins %#llx, no memory of device "
                   "%d\n", at, (unsigned long long)word, device_now());
            return true;
        }
    }
    return false;
}

cudaError_t cudaLaunchKernel(const emulated_function &f, dim3 blocks, dim3 threads,
                             void **arguments, size_t shared_bytes, cudaStream_t)
{
    const hold h(busy);
    const cudaError_t error = enter("cudaLaunchKernel");
    emulator::launch l;
    if (error != cudaSuccess)
        return error;
    if (blocks.x == 0 || blocks.x > 0x7fffffff || threads.x == 0 || threads.x > 1024)
        return answer(cudaErrorInvalidValue);
    if ((int)shared_bytes > (s.opted.count(f.entry) ? s.opted[f.entry] : 49152))
        return answer(cudaErrorInvalidValue);
    if (sees_foreign(f, arguments[0]))
        return answer(cudaErrorLaunchFailure);
    l.blocks = (int)blocks.x;
    l.threads = (int)threads.x;
    l.shared_bytes = shared_bytes;
    l.seed = s.launches++ * UINT64_C(0x9e3779b97f4a7c15) >> 40; /* every launch in another order */
    l.seed = l.seed % 8 == 0 ? 0 : l.seed;
    const bool broken = fails("kernel");
    const cudaError_t planned = s.next.error;
    return put([=] { return broken ? planned : run(l, f); });
}
