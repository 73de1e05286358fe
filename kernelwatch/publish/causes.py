"""What the page of an event shows besides what events.json says: the samples of both sides, the exact figures that
moved, the lines of source whose accesses moved, the SASS that changed, and a sentence of each for two readers."""

import hashlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from typing import Any

from kernelwatch.analysis import sassdiff
from kernelwatch.analysis.explained import shape_of
from kernelwatch.detect.chain import Edge
from kernelwatch.detect.events import Change, Event
from kernelwatch.detect.linked import LinkedChange, LinkedSeries
from kernelwatch.detect.states import headline, verdict_of
from kernelwatch.history import records
from kernelwatch.history.confirmations import Verdicts
from kernelwatch.history.links import Session
from kernelwatch.history.records import Measured, Record, finite
from kernelwatch.plan.cells import COUNTED, key
from kernelwatch.plan.renamed import Renamed
from kernelwatch.publish import figures, plain, sentences
from kernelwatch.publish.commits import Commit
from kernelwatch.publish.explaining import EVENTS, Explaining, Kernel, kernels_of
from kernelwatch.publish.figures import Figure
from kernelwatch.publish.publication import Publication
from kernelwatch.publish.record import Json, median, rounded
from kernelwatch.publish.recorded import Recorded, sidecar_of
from kernelwatch.publish.sentences import Look
from kernelwatch.publish.series import cell_of
from kernelwatch.publish.writer import as_text

VERSION = 3  # of these files' content
CELLS = 6  # of an event, whose samples are shown
DIGITS = 7


