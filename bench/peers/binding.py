# SPDX-License-Identifier: BSD-3-Clause
"""libattn's C ABI for Python: the library, a context, the numbers of its enumerations."""
import ctypes as c

from peer import Absent

BACKENDS = {"cpu": 2, "eager": 3, "cuda": 4}
DTYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 3}


class Options(c.Structure):
    _fields_ = [("size", c.c_size_t), ("backend", c.c_int), ("threads", c.c_int32),
                ("isa", c.c_char_p), ("stream", c.c_void_p), ("alloc", c.c_void_p),
                ("release", c.c_void_p), ("user", c.c_void_p)]


def load(path):
    library = c.CDLL(path)
    library.attn_context_create.argtypes = [c.POINTER(c.c_void_p), c.POINTER(Options)]
    library.attn_context_destroy.argtypes = [c.c_void_p]
    library.attn_context_destroy.restype = None
    library.attn_last_message.argtypes = [c.c_void_p]
    library.attn_last_message.restype = c.c_char_p
    library.attn_varlen.argtypes = (
        [c.c_void_p, c.c_int] + [c.c_int64] * 7 + [c.c_void_p] * 5 + [c.c_int64] * 2 +
        [c.c_double, c.c_uint64, c.c_double, c.c_int32, c.c_int64, c.c_int64, c.c_double] +
        [c.c_void_p] * 3)
    return library


class Context:
    def __init__(self, library, backend, threads):
        self.library, self.handle = library, c.c_void_p()
        options = Options(c.sizeof(Options), BACKENDS[backend], threads)
        if library.attn_context_create(c.byref(self.handle), c.byref(options)) != 0:
            raise Absent(self.message(None))

    def __del__(self):
        self.library.attn_context_destroy(self.handle)

    def message(self, handle):
        return self.library.attn_last_message(handle).decode()
