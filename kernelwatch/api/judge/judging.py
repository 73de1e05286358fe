"""The judge: fresh inputs for every set, "go", its own clock, and a look at outputs that nobody could choose before.

A round of a candidate is one call over each of many sets of buffers. What a round takes beside the calls (the messages,
the launch of a graph, the GPU's switches between processes, the judge's own look) is taken from a control: the same
round of the reference, in a process that is trusted and says how long the calls took, while no other one works. It is
not taken from the candidate's own short rounds: whoever rests in these would make the difference to long ones as small
as it likes. Nor from calls that do nothing: what a round takes depends on how much memory the calls before the judge's
look have touched.
"""

import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernelwatch.api.judge.memory import judging
from kernelwatch.api.judge.player import GONE_S, Player, guarded
from kernelwatch.api.judge.runner import Job
from kernelwatch.api.judge.values import Reference, Values
from kernelwatch.api.result import Judgment, Measured, MeasureError, Refused
from kernelwatch.api.rounds import Timer
from kernelwatch.api.statistics import CHANCE, level
from kernelwatch.identity import TIMED

ROUND_S = 0.02  # of the reference's calls in a round, about, if there is room for so many sets
SETS_MOST = 4096
SETS_LEAST = 8  # if there is room, however long a call takes
CHECKED_MOST = 32  # sets of a round, of which all outputs are compared
CHECKED_LEAST = 4
LOOK_BYTES = 16  # of a place in an output that is read before the clock stops
REHEARSALS = 2  # rounds that are compared, and not timed
PREPARED = 3  # times that the numbers of a round are made if the player does not stand still
ROUNDS_LEAST, ROUNDS_MOST = 12, 200
CONTROLS_LEAST, CONTROLS_MOST = 4, 16  # rounds of the control, before and after the candidate
LATE_S = 0.5  # after which outputs that were wrong are looked at again, to say whether they came too late
HIDDEN = 0.05  # a shorter call is too short, if fixed costs of which a candidate may hide some are more than this of it
TOO_EARLY = "still wrote its output after it had said that it was done"

Functions = Callable[..., object]


@dataclass(frozen=True)
class Rules:
    """`rtol`, `atol`: how far an element of an output may be off. `seconds`: about how long rounds are taken."""

    rtol: float = 0.0
    atol: float = 0.0
    seconds: float = 0.2


