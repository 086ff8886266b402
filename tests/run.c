/* SPDX-License-Identifier: BSD-3-Clause */
#include "run.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_memory.h"
#include "memory.h"
#include "report.h"
#include "tiles.h"
#include "wall.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define FENCE(at, bytes) __asan_poison_memory_region(at, bytes)
#define UNFENCE(at, bytes) __asan_unpoison_memory_region(at, bytes)
enum { FENCES = 1 }; /* no bytes but its own may be read */
#else
#define FENCE(at, bytes) ((void)(at), (void)(bytes))
#define UNFENCE(at, bytes) ((void)(at), (void)(bytes))
enum { FENCES = 0 };
#endif

enum { GUARD = 256, GUARD_BYTE = 0xa5, NAN_BYTE = 0xff, LINE = 1200 };

/* Memory between two guards: the first byte of `data` is `shift` bytes past a multiple of 64. Or
 * between a guard and a wall, which is right behind it, or so that it is aligned. */
struct guarded {
    unsigned char *base, *data;
    size_t bytes, before, after;
    bool walled;
};

static struct guarded guard_open(size_t bytes, size_t shift)
{
    struct guarded g = {.bytes = bytes};

    g.base = test_alloc(bytes + shift + 2 * GUARD + 64);
    memset(g.base, GUARD_BYTE, bytes + shift + 2 * GUARD + 64);
    g.before = GUARD + (64 - (uintptr_t)g.base % 64) % 64 + shift;
    g.data = g.base + g.before;
    g.after = bytes + shift + 2 * GUARD + 64 - g.before - bytes;
    FENCE(g.base, g.before);
    FENCE(g.data + bytes, g.after);
    return g;
}

/* data is a multiple of `align` bytes from the wall. */
static struct guarded guard_before_wall(size_t bytes, size_t align)
{
    struct guarded g = {.bytes = bytes, .before = GUARD, .after = -bytes % align, .walled = true};

    g.base = wall_open(GUARD + bytes + g.after);
    g.data = g.base + GUARD;
    memset(g.base, GUARD_BYTE, GUARD);
    memset(g.data + bytes, GUARD_BYTE, g.after);
    return g;
}

static bool guard_byte_in(const unsigned char *at, size_t bytes)
{
    for (size_t n = 0; n < bytes; n++)
        if (at[n] != GUARD_BYTE)
            return false;
    return true;
}

static bool guard_intact(const struct guarded *g)
{
    UNFENCE(g->base, g->before);
    UNFENCE(g->data + g->bytes, g->after);
    return guard_byte_in(g->base, g->before) && guard_byte_in(g->data + g->bytes, g->after);
}

static void guard_close(struct guarded *g)
{
    UNFENCE(g->base, g->before);
    UNFENCE(g->data + g->bytes, g->after);
    if (g->walled)
        wall_close(g->base, g->before + g->bytes + g->after);
    else
        free(g->base);
}

/* One call's memory: a copy of every buffer, the workspace, and what probs_fn was told. */
struct call {
    struct guarded copy[BUFFERS], workspace;
    struct lent lent[BUFFERS], lent_workspace; /* what is the device's of that */
    bool has_workspace;
    bool on_device; /* tensors and the workspace */
    bool walled;
    struct tiles tiles;
    attn_desc desc;
    attn_pass pass;
};

static bool is_output(const struct buffer *b, int64_t n) { return b->role[n] == ROLE_OUTPUT; }

static struct lent lend(const struct guarded *g)
{
    struct lent l = {.base = g->base, .data = g->data, .whole = g->before + g->bytes + g->after,
                     .bytes = g->bytes};
    device_lend(&l);
    return l;
}

/* Gives the device what it is to have of a call's memory. */
static void call_lend(struct call *c, const struct problem *p, unsigned char **data)
{
    for (int n = 0; n < BUFFERS; n++)
        if (c->copy[n].base && device_has(p, n)) {
            c->lent[n] = lend(&c->copy[n]);
            data[n] = c->lent[n].at;
        }
}

static void call_fetch(const struct call *c)
{
    for (int n = 0; n < BUFFERS; n++)
        if (c->lent[n].at)
            device_fetch(&c->lent[n]);
    if (c->lent_workspace.at)
        device_fetch(&c->lent_workspace);
}

static void call_release(struct call *c)
{
    for (int n = 0; n < BUFFERS; n++)
        if (c->lent[n].at)
            device_release(&c->lent[n]);
    if (c->lent_workspace.at)
        device_release(&c->lent_workspace);
}

