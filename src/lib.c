/* SPDX-License-Identifier: BSD-3-Clause */
/* Entry points: check the descriptor, ask the backends, run the one that serves. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "context.h"
#include "fpenv.h"

/* Bytes of workspace up to which it lies on the stack: a call on a tiny problem allocates nothing.
 */
enum { SMALL_WORKSPACE = 65536 };

void attn_plan_refuse(struct attn_plan *plan, attn_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(plan->reason, sizeof plan->reason, format, args);
    va_end(args);
    plan->status = status;
}

bool attn_plan_offers(struct attn_plan *plan, const struct attn_problem *p, uint32_t offered,
                      const char *backend)
{
    const uint32_t refused = p->features & ~offered;
    for (int f = 0; refused && f < ATTN_FEATURES; f++)
        if (refused & ATTN_BIT(f)) {
            attn_plan_refuse(plan, ATTN_UNSUPPORTED, "%s: not offered by the %s backend",
                             attn_feature_name((enum attn_feature)f), backend);
            return false;
        }
    if (p->dropout.on && !attn_dropout_fits(p, plan->reason, sizeof plan->reason)) {
        plan->status = ATTN_UNSUPPORTED;
        return false;
    }
    return true;
}

static const struct attn_backend_ops *find_backend(attn_backend id)
{
    for (const struct attn_backend_ops *const *b = attn_backends; *b; b++)
        if ((*b)->id == id)
            return *b;
    return NULL;
}

static void ask(const struct attn_backend_ops *backend, const struct attn_settings *s,
                const struct attn_problem *p, struct attn_plan *plan)
{
    memset(plan, 0, sizeof *plan);
    if (!backend->device && !p->place.host)
        attn_plan_refuse(plan, ATTN_UNSUPPORTED,
                         "%s: lies in memory of device %d, which the %s backend cannot read",
                         p->far, (int)p->place.device, attn_backend_name(backend->id));
    else
        backend->plan(s, p, plan);
}

/* Whether automatic choice may give the problem to the backend: tensors stay where they are. */
static bool is_meant(const struct attn_backend_ops *backend, const struct attn_problem *p)
{
    return !backend->device || p->place.device != ATTN_HOST;
}

/* The backend that serves the problem, with its plan; null, with *status and the message set. */
static const struct attn_backend_ops *choose(const struct attn_settings *s,
                                             const struct attn_problem *p, struct attn_plan *plan,
                                             attn_status *status, struct attn_message *m)
{
    const struct attn_backend_ops *const one[] = {find_backend(s->backend), NULL};
    const bool any = s->backend == ATTN_BACKEND_AUTO;
    if (!any && !one[0]) {
        *status = attn_say(m, ATTN_NO_BACKEND, "backend: %s is not built in",
                           attn_backend_name(s->backend));
        return NULL;
    }
    *status = ATTN_OK;
    for (const struct attn_backend_ops *const *b = any ? attn_backends : one; *b; b++) {
        if (any && !is_meant(*b, p))
            continue;
        ask(*b, s, p, plan);
        if (plan->status == ATTN_OK) {
            *status = ATTN_OK;
            m->text[0] = 0;
            return *b;
        }
        if (*status == ATTN_OK) /* the first refusal is that of the backend meant for it */
            *status = attn_say(m, plan->status, "%s", plan->reason);
    }
    return NULL;
}

/* Whether the backend can use a workspace at `place`, given where the tensors lie. */
static bool reaches(const struct attn_backend_ops *backend, const struct attn_problem *p,
                    struct attn_place place)
{
    return backend->device ? attn_places_meet(place, p->place) : place.host;
}

/* Of the caller's workspace, which is given. */
static attn_status check_workspace(const struct attn_backend_ops *backend, const attn_desc *desc,
                                   const struct attn_problem *p, const struct attn_plan *plan,
                                   struct attn_message *m)
{
    if ((uintptr_t)desc->workspace % ATTN_ALIGN != 0)
        return attn_say(m, ATTN_INVALID_WORKSPACE, "workspace: not aligned to %d bytes",
                        ATTN_ALIGN);
    if (desc->workspace_bytes < plan->workspace)
        return attn_say(m, ATTN_INVALID_WORKSPACE, "workspace_bytes: %zu, needed %zu",
                        desc->workspace_bytes, plan->workspace);
    const struct attn_place place = attn_place_of(desc->workspace);
    const attn_status status = attn_place_unknown("workspace", place, m);
    if (status == ATTN_OK && plan->workspace > 0 && !reaches(backend, p, place))
        return attn_say(m, ATTN_INVALID_WORKSPACE, "workspace: does not lie where q does");
    return status;
}

