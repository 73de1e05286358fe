"""The judged series of all results, grouped as asv groups them into graphs, with what the sidecars record of each cell.

It uses private names of asv: _GraphDataFilter and its _get_start_revision.
"""

import importlib
import itertools
import json
import math
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from asv.graph import Graph
from asv.plugins.regressions import _GraphDataFilter
from numpy.typing import NDArray

from kernelwatch.detect.events import JudgedSeries
from kernelwatch.detect.point import Points
from kernelwatch.detect.results import Results, sorted_text
from kernelwatch.detect.texts import Table, Texts
from kernelwatch.history.records import rung_and_type
from kernelwatch.identity import TIMED
from kernelwatch.plan import project as projects
from kernelwatch.plan.renamed import Renamed
from kernelwatch.publish import plain
from kernelwatch.publish.benchmarks import direction
from kernelwatch.publish.cleaning import ParamsOf, as_they_are
from kernelwatch.publish.columns import Columns, Numbers
from kernelwatch.publish.lines import Line
from kernelwatch.publish.recorded import History, Params, Recorded
from kernelwatch.run.outcome import conditions, may_lack

Ints = NDArray[np.int64]
MAKE_NO_CODE = ("numpy", "nvidia-cublas", "nvidia-cublas-cu12")


@dataclass(frozen=True)
class Row:
    """A judged series. `first`: the first revision that counts."""

    benchmark: str
    params: Params
    judged: str
    cell: str
    canary: str
    first: int


class Tables:
    """The texts of all series, each once."""

    def __init__(self) -> None:
        self.commits, self.known, self.told, self.identities, self.limits = (Table() for _ in range(5))
        self.codes: dict[tuple[object, ...], Any] = {}  # arrays that are the same for many entries
        self._rows: dict[tuple[Row, ...], int] = {}

    def number(self, rows: Sequence[Row]) -> int:
        """A number for these rows, which stands for them in the keys of `kept`."""
        return self._rows.setdefault(tuple(rows), len(self._rows))

    def kept(self, make: Callable[[], Any], *key: object) -> Any:
        """An array that is made once for a key."""
        if key not in self.codes:
            self.codes[key] = make()
        return self.codes[key]


