"""The state, the size and the interval of each event and of each of its changes. They are decided here and nowhere
else: pages, feed, terminal and Markdown read them.

A regression is open while it is "new" or "confirmed". What was measured again in turns has the size and interval of
these turns; all else has those of its series.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kernelwatch.detect.events import Change, Event, JudgedSeries
from kernelwatch.detect.linked import LinkedSeries
from kernelwatch.history import confirmations
from kernelwatch.history.confirmations import Confirmation, Verdicts, Word
from kernelwatch.history.decisions import Accepted, Decision
from kernelwatch.history.expected import KEY, Expected
from kernelwatch.history.records import rung_and_type

State = Literal["new", "confirmed", "refuted", "accepted", "fixed", "undone"]
Interval = tuple[float, float]
CLOSE = 1e-9  # of two relative changes that are the same
BACK = {"undone": "undone by", "made up": "made up for by", "back": "back to the level before since"}


@dataclass(frozen=True)
class Ended:
    """What brought a level back. `how`: "undone" if the launch is the one before the change; "made up" if what changed
    is still there, and another change made up for it; "back" if neither is known."""

    commit: str
    how: str

    @property
    def words(self) -> str:
        return f"{BACK[self.how]} {self.commit[:8]}"


@dataclass(frozen=True)
class Consent:
    """Someone's word that a change is all right. `kind`: "accepted" by a decision, or "expected" by the trailer of a
    commit; `size`, `bounds`: what it covers; `missed`: why it does not cover what is measured, "" if it does."""

    kind: Literal["accepted", "expected"]
    by: str
    at: str
    reason: str
    size: float | None
    bounds: Interval | None = None
    missed: str = ""

    @property
    def words(self) -> str:
        return f"accepted by {self.by.partition(' <')[0]}" if self.kind == "accepted" else "as its commit expects"


@dataclass(frozen=True)
class Standing:
    """How a change or an event stands. `state`: None if the environment changed; `words`: the state for readers."""

    state: State | None
    words: str
    size: float
    interval: Interval
    consent: Consent | None = None
    ended: Ended | None = None
    verdict: Confirmation | None = None
    is_open: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of an expected change on a line of commits. `state`: "came", "larger", "smaller", "missing", "open"
    (it cannot be said yet) or "unreadable"."""

    expected: Expected
    branch: str
    commit: str
    state: str
    words: str


def percent(size: float) -> str:
    return f"{size:+.2%}".replace("%", " %") if math.isfinite(size) else "from 0"


def verdict_of(change: Change, verdicts: Mapping[str, Verdicts]) -> Confirmation | None:
    """The stored verdict on a change, if there is one."""
    known = verdicts.get(change.series.place.get("machine") or "", {})
    return known.get((change.series.cell, change.before.commit, change.last.commit))


def word_of(event: Event, verdicts: Mapping[str, Verdicts]) -> Word:
    """The verdict on an event. Exact figures need no confirmation."""
    if event.kind != "environment" and any(change.series.exact for change in event.changes):
        return "confirmed"
    found = (verdict_of(change, verdicts) for change in event.changes)
    return confirmations.overall(verdict.word if verdict else "not tried" for verdict in found)


def names_of(series: JudgedSeries) -> list[str]:
    """By what a commit may name a series: its cell, or the figure of asv with or without its parameters."""
    values = [value.strip("'") for value in series.params.values()]
    return [name for name in (series.cell, series.benchmark, f"{series.benchmark}({', '.join(values)})") if name]


def headline(event: Event) -> Change:
    """The change that stands for an event: the largest of time if there is one."""
    return next((change for change in event.changes if not change.series.exact), event.changes[0])