static attn_status run(const struct attn_backend_ops *backend, const struct attn_settings *s,
                       const attn_desc *desc, const struct attn_problem *p,
                       const struct attn_plan *plan, struct attn_message *m)
{
    void *workspace = desc->workspace;
    if (workspace) {
        const attn_status status = check_workspace(backend, desc, p, plan, m);
        return status == ATTN_OK ? backend->run(s, p, plan, workspace, m) : status;
    }
    if (plan->brings_own)
        return backend->run(s, p, plan, NULL, m);
    if (plan->workspace <= SMALL_WORKSPACE) {
        _Alignas(ATTN_ALIGN) char small[SMALL_WORKSPACE];
        return backend->run(s, p, plan, small, m);
    }

    workspace = s->allocator.alloc(s->allocator.user, plan->workspace, ATTN_ALIGN);
    if (!workspace)
        return attn_say(m, ATTN_NO_MEMORY, "workspace: no memory for %zu bytes", plan->workspace);
    const attn_status status = backend->run(s, p, plan, workspace, m);
    s->allocator.release(s->allocator.user, workspace, plan->workspace);
    return status;
}

static attn_status check_pass(attn_pass pass, struct attn_message *m)
{
    if (pass != ATTN_PASS_FORWARD && pass != ATTN_PASS_BACKWARD)
        return attn_say(m, ATTN_INVALID_ENUM, "pass: %d is no pass", (int)pass);
    return ATTN_OK;
}

/* A call that has been checked, and who serves it. */
struct request {
    struct attn_call call;
    struct attn_problem p;
    struct attn_plan plan;
    attn_desc desc;
    const struct attn_backend_ops *backend;
};

static attn_status begin(attn_context *context, const attn_desc *given, attn_pass pass,
                         struct request *r)
{
    attn_status status = attn_call_begin(&r->call, context);
    struct attn_message *const m = r->call.message;
    if (status == ATTN_OK)
        status = check_pass(pass, m);
    if (status == ATTN_OK)
        status = attn_check(given, pass, ATTN_CHECK_RUN, &r->desc, &r->p, m);
    if (status == ATTN_OK)
        r->backend = choose(r->call.settings, &r->p, &r->plan, &status, m);
    return status;
}

static attn_status compute(attn_context *context, const attn_desc *given, attn_pass pass)
{
    struct request r;
    const attn_status status = begin(context, given, pass, &r);
    if (status != ATTN_OK)
        return status;
    return run(r.backend, r.call.settings, &r.desc, &r.p, &r.plan, r.call.message);
}

attn_status attn_forward(attn_context *context, const attn_desc *desc)
{
    const attn_fpenv env = attn_fpenv_enter();
    const attn_status status = compute(context, desc, ATTN_PASS_FORWARD);
    attn_fpenv_leave(env);
    return status;
}

attn_status attn_backward(attn_context *context, const attn_desc *desc)
{
    const attn_fpenv env = attn_fpenv_enter();
    const attn_status status = compute(context, desc, ATTN_PASS_BACKWARD);
    attn_fpenv_leave(env);
    return status;
}

static attn_status workspace_size(attn_context *context, const attn_desc *given, attn_pass pass,
                                  size_t *bytes)
{
    struct attn_call call;
    struct attn_problem p;
    struct attn_plan plan;
    attn_desc desc;
    attn_status status = attn_call_begin(&call, context);
    if (status == ATTN_OK && !bytes)
        status = attn_say(call.message, ATTN_INVALID_NULL, "bytes: null");
    if (status == ATTN_OK)
        status = check_pass(pass, call.message);
    if (status == ATTN_OK)
        status = attn_check(given, pass, ATTN_CHECK_SHAPE, &desc, &p, call.message);
    if (status == ATTN_OK && choose(call.settings, &p, &plan, &status, call.message))
        *bytes = plan.workspace;
    return status;
}

