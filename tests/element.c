/* SPDX-License-Identifier: BSD-3-Clause */
#include "element.h"

#include <float.h>
#include <math.h>

#include "memory.h"
#include "rng.h"

static const struct {
    const char *name;
    size_t size;
    struct element_format format;
} types[] = {
    [ATTN_F32] = {"f32", 4, {FLT_MANT_DIG, FLT_MIN_EXP, FLT_MAX}},
    [ATTN_F64] = {"f64", 8, {DBL_MANT_DIG, DBL_MIN_EXP, DBL_MAX}},
    [ATTN_F16] = {"f16", 2, {11, -13, 65504}},
    [ATTN_BF16] = {"bf16", 2, {8, -125, 0x1.fep127}},
};

const struct element_format *element_format(attn_dtype type) { return &types[type].format; }
const char *element_name(attn_dtype type) { return types[type].name; }
size_t element_size(attn_dtype type) { return types[type].size; }

attn_dtype element_computing(attn_dtype type) { return type == ATTN_F64 ? ATTN_F64 : ATTN_F32; }

double element_round(attn_dtype type, double x)
{
    const struct element_format *f = element_format(type);
    int exponent;

    if (type == ATTN_F64 || x == 0 || !isfinite(x))
        return x;
    frexp(x, &exponent);
    const int unit = (exponent > f->least ? exponent : f->least) - f->digits;
    const double rounded = ldexp(rint(ldexp(x, -unit)), unit);
    return fabs(rounded) > f->most ? copysign(INFINITY, x) : rounded;
}

/* Bits of a 16-bit type, from the top: sign, exponent, digits but the first. */
static uint16_t encode(attn_dtype type, double x)
{
    const struct element_format *f = element_format(type);
    const int stored = f->digits - 1, sign = signbit(x) ? 0x8000 : 0;
    const int infinite = 0x7fff >> stored << stored;
    const double size = fabs(element_round(type, x));
    int exponent;

    if (isnan(x))
        return (uint16_t)(sign | infinite | 1 << (stored - 1));
    if (isinf(size))
        return (uint16_t)(sign | infinite);
    frexp(size, &exponent);
    if (size == 0 || exponent < f->least) /* in units of the least denormal number */
        return (uint16_t)(sign | (int)ldexp(size, f->digits - f->least));
    /* The first digit, which is 1, adds the last 1 to the exponent. */
    return (uint16_t)(sign | (((exponent - f->least) << stored) +
                              (int)ldexp(size, f->digits - exponent)));
}

static double decode(attn_dtype type, uint16_t bits)
{
    const struct element_format *f = element_format(type);
    const int stored = f->digits - 1, exponent = (bits & 0x7fff) >> stored;
    const int digits = bits & ((1 << stored) - 1);
    double size;

    if (exponent == 0x7fff >> stored)
        size = digits ? NAN : INFINITY;
    else if (exponent == 0)
        size = ldexp(digits, f->least - f->digits);
    else
        size = ldexp(digits + (1 << stored), exponent - 1 + f->least - f->digits);
    return bits & 0x8000 ? -size : size;
}

double element_get(attn_dtype type, const void *data, int64_t index)
{
    switch (type) {
    case ATTN_F64: return ((const double *)data)[index];
    case ATTN_F32: return (double)((const float *)data)[index];
    default: return decode(type, ((const uint16_t *)data)[index]);
    }
}

void element_set(attn_dtype type, void *data, int64_t index, double x)
{
    switch (type) {
    case ATTN_F64: ((double *)data)[index] = x; break;
    case ATTN_F32: ((float *)data)[index] = (float)x; break;
    default: ((uint16_t *)data)[index] = encode(type, x); break;
    }
}

double *element_numbers(attn_dtype type, int64_t n, struct rng *r)
{
    double *x = test_alloc((size_t)n * sizeof *x);

    for (int64_t i = 0; i < n; i++)
        x[i] = element_round(type, rng_normal(r));
    return x;
}
