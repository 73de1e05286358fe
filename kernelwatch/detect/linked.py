"""Series that are judged by the links of their cell: a paired test of each changed launch, and of what came slowly."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kernelwatch.detect import steps
from kernelwatch.detect.chain import Chain, chains
from kernelwatch.detect.events import Change, JudgedSeries
from kernelwatch.detect.judging import judge
from kernelwatch.detect.levels import FLOOR
from kernelwatch.detect.point import Point
from kernelwatch.detect.results import Result, Results
from kernelwatch.detect.steps import Step
from kernelwatch.history.confirmations import Confirmation, Verdicts
from kernelwatch.history.confirmations import Word as Verdict
from kernelwatch.history.links import Session

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

    @cached_property
    def _judged(self) -> steps.Judged:
        chain = self._chain
        index = {result.commit: at for at, result in enumerate(self.results)}
        smallest = self._smallest
        found = []
        for node, own in enumerate(chain.nodes, 1):
            if chain.word(node) in ("worse", "better"):
                found.append(self._step(index[own.commit], node - 1, node, smallest))
        for first, last in chain.gradual():
            since = index[chain.nodes[first].commit]
            at = index[chain.nodes[last - 1].commit]
            found.append(self._step(at, first, last, smallest, "gradual", since))
        newest = chain.nodes[-1].commit if chain.nodes else ""
        return steps.Judged(sorted(found, key=lambda step: step.at), smallest, index.get(newest, 0))

    def _step(
        self, at: int, first: int, last: int, smallest: float, kind: str = "step", since: int | None = None
    ) -> Step:
        log, _ = self._chain.span(first, last)
        after = self.points[at].value
        return Step(at, kind, after * math.exp(-log), after, smallest, since=since)

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
            bounds = math.expm1(log - half), math.expm1(log + half)
            nodes = range(first + 1, last + 1)
            turns = sum(len(edge.link.logs) for node in nodes for edge in self._chain.at_node(node))
            found.append(LinkedChange(self, change.step, change.undone, change.levels, bounds, turns))
        return found

    def _nodes(self, change: Change) -> tuple[int, int]:
        commits = [node.commit for node in self._chain.nodes]
        last = commits.index(change.last.commit) + 1
        return (commits.index(change.first.commit) if change.step.since is not None else last - 1), last


@dataclass(frozen=True, eq=False)
class LinkedChange(Change):
    """A change that links tell. `bounds`: the 95 % interval of the relative change; `turns`: how many measured it."""

    bounds: tuple[float, float] = (math.nan, math.nan)
    turns: int = 0

    @property
    def interval(self) -> tuple[float, float]:
        return self.bounds

    @property
    def suspects(self) -> list[str]:
        return []  # both sides were measured in turns: no single run can have been disturbed


def results_of(chain: Chain) -> Results:
    """The commits on both sides of each link, with the seconds that the chain gives them."""
    newest = max(chain.edges, key=lambda edge: edge.session.at)
    scale = newest.link.seconds[1] / math.exp(chain.levels[newest.after])
    told: dict[int, tuple[str, int]] = {}
    for number, node in enumerate(chain.nodes, 1):
        told.setdefault(node.before_at, (node.before, number - 1))
        told[node.at] = node.commit, number
    return Results.of(
        [
            Result(
                commit,
                Point(
                    at,
                    scale * math.exp(chain.levels[node]),
                    float(chain.errors[node]),
                    conditions=json.dumps({"linked from": chain.pieces[node]}),
                ),
                {"linked from": chain.pieces[node]},
            )
            for at, (commit, node) in sorted(told.items())
        ]
    )


def verdicts_of(sessions: Iterable[Session]) -> Verdicts:
    """What links say of changes that a full run flagged, and of their own: each was measured in turns."""
    found: Verdicts = {}
    for session in sessions:
        judged = judge(session)
        for link in session.changed:
            own = judged[link.cell]
            key = link.cell, session.before, session.after
            change, (low, high) = math.expm1(link.log), own.bounds
            word = VERDICTS.get(own.word, "not decided")
            found[key] = Confirmation(*key, word, change, change, low, high, len(link.logs), own.why, session.at)
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
    series: Sequence[JudgedSeries], sessions: Mapping[str, Sequence[Session]], positions: Mapping[str, int]
) -> list[LinkedSeries]:
    """The series of links, for the series of full runs that show the same cells on the same machines. `sessions`: by
    machine; `positions`: of the commits of the branch."""
    by_machine = {machine: chains(own, positions) for machine, own in sessions.items()}
    found = []
    for each in series:
        chain = by_machine.get(each.place.get("machine") or "", {}).get(each.cell)
        if chain and chain.edges and each.own is None:
            shown = each.benchmark, each.params, each.place, each.higher_is_better
            found.append(LinkedSeries(*shown, False, results_of(chain), each.cell, chain=chain))
    return found