@dataclass
class States:
    """The standings of events and their changes.

    `verdicts`: by machine. `series`: the judged series, among them those of exact figures. `accepted`: by the id of a
    change. `expected`: by the name of a line, what its commits announce, with the positions of these.
    """

    events: Sequence[Event]
    verdicts: Mapping[str, Verdicts]
    series: Sequence[JudgedSeries]
    accepted: Mapping[str, tuple[Decision, Accepted]] = field(default_factory=dict)
    expected: Mapping[str, Sequence[tuple[Expected, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._of_series: dict[int, list[Change]] = defaultdict(list)
        for change in (change for event in self.events for change in event.changes):
            self._of_series[id(change.series)].append(change)
        self._exact: dict[tuple[object, ...], list[JudgedSeries]] = defaultdict(list)
        for each in self.series:
            if each.exact and each.shows:
                self._exact[_where(each), rung_and_type(each.shows)].append(each)
        self._changes: dict[int, Standing] = {}
        self._events: dict[int, Standing] = {}
        for event in self.events:
            word = word_of(event, self.verdicts)
            own = [self._change(event, change, word) for change in event.changes]
            self._changes |= {id(change): standing for change, standing in zip(event.changes, own, strict=True)}
            self._events[id(event)] = self._event(event, own)

    def of(self, which: Event | Change) -> Standing:
        return self._events[id(which)] if isinstance(which, Event) else self._changes[id(which)]

    def once(self, branches: Sequence[str]) -> list[Event]:
        """The events with each change on one branch: on the first on which it is open, or else the first that has it.
        What was taken back on one branch may not be on another. `branches`: in their order."""
        chosen: dict[tuple[object, ...], Change] = {}
        every = [change for event in self.events for change in event.changes]
        order = {name: at for at, name in enumerate(branches)}
        for change in sorted(every, key=lambda each: order[each.series.place.get("branch") or ""]):
            known = chosen.setdefault(_which(change), change)
            if self.of(change).is_open and not self.of(known).is_open:
                chosen[_which(change)] = change
        found = []
        for event in self.events:
            kept = tuple(change for change in event.changes if chosen[_which(change)] is change)
            if kept == event.changes:
                found.append(event)
            elif kept:
                part = Event(event.kind, kept)
                self._events[id(part)] = self._event(part, [self.of(change) for change in kept])
                found.append(part)
        return found

    # --- a change ---------------------------------------------------------------------------------------------------

    def _change(self, event: Event, change: Change, word: Word) -> Standing:
        verdict = verdict_of(change, self.verdicts)
        size, interval = _size(change, verdict)
        if event.kind == "environment":
            return Standing(None, "no commit is to blame", size, interval, verdict=verdict)
        if verdict and verdict.word == "refuted":
            return Standing("refuted", "refuted", size, interval, verdict=verdict)
        # One confirmed change confirms the event, and so the others, which the same commit made.
        state: State = "confirmed" if word == "confirmed" else "new"
        words = state if state == "confirmed" else _new(verdict.word if verdict else word)
        plain = Standing(state, words, size, interval, verdict=verdict, is_open=event.kind == "regression")
        if ended := self._ended(change):
            state = "fixed" if event.kind == "regression" else "undone"
            return replace(plain, state=state, words=ended.words, ended=ended, is_open=False)
        if event.kind != "regression" or not (consent := self._consent(change, size, interval)):
            return plain
        if consent.missed:
            return replace(plain, words=f"{words}, {consent.missed}", consent=consent)
        return replace(plain, state="accepted", words=consent.words, consent=consent, is_open=False)

    def _ended(self, change: Change) -> Ended | None:
        if change.back is None:
            return None
        commit, launches = change.series.results[change.back.at].commit, change.launches
        if change.series.exact:
            return Ended(commit, "undone" if change.back.after == change.step.before else "back")
        if launches and launches[0] == launches[1]:
            return Ended(commit, "undone")
        restored = list(self._restored(change, commit))
        if restored:
            return Ended(commit, "undone" if all(restored) else "made up")
        return Ended(commit, "made up" if launches else "back")

    def _restored(self, change: Change, commit: str) -> Iterator[bool]:
        """Of each exact figure of the same rung and type that changed with a change: whether it is at a later commit
        what it was before."""
        for series in self._exact.get((_where(change.series), rung_and_type(change.series.cell)), ()):
            commits = [result.commit for result in series.results]
            steps = [each for each in series.changes() if each.last.commit == change.last.commit]
            if steps and steps[0].kind != "environment" and commit in commits:
                yield series.results[commits.index(commit)].point.value == steps[0].step.before

    # --- decisions --------------------------------------------------------------------------------------------------

    def _consent(self, change: Change, size: float, interval: Interval) -> Consent | None:
        """What was said of a regression, and whether it covers it as it is now."""
        given = self._given(change)
        if given is None:
            return None
        if given.kind == "expected":
            # What is surely more than expected: the end of the interval on the better side.
            least = min((_sign(change) * end for end in interval if math.isfinite(end)), default=_sign(change) * size)
            assert given.size is not None
            too_large = least > _sign(change) * given.size + CLOSE
        else:
            too_large = _sign(change) * size > _sign(change) * (_bound(change, given) - 1) + CLOSE
        if too_large:
            said = "from 0" if given.size is None else percent(given.size)
            return replace(given, missed=f"larger than {given.kind}: {said}")
        return replace(given, missed=self._worse_since(change, size, given))

    def _given(self, change: Change) -> Consent | None:
        if change.id in self.accepted:
            decision, own = self.accepted[change.id]
            return Consent("accepted", decision.by, decision.at, decision.reason, own.size, own.bounds)
        for expected, position in self._expected_of(change.series):
            low, high = change.before.point.commit, change.last.point.commit
            if low < position <= high and expected.size is not None:
                reason = f"{KEY}: {expected.text}"
                return Consent("expected", expected.author, expected.commit, reason, expected.size)
        return None

    def _expected_of(self, series: JudgedSeries) -> Iterator[tuple[Expected, int]]:
        for expected, position in self.expected.get(series.place.get("branch") or "", ()):
            if expected.is_about(names_of(series)):
                yield expected, position

    def _worse_since(self, change: Change, size: float, given: Consent) -> str:
        """Why a later level is worse than what was accepted, "" if it is not. Later regressions that were accepted
        themselves count for what was accepted of them."""
        level, allowed, since = 1 + size, _bound(change, given), ""
        later = [each for each in self._of_series[id(change.series)] if each.step.at > change.step.at]
        for each in sorted(later, key=lambda each: each.step.at):
            verdict = verdict_of(each, self.verdicts)
            if each.kind == "environment":
                break
            if (verdict and verdict.word == "refuted") or not each.step.before:
                continue
            level *= each.step.after / each.step.before
            if each.kind == "regression":
                consent = self._given(each)
                allowed *= _bound(each, consent) if consent else 1.0
                since = each.last.commit
        worse = _sign(change) * level > _sign(change) * allowed + CLOSE
        return f"worse than {given.kind} since {since[:8]}: {percent(level - 1)}" if since and worse else ""

    # --- an event ---------------------------------------------------------------------------------------------------

    def _event(self, event: Event, own: Sequence[Standing]) -> Standing:
        first = own[event.changes.index(headline(event))]
        if event.kind == "environment":
            return replace(first, words=event.why, verdict=None)
        left = [each for each in own if each.state != "refuted"]
        if not left:
            return replace(first, verdict=None)
        still = [each for each in left if each.is_open] or [each for each in left if each.ended is None] or left
        if all(each.ended for each in still):
            words = "; ".join(dict.fromkeys(each.words for each in still))
        else:
            missed = next((each for each in still if each.consent and each.consent.missed), None)
            words = (missed or still[0]).words
        chosen = next((each for each in still if each.words == words), still[0])
        return replace(chosen, words=words, size=first.size, interval=first.interval, verdict=None)

    # --- what was expected ------------------------------------------------------------------------------------------

    def outcomes(self, lines: Mapping[str, Sequence[str]], every: Sequence[JudgedSeries]) -> list[Outcome]:
        """What became of all that was expected. `lines`: the commits of each line by its name; `every`: the series, by
        full runs and by links."""
        found = []
        for branch, expected in self.expected.items():
            for each, position in expected:
                state, words = self._outcome(
                    each, position, [one for one in every if one.place.get("branch") == branch]
                )
                found.append(Outcome(each, branch, lines[branch][position], state, words))
        return found

    def _outcome(self, expected: Expected, position: int, series: Sequence[JudgedSeries]) -> tuple[str, str]:
        if expected.size is None:
            return (
                "unreadable",
                f"{KEY} cannot be read: it should be a cell, a rung or a figure and a size with its sign",
            )
        own = [one for one in series if expected.is_about(names_of(one))]
        if not own:
            return "unreadable", "no judged series has this name"
        came = [
            change for one in own for change in self._of_series[id(one)]
            if change.before.point.commit < position <= change.last.point.commit and change.kind != "environment"
        ]  # fmt: skip
        came = [change for change in came if self.of(change).state != "refuted"]
        if came:
            return _compared(expected.size, [self.of(change) for change in came], came)
        reasons = [_unseen(one, position, abs(expected.size)) for one in own]
        if "" in reasons:
            return "missing", "it did not come"
        return "open", next(iter(reasons))


def _which(change: Change) -> tuple[object, ...]:
    """What names a change on whatever branch."""
    place = {name: value for name, value in change.series.place.items() if name != "branch"}
    return change.kind, change.id, change.last.commit, *sorted(place.items())


def _where(series: JudgedSeries) -> tuple[str, str]:
    return series.place.get("machine") or "", series.place.get("branch") or ""


def _sign(change: Change) -> float:
    """1 if more is worse, else -1."""
    return -1.0 if change.series.higher_is_better else 1.0


def _size(change: Change, verdict: Confirmation | None) -> tuple[float, Interval]:
    """The size of a change and its interval: those of the turns that confirmed it, else those of its series."""
    if verdict and verdict.word == "confirmed" and None not in (verdict.change, verdict.low, verdict.high):
        assert verdict.change is not None
        assert verdict.low is not None
        assert verdict.high is not None
        return verdict.change, (verdict.low, verdict.high)
    return change.step.change, change.interval


def _new(word: Word) -> str:
    return "measured again, not decided" if word == "not decided" else "not measured again yet"


def _bound(change: Change, given: Consent) -> float:
    """The largest ratio of a level to that before a change that someone's consent covers; infinite if the level before
    is 0."""
    if given.size is None:
        return math.inf if _sign(change) > 0 else -math.inf
    ends = given.bounds or (given.size, given.size)
    return 1 + _sign(change) * max(_sign(change) * end for end in ends)


def _compared(size: float, standings: Sequence[Standing], changes: Sequence[Change]) -> tuple[str, str]:
    """An expected size with what came."""
    said = ", ".join(dict.fromkeys(percent(each.size) for each in standings[:4])) + (", ..." if standings[4:] else "")
    for standing, change in zip(standings, changes, strict=True):
        ends = [_sign(change) * end for end in standing.interval if math.isfinite(end)] or [
            _sign(change) * standing.size
        ]
        if min(ends) > _sign(change) * size + CLOSE:
            return "larger", f"worse than expected: {said}"
    for standing in standings:
        ends = [end for end in standing.interval if math.isfinite(end)] or [standing.size]
        if size * standing.size < 0 or max(map(abs, ends)) < abs(size) - CLOSE:
            return "smaller", f"less than expected: {said}"
    return "came", f"it came: {said}"


def _unseen(series: JudgedSeries, position: int, size: float) -> str:
    """Why a series cannot say yet whether a change of a size came; "" if it says that none did."""
    at = [result.point.commit for result in series.results]
    if not any(each < position for each in at):
        return "no commit before it is measured"
    after = sum(each >= position for each in at)
    if not after:
        return "it is not measured yet"
    if not series.exact and after < 2 and not isinstance(series, LinkedSeries):
        return "one commit more must be measured"
    if series.smallest > size:
        return f"too small for its history, which shows {percent(series.smallest)}"
    return ""
