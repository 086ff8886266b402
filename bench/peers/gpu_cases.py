# SPDX-License-Identifier: BSD-3-Clause
"""What is timed on a GPU: shapes, their tensors on the device, and a row of the result as plain
loops give it. Needs no package.

Every case is a list of sequences: q and out [Tq, Hq, D], k and v [Tk, Hkv, D], end to end. Where
all are of one length this is a padded batch as well; with pages, [pages, page_size, Hkv, D].
"""
import dataclasses
import itertools
import math
import operator
import random
import struct

from gpu_driver import Memory

DTYPES = {"bf16": 2, "f16": 2, "f32": 4, "f64": 8} # bytes
# Bits kept of random numbers, and those set: sign and fraction at random, 0.5 to 2 in size.
BITS = {"bf16": (0x80FF, 0x3F00), "f16": (0x87FF, 0x3800), "f32": (0x80FFFFFF, 0x3F000000),
        "f64": (0x801FFFFFFFFFFFFF, 0x3FE0000000000000)}
PIECE = (4 << 20) - 8 * 509 # bytes; no row's period
LARGE = 256 << 20 # bytes that no cache holds
SETS = 3 # of tensors, where they are small and read once

# Largest difference from the plain loop, as a share of the values' size: what comes of 16-bit
# probabilities and output, of sums of thousands of f32.
TOLERANCE = {"bf16": 2**-6, "f16": 2**-9, "f32": 2**-16, "f64": 2**-44}


@dataclasses.dataclass(frozen=True)
class Case:
    family: str # cases that make one curve
    dtype: str
    causal: bool # the last query lines up with the last key
    heads_q: int
    heads_kv: int
    head_dim: int
    lengths_q: tuple
    lengths_k: tuple
    page_size: int = 0

    @property
    def batch(self):
        return len(self.lengths_q)

    @property
    def is_decode(self):
        return set(self.lengths_q) == {1}

    @property
    def is_even(self):
        """One length for all, which needs no packing."""
        return len(set(self.lengths_q)) == 1 and len(set(self.lengths_k)) == 1

    @property
    def seqlen(self):
        return max(self.lengths_k)

    @property
    def name(self):
        mask = "causal" if self.causal else "full"
        page = f"-p{self.page_size}" if self.page_size else ""
        words = [self.family, self.dtype, f"d{self.head_dim}", f"s{self.seqlen}"]
        if self.is_decode:
            return "-".join(words + [f"b{self.batch}"]) + page
        return "-".join(words + [mask])

    @property
    def bytes_q(self):
        return sum(self.lengths_q) * self.heads_q * self.head_dim * DTYPES[self.dtype]

    @property
    def bytes_k(self):
        return sum(self.lengths_k) * self.heads_kv * self.head_dim * DTYPES[self.dtype]

    def flops(self):
        """2 (D + Dv) for each visible pair and query head."""
        pairs = sum(nq * (2 * nk - nq + 1) // 2 if self.causal else nq * nk
                    for nq, nk in zip(self.lengths_q, self.lengths_k))
        return 4 * pairs * self.heads_q * self.head_dim

    def work(self):
        """Of a call, with its unit: bytes of keys and values where one query reads them all."""
        return (2 * self.bytes_k, "B") if self.is_decode else (self.flops(), "FLOP")


