# SPDX-License-Identifier: BSD-3-Clause
"""Rotary embedding, merging and the KV cache beside plain tensor code.

The first two state their own accuracy, in docs/semantics.md, and are held to that.
"""
import ctypes as c

import torch

import abi
import draw
from judge import Trial, ulp
from problem import Axis, forward, unset
from reference import COMPUTING, NEVER, attention, merge, rotary

UNITS = {torch.float32: 1, torch.float16: 1, torch.bfloat16: 1, torch.float64: 4}


def turned_limit(dtype, length):
    """1 ulp (f64: 4) at the length of the pair, and half a one for the reference's rounding."""
    return torch.where(length == 0, 0, (UNITS[dtype] + 0.5) * ulp(dtype, length))


def rotary_trial(dtype, x, positions, dim, interleaved, base=0, inverse=False, frequency=None):
    batch, seqlen, heads, head_dim = x.shape

    def ours(context):
        out = unset(x.shape, dtype)
        d = abi.RotaryDesc(batch=batch, heads=heads, head_dim=head_dim)
        d.tokens = abi.Side(layout=abi.PADDED, seqlen=seqlen)
        d.x, d.out, d.positions = abi.tensor(x), abi.tensor(out), abi.index(positions)
        d.rotation = abi.Rotation(dim, interleaved, base,
                                  None if frequency is None else frequency.data_ptr())
        d.inverse = inverse
        abi.call(context, "attn_rotary", d)
        return {"out": out}

    turned, length = rotary(x, positions, dim or head_dim, interleaved, base or 10000,
                            None if frequency is None else frequency.numpy(), inverse)
    return Trial(dtype, ours, lambda real: {"out": turned},
                 lambda: {"out": turned_limit(dtype, length)})


def rotations(interleaved):
    def group(dtype):
        for batch, heads, _, seqlen, _, _, _ in draw.SHAPES:
            for head_dim, dim, base, inverse in ((64, 0, 0, False), (40, 24, 5e5, False),
                                                 (7, 4, 0, True)):
                x = draw.normal((batch, seqlen, heads, head_dim), dtype)
                positions = torch.randint(0, 5000, (batch, seqlen))
                yield rotary_trial(dtype, x, positions, dim, interleaved, base, inverse)
            own = torch.rand(32, dtype=torch.float64)
            yield rotary_trial(dtype, draw.normal((batch, seqlen, heads, 64), dtype),
                               positions - 2500, 0, interleaved, frequency=own)
    return group


def merging(dtype):
    """Of random parts, some of which saw nothing."""
    for batch, heads, _, seqlen, _, _, dim in draw.SHAPES:
        for parts in (1, 2, 5):
            outs = [draw.normal((batch, seqlen, heads, dim), dtype) for _ in range(parts)]
            lses = [3 * draw.normal((batch, heads, seqlen), COMPUTING[dtype]) for _ in outs]
            for out, lse in zip(outs, lses):
                nothing = draw.coin(lse.shape, 0.2)
                lse[nothing] = NEVER
                out[nothing.transpose(1, 2)] = float("nan")
            yield Trial(dtype, lambda context, outs=outs, lses=lses: merged(context, outs, lses),
                        lambda real, outs=outs, lses=lses: merge(outs, lses, real))


def merged(context, outs, lses):
    batch, seqlen, heads, dim = outs[0].shape
    out, lse = unset(outs[0].shape, outs[0].dtype), unset(lses[0].shape, lses[0].dtype)
    d = abi.MergeDesc(batch=batch, seqlen=seqlen, heads=heads, head_dim=dim, parts=len(outs))
    tables = [(abi.Tensor * len(t))(*(abi.tensor(x) for x in t)) for t in (outs, lses)]
    for name, table in zip(("part_out", "part_lse"), tables):
        setattr(d, name, c.cast(table, c.POINTER(abi.Tensor)))
    d.out, d.lse = abi.tensor(out), abi.tensor(lse)
    abi.call(context, "attn_merge", d)
    return {"out": out, "lse": lse}


