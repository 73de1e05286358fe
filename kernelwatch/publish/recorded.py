"""The results of a project as publishing reads them: each file once, then from the store (history/store.py).

What is read is cleaned by the rules of `cleaning`, which name everything that cannot be shown.
"""

import hashlib
import itertools
import json
import math
import os
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from asv.console import log

import kernelwatch
from kernelwatch.history import failures, records
from kernelwatch.history.failures import SuiteFailure
from kernelwatch.history.store import Damaged, Known, Store, digest, stamp
from kernelwatch.plan.renamed import NONE, Renamed
from kernelwatch.publish import cleaning, columns, plain
from kernelwatch.publish import record as site_record
from kernelwatch.publish.cleaning import ParamsOf, as_they_are
from kernelwatch.publish.columns import Columns, Numbers
from kernelwatch.publish.writer import as_text
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import read_regular

Params = tuple[str, ...]
EVERY = 500  # files between two notes on what was read


@dataclass(frozen=True, eq=False)
class Recorded:
    """A commit on a machine, in an environment of asv: a result file and its sidecar, as they are kept in the store.

    `path`: of the result file; `digest`: of both files; `head`: what is kept of them as JSON, without the numbers;
    `figures`: those of measurements whose spread is kept.
    """

    path: Path
    digest: str
    head: dict[str, Any] = field(repr=False)
    store: Store = field(repr=False)
    figures: tuple[str, ...]

    @property
    def commit(self) -> str:
        return str(self.head["commit"])

    @property
    def machine(self) -> str:
        return str(self.head["params"]["machine"])

    @property
    def environment(self) -> str:
        return str(self.head["env_name"])

    def load(self) -> tuple[Numbers, Columns | None]:
        """The values that are not exact, and the record; None if there is no sidecar."""
        head, content = self.store.get(str(self.path))
        numbers, count, record = np.frombuffer(content), head["values"], head.get("record")
        rest = numbers[count * (2 if head["spreads"] else 1) :]
        return numbers[:count], columns.unpacked(record, rest, self.figures, self.store) if record else None

    def spreads(self) -> Numbers | None:
        """The relative standard errors of the values that are not exact, from asv's statistics, if there are any."""
        if not self.head["spreads"]:
            return None
        head, content = self.store.get(str(self.path))
        return np.frombuffer(content)[head["values"] : 2 * head["values"]]

    def exact(self) -> Numbers:
        """The values of the exact series."""
        return self.store.decoded(self.head["exact"], np.frombuffer)

    def shape(self, exact: bool) -> "Shape":
        """Where the values of its exact series are, or those of the others."""
        return self.store.decoded(self.head["shapes"][0 if exact else 1], Shape)

    def snapshot(self) -> str:
        """The timed cells and the facts of their groups, as a data file."""
        return self.store.long(str(self.path))


class Shape:
    """Where the values of a file are that has these series. Many files have the same."""

    def __init__(self, text: bytes) -> None:
        self.series: dict[str, tuple[str | None, dict[Params, int]]] = {}  # name -> version, parameters -> place
        start = 0
        for name, version_of, params in json.loads(text):
            places = {each: start + at for at, each in enumerate(itertools.product(*params))}
            self.series[name] = version_of, places
            start += math.prod(map(len, params))  # a parameter may be there twice

    def place(self, name: str, params: Params) -> int:
        """The place of a value; -1 if there is none."""
        _, places = self.series.get(name, (None, {}))
        return places.get(params, -1)


