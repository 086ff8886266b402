# SPDX-License-Identifier: BSD-3-Clause
"""An attention problem as padded tensors, and the library's answer to it in any layout."""
import dataclasses

import torch

import abi
from judge import Trial
from reference import COMPUTING, NEVER, attention


@dataclasses.dataclass
class Problem:
    q: torch.Tensor             # [B, Sq, Hq, D]
    k: torch.Tensor             # [B, Sk, Hkv, D]
    v: torch.Tensor             # [B, Sk, Hkv, Dv]
    lengths_q: torch.Tensor = None  # [B]; None: all of Sq
    lengths_k: torch.Tensor = None
    scale: float = 0
    softcap: float = 0
    bias: torch.Tensor = None   # broadcasts to [B, Hq, Sq, Sk], as mask
    alibi: torch.Tensor = None  # [Hq] or [B, Hq]
    sink: torch.Tensor = None   # [Hq]
    align_right: bool = False
    causal: bool = False
    window: tuple = None        # (left, right)
    key_mask: torch.Tensor = None   # [B, Sk], bool
    query_mask: torch.Tensor = None
    mask: torch.Tensor = None
    query_docs: torch.Tensor = None # [B, Sq], integers
    key_docs: torch.Tensor = None
    prefix: torch.Tensor = None     # [B]
    block_mask: torch.Tensor = None # [B or 1, Hq or 1, blocks, blocks]
    block: tuple = (0, 0)           # queries and keys to a block
    dropout: float = 0
    dropout_seed: int = 0
    dropout_offset: int = 0
    first_sequence: int = 0
    layout_q: int = abi.PADDED
    layout_k: int = abi.PADDED
    page_size: int = 16
    room: bool = False     # packed: with places that seqused leaves out
    bias_packed: bool = False # by bias_offset
    probs: bool = False

    def __post_init__(self):
        self.scores = (*self.q.shape[:1], self.q.shape[2], self.q.shape[1], self.k.shape[1])
        for name, x in (("lengths_q", self.q), ("lengths_k", self.k)):
            if getattr(self, name) is None:
                setattr(self, name, torch.full(x.shape[:1], x.shape[1], dtype=torch.int32))

    def places(self):
        return torch.arange(self.scores[2])[:, None], torch.arange(self.scores[3])[None, :]

    def offset(self):
        return (self.lengths_k - self.lengths_q)[:, None, None, None]

    def rows(self):
        """Which queries there are, [B, Sq]."""
        return torch.arange(self.scores[2]) < self.lengths_q[:, None]

    def columns(self):
        return torch.arange(self.scores[3]) < self.lengths_k[:, None]

    def inside(self):
        return (self.rows()[:, None, :, None] & self.columns()[:, None, None, :]).expand(
            self.scores)


