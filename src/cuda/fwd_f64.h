/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * f64 in the forward kernel: mma.sync of 8 x 8 x 4 in f64, twice for 16 rows. The order of the
 * numbers that a product sums is free, as long as both sides have the same: a lane's are next to
 * each other.
 */
#ifndef ATTN_CUDA_FWD_F64_H
#define ATTN_CUDA_FWD_F64_H

#include "cuda/fwd.h"

namespace fwd {

struct f64 : itself<double> {
    /* 64 bytes of 2 rows, or 32 of rows 0, 2, 4, 6 or 1, 3, 5, 7, come from all banks. */
    template <int WIDTH> static DEVICE int place(int row, int chunk)
    {
        static_assert(WIDTH % 16 == 0, "8 chunks");
        return row * 8 * WIDTH + (chunk ^ (row & 2) ^ (row << 2 & 4) ^ (row & 4)) * 16;
    }

    struct two {
        double x[2];
    };

    template <int WIDTH> static DEVICE struct two load(const char *tile, int row, int chunk)
    {
        return dev::load_16<struct two>(tile + place<WIDTH>(row, chunk));
    }

    template <int D, int KEYS, int M>
    static DEVICE void scores(double (*s)[4], const char *queries, const char *keys)
    {
        static_assert(M == 1, "one band");
        const int g = dev::lane() / 4, t = dev::lane() % 4;
        ROLLED for (int c = 0; c < D / 8; c++) {
            const struct two a0 = load<D>(queries, g, 4 * c + t);
            const struct two a1 = load<D>(queries, g + 8, 4 * c + t);
            UNROLLED for (int j = 0; j < KEYS / 8; j++) {
                const struct two b = load<D>(keys, 8 * j + g, 4 * c + t);
                UNROLLED for (int i = 0; i < 2; i++) {
                    dev::multiply_f64(s[j], a0.x[i], b.x[i]);
                    dev::multiply_f64(s[j] + 2, a1.x[i], b.x[i]);
                }
            }
        }
    }

    template <int KEYS, int DV, int M>
    static DEVICE void values(double (*out)[4], const double (*s)[4], const char *values)
    {
        static_assert(M == 1, "one band");
        const int g = dev::lane() / 4, t = dev::lane() % 4;
        UNROLLED for (int j = 0; j < KEYS / 8; j++)
            UNROLLED for (int half = 0; half < 2; half++)
                UNROLLED for (int c = 0; c < DV / 8; c++) {
                    const double v = ((const double *)(values +
                                          place<DV>(8 * j + 2 * t + half, 4 * c + g / 2)))[g % 2];
                    dev::multiply_f64(out[c], s[j][half], v);
                    dev::multiply_f64(out[c] + 2, s[j][2 + half], v);
                }
    }

    static DEVICE int column(int n) { return 8 * n + dev::lane() % 4 * 2; }
};

} // namespace fwd

#endif