class Matrix:
    """What is recorded of some series of one machine, a row for each commit: all timed series, or all exact ones."""

    def __init__(self, rows: Sequence[Row], count: int, tables: Tables, exact: bool) -> None:
        self.rows, self.tables, self.exact = rows, tables, exact
        self.number = tables.number(rows)
        shape = count, len(rows)
        self.values = np.full(shape, math.nan)
        self.spreads = np.zeros((0 if exact else count, len(rows)))
        self.canaries = np.full(self.spreads.shape, math.nan)
        self.known, self.identities, self.limits = (
            np.full(shape, table.empty, np.int32) for table in (tables.known, tables.identities, tables.limits)
        )

    def put(
        self,
        at: int,
        places: NDArray[np.int64],
        values: Numbers,
        record: Columns | None,
        spreads: Numbers | None = None,
    ) -> None:
        """Set the row of a commit. `places`: of each series' value in `values`, -1 if it has none; `spreads`: of the
        values, if they do not follow from the record."""
        self.values[at] = np.append(values, math.nan)[places]
        if spreads is not None and not self.exact:
            self.spreads[at] = np.append(spreads, 0.0)[places]
        if record is None:
            return
        shared, kept = record.shared, self.tables.kept
        cells: Ints = kept(lambda: self._cells(record), "cells", self.number, shared["cells"])
        has = cells >= 0
        self.known[at] = kept(
            lambda: self._known(record, cells), "known", self.number, shared["cells"], shared["conditions"]
        )
        binaries = shared["binaries"] if self.exact else shared["identities"]
        self.identities[at] = kept(
            lambda: self._identities(record, cells), "identities", self.number, shared["cells"], binaries
        )
        if record.limits:
            self.limits[at, has] = self._limits(record)[cells[has]]
        if not self.exact:
            for names, table in ((_judged(self.rows), self.spreads), (_canaries(self.rows), self.canaries)):
                for name, own in names.items():
                    mine = own[has[own]]
                    if len(mine):  # asv's own benchmarks have no cell
                        table[at, mine] = record.numbers[name][cells[mine]]
            self.spreads[at, np.isnan(self.spreads[at])] = 0.0  # of a figure that the processes do not have

    def _cells(self, record: Columns) -> Ints:
        """The index of each series' cell in a record; -1 if it has none."""
        places = {key: at for at, key in enumerate(record.layout.keys)}
        return np.array([places.get(row.cell, -1) if row.cell else -1 for row in self.rows], np.int64)

    def _known(self, record: Columns, cells: Ints) -> NDArray[np.int32]:
        """The codes of the conditions."""
        kept = _of_exact if self.exact else dict
        texts = {group: json.dumps(kept(known)) for group, known in record.conditions.items()}
        none, groups = json.dumps(kept(conditions({}))), record.layout.groups
        found = (texts.get(groups[cell], none) if cell >= 0 else "" for cell in cells.tolist())
        return Texts.of(found, self.tables.known).codes

    def _identities(self, record: Columns, cells: Ints) -> NDArray[np.int32]:
        """The codes of the identities. A count is of the source, in which the compiler may merge accesses: the binary
        says whether it counts."""
        if self.exact:
            own = (record.binaries.get(rung_and_type(row.cell), "") for row in self.rows)
            found = [text if cell >= 0 else "" for text, cell in zip(own, cells.tolist(), strict=True)]
        else:
            found = [record.identities[cell] if cell >= 0 else "" for cell in cells.tolist()]
        return Texts.of(found, self.tables.identities).codes

    def _limits(self, record: Columns) -> NDArray[np.int32]:
        codes = np.full(len(record.layout.keys), self.tables.limits.empty, np.int32)
        for at, limits in record.limits.items():
            codes[at] = self.tables.limits.code("\n".join(limits))
        return codes

    def widen(self) -> None:
        """Have no spread of asv's statistics be less than how far neighboring commits differ."""
        for at, row in enumerate(self.rows):
            if row.judged == plain.JUDGED:
                self.spreads[:, at] = plain.widened(self.values[:, at], self.spreads[:, at])

    def results(self, revisions: Ints, commits: NDArray[np.int64], hashes: Texts) -> list[Results | None]:
        """The results of each series, by commit; None for a series without any."""
        for name in ("values", "spreads", "canaries", "known", "identities", "limits"):
            setattr(self, name, np.ascontiguousarray(getattr(self, name).T))
        told = np.array([self.tables.told.code(_told(text)) for text in self.tables.known.texts], np.int32)
        names = {name for text in self.tables.known.texts if text for name in json.loads(text)}
        lacking = sorted(filter(may_lack, names))
        zeros, none = np.zeros(len(commits)), np.full(len(commits), math.nan)
        found: list[Results | None] = []
        for at, row in enumerate(self.rows):
            valid = np.flatnonzero(np.isfinite(self.values[at]) & (revisions >= row.first))
            if not len(valid):
                found.append(None)
                continue
            own = slice(None) if len(valid) == len(commits) else valid  # a slice copies nothing
            known = self.known[at][own]
            points = Points(
                commits[own],
                self.values[at][own],
                (zeros if self.exact else self.spreads[at])[own],
                Texts(self.identities[at][own], self.tables.identities),
                Texts(told[known], self.tables.told),
                (none if self.exact else self.canaries[at])[own],
                zeros[own],
            )
            limits = Texts(self.limits[at][own], self.tables.limits)
            found.append(Results(points, hashes[own], Texts(known, self.tables.known), limits).filled(lacking))
        return found


def _told(known: str) -> str:
    return sorted_text(json.loads(known)) if known else ""


