/* SPDX-License-Identifier: BSD-3-Clause */
/* The parts of the cuda backend's host side: which device (device.c), a problem's memory on it
 * (stage.c), the way there and back (ferry.c), what kernels note (report.c). backend_cuda.c puts
 * them together. */
#ifndef ATTN_CUDA_HOST_H
#define ATTN_CUDA_HOST_H

#include "backend.h"
#include "cuda/stream.h"
#include "message.h"
#include "on_device.h"

/* ---- device.c ------------------------------------------------------------------------------- */

struct attn_cuda_device {
    int32_t number;
    int32_t capability;   /* 80: 8.0 */
    int32_t shared_bytes; /* that a block may ask for */
};

/* Looks at device `number`, or at the calling thread's where it is ATTN_HOST. ATTN_NO_DEVICE: there
 * is none that the kernels are for; ATTN_DEVICE_ERROR: it does not answer. `why`, of `size` bytes,
 * is then the message. */
attn_status attn_cuda_find_device(int32_t number, struct attn_cuda_device *d, char *why,
                                  size_t size);

/* The calling thread's context, which may be null. */
cudaError_t attn_cuda_context(void **context);

/* What a thread had before it went to another place. */
enum attn_cuda_left { ATTN_CUDA_NOTHING_LEFT, ATTN_CUDA_CONTEXT_LEFT, ATTN_CUDA_DEVICE_LEFT };
struct attn_cuda_before {
    enum attn_cuda_left left;
    void *context;
    int device;
};

/* Goes to the context of a device's memory or, where that is of none, to the device; the host's is
 * worked on wherever the thread is. Then back, whether or not that status is ATTN_OK. */
attn_status attn_cuda_enter(struct attn_place at, struct attn_cuda_before *before,
                            struct attn_message *m);
attn_status attn_cuda_go_back(attn_status so_far, const struct attn_cuda_before *before,
                              struct attn_message *m);

/* ATTN_OK for cudaSuccess. Otherwise ATTN_NO_MEMORY or ATTN_DEVICE_ERROR, with what was being done
 * and the runtime's own words; what can be forgotten of the error is. */
attn_status attn_cuda_status(cudaError_t error, const char *what, struct attn_message *m);

/* The same for what is done even after a failure, where the status so far is not ATTN_OK: that
 * stays, and so does its message. */
attn_status attn_cuda_ended(attn_status so_far, cudaError_t error, const char *what,
                            struct attn_message *m);

/* ---- stage.c -------------------------------------------------------------------------------- */

/*
 * A copy of what a problem has in host memory, as kernels will find it: tensors without gaps, one
 * after the other, inputs before outputs. Of a problem whose tensors are the device's it holds the
 * arrays of integers that are not, and room for sound copies of those that are (p->unread).
 */
struct attn_cuda_image {
    int64_t inputs; /* bytes that the host fills; sound copies and outputs follow */
    int64_t bytes;  /* in all; both are multiples of ATTN_ALIGN */
};

/* False: it does not fit in 63 bits. Reads no tensor and no array. */
bool attn_cuda_image_plan(struct attn_cuda_image *image, const struct attn_problem *p);

/* Bytes from .. from + n - 1 of an image, those of inputs, to host memory. Here and below parts
 * begin and end at multiples of ATTN_ALIGN, or with the image. */
void attn_cuda_image_fill(const struct attn_problem *p, int64_t from, int64_t n, char *to);

/* Fills the inputs of an image of arrays in the device's memory, as attn_cuda_put() does. */
cudaError_t attn_cuda_image_put(const struct attn_problem *p, char *image, cudaStream_t stream);

/* The same problem with pointers and strides into an image at `at`, which need not be memory that
 * the host can read. */
struct attn_problem attn_cuda_image_problem(const struct attn_problem *p, char *at);

/* What the sound copies in an image at `at` are made from, and where they are: of arrays that the
 * host could read both are the image's. */
void attn_cuda_image_guides(const struct attn_problem *p, char *at, struct attn_cuda_guides *given,
                            struct attn_cuda_guides *sound);

/* Outputs among these bytes of an image, which stand at `part`, to where the caller wants them. */
void attn_cuda_image_spread(const struct attn_problem *p, int64_t from, int64_t n,
                            const char *part);

/* ---- report.c ------------------------------------------------------------------------------- */

/* Waits for the stream and tells what a report in the device's memory says: ATTN_OK, or the status
 * of what was wrong, with its message. */
attn_status attn_cuda_told(const uint64_t *report, const struct attn_reported *what,
                           cudaStream_t stream, struct attn_message *m);

/* ---- ferry.c -------------------------------------------------------------------------------- */

/* Sees to it that `ferry` has what the image needs, on the thread's device and in its context. */
cudaError_t attn_cuda_ferry_open(struct attn_ferry *ferry, const struct attn_cuda_image *image);

/* Takes an image's inputs to the device's memory at `memory`, in parts through two pinned buffers:
 * while one is copied, the other is filled. Does not wait for the last ones. */
cudaError_t attn_cuda_ferry_in(struct attn_ferry *ferry, const struct attn_problem *p,
                               const struct attn_cuda_image *image, char *memory,
                               cudaStream_t stream);

/* Takes its outputs to the caller likewise; they are there when it returns cudaSuccess. */
cudaError_t attn_cuda_ferry_out(struct attn_ferry *ferry, const struct attn_problem *p,
                                const struct attn_cuda_image *image, const char *memory,
                                cudaStream_t stream);

#endif
