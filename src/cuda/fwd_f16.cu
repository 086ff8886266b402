/* SPDX-License-Identifier: BSD-3-Clause */
/* The forward kernel for f16: the head sizes and tiles that there are. */
#include "cuda/fwd_half.h"

namespace fwd_f16 {

typedef fwd::half<fwd::f16> T;
template <int D> using low = fwd::sizes<T, D, D, 64, 1, 1, 4, false>;
template <int D, int KEYS, int M> using tall = fwd::sizes<T, D, D, KEYS, M, 4, 1, false>;
typedef fwd::sizes<T, 128, 128, 64, 1, 1, 4, true> low_any;
typedef fwd::sizes<T, 128, 128, 64, 1, 4, 1, true> tall_any;

} // namespace fwd_f16

const struct attn_cuda_instance attn_cuda_f16_low[] = {
    fwd::instance<fwd_f16::low<64>>, fwd::instance<fwd_f16::low<128>>,
    fwd::instance<fwd_f16::low<256>>};
const struct attn_cuda_pair attn_cuda_f16[] = {
    fwd::pair<fwd_f16::tall<64, 64, 2>>("mma f16 d64", 64, &attn_cuda_f16_low[0]),
    fwd::pair<fwd_f16::tall<128, 32, 2>>("mma f16 d128", 128, &attn_cuda_f16_low[1]),
    fwd::pair<fwd_f16::tall<256, 32, 1>>("mma f16 d256", 256, &attn_cuda_f16_low[2]),
    fwd::pair<fwd_f16::low_any, fwd_f16::tall_any>("mma f16", 0),
    {}};