class Causes:
    """Of the events of one publication. `told`: by id, an event as events.json has it; `sessions`: the links', by
    machine; `commits`: what git tells of those that events name; `verdicts`: of confirmations, by machine."""

    def __init__(
        self,
        publication: Publication,
        told: Mapping[str, Json],
        sessions: Mapping[str, Sequence[Session]],
        commits: Mapping[str, Commit],
        verdicts: Mapping[str, Verdicts],
    ) -> None:
        self.publication, self.told, self.sessions, self.commits = publication, told, sessions, commits
        self.verdicts = verdicts
        most = getattr(publication.conf, "explained_events", EVENTS)
        self.explaining = Explaining(publication.project, most if isinstance(most, int) else EVENTS)
        self._records: dict[tuple[str, str], Record | None] = {}

    def write(self, events: Sequence[Event]) -> None:
        """Write data/causes and data/sass of these events; the newest open regressions are looked at first."""

        def is_settled(event: Event) -> bool:
            return not self.told[event.id]["open"]

        for event in sorted(events, key=is_settled):  # the newest first, as they come
            self._write(event)

    def _write(self, event: Event) -> None:
        writer = self.publication.writer
        keys, arch = self._keys(event), self._arch(event)
        cells, why = kernels_of(event, keys, self.publication.project, arch)
        assumed = [cell.key for cell in cells if not arch and f"{cell.name} {cell.type} {cell.arch}" not in keys]
        kernels = self.explaining.explain(event.narrowest.before.commit, event.last, cells)
        diff = self._diff(event)
        made_of = hashlib.sha256(
            as_text(
                [
                    VERSION, self.told[event.id], why, assumed, diff, self._command(event),
                    [[kernel.cell.key, kernel.why, dict(kernel.before), dict(kernel.after)] for kernel in kernels],
                    [recorded.digest for commit in self._commits(event) for recorded in self._recorded(event, commit)],
                    [[session.at, session.seconds] for session in self._links(event)],
                ]
            ).encode()
        ).hexdigest()  # fmt: skip
        names = f"causes/{event.id}", f"sass/{event.id}"
        if all([writer.keep(name, made_of) for name in names]):
            return
        looks = [self._look(event, kernel) for kernel in kernels]
        first, size = headline(event), self.told[event.id]["size"]
        device = self._device(self._machine(first), first)
        timed = [change for change in event.changes if change.series.cell]
        content = {
            "id": event.id,
            "manager": sentences.for_a_manager(event, size, device, self.commits[event.last]["subject"]),
            "engineer": sentences.for_an_engineer(event, size, looks, diff, why),
            "command": self._command(event),
            "cells": [self._samples(change) for change in timed[:CELLS]],
            "cells_left_out": len(timed[CELLS:]),
            "kernels": [
                self._kernel(event, kernel, look) | {"assumed": kernel.cell.key in assumed}
                for kernel, look in zip(kernels, looks, strict=True)
            ],
            "why": why,
        }
        writer.write(names[0], content, made_of)
        sass = [
            {"kernel": look.name, "assumed": kernel.cell.key in assumed, **look.sass}
            for kernel, look in zip(kernels, looks, strict=True)
        ]
        writer.write(names[1], {"id": event.id, "kernels": sass, "why": why}, made_of)

    # --- what is known of an event ---------------------------------------------------------------------------------

    def _keys(self, event: Event) -> list[str]:
        """The keys of the cells that changed, timed ones first."""
        folder, judged = self.publication.suites, self.publication.history.judged
        timed = [change.series.cell for change in event.changes if change.series.cell]
        if self.publication.project is None:
            return timed
        others = (
            change
            for change in event.changes
            if not change.series.cell and judged.get(change.series.benchmark) != plain.JUDGED
        )
        return timed + [
            cell_of(folder, each.series.benchmark, tuple(each.series.params.values()))[0] for each in others
        ]

    def _commits(self, event: Event) -> list[str]:
        own = (commit for change in event.changes for commit in (change.before.commit, change.last.commit))
        return list(dict.fromkeys(own))

    def _machine(self, change: Change) -> str:
        return change.series.place.get("machine") or ""

    @cached_property
    def _by_commit(self) -> dict[str, list[Recorded]]:
        found: dict[str, list[Recorded]] = {}
        for recorded in self.publication.history.recorded:
            found.setdefault(recorded.commit, []).append(recorded)
        return found

    def _recorded(self, event: Event, commit: str) -> list[Recorded]:
        machines = {self._machine(change) for change in event.changes}
        return [each for each in self._by_commit.get(commit, ()) if each.machine in machines]

    def _record(self, machine: str, commit: str) -> Record | None:
        """The whole sidecar of a commit on a machine, None without one."""
        place = machine, commit
        if place not in self._records:
            paths = [each.path for each in self._by_commit.get(commit, ()) if each.machine == machine]
            read = (_read(path, self.publication.renamed) for path in paths)
            self._records[place] = next(filter(None, read), None)
        return self._records[place]

    def _arch(self, event: Event) -> str:
        """The architecture of the GPU that measured an event. What only links tell has no record at its commit, so the
        newest one of its machine counts, whose name is that of the GPU. "" if there is none, either."""
        for change in event.changes:
            machine = self._machine(change)
            known = [each.commit for each in self.publication.history.recorded if each.machine == machine]
            for commit in (change.last.commit, *known[-1:]):
                record = self._record(machine, commit)
                for facts in record.facts.values() if record else ():
                    capability = facts.get("compute_capability")
                    if isinstance(capability, str) and capability.isdigit():
                        return f"sm_{capability}"
        return ""

    def _links(self, event: Event) -> list[Session]:
        own = (change for change in event.changes if isinstance(change, LinkedChange))
        return [edge.session for change in own for edge in change.edges]

    def _diff(self, event: Event) -> list[str]:
        """The lines of the commit's diff, if it alone is to blame and all of it is known."""
        if event.kind == "environment" or event.first != event.last or event.narrowest.commits != 1:
            return []
        diff = self.publication.writer.read(f"diffs/{event.last}") or {}
        return list(diff.get("lines") or ()) if not diff.get("left_out") else []

    def _command(self, event: Event) -> str:
        """What measures both commits again."""
        project = self.publication.project
        if project is None or event.kind == "environment":
            return ""
        has_script = Path(project.root, "scripts", "versus").is_file()
        program = "scripts/versus" if has_script else "python -m kernelwatch versus"
        words = [event.narrowest.before.commit[:12], event.last[:12]]
        cells = list(dict.fromkeys(change.series.cell for change in event.changes if change.series.cell))[:CELLS]
        names = list(dict.fromkeys(name.partition(" ")[0] for name in self._keys(event) if name))[:CELLS]
        if cells:
            only = cells[0] if len(cells) == 1 else "|".join(cells)
        else:
            only, words = "|".join(f"{name} " for name in names), [*words, "--exact"]
        return f"{program} {shlex.join([*words, '--only', f'^({only})' + '$' * bool(cells)])}" if only else ""

    # --- the samples -----------------------------------------------------------------------------------------------

    def _samples(self, change: Change) -> Json:
        """Every process of both commits, and every turn: of the links between them, and of the confirmation."""
        machine, cell = self._machine(change), change.series.cell
        linked = isinstance(change.series, LinkedSeries)
        sides = (change.before.commit, change.last.commit) if not linked else ()
        verdict = verdict_of(change, self.verdicts) if not linked else None
        return {
            "change": change.id,
            "cell": cell,
            "machine": machine,
            "sides": [_side(commit, self._record(machine, commit), cell) for commit in sides],
            "turns": [_turns(edge) for edge in change.edges] if isinstance(change, LinkedChange) else [],
            "confirmed": [rounded(each, DIGITS) for each in verdict.logs] if verdict else [],
        }  # fmt: skip

    # --- the exact figures -----------------------------------------------------------------------------------------

    def _figures(self, event: Event, kernel: Kernel) -> tuple[list[Figure], dict[str, str]]:
        """Those of a kernel, as they were recorded, else as they were computed now; and by "compiled" and "counted",
        which of both."""
        cell, found, origin = kernel.cell, list[Figure](), dict[str, str]()
        assert self.publication.project
        shape = shape_of(self.publication.project.op(cell.op), cell.type)
        counted_key = key(cell.op, cell.rung, cell.type, shape, COUNTED)
        machine = self._machine(event.narrowest)
        for name, own, make in (
            ("compiled", f"{cell.name} {cell.type} {cell.arch}", figures.compiled_figures),
            ("counted", counted_key, figures.counted_figures),
        ):
            recorded = [
                _measurement(self._record(machine, commit), own)
                for commit in (event.narrowest.before.commit, event.last)
            ]
            looked = [
                side.get("static" if name == "compiled" else "counted") or {} for side in (kernel.before, kernel.after)
            ]
            for sides, whence in ((recorded, "recorded"), (looked, "looked")):
                if all(sides):
                    found += make(*sides)
                    origin[name] = whence
                    break
        return found, origin

    def _look(self, event: Event, kernel: Kernel) -> Look:
        found, origin = self._figures(event, kernel)
        return Look(kernel.cell.key, found, origin, moved_lines(kernel), _sass(kernel), kernel.why)

    def _kernel(self, event: Event, kernel: Kernel, look: Look) -> Json:
        """What the page says of a kernel besides its SASS."""
        shape = next((each.series.cell.split(" ")[2] for each in event.changes if each.series.cell), "")
        sides = kernel.before, kernel.after
        launch = {
            "block": [side.get("block") for side in sides],
            "grid": [(side.get("grids") or {}).get(shape) for side in sides],
        }
        return {
            "kernel": look.name,
            "op": kernel.cell.op,
            "rung": kernel.cell.rung,
            "source": kernel.after.get("source", ""),
            "moved": [each.as_json() for each in look.figures if each.moved],
            "same": [each.as_json() for each in look.figures if not each.moved],
            "origin": look.origin,
            "launch": {name: pair for name, pair in launch.items() if all(pair)},
            "shape": shape,
            "lines": look.lines,
            "counted_at": kernel.after.get("counted_at", ""),
            "why": kernel.why,
            "no_lines": kernel.after.get("no_lines") or kernel.before.get("no_lines") or "",
        }

    def _device(self, machine: str, change: Change) -> str:
        """What measured a change: the GPU, else the CPU."""
        record = self._record(machine, change.last.commit)
        for name in ("gpu", "cpu"):
            own = [str(facts[name]) for facts in record.facts.values() if facts.get(name)] if record else []
            sessions = (each for each in self.sessions.get(machine, ()) if each.after == change.last.commit)
            own += [str(each.conditions[name]) for each in sessions if each.conditions.get(name)]
            if own:
                return own[0]
        return machine


