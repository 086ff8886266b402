/* SPDX-License-Identifier: BSD-3-Clause */
#include "options.h"

#include <fnmatch.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "limits.h"

static const char usage[] =
    "attnbench: times whole attention calls and compares them with the machine's limit.\n"
    "\n"
    "  --case GLOB       cases whose name matches (repeatable; default: all)\n"
    "  --backend NAME    cpu, eager (repeatable; default: both); with --check also cuda\n"
    "  --isa NAME        instruction set of the cpu backend: scalar, avx2, avx512 (repeatable;\n"
    "                    default: ATTN_ISA, else the machine's best)\n"
    "  --dtype NAME      f32, f64, f16, bf16 (repeatable; default: f32)\n"
    "  --pass NAME       fwd: attn_forward; bwd: attn_backward, except for decode; fwdbwd: one\n"
    "                    after the other (repeatable; default: fwd)\n"
    "  --threads N       threads of a call (default: OpenMP's choice)\n"
    "  --rounds N        samples of each case (default: 7)\n"
    "  --seconds X       shortest sample (default: 0.03)\n"
    "  --cold            prefill, too, in tensors that no cache holds\n"
    "  --check           compares results and times nothing\n"
    "  --list            names of the cases\n"
    "\n"
    "CSV on standard output, remarks on standard error. median_ms: of one call, over the\n"
    "samples. spread: (upper quartile - lower quartile) / median. rate: GFLOP/s, 2 (D + Dv) per\n"
    "visible pair and query head, 2.5 times that for bwd and 3.5 times for fwdbwd; for decode\n"
    "GB/s of K and V, each byte once. limit: of all threads at once, in the same process before\n"
    "and after each sample: multiply-adds of the instruction set (for eager the best one built\n"
    "in), or reading the very K and V. Gradients of 16-bit types are computed in f32, so the\n"
    "limit of their bwd and fwdbwd is that of f32. share: rate / limit; empty where the limit\n"
    "did not stand still. isa: for eager the kernels of its BLAS.\n"
    "\n"
    "Prefill calls are made on the same tensors again and again, as a model's layers find what\n"
    "the one before just wrote; decode calls, and all with --cold, rotate over copies of them\n"
    "larger than the caches. Calls take their workspace from the context's default allocator.\n"
    "OMP_WAIT_POLICY is left alone: a call finds its threads as it would in a program's loop,\n"
    "and the same threads measure the limits.\n";

static int wrong(const char *option, const char *value, const char *expected)
{
    fprintf(stderr, "attnbench: --%s: \"%s\" is not %s\n", option, value, expected);
    return 2;
}

static bool add_backend(struct bench_options *o, const char *name)
{
    for (int b = ATTN_BACKEND_CPU; b <= ATTN_BACKEND_CUDA; b++)
        if (strcmp(name, attn_backend_name((attn_backend)b)) == 0) {
            o->backends[o->backend_count++] = (attn_backend)b;
            return true;
        }
    return false;
}

const char *bench_dtype_name(attn_dtype dtype)
{
    static const char *const names[] = {"f32", "f64", "f16", "bf16"};
    return dtype <= ATTN_BF16 ? names[dtype] : NULL;
}

static bool add_dtype(struct bench_options *o, const char *name)
{
    for (int t = ATTN_F32; t <= ATTN_BF16; t++)
        if (strcmp(name, bench_dtype_name((attn_dtype)t)) == 0) {
            o->dtypes[o->dtype_count++] = (attn_dtype)t;
            return true;
        }
    return false;
}

const char *bench_pass_name(enum bench_pass pass)
{
    static const char *const names[] = {"fwd", "bwd", "fwdbwd"};
    return names[pass];
}

static bool add_pass(struct bench_options *o, const char *name)
{
    for (int p = BENCH_FWD; p <= BENCH_FWDBWD; p++)
        if (strcmp(name, bench_pass_name((enum bench_pass)p)) == 0) {
            o->passes[o->pass_count++] = (enum bench_pass)p;
            return true;
        }
    return false;
}

