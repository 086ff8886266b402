/* SPDX-License-Identifier: BSD-3-Clause */
/* The cuda backend on emulated devices against the truth, on those of the matrix' random problems
 * that it offers to compute; on some whose keys are so many that they are split over blocks; and on
 * some that kernels of capability 9.0 are for. */
#include "emulator/runtime.h"
#include "gen.h"
#include "matrix.h"
#include "report.h"

static attn_context *cuda;

static bool is_offered(const struct problem *p)
{
    unsigned char *data[BUFFERS];
    attn_explanation e = attn_explanation_init();

    for (int n = 0; n < BUFFERS; n++)
        data[n] = p->buffers[n].image;
    const attn_desc d = problem_desc(p, data);
    return !p->has_tiles && attn_explain(cuda, &d, ATTN_PASS_FORWARD, &e) == ATTN_OK &&
           e.chosen >= 0;
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

static const struct emulated_machine small = {2, 86, 99 << 10}, large = {2, 90, 227 << 10};

static void gen_that(struct problem *p, uint64_t seed, void (*gen)(struct problem *, uint64_t),
                     bool (*is)(const struct problem *p))
{
    for (uint64_t n = seed;; n += UINT64_C(1) << 32) {
        gen(p, n);
        if (is_offered(p) && (!is || is(p)))
            return;
        problem_free(p);
    }
}

/* Every other one is for a device with little shared memory, as of capability 8.6. */
static void gen_offered(struct problem *p, uint64_t seed)
{
    emulated_set_machine(seed / 2 % 2 ? small : large);
    gen_that(p, seed, gen_problem, NULL);
}

static void gen_split(struct problem *p, uint64_t seed)
{
    emulated_set_machine(seed / 2 % 2 ? small : large);
    gen_that(p, seed, gen_problem, is_split);
}

static void gen_long(struct problem *p, uint64_t seed)
{
    emulated_set_machine(large);
    gen_that(p, seed, gen_many_keys, NULL);
}

int main(int argc, char **argv)
{
    static const struct pass any = {gen_offered, attn_forward};
    static const struct pass split = {gen_split, attn_forward};
    static const struct pass many = {gen_long, attn_forward};
    struct options o = options_parse(argc, argv, "emulated", 250);
    struct target targets[MOST_TARGETS];

    report_begin(o.program);
    o.backend = "cuda";
    const int count = targets_open(targets, &o);
    if (count == 1) {
        cuda = targets[0].context;
        matrix(&o, targets, count, &any);
        o.count = (o.count + 9) / 10;
        matrix(&o, targets, count, &split);
        matrix(&o, targets, count, &many);
    } else {
        report_fail("%d targets, not an emulated device", count);
    }
    targets_close(targets, count);
    return report_end();
}
