"""The level of a launch along a line of commits, from its links.

The launches of a cell are the nodes of a graph, and the links its edges. The levels are the weighted least squares
solution: a chain of steps, the anchors that close it, links of the same two commits on several GPUs, and launches that
come back all take part with what they are worth. Nothing in it depends on which GPU, driver or package measured a link.

Full runs of one GPU join what no link joins. They tell the level there, and nothing else: the detector of full runs
judges them, with all records of the GPU (detect/levels.py).
"""

import json
import math
from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kernelwatch.detect.judging import Judged, judge, word_of
from kernelwatch.detect.testing import FLOOR
from kernelwatch.history.links import Link, Session
from kernelwatch.system.student import quantile

Values = NDArray[np.float64]
Told = tuple[Session, Mapping[str, Judged], Mapping[str, Link]]  # a session, its verdicts and changed launches by cell
Run = tuple[Session, Link]  # of full runs
ALIKE = 1e-6  # the standard error of a link between two launches of which the identity is the same
APART = 4.0  # standard errors by which a link may differ from what all others say before its GPU is named
UNASKED = "a commit that may have changed it was not asked"
GRADUAL_LEVEL = 0.001  # chance that the sum of links without a change is called a gradual one
END_LEVEL = 0.01  # chance that a link without a change moves the end of a gradual one
LEAST_LEFT = 1e-6  # share of a link's level that rests on others, below which none does
OF_A_DEVICE = ("gpu", "cpu", "nvml_uuid_sha256")  # conditions that say which one it was
FREEDOM_MOST = 60  # of a level: more make no difference


@dataclass(frozen=True)
class Edge:
    """A link between two nodes of a chain, the verdict on it, and the session that measured it."""

    before: int
    after: int
    link: Link
    judged: Judged
    session: Session


@dataclass(frozen=True)
class Node:
    """A launch of a cell: the position and hash of the first commit that has it, and of the last commit before it.
    `why`: the reason if nothing links it with the launch before."""

    at: int
    commit: str
    before_at: int
    before: str
    why: str = ""


