# SPDX-License-Identifier: BSD-3-Clause
"""Compares libattn with PyTorch on the CPU, feature by feature.

A line per group: comparisons, then for each element type the largest error relative to what is
allowed (judge.py), of the cpu backend and of eager. "-": no comparison; "!": one failed, and a line
before it told which. The last line counts comparisons.
"""
import argparse
import collections
import fnmatch
import os
import sys

try:
    import torch
except (ImportError, OSError) as error: # the latter: a library that it names is not there
    print(f"SKIP PyTorch cannot be loaded: {error}\npeers: 0 passed, 0 failed, 1 skipped")
    sys.exit(0)

import abi
import groups_blocks
import groups_flex
import groups_rules
import groups_sdpa
from binding import Context
from judge import Judged
from peer import Absent

TYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
GROUPS = (groups_sdpa.GROUPS | groups_flex.GROUPS | groups_rules.GROUPS | groups_blocks.GROUPS)


def read_options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder of libattn.so (default: build)")
    parser.add_argument("--group", default="*", help="glob of groups (default: all)")
    parser.add_argument("--dtype", action="append", choices=TYPES, help="repeatable; default: all")
    parser.add_argument("--backend", action="append", choices=("cpu", "eager"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=min(2, len(os.sched_getaffinity(0))))
    return parser.parse_args()


What = collections.namedtuple("What", "group dtype number backend")


class Tally:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.told = set()

    def skip(self, why):
        self.skipped += 1
        if why not in self.told:
            self.told.add(why)
            print(f"SKIP {why}", flush=True)

    def compare(self, what, judged, context):
        """Largest error relative to what is allowed; None where the backend does not serve."""
        try:
            ratio, name = judged.ratio(context)
        except abi.Refused as reason:
            self.skip(f"{what.group}, {what.backend}: {reason}")
            return None
        if ratio <= 1:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAIL {' '.join(map(str, what))}: {name} is off by {ratio:.3g} times what is "
                  "allowed", flush=True)
        return ratio


def cell(ratios):
    if not ratios:
        return "-"
    return f"{max(ratios):.2f}" + ("!" if max(ratios) > 1 else "")


def contexts(library, options, tally):
    found = {}
    for backend in options.backend or ("cpu", "eager"):
        try:
            found[backend] = Context(library, backend, options.threads)
        except Absent as reason:
            tally.skip(f"{backend}: {reason}")
    return found


def run(name, group, options, backends, tally):
    """One line of the table."""
    cells, count = [], 0
    for dtype in options.dtype or TYPES:
        torch.manual_seed(options.seed)
        ratios = {backend: [] for backend in backends}
        for number, trial in enumerate(group(TYPES[dtype])):
            judged = Judged(trial)
            for backend, context in backends.items():
                ratio = tally.compare(What(name, dtype, number, backend), judged, context)
                count += 1
                ratios[backend] += [] if ratio is None else [ratio]
        cells += ["/".join(cell(r) for r in ratios.values())]
    print(f"{name:28}{count:6}" + "".join(f"{text:>13}" for text in cells), flush=True)


def main():
    options, tally = read_options(), Tally()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    library = abi.load(os.path.join(options.build, "libattn.so"))
    backends = contexts(library, options, tally)
    heads = "".join(f"{d:>13}" for d in options.dtype or TYPES)
    print(f"{'group':28}{'number':>6}{heads}  ({'/'.join(backends)})")
    for name, group in GROUPS.items():
        if fnmatch.fnmatch(name, options.group):
            run(name, group, options, backends, tally)
    print(f"peers: {tally.passed} passed, {tally.failed} failed, {tally.skipped} skipped")
    return tally.failed != 0 or tally.passed + tally.skipped == 0


if __name__ == "__main__":
    sys.exit(main())
