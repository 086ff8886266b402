# SPDX-License-Identifier: BSD-3-Clause
"""The named shapes of attnbench (bench/cases.c), and tensors for them.

Every case is a list of sequences, packed: q and out [Tq, Hq, D], k and v [Tk, Hkv, D]. A padded
case is a single sequence.
"""
import dataclasses
import itertools
import os

import ml_dtypes
import numpy as np

LENGTHS_27 = (16, 988, 327, 437, 685, 224, 405, 811, 971, 412, 699, 492, 740, 296, 722, 987, 412,
              568, 425, 680, 719, 599, 847, 725, 867, 480, 850)
LENGTHS_LONG = (16384, *(16 + b * 37 % 113 for b in range(1, 301)))
POWERS = (64, 128, 256, 512, 1024, 2048, 4096)

# Name, causal, heads of queries and of keys, queries (None: as many as keys), D, S.
FAMILIES = (
    ("full", False, 16, 16, None, (64, 128), POWERS),
    ("causal", True, 16, 16, None, (64, 128), POWERS),
    ("full", False, 16, 16, None, (40, 72, 80, 96, 112, 129), (2048,)),
    ("gqa", False, 32, 8, None, (128,), (512, 2048)),
    ("gqa-causal", True, 32, 8, None, (128,), (512, 2048)),
    ("decode-h32-kv8", False, 32, 8, 1, (128,), (8192, 32768)),
    ("q16", False, 16, 16, 16, (64, 128), (512, 8192)),
    ("q64", False, 16, 16, 64, (64, 128), (512, 8192)),
)
PACKED = (
    ("varlen-27", False, 12, 64, LENGTHS_27),
    ("varlen-27-causal", True, 12, 64, LENGTHS_27),
    ("one-long-d64", False, 4, 64, LENGTHS_LONG),
)

NUMPY_TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
MAX_SETS = 256


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    causal: bool  # the last query lines up with the last key
    heads_q: int
    heads_kv: int
    head_dim: int
    lengths_q: tuple
    lengths_k: tuple

    @property
    def is_decode(self):
        return self.lengths_q == (1,)

    def sequences(self):
        """Pairs of slices, each sequence's rows of the queries and of the keys."""
        ends_q, ends_k = itertools.accumulate(self.lengths_q), itertools.accumulate(self.lengths_k)
        return [(slice(eq - nq, eq), slice(ek - nk, ek)) for eq, nq, ek, nk
                in zip(ends_q, self.lengths_q, ends_k, self.lengths_k)]


def cases():
    for name, causal, heads_q, heads_kv, queries, head_dims, seqlens in FAMILIES:
        for d, s in itertools.product(head_dims, seqlens):
            yield Case(f"{name}-d{d}-s{s}", causal, heads_q, heads_kv, d, (queries or s,), (s,))
    for name, causal, heads, d, lengths in PACKED:
        yield Case(name, causal, heads, heads, d, lengths, lengths)


@dataclasses.dataclass
class Tensors:
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray


def empty(shape, dtype):
    """Uninitialised, at an address that is a multiple of 64 bytes; dtype is a name."""
    dtype = np.dtype(NUMPY_TYPES[dtype])
    nbytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start:start + nbytes].view(dtype).reshape(shape)


def filled(shape, dtype, random):
    a = empty(shape, dtype)
    a[...] = random.uniform(-1, 1, shape).astype(np.float32)
    return a


def last_level_cache():
    try:
        return os.sysconf("SC_LEVEL3_CACHE_SIZE") or 32 << 20
    except (ValueError, OSError):
        return 32 << 20


def tensors(case, dtype):
    """Enough copies of one set of tensors that going round them leaves nothing in the caches."""
    random = np.random.default_rng(1)
    q = filled((sum(case.lengths_q), case.heads_q, case.head_dim), dtype, random)
    k = filled((sum(case.lengths_k), case.heads_kv, case.head_dim), dtype, random)
    v = filled(k.shape, dtype, random)
    copies = min(3 * last_level_cache() // (2 * (q.nbytes + k.nbytes)) + 2, MAX_SETS)
    sets = [Tensors(q, k, v)]
    for _ in range(copies - 1):
        sets.append(Tensors(*(empty(a.shape, dtype) for a in (q, k, v))))
        for to, of in zip((sets[-1].q, sets[-1].k, sets[-1].v), (q, k, v)):
            to[...] = of
    return sets
