/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs conformance.h on the GPU and on the emulator: a line per instruction, exit status 1 where
 * they differ, 77 without a GPU. */
#include "emulator/conformance.h"

#include <stdio.h>
#include <string.h>

#include <vector>

int main()
{
    using namespace conformance;
    enum { ROUNDS = 20 };
    std::vector<uint32_t> inputs(INPUTS * THREADS * WORDS);
    std::vector<uint32_t> got(RESULTS * THREADS * WORDS), expected(got.size());
    uint32_t *from, *to;
    int *counter;
    bool same[RESULTS], all = true;
    cudaError_t status = cudaMalloc(&from, inputs.size() * 4);
    if (status == cudaSuccess)
        status = cudaMalloc(&to, got.size() * 4);
    if (status == cudaSuccess)
        status = cudaMalloc(&counter, sizeof *counter);
    if (status != cudaSuccess) {
        printf("no GPU: %s\n", cudaGetErrorString(status));
        return 77;
    }
    memset(same, 1, sizeof same);
    for (int round = 0; round < ROUNDS; round++) {
        draw_inputs(inputs.data(), (uint64_t)round + 1);
        memset(expected.data(), 0, expected.size() * 4);
        const char *wrong = emulate(inputs.data(), expected.data(), (uint64_t)round);
        if (*wrong) {
            printf("emulator: %s\n", wrong);
            return 1;
        }
        cudaMemcpy(from, inputs.data(), inputs.size() * 4, cudaMemcpyHostToDevice);
        cudaMemset(to, 0, got.size() * 4);
        cudaMemset(counter, 0, sizeof *counter);
        exercise<<<1, THREADS, SHARED_BYTES>>>(from, to, counter);
        status = cudaMemcpy(got.data(), to, got.size() * 4, cudaMemcpyDeviceToHost);
        if (status != cudaSuccess) {
            printf("GPU: %s\n", cudaGetErrorString(status));
            return 1;
        }
        for (int r = 0; r < RESULTS; r++) {
            const int at = r * THREADS * WORDS;
            const char *d = difference((enum result)r, &got[at], &expected[at]);
            if (*d && same[r]) {
                printf("FAIL %s, round %d: %s\n", name((enum result)r), round, d);
                same[r] = all = false;
            }
        }
    }
    for (int r = 0; r < RESULTS; r++)
        if (same[r])
            printf("same %s\n", name((enum result)r));
    return all ? 0 : 1;
}
