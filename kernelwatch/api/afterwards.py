"""After the timing: the same calls over the same memory, with numbers that nobody could know before.

A candidate that keeps an output, works only when it is looked at, or leaves its work to something else, has the right
output for the numbers that it was timed with. So some of the sets over which it was timed are given arguments that are
made anew, and the calls are made once more, in three ways: what was timed last is done again as it is; the sets are
gone over twice, with other numbers from the second turn on; and they are gone over once, beside the original. The
outputs must be right when the clock stops, and the candidate must not take longer beside the original than it did in
the timing.
"""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelwatch.api.arguments import Original, device_of, is_tensor
from kernelwatch.api.outputs import Outputs, Values, arrays, differ, left, outputs, values, why_other
from kernelwatch.api.rounds import Sets, Subject, Timer
from kernelwatch.api.statistics import level
from kernelwatch.system import clock

LOOKS = 6  # sets whose outputs are compared
LEAST, MOST = 3, 9  # repeats, of which the shortest counts: other programs may delay some
REST_S = 0.02  # between repeats: what delays a candidate may last as long
LONGER = {"gpu": 1.25, "cpu": 1.5}  # than in the timing, by device: beyond it work was left out, or it was disturbed
SURELY = {"gpu": 1.25, "cpu": 4.0}  # beyond that it was left out: all turns of a busy CPU may be disturbed alike
SLACK_S = {"gpu": 5e-6, "cpu": 2e-5}  # of a turn over the sets: what was not called for a while is slow at first
TURN_S = 1e-3  # a turn over the sets takes about as long, if there are so many
MAKING_S = 0.2  # of the arguments for a turn
LATE = "its output is right only some time after its calls: it goes on working elsewhere"
LATE_S = 0.2  # after which outputs that were wrong are looked at again

Arguments = tuple[Any, ...]