static bool read_number(const char *text, double least, double most, double *number)
{
    char *end;
    *number = strtod(text, &end);
    return end != text && *end == 0 && *number >= least && *number <= most;
}

static int read_option(struct bench_options *o, int option, const char *value)
{
    double number;
    switch (option) {
    case 'c': o->cases[o->case_count++] = value; return -1;
    case 'i': o->isas[o->isa_count++] = value; return -1;
    case 'b': return add_backend(o, value) ? -1 : wrong("backend", value, "cpu, eager or cuda");
    case 'd': return add_dtype(o, value) ? -1 : wrong("dtype", value, "f32, f64, f16 or bf16");
    case 'p': return add_pass(o, value) ? -1 : wrong("pass", value, "fwd, bwd or fwdbwd");
    case 't':
        if (!read_number(value, 1, 4096, &number))
            return wrong("threads", value, "a number from 1 to 4096");
        o->threads = (int32_t)number;
        return -1;
    case 'r':
        if (!read_number(value, 1, 10000, &number))
            return wrong("rounds", value, "a number from 1 to 10000");
        o->rounds = (int32_t)number;
        return -1;
    case 's':
        return read_number(value, 0, 3600, &o->seconds) ? -1
                                                        : wrong("seconds", value, "from 0 to 3600");
    case 'o': o->cold = true; return -1;
    case 'l': o->list = true; return -1;
    case 'k': o->check = true; return -1;
    case 'h': fputs(usage, stdout); return 0;
    default: fputs("attnbench: --help tells the options\n", stderr); return 2;
    }
}

static void fill_defaults(struct bench_options *o)
{
    if (o->backend_count == 0) {
        o->backends[o->backend_count++] = ATTN_BACKEND_CPU;
        o->backends[o->backend_count++] = ATTN_BACKEND_EAGER;
    }
    if (o->dtype_count == 0)
        o->dtypes[o->dtype_count++] = ATTN_F32;
    if (o->pass_count == 0)
        o->passes[o->pass_count++] = BENCH_FWD;
    if (o->threads == 0)
        o->threads = bench_default_threads();
}

int bench_options_read(struct bench_options *o, int argc, char **argv)
{
    static const struct option names[] = {
        {"case", required_argument, NULL, 'c'},    {"backend", required_argument, NULL, 'b'},
        {"isa", required_argument, NULL, 'i'},     {"dtype", required_argument, NULL, 'd'},
        {"pass", required_argument, NULL, 'p'},    {"threads", required_argument, NULL, 't'},
        {"rounds", required_argument, NULL, 'r'},  {"seconds", required_argument, NULL, 's'},
        {"cold", no_argument, NULL, 'o'},          {"list", no_argument, NULL, 'l'},
        {"check", no_argument, NULL, 'k'},         {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0}};
    memset(o, 0, sizeof *o);
    o->rounds = 7;
    o->seconds = 0.03;
    if (argc > BENCH_MOST) {
        fprintf(stderr, "attnbench: more than %d arguments\n", BENCH_MOST - 1);
        return 2;
    }
    for (int option; (option = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        const int status = read_option(o, option, optarg);
        if (status >= 0)
            return status;
    }
    if (optind < argc) {
        fprintf(stderr, "attnbench: \"%s\" is not an option\n", argv[optind]);
        return 2;
    }
    fill_defaults(o);
    for (int32_t b = 0; b < o->backend_count; b++)
        if (o->backends[b] == ATTN_BACKEND_CUDA && !o->check)
            return wrong("backend", "cuda", "timed here, where all arrays are the host's: bench/gpu "
                         "is for that");
    return -1;
}

bool bench_options_match(const struct bench_options *o, const char *case_name)
{
    for (int32_t n = 0; n < o->case_count; n++)
        if (fnmatch(o->cases[n], case_name, 0) == 0)
            return true;
    return o->case_count == 0;
}
