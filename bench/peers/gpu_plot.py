# SPDX-License-Identifier: BSD-3-Clause
"""The picture of gpu.py's rows: TFLOP/s over S, a panel for each element type, mask and head size,
with the limit that was measured beside each case."""
import collections
import math

import plot

FAMILY = "dense"


def add(curves, row, name, rate):
    panel = row["dtype"], "causal" if row["causal"] else "full", row["head_dim"]
    curves[panel].setdefault(name, {})[row["seqlen"]] = float(rate)


def round_up(x):
    """To a number whose fifths are short."""
    unit = 10 ** math.floor(math.log10(x))
    return next(n * unit for n in (1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10) if n * unit >= x)


def picture(rows, footer):
    """SVG; empty where no row has a place in it."""
    curves, most = collections.defaultdict(dict), collections.Counter()
    for row in rows:
        if row["family"] != FAMILY or not row["rate"]:
            continue
        ours = row["peer"] == "libattn"
        add(curves, row, "libattn cuda" if ours else row["peer"], row["rate"])
        if row["limit"] and ours:
            add(curves, row, "limit", row["limit"])
        for name in ("rate", "limit"):
            most[row["dtype"]] = max(most[row["dtype"]], float(row[name] or 0))
    if not curves:
        return ""
    tops = {dtype: round_up(x) for dtype, x in most.items() if x > 0}
    words = "tokens S; TFLOP/s, with a matrix product's as the limit"
    return plot.picture(curves, f"{words}; {footer}", tops)
