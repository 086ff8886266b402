# SPDX-License-Identifier: BSD-3-Clause
"""What libattn computes, once more, as plain tensor code; shares nothing with the library.

Tensors of tokens are [B, S, H, D], of scores [B, Hq, Sq, Sk]. `real` is float64 for a reference, or
the element type itself for the plain computation whose error says what that type allows.
"""
import numpy as np
import torch

COMPUTING = {torch.float32: torch.float32, torch.float64: torch.float64,
             torch.float16: torch.float32, torch.bfloat16: torch.float32}
NEVER = -float("inf")


def philox(counter, seed):
    """Philox4x32-10: the four words of each draw; counter: four arrays of words."""
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    x = [np.asarray(w, np.uint64) for w in counter]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        product0, product1 = x[0] * np.uint64(0xD2511F53), x[2] * np.uint64(0xCD9E8D57)
        x = [(product1 >> shift) ^ x[1] ^ np.uint64(key[0]), product1 & low,
             (product0 >> shift) ^ x[3] ^ np.uint64(key[1]), product0 & low]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return x


def kept(p):
    """What dropout keeps, within the lengths."""
    b, h, i, n = np.meshgrid(*(np.arange(e) for e in (*p.scores[:3], -(-p.scores[3] // 4))),
                             indexing="ij")
    row = (p.first_sequence + b) * p.scores[1] + h
    draws = np.stack(philox((n, i, row, np.full_like(n, p.dropout_offset)), p.dropout_seed), -1)
    draws = draws.reshape(*p.scores[:3], -1)[..., :p.scores[3]]
    return torch.from_numpy(draws >= np.uint64(round(p.dropout * 2**32))) & p.inside()


def seen(p):
    """Which keys are seen, [B, Hq, Sq, Sk]."""
    i, j = p.places()
    position = i + (p.offset() if p.align_right else 0)
    s = p.inside()
    if p.causal:
        before = j <= position
        s = s & (before if p.prefix is None else before | (j < p.prefix[:, None, None, None]))
    if p.window:
        left, right = p.window
        s = s & ((j >= position - left) if left >= 0 else True)
        s = s & ((j <= position + right) if right >= 0 else True)
    if p.key_mask is not None:
        s = s & p.key_mask[:, None, None, :]
    if p.query_mask is not None:
        s = s & p.query_mask[:, None, :, None]
    if p.mask is not None:
        s = s & p.mask
    if p.query_docs is not None:
        s = s & (p.query_docs[:, None, :, None] == p.key_docs[:, None, None, :])
    if p.block_mask is not None:
        rows, columns = i.flatten() // p.block[0], j.flatten() // p.block[1]
        s = s & p.block_mask[:, :, rows][..., columns]
    return s.expand(p.scores)


def heads_first(x, heads, real):
    x = x.to(real).transpose(1, 2)
    return x.repeat_interleave(heads // x.shape[1], 1)


def score(p, computing):
    q, k = (heads_first(x, p.scores[1], computing) for x in (p.q, p.k))
    s = (q @ k.transpose(2, 3)) * (p.scale or p.q.shape[3] ** -0.5)
    if p.softcap:
        s = p.softcap * torch.tanh(s / p.softcap)
    if p.bias is not None:
        s = s + p.bias.to(computing)
    if p.alibi is not None:
        i, j = p.places()
        slopes = p.alibi.to(computing).expand(p.scores[:2])[:, :, None, None]
        s = s - slopes * (i + p.offset() - j).abs()
    return s


def softmax(s, sink):
    """Probabilities and the LSE, of scores that are -inf where hidden."""
    lse = torch.logsumexp(s, 3)
    if sink is not None:
        lse = torch.logaddexp(lse, sink.to(s.dtype)[:, None].expand(lse.shape[1:]))
    return torch.where(s == NEVER, 0, torch.exp(s - lse[..., None])), lse


def attention(p, real):
    """{"out": [B, Sq, Hq, Dv], "lse": [B, Hq, Sq], "key_sums": [B, Hq, Sk], "probs"}."""
    computing = COMPUTING[real]
    s = score(p, computing).masked_fill(~seen(p), NEVER)
    probs, lse = softmax(s, p.sink)
    lse = lse.masked_fill(~p.rows()[:, None, :], NEVER)
    if p.dropout:
        probs = torch.where(kept(p), probs / (1 - p.dropout), 0)
    v = heads_first(p.v, p.scores[1], computing)
    out = (probs.to(real).to(computing) @ v).to(real)
    return {"out": out.transpose(1, 2), "lse": lse, "key_sums": probs.sum(2),
            "probs": probs.to(real)}


def merge(outs, lses, real):
    """Parts [B, S, H, Dv] and [B, H, S]."""
    computing = COMPUTING[real]
    lses = torch.stack(lses).to(computing)
    lse = torch.logsumexp(lses, 0)
    weights = torch.where(lses == NEVER, 0, torch.exp(lses - lse))
    parts = torch.where(weights.transpose(2, 3)[..., None] == 0, 0,
                        torch.stack(outs).to(computing))
    out = (weights.transpose(2, 3)[..., None] * parts).sum(0)
    return {"out": out.to(real), "lse": lse}


def rotary(x, positions, dim, interleaved, base=10000, frequency=None, inverse=False):
    """x [..., H, D] turned by positions [...], in numpy's longest type; and each pair's length, in
    the shape of x, 0 for what is not turned."""
    x = x.double().numpy().astype(np.longdouble)
    n = np.arange(dim // 2)
    if frequency is None:
        frequency = np.longdouble(base) ** (np.longdouble(-2) * n / dim)
    angle = positions.numpy().astype(np.longdouble)[..., None, None] * frequency
    cos, sin = np.cos(angle), np.sin(angle) * (-1 if inverse else 1)
    first, second = (2 * n, 2 * n + 1) if interleaved else (n, n + dim // 2)
    a, b = x[..., first], x[..., second]
    out, length = x.copy(), np.zeros_like(x)
    out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    length[..., first] = length[..., second] = np.hypot(a, b)
    return torch.from_numpy(out.astype(np.float64)), torch.from_numpy(length.astype(np.float64))
