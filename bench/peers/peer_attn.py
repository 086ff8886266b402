# SPDX-License-Identifier: BSD-3-Clause
"""libattn through its C ABI: attn_varlen() serves every case, a padded one as a single sequence."""
import ctypes as c

import numpy as np

import shapes
from binding import DTYPES, Context
from peer import Absent, Job


def blas_kernel(library):
    """Of the OpenBLAS that the library is linked with, else "another BLAS"."""
    try:
        library.openblas_get_corename.restype = c.c_char_p
        return library.openblas_get_corename().decode()
    except AttributeError:
        return "another BLAS"


def offsets(lengths):
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


class Attn:
    def __init__(self, library, backend):
        self.library = library
        self.backend = backend
        self.name = "libattn" if backend == "cpu" else "libattn-" + backend
        self.note = blas_kernel(library) if backend == "eager" else ""

    def prepare(self, case, dtype, sets, threads):
        context = Context(self.library, self.backend, threads)
        cu_q, cu_k = offsets(case.lengths_q), offsets(case.lengths_k)
        outs = [shapes.empty(s.q.shape, dtype) for s in sets]
        calls = [self.call(context, case, dtype, s, out, cu_q, cu_k) for s, out in zip(sets, outs)]
        return Job(calls, lambda: outs[0].astype(np.float32), self.note)

    def call(self, context, case, dtype, s, out, cu_q, cu_k):
        forward, d = self.library.attn_varlen, case.head_dim
        arguments = (
            context.handle, DTYPES[dtype], len(case.lengths_q), len(s.q), len(s.k), case.heads_q,
            case.heads_kv, d, d, s.q.ctypes.data, s.k.ctypes.data, s.v.ctypes.data,
            cu_q.ctypes.data, cu_k.ctypes.data, 0, 0, 0.0, 0, 0.0, case.causal, -1, -1, 0.0, None,
            out.ctypes.data, None)

        def call(keep_alive=(s, out, cu_q, cu_k)):
            if forward(*arguments) != 0:
                raise Absent(context.message(context.handle))
        return call
