# SPDX-License-Identifier: BSD-3-Clause
"""Times libattn beside other CPU attention, on the same arrays in one process.

CSV on standard output: case,dtype,threads,peer,median_ms,ratio_to_libattn,note. The ratio is the
peer's time over libattn's, taken within each round, the median over the rounds: above 1, libattn
is faster. A peer that cannot serve a case has a row without numbers; its note tells why. At the
end a table of the ratios on standard error.

Each round runs every peer once, in an order that rotates, with a pause before each so that the
threads of the one before have gone to sleep. A sample is an untimed call, then as many calls as
fill --seconds; calls go round copies of the tensors, so that caches are cold. Tensors are
[T, H, D] for all; ONNX Runtime's decode has its own copy, in its cache's layout. Packed batches
are one call to libattn, one call per sequence to the others.
"""
import argparse
import csv
import fnmatch
import itertools
import os
import statistics
import subprocess
import sys
import time

import numpy as np

import shapes
from peer import Absent

COLUMNS = ("case", "dtype", "threads", "peer", "median_ms", "ratio_to_libattn", "note")
OURS = "libattn"
# Largest difference from libattn's result: absolute, and as a share of the largest output.
TOLERANCE = {"f32": (1e-5, 0), "f16": (1e-5, 2**-9), "bf16": (1e-5, 2**-6)}


def remark(text):
    print(f"peers: {text}", file=sys.stderr, flush=True)


