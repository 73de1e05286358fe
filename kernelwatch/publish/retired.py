"""What results tell of rungs and benchmarks that nothing describes any more: their histories are on no page."""

from collections.abc import Mapping

from kernelwatch.history.confirmations import Confirmation, Verdicts
from kernelwatch.plan.cells import timed
from kernelwatch.plan.project import Project
from kernelwatch.publish.columns import Layout
from kernelwatch.publish.lines import Line
from kernelwatch.publish.record import Json
from kernelwatch.publish.recorded import History, Recorded


def retired(history: History, project: Project | None, line: Line, verdicts: Mapping[str, Verdicts]) -> list[Json]:
    """The rungs and benchmarks that were recorded on a line of commits and that are not described: `machine`,
    `name`, `hash` of the last commit with a figure, and of a rung the `change` of the newest commit `changed_at` that
    turns confirmed to be slower, null if there is none. `verdicts`: by machine."""
    described = {*project.rungs(), *(cell.name for cell in timed(project))} if project else set[str]()
    last: dict[tuple[str, str], Recorded] = {}
    own = (each for each in history.recorded if each.commit in line.positions)
    for recorded in sorted(own, key=lambda each: line.positions[each.commit]):
        for name in _rungs(recorded) - described if project else recorded.head["dropped"]:
            last[recorded.machine, name] = recorded
    found = []
    for (machine, name), recorded in sorted(last.items()):
        # Of a benchmark nothing tells any more whether more is better; what links told of it are events still.
        slower = _slower(name, verdicts.get(machine, {}), line) if project else None
        change, at = (slower.change, slower.after) if slower else (None, None)
        found.append({"machine": machine, "name": name, "hash": recorded.commit, "change": change, "changed_at": at})
    return found


def _rungs(recorded: Recorded) -> set[str]:
    """The rungs of which a record has a figure."""
    record = recorded.head.get("record")
    if not record:
        return set()
    layout = recorded.store.decoded(record["shared"]["cells"], Layout)
    return {rung for rung, places in layout.rungs.items() if places[0] < record["measured"]}


def _slower(name: str, verdicts: Verdicts, line: Line) -> Confirmation | None:
    """The newest confirmed change of a rung, if it is one for the worse."""
    own = [
        each
        for each in verdicts.values()
        if each.word == "confirmed" and each.after in line.positions and f"{each.cell} ".startswith(f"{name} ")
    ]
    newest = max(own, key=lambda each: line.positions[each.after], default=None)
    return newest if newest and (newest.change or 0.0) > 0 else None