class Judge:
    """A judge of functions that compute what a reference does, on the device of a timer, which must be current.

    `name`: of the reference, by which a fresh process imports it, see api/named.py.
    `maker`: what made the arguments, see `Values`.

    Raises: MeasureError if the reference or the arguments cannot show what is right.
    """

    def __init__(
        self,
        timer: Timer,
        name: str,
        function: Functions,
        positional: Sequence[Any],
        named: Mapping[str, Any],
        rules: Rules,
        maker: Functions | None = None,
    ) -> None:
        self.rules, self.timer = rules, timer
        self.device = judging(timer)
        self.values = Values(self.device, positional, named, maker)
        self.name = name
        self.reference = Reference(
            self.device, name.rpartition(":")[2], function, self.values, (rules.rtol, rules.atol)
        )
        layout = self.values.layout
        room = self.device.room // layout.set_bytes
        if room < 2:
            raise MeasureError(f"there is no room for two sets of the arrays, of {layout.set_bytes >> 20} MiB each")
        call_s = max(self.reference.seconds, ROUND_S / SETS_MOST)
        wanted = max(SETS_LEAST, round(ROUND_S / call_s))
        self.sets = min(room, SETS_MOST, wanted)
        self.controlled = min(self.sets, max(1, round(ROUND_S / call_s)))  # sets of the control: a slow call has few
        self.checked = min(self.sets, CHECKED_MOST, max(CHECKED_LEAST, self.device.checked_bytes // layout.set_bytes))
        self.arena = self.device.arena(self.sets * layout.set_bytes)
        self.memory = self.arena.memory[: self.sets * layout.set_bytes]
        self.looked = self.device.xp.empty((self.device.looks, LOOK_BYTES // 8), np.uint64)
        self.turn = 0  # of filling the arena; others get other numbers
        self.control: Player | None = None
        self._fill()  # the system hands out memory when it is first written

    # --- the rounds ------------------------------------------------------------------------------------------------

    def _start(self, function: str, sets: int, tells: bool = False) -> Player:
        job = Job(function, self.values.layout, sets, self.arena.handle, tells)
        return Player(job, self.arena.descriptors, self.device.spins)

    def _fill(self) -> None:
        """Give every set other inputs, and noise in the place of what it does not read."""
        self.turn += 1
        self.values.noise(self.memory, 0, self.turn)
        self.values.fill(self.memory, 0, self.sets, self.turn)
        self.device.flush()

    def _chosen(self) -> list[int]:
        return sorted(secrets.SystemRandom().sample(range(self.sets), self.checked))

    def _places(self, chosen: Sequence[int]) -> Any:
        """Random places in the outputs of the chosen sets, counted in pieces of LOOK_BYTES."""
        random = np.random.default_rng(secrets.randbits(128))
        places = [self.values.layout.places[at] for at in self.reference.writes]
        ends = np.cumsum([-(-place.span // LOOK_BYTES) for place in places])
        within = random.integers(0, ends[-1], self.device.looks)
        which = np.searchsorted(ends, within, side="right")
        starts = np.array([place.start // LOOK_BYTES for place in places]) - np.concatenate([[0], ends[:-1]])
        sets = random.choice(np.array(chosen), self.device.looks)
        at = sets * (self.values.layout.set_bytes // LOOK_BYTES) + starts[which] + within
        return self.device.xp.asarray(at.astype(np.int64))

    def _look(self, places: Any, into: Any) -> None:
        """Read the places. On a GPU this waits for whatever runs there, or interrupts it: work that is still under way
        when a candidate says "done" is in the time, or missing in what is read."""
        pieces = self.memory.view(np.uint64).reshape(-1, LOOK_BYTES // 8)
        pieces.take(places, axis=0, out=into)
        self.device.wait()

    def _prepare(self, player: Player) -> None:
        """Make the numbers of a round while the player stands still. Numbers that it may have seen come are not used: a
        thread is counted as one that stands still a moment before it leaves its core, which on a busy machine takes
        long enough to look like work. Raises: Refused if it is at work each time."""
        for _ in range(PREPARED):
            player.hold()
            self._fill()
            self.device.wait()
            if player.stood():
                return
        raise Refused(f"{player.name} was at work before its clock started, while its numbers were made")

    def _round(self, player: Player) -> tuple[float, tuple[str, ...]]:
        """A round of a candidate: its seconds, and the limits that were met. Raises: Refused."""
        chosen = self._chosen()
        places = self._places(chosen)
        self._prepare(player)
        seconds = player.play(lambda: self._look(places, self.looked))
        met = self.device.limits()
        again = self.device.xp.empty_like(self.looked)
        self._look(places, again)
        late = bool((again != self.looked).any())
        for number in chosen:
            begin = number * self.values.layout.set_bytes
            set_ = self.memory[begin : begin + self.values.layout.set_bytes]
            if why := self.reference.why_wrong(set_, number, self.turn):
                time.sleep(LATE_S)
                self._look(places, again)
                late = late or bool((again != self.looked).any())
                why = f"set {number} of {self.sets}: {why}"
                raise Refused(f"{player.name} {TOO_EARLY}, {why}" if late else f"{player.name}: {why}")
        if late:
            raise Refused(f"{player.name} {TOO_EARLY}")
        return seconds, met

    def _controls(self) -> list[float]:
        """The seconds that rounds of the reference take beside its calls, of a process that is trusted."""
        assert self.control
        found: list[float] = []
        until = time.perf_counter() + self.rules.seconds
        while len(found) < REHEARSALS + CONTROLS_LEAST or (
            time.perf_counter() < until and len(found) < REHEARSALS + CONTROLS_MOST
        ):
            places = self._places(self._chosen())
            try:
                self._prepare(self.control)
                seconds = self.control.play(lambda places=places: self._look(places, self.looked))  # type: ignore[misc]
            except Refused as error:
                raise MeasureError(f"the control, a process of the reference, failed: {error}") from error
            told_s = float(self.control.told)
            if not 0 <= told_s <= seconds:
                raise MeasureError(f"the control's calls took {told_s:g} s of a round of {seconds:g} s, as it says")
            found.append(seconds - told_s)
        return found[REHEARSALS:]

    @contextmanager
    def sitting(self) -> Iterator[None]:
        """While candidates are judged. Within, none of them can read this process, or leave one of its own behind."""
        with guarded():
            self.control = self._start(self.name, self.controlled, tells=True)
            try:
                yield
            finally:
                self.control.kill()
                self.control = None

    # --- a verdict on one process ----------------------------------------------------------------------------------

    def judge(self, function: str) -> Measured:
        """Measure a function by its name in a fresh process. This process does not import it.

        Raises: Refused if it is wrong, cheats, or does not answer; MeasureError if clocks or limits were changed, or if
        it is the reference itself that is refused, or the control.
        """
        try:
            return self._judged(function)
        except Refused as error:
            if function != self.name:
                raise
            raise MeasureError(f"the reference itself is refused, which is no candidate's fault: {error}") from error

    def _judged(self, function: str) -> Measured:
        began = time.perf_counter()
        settings, users = self.device.settings(), self.device.users()
        before = self._controls()
        rounds: list[tuple[float, tuple[str, ...]]] = []
        player = self._start(function, self.sets)
        try:
            for _ in range(REHEARSALS):
                self._round(player)
            until = time.perf_counter() + self.rules.seconds
            while len(rounds) < ROUNDS_LEAST or (time.perf_counter() < until and len(rounds) < ROUNDS_MOST):
                rounds.append(self._round(player))
            player.end()
        finally:
            player.kill()
        after = self._controls()
        now = self.device.settings()  # of another parent if that has ended
        known = [name for name in settings if name in now]
        if changed := [f"{name} from {settings[name]} to {now[name]}" for name in known if now[name] != settings[name]]:
            raise MeasureError(f"settings changed while {player.name} ran: {', '.join(changed)}")
        found = self._found(player, rounds, before, after, time.perf_counter() - began)
        until = time.perf_counter() + GONE_S
        while (others := self.device.users() - users) and time.perf_counter() < until:
            time.sleep(GONE_S / 20)
        if others:
            text = f"processes began to use the GPU meanwhile: {', '.join(map(str, sorted(others)))}"
            found = replace(found, warnings=(*found.warnings, text))
        return found

    def _found(
        self,
        player: Player,
        rounds: Sequence[tuple[float, tuple[str, ...]]],
        before: Sequence[float],
        after: Sequence[float],
        took_s: float,
    ) -> Measured:
        warnings = []
        wholes = [seconds for seconds, _ in rounds]
        # The smaller one: a figure is never flattered by what made the control slow.
        fixed_s = min(statistics.median(before), statistics.median(after))
        spread_s = max(abs(bound - fixed_s) for bound in level([*before, *after])[1])
        samples = [(whole - fixed_s) / self.sets for whole in wholes]
        if min(samples) <= 0:
            samples = [whole / self.sets for whole in wholes]
            warnings.append("it is too short for the judge: its figure holds all that a round takes beside the calls")
        seconds, interval = level(samples)
        own_s = (interval[1] - interval[0]) / 2
        judgment = Judgment(
            reference=self.reference.name,
            rounds=len(rounds),
            sets=self.sets,
            checked=len(rounds) * self.checked,
            unseen=1 - CHANCE ** (1 / (len(rounds) * self.checked)),
            fixed_s=fixed_s / self.sets,
            resolution_s=own_s + spread_s / self.sets,
            shortest_s=(fixed_s + spread_s) / self.sets / HIDDEN,
            at_most_s=level([whole / self.sets for whole in wholes])[0],
        )
        if seconds < judgment.shortest_s and not warnings:
            warnings.append(
                f"{100 * HIDDEN:g} % of its time or more may be fixed costs of a round, of which it could hide some"
            )
        if player.how == "calls" and self.device.spins:
            warnings.append("it cannot be captured in a CUDA graph: launched from Python")
        if self.device.unreset:
            warnings.append(
                f"the L2 cache's persisting lines could not be reset ({self.device.unreset}): it may keep arrays there"
            )
        if limited := [one for _, met in rounds for one in met]:
            names = ", ".join(dict.fromkeys(limited))
            warnings.append(f"the clocks were lowered in some of {len(rounds)} rounds ({names})")
        copied = sum(place.itemsize * int(np.prod(place.shape)) for place in self.values.layout.places)
        return Measured(
            name=player.name,
            seconds=seconds,
            interval=interval,
            samples=tuple(samples),
            bytes=copied,
            flops=None,
            clock_mhz=None,
            warnings=tuple(warnings),
            device=self.timer.name,
            cache="cold",
            method="judge",
            conditions={**self.timer.conditions(), TIMED.fact: TIMED.version, "copies": self.sets, "took_s": took_s},
            judged=judgment,
        )
