/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The cuda backend: which kernel, and the call around it. Tensors of a device are used as they are,
 * in the order of the caller's stream and without waiting for it; tensors of the host go to the
 * device and back, and the call returns when they are there.
 */
#include <inttypes.h>
#include <stdio.h>

#include "cuda/host.h"

/* Everything but probabilities, sums of them, and gradients. */
static const uint32_t OFFERED =
    ATTN_BIT(ATTN_USES_SOFTCAP) | ATTN_BIT(ATTN_USES_BIAS) | ATTN_BIT(ATTN_USES_BIAS_OFFSET) |
    ATTN_BIT(ATTN_USES_ALIBI) | ATTN_BIT(ATTN_USES_SINK) | ATTN_BIT(ATTN_USES_CAUSAL) |
    ATTN_BIT(ATTN_USES_WINDOW) | ATTN_BIT(ATTN_USES_KEY_MASK) | ATTN_BIT(ATTN_USES_QUERY_MASK) |
    ATTN_BIT(ATTN_USES_MASK) | ATTN_BIT(ATTN_USES_DOCS) | ATTN_BIT(ATTN_USES_PREFIX) |
    ATTN_BIT(ATTN_USES_BLOCK_MASK) | ATTN_BIT(ATTN_USES_DROPOUT) | ATTN_BIT(ATTN_USES_LSE) |
    ATTN_BIT(ATTN_USES_SEQUSED) | ATTN_BIT(ATTN_USES_PACKED) | ATTN_BIT(ATTN_USES_PAGED) |
    ATTN_BIT(ATTN_USES_GQA);

/* ---- The plan ------------------------------------------------------------------------------- */

/* Nothing to write, and then nobody has to ask where that lies. */
static bool is_empty(const struct attn_problem *p)
{
    return p->query.rows == 0 || p->heads_q == 0;
}

/* What a call takes of the device's memory: a report on what the host could not read, an image,
 * what the kernels work in. */
struct room {
    int64_t report; /* bytes; 0: none */
    struct attn_cuda_image image;
    int64_t bytes;
};

static bool find_room(const struct attn_problem *p, const struct attn_cuda_forward *f,
                      struct room *r)
{
    *r = (struct room){p->unread ? ATTN_ALIGN : 0, {0, 0}, 0};
    return is_empty(p) ||
           (attn_cuda_image_plan(&r->image, p) && f->workspace < (size_t)ATTN_CUDA_TOO_MANY &&
            !__builtin_add_overflow(r->image.bytes, (int64_t)f->workspace, &r->bytes) &&
            !__builtin_add_overflow(r->bytes, r->report, &r->bytes));
}

static bool fits_grids(const struct attn_cuda_forward *f)
{
    for (int n = 0; n < f->count; n++)
        if (f->launch[n].blocks > INT32_MAX)
            return false;
    return true;
}

/* The kernels for the problem and what they launch; null, with the plan refused. */
static const struct attn_cuda_pair *pick(struct attn_plan *plan, const struct attn_problem *p,
                                         const struct attn_cuda_device *d,
                                         struct attn_cuda_forward *f)
{
    if (!attn_plan_offers(plan, p, OFFERED, "cuda"))
        return NULL;
    const struct attn_cuda_pair *pair = attn_cuda_pick(p, d->capability, d->shared_bytes);
    if (!pair) {
        attn_plan_refuse(plan, ATTN_UNSUPPORTED,
                         "head_dim: %" PRId64 ", no kernel for %s fits the %d bytes of shared "
                         "memory that device %d gives a block", p->head_dim, attn_dtype_name(p->dtype),
                         (int)d->shared_bytes, (int)d->number);
        return NULL;
    }
    attn_cuda_plan_forward(p, pair, f);
    if (!fits_grids(f)) {
        attn_plan_refuse(plan, ATTN_UNSUPPORTED, "batch, heads_q: %" PRId64 " sequences of up to "
                         "%" PRId64 " queries need more blocks than a grid has", p->batch,
                         p->query.max);
        return NULL;
    }
    return pair;
}

