"""Measure asv's benchmarks of two commits in turns: of a project without a description, whose launches nobody knows.

Each side is an environment that asv makes, with a commit installed. A turn is one of asv's rounds on each side: asv's
own process of a benchmark, with its setup, parameters, number, repeat and timeout. Both sides of a benchmark are
measured one right after the other. The suite is the checkout's for both sides, as in asv. What a benchmark launches is
not known, so all are measured; only once, if both processes use the same of their environments, and load the same code
onto the GPU (comparison/used.py).
"""

import copy
import errno
import hashlib
import itertools
import json
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from asv import environment, runner, util
from asv.benchmarks import Benchmarks

from kernelwatch.comparison import used
from kernelwatch.comparison.linking import NARROW, link_of
from kernelwatch.comparison.paired import FROM_OUTSIDE, KILLED, LOOKS, Judged, Pairs, Side, Turns
from kernelwatch.history.links import ENVIRONMENT, NOT_ASKED, UNDIRECTED, Kind, Link, Session
from kernelwatch.plan.cells import Cell
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import write_whole
from kernelwatch.timing.record import Measurement

LOWER = ("time", "memory", "peakmemory")  # types of benchmarks whose values are better if they are lower
TYPES = (*LOWER, "track")  # those that have values
PLACES = ("versus-1", "versus-2")  # of both sides' environments, whose paths must not differ in length
ROOM_BYTES = 2**20  # to install any commit takes more
MODULES = (".py", ".pyc", ".so")  # suffixes of what Python imports
SKIPPED = "asv skips it (its setup raises NotImplementedError, or its value is NaN)"


@dataclass(frozen=True)
class Benchmark(Cell):
    """A benchmark of asv's with one combination of its parameters: a cell whose `op` is the name of the benchmark, and
    whose `type` is the parameters, such as "('small', 2)".

    `higher_is_better`: None if neither direction is better; `rounds`: how many processes asv would start.
    """

    unit: str = "seconds"
    higher_is_better: bool | None = False
    rounds: int = 1

    @property
    def name(self) -> str:
        return self.op

    @property
    def key(self) -> str:
        return self.op + self.type


