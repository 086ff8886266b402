/* SPDX-License-Identifier: BSD-3-Clause */
#include "emulator/forward.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "emulator/machine.h"

extern "C" { /* the library's own headers are C */
#include "check.h"
#include "message.h"
}

#include "cuda/forward.h"

namespace {

enum { NOT_OFFERED = ATTN_BIT(ATTN_USES_PROBS) | ATTN_BIT(ATTN_USES_PROBS_FN) |
                     ATTN_BIT(ATTN_USES_KEY_SUMS) };

/* Bytes of shared memory of a block, on sm_86 and on sm_90. */
enum { SMALL = 99 << 10, LARGE = 227 << 10 };

/* Every launch in another order. */
uint64_t launches;

std::string run_all(const attn_cuda_forward &f, const attn_problem &p, void *workspace)
{
    std::string wrong;
    for (int n = 0; n < f.count && wrong.empty(); n++) {
        attn_cuda_args args;
        emulator::launch l;
        attn_cuda_forward_args(&f, n, &p, workspace, &args);
        l.blocks = (int)f.launch[n].blocks;
        l.threads = f.launch[n].threads;
        l.shared_bytes = (size_t)f.launch[n].shared;
        l.seed = launches++ % 4;
        wrong = emulator::run(l, [&] { f.launch[n].function(args); });
    }
    return wrong;
}

} // namespace

attn_status emulated_forward(attn_context *, const attn_desc *desc)
{
    attn_problem p;
    attn_desc copy;
    attn_message m;
    attn_cuda_forward f;
    const attn_status status =
        attn_check(desc, ATTN_PASS_FORWARD, ATTN_CHECK_RUN, &copy, &p, &m);
    if (status != ATTN_OK)
        return status;
    if (p.features & NOT_OFFERED ||
        (p.dropout.on && !attn_dropout_fits(&p, m.text, sizeof m.text)))
        return ATTN_UNSUPPORTED;
    const attn_cuda_pair *const pair = attn_cuda_pick(&p, p.key.rows % 2 ? SMALL : LARGE);
    if (!pair)
        return ATTN_UNSUPPORTED;
    attn_clear_unused_rows(&p);
    attn_cuda_plan_forward(&p, pair, &f);
    void *const workspace = emulator::map_guarded(f.workspace, 256);
    const std::string wrong = run_all(f, p, workspace);
    emulator::unmap_guarded(workspace, f.workspace, 256);
    if (wrong.empty())
        return ATTN_OK;
    printf("emulator: %s\n", wrong.c_str());
    return ATTN_DEVICE_ERROR;
}
