# SPDX-License-Identifier: BSD-3-Clause
"""attn_sdpa() and attn_varlen() beside PyTorch's own attention functions."""
import ctypes as c

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

import abi
import draw
from judge import Trial
from problem import forward, unset
from reference import COMPUTING, NEVER


class Arguments:
    """Of one call of SDPA: query [B, Hq, Sq, D], key and value [B, Hkv, Sk, D or Dv]."""
    def __init__(self, shape, dtype, mask=None, causal=False, scale=None):
        p = draw.problem(shape, dtype)
        self.dtype = dtype
        self.tensors = [x.transpose(1, 2).contiguous() for x in (p.q, p.k, p.v)]
        self.scores, self.dim, self.dim_v = p.scores, p.q.shape[3], p.v.shape[3]
        self.mask, self.causal, self.scale = mask, causal, scale
        self.gqa = shape[1] != shape[2]

    def ours(self, context):
        q, k, v = self.tensors
        batch, heads, nq, nk = self.scores
        out = unset((batch, heads, nq, self.dim_v), self.dtype)
        mask = None if self.mask is None else c.byref(abi.scores(self.mask, self.scores))
        abi.call(context, "attn_sdpa", abi.DTYPES[self.dtype], batch, heads, k.shape[1], nq, nk,
                 self.dim, self.dim_v, q.data_ptr(), k.data_ptr(), v.data_ptr(), mask, 0, 0,
                 self.causal, self.scale or 0, self.gqa, out.data_ptr())
        return {"out": out}

    def theirs(self, real):
        mask = self.mask
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(real)
        out = sdpa(*(x.to(real) for x in self.tensors), attn_mask=mask, is_causal=self.causal,
                   scale=self.scale, enable_gqa=self.gqa)
        return {"out": out}

    def trial(self):
        return Trial(self.dtype, self.ours, self.theirs)


def plain(dtype):
    return [Arguments(s, dtype).trial() for s in draw.SHAPES if s[1] == s[2] or s[2] > 1]


def boolean_mask(dtype):
    for shape in draw.SHAPES:
        batch, heads, _, nq, nk, _, _ = shape
        for extents in ((nq, nk), (batch, 1, 1, nk), (batch, heads, nq, nk)):
            mask = draw.coin(extents)
            mask[..., :nq // 3 if extents[-2] == nq else 0, :] = False # rows that see nothing
            yield Arguments(shape, dtype, mask=mask).trial()


def additive_bias(dtype):
    for shape in draw.SHAPES:
        batch, heads, _, nq, nk, _, _ = shape
        for extents in ((nq, nk), (1, heads, nq, nk), (batch, heads, nq, 1)):
            bias = draw.normal(extents, dtype)
            if extents[-1] == nk:
                bias[draw.coin(extents, 0.2)] = NEVER
            yield Arguments(shape, dtype, mask=bias).trial()


def causal(dtype):
    return [Arguments(s, dtype, causal=True).trial() for s in draw.SHAPES]


def causal_right(dtype):
    """PyTorch is told by a mask."""
    for shape in draw.SHAPES:
        p = draw.problem(shape, dtype, align_right=True, causal=True)
        nq, nk = p.scores[2:]
        mask = torch.ones(nq, nk, dtype=torch.bool).tril(nk - nq)

        def theirs(real, p=p, mask=mask):
            q, k, v = (x.to(real).transpose(1, 2) for x in (p.q, p.k, p.v))
            return {"out": sdpa(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)}
        yield Trial(dtype, lambda context, p=p: forward(context, p), theirs)


def scale(dtype):
    return [Arguments(s, dtype, scale=x).trial() for s in draw.SHAPES for x in (0.03, 1.0, -0.4)]


def grouped_heads(dtype):
    return [Arguments((2, heads, heads_kv, nq, 61, 32, dim_v), dtype).trial()
            for heads, heads_kv in ((8, 1), (8, 2), (12, 4)) for nq in (1, 45)
            for dim_v in (32, 20)]


def lse(dtype):
    """Beside the kernel that SDPA runs on the CPU, which returns it."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    for shape in draw.SHAPES:
        shape = (*shape[:6], shape[5])
        for is_causal in (False, True):
            p = draw.problem(shape, dtype, causal=is_causal)

            def theirs(real, p=p):
                heads = p.scores[1]
                q, k, v = (x.to(real).transpose(1, 2) for x in (p.q, p.k, p.v))
                k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
                out, sums = kernel(q, k, v, 0.0, p.causal)
                sums = sums.reshape(p.scores[:3]) if sums.shape != p.scores[:3] else sums
                return {"out": out.transpose(1, 2), "lse": sums.to(COMPUTING[real])}
            yield Trial(dtype, lambda context, p=p: forward(context, p), theirs)


def varlen(dtype):
    """attn_varlen() beside one call of SDPA per sequence."""
    for batch, heads, heads_kv, nq, nk, dim, dim_v in draw.SHAPES:
        nqs, nks = (draw.lengths(batch + 2, n).tolist() for n in (nq, nk))
        q = draw.normal((sum(nqs), heads, dim), dtype)
        k = draw.normal((sum(nks), heads_kv, dim), dtype)
        v = draw.normal((sum(nks), heads_kv, dim_v), dtype)
        ends = [torch.tensor([0, *n]).cumsum(0).int() for n in (nqs, nks)]

        def ours(context, tensors=(q, k, v), ends=ends, dim=dim, dim_v=dim_v):
            q, k, v = tensors
            out = unset((*q.shape[:2], dim_v), q.dtype)
            abi.call(context, "attn_varlen", abi.DTYPES[q.dtype], len(ends[0]) - 1, len(q), len(k),
                     q.shape[1], k.shape[1], dim, dim_v, q.data_ptr(), k.data_ptr(), v.data_ptr(),
                     ends[0].data_ptr(), ends[1].data_ptr(), 0, 0, 0.0, 0, 0.0, 0, -1, -1, 0.0,
                     None, out.data_ptr(), None)
            return {"out": out}

        def theirs(real, tensors=(q, k, v), nqs=nqs, nks=nks):
            parts = zip(*(x.to(real).transpose(0, 1).split(n, 1)
                          for x, n in zip(tensors, (nqs, nks, nks))))
            outs = [sdpa(*(x[None] for x in part), enable_gqa=True)[0] for part in parts]
            return {"out": torch.cat(outs, 1).transpose(0, 1)}
        yield Trial(dtype, ours, theirs)


GROUPS = {"sdpa": plain, "sdpa: boolean mask": boolean_mask, "sdpa: additive bias": additive_bias,
          "sdpa: causal, top left": causal, "sdpa: causal, bottom right": causal_right,
          "sdpa: scale": scale, "sdpa: grouped heads": grouped_heads,
          "sdpa: packed batches": varlen, "flash kernel: LSE": lse}
