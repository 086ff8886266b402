/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every instruction of cuda/device.h once, on numbers from memory, its results to memory: by this
 * what the emulator computes and what a GPU computes are compared. One block of THREADS threads.
 */
#ifndef EMULATOR_CONFORMANCE_H
#define EMULATOR_CONFORMANCE_H

#include "cuda/device.h"

namespace conformance {

enum { THREADS = 64, WORDS = 16, SHARED_BYTES = 8192 };

/* Results of each instruction: WORDS words per thread. */
enum result {
    PLACE,      /* thread, lane, warp, block, blocks */
    SHUFFLE,    /* of integers and of doubles, by lane and by mask */
    BALLOT,
    BARRIERS,   /* a word handed from one warp to the other */
    COPY_4,     /* copies of 4, 8 and 16 bytes, and of none */
    COPY_8,
    COPY_16,
    LOAD,
    LOAD_TRANSPOSED,
    BF16_EXACT, /* products of small integers */
    F16_EXACT,
    BF16,       /* of any numbers: to a rounding of each step */
    F16,
    TF32_EXACT,
    TF32,
    F64_EXACT,  /* products of integers */
    F64,
    LOAD_OF_16,
    PACK,       /* numbers of any size, to both types */
    EXP2,
    EXP,
    EXP_F64,
    ATOMIC,
    LEAST,
    RESULTS
};

/* What is wrong with results `got` where `expected` stands, "" if nothing is; the name of one. */
const char *difference(enum result r, const uint32_t *got, const uint32_t *expected);
const char *name(enum result r);

/* Numbers from a seed: [THREADS][WORDS] of any bits, of small integers in bf16 and in f16, of
 * numbers up to 2 in bf16 and in f16, and of f32 from -130 to 130. */
enum input { BITS, INTEGERS_BF16, INTEGERS_F16, NUMBERS_BF16, NUMBERS_F16, EXPONENTS, INPUTS };
void draw_inputs(uint32_t *inputs, uint64_t seed);

/* The emulator's results; why it ended, if it did not get there. */
const char *emulate(const uint32_t *inputs, uint32_t *results, uint64_t seed);

DEVICE uint32_t *row(uint32_t *results, enum result r)
{
    return results + ((int)r * THREADS + dev::thread()) * WORDS;
}

DEVICE const uint32_t *row(const uint32_t *inputs, enum input i)
{
    return inputs + ((int)i * THREADS + dev::thread()) * WORDS;
}

template <int bytes>
DEVICE void copy(uint32_t *memory, const uint32_t *from, uint32_t *to)
{
    uint32_t *const here = memory + dev::thread() * WORDS;
    for (int n = 0; n < WORDS; n++)
        here[n] = 0xffffffffu;
    dev::copy_async<bytes>(here, from, true);
    dev::copy_async<bytes>(here + 4, from + 4, dev::thread() % 2 == 0);
    dev::commit_copies();
    dev::copy_async<bytes>(here + 8, from + 8, true);
    dev::commit_copies();
    dev::wait_copies<1>();
    for (int n = 0; n < 8; n++)
        to[n] = here[n];
    dev::wait_copies<0>();
    for (int n = 8; n < WORDS; n++)
        to[n] = here[n];
    dev::sync();
}

/* c = a b + c of words: a 4, b 2, and c made of the rest, as integers or as numbers. */
template <class F> DEVICE void product(F multiply, const uint32_t *x, uint32_t *to, bool whole)
{
    float c[4];
    for (int n = 0; n < 4; n++)
        c[n] = whole ? (float)(x[6 + n] % 16) : (float)(int)(x[6 + n] % 1024) / 512 - 1;
    multiply(c, x, x + 4);
    memcpy(to, c, sizeof c);
}

/* The same in TF32: of integers, or of any numbers of f32 up to 2, rounded. */
DEVICE void product_tf32(const uint32_t *x, uint32_t *to, bool whole)
{
    uint32_t ab[6];
    float c[4];
    for (int n = 0; n < 6; n++)
        ab[n] = dev::round_tf32(whole ? (float)(int)(x[n] % 32) - 16
                                      : (float)(int)(x[n] % 0x1000000) / 0x800000 * 2 - 2);
    for (int n = 0; n < 4; n++)
        c[n] = whole ? (float)(x[6 + n] % 16) : (float)(int)(x[6 + n] % 1024) / 512 - 1;
    dev::multiply_tf32(c, ab, ab + 4);
    memcpy(to, c, sizeof c);
    for (int n = 0; n < 6; n++)
        to[4 + n] = ab[n];
}

/* The same in f64: two products, of integers, or of numbers up to 2. */
DEVICE void product_f64(const uint32_t *x, uint32_t *to, bool whole)
{
    double a[2], b[2], c[2];
    for (int n = 0; n < 2; n++) {
        const double scale = whole ? 1 : 1.0 / 1024;
        a[n] = ((double)(x[n] % 4096) - 2048) * scale;
        b[n] = ((double)(x[2 + n] % 4096) - 2048) * scale;
        c[n] = ((double)(x[4 + n] % 4096) - 2048) * scale;
    }
    dev::multiply_f64(c, a[0], b[0]);
    dev::multiply_f64(c, a[1], b[1]);
    memcpy(to, c, sizeof c);
}

struct words {
    uint32_t word[4];
};

KERNEL exercise(const uint32_t *inputs, uint32_t *results, int *counter)
{
    uint32_t *const memory = (uint32_t *)dev::shared();
    const uint32_t *const x = row(inputs, BITS);
    uint32_t *to = row(results, PLACE);
    to[0] = (uint32_t)dev::thread(), to[1] = (uint32_t)dev::lane(), to[2] = (uint32_t)dev::warp();
    to[3] = (uint32_t)dev::block(), to[4] = (uint32_t)dev::blocks();

    to = row(results, SHUFFLE);
    to[0] = (uint32_t)dev::shuffle((int)x[0], 5);
    to[1] = (uint32_t)dev::shuffle((int)x[1], (int)(x[2] % 32));
    to[2] = (uint32_t)dev::shuffle_xor((int)x[3], 6);
    const double wide = dev::shuffle_xor((double)x[4] + 0.25, 17);
    memcpy(to + 3, &wide, sizeof wide);

    to = row(results, BALLOT);
    to[0] = dev::ballot(x[0] % 2 == 0);
    dev::sync_warp();

    to = row(results, BARRIERS);
    if (dev::warp() == 0) {
        memory[dev::lane()] = x[0];
        dev::arrive(1, THREADS);
        dev::sync_some(2, THREADS);
        to[0] = memory[32 + 31 - dev::lane()];
    } else {
        dev::sync_some(1, THREADS);
        to[0] = memory[31 - dev::lane()];
        memory[32 + dev::lane()] = x[0];
        dev::arrive(2, THREADS);
    }
    dev::sync();

    copy<4>(memory, x, row(results, COPY_4));
    copy<8>(memory, x, row(results, COPY_8));
    copy<16>(memory, x, row(results, COPY_16));

    for (int n = 0; n < WORDS; n++)
        memory[dev::thread() * WORDS + n] = x[n];
    dev::sync();
    dev::load_matrices(row(results, LOAD),
                       memory + (dev::lane() * 5 % 32 + dev::warp() * 32) * WORDS + 4);
    dev::load_transposed(row(results, LOAD_TRANSPOSED),
                         memory + (dev::lane() * 7 % 32 + dev::warp() * 32) * WORDS + 8);

    product([](float *c, const uint32_t *a, const uint32_t *b) { dev::multiply_bf16(c, a, b); },
            row(inputs, INTEGERS_BF16), row(results, BF16_EXACT), true);
    product([](float *c, const uint32_t *a, const uint32_t *b) { dev::multiply_f16(c, a, b); },
            row(inputs, INTEGERS_F16), row(results, F16_EXACT), true);
    product([](float *c, const uint32_t *a, const uint32_t *b) { dev::multiply_bf16(c, a, b); },
            row(inputs, NUMBERS_BF16), row(results, BF16), false);
    product([](float *c, const uint32_t *a, const uint32_t *b) { dev::multiply_f16(c, a, b); },
            row(inputs, NUMBERS_F16), row(results, F16), false);

    product_tf32(x, row(results, TF32_EXACT), true);
    product_tf32(x + 3, row(results, TF32), false);

    product_f64(x, row(results, F64_EXACT), true);
    product_f64(x + 6, row(results, F64), false);

    for (int n = 0; n < WORDS; n++)
        memory[dev::thread() * WORDS + n] = x[n];
    dev::sync();
    const struct words w = dev::load_16<struct words>(memory + (dev::thread() ^ 21) * WORDS + 8);
    memcpy(row(results, LOAD_OF_16), &w, sizeof w);
    dev::sync();

    for (int n = 0; n < WORDS / 2; n++) {
        float low, high;
        const uint32_t bits[2] = {x[2 * n] & 0xbfffffff, x[2 * n + 1] & 0xbfffffff}; /* no NaN */
        memcpy(&low, bits, sizeof low);
        memcpy(&high, bits + 1, sizeof high);
        row(results, PACK)[2 * n] = dev::pack_bf16(low, high);
        row(results, PACK)[2 * n + 1] = dev::pack_f16(low * 0x1p40f, high);
    }

    for (int n = 0; n < WORDS; n++) {
        float e, y;
        memcpy(&e, row(inputs, EXPONENTS) + n, sizeof e);
        y = dev::exp2_fast(e);
        memcpy(row(results, EXP2) + n, &y, sizeof y);
        y = dev::exp(e * 0.75f); /* to the denormals */
        memcpy(row(results, EXP) + n, &y, sizeof y);
        const double z = dev::exp((double)e * 5.5);
        if (n < WORDS / 2)
            memcpy(row(results, EXP_F64) + 2 * n, &z, sizeof z);
    }

    dev::add_atomic(counter, dev::thread());
    dev::sync();
    to = row(results, ATOMIC);
    to[0] = (uint32_t)dev::add_atomic(counter, 0);
    to[1] = (uint32_t)dev::count_bits(x[0]);
    const int64_t most[2] = {(int64_t)x[1] << 32 ^ x[2], (int64_t)x[3] << 32 ^ x[4]};
    memcpy(to + 2, most, sizeof most[0]);
    dev::max_atomic((int64_t *)(to + 2), most[1] ^ INT64_MIN); /* of either sign */

    /* Of all threads' numbers, in shared memory. */
    uint64_t *const least = (uint64_t *)dev::shared();
    const uint32_t *const bits = row(inputs, BITS);
    dev::sync();
    if (dev::thread() == 0)
        *least = UINT64_MAX;
    dev::sync();
    dev::least_atomic(least, (uint64_t)bits[0] << 32 | bits[1]);
    dev::sync();
    row(results, LEAST)[0] = (uint32_t)*least;
    row(results, LEAST)[1] = (uint32_t)(*least >> 32);
}

} // namespace conformance

#endif
