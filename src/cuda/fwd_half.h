/* SPDX-License-Identifier: BSD-3-Clause */
/* The 16-bit types in the forward kernel: mma.sync of 16 x 8 x 16, in f32. */
#ifndef ATTN_CUDA_FWD_HALF_H
#define ATTN_CUDA_FWD_HALF_H

#include "cuda/fwd.h"

namespace fwd {

struct bf16 {
    static DEVICE float number(uint16_t x) { return attn_bf16_to_f32(x); }
    static DEVICE uint16_t put(float x) { return attn_f32_to_bf16(x); }
    static DEVICE uint32_t pack(float low, float high) { return dev::pack_bf16(low, high); }
    static DEVICE void multiply(float *c, const uint32_t *a, const uint32_t *b)
    {
        dev::multiply_bf16(c, a, b);
    }
};

struct f16 {
    static DEVICE float number(uint16_t x) { return attn_f16_to_f32(x); }
    static DEVICE uint16_t put(float x) { return attn_f32_to_f16(x); }
    static DEVICE uint32_t pack(float low, float high) { return dev::pack_f16(low, high); }
    static DEVICE void multiply(float *c, const uint32_t *a, const uint32_t *b)
    {
        dev::multiply_f16(c, a, b);
    }
};

template <class N> struct half : N {
    typedef uint16_t element;
    typedef float real;
    using N::put;
    static DEVICE pair_of<uint16_t> put(float x, float y)
    {
        const uint32_t both = N::pack(x, y);
        return {{(uint16_t)both, (uint16_t)(both >> 16)}};
    }
    static DEVICE float exp_of(float x) { return dev::exp2_fast(x * 1.44269504088896341f); }

    /* Any 8 rows from a multiple of 8 on come from all banks. */
    template <int WIDTH> static DEVICE int place(int row, int chunk)
    {
        static_assert(WIDTH == 32 || WIDTH % 64 == 0, "4 chunks, or 8");
        return row * 2 * WIDTH + (chunk ^ (WIDTH == 32 ? row / 2 % 4 : row % 8)) * 16;
    }

    template <int D, int KEYS, int M>
    static DEVICE void scores(float (*s)[4], const char *queries, const char *keys)
    {
        const int lane = dev::lane();
        UNROLLED for (int c = 0; c < D; c += 16) {
            uint32_t a[M][4], b[4];
            UNROLLED for (int m = 0; m < M; m++)
                dev::load_matrices(a[m], queries + place<D>(16 * m + lane % 16, c / 8 + lane / 16));
            UNROLLED for (int j = 0; j < KEYS; j += 16) {
                dev::load_matrices(b, keys + place<D>(j + lane / 16 * 8 + lane % 8,
                                                      c / 8 + lane / 8 % 2));
                UNROLLED for (int m = 0; m < M; m++) {
                    float (*const to)[4] = s + m * (KEYS / 8) + j / 8;
                    N::multiply(to[0], a[m], b);
                    N::multiply(to[1], a[m], b + 2);
                }
            }
        }
    }

    template <int KEYS, int DV, int M>
    static DEVICE void values(float (*out)[4], const float (*s)[4], const char *values)
    {
        const int lane = dev::lane();
        UNROLLED for (int j = 0; j < KEYS; j += 16) {
            uint32_t a[M][4], b[4];
            UNROLLED for (int i = 0; i < 4 * M; i++) {
                const float *const x = s[i / 4 * (KEYS / 8) + j / 8 + i % 4 / 2] + i % 2 * 2;
                a[i / 4][i % 4] = N::pack(x[0], x[1]);
            }
            UNROLLED for (int c = 0; c < DV; c += 16) {
                dev::load_transposed(b, values + place<DV>(j + lane / 8 % 2 * 8 + lane % 8,
                                                           c / 8 + lane / 16));
                UNROLLED for (int m = 0; m < M; m++) {
                    float (*const to)[4] = out + m * (DV / 8) + c / 8;
                    N::multiply(to[0], a[m], b);
                    N::multiply(to[1], a[m], b + 2);
                }
            }
        }
    }

    static DEVICE int column(int n) { return 8 * n + dev::lane() % 4 * 2; }
};

} // namespace fwd

#endif
