"""The series of exact figures, such as registers and counted accesses, for the pages."""

import itertools
import math
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelwatch.publish.columns import Columns, Numbers
from kernelwatch.publish.recorded import Params, Recorded, Shape
from kernelwatch.publish.series import cell_of

EXACT = re.compile(r" (counted|sm_\w+)$")  # the end of the keys of cells that are not timed


class Exact:
    """The values of the series of exact figures. `rows`: benchmark, op, rung and the other parameters, such as
    "float32 sm_90", of each value; `params`: those that asv knows it by."""

    def __init__(self, rows: list[tuple[str, str, str, str]], params: list[Params]) -> None:
        self.rows, self.params = rows, params
        self._found: dict[tuple[int, ...], Any] = {}

    @classmethod
    def of(cls, folder: Path, benchmarks: Any) -> "Exact":
        """Those of the suites in a folder."""
        exact = cls([], [])
        for name, op, places in _exact_series(folder, benchmarks):
            for params, (rung, where) in zip(itertools.product(*benchmarks[name]["params"]), places, strict=True):
                if rung:
                    exact.rows.append((name, op, rung, where))
                    exact.params.append(params)
        return exact

    @cached_property
    def ops(self) -> dict[str, NDArray[np.int64]]:
        names = dict.fromkeys(op for _, op, _, _ in self.rows)
        return {name: np.flatnonzero([op == name for _, op, _, _ in self.rows]) for name in names}

    def load(self, recorded: Recorded) -> tuple[Columns, NDArray[np.bool_], Numbers]:
        """The record of a commit, which must have one; for each row, whether the commit has its series, and the
        value."""
        shapes = [recorded.shape(exact) for exact in (False, True)]
        key = tuple(map(id, shapes))
        if key not in self._found:
            self._found[key] = self._places(shapes)
        has, (others, judged) = self._found[key]
        values, record = recorded.load()
        assert record is not None
        exact = np.append(recorded.exact(), math.nan)[judged]
        return record, has, np.where(np.isnan(exact), np.append(values, math.nan)[others], exact)

    def _places(self, shapes: list[Shape]) -> tuple[Any, list[Any]]:
        named = list(zip((name for name, _, _, _ in self.rows), self.params, strict=True))
        has = np.array([any(name in shape.series for shape in shapes) for name, _ in named], bool)
        return has, [np.array([shape.place(*row) for row in named], np.int64) for shape in shapes]


def _exact_series(folder: Path, benchmarks: Any) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """The series of exact figures: name, op, and for each of its values the rung and its other parameters."""
    for name, benchmark in benchmarks.items():
        if "judged" not in benchmark or benchmark["param_names"][:1] != ["rung"]:  # no suite of this engine
            continue
        places, op = [], ""
        for params in itertools.product(*benchmark["params"]):
            key = cell_of(folder, name, params)[0]
            rung, *others = (param.strip("'") for param in params)
            places.append((rung, " ".join(others)) if EXACT.search(key) else ("", ""))
            op = op or key.partition("/")[0]
        if any(rung for rung, _ in places):
            yield name, op, places
