/* SPDX-License-Identifier: BSD-3-Clause */
/* The forward kernel for bf16: the head sizes and tiles that there are. */
#include "cuda/fwd_half.h"

namespace fwd_bf16 {

typedef fwd::half<fwd::bf16> T;
template <int D> using low = fwd::sizes<T, D, D, 64, 1, 1, 4, false>;
template <int D, int KEYS, int M> using tall = fwd::sizes<T, D, D, KEYS, M, 4, 1, false>;
typedef fwd::sizes<T, 128, 128, 64, 1, 1, 4, true> low_any;
typedef fwd::sizes<T, 128, 128, 64, 1, 4, 1, true> tall_any;

} // namespace fwd_bf16

const struct attn_cuda_instance attn_cuda_bf16_low[] = {
    fwd::instance<fwd_bf16::low<64>>, fwd::instance<fwd_bf16::low<128>>,
    fwd::instance<fwd_bf16::low<256>>};
const struct attn_cuda_pair attn_cuda_bf16[] = {
    fwd::pair<fwd_bf16::tall<64, 64, 2>>("mma bf16 d64", 64, &attn_cuda_bf16_low[0]),
    fwd::pair<fwd_bf16::tall<128, 32, 2>>("mma bf16 d128", 128, &attn_cuda_bf16_low[1]),
    fwd::pair<fwd_bf16::tall<256, 32, 1>>("mma bf16 d256", 256, &attn_cuda_bf16_low[2]),
    fwd::pair<fwd_bf16::low_any, fwd_bf16::tall_any>("mma bf16", 0),
    {}};