static void plan(const struct attn_settings *s, const struct attn_problem *p,
                 struct attn_plan *plan)
{
    struct attn_cuda_device d;
    struct attn_cuda_forward f;
    struct room r;
    char why[160];
    const attn_status found = attn_cuda_find_device(p->place.device, &d, why, sizeof why);
    (void)s;
    if (found != ATTN_OK) {
        attn_plan_refuse(plan, found, "%s", why);
        return;
    }
    const struct attn_cuda_pair *pair = pick(plan, p, &d, &f);
    if (!pair)
        return;
    if (!find_room(p, &f, &r)) {
        attn_plan_refuse(plan, ATTN_UNSUPPORTED, "batch: its workspace does not fit in 63 bits");
        return;
    }
    const bool staged = p->place.device == ATTN_HOST;
    plan->workspace = staged ? 0 : (size_t)r.bytes;
    plan->brings_own = true;
    plan->threads = 1;
    plan->kernel_set = pair;
    plan->kernel[0] = pair->name;
}

/* ---- The call ------------------------------------------------------------------------------- */

/* A call under way on its device. */
struct work {
    const struct attn_problem *p; /* as the caller gave it: its arrays of integers can be read, but
                                     for p->unread */
    struct attn_cuda_forward forward;
    struct room room;
    cudaStream_t stream;
    struct attn_ferry *ferry; /* of a staged call */
    struct attn_message *m;
};

/* Whether the query's tensors have rows that no query owns, or may have them. */
static bool has_unused_rows(const struct attn_problem *p)
{
    const struct attn_axis *q = &p->query;
    if (p->unread & (ATTN_BIT(ATTN_QUERY_CU) | ATTN_BIT(ATTN_QUERY_USED)) ||
        (p->unread && p->bias_offset.data))
        return true;
    for (int64_t b = 0; q->used && b < p->batch; b++)
        if (attn_axis_len(q, b) < attn_axis_room(q, b))
            return true;
    return q->cu && attn_index_at(q->cu, q->cu64, p->batch) < q->rows;
}

/* Puts the kernels on the stream; `memory` is the device's and holds the image. */
static attn_status launch(const struct work *w, char *memory)
{
    char *const image = memory + w->room.report;
    const struct attn_problem on_device = attn_cuda_image_problem(w->p, image);
    cudaError_t error = cudaSuccess;
    if (has_unused_rows(w->p))
        error = attn_cuda_clear_rows(&on_device, w->stream);
    for (int n = 0; n < w->forward.count && error == cudaSuccess; n++) {
        struct attn_cuda_args args;
        attn_cuda_forward_args(&w->forward, n, &on_device, image + w->room.image.bytes, &args);
        error = attn_cuda_start(&w->forward.launch[n], &args, w->stream);
    }
    return attn_cuda_status(error, "launching a kernel", w->m);
}

/* Sound copies of what the host could not read; the report begins the memory. */
static cudaError_t make_sound(const struct work *w, char *memory)
{
    const struct attn_problem *p = w->p;
    struct attn_cuda_soundness s = {.batch = p->batch,
                                    .bias_heads = p->bias_per_head ? p->heads_q : 1,
                                    .bias_elements = p->bias_elements,
                                    .report = (uint64_t *)memory};
    attn_cuda_image_guides(p, memory + w->room.report, &s.given, &s.sound);
    return attn_cuda_make_sound(&s, w->stream);
}

static attn_status run_in_place(const struct work *w, char *memory)
{
    cudaError_t error = attn_cuda_image_put(w->p, memory + w->room.report, w->stream);
    if (error == cudaSuccess && w->p->unread)
        error = make_sound(w, memory);
    const attn_status status = attn_cuda_status(error, "passing lengths", w->m);
    return status == ATTN_OK ? launch(w, memory) : status;
}

/* Inputs to the device, kernels, outputs back: all the host's memory is the caller's again after
 * it.
 */