/* Lengths that the host cannot read have a bound, which need not be told otherwise: the longest
 * one, or 1 where all are 0. */
static void side_bound(const struct problem *p, const struct side *s, int cu, int used,
                       attn_side *a)
{
    const bool unread = s->has_used ? device_has(p, used) : s->packed && device_has(p, cu);
    int64_t longest = 1;

    if (!unread || a->max_seqlen)
        return;
    for (int64_t b = 0; b < p->batch; b++)
        longest = s->used[b] > longest ? s->used[b] : longest;
    if (s->packed || s->paged || p->seed / 4 % 2)
        a->max_seqlen = longest;
}

/* What the call has to be told of arrays that are the device's. */
static void call_bound(struct call *c, const struct problem *p)
{
    const int64_t end = p->bias_start[p->batch];

    side_bound(p, &p->query, BUFFER_CU_Q, BUFFER_USED_Q, &c->desc.query);
    side_bound(p, &p->key, BUFFER_CU_K, BUFFER_USED_K, &c->desc.key);
    if (p->bias_by_offset && device_has(p, BUFFER_BIAS_OFFSET))
        c->desc.bias_elements = end > 0 ? end : 1;
}

static void call_open(struct call *c, const struct problem *p, const struct target *t)
{
    unsigned char *data[BUFFERS] = {NULL};

    memset(c, 0, sizeof *c);
    c->on_device = device_is_for(p, t);
    c->walled = !FENCES && !c->on_device && p->seed / 2 % 2;
    for (int n = 0; n < BUFFERS; n++) {
        const struct buffer *b = &p->buffers[n];
        const size_t bytes = (size_t)b->count * b->element;
        if (b->element == 0)
            continue;
        c->copy[n] = c->walled ? guard_before_wall(bytes, 1)
                               : guard_open(bytes, (size_t)b->shift * b->element);
        data[n] = c->copy[n].data;
        memcpy(data[n], b->image, bytes);
        for (int64_t at = 0; at < b->count; at++)
            if (is_output(b, at))
                memset(data[n] + (size_t)at * b->element, NAN_BYTE, b->element);
    }
    if (c->on_device)
        call_lend(c, p, data);
    c->desc = problem_desc(p, data);
    c->pass = p->backward ? ATTN_PASS_BACKWARD : ATTN_PASS_FORWARD;
    if (p->has_tiles) {
        tiles_open(&c->tiles, p);
        c->desc.probs_fn = tiles_take;
        c->desc.probs_user = &c->tiles;
    }
    if (c->on_device)
        call_bound(c, p);
}

static void call_close(struct call *c)
{
    call_release(c);
    for (int n = 0; n < BUFFERS; n++)
        if (c->copy[n].base)
            guard_close(&c->copy[n]);
    if (c->has_workspace)
        guard_close(&c->workspace);
    tiles_close(&c->tiles);
}

static attn_status call_workspace(struct call *c, const struct target *t)
{
    size_t bytes = 0;
    const attn_status status = attn_workspace_size(t->context, &c->desc, c->pass, &bytes);

    if (status != ATTN_OK)
        return status;
    c->workspace = c->walled ? guard_before_wall(bytes, 64) : guard_open(bytes, 0);
    c->has_workspace = true;
    memset(c->workspace.data, NAN_BYTE, bytes);
    if (c->on_device)
        c->lent_workspace = lend(&c->workspace);
    c->desc.workspace = c->on_device ? c->lent_workspace.at : c->workspace.data;
    c->desc.workspace_bytes = bytes;
    return ATTN_OK;
}

/* Guards, gaps and inputs are as they were. */
static bool call_clean(const struct call *c, const struct problem *p, char *why, size_t size)
{
    for (int n = 0; n < BUFFERS; n++) {
        const struct buffer *b = &p->buffers[n];
        if (b->element == 0)
            continue;
        if (!guard_intact(&c->copy[n])) {
            snprintf(why, size, "%s: written outside its memory", buffer_names[n]);
            return false;
        }
        for (int64_t at = 0; at < b->count; at++)
            if (!is_output(b, at) &&
                memcmp(c->copy[n].data + (size_t)at * b->element,
                       b->image + (size_t)at * b->element, b->element) != 0) {
                snprintf(why, size, "%s: element %lld was changed", buffer_names[n], (long long)at);
                return false;
            }
    }
    if (c->has_workspace && !guard_intact(&c->workspace)) {
        snprintf(why, size, "workspace of %zu bytes: written outside", c->workspace.bytes);
        return false;
    }
    return true;
}