def _judged(rows: Sequence[Row]) -> dict[str, Ints]:
    """The rows by the figure that is judged."""
    return {name: np.flatnonzero([row.judged == name for row in rows]) for name in {row.judged for row in rows}}


def _canaries(rows: Sequence[Row]) -> dict[str, Ints]:
    """The rows by their canary."""
    names = {row.canary for row in rows} - {""}
    return {name: np.flatnonzero([row.canary == name for row in rows]) for name in names}


def series_of(conf: Any, repo: Any, benchmarks: Any, history: History, lines: Sequence[Line]) -> list[JudgedSeries]:
    """The judged series along these lines of commits, in a fixed order."""
    names = dict.fromkeys(
        itertools.chain.from_iterable([*each.head["params"], *_environment(each)] for each in history.recorded)
    )
    revisions = repo.get_revisions({recorded.commit for recorded in history.recorded})
    start = _GraphDataFilter(conf, repo, revisions)._get_start_revision
    tables, found = Tables(), []
    for line in lines:
        known = line.positions
        places: dict[tuple[Any, ...], list[Recorded]] = {}
        for recorded in history.recorded:
            if recorded.commit in known:
                params = {**dict.fromkeys(names), **recorded.head["params"], **_environment(recorded)}
                place = tuple((params | {"branch": line.name}).items())
                places.setdefault((place, recorded.environment), []).append(recorded)
        for (place, _), commits in places.items():
            if line.own is not None and line.own.isdisjoint(recorded.commit for recorded in commits):
                continue  # all of it is told of a configured branch
            rows = list(_rows(conf, benchmarks, history.judged, dict(place), start, revisions))
            own = _of_place(rows, benchmarks, dict(place), commits, known, revisions, tables)
            found += [replace(series, own=line.own) for series in own]
    return found


def _of_exact(known: Mapping[str, Any]) -> dict[str, Any]:
    """The conditions on which an exact figure depends: emulator, compilers and what generates code. The harness's
    version and the libraries in MAKE_NO_CODE concern timings only."""
    packages = known.get("packages")
    if isinstance(packages, dict):
        packages = {name: version for name, version in packages.items() if name not in MAKE_NO_CODE}
    return {**known, TIMED.fact: None, "packages": packages}


def _environment(recorded: Recorded) -> dict[str, Any]:
    return {f"env-{name}": value for name, value in recorded.head["env_vars"].items()}


def _rows(
    conf: Any, benchmarks: Any, judged: dict[str, str], place: dict[str, Any], start: Any, revisions: dict[str, int]
) -> Iterator[Row]:
    """Every judged series that benchmarks.json knows and the configuration does not exclude."""
    oldest = min(revisions.values(), default=0)
    for name, benchmark in sorted(benchmarks.items()):
        if not judged.get(name):
            continue
        graph = Graph(name, place)
        for params in itertools.product(*benchmark["params"]):
            text = f"{name}({', '.join(params)})" if params else name
            first = start(graph, benchmark, text) if conf.regressions_first_commits else oldest
            if first is not None:
                is_plain = judged[name] == plain.JUDGED
                cell, canary = ("", "") if is_plain else cell_of(Path(conf.benchmark_dir), name, params)
                yield Row(name, params, judged[name], cell, canary, first)