class History:
    """The results of a folder; `recorded`: those that can be shown.

    `judged`: by series of asv, what is judged of it ("" if nothing is). Those of which the values themselves are judged
    (plain.JUDGED) have a spread from asv's statistics. `renamed`: the rungs whose earlier names stand for those of
    today; `params_of`: the parameters of asv's series by these.
    """

    def __init__(
        self, results: Path, store: Store, judged: dict[str, str], hashes: Collection[str] | None = None,
        renamed: Renamed = NONE, params_of: ParamsOf = as_they_are,
    ) -> None:  # fmt: skip
        self.store, self.judged, self._renamed, self._params_of = store, judged, renamed, params_of
        self.figures = tuple(sorted({*judged.values()} - {"", "exact", plain.JUDGED}))
        self.messages = [f"{each}: it is not shown: its machine.json is missing" for each in _unnamed(results)]
        self.recorded: list[Recorded] = []
        known = store.known()
        paths = []
        for path in _result_files(results):
            if (name := os.fsencode(path).decode(errors="replace")) == str(path):
                paths.append(path)
            else:
                self.messages.append(f"{name}: it is not shown: its name is not UTF-8")
        fresh = sum(self._refresh(path, known.get(str(path))) for path in paths)
        store.remove({*known} - {*map(str, paths)})
        store.commit()
        if fresh >= EVERY:
            log.info(f"{fresh} of {len(paths)} result files were read anew")
        for path in paths:
            recorded = Recorded(path, self._digests[path], store.get(str(path))[0], store, self.figures)
            self.messages += [f"{path}: {message}" for message in recorded.head["messages"]]
            if recorded.head["refused"] or (hashes is not None and recorded.commit not in hashes):
                continue
            if (machine := _machine(path.parent)) == recorded.machine:
                self.recorded.append(recorded)
            else:
                self.messages.append(f"{path}: it is not shown: its machine should be {machine}, as in machine.json")

    @cached_property
    def _digests(self) -> dict[Path, str]:
        return {}

    def _refresh(self, path: Path, known: Known | None) -> bool:
        """Bring the entry of a file up to date; whether it was read."""
        files = path, sidecar_of(path)
        now = stamp(*files)
        if known and known.stamp == now:
            self._digests[path] = known.digest
            return False
        content = self._digests[path] = digest(*files)
        if known and known.digest == content:
            self.store.touch(str(path), now)
            return False
        head, numbers, snapshot = self._read(path)
        self.store.put(str(path), Known(now, content), head, numbers.tobytes(), snapshot)
        return True

    def _read(self, path: Path) -> tuple[dict[str, Any], Numbers, str]:
        """What is kept of a result file and its sidecar: the head, the numbers, the snapshot (publish/record.py)."""
        messages: list[str] = []

        def is_exact(name: str) -> bool:
            return self.judged[name] == "exact"

        try:
            result = cleaning.checked_result(cleaning.read(path), messages, self._params_of)
            cleaning.need(isinstance(result["params"].get("machine"), str), "its machine", "a text")
        except cleaning.Refused as error:
            return {"refused": True, "messages": [f"it is not shown: {error}"]}, np.zeros(0), ""
        kept = [
            (name, dict(zip(result["result_columns"], values, strict=False)))
            for name, values in sorted(result["results"].items())
            if name in self.judged
        ]
        exact, others = (
            [value for name, entry in kept if is_exact(name) is own for value in _values(entry)]
            for own in (True, False)
        )
        spreads = [value for name, entry in kept if not is_exact(name) for value in self._spreads(name, entry)]
        shapes = [
            [
                [name, entry.get("version"), entry["params"]]
                for name, entry in kept
                if (self.judged[name] == "exact") is own
            ]
            for own in (True, False)
        ]
        sidecar, suites = sidecar_of(path), list[SuiteFailure]()
        record, rows, snapshot = dict[str, Any](), np.zeros(0), ""
        try:
            own = any(self.judged[name] not in ("", plain.JUDGED) for name, _ in kept)
            if own or os.path.lexists(sidecar):  # asv's own benchmarks have none
                record, rows, snapshot = self._read_sidecar(sidecar)
                suites = failures.read(read_regular(sidecar).decode("utf-8", "replace").splitlines())
                if damaged := records.damaged(sidecar):
                    messages.append(f"its sidecar is not shown as a whole: {damaged}")
        except (Damaged, UserError):
            raise
        except Exception as error:  # whatever the error, this file would end the whole publication
            messages.append(f"its sidecar is not shown: {type(error).__name__}: {error}")
            record, rows, snapshot = {}, np.zeros(0), ""
        head = {
            "refused": False,
            "messages": list(dict.fromkeys(messages)),
            "commit": result["commit_hash"],
            "date": result["date"],
            "params": result["params"],
            "env_vars": result["env_vars"],
            "env_name": result["env_name"],
            "values": len(others),
            "spreads": any(spreads),
            "shapes": [self.store.part(json.dumps(each).encode()) for each in shapes],
            "exact": self.store.part(np.array(exact, float).tobytes()),
            "record": record,
            "dropped": sorted(result["results"].keys() - self.judged.keys()),
            "failed": {name: places for name, value in kept if (places := _nulls(value))},
            "suites": [asdict(failure) for failure in suites],
        }
        return head, np.concatenate([np.array([*others, *(spreads if any(spreads) else ())], float), rows]), snapshot

    def _spreads(self, name: str, entry: dict[str, Any]) -> list[float]:
        """The spread of each value of a series; 0 if it is not known or comes from the processes in the sidecar."""
        values = list(_values(entry))
        return plain.spreads(entry, values) if self.judged[name] == plain.JUDGED else [0.0] * len(values)

    def _read_sidecar(self, path: Path) -> tuple[dict[str, Any], Numbers, str]:
        """The record as `columns.packed` has it, and the snapshot."""
        record = records.read(path, self._renamed)
        snapshot = site_record.snapshot(record)
        head, rows = columns.packed(record, snapshot["cells"], self.figures, self.store)
        return head, rows.ravel(), as_text(snapshot)

    def newest(self, count: int) -> set[Path]:
        """The result files of the newest commits."""
        dates = {each.commit: each.head["date"] for each in self.recorded}
        commits = set(sorted(dates, key=lambda commit: dates[commit], reverse=True)[:count])
        return {each.path for each in self.recorded if each.commit in commits}


