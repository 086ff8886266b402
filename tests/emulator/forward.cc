/* SPDX-License-Identifier: BSD-3-Clause */
#include "emulator/forward.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

extern "C" { /* the library's own headers are C */
#include "check.h"
#include "message.h"
}

#include "cuda/fwd_mma.h"

namespace {

enum { NOT_OFFERED = ATTN_BIT(ATTN_USES_PROBS) | ATTN_BIT(ATTN_USES_PROBS_FN) |
                     ATTN_BIT(ATTN_USES_KEY_SUMS) };

/* Every launch in another order. */
uint64_t launches;

template <class T, int D, int KEYS> std::string launch(const attn_problem &p)
{
    const int64_t across = (p.query.max * p.group + fwd_mma::ROWS - 1) / fwd_mma::ROWS;
    emulator::launch l;
    l.blocks = (int)(across * p.batch * p.heads_kv);
    l.threads = fwd_mma::THREADS;
    l.shared_bytes = fwd_mma::room<D, KEYS>::BYTES;
    l.seed = launches++ % 4;
    return emulator::run(l, [&] { fwd_mma::forward<T, D, KEYS>(p, (int)across); });
}

template <class T> std::string launch_size(const attn_problem &p)
{
    const int64_t d = p.head_dim > p.head_dim_v ? p.head_dim : p.head_dim_v;
    return d <= 64 ? launch<T, 64, 64>(p) : launch<T, 128, 64>(p);
}

} // namespace

attn_status emulated_forward(attn_context *, const attn_desc *desc)
{
    attn_problem p;
    attn_desc copy;
    attn_message m;
    const attn_status status =
        attn_check(desc, ATTN_PASS_FORWARD, ATTN_CHECK_RUN, &copy, &p, &m);
    if (status != ATTN_OK)
        return status;
    if ((p.dtype != ATTN_BF16 && p.dtype != ATTN_F16) || p.head_dim > 128 || p.head_dim_v > 128 ||
        p.features & NOT_OFFERED || (p.dropout.on && !attn_dropout_fits(&p, m.text, sizeof m.text)))
        return ATTN_UNSUPPORTED;
    attn_clear_unused_rows(&p);
    const std::string wrong =
        p.dtype == ATTN_BF16 ? launch_size<fwd_mma::bf16>(p) : launch_size<fwd_mma::f16>(p);
    if (wrong.empty())
        return ATTN_OK;
    printf("emulator: %s\n", wrong.c_str());
    return ATTN_DEVICE_ERROR;
}