def even(family, dtype, causal, head_dim, seqlen, tokens=16384, heads=None):
    heads_q, heads_kv = heads or (2048 // head_dim,) * 2
    lengths = (seqlen,) * max(tokens // seqlen, 1)
    return Case(family, dtype, causal, heads_q, heads_kv, head_dim, lengths, lengths)


def packed(family, causal, head_dim, lengths):
    heads = 2048 // head_dim
    return Case(family, "bf16", causal, heads, heads, head_dim, lengths, lengths)


def decode(batch, seqlen, page_size=0):
    return Case("decode-h32-kv8", "bf16", False, 32, 8, 128, (1,) * batch, (seqlen,) * batch,
                page_size)


BOTH = (False, True)
SEQLENS = (512, 2048, 8192, 16384)
BATCHES = {
    "equal": (2048,) * 8,
    "1k-4k": (1024, 4096, 2560, 1536, 3584, 3072, 1280, 2176),
    "one-long": (16384,) + tuple(16 + n * 37 % 113 for n in range(63)),
    "short": (128,) * 256,
}


def cases():
    """The most telling ones first, as time may run out."""
    for d, causal, s in itertools.product((128, 64, 256), BOTH, SEQLENS):
        yield even("dense", "bf16", causal, d, s)
    for causal, s in itertools.product(BOTH, (4096, 16384)):
        yield even("h64-kv8", "bf16", causal, 128, s, s, (64, 8))
    for d, causal, name in itertools.product((128, 64), BOTH, BATCHES):
        yield packed("packed-" + name, causal, d, BATCHES[name])
    for batch, seqlen in ((1, 4096), (16, 4096), (128, 4096), (1, 32768), (16, 32768)):
        yield decode(batch, seqlen)
    for page_size in (16, 256):
        yield decode(16, 32768, page_size)
    for dtype, seqlen in (("f16", 4096), ("f32", 2048), ("f64", 2048)):
        for d, causal in itertools.product((128, 64, 256), BOTH):
            yield even("dense", dtype, causal, d, seqlen)


def tiny_cases():
    """One of each kind, for a device that is emulated."""
    for dtype, causal in (("bf16", True), ("f16", False), ("f32", True), ("f64", False)):
        yield even("dense", dtype, causal, 64, 48, 96, (2, 1))
    yield dataclasses.replace(packed("packed-tiny", True, 128, (33, 1, 20)), heads_q=2, heads_kv=2)
    for page_size in (0, 16):
        yield dataclasses.replace(decode(3, 48, page_size), heads_q=4, heads_kv=1)


# ---- Tensors ------------------------------------------------------------------------------------

def numbers(dtype, seed):
    """PIECE bytes of random numbers, of either sign."""
    bits = 8 * DTYPES[dtype]
    keep, put = (int.from_bytes(word.to_bytes(bits // 8, "little") * (8 * PIECE // bits), "little")
                 for word in BITS[dtype])
    drawn = int.from_bytes(random.Random(seed).randbytes(PIECE), "little")
    return (drawn & keep | put).to_bytes(PIECE, "little")


def integers(device, values):
    memory = Memory(device, 4 * len(values))
    memory.write(struct.pack(f"<{len(values)}i", *values))
    return memory


def offsets(lengths):
    return list(itertools.accumulate(lengths, initial=0))


class Tensors:
    """q, k, v and, for each caller, an out of its own."""
    def __init__(self, device, case, pieces):
        self.device, self.case = device, case
        self.q, self.k, self.v = (Memory(device, n)
                                  for n in (case.bytes_q, case.bytes_k, case.bytes_k))
        for memory, piece in zip((self.q, self.k, self.v), pieces):
            memory.fill(piece)

    def out(self):
        memory = Memory(self.device, self.case.bytes_q)
        memory.clear(0xFFFFFFFF) # NaN in every type
        return memory


class Batch:
    """Sets of tensors for a case, and its integers on the device."""
    def __init__(self, device, case):
        pieces = [numbers(case.dtype, seed) for seed in (1, 2, 3)]
        count = SETS if 2 * case.bytes_k < LARGE else 1
        self.case = case
        self.sets = [Tensors(device, case, pieces) for _ in range(count)]
        self.cu_q = integers(device, offsets(case.lengths_q))
        self.cu_k = integers(device, offsets(case.lengths_k))
        self.used = integers(device, case.lengths_k)
        self.pages = []
        if case.page_size:
            self.pages = list(range(sum(case.lengths_k) // case.page_size))
            random.Random(4).shuffle(self.pages)
            self.table = integers(device, self.pages)


# ---- One row, by plain loops --------------------------------------------------------------------

FORMATS = {"f16": "e", "f32": "f", "f64": "d"}


def floats(dtype, data):
    if dtype == "bf16": # the upper half of an f32 each
        words = struct.unpack(f"<{len(data) // 2}H", data)
        dtype, data = "f32", struct.pack(f"<{len(words)}I", *(w << 16 for w in words))
    return struct.unpack(f"<{len(data) // DTYPES[dtype]}{FORMATS[dtype]}", data)


def row_of(memory, case, row, heads, head):
    size = DTYPES[case.dtype] * case.head_dim
    return floats(case.dtype, memory.read((row * heads + head) * size, size))


def dot(a, b):
    return sum(map(operator.mul, a, b))


class Row:
    """The last row of the last sequence and head, which sees every key of its sequence, and of the
    first sequence the middle one, which a causal mask cuts."""
    def __init__(self, batch, first):
        case = batch.case
        self.case = case
        self.sequence = 0 if first else case.batch - 1
        nq, nk = case.lengths_q[self.sequence], case.lengths_k[self.sequence]
        self.query = nq // 2 if first else nq - 1
        self.head = 0 if first else case.heads_q - 1
        self.at = sum(case.lengths_q[:self.sequence]) + self.query
        seen = self.query + nk - nq + 1 if case.causal else nk
        self.expected = self.compute(batch, seen)

    def keys(self, batch, memory, seen):
        """Rows of k or v, of this row's head; a run of them is read at a time."""
        case, start = batch.case, sum(batch.case.lengths_k[:self.sequence])
        size = DTYPES[case.dtype] * case.head_dim
        stride, head = case.heads_kv * size, self.head // (case.heads_q // case.heads_kv)
        run = case.page_size or seen
        for j in range(0, seen, run):
            row = batch.pages[(start + j) // run] * run if batch.pages else start + j
            data = memory.read(row * stride, min(run, seen - j) * stride)
            for at in range(head * size, len(data), stride):
                yield floats(case.dtype, data[at:at + size])

    def compute(self, batch, seen):
        case, s = self.case, batch.sets[0]
        q = row_of(s.q, case, self.at, case.heads_q, self.head)
        scores = [dot(q, k) / math.sqrt(case.head_dim) for k in self.keys(batch, s.k, seen)]
        most = max(scores)
        weights = [math.exp(x - most) for x in scores]
        columns = [0.0] * case.head_dim
        for weight, v in zip(weights, self.keys(batch, s.v, seen)):
            columns = [c + weight * x for c, x in zip(columns, v)]
        return [c / math.fsum(weights) for c in columns]

    def error(self, out):
        """The largest difference in the row, as a share of its largest element."""
        found = row_of(out, self.case, self.at, self.case.heads_q, self.head)
        size = max(map(abs, self.expected))
        worst = max(abs(a - b) for a, b in zip(found, self.expected)) / size
        return math.inf if any(math.isnan(x) for x in found) else worst


def rows(batch):
    return [Row(batch, True), Row(batch, False)]
