# SPDX-License-Identifier: BSD-3-Clause
"""How far the library may be from a reference. Stated from the element type:

    allowed = 3 (largest error of the plain computation in that type) + ULPS ulp of the type at the
              largest |reference|

over the whole tensor, both parties' numbers coming from PyTorch. The LSE and column sums have the
computing type's ulp, the LSE at max(1, |reference|); that of bf16 may be off by 1e-5 of it. ULPS is
4, and 64 for f64, where the reference is itself a plain computation in that type. (tests/compare.h
has 2 and 2, and the worst of many plain computations; here a single one stands for them.) What is
not finite, and 0 among probabilities and their sums, has to be met exactly.
"""
import dataclasses
from typing import Callable

import torch

from reference import COMPUTING

FACTOR = 3
ULPS = {torch.float32: 4, torch.float64: 64, torch.float16: 4, torch.bfloat16: 4}
BF16_LSE = 1e-5
DIGITS = {torch.float32: 24, torch.float64: 53, torch.float16: 11, torch.bfloat16: 8}
LEAST = {torch.float32: -125, torch.float64: -1021, torch.float16: -13, torch.bfloat16: -125}


@dataclasses.dataclass
class Trial:
    """One comparison: what the library gives, and what PyTorch does."""
    dtype: torch.dtype
    ours: Callable          # (context) -> {name: tensor}
    reference: Callable     # (real) -> {name: tensor}; names that are missing are not compared
    limits: Callable = None # () -> {name: allowed, a tensor}, in place of the rule above


def ulp(dtype, x):
    """At |x|, a float64 tensor."""
    exponent = torch.frexp(x.double()).exponent
    exponent = torch.where(x == 0, LEAST[dtype], exponent).clamp(min=LEAST[dtype])
    return torch.ldexp(torch.ones_like(x, dtype=torch.float64), exponent - DIGITS[dtype])


def allowed(name, dtype, reference, plain):
    unit = dtype if name in ("out", "probs") else COMPUTING[dtype]
    finite = reference.isfinite()
    error = (plain.double() - reference)[finite & plain.isfinite()].abs()
    most = torch.cat([reference[finite].abs(), reference.new_full((1,), name == "lse")]).max()
    error = error.max().item() if error.numel() else 0
    limit = FACTOR * error + ULPS[dtype] * ulp(unit, most).item()
    least = BF16_LSE * most.item() if name == "lse" and dtype is torch.bfloat16 else 0
    return torch.full_like(reference, max(limit, least))


def worst(name, got, reference, limit):
    """Largest error relative to the limit; infinite where something has to be met and is not."""
    if got.shape != reference.shape:
        return float("inf")
    got = got.double()
    same = (got == reference) | (got.isnan() & reference.isnan())
    exact = ~reference.isfinite() | (limit == 0)
    if name in ("probs", "key_sums"):
        exact |= reference == 0
    if bool((exact & ~same).any()) or not bool(got[~exact].isfinite().all()):
        return float("inf")
    ratio = ((got - reference).abs() / limit)[~exact]
    return ratio.max().item() if ratio.numel() else 0.0


class Judged:
    """A trial's reference and limits, computed once for all backends."""
    def __init__(self, trial):
        self.trial = trial
        self.reference = {n: t.double() for n, t in trial.reference(torch.float64).items()}
        if trial.limits:
            self.limits = trial.limits()
        else:
            plain = trial.reference(trial.dtype)
            self.limits = {n: allowed(n, trial.dtype, r, plain[n])
                           for n, r in self.reference.items()}

    def ratio(self, context):
        """(largest ratio, the result it belongs to); Refused where the backend does not serve."""
        got = self.trial.ours(context)
        return max((worst(n, got[n], r, self.limits[n]), n) for n, r in self.reference.items())
