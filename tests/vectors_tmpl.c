/* SPDX-License-Identifier: BSD-3-Clause */
/* Built once per instruction set and type, with the kernels' own flags. See vectors.h. */
#include "vectors.h"

#include <string.h>

#include "cpu/word.h"

static void hyperbolic(void *to, const void *from) { vec_store(to, vec_tanh(vec_load(from))); }

static void power(void *to, const void *from, double scale)
{
    const struct exponent c = exponent_of(scale);
    vec_store(to, vec_exp2(exp2_argument(vec_load(from), c), c, 0));
}

static void power_of_weight(void *to, const void *from, double scale)
{
    const struct exponent c = exponent_of(scale);
    vec_store(to, vec_exp2(exp2_argument(vec_load(from), c), c, WEIGHT_BITS));
}

static void power_by_steps(void *to, const void *from, double scale)
{
    vec_store(to, exp2_by_steps(vec_load(from), exponent_of(scale), false));
}

static void power_rough(void *to, const void *from, double scale)
{
#if MATRIX
    vec_store(to, word_weigh(vec_load(from), exponent_of(scale)));
#else
    vec_store(to, exp2_by_steps(vec_load(from), exponent_of(scale), true));
#endif
}

static void mask(void *to, uint32_t given)
{
    vec_store(to, vec_select(vmask_of(given), vec_set(1), vec_zero()));
}

#if REAL_BITS == 32
static void from_f16(float *to, const uint16_t *from) { vec_store(to, vec_from_f16(from)); }
static void from_bf16(float *to, const uint16_t *from) { vec_store(to, vec_from_bf16(from)); }
static void to_f16(uint16_t *to, const float *from) { vec_to_f16(to, vec_load(from)); }
static void to_bf16(uint16_t *to, const float *from) { vec_to_bf16(to, vec_load(from)); }
#define WIDEN {from_f16, from_bf16}
#define NARROW {to_f16, to_bf16}
#else
#define WIDEN {0}
#define NARROW {0}
#endif

#if MATRIX
#define MULTIPLY .multiply = multiply, .rough = true,
static void multiply(float *sums, const uint16_t *rows, const uint16_t *columns)
{
    matrix_begin();
    matrix_load(3, sums, MATRIX);
    matrix_load(5, (const real *)(const void *)rows, MATRIX);
    matrix_load(6, (const real *)(const void *)columns, MATRIX);
    matrix_mac(3, 5, 6);
    matrix_store(3, sums, MATRIX);
    matrix_end();
}
#else
#define MULTIPLY
#endif

#if WORDS_OF_TWO
#define WORDS .pack = pack, .zip = zip, MULTIPLY
static void pack(uint16_t *to, const float *first, const float *second)
{
    const vec a[PAIR] = {vec_load(first), vec_load(second)}, w = word_pack(a);
    memcpy(to, &w, sizeof w);
}

static void zip(uint16_t *to, const uint16_t *first, const uint16_t *second)
{
    const uint16_t *const row[PAIR] = {first, second};
    const vec w = word_zip(row);
    memcpy(to, &w, sizeof w);
}
#else
#define WORDS
#endif

enum { MOST = REAL_BITS == 32 ? 127 : 1023, STEPS_MOST = EXP2_BESIDE == 3 ? 126 : MOST };

extern const struct vectors KERNEL(vectors);
const struct vectors KERNEL(vectors) = {
    .lanes = VEC_N, .tanh = hyperbolic,
    .power = {power, power_of_weight, power_by_steps, power_rough},
    .most = {MOST, MOST, STEPS_MOST, STEPS_MOST}, .one = WEIGHT_ONE, .mask = mask,
    .widen = WIDEN, .narrow = NARROW, WORDS};
