# SPDX-License-Identifier: BSD-3-Clause
"""Times libattn's cuda backend beside PyTorch's attention, on the same arrays of a GPU.

Each round runs every peer once, and the limit of the case with them (a large matrix product, or a
copy for decoding), in an order that rotates. A sample is events around as many calls as fill
--seconds, after a write of more than any cache holds. ratio_to_libattn: the peer's time over
libattn's, share: the limit's time over the peer's for equal work, both within each round, medians
over the rounds; so a clock that wanders falls out of them. Without PyTorch, libattn is timed alone.

Before, two rows of each result are compared with plain loops; what is off is not timed.

Table on standard output. With --results NAME also NAME.csv, NAME.json and NAME.svg, written anew
after each case. Exit status 1 where libattn is wrong or refuses a case, 77 without a GPU.
"""
import argparse
import csv
import datetime
import fnmatch
import io
import itertools
import json
import os
import statistics
import sys
import time

import gpu_attn
import gpu_cases
import gpu_driver
import gpu_plot
from gpu_limits import Limits
from peer import Absent

OURS = gpu_attn.Attn.name
COLUMNS = ("case", "family", "dtype", "head_dim", "causal", "seqlen", "peer", "median_ms",
           "spread", "rate", "unit", "limit", "share", "ratio_to_libattn", "error", "note")
UNITS = {"FLOP": ("TFLOP/s", 1e12), "B": ("GB/s", 1e9)}
LIMIT = "limit" # among the names of a round
MOST_CALLS = 100 # of a sample
MOST_WORDS = 200 # letters of a note


def remark(text):
    print(f"gpu: {text}", file=sys.stderr, flush=True)