def _read(path: Path, renamed: Renamed) -> Record | None:
    try:
        return records.read(sidecar_of(path), renamed)
    except Exception:  # a sidecar that cannot be read is named where it is read first (recorded.py)
        return None


def _measurement(record: Record | None, key: str) -> Mapping[str, Any]:
    own = record.cells.get(key) if record else None
    return own.measurements[0] if own and own.measurements else {}


def _side(commit: str, record: Record | None, cell: str) -> Json:
    """A commit's processes of a cell, and under which conditions they ran."""
    own = record.cells.get(cell) if record else None
    if record is None or own is None:
        return {"commit": commit, "seconds": []}
    facts = record.facts.get(own.group, {})
    told = {name: facts.get(name) for name in ("gpu", "cpu", "nvml_driver", "measured_at")}
    uuid = facts.get("nvml_uuid_sha256")
    return {
        "commit": commit,
        "seconds": [rounded(each, DIGITS) for each in own.seconds],
        "clocks_mhz": [rounded(each, 5) for each in own.readings["clock_mhz"]],
        "temperature_c": rounded(median(own.readings["temperature_c"]), 3),
        "power_w": rounded(median(own.readings["power_w"]), 4),
        "own_clock_mhz": rounded(own.own_clock_mhz, 5),
        "limits": [*own.limits],
        "notes": [*own.notes],
        "launch": _launch(own),
        **{name: finite(value) for name, value in told.items() if isinstance(value, str)},
        **({"uuid": uuid[:8]} if isinstance(uuid, str) else {}),
    }


