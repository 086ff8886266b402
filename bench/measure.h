/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include "buffers.h"
#include "peak.h"

struct bench_job {
    attn_context *context;
    struct bench_buffers *buffers;
    bench_peak_fn peak; /* of the prefill limit */
    int32_t threads;
    int32_t rounds;     /* samples wanted */
    double seconds;     /* at least so long is a sample */
    double *best_limit; /* in, out: the best that this limit has been so far */
};

struct bench_result {
    double median_ms;
    double spread;       /* of the sample times: (upper quartile - lower quartile) / median */
    double rate, limit;  /* medians; GFLOP/s, or for decode GB/s */
    double share;        /* median of each sample's rate / limit */
    bool steady;         /* false: too few samples had a limit that stood still; no share then */
};

/* Times the calls of a pass on buffers in turn, where a backward call finds out and lse. The limit
 * is measured before and after each sample, and the sample counts only if the two agree and are
 * near the best seen: cores that are shared with others may together give the time of one, for
 * seconds, and then threads wait for each other in ways that no limit shows. Samples that do not
 * count are repeated, up to a bound. */
attn_status bench_measure(const struct bench_job *job, struct bench_result *result);

#endif