class Axis:
    """One side of a problem in the library's memory."""
    def __init__(self, layout, lengths, seqlen, room, page_size):
        self.layout, self.lengths, self.seqlen, self.page_size = layout, lengths, seqlen, page_size
        self.batch = len(lengths)
        self.rooms = lengths + (1 + torch.arange(self.batch) % 3 if room else 0)
        self.rooms = self.rooms.clamp(max=seqlen).int()
        self.used = room or layout == abi.PAGED or (
            layout == abi.PADDED and bool((lengths < seqlen).any()))
        self.max_pages = -(-seqlen // page_size) + 1
        self.table = torch.randperm(self.batch * self.max_pages).int().view(self.batch, -1)
        self.pages = self.table.numel()

    def side(self):
        s = abi.Side(layout=self.layout, seqlen=self.seqlen if self.layout == abi.PADDED else 0)
        s.alive = []

        def array(values):
            s.alive.append(values.int().contiguous())
            return abi.index(s.alive[-1])
        if self.layout == abi.PACKED:
            s.cu_seqlens = array(torch.cat([torch.zeros(1), self.rooms.cumsum(0)]))
            s.tokens = int(self.rooms.sum())
        if self.layout != abi.PADDED:
            s.max_seqlen = self.seqlen
        if self.used:
            s.seqused = array(self.lengths)
        if self.layout == abi.PAGED:
            listed = torch.arange(self.max_pages) * self.page_size < self.lengths[:, None]
            s.block_table = array(torch.where(listed, self.table, -7))
            s.pages, s.page_size, s.max_pages = self.pages, self.page_size, self.max_pages
        return s

    def put(self, x, fill):
        """x [B, S, ...] in this layout; what no token owns is filled."""
        there = torch.arange(self.seqlen) < self.lengths[:, None]
        x = x.clone()
        x[~there] = fill
        if self.layout == abi.PACKED:
            return torch.cat([x[b, :n] for b, n in enumerate(self.rooms.tolist())])
        if self.layout == abi.PADDED:
            return x
        paged = x.new_full((self.pages, self.page_size, *x.shape[2:]), fill)
        for b, t in there.nonzero().tolist():
            paged[self.table[b, t // self.page_size], t % self.page_size] = x[b, t]
        return paged

    def per_token(self, x, fill):
        """The same for one value per token; those of paged keys are padded."""
        return x.contiguous() if self.layout == abi.PAGED else self.put(x, fill)

    def get(self, x, fill):
        """The inverse, to [B, S, ...], for results in a padded or packed layout."""
        if self.layout != abi.PACKED:
            return x
        padded = x.new_full((self.batch, self.seqlen, *x.shape[1:]), fill)
        start = 0
        for b, n in enumerate(self.rooms.tolist()):
            padded[b, :n] = x[start:start + n]
            start += n
        return padded

    def per_head(self, x, fill):
        """Results [H, T] or [B, H, S], to [B, H, S]."""
        return self.get(x.transpose(0, 1), fill).transpose(1, 2) if x.dim() == 2 else x


def unset(shape, dtype):
    return torch.full(shape, float("nan"), dtype=dtype)


def packed_bias(p):
    """[Hq, nq, nk] of each sequence, end to end, and where each begins."""
    full = p.bias.expand(p.scores)
    parts = [full[b, :, :nq, :nk].flatten() for b, (nq, nk)
             in enumerate(zip(p.lengths_q.tolist(), p.lengths_k.tolist()))]
    ends = torch.tensor([0] + [len(x) for x in parts]).cumsum(0)
    return torch.cat(parts), ends


def add_scores(d, p):
    d.scale, d.softcap = p.scale, p.softcap
    if p.bias is not None and p.bias_packed:
        data, offsets = packed_bias(p)
        d.bias = abi.of(abi.Scores, data, abi.DTYPES[data.dtype])
        d.bias_offset = abi.index(offsets)
        d.alive["bias"] = (data, offsets)
    elif p.bias is not None:
        d.bias = abi.scores(p.bias, p.scores)
    if p.alibi is not None:
        batch = p.alibi.stride(0) if p.alibi.dim() == 2 else 0
        d.alibi = abi.tensor(p.alibi, batch, 0, 1)
    if p.sink is not None:
        d.sink = abi.tensor(p.sink)


def add_masks(d, p, query, key):
    keep = d.alive
    d.align = abi.BOTTOM_RIGHT if p.align_right else abi.TOP_LEFT
    d.causal, d.window = p.causal, p.window is not None
    if p.window:
        d.window_left, d.window_right = p.window
    for name, axis in (("key_mask", key), ("query_mask", query)):
        if getattr(p, name) is not None:
            keep[name] = axis.per_token(getattr(p, name), True)
            setattr(d, name, abi.token_mask(keep[name]))
    for name, axis in (("key_docs", key), ("query_docs", query)):
        if getattr(p, name) is not None:
            keep[name] = axis.per_token(getattr(p, name), -1)
            setattr(d, name, abi.index(keep[name]))
    if p.mask is not None:
        d.mask = abi.scores(p.mask, p.scores)
    if p.prefix is not None:
        d.prefix = abi.index(p.prefix)
    if p.block_mask is not None:
        d.block_mask = abi.scores(p.block_mask, (*p.scores[:2], *p.block_mask.shape[2:]))
        d.block_q, d.block_k = p.block


def add_dropout(d, p):
    d.dropout, d.dropout_seed = p.dropout, p.dropout_seed
    d.dropout_offset, d.first_sequence = p.dropout_offset, p.first_sequence


def add_tensors(d, p, query, key):
    """q, k, v with NaN wherever no query may look."""
    nan = float("nan")
    k, v = p.k.clone(), p.v.clone()
    if p.key_mask is not None:
        k[~p.key_mask], v[~p.key_mask] = nan, nan
    tensors = {"q": query.put(p.q, nan), "k": key.put(k, nan), "v": key.put(v, nan)}
    for name, t in tensors.items():
        setattr(d, name, abi.tensor(t))
    d.alive.update(tensors)


def describe(p):
    """The descriptor, without results, and the two sides."""
    query = Axis(p.layout_q, p.lengths_q, p.scores[2], p.room, p.page_size)
    key = Axis(p.layout_k, p.lengths_k, p.scores[3], p.room, p.page_size)
    d = abi.Desc(batch=p.scores[0], heads_q=p.scores[1], heads_kv=p.k.shape[2],
                 head_dim=p.q.shape[3], head_dim_v=p.v.shape[3])
    sides = query.side(), key.side()
    d.query, d.key = sides
    d.alive["sides"] = sides # assigning copies the structures, not what they keep
    add_tensors(d, p, query, key)
    add_scores(d, p)
    add_masks(d, p, query, key)
    add_dropout(d, p)
    return d, query, key


def forward(context, p):
    """The library's results, in the shapes of reference.attention()."""
    d, query, key = describe(p)
    real, (batch, heads, rows, columns) = COMPUTING[p.q.dtype], p.scores
    tokens = (batch, rows) if query.layout == abi.PADDED else (d.query.tokens,)
    out = unset((*tokens, heads, p.v.shape[3]), p.q.dtype)
    lse = unset((*tokens[:-1], heads, tokens[-1]), real)
    places = (d.key.tokens,) if key.layout == abi.PACKED else (batch, columns)
    sums = unset((*places[:-1], heads, places[-1]), real)
    d.out, d.lse, d.key_sums = abi.tensor(out), abi.tensor(lse), abi.tensor(sums)
    if p.probs:
        probs = unset(p.scores, p.q.dtype)
        d.probs = abi.scores(probs, p.scores)
    abi.call(context, "attn_forward", d)
    results = {"out": query.get(out, 0), "lse": query.per_head(lse, NEVER),
               "key_sums": key.per_head(sums, 0)}
    return results | ({"probs": probs} if p.probs else {})


def trial(p):
    """The problem against plain tensor code."""
    def reference(real):
        results = attention(p, real)
        return results if p.probs else {n: t for n, t in results.items() if n != "probs"}
    return Trial(p.q.dtype, lambda context: forward(context, p), reference)
