/* SPDX-License-Identifier: BSD-3-Clause */
/* What kernels have noted of lengths, tables and offsets that the host could not read (sound.h). */
#include <inttypes.h>

#include "cuda/host.h"

static attn_status tell(uint64_t report, const struct attn_reported *what, struct attn_message *m)
{
    const uint64_t field = report >> ATTN_CUDA_FIELD_SHIFT;
    const int64_t entry = (int64_t)(report & ((UINT64_C(1) << ATTN_CUDA_FIELD_SHIFT) - 1));
    const struct attn_axis *const pages = what->pages;
    if (report == ATTN_CUDA_SOUND)
        return ATTN_OK;
    if (field >= ATTN_CUDA_FIELDS || (field == ATTN_KEY_TABLE && pages->max_pages == 0))
        return attn_say(m, ATTN_INVALID_WORKSPACE, "%s: no call has left a report in it",
                        what->memory);
    if (field >= ATTN_ARRAYS)
        return attn_say(m, ATTN_INVALID_LENGTHS, "%s.max_seqlen: sequence %" PRId64 " is longer",
                        field == ATTN_CUDA_QUERY_MAX ? what->query : what->key, entry);
    const char *const name = what->array((enum attn_array)field);
    if (field == ATTN_KEY_TABLE)
        return attn_say(m, ATTN_INVALID_INDEX, "%s[%" PRId64 "][%" PRId64 "]: not one of the "
                        "%" PRId64 " pages", name, entry / pages->max_pages,
                        entry % pages->max_pages, pages->pages);
    return attn_say(m, field == ATTN_BIAS_OFFSET ? ATTN_INVALID_INDEX : ATTN_INVALID_LENGTHS,
                    "%s[%" PRId64 "]: out of its range, as the device found it", name, entry);
}

attn_status attn_cuda_told(const uint64_t *report, const struct attn_reported *what,
                           cudaStream_t stream, struct attn_message *m)
{
    uint64_t read = 0;
    cudaError_t error =
        cudaMemcpyAsync(&read, report, sizeof read, cudaMemcpyDeviceToHost, stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(stream);
    const attn_status status = attn_cuda_status(error, "reading what the device found", m);
    return status == ATTN_OK ? tell(read, what, m) : status;
}