@dataclass
class Installed:
    """A side: an environment of asv with a commit.

    `entries`: by key, the benchmark as asv discovered it there, and the index of its parameters. `broken`: why there
    are none. `left`: as `entries`, those that were not chosen. `discovered`: asv's entries of all benchmarks.
    """

    side: Side
    environment: Any
    entries: Mapping[str, tuple[dict[str, Any], int]] = field(default_factory=dict)
    broken: str = ""
    discovered: Sequence[dict[str, Any]] = ()
    spawner: Any = None
    left: Mapping[str, tuple[dict[str, Any], int]] = field(default_factory=dict)
    caches: dict[str, str] = field(default_factory=dict)  # folder of what a setup_cache made, by asv's key of it
    failed_caches: dict[str, str] = field(default_factory=dict)  # why there is none
    numbers: dict[str, int] = field(default_factory=dict)  # of calls in a sample, the same on both sides
    of_caches: dict[str, set[Path]] = field(default_factory=dict)  # the files that making these opened
    of_imports: set[Path] = field(default_factory=set)  # those beside modules that importing all suites opened

    @cached_property
    def used(self) -> used.Environment:
        return used.Environment(Path(self.environment._path).resolve())

    def seen(self, cell: Benchmark) -> tuple[tuple[str, float, str], set[Path] | None]:
        """`measure`, and the files of the environment that it opened, relative to that; None if nobody sees them."""
        if self.environment is None or os.environ.get("PYTHONPYCACHEPREFIX"):  # modules compiled elsewhere are not seen
            return self.measure(cell), None
        benchmark, _ = self.entries[cell.key]
        cache = benchmark.get("setup_cache_key")
        if cache is not None and cache not in self.of_caches:
            with self.used.watched(self.of_caches.setdefault(cache, set())):
                self._prepare(benchmark, cache)
        files = self.of_imports | self.of_caches.get(cache or "", set())
        with self.used.watched(files):
            reply = self.measure(cell)
        return reply, {path.relative_to(self.used.folder) for path in files}

    def on_gpu(self, cell: Benchmark) -> str | None:
        """What a process of a benchmark, which times nothing, loads onto a GPU, as `used.on_gpu` tells it."""
        benchmark, index = self.entries[cell.key]
        with tempfile.TemporaryDirectory() as folder:
            asked = copy.copy(self.environment)
            asked.run = lambda arguments, **more: self.environment.run([used.SCRIPT, folder, *arguments], **more)
            runner.run_benchmark(
                benchmark,
                runner.Spawner(asked, self.spawner.benchmark_dir),
                profile=False,
                selected_idx=[index],
                extra_params={"number": 1, "repeat": 1, "warmup_time": 0},
                cwd=self.caches.get(benchmark.get("setup_cache_key") or ""),
            )
            return used.on_gpu(Path(folder))

    def measure(self, cell: Benchmark) -> tuple[str, float, str]:
        """Run asv's process of a benchmark once: "ok" and its value, or "na" or "failed" with the reason."""
        benchmark, index = self.entries[cell.key]
        cache = benchmark.get("setup_cache_key")
        if cache is not None and (why := self._prepare(benchmark, cache)):
            return "failed", math.nan, why
        reply = runner.run_benchmark(
            benchmark,
            self.spawner,
            profile=False,
            selected_idx=[index],
            extra_params={"number": self.numbers[cell.key]} if cell.key in self.numbers else {},
            cwd=self.caches.get(cache) if cache else None,
        )
        value, samples = reply.result[index], reply.samples[index]
        if samples:
            self.numbers[cell.key] = reply.number[index]
            value = statistics.median(samples)
        if value is None:
            if reply.errcode == -signal.SIGKILL:
                return "failed", math.nan, KILLED
            if reply.errcode == 0:
                return "failed", math.nan, "it returned None, where a number is expected"
            return "failed", math.nan, last_line(reply.stderr) or f"its process ended with exit code {reply.errcode}"
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > sys.float_info.max:
            return "failed", math.nan, f"its result is no finite number: {value!r:.80}"
        return ("na", math.nan, SKIPPED) if math.isnan(value) else ("ok", float(value), "")

    def _prepare(self, benchmark: dict[str, Any], cache: str) -> str:
        """Have asv run a setup_cache, once for all turns; why that failed, "" if it did not."""
        if cache not in self.caches and cache not in self.failed_caches:
            timeout_s = benchmark.get("setup_cache_timeout") or benchmark["timeout"]
            folder, said = self.spawner.create_setup_cache(benchmark["name"], timeout_s, json.dumps({}))
            if folder is None and f"asv: setup_cache failed (exit status {-signal.SIGKILL})" in said:
                self.failed_caches[cache] = f"{KILLED} in setup_cache"
            elif folder is None:
                lines = [line for line in said.splitlines() if not line.startswith("asv: ")]
                self.failed_caches[cache] = f"setup_cache failed: {last_line(chr(10).join(lines))}"
            else:
                self.caches[cache] = folder
        return self.failed_caches.get(cache, "")

    def close(self) -> None:
        """Remove what setup_cache made."""
        while self.caches:
            util.long_path_rmtree(self.caches.popitem()[1], True)