def _of_place(
    rows: list[Row], benchmarks: Any, place: dict[str, Any], recorded: Sequence[Recorded],
    known: dict[str, int], revisions: dict[str, int], tables: Tables,
) -> list[JudgedSeries]:  # fmt: skip
    """The series of one machine and environment."""
    recorded = sorted(recorded, key=lambda each: known[each.commit])
    parts = [[row for row in rows if (row.judged == "exact") == exact] for exact in (False, True)]
    matrices = [Matrix(part, len(recorded), tables, exact) for part, exact in zip(parts, (False, True), strict=True)]
    for at, each in enumerate(recorded):
        values, record = each.load()
        spreads = each.spreads()
        for matrix, own in zip(matrices, (values, each.exact()), strict=True):
            shape = each.shape(matrix.exact)
            where = tables.kept(lambda: _where(shape, matrix.rows, benchmarks), "where", matrix.number, shape)  # noqa: B023
            matrix.put(at, where, own, record, spreads)
    newest = max(revisions.values(), default=0)  # a commit that no branch or tag has is none of the past
    for matrix in matrices:
        matrix.widen()
    of_revision = np.array([revisions.get(each.commit, newest) for each in recorded])
    commits = np.array([known[each.commit] for each in recorded])
    hashes = Texts.of((each.commit for each in recorded), tables.commits)
    return [
        JudgedSeries(
            row.benchmark,
            dict(zip(benchmarks[row.benchmark]["param_names"], row.params, strict=True)),
            place,
            direction(benchmarks[row.benchmark]),
            matrix.exact,
            results,
            row.cell if row.judged == "seconds" else "",
            shows=row.cell,
        )
        for matrix in matrices
        for row, results in zip(matrix.rows, matrix.results(of_revision, commits, hashes), strict=True)
        if results is not None
    ]


def _where(shape: Any, rows: Sequence[Row], benchmarks: Any) -> Ints:
    """Where each series' value is among those of a file. A file of another version of a benchmark has none."""
    found = []
    for row in rows:
        version, places = shape.series.get(row.benchmark, (None, {}))
        fits = version is None or version == benchmarks[row.benchmark].get("version")
        found.append(places.get(row.params, -1) if fits else -1)
    return np.array(found, np.int64)


def positions(repo: Any, branch: str) -> dict[str, int]:
    """The commits of a branch, hash -> position, counted from the oldest."""
    return {commit: at for at, commit in enumerate(reversed(repo.get_branch_commits(branch)))}


@cache
def _modules(folder: Path) -> set[str]:
    """The names of the checkout's modules of suites."""
    return {info.name for info in pkgutil.iter_modules(projects.suites(folder).__path__)}


def _suite(folder: Path, benchmark: str) -> type | None:
    """The checkout's class of a series; None if it has none."""
    if not projects.is_described(folder.absolute()):
        return None
    package = projects.suites(folder)
    module, _, suite = benchmark.rpartition(".")[0].partition(".")
    if module.startswith("_") or module not in _modules(folder):
        return None
    return getattr(importlib.import_module(f"{package.__name__}.{module}"), suite, None)


def params_by_now(folder: Path, renamed: Renamed) -> ParamsOf:
    """What gives the parameters of a series with the names that rungs have today."""

    def today(benchmark: str, params: list[list[str]]) -> list[list[str]]:
        suite: Any = _suite(folder, benchmark)
        names = list(getattr(suite, "param_names", ()))
        if "rung" not in names or len(names) != len(params):
            return params
        rungs = params[at := names.index("rung")]
        plain_names = [text.strip("'") for text in rungs]
        now = [name.partition("/")[2] for name in renamed.by_now({f"{suite.op}/{each}": 0 for each in plain_names})]
        fresh = [text.replace(old, new) for text, old, new in zip(rungs, plain_names, now, strict=True)]
        return [*params[:at], fresh, *params[at + 1 :]]

    return today if renamed.was else as_they_are


@cache
def cell_of(folder: Path, benchmark: str, params: tuple[str, ...]) -> tuple[str, str]:
    """The key in the sidecar of the cell that a series shows, and the cell's canary; "" for both if the series shows no
    cell of the checkout's suites."""
    try:
        instance: Any = _suite(folder, benchmark)()  # type: ignore[misc]
        canary = "compute" if instance.problem.computation.flops else "memory"
        return str(instance.cell(*(param.strip("'") for param in params))), canary
    except (AttributeError, TypeError, ValueError, LookupError):
        return "", ""  # a suite of another checkout, or one without cells