/* Rows from..to of sequence b of an output belong to no token that takes part and hold x. */
static bool rows_hold(const struct call *c, const struct tensor *t, const struct side *s, int64_t b,
                      int64_t from, int64_t to, double x, char *why, size_t size)
{
    for (int64_t i = from; i < to; i++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t w = 0; w < t->width; w++) {
                const int64_t at = tensor_at(t, s, b, i, h) + w;
                const double got = element_get(t->dtype, c->copy[t->buffer].data, at);
                if (got == x)
                    continue;
                snprintf(why, size, "%s: row %lld of sequence %lld, head %lld, takes no part and "
                         "holds %g, not %g", buffer_names[t->buffer], (long long)i, (long long)b,
                         (long long)h, got, x);
                return false;
            }
    return true;
}

static bool unused_hold(const struct problem *p, const struct call *c, const struct tensor *t,
                        const struct side *side, double x, char *why, size_t size)
{
    const struct side s = side_unpaged(side);
    struct side all = s;

    for (int64_t b = 0; b < p->batch; b++)
        if (!rows_hold(c, t, &s, b, s.used[b], s.packed ? s.room[b] : s.seqlen, x, why, size))
            return false;
    all.start[0] = 0;
    return !s.packed || rows_hold(c, t, &all, 0, s.start[p->batch], s.tokens, x, why, size);
}

/* Probabilities past the lengths of a sequence are 0. */
static bool probs_hold(const struct problem *p, const struct call *c, char *why, size_t size)
{
    const int64_t nq = side_span(&p->query, p->batch), nk = side_span(&p->key, p->batch);

    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->hq; h++)
            for (int64_t i = 0; i < nq; i++)
                for (int64_t j = i < p->query.used[b] ? p->key.used[b] : 0; j < nk; j++) {
                    const double got = element_get(p->probs.dtype, c->copy[BUFFER_PROBS].data,
                                                   plane_at(&p->probs, b, h, i, j));
                    if (got == 0)
                        continue;
                    snprintf(why, size, "probs: query %lld and key %lld of sequence %lld, head "
                             "%lld, take no part, and it is %g", (long long)i, (long long)j,
                             (long long)b, (long long)h, got);
                    return false;
                }
    return true;
}

/* dbias past the lengths of every sequence that an element sums over is 0. */
static bool dbias_holds(const struct problem *p, const struct call *c, char *why, size_t size)
{
    const struct buffer *buffer = &p->buffers[BUFFER_DBIAS];
    bool *summed = test_alloc((size_t)buffer->count * sizeof *summed), good = true;

    for (int64_t b = 0; b < p->batch; b++) {
        const struct plane t = problem_dbias(p, b);
        for (int64_t h = 0; h < p->hq; h++)
            for (int64_t i = 0; i < p->query.used[b]; i++)
                for (int64_t j = 0; j < p->key.used[b]; j++)
                    summed[plane_at(&t, 0, h, i, j)] = true;
    }
    for (int64_t n = 0; n < buffer->count && good; n++) {
        good = !is_output(buffer, n) || summed[n] ||
               element_get(p->dbias.dtype, c->copy[BUFFER_DBIAS].data, n) == 0;
        if (!good)
            snprintf(why, size, "dbias: element %lld sums over nothing and is not 0", (long long)n);
    }
    free(summed);
    return good;
}

static bool gradients_clean(const struct problem *p, const struct call *c, char *why, size_t size)
{
    return unused_hold(p, c, &p->grad_q, &p->query, 0, why, size) &&
           unused_hold(p, c, &p->grad_k, &p->key, 0, why, size) &&
           unused_hold(p, c, &p->grad_v, &p->key, 0, why, size) &&
           (!p->has_dbias || dbias_holds(p, c, why, size));
}

static bool unused_clean(const struct problem *p, const struct call *c, char *why, size_t size)
{
    if (p->backward)
        return gradients_clean(p, c, why, size);
    if (!unused_hold(p, c, &p->out, &p->query, 0, why, size))
        return false;
    if (p->has_lse && !unused_hold(p, c, &p->lse, &p->query, -INFINITY, why, size))
        return false;
    if (p->has_sums && !unused_hold(p, c, &p->sums, &p->key, 0, why, size))
        return false;
    return !p->has_probs || probs_hold(p, c, why, size);
}

