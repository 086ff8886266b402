/* SPDX-License-Identifier: BSD-3-Clause */
/* Running problems: the options of a test program, the backends it drives, one guarded call. */
#ifndef TESTS_RUN_H
#define TESTS_RUN_H

#include "compare.h"
#include "problem_image.h"
#include "truth.h"

struct options {
    const char *program;
    uint64_t seed; /* of the first problem */
    int64_t count;
    bool seed_given, lengthy, verbose;
    const char *backend, *isa; /* null: all */
    int32_t threads;
    int orders;
    void (*gen)(struct problem *p, uint64_t seed); /* forward problems */
};

/* --seed N (with --count 1 unless told), --count N, --long (20 times as many), --backend NAME,
 * --isa NAME, --threads N, --orders N (see compare.h), -v; laws, matrix, poison and repeat also
 * --many-keys (problems of gen_many_keys()). Ends the program on anything else. */
struct options options_parse(int argc, char **argv, const char *name, int64_t count);

/* A backend, with an instruction set where it has several. */
struct target {
    attn_backend backend;
    const char *name;
    const char *isa; /* null: the backend has none */
    bool exact;      /* its results are defined bit by bit */
    attn_context *context;
    long served, kernel_named; /* calls; and those whose kernel's name tells the set */
};

enum { MOST_TARGETS = 10 };

/* Those that the options leave, are built in and run here; others are reported as skipped. */
int targets_open(struct target *list, const struct options *o);
void targets_close(struct target *list, int count);
/* The same on another number of threads; null where there is no memory. */
attn_context *target_context(const struct target *t, int32_t threads);

/* Outputs as doubles, sequence by sequence: out [hq][nq][dv], lse [hq][nq], probs and tiles
 * [hq][nq][nk], sums [hq][nk], dq [hq][nq][d], dk [hkv][nk][d], dv [hkv][nk][dv]; and of all of
 * them dbias as problem_dbias_dense() has it, dsink [hq]. Null: not asked for. */
struct result {
    double *part[COMPARES];
    int64_t count[COMPARES];
};
void result_free(struct result *r);

enum run_answer { RUN_OK, RUN_REFUSED, RUN_BAD };
typedef attn_status (*forward_fn)(attn_context *context, const attn_desc *desc);

/* The call of the problem's pass. */
forward_fn run_pass(const struct problem *p);

/*
 * Runs the problem in guarded memory, all outputs and the workspace full of NaN bytes, and looks at
 * everything but the values of tokens: guards, gaps and inputs unchanged; rows of no token 0 and
 * -inf; tiles of probabilities inside their sequence, none over another.
 * RUN_REFUSED: this backend does not serve it. `why` gets a line unless RUN_OK. `forward` is
 * attn_forward, for backward problems attn_backward, or something around it.
 */
enum run_answer run_problem(const struct problem *p, struct target *t, forward_fn forward,
                            struct result *r, char *why, size_t why_size);

/* The same, reported as a failed or skipped check unless RUN_OK, or unless another target's kernels
 * are the same. */
bool run_or_report(const struct options *o, const struct problem *p, struct target *t,
                   forward_fn forward, struct result *r);

/* The words that repeat a run: "matrix --seed 7 --backend cpu --isa avx2". */
const char *run_line(const struct options *o, const struct problem *p, const struct target *t,
                     char *line, size_t size);

#endif
