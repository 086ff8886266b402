/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernels for GPUs, on the emulator, against the truth, on those of the matrix' random problems
 * that they are for. */
#include "emulator/forward.h"
#include "gen.h"
#include "matrix.h"
#include "report.h"

static bool is_offered(const struct problem *p)
{
    return (p->dtype == ATTN_F16 || p->dtype == ATTN_BF16) && p->d <= 128 && p->dv <= 128 &&
           !p->has_probs && !p->has_tiles && !p->has_sums;
}

static void gen_offered(struct problem *p, uint64_t seed)
{
    for (uint64_t n = seed;; n += UINT64_C(1) << 32) {
        gen_problem(p, n);
        if (is_offered(p))
            return;
        problem_free(p);
    }
}

int main(int argc, char **argv)
{
    static const struct pass emulated = {gen_offered, emulated_forward};
    struct options o = options_parse(argc, argv, "emulated", 400);
    struct target targets[MOST_TARGETS];

    report_begin(o.program);
    o.backend = "cpu"; /* one target, whose context is not looked at */
    o.isa = "scalar";
    const int count = targets_open(targets, &o);
    matrix(&o, targets, count, &emulated);
    targets_close(targets, count);
    return report_end();
}