static double *collect(const struct problem *p, const struct call *c, const struct tensor *t,
                       const struct side *side, int64_t *count)
{
    const struct side s = side_unpaged(side);
    int64_t rows = 0, n = 0;

    for (int64_t b = 0; b < p->batch; b++)
        rows += s.used[b];
    *count = rows * t->heads * t->width;
    double *x = test_alloc((size_t)*count * sizeof *x);
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t i = 0; i < s.used[b]; i++)
                for (int64_t w = 0; w < t->width; w++)
                    x[n++] = element_get(t->dtype, c->copy[t->buffer].data,
                                         tensor_at(t, &s, b, i, h) + w);
    return x;
}

static double *collect_probs(const struct problem *p, const struct call *c, int64_t *count)
{
    int64_t n = 0;

    *count = 0;
    for (int64_t b = 0; b < p->batch; b++)
        *count += p->hq * p->query.used[b] * p->key.used[b];
    double *x = test_alloc((size_t)*count * sizeof *x);
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->hq; h++)
            for (int64_t i = 0; i < p->query.used[b]; i++)
                for (int64_t j = 0; j < p->key.used[b]; j++)
                    x[n++] = element_get(p->probs.dtype, c->copy[BUFFER_PROBS].data,
                                         plane_at(&p->probs, b, h, i, j));
    return x;
}

/* In the order of problem_dbias_dense(); 0 where an element has no place. */
static double *collect_dbias(const struct problem *p, const struct call *c, int64_t *count)
{
    const struct plane dense = problem_dbias_dense(p, count);
    double *x = test_alloc((size_t)*count * sizeof *x);

    for (int64_t b = 0; b < p->batch; b++) {
        const struct plane t = problem_dbias(p, b);
        for (int64_t h = 0; h < p->hq; h++)
            for (int64_t i = 0; i < p->query.used[b]; i++)
                for (int64_t j = 0; j < p->key.used[b]; j++)
                    x[plane_at(&dense, b, h, i, j)] = element_get(
                        t.dtype, c->copy[BUFFER_DBIAS].data, plane_at(&t, 0, h, i, j));
    }
    return x;
}

static void collect_gradients(const struct problem *p, const struct call *c, struct result *r)
{
    r->part[COMPARE_DQ] = collect(p, c, &p->grad_q, &p->query, &r->count[COMPARE_DQ]);
    r->part[COMPARE_DK] = collect(p, c, &p->grad_k, &p->key, &r->count[COMPARE_DK]);
    r->part[COMPARE_DV] = collect(p, c, &p->grad_v, &p->key, &r->count[COMPARE_DV]);
    if (p->has_dbias)
        r->part[COMPARE_DBIAS] = collect_dbias(p, c, &r->count[COMPARE_DBIAS]);
    if (!p->has_dsink)
        return;
    r->count[COMPARE_DSINK] = p->hq;
    r->part[COMPARE_DSINK] = test_alloc((size_t)p->hq * sizeof(double));
    for (int64_t h = 0; h < p->hq; h++)
        r->part[COMPARE_DSINK][h] = element_get(p->dsink.dtype, c->copy[BUFFER_DSINK].data,
                                                p->dsink.offset + h * p->dsink.head);
}

static void collect_all(const struct problem *p, struct call *c, struct result *r)
{
    if (p->backward) {
        collect_gradients(p, c, r);
        return;
    }
    r->part[COMPARE_OUT] = collect(p, c, &p->out, &p->query, &r->count[COMPARE_OUT]);
    if (p->has_lse)
        r->part[COMPARE_LSE] = collect(p, c, &p->lse, &p->query, &r->count[COMPARE_LSE]);
    if (p->has_sums)
        r->part[COMPARE_SUMS] = collect(p, c, &p->sums, &p->key, &r->count[COMPARE_SUMS]);
    if (p->has_probs)
        r->part[COMPARE_PROBS] = collect_probs(p, c, &r->count[COMPARE_PROBS]);
    if (p->has_tiles) {
        r->part[COMPARE_TILES] = c->tiles.x;
        r->count[COMPARE_TILES] = c->tiles.at[p->batch];
        c->tiles.x = NULL;
    }
}

void result_free(struct result *r)
{
    for (int n = 0; n < COMPARES; n++)
        free(r->part[n]);
    memset(r, 0, sizeof *r);
}

forward_fn run_pass(const struct problem *p) { return p->backward ? attn_backward : attn_forward; }

/* Whether the target says that it serves the call; notes the kernel that it names. */
static enum run_answer ask(const struct call *c, struct target *t, char *why, size_t size)
{
    attn_explanation e = attn_explanation_init();
    const attn_status status = attn_explain(t->context, &c->desc, c->pass, &e);