def _launch(own: Measured) -> Any:
    return next((finite(each["kernels"]) for each in own.measurements if "kernels" in each), None)


def _turns(edge: Edge) -> Json:
    """The turns of a link: the logarithm of the ratio of each, and what they say together."""
    session, link = edge.session, edge.link
    return {
        "from": session.before,
        "to": session.after,
        "measured": session.at,
        "gpu": session.gpu,
        "driver": session.conditions.get("nvml_driver"),
        "log": rounded(link.sign * link.log, DIGITS),
        "logs": [rounded(link.sign * each, DIGITS) for each in link.logs],
        "seconds": [rounded(each, DIGITS) for each in link.seconds],
        "clocks_mhz": [rounded(each, 5) for each in link.clocks_mhz],
    }


def _sass(kernel: Kernel) -> Json:
    """The comparison of the SASS of both sides, or why there is none."""
    sides = kernel.before, kernel.after
    if kernel.why:
        return {"why": kernel.why}
    if not all(side.get("listing") for side in sides):
        return {"why": next((side["no_binary"] for side in sides if side.get("no_binary")), "it has no binary")}
    is_same = sides[0]["code"] == sides[1]["code"]
    return {"why": "", "same": is_same, **sassdiff.compare(sides[0]["listing"], sides[1]["listing"])}


# --- accesses by line ----------------------------------------------------------------------------------------------


def moved_lines(kernel: Kernel) -> list[Json]:
    """The lines of source whose accesses moved, the one that moved most first: `before` and `after`, their numbers, 0
    if there is none, or if it is not in the rung's source; `kind`; `text`; `requests` and `cost` on both sides."""
    if not all("lines" in side for side in (kernel.before, kernel.after)):
        return []
    same = _same_lines(kernel.before.get("text", ()), kernel.after.get("text", ()))
    old = {(line, kind): rest for line, kind, *rest in kernel.before["lines"]}
    new = {(line, kind): rest for line, kind, *rest in kernel.after["lines"]}
    taken: set[tuple[int, str]] = set()
    found = []
    for (line, kind), (requests, cost, text) in new.items():
        place = same.get(line, line if not line else 0), kind
        taken.add(place)
        before = old.get(place)
        if before is None or (before[0], before[1]) != (requests, cost):
            number = place[0] if before else 0
            found.append(_line(kind, number, line, text, before or (0, 0, ""), (requests, cost)))
    for (line, kind), before in old.items():
        if (line, kind) not in taken:
            found.append(_line(kind, line, 0, before[2], before, (0, 0)))
    return sorted(found, key=lambda each: -abs(each["cost"][1] - each["cost"][0]))


def _line(kind: str, before: int, after: int, text: str, old: Sequence[Any], new: Sequence[Any]) -> Json:
    return {
        "kind": kind, "before": before, "after": after, "text": text,
        "requests": [old[0], new[0]], "cost": [old[1], new[1]],
    }  # fmt: skip


def _same_lines(before: Iterable[str], after: Iterable[str]) -> dict[int, int]:
    """By the number of a line of the source after, that of the same line before. Lines that took the place of as many
    others are the same."""
    found = {}
    matcher = SequenceMatcher(None, [*before], [*after], autojunk=False)
    for kind, i, j, k, m in matcher.get_opcodes():
        if kind == "equal" or (kind == "replace" and j - i == m - k):
            found.update({k + at + 1: i + at + 1 for at in range(m - k)})
    return found
