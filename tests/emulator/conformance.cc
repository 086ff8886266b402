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
    "f16 product of integers", "bf16 product", "f16 product", "exp2", "atomic"};

const char *name(enum result r) { return names[r]; }

/* Of words as f32: products of numbers up to 2 are summed 16 times; exp2 has 2 units. */
static bool near(enum result r, uint32_t got, uint32_t expected)
{
    float x, y;
    memcpy(&x, &got, sizeof x);
    memcpy(&y, &expected, sizeof y);
    if (r == EXP2)
        return x == y || fabsf(x - y) <= fabsf(y) * 0x1p-22f;
    return fabsf(x - y) <= 17 * 64 * 0x1p-23f;
}

const char *difference(enum result r, const uint32_t *got, const uint32_t *expected)
{
    static char text[120];
    for (int n = 0; n < THREADS * WORDS; n++) {
        const bool number = (r == BF16 || r == F16 || r == EXP2) && (r == EXP2 || n % WORDS < 4);
        if (got[n] == expected[n] || (number && near(r, got[n], expected[n])))
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
