/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The eager backend: for each sequence and query head the scores by one GEMM, their softmax row by
 * row, the output by another; gradients likewise. It holds whole score matrices of a head, once
 * per thread, and is what the other backends are compared with. The BLAS library's global settings
 * are left alone: threads share out whole heads.
 */
#include <cblas.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "cpu/isa.h"
#include "eager/head.h"
#include "parallel.h"

static const uint32_t OFFERED =
    ATTN_BIT(ATTN_USES_SOFTCAP) | ATTN_BIT(ATTN_USES_BIAS) | ATTN_BIT(ATTN_USES_BIAS_OFFSET) |
    ATTN_BIT(ATTN_USES_ALIBI) | ATTN_BIT(ATTN_USES_SINK) | ATTN_BIT(ATTN_USES_CAUSAL) |
    ATTN_BIT(ATTN_USES_WINDOW) | ATTN_BIT(ATTN_USES_KEY_MASK) | ATTN_BIT(ATTN_USES_QUERY_MASK) |
    ATTN_BIT(ATTN_USES_MASK) | ATTN_BIT(ATTN_USES_DOCS) | ATTN_BIT(ATTN_USES_PREFIX) |
    ATTN_BIT(ATTN_USES_BLOCK_MASK) | ATTN_BIT(ATTN_USES_DROPOUT) | ATTN_BIT(ATTN_USES_LSE) |
    ATTN_BIT(ATTN_USES_PROBS) | ATTN_BIT(ATTN_USES_PROBS_FN) | ATTN_BIT(ATTN_USES_KEY_SUMS) |
    ATTN_BIT(ATTN_USES_SEQUSED) | ATTN_BIT(ATTN_USES_PACKED) | ATTN_BIT(ATTN_USES_PAGED) |
    ATTN_BIT(ATTN_USES_GQA);
static const uint32_t BACKWARD =
    ATTN_BIT(ATTN_USES_BACKWARD) | ATTN_BIT(ATTN_USES_DLSE) | ATTN_BIT(ATTN_USES_DBIAS) |
    ATTN_BIT(ATTN_USES_DSINK);

static uint32_t offered(attn_pass pass)
{
    return pass == ATTN_PASS_FORWARD ? OFFERED : (OFFERED | BACKWARD) & ~ATTN_BIT(ATTN_USES_PAGED);
}

#define REAL float
#define NAME(name) name##_f32
#define GEMM cblas_sgemm
#define TANH tanhf
#include "head_tmpl.h"

#define REAL double
#define NAME(name) name##_f64
#define GEMM cblas_dgemm
#define TANH tanh
#include "head_tmpl.h"

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

/* The same for a matrix of tokens, which takes none where the BLAS works on the tensor. */
static bool append_tokens(struct room *room, int64_t *place, const struct attn_problem *p,
                          const struct attn_view *view, const struct attn_axis *axis, int64_t cols)
{
    return append(room, place, in_place(p, view, axis, cols) ? 0 : axis->max, cols,
                  attn_dtype_size(attn_compute_dtype(p->dtype)));
}

static bool find_forward(const struct attn_problem *p, struct room *room, int64_t size)
{
    const int64_t nq = p->query.max, nk = p->key.max;
    return append(room, &room->lse, nq, 1, size) && append(room, &room->kind, nq, 1, 1) &&
           append(room, &room->sums, p->key_sums.data ? nk : 0, 1, sizeof(double)) &&
           append_tokens(room, &room->out, p, &p->out, &p->query, p->head_dim_v);
}

/* Elements of dbias, of the longest sequences, along an axis with this stride. */
static int64_t bias_extent(const struct attn_problem *p, const struct attn_axis *axis,
                           int64_t stride)
{
    return p->bias_offset.data ? axis->max : stride ? axis->span : 1;
}

