/* SPDX-License-Identifier: BSD-3-Clause */
/* The emulator's side of conformance.h. */
#include "emulator/conformance.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <string>

namespace conformance {

static const char *const names[RESULTS] = {
    "place",  "shuffle", "ballot", "barriers", "copy of 4 bytes", "copy of 8 bytes",
    "copy of 16 bytes", "load of matrices", "transposed load", "bf16 product of integers",
    "f16 product of integers", "bf16 product", "f16 product", "TF32 product of integers",
    "TF32 product", "f64 product of integers",
    "f64 product", "load of 16 bytes", "packing", "exp2", "exp", "exp in f64", "atomic",
    "least by atomic"};

const char *name(enum result r) { return names[r]; }

/* Results that are numbers, as many words of them, and whether they are f64. */
static int numbers_of(enum result r)
{
    switch (r) {
    case BF16:
    case F16:
    case TF32:
    case F64: return 4;
    case EXP2:
    case EXP:
    case EXP_F64: return WORDS;
    default: return 0;
    }
}

static bool is_f64(enum result r) { return r == F64 || r == EXP_F64; }

/* Products of numbers up to 2 are summed 16 times, in f64 8 times; exponentials have 2 units. */
static bool near(enum result r, double x, double y)
{
    const double unit = is_f64(r) ? 0x1p-52 : 0x1p-23, least = is_f64(r) ? 0x1p-1074 : 0x1p-149;
    if (r == EXP2 || r == EXP || r == EXP_F64)
        return x == y || fabs(x - y) <= fmax(2 * fabs(y) * unit, 2 * least);
    return fabs(x - y) <= 17 * 64 * unit;
}

static double number_at(enum result r, const uint32_t *words)
{
    float x;
    double y;
    memcpy(&x, words, sizeof x);
    if (!is_f64(r))
        return (double)x;
    memcpy(&y, words, sizeof y);
    return y;
}

const char *difference(enum result r, const uint32_t *got, const uint32_t *expected)
{
    static char text[120];
    for (int n = 0; n < THREADS * WORDS; n++) {
        const int first = is_f64(r) ? n / 2 * 2 : n; /* word of the number */
        if (got[n] == expected[n] ||
            (n % WORDS < numbers_of(r) &&
             near(r, number_at(r, got + first), number_at(r, expected + first))))
            continue;
        snprintf(text, sizeof text, "thread %d, word %d: %08x, emulated %08x", n / WORDS, n % WORDS,
                 (unsigned)got[n], (unsigned)expected[n]);
        return text;
    }
    return "";
}

static uint64_t next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 32;
}

void draw_inputs(uint32_t *inputs, uint64_t seed)
{
    for (int i = 0; i < INPUTS; i++)
        for (int n = 0; n < THREADS * WORDS; n++) {
            uint32_t *const to = inputs + i * THREADS * WORDS + n;
            const uint32_t bits = (uint32_t)next(&seed);
            float x[2];
            for (int half = 0; half < 2; half++)
                x[half] = i <= INTEGERS_F16 ? (float)(int)(next(&seed) % 17) - 8
                                            : (float)(next(&seed) % 65536) / 16384 - 2;
            const float exponent = (float)(next(&seed) % 66560) / 256 - 130;
            if (i == BITS)
                *to = bits;
            else if (i == EXPONENTS)
                memcpy(to, &exponent, sizeof exponent);
            else if (i == INTEGERS_BF16 || i == NUMBERS_BF16)
                *to = attn_f32_to_bf16(x[0]) | (uint32_t)attn_f32_to_bf16(x[1]) << 16;
            else
                *to = attn_f32_to_f16(x[0]) | (uint32_t)attn_f32_to_f16(x[1]) << 16;
        }
}

const char *emulate(const uint32_t *inputs, uint32_t *results, uint64_t seed)
{
    static std::string wrong;
    int counter = 0;
    emulator::launch l;
    l.blocks = 1;
    l.threads = THREADS;
    l.shared_bytes = SHARED_BYTES;
    l.seed = seed;
    wrong = emulator::run(l, [&] { exercise(inputs, results, &counter); });
    return wrong.c_str();
}

} // namespace conformance
