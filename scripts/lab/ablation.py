"""What each test of the detector costs and gains: the detector without it, on the simulated histories."""

import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from kernelwatch.detect import growth, levels, steps
from kernelwatch.detect.testing import EVIDENCE, GRADUAL, STEP
from lab.detectors import own
from lab.histories import LENGTH, NONE, OTHERS, SINGLES, Runs, noises

NEAR = 2  # a flag within so many commits of a step belongs to it
SOON = 2  # commits after a step's own within which it is found soon
EVERY = 5  # in a history without any step, the commits that are published between two looks
SIZES = ("1 %", "2 %")
SLOW = "slow growth"
ALL = "none: all tests"  # what is left out
MEASURED = ("as recorded", "noisy past, 0.3 %", "noisy past, 0.5 %")  # noise of the GPU; the others are worse
# Parts of a test: the reason, and what is patched to leave it out.
PARTS: dict[str, tuple[str, Any, str, Any]] = {
    "drift alone": ("a level wanders", levels.Window, "_drift", lambda *_: 0.0),
    "1e6 to 1 for often seen points": ("else 1e8 to 1, and a cell of two levels is late", levels, "OFTEN", EVIDENCE),
    "20 to 1 for points never seen": ("else 1e8 to 1, and young histories are late", levels, "YOUNG", EVIDENCE),
}
REASONS = {
    **{test.name: test.why for test in GRADUAL},
    **{test.name: test.why for test in STEP},
    **{name: why for name, (why, *_) in PARTS.items()},
}
LEFT_OUT = (ALL, *REASONS)


@contextmanager
def without(name: str) -> Iterator[None]:
    """Leave out a test, or a part of one."""
    with ExitStack() as stack:
        if name in PARTS:
            stack.enter_context(patch.object(*PARTS[name][1:]))
        stack.enter_context(patch.object(levels, "STEP", tuple(test for test in STEP if test.name != name)))
        stack.enter_context(patch.object(growth, "GRADUAL", tuple(test for test in GRADUAL if test.name != name)))
        if name == "floor":  # where most series end
            stack.enter_context(patch.object(steps, "_within_floor", lambda _: False))
        yield


def ablated(job: tuple[str, str, dict[str, Runs], int, int]) -> dict[str, Any]:
    """Run this project's detector without a test on histories with one kind of noise. `job`: the test, the noise, the
    recorded cells, the number of histories of each kind, the seed."""
    name, noise, cells, histories, seed = job
    figures = {"commits": 0, "false": 0, "steps": 0, "found": 0, "soon": 0, "growths": 0, "grown": 0}
    with without(name):
        for change in (NONE, *SIZES, SLOW):
            rng = np.random.default_rng([seed, 6, zlib.crc32(noise.encode()), zlib.crc32(change.encode())])
            for _ in range(histories):
                series = noises(cells)[noise](rng)
                level, truth = (SINGLES | OTHERS)[change](rng) if change != NONE else (np.ones(LENGTH), [])
                series = series._replace(values=series.values * level)
                if change == NONE:
                    looks = range(EVERY, LENGTH + 1, EVERY)
                    figures["commits"] += LENGTH
                    figures["false"] += len({flag for end in looks for flag in own(series.until(end))})
                    continue
                (first, last), *_ = truth
                hit = any(first - NEAR <= flag <= last + NEAR for flag in own(series))
                if change == SLOW:
                    figures["growths"] += 1
                    figures["grown"] += hit
                    continue
                figures["steps"] += 1
                figures["found"] += hit
                figures["soon"] += any(abs(flag - first) <= NEAR for flag in own(series.until(first + SOON + 1)))
    return {"without": name, "noise": noise, "figures": figures}


def total(results: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, int]]]:
    """The sums by what was left out, for the noise of the GPU and for worse."""
    sums: dict[str, dict[str, dict[str, int]]] = {}
    for result in results:
        kind = "measured" if result["noise"] in MEASURED else "worse"
        own_sums = sums.setdefault(result["without"], {}).setdefault(kind, {})
        for figure, count in result["figures"].items():
            own_sums[figure] = own_sums.get(figure, 0) + count
    return sums
