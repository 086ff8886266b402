# SPDX-License-Identifier: BSD-3-Clause
"""Rules beside PyTorch's flex_attention, which is told of them by functions of the places."""
import torch
import torch.nn.attention.flex_attention as flex

import draw
from judge import Trial
from problem import forward
from reference import COMPUTING

# Without it every function is traced and compiled on its own; the computation is the same.
flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True


def flexible(p, real, score, sees):
    """{"out", "lse"} as reference.attention() has them; score and sees may be null."""
    q, k, v = (x.to(real).transpose(1, 2) for x in (p.q, p.k, p.v))
    batch, heads, nq, nk = p.scores
    blocks = sees and flex.create_block_mask(sees, batch, heads, nq, nk, device="cpu")
    out, more = flex.flex_attention(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=True,
                                    return_aux=flex.AuxRequest(lse=True))
    return {"out": out.transpose(1, 2), "lse": more.lse.to(COMPUTING[real])}


def trial(p, score=None, sees=None):
    return Trial(p.q.dtype, lambda context: forward(context, p),
                 lambda real: flexible(p, real, score and score(COMPUTING[real]), sees))


def softcap(dtype):
    for s in draw.SHAPES:
        yield trial(draw.problem(s, dtype, softcap=1.5),
                    lambda real: lambda x, b, h, i, j: 1.5 * torch.tanh(x / 1.5))


def alibi(dtype):
    for s in draw.SHAPES:
        slopes = draw.slopes(s[1:2], dtype)
        offset = s[4] - s[3]
        yield trial(draw.problem(s, dtype, alibi=slopes),
                    lambda real, slopes=slopes, offset=offset: lambda x, b, h, i, j:
                    x - slopes.to(real)[h] * (i + offset - j).abs())


def window(dtype):
    for s in draw.SHAPES:
        for left, right, aligned in ((5, 2, False), (40, 0, True), (0, 17, True)):
            p = draw.problem(s, dtype, window=(left, right), align_right=aligned)
            at = s[4] - s[3] if aligned else 0
            yield trial(p, sees=lambda b, h, i, j, left=left, right=right, at=at:
                        (j >= i + at - left) & (j <= i + at + right))


def documents(dtype):
    for s in draw.SHAPES:
        rows, columns = draw.documents(s[0], s[3]), draw.documents(s[0], s[4])
        p = draw.problem(s, dtype, query_docs=rows, key_docs=columns, causal=True)
        yield trial(p, sees=lambda b, h, i, j, rows=rows, columns=columns:
                    (rows[b, i] == columns[b, j]) & (j <= i))


def prefix(dtype):
    for s in draw.SHAPES:
        lengths = torch.randint(0, s[4] + 1, s[:1], dtype=torch.int32)
        p = draw.problem(s, dtype, prefix=lengths, causal=True)
        yield trial(p, sees=lambda b, h, i, j, lengths=lengths: (j < lengths[b]) | (j <= i))


def block_mask(dtype):
    for s in draw.SHAPES:
        blocks = draw.blocks(s, (16, 32))
        p = draw.problem(s, dtype, block_mask=blocks, block=(16, 32))
        yield trial(p, sees=lambda b, h, i, j, blocks=blocks: blocks[b, h, i // 16, j // 32])


GROUPS = {"flex: softcap": softcap, "flex: ALiBi": alibi, "flex: sliding window": window,
          "flex: documents": documents, "flex: prefix": prefix, "flex: block mask": block_mask}
