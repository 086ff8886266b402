/* SPDX-License-Identifier: BSD-3-Clause */
/* The forward kernel of sm_90a for bf16: the head sizes and tiles that there are. */
#include "cuda/fwd_sm90.h"

namespace fwd_bf16_sm90 {

template <int D, int KEYS> using tall = fwd_sm90::sizes<fwd_sm90::bf16, D, KEYS>;

} // namespace fwd_bf16_sm90

const struct attn_cuda_pair attn_cuda_bf16_sm90[] = {
    fwd_sm90::pair<fwd_bf16_sm90::tall<64, 128>>("wgmma bf16 d64", 64, &attn_cuda_bf16_low[0]),
    fwd_sm90::pair<fwd_bf16_sm90::tall<128, 128>>("wgmma bf16 d128", 128, &attn_cuda_bf16_low[1]),
    fwd_sm90::pair<fwd_bf16_sm90::tall<192, 64>>("wgmma bf16 d192", 192, &attn_cuda_bf16_low[2]),
    fwd_sm90::pair<fwd_bf16_sm90::tall<256, 64>>("wgmma bf16 d256", 256, &attn_cuda_bf16_low[2]),
    {}};