def read_options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder of libattn.so (default: build)")
    parser.add_argument("--case", action="append", help="glob of cases (repeatable; default: all)")
    parser.add_argument("--dtype", action="append", choices=("f32", "bf16", "f16"),
                        help="repeatable; default: f32 and bf16")
    parser.add_argument("--peer", action="append", help="glob of peers (repeatable; default: all)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.05, help="shortest sample")
    parser.add_argument("--pause", type=float, default=0.03, help="seconds before each sample")
    parser.add_argument("--spin", action="store_true",
                        help="let ONNX Runtime's idle threads spin (wants a longer --pause)")
    return parser.parse_args()


def matches(name, globs):
    return not globs or any(fnmatch.fnmatch(name, g) for g in globs)


def set_up_blas():
    """As attnbench does: one BLAS thread within ours, AVX-512 kernels wherever they can run. Before
    libattn's BLAS is loaded, so that it reads them."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with open("/proc/cpuinfo") as info:
        flags = next((line.split() for line in info if line.startswith("flags")), [])
    if {"avx512f", "avx512dq", "avx512bw", "avx512vl"} <= set(flags):
        kernels = os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")
        if kernels == "Haswell":
            remark("OPENBLAS_CORETYPE=Haswell: not the best kernels for this machine")


def check_names(build):
    """The shapes here have to be attnbench's, but for those of single features."""
    bench = os.path.join(build, "bench", "attnbench")
    names = subprocess.run([bench, "--list"], check=True, capture_output=True, text=True).stdout
    unknown = {case.name for case in shapes.cases()} - set(names.split())
    if unknown:
        sys.exit("peers: attnbench --list does not name " + ", ".join(sorted(unknown)))


def make_peers(options):
    """PyTorch first: its OpenMP is then the one that libattn uses as well, one set of threads."""
    import peer_torch
    import peer_onnx
    import peer_attn
    import binding
    library = binding.load(os.path.join(options.build, "libattn.so"))
    peers = [peer_attn.Attn(library, "cpu"), peer_attn.Attn(library, "eager"), peer_torch.Torch(),
             peer_onnx.MultiHead(options.spin), peer_onnx.GroupQuery(options.spin)]
    return [p for p in peers if p.name == OURS or matches(p.name, options.peer)]


def prepare(peer, case, dtype, sets, threads):
    """The job, called once; or None and why not."""
    try:
        job = peer.prepare(case, dtype, sets, threads)
        job.calls[0]()
        return job, job.note
    except Absent as reason:
        return None, str(reason)
    except Exception as error: # a peer's failure is its own
        return None, f"{type(error).__name__}: {' '.join(str(error).split())}"


def fault(job, ours, dtype):
    """What is wrong with a job's result, measured by ours; empty if nothing."""
    absolute, relative = TOLERANCE[dtype]
    theirs = job.result()
    if theirs.shape != ours.shape:
        return f"wrong: its result has the shape {theirs.shape}"
    worst = float(np.abs(theirs - ours).max())
    limit = absolute + relative * float(np.abs(ours).max())
    return "" if worst <= limit else f"wrong: off by {worst:.3g}, allowed {limit:.3g}"


def sample(turns, seconds):
    """Milliseconds of one call. turns: endless, the calls in turn."""
    next(turns)()
    calls, start = 0, time.perf_counter()
    while True:
        next(turns)()
        calls += 1
        spent = time.perf_counter() - start
        if spent >= seconds:
            return 1e3 * spent / calls


def measure(jobs, options):
    """{peer: [ms of each round]}."""
    turns = {name: itertools.cycle(job.calls) for name, job in jobs.items()}
    times = {name: [] for name in jobs}
    names = list(jobs)
    for n in range(options.rounds):
        turn = n % len(names)
        for name in names[turn:] + names[:turn]:
            time.sleep(options.pause)
            times[name].append(sample(turns[name], options.seconds))
    return times


def compare(case, dtype, peers, options):
    """Rows of the CSV, one per peer."""
    sets = shapes.tensors(case, dtype)
    jobs, notes = {}, {}
    for peer in peers:
        job, notes[peer.name] = prepare(peer, case, dtype, sets, options.threads)
        if job:
            jobs[peer.name] = job
    if OURS not in jobs:
        remark(f"{case.name} {dtype}: {OURS}: {notes[OURS]}")
        return []
    ours = jobs[OURS].result()
    for name, job in list(jobs.items()):
        wrong = fault(job, ours, dtype)
        if wrong:
            notes[name] = wrong
            del jobs[name]
    times = measure(jobs, options)
    rows = []
    for peer in peers:
        row = [case.name, dtype, options.threads, peer.name, "", "", notes[peer.name]]
        if peer.name in times:
            row[4] = f"{statistics.median(times[peer.name]):.4f}"
            ratios = [a / b for a, b in zip(times[peer.name], times[OURS])]
            row[5] = f"{statistics.median(ratios):.3f}"
        else:
            row[6] = "absent: " + row[6]
        rows.append(row)
    return rows


def print_table(rows, peers):
    names = [p.name for p in peers]
    cells = {(r[0], r[1], r[3]): f"{r[5]}x" if r[5] else "-" for r in rows}
    ms = {(r[0], r[1]): r[4] for r in rows if r[3] == OURS}
    head = ["case", "type", f"{OURS} ms", *names[1:]]
    lines = [head] + [[*key, ms[key], *(cells[*key, n] for n in names[1:])] for key in ms]
    widths = [max(len(line[n]) for line in lines) for n in range(len(head))]
    for line in lines:
        print("  ".join(cell.ljust(w) if n < 2 else cell.rjust(w)
                        for n, (cell, w) in enumerate(zip(line, widths))), file=sys.stderr)


def main():
    options = read_options()
    set_up_blas()
    check_names(options.build)
    peers = make_peers(options)
    out, rows = csv.writer(sys.stdout, lineterminator="\n"), []
    out.writerow(COLUMNS)
    for case in shapes.cases():
        if not matches(case.name, options.case):
            continue
        for dtype in options.dtype or ("f32", "bf16"):
            found = compare(case, dtype, peers, options)
            out.writerows(found)
            sys.stdout.flush()
            rows += found
    if not rows:
        sys.exit("peers: nothing was measured")
    print_table(rows, peers)


if __name__ == "__main__":
    main()
