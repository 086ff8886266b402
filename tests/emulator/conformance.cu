/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs conformance.h on the GPU and on the emulator: a line per instruction, exit status 1 where
 * they differ, 77 without a GPU. */
#include "emulator/conformance.h"
#include "emulator/conformance_gpu.h"

static const char *name_of(int r) { return conformance::name((enum conformance::result)r); }
static const char *difference_of(int r, const uint32_t *got, const uint32_t *expected)
{
    return conformance::difference((enum conformance::result)r, got, expected);
}

int main()
{
    using namespace conformance;
    std::vector<uint32_t> inputs(INPUTS * THREADS * WORDS);
    cudaError_t status = cudaSuccess;
    uint32_t *const from = take(inputs.size(), &status);
    uint32_t *const to = status ? nullptr : take(RESULTS * THREADS * WORDS, &status);
    uint32_t *const counter = status ? nullptr : take(1, &status);
    if (status != cudaSuccess)
        return 77;
    return compare({RESULTS, THREADS * WORDS, name_of, difference_of}, to,
                   [&](uint64_t seed, uint32_t *expected) {
                       draw_inputs(inputs.data(), seed);
                       return emulate(inputs.data(), expected, seed);
                   },
                   [&](uint64_t, uint32_t *results) {
                       cudaMemcpy(from, inputs.data(), inputs.size() * 4, cudaMemcpyHostToDevice);
                       cudaMemset(counter, 0, sizeof *counter);
                       exercise<<<1, THREADS, SHARED_BYTES>>>(from, results, (int *)counter);
                   });
}
