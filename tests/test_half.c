/* SPDX-License-Identifier: BSD-3-Clause */
/* The library's conversions of 16-bit numbers, against those of the tests. */
#include <math.h>

#include "element.h"
#include "expect.h"
#include "half.h"
#include "rng.h"

static const attn_dtype types[] = {ATTN_F16, ATTN_BF16};

static float widen(attn_dtype type, uint16_t x)
{
    return type == ATTN_F16 ? attn_f16_to_f32(x) : attn_bf16_to_f32(x);
}

static uint16_t narrow(attn_dtype type, float x)
{
    return type == ATTN_F16 ? attn_f32_to_f16(x) : attn_f32_to_bf16(x);
}

static bool alike(double a, double b)
{
    return isnan(a) ? isnan(b) != 0 : a == b && !signbit(a) == !signbit(b);
}

/* Whether x, an f32, becomes the number that it should. */
static bool rounds(attn_dtype type, float x)
{
    const uint16_t bits = narrow(type, x);
    uint16_t expected;

    element_set(type, &expected, 0, (double)x);
    return isnan(x) ? isnan(element_get(type, &bits, 0)) != 0 : bits == expected;
}

/* All numbers of the type, and all ties with the f32 on either side of them. */
static void check_all(attn_dtype type)
{
    for (uint32_t n = 0; n < 0x10000; n++) {
        const uint16_t bits = (uint16_t)n, next = (uint16_t)(n + 1);
        const double x = element_get(type, &bits, 0), y = element_get(type, &next, 0);
        EXPECT(alike(x, (double)widen(type, bits)), "%s %04x: read as %g, expected %g",
               element_name(type), (unsigned)n, (double)widen(type, bits), x);
        EXPECT(rounds(type, (float)x), "%s %04x: %g does not become itself", element_name(type),
               (unsigned)n, x);
        const double most = element_format(type)->most;
        const double top = isinf(y) ? copysign(2 * ldexp(1, ilogb(most)), y) : y;
        const float tie = (float)((x + top) / 2);
        if (isfinite(tie))
            EXPECT(rounds(type, tie) && rounds(type, nextafterf(tie, INFINITY)) &&
                       rounds(type, nextafterf(tie, -INFINITY)),
                   "%s: %a or a neighbour is rounded wrongly", element_name(type), (double)tie);
    }
}

static void check_some(attn_dtype type)
{
    struct rng r = rng_seeded(1);

    for (int n = 0; n < 300000; n++) {
        const float x = attn_from_bits((uint32_t)rng_next(&r));
        EXPECT(rounds(type, x), "%s: %a is rounded wrongly", element_name(type), (double)x);
    }
}

int main(void)
{
    report_begin("half");
    for (int n = 0; n < 2; n++) {
        check_all(types[n]);
        check_some(types[n]);
    }
    return report_end();
}
