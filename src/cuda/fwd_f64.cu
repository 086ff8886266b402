/* SPDX-License-Identifier: BSD-3-Clause */
/* The forward kernel for f64: the head sizes and tiles that there are. */
#include "cuda/fwd_f64.h"

namespace fwd_f64 {

typedef fwd::f64 T;
template <int D> using low = fwd::sizes<T, D, D, 32, 1, 1, 4, false>;
template <int D> using tall = fwd::sizes<T, D, D, 32, 1, 4, 1, false>;
typedef fwd::sizes<T, 64, 128, 32, 1, 1, 4, true> low_any;
typedef fwd::sizes<T, 64, 128, 16, 1, 4, 1, true> tall_any;

} // namespace fwd_f64

const struct attn_cuda_pair attn_cuda_f64[] = {
    fwd::pair<fwd_f64::low<64>, fwd_f64::tall<64>>("mma f64 d64", 64),
    fwd::pair<fwd_f64::low<128>, fwd_f64::tall<128>>("mma f64 d128", 128),
    fwd::pair<fwd_f64::low_any, fwd_f64::tall_any>("mma f64", 0),
    {}};