static bool find_backward(const struct attn_problem *p, struct room *room, int64_t size)
{
    const int64_t nq = p->query.max, nk = p->key.max, d = p->head_dim, dv = p->head_dim_v;
    const int64_t rows = p->dbias.data ? bias_extent(p, &p->query, p->dbias.query) : 0;
    return append(room, &room->ds, nq, nk, size) && append(room, &room->seen, nq, nk, 1) &&
           append(room, &room->slope, p->softcap > 0 ? nk : 0, 1, size) &&
           append(room, &room->sums, rows, bias_extent(p, &p->key, p->dbias.key), sizeof(double)) &&
           append_tokens(room, &room->dout, p, &p->dout, &p->query, dv) &&
           append_tokens(room, &room->dq, p, &p->dq, &p->query, d) &&
           append_tokens(room, &room->dk, p, &p->dk, &p->key, d) &&
           append_tokens(room, &room->dv, p, &p->dv, &p->key, dv) &&
           append(room, &room->share, nk, d > dv ? d : dv, size);
}

static bool find_room(const struct attn_problem *p, struct room *room)
{
    const int64_t size = attn_dtype_size(attn_compute_dtype(p->dtype));
    const int64_t nq = p->query.max, nk = p->key.max;
    memset(room, 0, sizeof *room);
    return append(room, &room->scores, nq, nk, size) &&
           append(room, &room->bias, p->bias.data ? nk : 0, 1, size) &&
           append_tokens(room, &room->q, p, &p->q, &p->query, p->head_dim) &&
           append_tokens(room, &room->k, p, &p->k, &p->key, p->head_dim) &&
           append_tokens(room, &room->v, p, &p->v, &p->key, p->head_dim_v) &&
           (p->pass == ATTN_PASS_FORWARD ? find_forward(p, room, size)
                                         : find_backward(p, room, size));
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

/* The parts of dbias, none of which shares a sum with another: by sequence and by head, unless it
 * is summed over them. */
static int64_t bias_part_heads(const struct attn_problem *p)
{
    const bool per_head = p->bias_offset.data ? p->bias_per_head : p->dbias.head != 0;
    return per_head ? p->heads_q : 1;
}

static int64_t bias_part_count(const struct attn_problem *p)
{
    const bool per_sequence = p->bias_offset.data || p->dbias.batch;
    return !p->dbias.data ? 0 : bias_part_heads(p) * (per_sequence ? p->batch : 1);
}

static struct bias_part bias_part_of(const struct attn_problem *p, int64_t n)
{
    const int64_t heads = bias_part_heads(p), b = n / heads, h = n % heads;
    const bool per_sequence = p->bias_offset.data || p->dbias.batch;
    struct attn_sequence s = {.p = p};
    if (p->batch > 0)
        s = attn_sequence_of(p, b);
    struct bias_part part = {.b = b, .b_end = per_sequence ? b + 1 : p->batch, .h = h};
    part.h_end = heads > 1 ? h + 1 : p->heads_q;
    part.to = attn_sequence_bias(&s, p->dbias);
    part.rows = p->bias_offset.data ? s.nq : bias_extent(p, &p->query, p->dbias.query);
    part.cols = p->bias_offset.data ? s.nk : bias_extent(p, &p->key, p->dbias.key);
    part.to.data += h * part.to.head * attn_dtype_size(p->bias_dtype);
    return part;
}

/* What the threads share out first: query heads of all sequences, or groups of them, with the key
 * head that a gradient has to be summed for. */
static int64_t item_count(const struct attn_problem *p)
{
    return p->batch * (p->pass == ATTN_PASS_FORWARD ? p->heads_q : p->heads_kv);
}

/* Numbers that dsink is summed from. */
static int64_t sink_count(const struct attn_problem *p)
{
    return p->dsink.data ? p->batch * p->heads_q : 0;
}

static void eager_plan(const struct attn_settings *s, const struct attn_problem *p,
                       struct attn_plan *plan)
{
    struct room room;
    int64_t bytes, sinks = 0;
    if (!attn_plan_offers(plan, p, offered(p->pass), "eager"))
        return;
    if (!countable(p, plan))
        return;
    const int64_t items = item_count(p), parts = bias_part_count(p);
    const int64_t most = items > parts ? items : parts;
    plan->threads = most < 1 ? 1 : most < s->threads ? (int32_t)most : s->threads;
    if (!find_room(p, &room) || __builtin_mul_overflow(room.bytes, plan->threads, &bytes) ||
        __builtin_mul_overflow(sink_count(p), (int64_t)sizeof(double), &sinks) ||
        __builtin_add_overflow(bytes, sinks, &bytes) || (uint64_t)bytes > SIZE_MAX) {
        attn_plan_refuse(plan, ATTN_UNSUPPORTED,
                         "workspace: scores of %" PRId64 " queries and %" PRId64
                         " keys for %d threads exceed the address space",
                         p->query.max, p->key.max, (int)plan->threads);
        return;
    }
    plan->workspace = most > 0 ? (size_t)bytes : 0;
    plan->kernel_set = attn_isa_softmax(s->isa, attn_compute_dtype(p->dtype));
    plan->kernel[0] = "gemm and softmax";
    plan->kernel[1] = attn_dtype_name(p->dtype);
    plan->kernel[2] = attn_isa_name(s->isa, NULL);
    plan->status = ATTN_OK;
}

struct job {
    const struct attn_problem *p;
    const struct attn_softmax *softmax;
    struct room room;
    char *workspace;
    double *sinks; /* [B][Hq], what each adds to dsink */
    int64_t items;
    void (*item)(const struct job *job, int64_t n, char *part);
    _Atomic int64_t next; /* item that the next idle thread takes */
};

static void forward_item(const struct job *job, int64_t n, char *part)
{
    const struct head t = head_of(job->p, n / job->p->heads_q, n % job->p->heads_q, job->softmax);
    if (job->p->dtype == ATTN_F64)
        head_f64(&t, &job->room, part);
    else
        head_f32(&t, &job->room, part);
}

static void backward_item(const struct job *job, int64_t n, char *part)
{
    const struct attn_problem *p = job->p;
    const int64_t b = n / p->heads_kv, kv = n % p->heads_kv;
    double *sinks = job->sinks ? job->sinks + n * p->group : NULL;
    if (p->dtype == ATTN_F64)
        group_f64(p, b, kv, job->softmax, &job->room, part, sinks);
    else
        group_f32(p, b, kv, job->softmax, &job->room, part, sinks);
}

static void bias_item(const struct job *job, int64_t n, char *part)
{
    const struct bias_part to = bias_part_of(job->p, n);
    if (job->p->dtype == ATTN_F64)
        bias_part_f64(job->p, &to, job->softmax, &job->room, part);
    else
        bias_part_f32(job->p, &to, job->softmax, &job->room, part);
}

static void work(void *arg, int32_t thread, int32_t team)
{
    struct job *job = arg;
    char *part = job->workspace ? job->workspace + thread * job->room.bytes : NULL;
    (void)team;
    for (;;) {
        const int64_t n = atomic_fetch_add(&job->next, 1);
        if (n >= job->items)
            return;
        job->item(job, n, part);
    }
}

static void share_out(struct job *job, int32_t threads, int64_t items,
                      void (*item)(const struct job *job, int64_t n, char *part))
{
    job->items = items;
    job->item = item;
    atomic_store(&job->next, 0);
    attn_parallel(threads, work, job);
}

/* Sums over sequences are made in their order, whichever thread did them. */
static void sum_sinks(const struct job *job)
{
    const struct attn_problem *p = job->p;
    for (int64_t h = 0; h < p->heads_q; h++) {
        double sum = 0;
        for (int64_t b = 0; b < p->batch; b++)
            sum += job->sinks[b * p->heads_q + h];
        attn_put_number(p->dsink.data, attn_compute_dtype(p->dtype), h * p->dsink.head, sum);
    }
}

static attn_status eager_run(const struct attn_settings *s, const struct attn_problem *p,
                             const struct attn_plan *plan, void *workspace,
                             struct attn_message *m)
{
    struct job job = {.p = p, .softmax = plan->kernel_set, .workspace = workspace};
    (void)s, (void)m;
    find_room(p, &job.room);
    if (p->pass == ATTN_PASS_FORWARD) {
        share_out(&job, plan->threads, item_count(p), forward_item);
    } else {
        if (p->dsink.data)
            job.sinks = (double *)(job.workspace + plan->threads * job.room.bytes);
        share_out(&job, plan->threads, item_count(p), backward_item);
        share_out(&job, plan->threads, bias_part_count(p), bias_item);
    }
    if (p->dsink.data)
        sum_sinks(&job);
    attn_clear_unused_rows(p);
    return ATTN_OK;
}

const struct attn_backend_ops attn_backend_eager = {ATTN_BACKEND_EAGER, false, eager_plan,
                                                   eager_run, NULL};
