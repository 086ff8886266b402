# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's scaled_dot_product_attention on views of the very arrays, one call per sequence."""
import numpy as np

from peer import Absent, Job

try:
    import torch
except (ImportError, OSError) as error: # the latter: a library that it names is not there
    torch, missing = None, error

PATHS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}


def view(array, dtype):
    """[T, H, D] as [1, H, T, D], the same memory; bf16 arrays by way of int16."""
    if dtype == "bf16":
        tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array)
    return tensor.transpose(0, 1).unsqueeze(0)


class Torch:
    name = "torch-sdpa"

    def prepare(self, case, dtype, sets, threads):
        if torch is None:
            raise Absent(f"cannot be loaded: {missing}")
        if case.causal and case.lengths_q != case.lengths_k:
            raise Absent("is_causal lines up the first query with the first key")
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        outs = []
        calls = [self.call(case, dtype, s, outs) for s in sets]
        path = self.path(case, dtype, sets[0])
        return Job(calls, lambda: np.concatenate(
            [o[0].transpose(0, 1).float().numpy() for o in outs]), path)

    def parts(self, case, dtype, s):
        return [(view(s.q[rows_q], dtype), view(s.k[rows_k], dtype), view(s.v[rows_k], dtype))
                for rows_q, rows_k in case.sequences()]

    def path(self, case, dtype, s):
        options = {"is_causal": case.causal, "enable_gqa": case.heads_q != case.heads_kv}
        return PATHS[torch._fused_sdp_choice(*self.parts(case, dtype, s)[0], **options)]

    def call(self, case, dtype, s, outs):
        parts = self.parts(case, dtype, s)
        sdpa, gqa = torch.nn.functional.scaled_dot_product_attention, case.heads_q != case.heads_kv

        def call():
            outs[:] = [sdpa(q, k, v, is_causal=case.causal, enable_gqa=gqa) for q, k, v in parts]
        return call