def last_line(text: str) -> str:
    """The last line of what a program said that says something: of an error of Python its name and message."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


class BenchmarkTurns(Turns):
    """Turns of the benchmarks of two commits. Arguments as in `Turns`."""

    stops = False  # a benchmark that fails says nothing of the others

    def __init__(
        self,
        base: Installed,
        head: Installed,
        cells: Iterable[Benchmark],
        within: float | None = None,
        narrow: Mapping[str, float] | None = None,
    ) -> None:
        self.installed = (base, head)
        self.cells = {cell.key: cell for cell in cells}
        self.equal: dict[str, list[float]] = {key: [] for key in self.cells}  # values without a ratio, by turn
        pairs = {key: Pairs(cell, left_out=self._absent(key)) for key, cell in self.cells.items()}
        super().__init__((base.side, head.side), pairs, {}, within, narrow)

    def _absent(self, key: str) -> Judged | None:
        """The verdict on a benchmark that one side lacks."""
        for installed, word in zip(self.installed, ("new", "gone"), strict=True):
            if key not in installed.entries:
                return Judged(word, f"{installed.side.name} has no such benchmark")
        return None

    def turn(self, tick: Callable[[str], None] = lambda text: None) -> None:
        order = (0, 1) if self.turns % 2 == 0 else (1, 0)
        for key in [key for key in self.judged if self.open(key)]:
            tick(f"turn {self.turns + 1}: {key}")
            if self.turns:
                replies = {at: self.installed[at].measure(self.cells[key]) for at in order}
            else:
                seen = {at: self.installed[at].seen(self.cells[key]) for at in order}
                replies = {at: reply for at, (reply, _) in seen.items()}
                replies |= self._with_one_number(key)
            self._note(key, replies[0], replies[1])
            if not self.turns:
                self._compare(key, seen[0][1], seen[1][1])
        self.turns += 1

    def _with_one_number(self, key: str) -> dict[int, tuple[str, float, str]]:
        """Give both sides the smaller one of the numbers of calls in a sample that they chose, and measure the other
        side anew; its reply by side. If a call depends on those before it, as on a list that grows, more calls take
        another time each; and the larger number could take the slower side beyond its timeout."""
        numbers = [installed.numbers.get(key) for installed in self.installed]
        if None in numbers or numbers[0] == numbers[1]:
            return {}
        fewest = min(filter(None, numbers))
        at = 1 - numbers.index(fewest)
        self.installed[at].numbers[key] = fewest
        return {at: self.installed[at].measure(self.cells[key])}

    def open(self, key: str) -> bool:
        return super().open(key) and not self.pairs[key].is_alike

    def _compare(self, key: str, before: set[Path] | None, after: set[Path] | None) -> None:
        """Note if a benchmark does the same on both sides, as far as they were seen. What one side opened counts on
        both: the other one may have found in a cache what this one compiled of it."""
        if before is None or after is None or self.pairs[key].left_out:
            return
        try:
            files = [installed.used.identity(before | after) for installed in self.installed]
        except OSError:  # a file that only the process could read
            return
        if files[0] != files[1]:
            return
        codes: list[str | None] = ["", ""]
        if used.has_driver():
            codes = [installed.on_gpu(self.cells[key]) for installed in self.installed]
        if codes[0] is not None and codes[0] == codes[1]:
            self.pairs[key].launches = (f"{files[0]}{codes[0]}",) * 2
            if self.equal[key]:
                self.pairs[key].left_out = self._unchanged(key)

    def _note(self, key: str, before: tuple[str, float, str], after: tuple[str, float, str]) -> None:
        pairs, names = self.pairs[key], [side.name for side in self.sides]
        (old, old_value, old_why), (new, new_value, new_why) = before, after
        if old == new == "ok":
            self._note_values(key, old_value, new_value)
        elif new == "failed":
            word = "cannot tell" if old == "failed" and not (pairs.measurements or self.equal[key]) else "failed"
            pairs.left_out = Judged(word, f"it fails on both sides: {new_why}" if word == "cannot tell" else new_why)
        elif old == new and not (pairs.measurements or self.equal[key]):
            pairs.left_out = Judged("n/a", new_why)
        elif pairs.measurements or self.equal[key]:
            pairs.left_out = Judged(
                "cannot tell", f"{names[0]}: {old_why}" if new == "ok" else f"{names[1]}: {new_why}"
            )
        elif new == "ok":
            mended = "cannot tell" if old_why.startswith(FROM_OUTSIDE) else "repaired"
            pairs.left_out = Judged(mended if old == "failed" else "new", f"{names[0]}: {old_why}")
            pairs.alone_s = new_value
        else:
            pairs.left_out = Judged("gone", f"{names[1]}: {new_why}")

    def _note_values(self, key: str, old: float, new: float) -> None:
        """Values that are equal and have no ratio, such as 0, take as many turns as others before they are unchanged:
        those of one turn say nothing of what differs from turn to turn."""
        pairs, equal = self.pairs[key], self.equal[key]
        if old > 0 and new > 0 and not equal:
            pairs.measurements[self.turns] = _measurement(old), _measurement(new)
        elif old == new <= 0 and not pairs.measurements:
            equal.append(new)
            if len(equal) >= max(LOOKS[0], self.cells[key].rounds):
                pairs.left_out = self._unchanged(key)
        elif pairs.measurements or equal:
            least = min(old, new, *equal)
            pairs.left_out = Judged("cannot tell", f"some of its values, such as {least:g}, have no ratio")
        else:
            pairs.left_out = Judged("cannot tell", f"its value changed from {old:g} to {new:g}, which is no ratio")

    def _unchanged(self, key: str) -> Judged:
        return Judged("no change", f"its value is {self.equal[key][-1]:g} on both sides")

    def verdict(self, key: str) -> Judged:
        judged = super().verdict(key)
        if judged is self.pairs[key].settled or judged.word not in ("worse", "better"):
            return judged
        higher_is_better = self.cells[key].higher_is_better
        if higher_is_better is None:
            return replace(judged, word="changed")
        return replace(judged, word="better" if (judged.word == "worse") is higher_is_better else "worse")

    def _is_enough(self, key: str, judged: Judged) -> bool:
        if self.turns < self.cells[key].rounds:
            return False
        return super()._is_enough(key, judged) or (self.narrow is None and judged.word == "changed")

    def close(self) -> None:
        for installed in self.installed:
            installed.close()


def _measurement(value: float) -> Measurement:
    return {"process": 0, "seconds": value}  # whatever its unit: a ratio has none


def cells_of(*sides: Installed) -> list[Benchmark]:
    """The benchmarks that some side has, in asv's order."""
    cells: dict[str, Benchmark] = {}
    for side in sides:
        for key, (benchmark, _) in side.entries.items():
            cells.setdefault(
                key,
                Benchmark(
                    op=benchmark["name"],
                    rung="",
                    type=key.removeprefix(benchmark["name"]),
                    shape=(),
                    cache="",
                    device="cpu",
                    unit=str(benchmark.get("unit", "unit")),
                    higher_is_better=benchmark.get("higher_is_better", False if benchmark["type"] in LOWER else None),
                    rounds=int(benchmark.get("rounds", 1)),
                ),
            )
    return [cells[key] for key in sorted(cells)]


