# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's attention on the very arrays of the device: scaled_dot_product_attention by one of its
backends, for batches of one length, and varlen_attn, for all."""
import ctypes as c
import inspect

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from peer import Absent, Job

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:
    varlen_attn = None

BACKENDS = {"torch-cudnn": "CUDNN_ATTENTION", "torch-flash": "FLASH_ATTENTION",
            "torch-efficient": "EFFICIENT_ATTENTION", "torch-math": "MATH"}
KINDS = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
         "i32": torch.int32}
WORDS = {8: ("<i8", torch.int64), 4: ("<i4", torch.int32), 2: ("<i2", torch.int16)}


class Words:
    """Memory of the device as the interface that PyTorch takes arrays by; it has no bf16."""
    def __init__(self, memory, nbytes, typestr):
        self.memory = memory
        self.__cuda_array_interface__ = {"shape": (memory.nbytes // nbytes,), "typestr": typestr,
                                         "version": 3, "data": (memory.at, False)}


def view(memory, shape, dtype):
    """The same memory as a tensor; the host's where a device is emulated."""
    kind = KINDS[dtype]
    typestr, word = WORDS[kind.itemsize]
    if torch.cuda.is_available():
        words = torch.as_tensor(Words(memory, kind.itemsize, typestr), device="cuda")
    else:
        raw = (c.c_char * memory.nbytes).from_address(memory.at)
        words = torch.frombuffer(raw, dtype=word)
    return words.view(kind).reshape(shape)


def versions():
    found = {"torch": torch.__version__, "cuda": torch.version.cuda}
    try:
        found["cudnn"] = torch.backends.cudnn.version()
    except RuntimeError as error: # one that this PyTorch is not for
        found["cudnn"] = str(error)
    return found


def product(dtype, n, a, b, to):
    a, b, to = (view(m, (n, n), dtype) for m in (a, b, to))
    return lambda: torch.mm(a.T, b, out=to)


class Result:
    """A tensor, read as Memory is."""
    def __init__(self, tensor):
        self.tensor = tensor

    def read(self, offset, nbytes):
        flat = self.tensor.contiguous().view(torch.uint8).flatten()
        return bytes(flat[offset:offset + nbytes].cpu().tolist())


def shapes(case):
    return ((sum(case.lengths_q), case.heads_q, case.head_dim),
            (sum(case.lengths_k), case.heads_kv, case.head_dim))


class Sdpa:
    def __init__(self, name):
        self.name = name
        self.backend = getattr(SDPBackend, BACKENDS[name])

    def prepare(self, batch):
        case = batch.case
        if not case.is_even or case.page_size:
            raise Absent("takes sequences of one length, which lie side by side")
        if self.name == "torch-math" and case.dtype != "f64":
            raise Absent("for f64, which no other backend serves: it keeps all scores in memory")
        if case.causal and case.lengths_q != case.lengths_k:
            raise Absent("is_causal lines up the first query with the first key")
        outs = [None] * len(batch.sets)
        return Job([self.call(batch, n, outs) for n in range(len(outs))],
                   lambda: Result(outs[0].transpose(1, 2)))

    def call(self, batch, n, outs):
        case, s = batch.case, batch.sets[n]
        def heads(memory, count):
            return view(memory, (case.batch, -1, count, case.head_dim), case.dtype).transpose(1, 2)
        q = heads(s.q, case.heads_q)
        k, v = (heads(m, case.heads_kv) for m in (s.k, s.v))
        sdpa, gqa = torch.nn.functional.scaled_dot_product_attention, case.heads_q != case.heads_kv

        def call(alive=s):
            with sdpa_kernel(self.backend):
                outs[n] = sdpa(q, k, v, is_causal=case.causal, enable_gqa=gqa)
        return call


class Varlen:
    name = "torch-varlen"

    def prepare(self, batch):
        case = batch.case
        if varlen_attn is None:
            raise Absent("this PyTorch has no varlen_attn")
        if case.page_size:
            raise Absent("takes keys that lie side by side")
        outs = [None] * len(batch.sets)
        return Job([self.call(batch, n, outs) for n in range(len(outs))],
                   lambda: Result(outs[0]))

    def options(self, case):
        """By what this version calls them."""
        known = inspect.signature(varlen_attn).parameters
        options = {}
        if case.causal:
            options = {"is_causal": True} if "is_causal" in known else {"window_size": (-1, 0)}
        if case.heads_q != case.heads_kv:
            if "enable_gqa" not in known:
                raise Absent("this PyTorch's varlen_attn wants a key head for each query head")
            options["enable_gqa"] = True
        return options

    def call(self, batch, n, outs):
        case, s = batch.case, batch.sets[n]
        shape_q, shape_k = shapes(case)
        q = view(s.q, shape_q, case.dtype)
        k, v = (view(m, shape_k, case.dtype) for m in (s.k, s.v))
        cu_q, cu_k = (view(m, (case.batch + 1,), "i32") for m in (batch.cu_q, batch.cu_k))
        most_q, most_k, options = max(case.lengths_q), max(case.lengths_k), self.options(case)

        def call(alive=(s, batch)):
            outs[n] = varlen_attn(q, k, v, cu_q, cu_k, most_q, most_k, **options)
        return call


def peers():
    torch.set_grad_enabled(False)
    return [Sdpa(name) for name in BACKENDS] + [Varlen()]