def _values(entry: dict[str, Any]) -> Iterator[float]:
    """The values of a series, one for each combination of its parameters; NaN where there is none."""
    count = math.prod(map(len, entry["params"]))
    values = [*(entry["result"] or []), *[None] * count][:count]
    return (math.nan if value is None else float(value) for value in values)


def _nulls(entry: dict[str, Any]) -> list[int]:
    """The places of a series' values that failed, which asv writes as null."""
    count = math.prod(map(len, entry["params"]))
    values = entry["result"]
    return list(range(count)) if values is None else [at for at, value in enumerate(values[:count]) if value is None]


def _result_files(results: Path) -> Iterator[Path]:
    """The files that asv reads as results, in the folders of machines that it can read."""
    for folder, _, names in sorted(os.walk(results)):
        if "machine.json" in names and _machine(Path(folder)):
            own = (name for name in names if name.endswith(".json") and name not in ("machine.json", "benchmarks.json"))
            yield from (Path(folder, name) for name in sorted(own))


def _unnamed(results: Path) -> list[Path]:
    """The folders with results that do not say of which machine."""
    folders = sorted(path for path in results.glob("*/") if not os.path.exists(path / "machine.json"))
    return [folder for folder in folders if any(folder.glob("*-*.json"))]


@cache
def _machine(folder: Path) -> str:
    """The name of the machine whose results are in a folder; "" if its machine.json cannot be read."""
    try:
        return str(cleaning.machine(cleaning.read(folder / "machine.json"))["machine"])
    except cleaning.Refused:
        return ""


def sidecar_of(path: Path) -> Path:
    """The sidecar beside a result file."""
    return path.with_suffix(".facts.jsonl")


def open_store(results: Path, judged: dict[str, str], renamed: Renamed) -> Store:
    what = [_code(), judged, *([renamed.was] if renamed.was else ())]
    return Store.of(results, hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest())


@cache
def _code() -> str:
    """A digest of this engine, which reads the files, and of what it computes with."""
    engine = Path(kernelwatch.__file__).parent
    whole = hashlib.sha256("".join(version(name) for name in ("asv", "numpy")).encode())
    for path in sorted(engine.rglob("*.py")):
        whole.update(path.read_bytes())
    return whole.hexdigest()
