/* SPDX-License-Identifier: BSD-3-Clause */
/* A fair OpenBLAS for comparisons: one thread per product, and its best kernels. */
#ifndef BENCH_BLAS_SETUP_H
#define BENCH_BLAS_SETUP_H

/* To be called first in main(). OpenBLAS reads its environment when it is loaded, so where
 * OPENBLAS_NUM_THREADS, or OPENBLAS_CORETYPE for a machine with AVX-512 on which OpenBLAS chose
 * kernels without it, is not set, sets them, says so on standard error unless quiet, and starts the
 * program again. */
void bench_blas_setup(char **argv, int quiet);

/* Name of the kernels that OpenBLAS uses, as "SkylakeX"; "blas" for a BLAS that does not tell. */
const char *bench_blas_kernel(void);

#endif