    if (status != ATTN_OK) {
        snprintf(why, size, "attn_explain: %s, %s", attn_status_name(status),
                 attn_last_message(t->context));
        return RUN_BAD;
    }
    for (int32_t n = 0; n < e.count; n++) {
        const attn_candidate *a = &e.candidates[n];
        if (a->backend != t->backend)
            continue;
        if (a->status != ATTN_OK) {
            snprintf(why, size, "%s: %s", attn_status_name(a->status), a->reason);
            return RUN_REFUSED;
        }
        t->served++;
        const char *const last = strrchr(a->kernel, ' ');
        t->kernel_named += !t->isa || (last && strcmp(last + 1, t->isa) == 0);
        return RUN_OK;
    }
    snprintf(why, size, "attn_explain does not list the backend");
    return RUN_BAD;
}

/* What the call has put on the device is done only now, when the host's arrays hold other numbers:
 * it has looked at them before, and waited for nothing. */
static bool finish_on_device(const struct problem *p, struct call *c, long waits, char *why,
                             size_t size)
{
    if (device_waits() != waits) {
        snprintf(why, size, "the call waits for the device");
        return false;
    }
    for (int n = 0; n < BUFFERS; n++)
        if (c->copy[n].base && !device_has(p, n))
            memset(c->copy[n].data, NAN_BYTE, c->copy[n].bytes);
    const bool good = device_wait(why, size);
    call_fetch(c);
    for (int n = 0; n < BUFFERS; n++)
        if (c->copy[n].base && !device_has(p, n))
            memcpy(c->copy[n].data, p->buffers[n].image, c->copy[n].bytes);
    return good;
}

static enum run_answer run_call(const struct problem *p, struct target *t, struct call *c,
                                forward_fn forward, char *why, size_t size)
{
    const long waits = device_waits();
    const enum run_answer answer = ask(c, t, why, size);
    attn_status status = ATTN_OK;

    if (answer != RUN_OK)
        return answer;
    if (p->own_workspace)
        status = call_workspace(c, t);
    if (status == ATTN_OK)
        status = forward(t->context, &c->desc);
    if (status != ATTN_OK) {
        snprintf(why, size, "%s: %s", attn_status_name(status), attn_last_message(t->context));
        return RUN_BAD;
    }
    if (c->on_device && !finish_on_device(p, c, waits, why, size))
        return RUN_BAD;
    if (c->on_device && c->has_workspace)
        status = attn_workspace_status(t->context, &c->desc, c->pass);
    if (status != ATTN_OK) {
        snprintf(why, size, "in the workspace: %s, %s", attn_status_name(status),
                 attn_last_message(t->context));
        return RUN_BAD;
    }
    const bool good = call_clean(c, p, why, size) && unused_clean(p, c, why, size) &&
                      (!p->has_tiles || tiles_good(&c->tiles, why, size));
    return good ? RUN_OK : RUN_BAD;
}

enum run_answer run_problem(const struct problem *p, struct target *t, forward_fn forward,
                            struct result *r, char *why, size_t why_size)
{
    struct call c;

    memset(r, 0, sizeof *r);
    call_open(&c, p, t);
    const enum run_answer answer = run_call(p, t, &c, forward, why, why_size);
    if (answer == RUN_OK)
        collect_all(p, &c, r);
    call_close(&c);
    return answer;
}

/* A backend says what it offers; every plain problem is the least that the tiled one does. */
static bool may_refuse(const struct problem *p, const struct target *t)
{
    return t->backend != ATTN_BACKEND_CPU || p->has_probs;
}

/* A set for bf16 has kernels of its own only for the forward pass of that type: what the set that it
 * extends has shown is not asked again. */
static bool asked_before(const struct options *o, const struct problem *p, const struct target *t)
{
    return !o->isa && t->isa && strstr(t->isa, "bf16") && (p->backward || p->dtype != ATTN_BF16);
}

bool run_or_report(const struct options *o, const struct problem *p, struct target *t,
                   forward_fn forward, struct result *r)
{
    char why[LINE] = "", line[LINE], what[LINE];

    if (asked_before(o, p, t)) {
        memset(r, 0, sizeof *r);
        return false;
    }
    wall_line(run_line(o, p, t, line, sizeof line));
    const enum run_answer answer = run_problem(p, t, forward, r, why, sizeof why);
    if (answer == RUN_REFUSED && may_refuse(p, t)) {
        report_skip("%s: %s", t->name, why);
    } else if (answer != RUN_OK) {
        problem_print(p, what, sizeof what);
        report_fail("%s: %s (%s)", line, why, what);
    }
    return answer == RUN_OK;
}