@dataclass(frozen=True, eq=False)
class Chain:
    """The launches of a cell along a line of commits, and their links.

    `nodes`: the launches after the first one, the oldest first; launch 0 is the one before them.
    `alike`: pairs of launches with the same identity, such as before a change and after its revert.
    `joins`: what full runs say of launches that neither links nor identities join.
    """

    cell: str
    nodes: Sequence[Node]
    edges: Sequence[Edge]
    alike: Sequence[tuple[int, int]] = ()
    joins: Sequence[Edge] = ()

    @property
    def rate(self) -> bool:
        """Whether more is better, as its newest link has it. Levels are of the inverse then: a rise is always worse."""
        return bool(self.edges) and self.edges[-1].link.rate

    @cached_property
    def _pairs(self) -> list[tuple[int, int, float, float]]:
        """What is known of two launches: the logarithm of their ratio, and its standard error; links come first."""
        known = [(edge.before, edge.after, edge.link.log, edge.judged.error) for edge in self.edges]
        known += [(before, after, 0.0, ALIKE) for before, after in self.alike]
        return known + [(edge.before, edge.after, edge.link.log, edge.judged.error) for edge in self.joins]

    @cached_property
    def _solved(self) -> tuple[Values, Values, list[int], Values]:
        """The levels, their covariance, the piece to which each launch belongs (there is no link between pieces), and
        the covariance that the errors of the links alone give."""
        count = len(self.nodes) + 1
        pairs = self._pairs
        pieces = _pieces(count, [(before, after) for before, after, *_ in pairs])
        free = [node for node in range(count) if pieces[node] != node]
        column = {node: at for at, node in enumerate(free)}
        levels, own = np.zeros(count), np.zeros((count, count))
        if not free:
            return levels, own, pieces, own
        design, told = np.zeros((len(pairs), len(free))), np.zeros(len(pairs))
        for row, (before, after, log, error) in enumerate(pairs):
            for node, sign in ((before, -1.0), (after, 1.0)):
                if node in column:
                    design[row, column[node]] = sign / error
            told[row] = log / error
        inverse = np.linalg.inv(design.T @ design)
        solution = inverse @ design.T @ told
        levels[free] = solution
        own[np.ix_(free, free)] = inverse
        less = design / np.sqrt(self._excess((told - design @ solution) ** 2))[:, None]
        covariance = np.zeros((count, count))
        covariance[np.ix_(free, free)] = np.linalg.inv(less.T @ less)
        return levels, covariance, pieces, own

    def _excess(self, squares: Values) -> Values:
        """By pair, how much more than their errors the pairs of its block differ; at least 1. `squares`: of their
        residuals. GPUs that disagree make the levels less certain, and none that do not rest on them."""
        pairs = [(before, after) for before, after, *_ in self._pairs]
        found = np.ones(len(pairs))
        is_forest = len(pairs) == sum(piece != node for node, piece in enumerate(_pieces(len(self.nodes) + 1, pairs)))
        for part in () if is_forest else _blocks(pairs):
            freedom = len(part) + 1 - len({node for at in part for node in pairs[at]})
            if freedom:
                found[part] = max(1.0, float(squares[part].sum()) / freedom)
        return found

    @property
    def levels(self) -> Values:
        """The logarithm of each launch's seconds over those of the first launch of its piece."""
        return self._solved[0]

    @property
    def errors(self) -> Values:
        """The standard errors of the levels."""
        return np.asarray(np.sqrt(np.maximum(np.diag(self._solved[1]), 0.0)))

    @property
    def pieces(self) -> list[int]:
        """The first launch of each launch's piece."""
        return self._solved[2]

    def span(self, first: int, last: int) -> tuple[float, float]:
        """The logarithm of the ratio of two launches' seconds, and its standard error; both NaN if nothing links
        them."""
        levels, covariance, pieces, _ = self._solved
        if pieces[first] != pieces[last]:
            return math.nan, math.nan
        variance = covariance[first, first] + covariance[last, last] - 2 * covariance[first, last]
        return float(levels[last] - levels[first]), math.sqrt(max(float(variance), 0.0))

    def half(self, first: int, last: int) -> float:
        """The half-width of the 95 % interval of a span."""
        return quantile(0.975, self.freedom(first, last)) * self.span(first, last)[1]

    def freedom(self, first: int, last: int) -> int:
        """The degrees of freedom of a span's standard error: those of its links, weighted by their variances (Welch and
        Satterthwaite)."""
        variances, own = self._variances[:, first:last]
        total = float((variances**2 / own).sum())
        if not total or not math.isfinite(total):
            return FREEDOM_MOST
        return max(1, min(FREEDOM_MOST, int(float(variances.sum()) ** 2 / total + 1e-6)))

    @cached_property
    def _variances(self) -> Values:
        """By step, its variance and the degrees of freedom of all links that tell of it: of its own, or else of those
        that span it."""
        found = np.ones((2, len(self.nodes)))
        for node in range(1, len(self.nodes) + 1):
            every = [*self.edges, *self.joins]
            own = self.at_node(node) or [edge for edge in every if edge.before < node <= edge.after]
            error = self.span(self.start(node), node)[1]
            found[:, node - 1] = error**2, sum(edge.judged.freedom for edge in own) or 1
        return np.nan_to_num(found)  # what leads to a gap is part of no span

    def launch_at(self, at: int) -> int:
        """The launch at a position of the line."""
        return bisect([node.at for node in self.nodes], at)

    def at_node(self, node: int) -> list[Edge]:
        """The links of the step that made a launch, which several GPUs may have measured."""
        return self._by_node.get(node, [])

    def start(self, node: int) -> int:
        """The launch with which the step that made a launch is compared: the one before it, or that before a gap."""
        own = self.at_node(node)
        return own[0].before if own else node - 1

    @cached_property
    def _by_node(self) -> dict[int, list[Edge]]:
        found: dict[int, list[Edge]] = {}
        for edge in self.edges:
            if edge.session.kind == "step" and edge.session.after == self.nodes[edge.after - 1].commit:
                found.setdefault(edge.after, []).append(edge)
        newest = {node: max(edge.before for edge in own) for node, own in found.items()}
        return {node: [edge for edge in own if edge.before == newest[node]] for node, own in found.items()}

    def word(self, node: int) -> str:
        """The verdict on the step that made a launch: that of its session, or of all GPUs that measured it together."""
        own = self.at_node(node)
        if len(own) <= 1:
            return own[0].judged.word if own else "cannot tell"
        return word_of(*self.joint(node))

    def joint(self, node: int) -> tuple[float, float, int]:
        """What all links of the step that made a launch say together: a logarithm, its standard error, and the degrees
        of freedom of that."""
        own = self.at_node(node)
        if len(own) == 1:
            return own[0].link.log, own[0].judged.error, own[0].judged.freedom
        weights = np.array([1 / edge.judged.error**2 for edge in own])
        logs = np.array([edge.link.log for edge in own])
        middle = float((weights * logs).sum() / weights.sum())
        excess = float((weights * (logs - middle) ** 2).sum()) / (len(own) - 1)
        error = math.sqrt(max(1.0, excess) / float(weights.sum()))
        return middle, error, sum(edge.judged.freedom for edge in own)

    def disagreeing(self) -> list[tuple[Edge, float]]:
        """The links that differ from what all others say, with how far, as a logarithm.

        What the others say of a link follows from the solution with it: its residual and the share of its level that
        rests on itself, the leverage. A link without which the chain falls apart has a leverage of 1.
        """
        if len(self.edges) + len(self.alike) <= len(self.nodes):
            return []
        levels, _, _, own = self._solved
        pairs = self._pairs
        before, after = np.array([pair[:2] for pair in pairs]).T
        logs, errors = np.array([pair[2:] for pair in pairs]).T
        leverage = (own[before, before] + own[after, after] - 2 * own[before, after]) / errors**2
        left = 1 - leverage
        residual = logs - (levels[after] - levels[before])
        squares = (residual / errors) ** 2
        freedom = len(pairs) - sum(piece != node for node, piece in enumerate(self.pieces)) - 1
        found = []
        for at, edge in enumerate(self.edges):
            if left[at] < LEAST_LEFT:
                continue  # nothing else tells of it
            apart = float(residual[at] / left[at])
            excess = max(1.0, float(squares.sum() - squares[at] / left[at]) / freedom) if freedom else 1.0
            error = math.sqrt(max(float(leverage[at] / left[at]), 0.0) * excess) * edge.judged.error
            if abs(apart) > APART * math.hypot(edge.judged.error, error) + math.log1p(FLOOR):
                found.append((edge, apart))
        return found

    @cached_property
    def _linked(self) -> list[int]:
        """The pieces as links and identities alone make them."""
        return _pieces(len(self.nodes) + 1, [*((edge.before, edge.after) for edge in self.edges), *self.alike])

    def gradual(self) -> list[tuple[int, int]]:
        """The spans that many small steps moved, each by its first and its last launch: those between two changes that
        are told by themselves, and whose sum is beyond the floor. Where a step that is not decided hides the sum, those
        between such steps count. A span leads over a gap if links do, as where a launch failed and is back. None leads
        over a join by full runs."""
        words = {node: self.word(node) for node in range(1, len(self.nodes) + 1) if self.at_node(node)}
        told = [node for node, word in words.items() if word in ("worse", "better")]
        decided = [own for own in self._stretches(told) if self._has_moved(own)]
        parts = self._stretches([node for node, word in words.items() if word != "no change"])
        hidden = [own for own in parts if self._has_moved(own) and not any({*own} <= {*whole} for whole in decided)]
        return sorted((own[0], self._end(own)) for own in [*decided, *hidden])

    def _end(self, stretch: Sequence[int]) -> int:
        """The launch at which the change of a stretch ends, which names it: the last one that is surely farther than
        the end before it. So links that move nothing do not move the end. If the launches after it surely go back, all
        of them count."""
        first, last = stretch[0], stretch[-1]
        sign = math.copysign(1.0, self.span(first, last)[0])
        end = stretch[2]
        for node in stretch[3:]:
            log, error = self.span(end, node)
            if sign * log > quantile(1 - END_LEVEL / 2, self.freedom(end, node)) * error:
                end = node
        return end if self._least(end, last) <= math.log1p(FLOOR) else last

    def _stretches(self, ends: Sequence[int]) -> list[list[int]]:
        """The launches that links connect, between those whose steps end a stretch."""
        found: dict[tuple[int, int], list[int]] = {}
        for node, piece in enumerate(self._linked):
            found.setdefault((bisect(ends, node), piece), []).append(node)
        return list(found.values())

    def _has_moved(self, stretch: Sequence[int]) -> bool:
        """Whether the sum of the steps of a stretch is beyond the floor; one step has a verdict of its own."""
        return len(stretch) > 2 and self._least(stretch[0], stretch[-1]) > math.log1p(FLOOR)

    def _least(self, first: int, last: int) -> float:
        """The logarithm by which a span moved at the least."""
        log, error = self.span(first, last)
        return abs(log) - quantile(1 - GRADUAL_LEVEL / 2, self.freedom(first, last)) * error

    def next_linked(self, node: int) -> int:
        """The first launch after one that links connect with it."""
        return self._linked.index(self._linked[node], node + 1)

    def last_linked(self, node: int) -> int:
        """The last launch before one that links connect with it."""
        return max(other for other in range(node) if self._linked[other] == self._linked[node])


