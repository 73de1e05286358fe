"""Series that are judged by the links of their cell: a paired test of each changed launch, and of what came slowly."""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from kernelwatch.detect import steps
from kernelwatch.detect.chain import GRADUAL_LEVEL, Chain, Edge
from kernelwatch.detect.events import Change, JudgedSeries, back
from kernelwatch.detect.judging import LEVEL, judge, relative, word_of
from kernelwatch.detect.point import Point
from kernelwatch.detect.results import Result, Results
from kernelwatch.detect.steps import Step
from kernelwatch.detect.testing import FLOOR, Passed
from kernelwatch.history.confirmations import Confirmation, Verdicts
from kernelwatch.history.confirmations import Word as Verdict
from kernelwatch.history.links import Session
from kernelwatch.system.student import quantile

VERDICTS: dict[str, Verdict] = {"worse": "confirmed", "better": "confirmed", "no change": "refuted"}


@dataclass(frozen=True, eq=False)
class LinkedSeries(JudgedSeries):
    """The seconds of a cell as its links tell them: those of its newest link, carried back over the chain. Its results
    are the commits on both sides of each link; a piece of the chain that nothing links has conditions of its own."""

    chain: Chain | None = None

    @property
    def _chain(self) -> Chain:
        assert self.chain is not None
        return self.chain

    @property
    def _sign(self) -> float:
        return -1.0 if self.higher_is_better else 1.0

    @cached_property
    def _judged(self) -> steps.Judged:
        chain = self._chain
        index = {result.commit: at for at, result in enumerate(self.results)}
        smallest = self._smallest
        found = []
        for node, own in enumerate(chain.nodes, 1):
            if chain.word(node) in ("worse", "better"):
                found.append(self._step(index[own.commit], chain.start(node), node, smallest))
        for first, last in chain.gradual():
            since = index[chain.nodes[chain.next_linked(first) - 1].commit]
            at = index[chain.nodes[last - 1].commit]
            found.append(self._step(at, first, last, smallest, "gradual", since))
        newest = chain.nodes[-1].commit if chain.nodes else ""
        return steps.Judged(sorted(found, key=lambda step: step.at), smallest, index.get(newest, 0))

    def _step(
        self, at: int, first: int, last: int, smallest: float, kind: str = "step", since: int | None = None
    ) -> Step:
        log, _ = self._chain.span(first, last)
        after = self.points[at].value
        return Step(at, kind, after * math.exp(-self._sign * log), after, smallest, since=since)

    @property
    def _smallest(self) -> float:
        """The smallest change that the next link will probably show, from the links so far."""
        halves = sorted(edge.judged.half() for edge in self._chain.edges)
        return math.expm1(math.log1p(FLOOR) + 2 * halves[len(halves) // 2]) if halves else math.inf

    def changes(self) -> list[Change]:
        found: list[Change] = []
        for change in super().changes():
            first, last = self._nodes(change)
            log, half = self._chain.span(first, last)[0], self._chain.half(first, last)
            bounds = relative(log, half, self._sign)[1]
            is_gradual = change.step.since is not None
            piece = self._chain.pieces[last]
            edges = [edge for node in range(first + 1, last + 1) for edge in self._chain.at_node(node)]
            edges = [edge for edge in edges if self._chain.pieces[edge.after] == piece]
            edges = edges if is_gradual else self._chain.at_node(last)
            # What nothing links with this launch does not take the change back.
            later = [step for step in self._judged.steps if step.at > change.step.at]
            later = [step for step in later if self._chain.pieces[self._launch(step)] == piece]
            step = replace(change.step, tests=self._tests(first, last, change.step.kind))
            ended = back(step, later, partial(self._beyond, first)) or self.undone(step, later)
            found.append(LinkedChange(self, step, ended, change.levels, bounds, tuple(edges)))
        return found

    def _beyond(self, first: int, step: Step, later: Step) -> bool:
        """Whether the level after a later step certainly lies beyond that of a launch, in the direction of a step. The
        noise of the links between them decides, and not that of all others."""
        last = self._launch(later)
        log, error = self._chain.span(first, last)
        return word_of(log, error, self._chain.freedom(first, last)) == (
            "worse" if self._sign * step.change > 0 else "better"
        )

    def _tests(self, first: int, last: int, kind: str) -> tuple[Passed, ...]:
        """The tests that a change passed: its interval lies beyond the floor, and it is larger than what cells that
        both sides launch alike moved by in the same sessions."""
        edges = [edge for node in range(first + 1, last + 1) for edge in self._chain.at_node(node)]
        if kind == "gradual":
            (log, error), level = self._chain.span(first, last), GRADUAL_LEVEL
            freedom = self._chain.freedom(first, last)
        else:
            (log, error, freedom), level = self._chain.joint(last), LEVEL
        least = abs(log) - quantile(1 - level / 2, freedom) * error
        tests = [Passed("interval", math.expm1(least), FLOOR, "share")]
        noise = ((edge.session.noise, edge.link.device) for edge in edges)
        controls = [own[device] for own, device in noise if device in own]
        if controls:
            tests.append(Passed("control", math.expm1(abs(log)), math.expm1(max(controls)), "share"))
        return tuple(tests)

    def verdicts(self) -> Verdicts:
        """The verdict on each step, by what names it."""
        found: Verdicts = {}
        for node, own in enumerate(self._chain.nodes, 1):
            edges = self._chain.at_node(node)
            if not edges:
                continue
            key = self.cell, edges[0].session.before, own.commit
            word = VERDICTS.get(self._chain.word(node), "not decided")
            start = self._chain.start(node)
            log, half = self._chain.span(start, node)[0], self._chain.half(start, node)
            size, bounds = relative(log, half, self._sign)
            turns = sum(len(edge.link.logs) for edge in edges)
            why = next((edge.judged.why for edge in edges if edge.judged.why), "") if word == "not decided" else ""
            at = max(edge.session.at for edge in edges)
            found[key] = Confirmation(*key, word, size, size, *bounds, turns, why, at)
        return found

    def _launch(self, step: Step) -> int:
        """The launch after a step."""
        commit = self.results[step.at].commit
        return next(node for node, own in enumerate(self._chain.nodes, 1) if own.commit == commit)

    def _nodes(self, change: Change) -> tuple[int, int]:
        commits = [node.commit for node in self._chain.nodes]
        last = commits.index(change.last.commit) + 1
        if change.step.since is None:
            return self._chain.start(last), last
        return self._chain.last_linked(commits.index(change.first.commit) + 1), last


@dataclass(frozen=True, eq=False)
class LinkedChange(Change):
    """A change that links tell. `bounds`: the 95 % interval of the relative change; `edges`: the links between its
    commits, of which a gradual one has many."""

    bounds: tuple[float, float] = (math.nan, math.nan)
    edges: tuple[Edge, ...] = ()

    @property
    def turns(self) -> int:
        """How many turns measured it."""
        return sum(len(edge.link.logs) for edge in self.edges)

    @property
    def gpus(self) -> list[str]:
        """The GPUs that measured it."""
        return sorted({edge.session.gpu for edge in self.edges})

    @property
    def interval(self) -> tuple[float, float]:
        return self.bounds

    @property
    def suspects(self) -> list[str]:
        return []  # both sides were measured in turns: no single run can have been disturbed


def results_of(chain: Chain) -> Results:
    """The commits on both sides of each link, with the seconds that the chain gives them: within each piece, those of
    its newest link. A launch without a link has no seconds."""
    scales: dict[int, float] = {}
    levels = -chain.levels if chain.rate else chain.levels
    for edge in sorted(chain.edges, key=lambda edge: edge.session.at):
        scales[chain.pieces[edge.after]] = edge.link.seconds[1] / math.exp(levels[edge.after])
    identities: dict[int, str] = {}
    for edge in chain.edges:
        identities |= zip((edge.before, edge.after), edge.link.identities, strict=True)
    told: dict[int, tuple[str, int]] = {}
    for number, node in enumerate(chain.nodes, 1):
        told.setdefault(node.before_at, (node.before, chain.start(number)))
        told[node.at] = node.commit, number
    return Results.of(
        [
            Result(
                commit,
                Point(
                    at,
                    scales[chain.pieces[node]] * math.exp(levels[node]),
                    float(chain.errors[node]),
                    identities.get(node, ""),
                    conditions=json.dumps({"linked from": chain.pieces[node]}),
                ),
                {"linked from": chain.pieces[node]},
            )
            for at, (commit, node) in sorted(told.items())
            if chain.pieces[node] in scales
        ]
    )


def verdicts_of(sessions: Iterable[Session], series: Iterable[LinkedSeries] = ()) -> Verdicts:
    """What links say of changes that a full run flagged, and of their own: each was measured in turns. `series`: those
    of the same machine; if several sessions measured a step, what they say together counts."""
    found: Verdicts = {}
    for session in (each for each in sessions if each.kind != "environment"):
        judged = judge(session)
        for link in session.changed:
            own = judged[link.cell]
            key = link.cell, session.before, session.after
            change, (low, high) = relative(link.log, own.half(), link.sign)
            word = VERDICTS.get(own.word, "not decided")
            found[key] = Confirmation(*key, word, change, change, low, high, len(link.logs), own.why, session.at)
    for each in series:
        found |= each.verdicts()
    return found


def verdict_on(change: Change) -> tuple[tuple[str, str, str], Confirmation]:
    """The verdict on a change that links tell, by what names it. Its size is that of the change: one truth."""
    assert isinstance(change, LinkedChange)
    key = change.series.cell, change.before.commit, change.last.commit
    low, high = change.interval
    why = "by all links between these commits" if change.step.since is not None else ""
    size = change.step.change
    return key, Confirmation(*key, "confirmed", size, size, low, high, change.turns, why)


def linked(
    series: Sequence[JudgedSeries], known: Mapping[str, Mapping[str, Chain]], branch: str,
    own: Collection[str] | None = None,
) -> list[LinkedSeries]:  # fmt: skip
    """The series of links. A cell that a full run of the machine measured is shown under the name of that series; of
    another one, its key is its name. `known`: the chains by machine and cell; `branch`: whose commits they are; `own`:
    as in JudgedSeries."""
    shown = {
        (each.place.get("machine") or "", each.cell): each for each in series if each.place.get("branch") == branch
    }
    found = []
    for machine, cells in known.items():
        for cell, chain in cells.items():
            if not chain.edges:
                continue
            alike = shown.get((machine, cell))
            place: dict[str, str | None] = alike.place if alike else {"machine": machine, "branch": branch}
            name, params = (alike.benchmark, alike.params) if alike else ("", {})
            found.append(
                LinkedSeries(
                    name, params, place, chain.rate, False, results_of(chain), cell, None, own, cell, chain=chain
                )
            )
    return found