@dataclass
class Place:
    """Both sides' environments of one entry of asv's matrix."""

    name: str
    environments: tuple[Any, Any]

    def install(self, conf: Any, repo: Any, names: Sequence[str], commits: Sequence[str], only: str) -> list[Installed]:
        """Install two commits, and discover their benchmarks. `only`: a regular expression, as asv's --bench."""
        environments = list(self.environments)
        known = [each.installed_commit_hash for each in environments]
        if known[0] == commits[1] or known[1] == commits[0]:  # such as the commit before, in a range
            environments.reverse()
        sides = zip(names, commits, environments, strict=True)
        # The tree of a side is a commit here: asv keeps its files.
        return [_installed(conf, repo, Side(name, commit), each, only) for name, commit, each in sides]


def places_of(conf: Any, spec: Sequence[str]) -> list[Place]:
    """The environments of asv's matrix, twice. `spec`: as asv's --environment. Raises: UserError."""
    matrices = []
    for place in PLACES:
        own = copy.copy(conf)
        own.env_dir = os.path.join(conf.env_dir, place)
        try:
            matrices.append(list(environment.get_environments(own, list(spec))))
        except RuntimeError as error:  # of a configuration that names no kind of environment
            how = 'set environment_type in asv.conf.json, such as to "virtualenv"; asv wants it with -E, too'
            raise UserError(f"asv makes no environment here ({error}): {how}") from None
    for each in matrices[0]:
        if not each.can_install_project():
            raise UserError(
                f"the environment {each.name} holds one version of the project; two commits need environments into "
                "which asv installs them: set environment_type in asv.conf.json, or give --environment virtualenv"
            )
    if not matrices[0]:
        raise UserError("asv has no environment here; see environment_type and pythons in asv.conf.json")
    return [Place(first.name, (first, second)) for first, second in zip(*matrices, strict=True)]


