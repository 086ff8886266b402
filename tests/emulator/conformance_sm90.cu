/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs conformance_sm90.h on the GPU and on the emulator, as conformance.cu does; 77 without a GPU
 * of capability 9.0. */
#include "emulator/conformance_sm90.h"
#include "emulator/conformance_gpu.h"

template <class T>
static void launch(void (*kernel)(T), int blocks, int threads, int shared, const T &argument)
{
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    kernel<<<blocks, threads, shared>>>(argument);
}

int main()
{
    using namespace conformance_sm90;
    std::vector<uint32_t> inputs(INPUTS * ALL);
    cudaError_t status = cudaSuccess;
    int major = 0;
    uint32_t *const from = conformance::take(inputs.size(), &status);
    uint32_t *const to = status ? nullptr : conformance::take(RESULTS * ALL, &status);
    if (status != cudaSuccess)
        return 77;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    if (major != 9) {
        printf("no GPU of capability 9.0\n");
        return 77;
    }
    const attn_cuda_encode encode = attn_cuda_find_encode();
    return conformance::compare(
        {RESULTS, ALL, name, difference}, to,
        [&](uint64_t seed, uint32_t *expected) {
            draw_inputs(inputs.data(), seed);
            return emulate(inputs.data(), expected, seed);
        },
        [&](uint64_t, uint32_t *results) {
            struct arguments a;
            if (!find_arguments(encode, from, results, &a))
                printf("FAIL GPU: no map of a tensor\n");
            cudaMemcpy(from, inputs.data(), inputs.size() * 4, cudaMemcpyHostToDevice);
            launch(exercise, 1, THREADS, SHARED_BYTES, a);
            launch(exercise_all, PRODUCT_BLOCKS, product_sm90::THREADS, product_sm90::SHARED_BYTES,
                   a);
        });
}
