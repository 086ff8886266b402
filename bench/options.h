/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "cases.h"

enum { BENCH_MOST = 32 }; /* values of an option that may be repeated */

struct bench_options {
    const char *cases[BENCH_MOST]; /* patterns; none: all cases */
    int32_t case_count;
    attn_backend backends[BENCH_MOST];
    int32_t backend_count;
    const char *isas[BENCH_MOST];
    int32_t isa_count;
    attn_dtype dtypes[BENCH_MOST];
    int32_t dtype_count;
    enum bench_pass passes[BENCH_MOST];
    int32_t pass_count;
    int32_t threads, rounds;
    double seconds;
    bool cold, list, check;
};

/* Reads the command line and fills in defaults. Returns -1 to go on; otherwise the exit status of a
 * program that has said what is to be said. */
int bench_options_read(struct bench_options *o, int argc, char **argv);

bool bench_options_match(const struct bench_options *o, const char *case_name);

/* "f32", "f64", "f16", "bf16"; null for other types. */
const char *bench_dtype_name(attn_dtype dtype);

/* "fwd", "bwd", "fwdbwd". */
const char *bench_pass_name(enum bench_pass pass);

#endif
