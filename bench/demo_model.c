/* SPDX-License-Identifier: BSD-3-Clause */
#include "demo_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { EMBED = 128 };

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Adds 1 or -1 to each component, by the bits of the hash. */
static void add_signs(float *x, uint64_t hash)
{
    for (int n = 0; n < EMBED; n += 64) {
        const uint64_t bits = mix(hash + (uint64_t)n);
        for (int i = 0; i < 64; i++)
            x[n + i] += bits >> i & 1 ? 1 : -1;
    }
}

/* x [EMBED] = the token's trigrams, its ends marked by 0 bytes, plus its place. */
static void embed(const char *token, size_t size, int32_t place, float *x)
{
    memset(x, 0, EMBED * sizeof *x);
    for (size_t n = 0; n < size; n++) {
        const uint64_t before = n > 0 ? (unsigned char)token[n - 1] : 0;
        const uint64_t after = n + 1 < size ? (unsigned char)token[n + 1] : 0;
        add_signs(x, before << 16 | (uint64_t)(unsigned char)token[n] << 8 | after);
    }
    const float scale = 1 / sqrtf((float)size);
    for (int n = 0; n < EMBED; n += 2) {
        const float angle = (float)place * powf(10000, -(float)n / EMBED);
        x[n] = scale * x[n] + sinf(angle);
        x[n + 1] = scale * x[n + 1] + cosf(angle);
    }
}

/* weights [EMBED, DEMO_WIDTH], uniform, of a size that gives scores spread by a few units. */
static void draw_weights(float *weights, uint64_t seed)
{
    const float size = sqrtf(3.0F / EMBED);
    for (uint64_t n = 0; n < (uint64_t)EMBED * DEMO_WIDTH; n++)
        weights[n] = size * ((float)(mix(seed << 32 | n) >> 40) * 0x1p-23F - 1);
}

/* y [DEMO_WIDTH] = x weights */
static void project(const float *x, const float *weights, float *y)
{
    memset(y, 0, DEMO_WIDTH * sizeof *y);
    for (int e = 0; e < EMBED; e++)
        for (int n = 0; n < DEMO_WIDTH; n++)
            y[n] += x[e] * weights[e * DEMO_WIDTH + n];
}

bool demo_model_qkv(const struct demo_text *t, float *q, float *k, float *v)
{
    const size_t matrix = (size_t)EMBED * DEMO_WIDTH;
    float *weights = malloc(3 * matrix * sizeof *weights), x[EMBED];
    if (!weights)
        return false;
    for (size_t n = 0; n < 3; n++)
        draw_weights(weights + n * matrix, n + 1);
    for (int32_t b = 0; b < t->sequences; b++)
        for (int32_t n = t->cu_seqlens[b]; n < t->cu_seqlens[b + 1]; n++) {
            const size_t row = (size_t)n * DEMO_WIDTH;
            embed(t->bytes + t->starts[n], t->ends[n] - t->starts[n], n - t->cu_seqlens[b], x);
            project(x, weights, q + row);
            project(x, weights + matrix, k + row);
            project(x, weights + 2 * matrix, v + row);
        }
    free(weights);
    return true;
}
