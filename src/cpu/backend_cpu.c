/* SPDX-License-Identifier: BSD-3-Clause */
/* The cpu backend: which kernel, how much workspace. */
#include <string.h>

#include "backend.h"
#include "cpu/backward.h"
#include "cpu/isa.h"
#include "cpu/schedule.h"

static const uint32_t ALL = (UINT32_C(1) << ATTN_FEATURES) - 1;

/* Everything but the whole matrix of probabilities; for gradients, everything but paged keys. */
static const uint32_t FORWARD = ALL & ~(ATTN_BIT(ATTN_USES_PROBS) | ATTN_BIT(ATTN_USES_BACKWARD));
static const uint32_t BACKWARD = ALL & ~ATTN_BIT(ATTN_USES_PAGED);

static void refuse_size(struct attn_plan *plan, const struct attn_problem *p)
{
    attn_plan_refuse(plan, ATTN_UNSUPPORTED,
                     "head_dim, heads_q, heads_kv, batch: too much workspace for %lld keys of %lld",
                     (long long)p->key.max, (long long)p->head_dim);
}

static void plan_forward(const struct attn_settings *s, const struct attn_problem *p,
                         struct attn_plan *plan)
{
    struct attn_schedule schedule;
    const struct attn_cpu_kernel *kernel;
    int32_t isa = s->isa, allowed = s->isa;
    if (!attn_plan_offers(plan, p, FORWARD, "cpu"))
        return;
    do { /* again, where the system does not allow what blocks want */
        isa = allowed;
        kernel = attn_isa_kernel(isa, p->dtype);
        if (!attn_schedule_plan(&schedule, p, kernel, attn_isa_wide(isa, p->dtype),
                                s->threads) ||
            schedule.bytes > PTRDIFF_MAX) {
            refuse_size(plan, p);
            return;
        }
        allowed = schedule.tiled > 0 ? attn_isa_allowed(isa, p->dtype) : isa;
    } while (allowed != isa);
    memcpy(plan->layout, &schedule, sizeof schedule);
    plan->workspace = schedule.bytes;
    plan->threads = schedule.threads;
    plan->kernel_set = kernel;
    plan->kernel[0] = schedule.decoded == 0 ? "tiled"
                      : schedule.tiled == 0 ? "decode"
                                            : "tiled and decode";
    plan->kernel[1] = attn_dtype_name(p->dtype);
    plan->kernel[2] = attn_isa_name(isa, NULL);
}

static void plan_backward(const struct attn_settings *s, const struct attn_problem *p,
                          struct attn_plan *plan)
{
    struct attn_backward_plan back;
    const struct attn_cpu_backward *kernel = attn_isa_backward(s->isa, p->dtype);
    if (!attn_plan_offers(plan, p, BACKWARD, "cpu"))
        return;
    if (!attn_backward_plan(&back, p, kernel, s->threads) || back.bytes > PTRDIFF_MAX) {
        refuse_size(plan, p);
        return;
    }
    memcpy(plan->layout, &back, sizeof back);
    plan->workspace = back.bytes;
    plan->threads = back.threads;
    plan->kernel_set = kernel;
    plan->kernel[0] = "backward";
    plan->kernel[1] = attn_dtype_name(p->dtype);
    plan->kernel[2] = attn_isa_name(s->isa, NULL);
}

#define FITS(what) (sizeof(what) <= sizeof ((struct attn_plan *)0)->layout)
_Static_assert(FITS(struct attn_schedule) && FITS(struct attn_backward_plan), "layouts in plans");

static void plan(const struct attn_settings *s, const struct attn_problem *p,
                 struct attn_plan *plan)
{
    if (p->pass == ATTN_PASS_FORWARD)
        plan_forward(s, p, plan);
    else
        plan_backward(s, p, plan);
}

/* Whether the context's last call had the same keys; notes these. */
static bool had_keys(const struct attn_settings *s, const struct attn_problem *p)
{
    const uintptr_t keys = (uintptr_t)p->k.data;
    const bool same = s->keys && *s->keys == keys;
    if (s->keys)
        *s->keys = keys;
    return same;
}

static attn_status run(const struct attn_settings *s, const struct attn_problem *p,
                       const struct attn_plan *plan, void *workspace, struct attn_message *m)
{
    (void)m;
    attn_clear_unused_rows(p);
    if (p->pass == ATTN_PASS_BACKWARD) {
        struct attn_backward_plan back;
        memcpy(&back, plan->layout, sizeof back);
        attn_backward_run(&back, p, plan->kernel_set, workspace);
    } else if (p->heads_q > 0 && p->query.max > 0) {
        struct attn_schedule schedule;
        memcpy(&schedule, plan->layout, sizeof schedule);
        attn_schedule_run(&schedule, p, plan->kernel_set, had_keys(s, p), workspace);
    }
    return ATTN_OK;
}

const struct attn_backend_ops attn_backend_cpu = {ATTN_BACKEND_CPU, false, plan, run, NULL};
