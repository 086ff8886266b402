# SPDX-License-Identifier: BSD-3-Clause
"""The descriptors of attn.h, filled from torch tensors."""
import ctypes as c

import torch

import binding
from descriptors import (BOTTOM_RIGHT, I32, I64, PACKED, PADDED, PAGED, TOP_LEFT,
                         AppendDesc, Desc, Index, MergeDesc, RotaryDesc, Rotation, Scores, Side,
                         Tensor, TokenMask)

DTYPES = {torch.float32: binding.DTYPES["f32"], torch.float64: binding.DTYPES["f64"],
          torch.float16: binding.DTYPES["f16"], torch.bfloat16: binding.DTYPES["bf16"],
          torch.bool: 4}
ITYPES = {torch.int32: I32, torch.int64: I64}
UNSUPPORTED = 1


def of(structure, tensor, *values):
    """structure(address, values...), which keeps the tensor."""
    s = structure(tensor.data_ptr(), *values)
    s.tensor = tensor
    return s


def tensor(t, *strides):
    return of(Tensor, t, DTYPES[t.dtype], *strides)


def scores(t, shape):
    """A tensor that broadcasts to shape, [B, Hq, Sq, Sk]."""
    t = t.expand(shape)
    return of(Scores, t, DTYPES[t.dtype], *t.stride())


def index(t):
    return of(Index, t, ITYPES[t.dtype])


def token_mask(t):
    return of(TokenMask, t, 0)


class Refused(Exception):
    """Sound arguments that this backend does not serve."""


def call(context, name, *arguments):
    status = getattr(context.library, name)(context.handle, *arguments)
    if status == UNSUPPORTED:
        raise Refused(context.message(context.handle))
    if status != 0:
        raise RuntimeError(f"{name}: status {status}: {context.message(context.handle)}")


def load(path):
    library = binding.load(path)
    library.attn_sdpa.argtypes = (
        [c.c_void_p, c.c_int] + [c.c_int64] * 7 + [c.c_void_p] * 3 +
        [c.POINTER(Scores), c.c_double, c.c_uint64, c.c_int32, c.c_double, c.c_int32, c.c_void_p])
    for name, arguments in {"attn_forward": [Desc], "attn_dropout_mask": [Desc, Scores],
                            "attn_rotary": [RotaryDesc], "attn_merge": [MergeDesc],
                            "attn_cache_append": [AppendDesc]}.items():
        getattr(library, name).argtypes = [c.c_void_p] + [c.POINTER(a) for a in arguments]
    return library
