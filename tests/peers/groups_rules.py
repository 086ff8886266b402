# SPDX-License-Identifier: BSD-3-Clause
"""attn_forward() with every rule beside plain tensor code: out, LSE and column sums."""
import torch

import abi
import draw
from judge import Trial
from problem import describe, trial
from reference import COMPUTING, kept

SEED = 0x9E3779B97F4A7C15


def each(dtype, rules):
    """A trial per shape; rules: (shape) -> arguments of a problem."""
    return [trial(draw.problem(s, dtype, **r)) for s in draw.SHAPES for r in rules(s)]


def softcap(dtype):
    return each(dtype, lambda s: ({"softcap": 0.7}, {"softcap": 30.0, "scale": 1.0}))


def bias(dtype):
    def rules(s):
        batch, heads, _, nq, nk, _, _ = s
        some = {"lengths_q": draw.lengths(batch, nq), "lengths_k": draw.lengths(batch, nk)}
        full = draw.normal((batch, heads, nq, nk), dtype)
        return ({"bias": full}, {"bias": draw.normal((heads, 1, nk), torch.float32)
                                 if dtype != torch.float64 else full[:1]},
                {"bias": full, "bias_packed": True, "layout_q": abi.PACKED,
                 "layout_k": abi.PACKED, **some})
    return each(dtype, rules)


def alibi(dtype):
    return each(dtype, lambda s: ({"alibi": draw.slopes(s[1:2], dtype)},
                                  {"alibi": draw.slopes(s[:2], dtype), "causal": True}))


def sink(dtype):
    def rules(s):
        values = draw.normal(s[1:2], COMPUTING[dtype])
        values[0] = -float("inf")
        return {"sink": values}, {"sink": values + 3, "causal": True, "align_right": True}
    return each(dtype, rules)


def window(dtype):
    return each(dtype, lambda s: [{"window": w, "align_right": right, "causal": causal}
                                  for w in ((5, 0), (-1, 3), (40, 11)) for right in (False, True)
                                  for causal in (False, True)])


def documents(dtype):
    return each(dtype, lambda s: [{"query_docs": draw.documents(s[0], s[3]),
                                   "key_docs": draw.documents(s[0], s[4]), "causal": causal}
                                  for causal in (False, True)])


def prefix(dtype):
    return each(dtype, lambda s: [{
        "prefix": torch.randint(0, s[4] + 9, s[:1], dtype=torch.int32), "causal": True,
        "align_right": right, "window": w} for right in (False, True) for w in (None, (60, -1))])


def block_mask(dtype):
    def rules(s):
        for size in ((16, 16), (64, 8), (3, 50)):
            yield {"block_mask": draw.blocks(s, size), "block": size}
        yield {"block_mask": draw.blocks(s, (8, 32), False), "block": (8, 32), "causal": True}
    return each(dtype, rules)


def token_masks(dtype):
    return each(dtype, lambda s: (
        {"key_mask": draw.coin((s[0], s[4]))}, {"query_mask": draw.coin((s[0], s[3]))},
        {"key_mask": draw.coin((s[0], s[4])), "query_mask": draw.coin((s[0], s[3])),
         "causal": True, "align_right": True}))


def mask(dtype):
    return each(dtype, lambda s: ({"mask": draw.coin((s[3], s[4]))},
                                  {"mask": draw.coin((s[0], s[1], s[3], s[4]), 0.1)}))


def some_lengths(s):
    return {"lengths_q": draw.lengths(s[0], s[3]), "lengths_k": draw.lengths(s[0], s[4])}


def packed(dtype):
    return each(dtype, lambda s: [{
        "layout_q": q, "layout_k": k, "causal": True, "align_right": True, **some_lengths(s)}
        for q, k in ((abi.PACKED, abi.PACKED), (abi.PADDED, abi.PACKED),
                     (abi.PACKED, abi.PADDED))])


def seqused(dtype):
    return each(dtype, lambda s: [{
        "layout_q": layout, "layout_k": layout, "room": room, "causal": causal,
        "align_right": True, **some_lengths(s)}
        for layout, room in ((abi.PADDED, False), (abi.PACKED, True)) for causal in (False, True)])


def paged(dtype):
    return each(dtype, lambda s: [{
        "layout_q": layout, "layout_k": abi.PAGED, "page_size": size, "causal": True,
        "align_right": True, **some_lengths(s)}
        for size, layout in ((1, abi.PACKED), (16, abi.PADDED), (50, abi.PACKED))])


def dropout(dtype):
    return each(dtype, lambda s: [{"dropout": p, "dropout_seed": SEED, "dropout_offset": 3,
                                   "first_sequence": 5, "causal": causal, "align_right": True}
                                  for p in (0.1, 0.7) for causal in (False, True)])


def keep_mask(dtype):
    """attn_dropout_mask() bit by bit; it has no element type."""
    for s in draw.SHAPES if dtype == torch.float32 else ():
        for p in (0.0625, 0.5, 0.93):
            problem = draw.problem(s, dtype, dropout=p, dropout_seed=SEED ^ int(p * 2**60),
                                   dropout_offset=2**32 - 1, first_sequence=7, **some_lengths(s))

            def ours(context, problem=problem):
                keep = torch.full(problem.scores, 7, dtype=torch.uint8).view(torch.bool)
                abi.call(context, "attn_dropout_mask", describe(problem)[0],
                         abi.scores(keep, problem.scores))
                return {"keep": keep.view(torch.uint8)}
            yield Trial(dtype, ours, lambda real, problem=problem: {"keep": kept(problem)},
                        lambda problem=problem: {"keep": torch.zeros(problem.scores)})


def probabilities(dtype):
    return each(dtype, lambda s: ({"probs": True, "causal": True, **some_lengths(s)},
                                  {"probs": True, "mask": draw.coin((s[3], s[4])),
                                   "dropout": 0.3, "dropout_seed": 1}))


def everything(s, dtype):
    """Every rule at once, each of them loose enough to leave something to see."""
    batch, heads, _, nq, nk, _, _ = s
    size = (16, 24)
    return {"softcap": 4.0, "scale": 0.3, "bias": draw.normal((batch, 1, nq, nk), dtype),
            "alibi": draw.slopes((batch, heads), dtype) / 8,
            "sink": draw.normal((heads,), COMPUTING[dtype]), "align_right": True, "causal": True,
            "window": (90, 20), "prefix": torch.full((batch,), nk // 2, dtype=torch.int32),
            "key_mask": draw.coin((batch, nk), 0.9), "query_mask": draw.coin((batch, nq), 0.9),
            "mask": draw.coin((heads, nq, nk), 0.9), "query_docs": draw.documents(batch, nq) // 3,
            "key_docs": draw.documents(batch, nk) // 6, "block": size,
            "block_mask": draw.coin((batch, heads, -(-nq // size[0]), -(-nk // size[1])), 0.9),
            "dropout": 0.2, "dropout_seed": 11, **some_lengths(s)}


def together(dtype):
    return each(dtype, lambda s: [{**everything(s, dtype), "layout_q": q, "layout_k": k}
                                  for q in (abi.PADDED, abi.PACKED)
                                  for k in (abi.PADDED, abi.PACKED, abi.PAGED)])


GROUPS = {"softcap": softcap, "bias": bias, "ALiBi": alibi, "sinks": sink,
          "sliding window": window, "documents": documents, "prefix": prefix,
          "block mask": block_mask, "key and query masks": token_masks, "mask": mask,
          "packed": packed, "seqused": seqused, "paged cache": paged, "dropout": dropout,
          "dropout: kept set": keep_mask, "probabilities": probabilities,
          "all rules, all layouts": together}
