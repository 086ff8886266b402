/* SPDX-License-Identifier: BSD-3-Clause */
/* Rounds of a conformance program on a GPU and on the emulator, compared result by result. */
#ifndef EMULATOR_CONFORMANCE_GPU_H
#define EMULATOR_CONFORMANCE_GPU_H

#include <stdio.h>
#include <string.h>

#include <vector>

namespace conformance {

/* Memory of the GPU; null and a line that says so, with `status` set, if there is none: no GPU,
 * which is no failure, or no memory of it. */
inline uint32_t *take(size_t words, cudaError_t *status)
{
    void *data = nullptr;
    if (*status == cudaSuccess)
        *status = cudaMalloc(&data, words * sizeof(uint32_t));
    if (*status == cudaErrorNoDevice || *status == cudaErrorInsufficientDriver)
        printf("no GPU: %s\n", cudaGetErrorString(*status));
    else if (*status != cudaSuccess)
        printf("FAIL GPU: %s\n", cudaGetErrorString(*status));
    return (uint32_t *)data;
}

struct results {
    int count;
    size_t words; /* of each */
    const char *(*name)(int);
    const char *(*difference)(int, const uint32_t *got, const uint32_t *expected); /* "": none */
};

/* emulate(seed, expected) answers what went wrong, "" if nothing did; launch(seed, results) puts
 * the same on the GPU, with results[] in its memory. A line for each result; 1 if some differ. */
template <class Emulate, class Launch>
int compare(const results &r, uint32_t *on_gpu, Emulate emulate, Launch launch)
{
    enum { ROUNDS = 20 };
    std::vector<uint32_t> got(r.words * (size_t)r.count), expected(got.size());
    std::vector<bool> same((size_t)r.count, true);
    int status = 0;
    for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
        memset(expected.data(), 0, expected.size() * 4);
        const char *const wrong = emulate(seed, expected.data());
        if (*wrong) {
            printf("FAIL emulator: %s\n", wrong);
            return 1;
        }
        cudaMemset(on_gpu, 0, got.size() * 4);
        launch(seed, on_gpu);
        const cudaError_t error =
            cudaMemcpy(got.data(), on_gpu, got.size() * 4, cudaMemcpyDeviceToHost);
        if (error != cudaSuccess) {
            printf("FAIL GPU: %s\n", cudaGetErrorString(error));
            return 1;
        }
        for (int n = 0; n < r.count; n++) {
            const size_t at = (size_t)n * r.words;
            const char *const d = r.difference(n, &got[at], &expected[at]);
            if (*d && same[(size_t)n]) {
                printf("FAIL %s, round %d: %s\n", r.name(n), (int)seed, d);
                same[(size_t)n] = false;
                status = 1;
            }
        }
    }
    for (int n = 0; n < r.count; n++)
        if (same[(size_t)n])
            printf("same %s\n", r.name(n));
    return status;
}

} // namespace conformance

#endif
