"""Events of environments: one commit measured in turns by two of them, which differ in packages. No commit is to blame.

Such a session tells of the environment alone. It is no link of two commits, so no chain has it, and no line breaks.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernelwatch.detect.events import Change, Event, JudgedSeries
from kernelwatch.detect.judging import Judged, judge
from kernelwatch.detect.point import Point
from kernelwatch.detect.results import Result, Results
from kernelwatch.detect.steps import Step
from kernelwatch.detect.testing import FLOOR
from kernelwatch.history.links import Link, Session
from kernelwatch.plan.renamed import NONE, Renamed


@dataclass(frozen=True, eq=False)
class EnvironmentChange(Change):
    """What another environment does to a cell. `judged`: its link; `session`: that measured it."""

    judged: Judged | None = None
    session: Session | None = None

    @property
    def id(self) -> str:
        """The id of a commit's own change of the cell, and a hash of what differs: a commit may have both."""
        assert self.session is not None
        differs = json.dumps(self.session.environments, sort_keys=True)
        return f"{super().id}-{hashlib.sha256(differs.encode()).hexdigest()[:8]}"

    @property
    def interval(self) -> tuple[float, float]:
        assert self.judged is not None
        return self.judged.bounds

    @property
    def suspects(self) -> list[str]:
        return []


def events_of(
    sessions: Iterable[Session], machine: str, branch: str, positions: Mapping[str, int], runs: Sequence[JudgedSeries],
    renamed: Renamed = NONE,
) -> list[Event]:  # fmt: skip
    """The events of a machine's sessions whose commit is on a branch: none where no cell became slower or faster. Of
    several sessions of the same commit and packages the newest counts. `runs`: the series of full runs, whose names are
    shown."""
    newest = {
        (session.after, json.dumps(session.environments, sort_keys=True)): session
        for session in sorted(sessions, key=lambda each: each.at)
        if session.kind == "environment" and session.after in positions
    }
    own = [each for each in runs if (each.place.get("machine"), each.place.get("branch")) == (machine, branch)]
    shown = {each.cell: each for each in own}
    found = []
    for session in newest.values():
        judged = judge(session)
        changed = [link for link in session.links if judged[link.cell].word in ("worse", "better")]
        made = (_series(link, session, machine, branch, positions, shown.get(link.cell)) for link in changed)
        series = [replace(each, renamed=renamed) for each in made]
        changes = [_change(each, judged[link.cell], session) for each, link in zip(series, changed, strict=True)]
        if changes:
            found.append(Event("environment", tuple(sorted(changes, key=lambda each: -abs(each.step.change)))))
    return found


def _series(
    link: Link, session: Session, machine: str, branch: str, positions: Mapping[str, int], run: JudgedSeries | None
) -> JudgedSeries:
    """A cell in both environments, as if one were the commit before the other."""
    results = []
    before = link.seconds[0]
    for side, seconds in enumerate((before, before * math.exp(link.log))):
        packages = {name: versions[side] for name, versions in session.environments.items()}
        known: dict[str, object] = {"packages": packages}
        point = Point(positions[session.after], seconds, conditions=json.dumps(known))
        results.append(Result(session.after, point, known))
    place: dict[str, str | None] = run.place if run else {"machine": machine, "branch": branch}
    name, params = (run.benchmark, run.params) if run else ("", {})
    return JudgedSeries(name, params, place, False, False, Results.of(results), link.cell, shows=link.cell)


def _change(series: JudgedSeries, judged: Judged, session: Session) -> EnvironmentChange:
    before, after = (each.point.value for each in series.results)
    smallest = math.expm1(math.log1p(FLOOR) + 2 * judged.half())
    step = Step(1, "environment", before, after, smallest)
    return EnvironmentChange(series, step, None, (0, 2), judged, session)
