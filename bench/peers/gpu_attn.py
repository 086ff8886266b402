# SPDX-License-Identifier: BSD-3-Clause
"""libattn's cuda backend through its C ABI, on a device's arrays. A batch whose sequences are of
one length is a padded call; others are packed, their offsets on the device as well."""
import ctypes as c

import binding
from descriptors import BOTTOM_RIGHT, I32, PACKED, PADDED, PAGED, Desc, Index, Side, Tensor
from gpu_driver import Memory
from peer import Absent, Job

FORWARD = 0


class Explanation(c.Structure): # attn_explanation
    class Candidate(c.Structure):
        _fields_ = [("backend", c.c_int), ("status", c.c_int), ("workspace", c.c_size_t),
                    ("kernel", c.c_char * 64), ("reason", c.c_char * 192)]
    _fields_ = [("size", c.c_size_t), ("chosen", c.c_int32), ("count", c.c_int32),
                ("candidates", Candidate * 8)]


def load(path):
    library = binding.load(path)
    library.attn_forward.argtypes = [c.c_void_p, c.POINTER(Desc)]
    library.attn_workspace_size.argtypes = [c.c_void_p, c.POINTER(Desc), c.c_int,
                                            c.POINTER(c.c_size_t)]
    library.attn_explain.argtypes = [c.c_void_p, c.POINTER(Desc), c.c_int, c.POINTER(Explanation)]
    return library


def sides(batch):
    case = batch.case
    if not case.is_even:
        return [Side(layout=PACKED, tokens=sum(lengths), max_seqlen=max(lengths),
                     cu_seqlens=Index(cu.at, I32))
                for lengths, cu in ((case.lengths_q, batch.cu_q), (case.lengths_k, batch.cu_k))]
    query = Side(layout=PADDED, seqlen=case.lengths_q[0])
    if not case.page_size:
        return query, Side(layout=PADDED, seqlen=case.lengths_k[0])
    most = case.lengths_k[0] // case.page_size
    return query, Side(layout=PAGED, max_seqlen=case.lengths_k[0], pages=len(batch.pages),
                       page_size=case.page_size, block_table=Index(batch.table.at, I32),
                       max_pages=most, seqused=Index(batch.used.at, I32))


def descriptor(batch, s, out):
    case = batch.case
    dtype = binding.DTYPES[case.dtype]
    query, key = sides(batch)
    return Desc(batch=case.batch, heads_q=case.heads_q, heads_kv=case.heads_kv,
                head_dim=case.head_dim, query=query, key=key, q=Tensor(s.q.at, dtype),
                k=Tensor(s.k.at, dtype), v=Tensor(s.v.at, dtype), out=Tensor(out.at, dtype),
                causal=case.causal, align=BOTTOM_RIGHT if case.causal else 0)


class Attn:
    name = "libattn"

    def __init__(self, library, device):
        self.library, self.device = library, device
        self.context = binding.Context(library, "cuda", 1)

    def check(self, status):
        if status != 0:
            raise Absent(self.context.message(self.context.handle))

    def kernel(self, desc):
        e = Explanation(c.sizeof(Explanation))
        self.check(self.library.attn_explain(self.context.handle, desc, FORWARD, e))
        return e.candidates[e.chosen].kernel.decode() if e.chosen >= 0 else ""

    def workspace(self, desc):
        nbytes = c.c_size_t()
        self.check(self.library.attn_workspace_size(self.context.handle, desc, FORWARD, nbytes))
        return Memory(self.device, nbytes.value)

    def prepare(self, batch):
        outs = [s.out() for s in batch.sets]
        descs = [descriptor(batch, s, out) for s, out in zip(batch.sets, outs)]
        workspace = self.workspace(descs[0])
        for desc in descs:
            desc.workspace, desc.workspace_bytes = workspace.at, workspace.nbytes
        calls = [self.call(desc, (workspace, outs, batch)) for desc in descs]
        return Job(calls, lambda: outs[0], self.kernel(descs[0]))

    def call(self, desc, alive):
        forward, handle = self.library.attn_forward, self.context.handle

        def call(keep_alive=alive):
            self.check(forward(handle, desc))
        return call
