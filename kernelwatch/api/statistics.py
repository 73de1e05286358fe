"""The level of some samples, the result of several processes, and the verdict on the ratios of turns."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from kernelwatch.api.result import Compared, Judgment, Measured
from kernelwatch.comparison.paired import FALSE_ALARMS, LOOKS, Judged, interval, judge
from kernelwatch.comparison.spending import bounds

LEVEL = 0.05  # of the interval of a measurement
CHANCE = 0.01  # with which a judge does not see that a function leaves out the share of its calls that is told
WORDS = {"worse": "slower", "better": "faster"}


def level(samples: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """The trimmed mean of some seconds, and its interval; (0, inf) if there is but one."""
    found = interval([math.log(one) for one in samples], LEVEL)
    if math.isinf(found.half):
        return math.exp(found.middle), (0.0, math.inf)
    return math.exp(found.middle), (math.exp(found.middle - found.half), math.exp(found.middle + found.half))


def pooled(results: Sequence[Measured]) -> Measured:
    """One result of several processes."""
    first = results[0]
    samples = tuple(result.seconds for result in results)
    seconds, bounds = level(samples)
    peaks = [result.peak_allocated_bytes for result in results if result.peak_allocated_bytes is not None]
    clocks = [result.clock_mhz for result in results if result.clock_mhz]
    return Measured(
        name=first.name,
        seconds=seconds,
        interval=bounds,
        samples=samples,
        bytes=first.bytes,
        flops=first.flops,
        clock_mhz=statistics.median(clocks) if clocks else None,
        warnings=tuple(dict.fromkeys(text for result in results for text in result.warnings)),
        device=first.device,
        cache=first.cache,
        method=first.method,
        processes=len(results),
        peak_allocated_bytes=max(peaks) if peaks else None,
        conditions=first.conditions | {"took_s": sum(result.conditions["took_s"] for result in results)},
        judged=_together([result.judged for result in results if result.judged]),
    )


def _together(judgments: Sequence[Judgment]) -> Judgment | None:
    """How several processes were judged: the times are the worst of each."""
    if not judgments:
        return None
    worst = {name: max(getattr(one, name) for one in judgments) for name in ("fixed_s", "resolution_s", "shortest_s")}
    checked = sum(one.checked for one in judgments)
    return replace(
        judgments[0],
        rounds=sum(one.rounds for one in judgments),
        checked=checked,
        unseen=1 - CHANCE ** (1 / checked),
        at_most_s=statistics.median(one.at_most_s for one in judgments),
        **worst,
    )


class Verdict:
    """The verdict on the turns of a comparison, sought after LOOKS turns and when the time is up.

    `device`: of the callables.
    `within`: the largest relative change that is "same"; None for the usual one of the device.
    """

    def __init__(self, device: str, within: float | None) -> None:
        self.floor, self.within = bounds(device, within)
        self.judged: Judged | None = None

    def judge(self, logs: Sequence[float]) -> Judged:
        """The verdict on the log ratios of some turns."""
        self.judged = judge(logs, {}, floor=self.floor, within=self.within, level=FALSE_ALARMS / (len(LOOKS) + 1))
        return self.judged

    def reached(self, samples: list[list[float]], late: bool) -> bool:
        """Whether no further turn is taken. `samples`: the seconds of both in each turn; `late`: the time is up."""
        turns = len(samples[0])
        if turns < LOOKS[0] or not (late or turns in LOOKS):
            return False
        return self.judge(log_ratios(*samples)).word != "cannot tell" or late or turns >= LOOKS[-1]

    def compared(self, both: Sequence[Measured], logs: Sequence[float]) -> Compared:
        """The result of a comparison."""
        found = self.judged or self.judge(logs)
        low, high = found.bounds
        word = WORDS.get(found.word, found.word)
        return Compared(
            a=both[0],
            b=both[1],
            ratio=1 + found.change,
            interval=(1 + low, 1 + high),
            verdict=f"same within {100 * self.within:g} %" if word == "no change" else word,
            why=found.why,
            detectable=found.detectable,
            samples=tuple(math.exp(value) for value in logs),
        )


def log_ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """The logarithms of the ratios of b to a."""
    return [math.log(after / before) for before, after in zip(a, b, strict=True)]