class Afterwards:
    """Looks at a candidate after it was timed beside an original.

    `original`: takes `count` positional arguments, and the others by these names. `make`: makes all arguments anew.
    `tolerance`: as in `why_other`.
    """

    def __init__(
        self,
        timer: Timer,
        original: Callable[..., object],
        count: int,
        names: Sequence[str],
        make: Callable[[], Arguments],
        tolerance: tuple[float, float],
        cache: str,
    ) -> None:
        self.timer, self.original, self.count, self.names = timer, original, count, names
        self.make, self.tolerance, self.cache = make, tolerance, cache
        self.expectations: list[Values] = []  # of the original, for other numbers each
        self.random = secrets.SystemRandom()
        self.doubt = ""  # why nothing can be told from the timing of the candidate that was looked at last

    @property
    def is_random(self) -> bool:
        """Whether other arguments had other outputs."""
        first, *others = self.expectations
        return any(differ(a, b, 0, 0) for other in others for a, b in zip(first, other, strict=True))

    def why(
        self, original: Subject, candidate: Subject, sets: Sets, rounds: tuple[Sequence[float], Sequence[float]]
    ) -> str:
        """Why the timing of a candidate is no figure of its work, "" if it is, or if `doubt` says why that cannot be
        told. `sets`: of the last round. `rounds`: the seconds of a call of the original and of the candidate in each
        turn."""
        used = candidate.used(sets)
        chosen = self.random.sample(range(len(used)), min(LOOKS, len(used)))
        made = self._filled([used[at] for at in chosen])
        returned = candidate.again()
        if returned is not None:
            own = {at: returned.get(at) for at in chosen}
            if why := self._wrong([used[at] for at in chosen], made, list(own.values())):
                return why
        some = [used[at] for at in chosen]
        self._filled(some)
        news = self._new(len(some))
        latest = [*range(len(some))][::-1]
        _, returned, stopped = _once(candidate, some, latest, lambda: self._fill(some, news))
        if why := self._wrong(
            [some[at] for at in latest], [news[at] for at in latest], [returned.get(at) for at in latest], stopped
        ):
            return why
        return self._left_out(original, candidate, used, rounds)

    def _left_out(
        self, original: Subject, candidate: Subject, used: Sets, rounds: tuple[Sequence[float], Sequence[float]]
    ) -> str:
        """Why the timing of a candidate lacks work that it does when it sees other numbers, "" if it does not. A timing
        whose turns are so far apart that they allow for it, or nearly so on a CPU, is a doubt."""
        seconds = [level(own)[0] for own in rounds]
        ratio, longer = seconds[1] / seconds[0], LONGER[self.timer.device]
        _, (_, most_ratio) = level([own / theirs for theirs, own in zip(*rounds, strict=True)])
        began = clock.perf_counter()
        self.make()
        most = MAKING_S / max(clock.perf_counter() - began, 1e-9)
        count = min(len(used), max(LOOKS, int(min(most, TURN_S / seconds[0]))))
        original_s = own_s = math.inf  # the shortest of each: a delay of the original excuses no candidate
        for repeat in range(MOST):
            some = self.random.sample([*used], count)
            chosen = [count - 1, *self.random.sample(range(count - 1), min(LOOKS, count) - 1)]  # the last call first
            for at in (1, 0) if repeat % 2 else (0, 1):
                made = self._filled(some)
                if not at:
                    original_s = min(original_s, original.once(some)[0])
                    continue
                took_s, returned, stopped = _once(candidate, some, chosen)
                own_s = min(own_s, took_s)
                sets, news = [some[look] for look in chosen], [made[look] for look in chosen]
                if why := self._wrong(sets, news, [returned.get(look) for look in chosen], stopped):
                    return why
            if repeat + 1 >= LEAST and count * (own_s - longer * ratio * original_s) <= SLACK_S[self.timer.device]:
                return ""
            clock.sleep(REST_S)
        told = (
            f"with numbers that it has not seen it takes {own_s / original_s:.3g} times as long as the original, in "
            f"the timing {ratio:.3g} times"
        )
        if count * (own_s - SURELY[self.timer.device] * most_ratio * original_s) <= SLACK_S[self.timer.device]:
            self.doubt = (
                f"{told}, but up to {most_ratio:.3g} times as far as its turns can tell: it leaves out work, or other "
                "programs disturbed the timing"
            )
            return ""
        return f"{told}: it leaves out work that it has done before"

    # --- other numbers ---------------------------------------------------------------------------------------------

    def _new(self, count: int) -> list[Arguments]:
        return [self.make() for _ in range(count)]

    def _filled(self, sets: Sets) -> list[Arguments]:
        """Give each set other numbers, which are returned."""
        news = self._new(len(sets))
        self._fill(sets, news)
        return news

    def _fill(self, sets: Sets, news: Sequence[Arguments]) -> None:
        """Write other numbers into the arrays of the sets, on the current stream."""
        for arguments, new in zip(sets, news, strict=True):
            for copy, array in zip(arguments, new, strict=True):
                if device_of(array) == self.timer.device:
                    Original(array, self.timer.xp).fill(copy)

    # --- what is right ---------------------------------------------------------------------------------------------

    def _wrong(
        self, sets: Sets, news: Sequence[Arguments], returned: Sequence[object], stopped: Sequence[list[Any]] = ()
    ) -> str:
        """Why outputs are wrong, "" if they are right. `stopped`: what they were when the clock stopped. The original
        computes what is right only now: there was nothing to be found before."""
        seen = [left(result, arguments) for result, arguments in zip(returned, sets, strict=True)]
        later = [values(arrays(both)) for both in zip(returned, sets, strict=True)]
        for copies, now in zip(stopped, later, strict=False):
            if any(differ(*pair, 0, 0) for pair in zip(values(copies), now, strict=True)):
                return LATE
        expected = [self._expected(new) for new in news]
        for at, (theirs, own) in enumerate(zip(expected, seen, strict=True)):
            if why := why_other(theirs, own, *self.tolerance):
                clock.sleep(LATE_S)
                if not why_other(theirs, left(returned[at], sets[at]), *self.tolerance):
                    return LATE
                return f"timed, its calls do not compute this any more: for other numbers, {why}"
        return ""

    def _expected(self, new: Arguments) -> Outputs:
        keywords: Mapping[str, object] = dict(zip(self.names, new[self.count :], strict=True))
        found = outputs(self.timer, self.original, new[: self.count], keywords, self.cache)
        self.expectations.append([*found.returned, *found.arrays])
        return found


def _once(
    candidate: Subject, sets: Sets, chosen: Sequence[int], between: Callable[[], object] | None = None
) -> tuple[float, Mapping[int, object], list[list[Any]]]:
    """What `once` gives, and copies of what is in the chosen sets when its clock stops.

    The copies are enqueued on the current stream, and nothing waits: work that a thread enqueues after that is not in
    them. The last calls come first in `chosen`; a thread that lags behind has not come to them.
    """
    for at in chosen:
        _copies(sets[at])  # so that the allocators have the memory: to get it from the driver would wait
    seconds, returned = candidate.once(sets, between)
    return seconds, returned, [_copies((returned.get(at), sets[at])) for at in chosen]


def _copies(result: object) -> list[Any]:
    """Copies of the arrays of a result, on their device; of a library that cannot copy, on the host."""
    return [_copy(one) for one in arrays(result)]


def _copy(array: Any) -> Any:
    if is_tensor(array):
        return array.detach().clone()
    return array.copy() if hasattr(array, "copy") else values(array)[0]
