/* SPDX-License-Identifier: BSD-3-Clause */
/* The emulator's side of conformance_sm90.h. */
#include "emulator/conformance_sm90.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <string>

#include "emulator/tensor_map.h"

namespace conformance_sm90 {

static const char *const names[RESULTS] = {
    "phases of an mbarrier", "election", "bulk copies", "load of a box",
    "load of a box, swizzle 32", "load of a box, swizzle 64", "load of a box, swizzle 128",
    "load of a box of 3 axes", "load of a box of 4 axes", "store of a box",
    "store of a box of 3 axes", "store of a box of 4 axes", "bf16 product, 16 columns",
    "bf16 product, 32 columns", "bf16 product, 64 columns", "bf16 product, 96 columns",
    "bf16 product, 128 columns", "bf16 product, 192 columns", "bf16 product, 256 columns",
    "f16 product of a warpgroup", "no swizzle, depth side by side",
    "swizzle 32, depth side by side", "swizzle 64, depth side by side",
    "no swizzle, columns side by side", "swizzle 32, columns side by side",
    "swizzle 64, columns side by side", "swizzle 128, columns side by side",
    "bf16 product from registers", "f16 product from registers", "bf16 product of numbers",
    "f16 product of numbers", "a kernel of all of them"};

const char *name(int r) { return names[r]; }

/* Numbers up to 2, 32 products of which are summed. */
static bool near(uint32_t x, uint32_t y)
{
    float a, b;
    memcpy(&a, &x, sizeof a);
    memcpy(&b, &y, sizeof b);
    return fabsf(a - b) <= 33 * 128 * 0x1p-23f;
}

const char *difference(int r, const uint32_t *got, const uint32_t *expected)
{
    static char text[120];
    for (int n = 0; n < ALL; n++) {
        if (got[n] == expected[n] ||
            ((r == BF16_NUMBERS || r == F16_NUMBERS) && near(got[n], expected[n])))
            continue;
        snprintf(text, sizeof text, "word %d: %08x, emulated %08x", n, (unsigned)got[n],
                 (unsigned)expected[n]);
        return text;
    }
    return "";
}

void draw_inputs(uint32_t *inputs, uint64_t seed)
{
    for (int n = 0; n < INPUTS * ALL; n++) {
        const int i = n / ALL;
        uint32_t both = 0;
        for (int half = 0; half < 2; half++) {
            seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            const uint32_t x = (uint32_t)(seed >> 40);
            const float number = i <= INTEGERS_F16 ? (float)(int)(x % 17) - 8
                                                   : (float)(x % 65536) / 16384 - 2;
            const bool is_bf16 = i == INTEGERS_BF16 || i == NUMBERS_BF16;
            const uint32_t bits = is_bf16 ? attn_f32_to_bf16(number) : attn_f32_to_f16(number);
            both |= (i == BITS ? x & 0xffff : bits) << 16 * half;
        }
        inputs[n] = both;
    }
}

static bool make_map(attn_cuda_encode encode, dev::tensor_map *map, const void *data, int rank,
                     int swizzle, uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    const uint64_t near = X * 2, far = X * Z * 2; /* of three axes and more, the third is within */
    struct attn_cuda_tensor t = {data, rank, 2, (enum attn_cuda_swizzle)swizzle, {X, Y, Z, W},
                                 {rank > 2 ? far : near, near, X * Y * Z * 2}, {x, y, z, w}};
    return attn_cuda_make_map(encode, &t, map);
}

/* Matrices of exercise_all(). */
enum { M = 150, N = 136, K = 200 };

static bool make_matrix_map(attn_cuda_encode encode, dev::tensor_map *map, const void *data,
                            int size, int columns, int rows, int box_columns, int box_rows,
                            int swizzle)
{
    const struct attn_cuda_tensor t = {
        data, 2, size, (enum attn_cuda_swizzle)swizzle, {(uint64_t)columns, (uint64_t)rows},
        {(uint64_t)(columns * size)}, {(uint32_t)box_columns, (uint32_t)box_rows}};
    return attn_cuda_make_map(encode, &t, map);
}

bool find_arguments(attn_cuda_encode encode, const uint32_t *inputs, uint32_t *results,
                    struct arguments *a)
{
    using namespace product_sm90;
    const uint32_t *const integers = inputs + INTEGERS_BF16 * ALL;
    uint32_t *const to = results + WHOLE * ALL;
    bool all = true;
    *a = {};
    a->inputs = inputs;
    a->results = results;
    for (int r = LOAD_PLAIN; r <= STORE_4D; r++) {
        const bool stores = r >= STORE_2D;
        const void *const data = stores ? results + r * ALL : inputs;
        dev::tensor_map *const map = &a->map[r - LOAD_PLAIN];
        if (r == LOAD_PLAIN)
            all &= make_map(encode, map, data, 2, 0, 24, 8, 1, 1);
        else if (r <= LOAD_128)
            all &= make_map(encode, map, data, 2, r - LOAD_PLAIN, 8u << (r - LOAD_PLAIN), 16, 1, 1);
        else if (r == LOAD_3D || r == STORE_3D)
            all &= make_map(encode, map, data, 3, 1, 16, 5, 2, 1);
        else if (r == LOAD_4D || r == STORE_4D)
            all &= make_map(encode, map, data, 4, 2, 32, 3, 2, 2);
        else
            all &= make_map(encode, map, data, 2, 3, 64, 16, 1, 1);
    }
    static_assert(N * (M * 3 / 4) <= ALL, "it is a result");
    struct tensors *const t = &a->product;
    t->m = M;
    t->n = N;
    t->k = K;
    all &= make_matrix_map(encode, &t->a, integers, 2, K, M, WIDTH<3>, ROWS, 3);
    all &= make_matrix_map(encode, &t->b, integers, 2, N, K, WIDTH<3>, DEPTH, 3);
    all &= make_matrix_map(encode, &t->c, to, 4, N, M * 3 / 4, COLUMNS, 64, 0);
    return all;
}

const char *emulate(const uint32_t *inputs, uint32_t *results, uint64_t seed)
{
    static std::string wrong;
    struct arguments a;
    if (!find_arguments(emulator::encode_tiled, inputs, results, &a))
        return "no map of a tensor";
    emulator::launch l;
    l.blocks = 1;
    l.threads = THREADS;
    l.shared_bytes = SHARED_BYTES;
    l.seed = seed;
    wrong = emulator::run(l, [&] { exercise(a); });
    l.blocks = PRODUCT_BLOCKS;
    l.threads = product_sm90::THREADS;
    l.shared_bytes = product_sm90::SHARED_BYTES;
    if (wrong.empty())
        wrong = emulator::run(l, [&] { exercise_all(a); });
    return wrong.c_str();
}

} // namespace conformance_sm90
