# SPDX-License-Identifier: BSD-3-Clause
"""What each peer's file offers: a class with a name and prepare().

prepare(case, dtype, sets, threads) returns a Job, or raises Absent with the reason. A job owns its
outputs, made beforehand where the peer allows it; every set has its own.
"""
import dataclasses
from typing import Callable


class Absent(Exception):
    """This peer does not serve this case, or is not here at all."""


@dataclasses.dataclass
class Job:
    calls: list              # one callable per set, each a whole attention over the case
    result: Callable         # () -> what the first set's last call gave, f32 [Tq, Hq, D]
    note: str = ""           # how the peer serves the case
