/* SPDX-License-Identifier: BSD-3-Clause */
/* The forward kernel for f32: the head sizes and tiles that there are. */
#include "cuda/fwd_f32.h"

namespace fwd_f32 {

typedef fwd::f32 T;
template <int D> using low = fwd::sizes<T, D, D, 32, 1, 1, 4, false>;
template <int D> using tall = fwd::sizes<T, D, D, 32, 1, 4, 1, false>;
typedef fwd::sizes<T, 64, 128, 32, 1, 1, 4, true> low_any;
typedef fwd::sizes<T, 64, 128, 32, 1, 4, 1, true> tall_any;

} // namespace fwd_f32

const struct attn_cuda_pair attn_cuda_f32[] = {
    fwd::pair<fwd_f32::low<64>, fwd_f32::tall<64>>("fma f32 d64", 64),
    fwd::pair<fwd_f32::low<128>, fwd_f32::tall<128>>("fma f32 d128", 128),
    fwd::pair<fwd_f32::low<256>, fwd_f32::tall<256>>("fma f32 d256", 256),
    fwd::pair<fwd_f32::low_any, fwd_f32::tall_any>("fma f32", 0),
    {}};
