/* SPDX-License-Identifier: BSD-3-Clause */
/* The kernels for GPUs, on the emulator, against the truth, on those of the matrix' random problems
 * that they are for; and on some whose keys are so many that they are split over blocks. */
#include "emulator/forward.h"
#include "gen.h"
#include "matrix.h"
#include "report.h"

static bool is_offered(const struct problem *p)
{
    return !p->has_probs && !p->has_tiles && !p->has_sums;
}

/* Whether a sequence has few rows and many keys (src/cuda/share.h). */
static bool is_split(const struct problem *p)
{
    bool any = false;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t rows = p->query.used[b] * (p->hq / p->hkv);
        any = any || (rows > 0 && rows <= 64 && p->key.used[b] >= (rows <= 16 ? 512 : 1024));
    }
    return any;
}

static void gen_that(struct problem *p, uint64_t seed, bool (*is)(const struct problem *p))
{
    for (uint64_t n = seed;; n += UINT64_C(1) << 32) {
        gen_problem(p, n);
        if (is_offered(p) && (!is || is(p)))
            return;
        problem_free(p);
    }
}

static void gen_offered(struct problem *p, uint64_t seed) { gen_that(p, seed, NULL); }
static void gen_split(struct problem *p, uint64_t seed) { gen_that(p, seed, is_split); }

int main(int argc, char **argv)
{
    static const struct pass any = {gen_offered, emulated_forward};
    static const struct pass split = {gen_split, emulated_forward};
    struct options o = options_parse(argc, argv, "emulated", 400);
    struct target targets[MOST_TARGETS];

    report_begin(o.program);
    o.backend = "cpu"; /* one target, whose context is not looked at */
    o.isa = "scalar";
    const int count = targets_open(targets, &o);
    matrix(&o, targets, count, &any);
    o.count = (o.count + 9) / 10;
    matrix(&o, targets, count, &split);
    targets_close(targets, count);
    return report_end();
}