def halves(dtype):
    """Attention over the halves of the keys, merged, beside attention over all of them."""
    for s in draw.SHAPES:
        p = draw.problem(s, dtype)
        middle = s[4] // 2
        parts = [type(p)(p.q, p.k[:, cut].contiguous(), p.v[:, cut].contiguous())
                 for cut in (slice(middle), slice(middle, None))]

        def ours(context, parts=parts):
            results = [forward(context, part) for part in parts]
            return merged(context, [r["out"] for r in results], [r["lse"] for r in results])

        def theirs(real, p=p):
            return {n: t for n, t in attention(p, real).items() if n in ("out", "lse")}
        yield Trial(dtype, ours, theirs)


class Append:
    """New tokens for a cache of random lengths, in one of its layouts."""
    def __init__(self, shape, dtype, layout, interleaved):
        self.batch, _, self.heads, _, self.room, self.dim, self.dim_v = shape
        self.dim += self.dim % 2
        self.dtype, self.interleaved = dtype, interleaved
        self.before = draw.lengths(self.batch, self.room - 9)
        self.new = torch.randint(0, 10, (self.batch,), dtype=torch.int32)
        self.after = self.before + self.new
        self.cache = Axis(layout, self.after, self.room, False, 5)
        self.tokens = Axis(abi.PACKED, self.new, 9, False, 1)
        self.k = draw.normal((self.batch, 9, self.heads, self.dim), dtype)
        self.v = draw.normal((self.batch, 9, self.heads, self.dim_v), dtype)

    def places(self):
        """Where each new token goes, [B, 9]."""
        return self.before[:, None] + torch.arange(9)

    def ours(self, context):
        k, v = (unset((self.batch, self.room, *x.shape[2:]), self.dtype) for x in (self.k, self.v))
        k_cache, v_cache = (self.cache.put(x, float("nan")) for x in (k, v))
        new = [self.tokens.put(x, 0) for x in (self.k, self.v)]
        d = abi.AppendDesc(batch=self.batch, heads_kv=self.heads, head_dim=self.dim,
                           head_dim_v=self.dim_v)
        sides = self.tokens.side(), self.cache.side()
        d.tokens, d.cache = sides
        d.cache.seqused = abi.index(self.before)
        d.k, d.v, d.k_cache, d.v_cache = (abi.tensor(x) for x in (*new, k_cache, v_cache))
        lengths = torch.full((self.batch,), -1, dtype=torch.int32)
        d.rotary, d.rotation.pairing, d.lengths = 1, self.interleaved, lengths.data_ptr()
        abi.call(context, "attn_cache_append", d)
        return {"k": k_cache, "v": v_cache, "lengths": lengths}

    def spread(self, x, fill):
        """x [B, 9, ...] at its places, in the cache's layout; fill at all others."""
        padded = torch.full((self.batch, self.room, *x.shape[2:]), fill, dtype=x.dtype)
        for b, (start, n) in enumerate(zip(self.before.tolist(), self.new.tolist())):
            padded[b, start:start + n] = x[b, :n]
        return self.cache.put(padded, fill)

    def trial(self):
        nan = float("nan")
        turned, length = rotary(self.k, self.places(), self.dim, self.interleaved)
        expected = {"k": self.spread(turned, nan), "v": self.spread(self.v, nan),
                    "lengths": self.after}
        limits = {n: torch.zeros(x.shape, dtype=torch.float64) for n, x in expected.items()}
        limits["k"] = self.spread(turned_limit(self.dtype, length), 0)
        return Trial(self.dtype, self.ours, lambda real: expected, lambda: limits)


def append(dtype):
    return [Append(s, dtype, layout, interleaved).trial() for s in draw.SHAPES
            for layout in (abi.PADDED, abi.PAGED) for interleaved in (False, True)]


GROUPS = {"rotary: half split": rotations(False), "rotary: interleaved": rotations(True),
          "merge": merging, "merge: halves of the keys": halves, "cache append": append}
