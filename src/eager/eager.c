/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The eager backend: for each sequence and query head the scores by one GEMM, their softmax row by
 * row, the output by another. It holds the whole score matrix of a head, once per thread, and is
 * what the other backends are compared with. The BLAS library's global settings are left alone:
 * threads share out whole heads.
 */
#include <cblas.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "backend.h"
#include "parallel.h"

enum {
    OFFERED = ATTN_BIT(ATTN_USES_CAUSAL) | ATTN_BIT(ATTN_USES_WINDOW) |
              ATTN_BIT(ATTN_USES_KEY_MASK) | ATTN_BIT(ATTN_USES_LSE) | ATTN_BIT(ATTN_USES_PROBS) |
              ATTN_BIT(ATTN_USES_SEQUSED) | ATTN_BIT(ATTN_USES_PACKED) | ATTN_BIT(ATTN_USES_GQA)
};

/* Where a thread's matrices lie in its part of the workspace, in bytes. Those of q, k, v and out
 * are empty where the BLAS works on the tensor itself. */
struct room {
    int64_t scores; /* [nq][nk], of the longest sequences */
    int64_t lse;    /* [nq] */
    int64_t q, k;   /* [nq][d], [nk][d] */
    int64_t v, out; /* [nk][dv], [nq][dv] */
    int64_t bytes;  /* of the part, a multiple of ATTN_ALIGN */
};

/* Whether the token stride can be a leading dimension of a matrix with so many columns. */
static bool fits_blas(const struct attn_view *view, int64_t cols)
{
    return view->token >= cols && view->token <= INT_MAX;
}

#define REAL float
#define NAME(name) name##_f32
#define GEMM cblas_sgemm
#define EXP expf
#define LOG logf
#include "head_tmpl.h"

#define REAL double
#define NAME(name) name##_f64
#define GEMM cblas_dgemm
#define EXP exp
#define LOG log
#include "head_tmpl.h"

struct kernel {
    attn_dtype dtype;
    const char *name;
    void (*head)(const struct attn_problem *p, const struct room *room, char *part, int64_t b,
                 int64_t h);
};

static const struct kernel kernels[] = {
    {ATTN_F32, "gemm f32", head_f32},
    {ATTN_F64, "gemm f64", head_f64},
};

static const struct kernel *find_kernel(attn_dtype dtype)
{
    for (size_t n = 0; n < sizeof kernels / sizeof *kernels; n++)
        if (kernels[n].dtype == dtype)
            return &kernels[n];
    return NULL;
}

/* Appends rows * cols elements of so many bytes to a part; false where 63 bits do not hold it. */
static bool append(struct room *room, int64_t *place, int64_t rows, int64_t cols, int64_t size)
{
    int64_t bytes;
    *place = room->bytes;
    return !__builtin_mul_overflow(rows, cols, &bytes) &&
           !__builtin_mul_overflow(bytes, size, &bytes) &&
           !__builtin_add_overflow(bytes, ATTN_ALIGN - 1, &bytes) &&
           !__builtin_add_overflow(room->bytes, bytes / ATTN_ALIGN * ATTN_ALIGN, &room->bytes);
}

static bool find_room(const struct attn_problem *p, struct room *room)
{
    const int64_t size = attn_dtype_size(p->dtype);
    const int64_t nq = p->query.max, nk = p->key.max, d = p->head_dim, dv = p->head_dim_v;
    room->bytes = 0;
    return append(room, &room->scores, nq, nk, size) && append(room, &room->lse, nq, 1, size) &&
           append(room, &room->q, fits_blas(&p->q, d) ? 0 : nq, d, size) &&
           append(room, &room->k, fits_blas(&p->k, d) ? 0 : nk, d, size) &&
           append(room, &room->v, fits_blas(&p->v, dv) ? 0 : nk, dv, size) &&
           append(room, &room->out, fits_blas(&p->out, dv) ? 0 : nq, dv, size);
}

/* Whether the BLAS, which counts in int, can take the sizes; else the plan is refused. */
static bool countable(const struct attn_problem *p, struct attn_plan *plan)
{
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"query: length", p->query.max},
                 {"key: length", p->key.max},
                 {"head_dim:", p->head_dim},
                 {"head_dim_v:", p->head_dim_v}};
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++)
        if (sizes[n].value > INT_MAX) {
            attn_plan_refuse(plan, ATTN_UNSUPPORTED,
                             "%s %" PRId64 ", the eager backend's BLAS counts to %d",
                             sizes[n].name, sizes[n].value, INT_MAX);
            return false;
        }
    return true;
}

/* Heads of all sequences: what the threads share out. False where 63 bits do not hold it. */
static bool count_heads(const struct attn_problem *p, int64_t *heads)
{
    return !__builtin_mul_overflow(p->batch, p->heads_q, heads);
}

static void eager_plan(const struct attn_settings *s, const struct attn_problem *p,
                       struct attn_plan *plan)
{
    const struct kernel *kernel = find_kernel(p->dtype);
    struct room room;
    int64_t heads, bytes;
    if (!attn_plan_offers(plan, p, OFFERED, "eager"))
        return;
    if (!kernel) {
        attn_plan_refuse(plan, ATTN_UNSUPPORTED, "q.dtype: the eager backend offers f32 and f64");
        return;
    }
    if (!countable(p, plan))
        return;
    if (!count_heads(p, &heads)) {
        attn_plan_refuse(plan, ATTN_UNSUPPORTED,
                         "batch: %" PRId64 " sequences of %" PRId64 " heads are too many", p->batch,
                         p->heads_q);
        return;
    }
    plan->threads = heads < 1 ? 1 : heads < s->threads ? (int32_t)heads : s->threads;
    if (!find_room(p, &room) || __builtin_mul_overflow(room.bytes, plan->threads, &bytes) ||
        (uint64_t)bytes > SIZE_MAX) {
        attn_plan_refuse(plan, ATTN_UNSUPPORTED,
                         "workspace: scores of %" PRId64 " queries and %" PRId64
                         " keys for %d threads exceed the address space",
                         p->query.max, p->key.max, (int)plan->threads);
        return;
    }
    plan->workspace = heads > 0 ? (size_t)bytes : 0;
    plan->kernel_set = kernel;
    snprintf(plan->kernel, sizeof plan->kernel, "%s", kernel->name);
    plan->status = ATTN_OK;
}

struct job {
    const struct attn_problem *p;
    const struct kernel *kernel;
    struct room room;
    char *workspace;
    int64_t heads;
    _Atomic int64_t next; /* head that the next idle thread takes */
};

static void work(void *arg, int32_t thread, int32_t team)
{
    struct job *job = arg;
    char *part = job->workspace ? job->workspace + thread * job->room.bytes : NULL;
    (void)team;
    for (;;) {
        const int64_t n = atomic_fetch_add(&job->next, 1);
        if (n >= job->heads)
            return;
        job->kernel->head(job->p, &job->room, part, n / job->p->heads_q, n % job->p->heads_q);
    }
}

static attn_status eager_run(const struct attn_settings *s, const struct attn_problem *p,
                             const struct attn_plan *plan, void *workspace)
{
    struct job job = {.p = p, .kernel = plan->kernel_set, .workspace = workspace};
    (void)s;
    atomic_init(&job.next, 0);
    count_heads(p, &job.heads);
    find_room(p, &job.room);
    attn_parallel(plan->threads, work, &job);
    attn_clear_unused_rows(p);
    return ATTN_OK;
}

const struct attn_backend_ops attn_backend_eager = {ATTN_BACKEND_EAGER, eager_plan, eager_run};