def _pieces(count: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """For each of `count` nodes the first one that is connected with it."""
    first = list(range(count))

    def root(node: int) -> int:
        while first[node] != node:
            node = first[node]
        return node

    for before, after in pairs:
        low, high = sorted((root(before), root(after)))
        first[high] = low
    return [root(node) for node in range(count)]


def _blocks(pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The numbers of the pairs by block: two pairs are in one block if they lie on a circle of pairs. So what a pair
    says is held against those of its block alone."""
    import networkx  # here, since few chains have a circle, and the import takes longer than most commands

    numbers: dict[frozenset[int], list[int]] = {}
    for number, pair in enumerate(pairs):
        numbers.setdefault(frozenset(pair), []).append(number)
    blocks = networkx.biconnected_component_edges(networkx.Graph(pairs))
    return [[number for pair in block for number in numbers[frozenset(pair)]] for block in blocks]


def chains(
    sessions: Sequence[Session], positions: Mapping[str, int], unasked: Iterable[str] = (), runs: Sequence[Session] = ()
) -> dict[str, Chain]:
    """The chains of all cells that sessions linked along a line of commits. `positions`: of the commits of the line;
    `unasked`: commits that may have changed a launch, and that no session asked; `runs`: of full runs."""
    own = _along(sessions, positions)
    cells = dict.fromkeys(link.cell for session in own for link in session.changed)
    told = [(session, judge(session), {link.cell: link for link in session.changed}) for session in own]
    full = [(session, {link.cell: link for link in session.links}) for session in _along(runs, positions)]
    commits = {at: commit for commit, at in positions.items()}
    gaps = [
        Node(at, commits[at], at - 1, commits[at - 1], UNASKED)
        for at in sorted(positions[commit] for commit in unasked)
        if at - 1 in commits
    ]
    found = {}
    for cell in cells:
        runs_of = [(session, links[cell]) for session, links in full if cell in links]
        # Unasked commits may lie beyond the sessions, among full runs that other cells have.
        tell = [*own, *(session for session, _ in runs_of)]
        found[cell] = _chain(cell, told, positions, _within(gaps, tell, positions) if full else gaps, runs_of)
    return found


def _along(sessions: Sequence[Session], positions: Mapping[str, int]) -> list[Session]:
    """The sessions whose commits follow each other on a line."""
    known = [each for each in sessions if each.before in positions and each.after in positions]
    return [each for each in known if positions[each.before] < positions[each.after]]


def _chain(
    cell: str, told: Sequence[Told], positions: Mapping[str, int], gaps: Sequence[Node], full: Sequence[Run]
) -> Chain:
    nodes: dict[int, Node] = {}
    sessions = [session for session, *_ in told]
    for session, _, changed in told:
        if session.kind != "step":
            continue
        linked = cell in changed
        why = "" if linked else _why_absent(cell, session)
        at = positions[session.after]
        if why and session.why_left(cell) and _asked_elsewhere(cell, session, sessions):
            continue
        if (linked or why) and (at not in nodes or linked):
            nodes[at] = Node(at, session.after, positions[session.before], session.before, why)
    unknown = _filled(nodes, gaps, full, positions)
    launches = sorted(nodes)
    # Of the commits between two launches that were not asked, the last one stands for all.
    nodes = {**{node.at: node for node in {bisect(launches, gap.at): gap for gap in unknown}.values()}, **nodes}
    ordered = [nodes[at] for at in sorted(nodes)]
    starts = np.array([node.at for node in ordered])

    def node_of(commit: str) -> int:
        return int(np.searchsorted(starts, positions[commit], side="right"))

    edges = [
        Edge(node_of(session.before), node_of(session.after), changed[cell], judged[cell], session)
        for session, judged, changed in told
        if cell in changed
    ]
    edges = [edge for edge in edges if edge.before != edge.after]
    if still := _still(ordered, edges):
        between = {bisect(launches, node.at) for node in still}
        same = [gap for gap in unknown if bisect(launches, gap.at) in between]
        return _chain(cell, told, positions, [gap for gap in gaps if gap not in same], full)
    alike = _alike(edges)
    pieces = _pieces(len(ordered) + 1, [*((edge.before, edge.after) for edge in edges), *alike])
    runs = [(node_of(session.before), node_of(session.after), session, link) for session, link in full]
    return Chain(cell, ordered, edges, alike, _joining(pieces, runs))


def _within(gaps: Sequence[Node], sessions: Sequence[Session], positions: Mapping[str, int]) -> list[Node]:
    """The gaps between the first and the last commit of these sessions."""
    first = min(positions[session.before] for session in sessions)
    last = max(positions[session.after] for session in sessions)
    return [gap for gap in gaps if first < gap.at <= last]


def _filled(
    nodes: dict[int, Node], gaps: Sequence[Node], full: Sequence[Run], positions: Mapping[str, int]
) -> list[Node]:
    """The gaps that full runs do not fill. Those before and after a gap tell whether it changed the launch, if no asked
    commit between them did; a launch that it changed is added to `nodes`."""
    left = list(gaps)
    spans = [(positions[session.before], positions[session.after], session, link) for session, link in full]
    for first, last, session, link in sorted(spans, key=lambda span: span[1] - span[0]):
        told = [gap for gap in left if first < gap.at <= last]
        if told and not any(first < at <= last for at in nodes):
            left = [gap for gap in left if gap not in told]
            if not link.control:
                nodes[last] = Node(last, session.after, first, session.before)
    return left


def _joining(pieces: Sequence[int], runs: Iterable[tuple[int, int, Session, Link]]) -> list[Edge]:
    """Of what full runs say, the surest that joins pieces of a chain, so that it moves no level that links tell. One
    launch on both sides is as fast. `runs`: the launches before and after, the session and its link."""
    joined, found = list(pieces), []
    for before, after, session, link in sorted(runs, key=lambda run: (not run[3].control, run[3].error)):
        if joined[before] == joined[after]:
            continue
        low, high = sorted((joined[before], joined[after]))
        joined = [low if piece == high else piece for piece in joined]
        judged = Judged("no change", 0.0, ALIKE, FREEDOM_MOST) if link.control else judge(session)[link.cell]
        found.append(Edge(before, after, replace(link, log=judged.log), judged, session))
    return found


def _asked_elsewhere(cell: str, session: Session, sessions: Iterable[Session]) -> bool:
    """Whether another session asked what this one left."""
    same = (
        each for each in sessions if (each.before, each.after, each.kind) == (session.before, session.after, "step")
    )
    return any(not each.why_left(cell) for each in same)


def _why_absent(cell: str, session: Session) -> str:
    """Why a session that knows of a change of the cell has no link of it; "" if it knows of none."""
    rung = cell.partition(" ")[0]
    names = (cell, rung, session.before[:8], session.after[:8])  # a tree may be broken as a whole
    if any(name in session.unjudged for name in names):
        return next(session.unjudged[name] for name in names if name in session.unjudged)
    if any(name in session.new for name in names):
        return "it is new"
    return "it is gone" if any(name in session.gone for name in names) else ""


def _still(nodes: Sequence[Node], edges: Sequence[Edge]) -> list[Node]:
    """The gaps of commits that were not asked and did not change the launch: the links on both sides tell that its
    identity is the same."""
    identities: dict[int, str] = {}
    for edge in edges:
        identities |= zip((edge.before, edge.after), edge.link.identities, strict=True)
    return [
        own
        for node, own in enumerate(nodes, 1)
        if own.why == UNASKED and identities.get(node) and identities[node] == identities.get(node - 1)
    ]


def _alike(edges: Sequence[Edge]) -> list[tuple[int, int]]:
    """The pairs of launches with the same identity, such as before a change and after its revert. With one compiler two
    launches may be the same, and with another one not: these are none."""
    first: dict[str, int] = {}
    found = []
    known = _identities(edges)
    for edge in edges:
        for node, identity in zip((edge.before, edge.after), edge.link.identities, strict=True):
            if not identity:
                continue
            other = first.setdefault(identity, node)
            pair = min(other, node), max(other, node)
            if other != node and pair not in found and not _differ(known[other], known[node]):
                found.append(pair)
    return found


def _identities(edges: Sequence[Edge]) -> dict[int, dict[str, set[str]]]:
    """By launch, its identities with each set of versions, whichever GPU it was."""
    found: dict[int, dict[str, set[str]]] = {}
    for edge in edges:
        versions = {name: value for name, value in edge.session.conditions.items() if name not in OF_A_DEVICE}
        key = json.dumps(versions, sort_keys=True)
        for node, identity in zip((edge.before, edge.after), edge.link.identities, strict=True):
            if identity:
                found.setdefault(node, {}).setdefault(key, set()).add(identity)
    return found


def _differ(before: Mapping[str, set[str]], after: Mapping[str, set[str]]) -> bool:
    """Whether the same versions give two launches different identities."""
    return any(before[key].isdisjoint(after[key]) for key in before.keys() & after.keys())
