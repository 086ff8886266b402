/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * f32 in the forward kernel: multiply-adds in f32. Tensor cores offer 11 bits (TF32); two parts of
 * a number give 22 of its 24, and the three that it takes need six products, which is no faster
 * than multiply-adds are, on an H100 slower.
 */
#ifndef ATTN_CUDA_FWD_F32_H
#define ATTN_CUDA_FWD_F32_H

#include "cuda/fwd.h"

namespace fwd {

struct f32 : itself<float> {
    /* Any 8 rows from a multiple of 8 on come from all banks. */
    template <int WIDTH> static DEVICE int place(int row, int chunk)
    {
        static_assert(WIDTH % 32 == 0, "8 chunks");
        return row * 4 * WIDTH + (chunk ^ row % 8) * 16;
    }

    struct four {
        float x[4];
    };

    template <int WIDTH> static DEVICE struct four load(const char *tile, int row, int chunk)
    {
        return dev::load_16<struct four>(tile + place<WIDTH>(row, chunk));
    }

    template <int D, int KEYS, int M>
    static DEVICE void scores(float (*s)[4], const char *queries, const char *keys)
    {
        static_assert(M == 1, "one band");
        const int g = dev::lane() / 4, t = dev::lane() % 4;
        ROLLED for (int c = 0; c < D / 4; c++) {
            const struct four q0 = load<D>(queries, g, c), q1 = load<D>(queries, g + 8, c);
            UNROLLED for (int j = 0; j < KEYS / 8; j++)
                UNROLLED for (int half = 0; half < 2; half++) {
                    const struct four k = load<D>(keys, 8 * j + 2 * t + half, c);
                    UNROLLED for (int i = 0; i < 4; i++) {
                        s[j][half] = fmaf(q0.x[i], k.x[i], s[j][half]);
                        s[j][2 + half] = fmaf(q1.x[i], k.x[i], s[j][2 + half]);
                    }
                }
        }
    }

    /* Each lane has 4 columns of 16, of which it needs all its rows' weights. */
    template <int KEYS, int DV, int M>
    static DEVICE void values(float (*out)[4], const float (*s)[4], const char *values)
    {
        static_assert(M == 1, "one band");
        const int quad = dev::lane() / 4 * 4, t = dev::lane() % 4;
        UNROLLED for (int j = 0; j < KEYS / 8; j++)
            UNROLLED for (int half = 0; half < 2; half++)
                ROLLED for (int from = 0; from < 4; from++) {
                    const float p0 = dev::shuffle(s[j][half], quad + from);
                    const float p1 = dev::shuffle(s[j][2 + half], quad + from);
                    UNROLLED for (int c = 0; c < DV / 16; c++) {
                        const struct four v = load<DV>(values, 8 * j + 2 * from + half, 4 * c + t);
                        UNROLLED for (int i = 0; i < 4; i++) {
                            float *const x = out[2 * c + i / 2] + i % 2;
                            x[0] = fmaf(p0, v.x[i], x[0]);
                            x[2] = fmaf(p1, v.x[i], x[2]);
                        }
                    }
                }
    }

    static DEVICE int column(int n) { return n / 2 * 16 + dev::lane() % 4 * 4 + n % 2 * 2; }
};

} // namespace fwd

#endif