def _installed(conf: Any, repo: Any, side: Side, place: Any, only: str) -> Installed:
    """Install a commit. What fails there is a fact of the commit; only that no environment can be made is an error.
    Raises: UserError."""
    try:
        place.create()
    except (util.UserError, util.ProcessError) as error:
        raise UserError(f"asv cannot make the environment {place.name}: {error_text(error)}") from None
    try:
        place.install_project(conf, repo, side.tree)
    except (util.UserError, util.ProcessError) as error:
        if why := _no_room(Path(place._path), error):
            raise UserError(f"asv cannot install {side.name} into {place._path}: {why}") from None
        return Installed(side, place, broken=f"it cannot be installed: {error_text(error)}")
    Benchmarks.check_tree(conf.benchmark_dir)
    files: set[Path] = set()
    seen = used.Environment(Path(place._path).resolve()).watched(files)
    with tempfile.TemporaryDirectory() as folder, seen:
        told = Path(folder, "discovered.json")
        suites = os.path.abspath(conf.benchmark_dir)
        said, _, code = place.run(
            [runner.BENCHMARK_RUN_SCRIPT, "discover", suites, str(told)],
            cwd=folder,
            env={**os.environ, **place.env_vars},
            dots=False,
            display_error=False,
            return_stderr=True,
            redirect_stderr=True,
            valid_return_codes=None,
        )
        if code:
            return Installed(side, place, broken=f"its benchmarks cannot be imported: {last_line(said)}")
        try:
            discovered = json.loads(told.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # cut short, or not written
            return Installed(side, place, broken="its benchmarks end the process that imports them, with exit code 0")
    every = _entries(Benchmarks(conf, discovered), place)
    entries = _entries(Benchmarks(conf, discovered, regex=only), place)
    left = {key: entry for key, entry in every.items() if key not in entries}
    spawner = runner.Spawner(place, conf.benchmark_dir)
    # What a module compiles when it is first imported: the processes of benchmarks find it in a cache.
    beside = {path for path in files if path.suffix not in MODULES}
    return Installed(side, place, entries, "", discovered, spawner, left, of_imports=beside)


def _entries(chosen: Any, place: Any) -> dict[str, tuple[dict[str, Any], int]]:
    """Benchmarks of asv's that have values, as `Installed.entries`."""
    entries: dict[str, tuple[dict[str, Any], int]] = {}
    for name, benchmark in chosen.items():
        if benchmark["type"] not in TYPES:
            continue
        if benchmark.get("timeout") is None:
            benchmark["timeout"] = place._default_benchmark_timeout
        indices = chosen.benchmark_selection[name]
        combinations = list(itertools.product(*benchmark["params"])) if benchmark["params"] else [()]
        for index in range(len(combinations)) if indices is None else indices:
            entries[name + (f"({', '.join(combinations[index])})" if combinations[index] else "")] = benchmark, index
    return entries


def _said(error: Exception) -> list[str]:
    """What a program of asv's said, and asv itself."""
    return [getattr(error, "stderr", None) or "", getattr(error, "stdout", None) or "", str(error)]


def error_text(error: Exception) -> str:
    """The line of an error that says why. git gives advice below it."""
    fatal = [line for text in _said(error) for line in text.splitlines() if line.startswith("fatal: ")]
    return next((line for line in [*fatal[:1], *map(last_line, _said(error))] if line), type(error).__name__)


def _no_room(folder: Path, error: Exception) -> str:
    """Why an installation may have failed that says nothing of the commit, "" if nothing is known: no room in the
    environment or for temporary files. What failed may have removed its files since, and what it said need not tell."""
    told = "\n".join(_said(error))
    if why := next((why for why in map(os.strerror, (errno.ENOSPC, errno.EDQUOT)) if why in told), ""):
        return why
    for place in (folder, Path(tempfile.gettempdir())):
        try:
            with tempfile.TemporaryFile(dir=place) as file:
                file.write(bytes(ROOM_BYTES))
        except OSError as refused:
            return f"{refused.strerror}: {place}"
    return ""


@contextmanager
def errors() -> Iterator[None]:
    """Errors of asv as those of this engine. asv makes one of its own of an interrupt while a benchmark runs. Raises:
    UserError."""
    try:
        yield
    except util.UserError as error:
        if str(error) == "Interrupted.":
            raise KeyboardInterrupt from None
        raise UserError(str(error)) from None


@dataclass
class Report:
    """The comparison of two commits' benchmarks, in each environment of the matrix. It is filled step by step.

    `broken`: by environment, why a side has no benchmarks.
    """

    names: tuple[str, str]
    what: str
    notes: list[str] = field(default_factory=list)
    turns: dict[str, BenchmarkTurns] = field(default_factory=dict)
    broken: dict[str, tuple[str, str]] = field(default_factory=dict)
    whole: bool = False  # the comparison was not interrupted

    def judged(self) -> Iterator[tuple[str, Pairs, Judged]]:
        """The benchmarks with their verdicts, by environment."""
        for place, turns in self.turns.items():
            for pairs, judged in turns.verdicts():
                yield place, pairs, judged

    def named(self, place: str, key: str) -> str:
        """The name of a benchmark; with its environment, if there are several."""
        return f"{key} [{place}]" if len({*self.turns, *self.broken}) > 1 else key

    @property
    def failures(self) -> dict[str, str]:
        """What fails on the second side, with the reasons."""
        broken = {self.named(place, self.names[1]): why for place, (_, why) in self.broken.items() if why}
        failed = {
            self.named(place, pairs.cell.key): judged.why
            for place, pairs, judged in self.judged()
            if judged.word == "failed"
        }
        return broken | failed

    def count(self, word: str) -> int:
        return sum(judged.word == word for *_, judged in self.judged())

    @property
    def undecided(self) -> list[str]:
        """Why more cannot be said."""
        reasons = [f"{self.named(place, self.names[0])}: {why}" for place, (why, _) in self.broken.items() if why]
        if unknown := self.count("cannot tell"):
            reasons.append(benchmarks(unknown))
        if gone := self.count("gone"):
            reasons.append(f"{benchmarks(gone)} of {self.names[0]} gone")
        if not (reasons or self.failures) and all(judged.word == "n/a" for *_, judged in self.judged()):
            reasons.append("nothing could be compared")
        return reasons

    @property
    def code(self) -> int:
        """The exit code, as of a comparison of kernels."""
        if self.failures:
            return 2
        if self.count("worse"):
            return 1
        return 2 if self.undecided else 0

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        base, head = self.names
        parts = [f"{head} failed: {benchmarks(len(self.failures))}"] if self.count("failed") else []
        parts += [f"{head} failed: {why}" for _, why in self.broken.values() if why]
        parts += [
            f"{head} is {word} than {base}: {benchmarks(self.count(word))}"
            for word in ("worse", "better")
            if self.count(word)
        ]
        parts += [
            f"{word}: {benchmarks(self.count(word))}" for word in ("changed", "repaired", "new") if self.count(word)
        ]
        if self.undecided:
            parts.append(f"cannot tell: {'; '.join(self.undecided)}")
        if not self.whole:
            parts.append("interrupted before all was decided")
        return "; ".join(parts) or f"no change: {benchmarks(self.count('no change'))}"


def benchmarks(count: int) -> str:
    """A number of benchmarks."""
    return "1 benchmark" if count == 1 else f"{count} benchmarks"


def compare(
    report: Report, conf: Any, repo: Any, places: Sequence[Place], commits: Sequence[str], only: str, budget_s: float,
    within: float | None, tell: Callable[[str], None],
) -> None:  # fmt: skip
    """Fill a report. `budget_s`: for all environments of the matrix together; the first look is always taken in each.
    Raises: UserError."""
    with errors():
        for place in places:
            tell(f"{place.name}: installing both commits ...")
            base, head = place.install(conf, repo, report.names, commits, only)
            if base.broken or head.broken:
                report.broken[place.name] = base.broken, head.broken
                continue
            cells = cells_of(base, head)
            if not cells:
                raise UserError(f"no benchmark matches {only!r}" if only else "asv finds no benchmark with a value")
            turns = report.turns[place.name] = BenchmarkTurns(base, head, cells, within)
            turns.tests *= len(places)  # intervals hold for all environments together
            turns.run(budget_s / len(places), tell)


def link(
    conf: Any, repo: Any, place: Place, before: str, after: str, only: str, cells: Collection[str], budget_s: float,
    conditions: Mapping[str, Any], kind: Kind = "step", tell: Callable[[str], None] = lambda _: None,
) -> Session:  # fmt: skip
    """Measure the links of the benchmarks of two commits in one environment of the matrix. Those without a better
    direction have none.

    `cells`: keys of the benchmarks that are measured, all if there are none. Raises: UserError.
    """
    began = time.monotonic()
    tell(f"{place.name}: installing {before[:8]} and {after[:8]} ...")
    base, head = place.install(conf, repo, (before[:8], after[:8]), (before, after), only)
    found = cells_of(base, head)
    _list(conf, head.discovered or base.discovered)
    asked = [cell for cell in found if cell.higher_is_better is not None and (not cells or cell.key in cells)]
    turns = BenchmarkTurns(base, head, asked, narrow=NARROW)
    unjudged = {base.side.name: base.broken} if base.broken else {}
    unjudged |= {head.side.name: f"failed: {head.broken}"} if head.broken else {}
    links, told, same = [], dict[str, list[str]]({"new": [], "gone": []}), 0
    if not unjudged:
        turns.run(budget_s, tell)
    for pairs, judged in turns.verdicts() if not unjudged else ():
        key = pairs.cell.key
        if judged.word in told:
            told[judged.word].append(key)
        elif judged.word == "no change" and (pairs.left_out or pairs.same):  # 0 on both sides has no ratio
            same += 1
        elif pairs.left_out and judged.word != "n/a":
            unjudged[key] = f"{judged.word}: {judged.why}"
        elif found_link := link_of(pairs):
            links.append(_as_rate(found_link) if turns.cells[key].higher_is_better else found_link)
    listed: dict[str, str] = {}
    if kind == "step":
        left = cells_of(*(replace(each, entries=each.left) for each in (base, head)))
        listed = dict.fromkeys(sorted({*cells, *(cell.key for cell in (*found, *left))}), suite(conf))
        beyond = {cell.key for cell in (*found, *left)} - {cell.key for cell in asked}
        unjudged |= {key: f"it was {NOT_ASKED}" for key in sorted(beyond)}
        unjudged |= {cell.key: UNDIRECTED for cell in (*found, *left) if cell.higher_is_better is None}
    return Session(
        kind,
        before,
        after,
        datetime.now(UTC).isoformat(timespec="seconds"),
        round(time.monotonic() - began, 1),
        {**conditions, ENVIRONMENT: place.name, "harness": f"asv_runner {version('asv_runner')}"},
        same,
        0,
        tuple(links),
        tuple(told["new"]),
        tuple(told["gone"]),
        unjudged,
        described=listed,
    )


def suite(conf: Any) -> str:
    """A hash of the files of the suite in the checkout, without what asv makes."""
    folder, whole = Path(conf.benchmark_dir).absolute(), hashlib.sha256()
    made = [Path(each).absolute() for each in (conf.env_dir, conf.results_dir, conf.html_dir)]
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and not any(map(path.is_relative_to, made)):
            whole.update(f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:16]


def discover(conf: Any, repo: Any, place: Place, commit: str, tell: Callable[[str], None]) -> list[str]:
    """Write the list of a commit's benchmarks, if nothing was measured that would tell them; their keys. Raises:
    UserError."""
    tell(f"{place.name}: installing {commit[:8]} ...")
    installed = _installed(conf, repo, Side(commit[:8], commit), place.environments[1], "")
    if installed.broken:
        raise UserError(f"asv finds no benchmarks in {commit[:8]}: {installed.broken}")
    _list(conf, installed.discovered)
    return [cell.key for cell in cells_of(installed)]


def _list(conf: Any, discovered: Sequence[dict[str, Any]]) -> None:
    """Add benchmarks to asv's list, which `asv publish` needs: it knows no other ones. Those that it has stay as they
    are, since asv shows no results of another version of a benchmark. It is written as a whole: asv's own writer leaves
    half of it on a full disk, and publishes nothing any more. Raises: UserError, OSError."""
    path = Path(Benchmarks.get_benchmark_file_path(conf.results_dir))
    known = util.load_json(str(path), api_version=Benchmarks.api_version) if path.exists() else {}
    fresh = {each["name"]: each for each in discovered if each["name"] not in known}
    if path.exists() and not fresh:
        return
    own = copy.copy(conf)
    with tempfile.TemporaryDirectory() as own.results_dir:
        Benchmarks(own, [*known.values(), *fresh.values()]).save()
        text = Path(Benchmarks.get_benchmark_file_path(own.results_dir)).read_text(encoding="utf-8")
    write_whole(path, text)


def _as_rate(link: Link) -> Link:
    return replace(link, log=-link.log, logs=tuple(-each for each in link.logs), rate=True)