static attn_status run_staged(const struct work *w, char *memory)
{
    const struct attn_cuda_image *const image = &w->room.image;
    attn_status status =
        attn_cuda_status(attn_cuda_ferry_in(w->ferry, w->p, image, memory, w->stream),
                         "copying inputs", w->m);
    if (status == ATTN_OK)
        status = launch(w, memory);
    if (status == ATTN_OK)
        status = attn_cuda_status(attn_cuda_ferry_out(w->ferry, w->p, image, memory, w->stream),
                                  "computing", w->m);
    /* Also after a failure, when copies may be under way. */
    return attn_cuda_ended(status, cudaStreamSynchronize(w->stream), "computing", w->m);
}

/* What a staged call needs of the host; host memory cannot be part of a graph. */
static attn_status open_ferry(const struct work *w)
{
    enum cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(w->stream, &capturing);
    if (error == cudaSuccess && capturing != cudaStreamCaptureStatusNone)
        return attn_say(w->m, ATTN_DEVICE_ERROR, "cuda: q: lies in host memory, and the stream is "
                        "being captured");
    if (error == cudaSuccess)
        error = attn_cuda_ferry_open(w->ferry, &w->room.image);
    return attn_cuda_status(error, "pinned memory", w->m);
}

/* `work` in the caller's workspace or, where that is null, in memory that comes and goes in the
 * order of the stream. */
static attn_status in_memory(const struct work *w, void *workspace,
                             attn_status (*work)(const struct work *w, char *memory))
{
    const bool take = w->room.bytes > 0 && !workspace;
    void *memory = workspace;
    attn_status status = ATTN_OK;
    if (take)
        status = attn_cuda_status(cudaMallocAsync(&memory, (size_t)w->room.bytes, w->stream),
                                  "workspace", w->m);
    if (status != ATTN_OK)
        return status;
    status = work(w, memory);
    return take ? attn_cuda_ended(status, cudaFreeAsync(memory, w->stream), "workspace", w->m)
                : status;
}

/* The caller's workspace is the device's, or there is none. */
static attn_status run_on_device(const struct work *w, void *workspace)
{
    if (w->p->place.device != ATTN_HOST)
        return in_memory(w, workspace, run_in_place);
    const attn_status status = open_ferry(w);
    return status == ATTN_OK ? in_memory(w, NULL, run_staged) : status;
}

/* `work` where the problem's tensors lie, which is the calling thread's place meanwhile. */
static attn_status at_its_place(const struct work *w, void *workspace,
                                attn_status (*work)(const struct work *w, void *workspace))
{
    struct attn_cuda_before before;
    attn_status status = attn_cuda_enter(w->p->place, &before, w->m);
    if (status != ATTN_OK)
        return status;
    status = work(w, workspace);
    return attn_cuda_go_back(status, &before, w->m);
}

static attn_status run(const struct attn_settings *s, const struct attn_problem *p,
                       const struct attn_plan *plan, void *workspace, struct attn_message *m)
{
    struct attn_ferry own = {.bytes = 0}; /* of a call without a context */
    struct work w = {.p = p, .stream = s->stream, .ferry = s->ferry ? s->ferry : &own, .m = m};
    if (is_empty(p))
        return ATTN_OK;
    attn_cuda_plan_forward(p, plan->kernel_set, &w.forward);
    find_room(p, &w.forward, &w.room);
    const attn_status status = at_its_place(&w, workspace, run_on_device);
    attn_cuda_ferry_release(&own);
    return status;
}

/* ---- What was wrong on the device ------------------------------------------------------------ */

static attn_status read_report(const struct work *w, void *workspace)
{
    const struct attn_reported what = {attn_array_name, "query", "key", "workspace",
                                       &w->p->key};
    return attn_cuda_told(workspace, &what, w->stream, w->m);
}

static attn_status status(const struct attn_settings *s, const struct attn_problem *p,
                          void *workspace, struct attn_message *m)
{
    const struct work w = {.p = p, .stream = s->stream, .m = m};
    return is_empty(p) ? ATTN_OK : at_its_place(&w, workspace, read_report);
}

const struct attn_backend_ops attn_backend_cuda = {ATTN_BACKEND_CUDA, true, plan, run, status};
