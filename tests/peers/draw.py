# SPDX-License-Identifier: BSD-3-Clause
"""Random tensors and problems; torch's generator is seeded by check.py."""
import torch

from problem import Problem
from reference import COMPUTING

# B, Hq, Hkv, nq, nk, D, Dv: a few tiles with ragged ends, long, decoding, more queries than keys.
SHAPES = ((2, 4, 2, 37, 53, 24, 16), (1, 2, 1, 130, 257, 64, 64), (3, 6, 1, 1, 300, 40, 40),
          (2, 3, 3, 70, 32, 7, 12))


def normal(shape, dtype):
    return torch.randn(shape).to(dtype)


def coin(shape, share=0.6):
    """True for this share of the places."""
    return torch.rand(shape) < share


def lengths(batch, longest):
    """Up to `longest`, which one has; another one has none where there are three."""
    n = torch.randint(1, longest + 1, (batch,), dtype=torch.int32)
    n[0] = longest
    if batch > 2:
        n[1] = 0
    return n


def problem(shape, dtype, **rules):
    batch, heads_q, heads_kv, nq, nk, dim, dim_v = shape
    return Problem(normal((batch, nq, heads_q, dim), dtype),
                   normal((batch, nk, heads_kv, dim), dtype),
                   normal((batch, nk, heads_kv, dim_v), dtype), **rules)


def slopes(shape, dtype):
    return (2.0 ** -torch.randint(0, 7, shape)).to(COMPUTING[dtype])


def documents(batch, seqlen):
    """Runs of equal numbers, such as a packed row of short texts has."""
    return (torch.rand(batch, seqlen) < 0.1).int().cumsum(1).int()


def blocks(shape, size, heads=True):
    batch, heads_q, _, nq, nk, _, _ = shape
    leading = (batch, heads_q) if heads else (1, 1)
    return coin((*leading, -(-nq // size[0]), -(-nk // size[1])))