attn_status attn_workspace_size(attn_context *context, const attn_desc *desc, attn_pass pass,
                                size_t *bytes)
{
    const attn_fpenv env = attn_fpenv_enter();
    const attn_status status = workspace_size(context, desc, pass, bytes);
    attn_fpenv_leave(env);
    return status;
}

static attn_status workspace_status(attn_context *context, const attn_desc *given, attn_pass pass)
{
    struct request r;
    attn_status status = begin(context, given, pass, &r);
    struct attn_message *const m = r.call.message;
    if (status != ATTN_OK || !r.p.unread)
        return status;
    if (!r.desc.workspace)
        return attn_say(m, ATTN_INVALID_NULL, "workspace: null, and the library's own is gone with "
                        "what was noted in it");
    status = check_workspace(r.backend, &r.desc, &r.p, &r.plan, m);
    return status == ATTN_OK ? r.backend->status(r.call.settings, &r.p, r.desc.workspace, m)
                             : status;
}

attn_status attn_workspace_status(attn_context *context, const attn_desc *desc, attn_pass pass)
{
    const attn_fpenv env = attn_fpenv_enter();
    const attn_status status = workspace_status(context, desc, pass);
    attn_fpenv_leave(env);
    return status;
}

static void name_kernel(const struct attn_plan *plan, char *to, size_t size)
{
    size_t length = 0;
    for (size_t i = 0; i < sizeof plan->kernel / sizeof *plan->kernel && plan->kernel[i]; i++)
        if (length < size)
            length += (size_t)snprintf(to + length, size - length, "%s%s", i > 0 ? " " : "",
                                       plan->kernel[i]);
}

/* What the backend `id` says of the problem. */
static void describe(attn_backend id, const struct attn_settings *s, const struct attn_problem *p,
                     attn_candidate *c)
{
    const struct attn_backend_ops *backend = find_backend(id);
    struct attn_plan plan;
    memset(c, 0, sizeof *c);
    c->backend = id;
    if (!backend) {
        c->status = ATTN_NO_BACKEND;
        snprintf(c->reason, sizeof c->reason, "not built in");
        return;
    }
    ask(backend, s, p, &plan);
    c->status = plan.status;
    if (plan.status == ATTN_OK) {
        c->workspace = plan.workspace;
        name_kernel(&plan, c->kernel, sizeof c->kernel);
    } else {
        memcpy(c->reason, plan.reason, sizeof c->reason);
    }
}

static attn_status explain(attn_context *context, const attn_desc *given, attn_pass pass,
                           attn_explanation *e)
{
    struct attn_call call;
    struct attn_problem p;
    struct attn_plan plan;
    attn_desc desc;
    attn_status status = attn_call_begin(&call, context);
    if (status == ATTN_OK && !e)
        status = attn_say(call.message, ATTN_INVALID_NULL, "explanation: null");
    if (status == ATTN_OK && e->size != sizeof *e)
        status = attn_say(call.message, ATTN_INVALID_SIZE, "explanation.size: %zu, expected %zu",
                          e->size, sizeof *e);
    if (status == ATTN_OK)
        status = check_pass(pass, call.message);
    if (status == ATTN_OK)
        status = attn_check(given, pass, ATTN_CHECK_SHAPE, &desc, &p, call.message);
    if (status != ATTN_OK)
        return status;

    const struct attn_backend_ops *chosen =
        choose(call.settings, &p, &plan, &status, call.message);
    e->chosen = -1;
    e->count = 0;
    for (int id = ATTN_BACKEND_CPU; id <= ATTN_BACKEND_CUDA; id++) {
        if (chosen && chosen->id == (attn_backend)id)
            e->chosen = e->count;
        describe((attn_backend)id, call.settings, &p, &e->candidates[e->count++]);
    }
    call.message->text[0] = 0;
    return ATTN_OK;
}

attn_status attn_explain(attn_context *context, const attn_desc *desc, attn_pass pass,
                         attn_explanation *explanation)
{
    const attn_fpenv env = attn_fpenv_enter();
    const attn_status status = explain(context, desc, pass, explanation);
    attn_fpenv_leave(env);
    return status;
}
