/* SPDX-License-Identifier: BSD-3-Clause */
/* The cpu backend: which kernel, how much workspace. */
#include <stdio.h>

#include "backend.h"
#include "cpu/isa.h"
#include "cpu/schedule.h"

static const uint32_t OFFERED =
    ATTN_BIT(ATTN_USES_CAUSAL) | ATTN_BIT(ATTN_USES_WINDOW) | ATTN_BIT(ATTN_USES_KEY_MASK) |
    ATTN_BIT(ATTN_USES_LSE) | ATTN_BIT(ATTN_USES_SEQUSED) | ATTN_BIT(ATTN_USES_PACKED) |
    ATTN_BIT(ATTN_USES_GQA);

static void plan(const struct attn_settings *s, const struct attn_problem *p,
                 struct attn_plan *plan)
{
    struct attn_schedule schedule;
    const struct attn_cpu_kernel *kernel = attn_isa_kernel(s->isa, p->dtype);
    if (!attn_plan_offers(plan, p, OFFERED, "cpu"))
        return;
    if (!kernel) {
        attn_plan_refuse(plan, ATTN_UNSUPPORTED, "q.dtype: %s is not offered by the cpu backend",
                         attn_dtype_name(p->dtype));
        return;
    }
    if (!attn_schedule_plan(&schedule, p, kernel, s->threads)) {
        attn_plan_refuse(plan, ATTN_UNSUPPORTED,
                         "head_dim, heads_kv, batch: too much workspace for %lld keys of %lld",
                         (long long)p->key.max, (long long)p->head_dim);
        return;
    }
    plan->workspace = schedule.bytes;
    plan->threads = schedule.threads;
    plan->kernel_set = kernel;
    const char *form = schedule.decoded == 0 ? "tiled"
                       : schedule.tiled == 0 ? "decode"
                                             : "tiled and decode";
    snprintf(plan->kernel, sizeof plan->kernel, "%s %s %s", form, attn_dtype_name(p->dtype),
             attn_isa_name(s->isa, NULL));
}

static attn_status run(const struct attn_settings *s, const struct attn_problem *p,
                       const struct attn_plan *plan, void *workspace)
{
    struct attn_schedule schedule;
    attn_schedule_plan(&schedule, p, plan->kernel_set, s->threads);
    attn_clear_unused_rows(p);
    if (p->heads_q > 0 && p->query.max > 0)
        attn_schedule_run(&schedule, p, plan->kernel_set, workspace);
    return ATTN_OK;
}

const struct attn_backend_ops attn_backend_cpu = {ATTN_BACKEND_CPU, plan, run};
