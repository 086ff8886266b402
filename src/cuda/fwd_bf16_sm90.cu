/* SPDX-License-Identifier: BSD-3-Clause */
/* The forward kernel of sm_90a for bf16: the head sizes and tiles that there are, those that
 * compute least first. */
#include "cuda/fwd_sm90.h"

namespace fwd_bf16_sm90 {

template <int D, int DV, int KEYS> using tall = fwd_sm90::sizes<fwd_sm90::bf16, D, DV, KEYS>;

} // namespace fwd_bf16_sm90

const struct attn_cuda_pair attn_cuda_bf16_sm90[] = {
    fwd_sm90::pair<fwd_bf16_sm90::tall<64, 64, 128>>("wgmma bf16 d64", &attn_cuda_bf16_low[0]),
    fwd_sm90::pair<fwd_bf16_sm90::tall<96, 96, 128>>("wgmma bf16 d96", &attn_cuda_bf16_low[1]),
    fwd_sm90::pair<fwd_bf16_sm90::tall<128, 64, 128>>("wgmma bf16 d128 dv64", &attn_cuda_bf16_low[1]),
    fwd_sm90::pair<fwd_bf16_sm90::tall<128, 128, 128>>("wgmma bf16 d128", &attn_cuda_bf16_low[1]),
    fwd_sm90::pair<fwd_bf16_sm90::tall<192, 128, 128>>("wgmma bf16 d192 dv128",
                                                     &attn_cuda_bf16_low[2]),
    fwd_sm90::pair<fwd_bf16_sm90::tall<192, 192, 64>>("wgmma bf16 d192", &attn_cuda_bf16_low[2]),
    fwd_sm90::pair<fwd_bf16_sm90::tall<256, 256, 64>>("wgmma bf16 d256", &attn_cuda_bf16_low[2]),
    {}};
