/* SPDX-License-Identifier: BSD-3-Clause */
#include "number.h"

#include <math.h>

int64_t bench_number_size(attn_dtype dtype)
{
    return dtype == ATTN_F64 ? 8 : dtype == ATTN_F32 ? 4 : 2;
}

/* A 16-bit pattern, sign, exponent, mantissa, as a number. */
static double widen(uint16_t u, int mantissa, int bias)
{
    const int exponent = (u & 0x7fff) >> mantissa;
    const double digits = (u & ((1 << mantissa) - 1)) + (exponent ? 1 << mantissa : 0);
    return ldexp(u & 0x8000 ? -digits : digits, (exponent ? exponent : 1) - bias - mantissa);
}

static uint16_t narrow(double x, int mantissa, int bias)
{
    int exponent;
    const double digits = frexp(fabs(x), &exponent); /* 1/2 to 1 */
    if (digits == 0 || exponent - 1 + bias < 1)
        return 0;
    const long bits = lrint(ldexp(digits, mantissa + 1)) - (1L << mantissa); /* may carry */
    return (uint16_t)((x < 0 ? 0x8000 : 0) + ((exponent - 1 + bias) << mantissa) + bits);
}

double bench_number(const char *data, attn_dtype dtype, int64_t n)
{
    switch (dtype) {
    case ATTN_F64: return ((const double *)(const void *)data)[n];
    case ATTN_F16: return widen(((const uint16_t *)(const void *)data)[n], 10, 15);
    case ATTN_BF16: return widen(((const uint16_t *)(const void *)data)[n], 7, 127);
    default: return (double)((const float *)(const void *)data)[n];
    }
}

void bench_number_set(char *data, attn_dtype dtype, int64_t n, double x)
{
    switch (dtype) {
    case ATTN_F64: ((double *)(void *)data)[n] = x; break;
    case ATTN_F16: ((uint16_t *)(void *)data)[n] = narrow(x, 10, 15); break;
    case ATTN_BF16: ((uint16_t *)(void *)data)[n] = narrow(x, 7, 127); break;
    default: ((float *)(void *)data)[n] = (float)x;
    }
}
