# SPDX-License-Identifier: BSD-3-Clause
"""Lets PyTorch's ordinary wheel load for CPU work without the 2 GB of CUDA libraries it names.

cuda_stand_in.py TORCH_LIB_FOLDER FOLDER writes into FOLDER one small library that defines every
CUDA function that PyTorch refers to, and links to it by each library name that PyTorch asks for.
Every function answers "no device" (error 100) or an empty text, so PyTorch sees no GPU and its CPU
paths are what they always are. FOLDER goes to the front of LD_LIBRARY_PATH.
"""
import collections
import os
import re
import subprocess
import sys

FAMILY = re.compile(r"lib(cu|nv|nccl)")
FUNCTION = re.compile(r"(__)?(cu|nv|nccl)")
SYSTEM = re.compile(r"(GLIBC|GCC|CXXABI|GOMP)")
TEXT = re.compile(r"(GetErrorString|GetErrorName|GetStatusString|GetResultString)$")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needed(library):
    return re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-dW", library))


def undefined(library):
    """Pairs (function, version) of CUDA functions; the version is "" where there is none."""
    listing = output("nm", "-D", "--undefined-only", "--with-symbol-versions", library)
    for line in listing.splitlines():
        symbol, _, version = line.strip().split(" ")[-1].partition("@")
        if FUNCTION.match(symbol) and not SYSTEM.match(version):
            yield symbol, version


def main(torch_lib, folder):
    libraries = [os.path.join(torch_lib, name) for name in sorted(os.listdir(torch_lib))
                 if ".so" in name and name.startswith(("libtorch", "libc10", "libcaffe2"))]
    own = {os.path.basename(library) for library in libraries}
    names = {n for library in libraries for n in needed(library) if FAMILY.match(n)} - own
    versions = collections.defaultdict(set)
    for library in libraries:
        for symbol, version in undefined(library):
            versions[version].add(symbol)
    if not names:
        return
    os.makedirs(folder, exist_ok=True)
    base = os.path.join(folder, "stand_in")
    with open(base + ".c", "w") as source:
        for symbol in sorted(set().union(*versions.values())):
            kind, answer = ("const char *", '""') if TEXT.search(symbol) else ("long ", "100")
            source.write(f"{kind}{symbol}(void);\n{kind}{symbol}(void) {{ return {answer}; }}\n")
    with open(base + ".map", "w") as script:
        for version in sorted(v for v in versions if v):
            script.write(version + " { global: " + "; ".join(sorted(versions[version])) + "; };\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", base + ".so", base + ".c",
                    "-Wl,--version-script=" + base + ".map"], check=True)
    for name in names:
        link = os.path.join(folder, name)
        if not os.path.islink(link):
            os.symlink("stand_in.so", link)


if __name__ == "__main__":
    main(*sys.argv[1:])
