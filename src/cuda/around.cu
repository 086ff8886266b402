/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda/around.h"
#include "cuda/fwd_f32.h"
#include "cuda/fwd_f64.h"
#include "cuda/fwd_half.h"

const attn_cuda_function attn_cuda_list = around::list;
const attn_cuda_function attn_cuda_combine[4] = {
    /* as attn_dtype counts */
    around::combine<fwd::f32>, around::combine<fwd::f64>, around::combine<fwd::half<fwd::f16>>,
    around::combine<fwd::half<fwd::bf16>>};