def read_options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/libattn.so", help="default: build/libattn.so")
    parser.add_argument("--case", action="append", help="glob of cases (repeatable; default: all)")
    parser.add_argument("--peer", action="append", help="glob of peers (repeatable; default: all)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.004, help="shortest sample")
    parser.add_argument("--minutes", type=float, default=4,
                        help="no case begins after so many (default: 4)")
    parser.add_argument("--results", help="name of the files to write, without .csv and so on")
    parser.add_argument("--checks", help="file of results of checks, to be kept with the others")
    parser.add_argument("--command", default="", help="what to tell as the command")
    parser.add_argument("--emulated", action="store_true",
                        help="the library has a device of its own: a tiny case of each kind on it")
    return parser.parse_args()


def matches(name, globs):
    return not globs or any(fnmatch.fnmatch(name, g) for g in globs)


def find_torch():
    """The module for it, or None."""
    try:
        import gpu_torch
        return gpu_torch
    except (ImportError, OSError) as error:
        remark(f"without PyTorch, and so without peers: {error}")
        return None


class Bench:
    def __init__(self, options):
        self.options, self.stop = options, time.monotonic() + 60 * options.minutes
        self.device = gpu_driver.Device(options.library if options.emulated
                                        else gpu_driver.DRIVER)
        self.torch = find_torch()
        names = [options.library] if options.emulated else None
        self.limits = Limits(self.device, self.torch, names)
        peers = [gpu_attn.Attn(gpu_attn.load(options.library), self.device)]
        peers += self.torch.peers() if self.torch else []
        self.peers = [p for p in peers if p.name == OURS or matches(p.name, options.peer)]
        self.start, self.end = gpu_driver.Event(self.device), gpu_driver.Event(self.device)
        flush = gpu_cases.LARGE // (1024 if options.emulated else 1)
        self.flush = gpu_driver.Memory(self.device, flush)

    # ---- One case -------------------------------------------------------------------------------

    def prepare(self, peer, batch, rows):
        """(job, its error, note), called once and compared; the job is None where it cannot be
        timed, and the note tells why."""
        try:
            job = peer.prepare(batch)
            job.calls[0]()
            self.device.wait()
            error = max(row.error(job.result()) for row in rows)
        except Absent as reason:
            return None, None, f"absent: {reason}"
        except Exception as error: # a peer's failure is its own
            words = " ".join(str(error).split())
            return None, None, f"absent: {type(error).__name__}: {words}"[:MOST_WORDS]
        if not error <= gpu_cases.TOLERANCE[batch.case.dtype]:
            return None, error, f"wrong: off by {error:.3g} of the row's size"
        return job, error, job.note

    def sample(self, turns, calls):
        """Milliseconds of one call."""
        self.flush.clear()
        self.start.record()
        for _ in range(calls):
            next(turns)()
        self.end.record()
        return self.end.since(self.start) / calls

    def measure(self, jobs):
        """{name: [ms of each round]}."""
        turns = {name: itertools.cycle(job.calls) for name, job in jobs.items()}
        calls = {}
        for name, turn in turns.items():
            ms = self.sample(turn, 2) # the first ones of their kind, which may be slow
            ms = min(ms, self.sample(turn, 2))
            calls[name] = min(max(round(1e3 * self.options.seconds / max(ms, 1e-6)), 1),
                              MOST_CALLS)
        times, names = {name: [] for name in jobs}, list(jobs)
        for n in range(self.options.rounds):
            turn = n % len(names)
            for name in names[turn:] + names[:turn]:
                times[name].append(self.sample(turns[name], calls[name]))
        return times

    def compare(self, case):
        """Rows of the results, one per peer."""
        batch = gpu_cases.Batch(self.device, case)
        rows = gpu_cases.rows(batch)
        found = {p.name: self.prepare(p, batch, rows) for p in self.peers}
        jobs = {name: job for name, (job, _, _) in found.items() if job}
        limit = self.limits.of(case, self.options.emulated)
        times = self.measure(jobs | ({LIMIT: limit[0]} if limit else {})) if jobs else {}
        return [self.row(case, name, error, note, times, limit)
                for name, (_, error, note) in found.items()]

    def row(self, case, name, error, note, times, limit):
        work, unit = case.work()
        unit, scale = UNITS[unit]
        row = dict.fromkeys(COLUMNS, "")
        row |= {"case": case.name, "family": case.family, "dtype": case.dtype,
                "head_dim": case.head_dim, "causal": int(case.causal), "seqlen": case.seqlen,
                "peer": name, "unit": unit, "note": note}
        if error is not None:
            row["error"] = f"{error:.3g}"
        if name not in times:
            return row
        ms = times[name]
        low, middle, high = statistics.quantiles(ms, n=4) if len(ms) > 1 else ms * 3
        row |= {"median_ms": f"{middle:.4f}", "spread": f"{(high - low) / middle:.3f}",
                "rate": f"{work / middle / scale * 1e3:.4g}"}
        if limit:
            row["limit"] = f"{limit[1] / statistics.median(times[LIMIT]) / scale * 1e3:.4g}"
            share = statistics.median(b / a for a, b in zip(ms, times[LIMIT]))
            row["share"] = f"{share * work / limit[1]:.3f}"
        if OURS in times:
            ratio = statistics.median(a / b for a, b in zip(ms, times[OURS]))
            row["ratio_to_libattn"] = f"{ratio:.3f}"
        return row

    # ---- All of them ----------------------------------------------------------------------------

    def run(self):
        """The rows of one case after another."""
        cases = gpu_cases.tiny_cases() if self.options.emulated else gpu_cases.cases()
        left = []
        for case in cases:
            if not matches(case.name, self.options.case):
                continue
            if time.monotonic() >= self.stop:
                left.append(case.name)
                continue
            try:
                yield self.compare(case)
            except gpu_driver.Failed as error: # such as no memory for its tensors
                remark(f"{case.name}: {error}")
                yield [self.row(case, OURS, None, f"absent: {error}", {}, None)]
        if left:
            remark(f"no time left for {len(left)} cases: {', '.join(left)}")

    def about(self):
        return {"gpu": self.device.name, "capability": self.device.capability,
                "driver": gpu_driver.driver_version(), "driver_cuda": self.device.cuda,
                "date": datetime.date.today().isoformat(), "command": self.options.command,
                "limits": self.limits.source,
                "versions": self.torch.versions() if self.torch else {}}


def print_table(rows, peers):
    names = [p.name for p in peers if p.name != OURS]
    ratios = {(r["case"], r["peer"]): r["ratio_to_libattn"] for r in rows}
    lines = [["case", "ms", "rate", "", "share", *names, "kernel"]]
    for r in rows:
        if r["peer"] == OURS:
            cells = [ratios.get((r["case"], name)) for name in names]
            lines.append([r["case"], r["median_ms"] or "-", r["rate"], r["unit"], r["share"],
                          *(f"{x}x" if x else "-" for x in cells), r["note"]])
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.rjust(w) if 0 < n < len(line) - 1 and n != 3 else cell.ljust(w)
                        for n, (cell, w) in enumerate(zip(line, widths))).rstrip())


def read_checks(path):
    """Lines of name, seconds and result, separated by tabs."""
    if not path:
        return []
    with open(path) as lines:
        return [dict(zip(("name", "seconds", "result"), line.rstrip("\n").split("\t")))
                for line in lines]


def replace(path, text):
    """So that whoever is stopped leaves the file as it was or as it becomes."""
    with open(path + ".part", "w") as file:
        file.write(text)
    os.replace(path + ".part", path)


def write_results(name, rows, about):
    table = io.StringIO()
    out = csv.DictWriter(table, COLUMNS, lineterminator="\n")
    out.writeheader()
    out.writerows(rows)
    replace(name + ".csv", table.getvalue())
    replace(name + ".json", json.dumps(about | {"rows": rows}, indent=1) + "\n")
    picture = gpu_plot.picture(rows, f"{about['gpu']}, {about['date']}")
    if picture:
        replace(name + ".svg", picture + "\n")


def main():
    options = read_options()
    try:
        bench = Bench(options)
    except gpu_driver.NoDevice as reason:
        print(f"no GPU: {reason}")
        sys.exit(gpu_driver.NO_GPU)
    except Absent as reason:
        sys.exit(f"gpu: {reason}")
    rows, checks = [], read_checks(options.checks)
    for found in bench.run():
        rows += found
        if options.results:
            write_results(options.results, rows, bench.about() | {"checks": checks})
    if not rows:
        sys.exit("gpu: nothing was measured")
    print_table(rows, bench.peers)
    missing = [r for r in rows if r["peer"] == OURS and not r["median_ms"]]
    for r in missing:
        remark(f"{r['case']}: {r['note']}")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
