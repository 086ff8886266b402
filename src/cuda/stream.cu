/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda/stream.h"

#include "cuda/launch.h"
#include "cuda/prepare.h"
#include "cuda/sound.h"

namespace {

/* For so many pieces of work that blocks share out: no more than any device runs at once. (static,
 * as nvcc exports what only the namespace hides.) */
static int64_t blocks(int64_t n)
{
    const int64_t most = 4096;
    return n < most ? n : most;
}

} // namespace

extern "C" cudaError_t attn_cuda_start(const struct attn_cuda_launch *l,
                                       const struct attn_cuda_args *args, cudaStream_t stream)
{
    int64_t blocks = l->blocks;
    if (l->stays) {
        int device = 0, most = 0;
        cudaError_t error = cudaGetDevice(&device);
        if (error == cudaSuccess)
            error = cudaDeviceGetAttribute(&most, cudaDevAttrMultiProcessorCount, device);
        if (error != cudaSuccess)
            return error;
        blocks = blocks < most ? blocks : most;
    }
    return launch(l->function, {blocks, l->threads, l->shared, stream}, *args);
}

extern "C" cudaError_t attn_cuda_put(void *to, const void *from, size_t bytes, cudaStream_t stream)
{
    prepare::words w = {};
    w.to = (uint32_t *)to;
    w.count = (int)(bytes / sizeof w.word[0]);
    memcpy(w.word, from, bytes);
    return launch(prepare::put, {1, prepare::THREADS, 0, stream}, w);
}

extern "C" cudaError_t attn_cuda_make_sound(const struct attn_cuda_soundness *s,
                                            cudaStream_t stream)
{
    const int64_t pages = s->sound.key.table ? s->batch * s->sound.key.max_pages : 0;
    const cudaError_t error =
        launch(sound::lengths, {1, sound::THREADS, sound::SHARED, stream}, *s);
    if (error != cudaSuccess || pages == 0)
        return error;
    return launch(sound::pages,
                  {blocks((pages - 1) / sound::THREADS + 1), sound::THREADS, 0, stream}, *s);
}

extern "C" cudaError_t attn_cuda_fit_append(const struct attn_cuda_soundness *s,
                                            cudaStream_t stream)
{
    if (s->batch == 0)
        return cudaSuccess;
    return launch(sound::fit,
                  {blocks((s->batch - 1) / sound::THREADS + 1), sound::THREADS, 0, stream}, *s);
}

extern "C" cudaError_t attn_cuda_clear_rows(const struct attn_problem *p, cudaStream_t stream)
{
    if (p->query.rows == 0)
        return cudaSuccess;
    return launch(prepare::clear_rows, {blocks(p->query.rows), prepare::THREADS, 0, stream}, *p);
}
