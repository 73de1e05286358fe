"""asv plugin: record results in a way that suits GPUs. A stable machine identity, a sidecar of facts, whole files.

asv's machine is identified by GPU, CPU, architecture and OS family. (asv's defaults, host name, kernel release and
memory size, change by themselves on cloud machines and would split the history.) Everything that does change (driver,
clocks, temperature, versions) goes into the sidecar, <results>/<machine>/<commit>-<env>.facts.jsonl.
"""

import atexit
import json
import tempfile
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from asv import machine, results, util
from asv.console import log

from kernelwatch.asv.failing import failed_suites, note_failures
from kernelwatch.asv.machine_names import described
from kernelwatch.asv.patches import replace
from kernelwatch.history import records
from kernelwatch.history.failures import suite_of
from kernelwatch.run import checkpoint, outcome
from kernelwatch.run.group import lost
from kernelwatch.run.progress import tell
from kernelwatch.system.files import remove, write_whole
from kernelwatch.system.options import Options, hand_on
from kernelwatch.timing import nvml
from kernelwatch.timing.record import Facts

LOGS = "failed"  # the folder, beside what is kept of interrupted runs, for what failed suites said


@cache
def _machine() -> dict[str, str]:
    return described()


_load_registered = machine.MachineCollection.load


def _load(machine_name: str, _path: str | None = None) -> Any:
    """A registered machine. This machine need not be registered, so asv asks no questions."""
    try:
        return _load_registered(machine_name, _path=_path)
    except util.UserError:
        if machine_name == _machine()["machine"]:
            return dict(_machine())
        raise


_register = machine.MachineCollection.save.__func__


def _save_registered(cls: Any, machine_name: str, machine_info: Any, _path: str | None = None) -> None:
    """asv's file of machines in the user's home. A home that may not be written stops no run."""
    try:
        _register(cls, machine_name, machine_info, _path)
    except OSError as error:
        log.warning(f"this machine is not registered: {error}")


def _write_json(path: str, data: Any, api_version: int | None = None, compact: bool = False) -> None:
    """asv.util.write_json, but atomic: the original truncates the file first, so a full disk destroys a good file."""
    if api_version is not None:
        data = {**data, "version": api_version}
    if Path(path).name == "benchmarks.json":
        write_whole(path, by_line(data))
        return
    layout: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 4, "sort_keys": True}
    write_whole(path, json.dumps(data, **layout) + ("" if compact else "\n"))


def by_line(benchmarks: dict[str, Any]) -> str:
    """asv's benchmarks.json with a line for each benchmark, and the same last line always: so git may keep the lines of
    both sides (merge=union) when two machines have recorded other benchmarks. Of a name that is there twice, JSON takes
    the last."""
    names = sorted(benchmarks, key=lambda name: (name == "version", name))
    lines = (f"{json.dumps(name)}: {json.dumps(benchmarks[name], sort_keys=True)}" for name in names)
    return "{\n" + ",\n".join(lines) + "\n}\n"


class DeviceLost(util.UserError):  # type: ignore[misc]  # asv has no types
    """A run of asv ends, since the device on which it measures has gone; the message says why."""


_save_results = results.Results.save


def _save(self: Any, result_dir: str) -> None:
    """Save the facts that the suites left, then the results. In the other order an interruption could lose the facts
    for good: a commit that has results is not measured again."""
    options = Options.here()
    folder = Path(options.facts)
    fresh = sorted(folder.glob("*.jsonl"))
    counts: dict[str, int] = {}  # state -> number of cells
    reasons: set[str] = set()  # why cells failed
    for path in fresh:
        for group in outcome.read(path.read_text(encoding="utf-8").splitlines()):
            _log_conditions(group.name, group.facts)
            for cell_outcome in group.outcomes.values():
                counts[cell_outcome.state] = counts.get(cell_outcome.state, 0) + 1
                if cell_outcome.state == "failed":
                    reasons.add(cell_outcome.reason)
    sidecar = Path(result_dir, self._filename).with_suffix(".facts.jsonl")
    merge_facts(sidecar, folder)
    failures = failed_suites(self, reasons, Path(options.kept).with_name(LOGS) if options.kept else None)
    note_failures(sidecar, set(map(suite_of, self.errcode)), failures)
    _save_results(self, result_dir)
    for path in fresh:  # its groups are saved now, so its checkpoint is no longer needed
        kept = f"{checkpoint.stem(self.commit_hash, self.env_name)}{path.name}"
        remove(Path(options.kept, kept))
    why = lost(options)
    more = {"lost": why} if why else {}
    tell(options, commit=self.commit_hash, counts=counts, suites=[asdict(failure) for failure in failures], **more)
    if why:  # other commits would fail as well, in place of what is known of them
        raise DeviceLost(why)


def _log_conditions(group: str, facts: Facts) -> None:
    """Log what a reader of asv's output should know about how a group was measured."""
    if facts.get("resumed"):
        log.info(f"{group}: {facts['resumed']} of its processes measured before an interruption")
    if why := nvml.disturbed(facts.get("others")):
        log.warning(f"{group}: {why}: its figures may be disturbed")


def merge_facts(sidecar: Path, folder: Path) -> None:
    """Move the groups in `folder` into a sidecar, where they replace older records of the same groups."""
    fresh = sorted(folder.glob("*.jsonl"))
    if not fresh:
        return
    lines = [line for path in fresh for line in path.read_text(encoding="utf-8").splitlines()]
    old = sidecar.read_text(encoding="utf-8", errors="replace") if sidecar.is_file() else ""
    write_whole(sidecar, records.merged(old, "\n".join(lines)))
    for path in fresh:
        path.unlink()


def setup() -> None:
    """Called by asv when it loads the plugin."""
    folder = tempfile.TemporaryDirectory(prefix="kernelwatch-facts-")
    atexit.register(folder.cleanup)
    hand_on(facts=folder.name)
    named = classmethod(lambda cls: cls.hardcoded_machine_name or _machine()["machine"])
    replace("asv.machine:Machine.get_unique_machine_name", named)
    replace("asv.machine:MachineCollection.load", staticmethod(_load))
    replace("asv.machine:MachineCollection.save", classmethod(_save_registered))
    replace("asv.results:Results.save", _save)
    replace("asv.util:write_json", _write_json)
