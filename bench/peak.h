/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BENCH_PEAK_H
#define BENCH_PEAK_H

#include <stdint.h>

#include "attn/attn.h"

/* Runs so many steps of independent multiply-adds; returns the floating-point operations done. */
typedef double (*bench_peak_fn)(int64_t steps);

#define BENCH_PEAKS(isa) double peak_f32_##isa(int64_t steps), peak_f64_##isa(int64_t steps);
BENCH_PEAKS(scalar)
BENCH_PEAKS(avx2)
BENCH_PEAKS(avx512)
BENCH_PEAKS(neon)
double peak_bf16_avx512bf16(int64_t steps);
double peak_bf16_amxbf16(int64_t steps);
double peak_bf16_neonbf16(int64_t steps);

/* Null where an instruction set or element type has none. */
bench_peak_fn bench_peak(const char *isa, attn_dtype dtype);

#endif
