# SPDX-License-Identifier: BSD-3-Clause
"""What the GPU can do, beside each case: a large matrix product for prefill, a large copy for
decoding. Products are cuBLAS', or PyTorch's where only that is there."""
import ctypes as c
import os

from gpu_cases import DTYPES, LARGE, numbers
from gpu_driver import Memory
from peer import Absent, Job

SIZES = {"bf16": 8192, "f16": 8192, "f32": 4096, "f64": 4096} # of square matrices
KINDS = {"f32": 0, "f64": 1, "f16": 2, "bf16": 14} # cudaDataType
SUMS = {"f32": 68, "f64": 70, "f16": 68, "bf16": 68} # cublasComputeType_t: 32F, 64F
DEFAULT = -1 # cublasGemmAlgo_t
COPY_BYTES = 8 * LARGE


def cublas_names():
    folders = [os.environ.get("CUDA_HOME"), "/usr/local/cuda", "/opt/cuda"]
    yield from (f"libcublas.so.{version}" for version in (14, 13, 12))
    yield from (os.path.join(f, "lib64", "libcublas.so") for f in folders if f)


class Cublas:
    """Its handle, from the first of the libraries that loads."""
    def __init__(self, names):
        for name in names:
            try:
                self.library = c.CDLL(name)
                break
            except OSError:
                continue
        else:
            raise Absent("no cuBLAS")
        self.handle = c.c_void_p()
        self.check(self.library.cublasCreate_v2(c.byref(self.handle)))

    def check(self, status):
        if status != 0:
            raise Absent(f"cuBLAS: status {status}")

    def product(self, dtype, n, a, b, to):
        real = c.c_double if dtype == "f64" else c.c_float
        kind, one, zero = KINDS[dtype], real(1), real(0)
        a, b, to = (c.c_void_p(m.at) for m in (a, b, to))

        def call():
            self.check(self.library.cublasGemmEx(
                self.handle, 1, 0, n, n, n, c.byref(one), a, kind, n, b, kind, n, c.byref(zero),
                to, kind, n, SUMS[dtype], DEFAULT))
        return call


class Limits:
    """Jobs with the work that they do, made when first asked for."""
    def __init__(self, device, torch, names=None):
        self.device, self.torch, self.jobs, self.cublas = device, torch, {}, None
        try:
            self.cublas = Cublas(names or cublas_names())
        except Absent as reason:
            self.missing = str(reason)
        self.source = "cuBLAS" if self.cublas else "PyTorch" if torch else self.missing

    def of(self, case, small=False):
        """(job, its work in the unit of the case's), or None: nobody has a product for the type."""
        key = "copy" if case.is_decode else case.dtype
        if key not in self.jobs:
            self.jobs[key] = self.copy(small) if case.is_decode else self.product(key, small)
        return self.jobs[key]

    def copy(self, small):
        nbytes = COPY_BYTES // (1024 if small else 1)
        source, to = Memory(self.device, nbytes), Memory(self.device, nbytes)
        source.fill(numbers("f32", 5))
        return Job([lambda: to.copy(source, nbytes)], lambda: to), 2 * nbytes

    def product(self, dtype, small):
        n = SIZES[dtype] // (256 if small else 1)
        memory = [Memory(self.device, n * n * DTYPES[dtype]) for _ in range(3)]
        for m, seed in zip(memory, (6, 7)):
            m.fill(numbers(dtype, seed))
        try:
            if self.cublas:
                call = self.cublas.product(dtype, n, *memory)
            elif self.torch:
                call = self.torch.product(dtype, n, *memory)
            else:
                return None
            call()
        except Absent:
            return None
        return Job([lambda keep=memory: call()], lambda: memory[2]), 2 * n ** 3
