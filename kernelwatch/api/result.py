"""What `measure` and `compare` return, and how it is shown in a terminal and in a notebook."""

import html
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelwatch.report.texts import bounds_text, change_text, rate_text, time_text

METHODS = {
    "graph": "in a CUDA graph",
    "events": "launched from Python, between events",
    "host": "by the host's clock",
    "judge": "judged from another process",
}


class MeasureError(RuntimeError):
    """A callable cannot be measured: it raises, or it is asked for something that this machine lacks."""


class Refused(MeasureError):
    """A judge refuses a function: its output is wrong, or it does what a function that is measured must not do."""


@dataclass(frozen=True)
class Judgment:
    """How a function was judged that is not trusted, by a process that it does not run in.

    `reference`: the function that its outputs were compared with. `rounds`: that were timed; `sets`: of buffers in a
    round, over each of which it is called once. `checked`: sets of which all outputs were compared, in all rounds.
    `unseen`: the share of the sets that it could leave out in every round, and be found out in 99 % of cases.
    `fixed_s`: what was taken off a call for what a round takes beside the calls. None can gain more by hiding of it.
    `resolution_s`: how far the figure may be off by the noise of the rounds and of the control.
    `shortest_s`: the shortest call of which `fixed_s` is so small a part that the figure says something.
    `at_most_s`: of a call, with nothing taken off.
    """

    reference: str
    rounds: int
    sets: int
    checked: int
    unseen: float
    fixed_s: float
    resolution_s: float
    shortest_s: float
    at_most_s: float


@dataclass(frozen=True, repr=False)
class Measured:
    """A measured callable.

    `name`: of the callable.
    `seconds`: of one call, the trimmed mean of the rounds.
    `interval`: its 95 % interval in seconds, from how far the rounds differ; or the processes, if there are several.
    `samples`: the seconds of a call in each round, or in each process.
    `bytes`: that a call moves, each array once unless they were given; `flops`: operations of a call, if given.
    `clock_mhz`: the median SM clock during the rounds, None on a CPU or if it is not known.
    `warnings`: what makes the figure doubtful, one sentence each.
    `device`: the name of the GPU or CPU. `cache`: "cold" or "hot".
    `method`: "graph" (a CUDA graph of calls), "events" (launched from Python between events), "host" (its clock) or
    "judge" (the clock of another process).
    `peak_allocated_bytes`: the most device memory that a call allocates at once, through CuPy's or PyTorch's allocator;
    None on a CPU.
    `conditions`: driver, versions, temperature in C, power in W, copies of the arrays, calls, and the seconds that the
    measurement took.
    `judged`: how it was judged; None in the open mode.
    """

    name: str
    seconds: float
    interval: tuple[float, float]
    samples: tuple[float, ...]
    bytes: int | None
    flops: float | None
    clock_mhz: float | None
    warnings: tuple[str, ...]
    device: str
    cache: str
    method: str
    processes: int = 1
    peak_allocated_bytes: int | None = None
    conditions: dict[str, Any] = field(default_factory=dict)
    judged: Judgment | None = None

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes per second, None without `bytes`."""
        return self.bytes / self.seconds if self.bytes else None

    @property
    def flops_per_s(self) -> float | None:
        """Operations per second, None without `flops`."""
        return self.flops / self.seconds if self.flops else None

    @property
    def spread(self) -> float:
        """The standard deviation of the samples over their mean, NaN for a single one."""
        if len(self.samples) < 2:
            return math.nan
        return statistics.stdev(self.samples) / statistics.mean(self.samples)

    def rows(self) -> dict[str, str]:
        """The figures as text, by what they are."""
        rows = {"time": f"{time_text(self.seconds)} ({_interval_text(self.seconds, self.interval)})"}
        if self.bytes_per_s:
            rows["bandwidth"] = f"{rate_text(self.bytes_per_s)} GB/s"
        if self.flops_per_s:
            rows["arithmetic"] = f"{rate_text(self.flops_per_s)} GFLOP/s"
        clock = f" at {self.clock_mhz:.0f} MHz" if self.clock_mhz else ""
        what = f"{len(self.samples)} {'processes' if self.processes > 1 else 'rounds'}"
        rows["device"] = f"{self.device}{clock}"
        rows["how"] = f"{self.cache}, {METHODS[self.method]}, {what}"
        if self.judged:
            one = self.judged
            rows["judged"] = (
                f"against {one.reference}, {one.checked} outputs compared; resolution {time_text(one.resolution_s)}, "
                f"shortest {time_text(one.shortest_s)}"
            )
        return rows

    def __repr__(self) -> str:
        return _text(self.name, self.rows(), self.warnings)

    def _repr_html_(self) -> str:
        return _html(self.name, self.rows(), self.warnings)


@dataclass(frozen=True, repr=False)
class Compared:
    """Two callables that were measured in turns.

    `a`, `b`: each as measured.
    `ratio`: the seconds of b over those of a, the trimmed mean of the turns' ratios.
    `interval`: its interval; at most 1 % of comparisons of two equal callables say faster or slower.
    `verdict`: of b: "faster", "slower", "same within x %" or "cannot tell". `why`: the reason, "" if there is no more.
    `detectable`: the smallest relative change that as many turns could have shown.
    `samples`: the ratio of each turn, or of each process.
    """

    a: Measured
    b: Measured
    ratio: float
    interval: tuple[float, float]
    verdict: str
    why: str
    detectable: float
    samples: tuple[float, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of both, each with its side and the name of the callable."""
        return _warnings({"a": self.a, "b": self.b})

    def rows(self) -> dict[str, str]:
        """The figures as text, by what they are."""
        return self._rows({"a (base)": self.a, "b": self.b})

    def as_asked(self) -> str:
        """The result as text for who named `b` first and then `a`, as the command line does."""
        sides = {"measured": self.b, "base": self.a}
        return _text(self._title, self._rows(sides), _warnings(sides))

    def _rows(self, sides: Mapping[str, Measured]) -> dict[str, str]:
        low, high = self.interval
        known = math.isfinite(high)
        change = f"{change_text(self.ratio - 1)} ({bounds_text(low - 1, high - 1)})" if known else "unknown"
        return {
            "verdict": self.verdict + (f": {self.why}" if self.why else ""),
            "change": f"{change} in {len(self.samples)} {'processes' if self.b.processes > 1 else 'turns'}",
            **{f"{side}: {one.name}": one.rows()["time"] for side, one in sides.items()},
            "device": self.b.rows()["device"],
            "how": f"{self.b.cache}, {METHODS[self.b.method]}",
        }

    @property
    def _title(self) -> str:
        return f"{self.b.name} against {self.a.name}"

    def __repr__(self) -> str:
        return _text(self._title, self.rows(), self.warnings)

    def _repr_html_(self) -> str:
        return _html(self._title, self.rows(), self.warnings)


def _warnings(sides: Mapping[str, Measured]) -> tuple[str, ...]:
    return tuple(f"{side} ({one.name}): {text}" for side, one in sides.items() for text in one.warnings)


def _interval_text(seconds: float, interval: tuple[float, float]) -> str:
    low, high = interval
    if not math.isfinite(high):
        return "one sample: no interval"
    return f"± {100 * max(high / seconds - 1, 1 - low / seconds):.2g} %"


def _text(title: str, rows: dict[str, str], warnings: tuple[str, ...]) -> str:
    width = max(map(len, rows))
    lines = [title, *(f"  {name:{width}}  {text}" for name, text in rows.items())]
    return "\n".join([*lines, *(f"  warning: {text}" for text in warnings)])


def _html(title: str, rows: dict[str, str], warnings: tuple[str, ...]) -> str:
    cells = "".join(
        f'<tr><th style="text-align:left">{html.escape(name)}</th>'
        f'<td style="text-align:left">{html.escape(text)}</td></tr>'
        for name, text in rows.items()
    )
    notes = "".join(f"<li>{html.escape(text)}</li>" for text in warnings)
    caption = f'<caption style="text-align:left"><b>{html.escape(title)}</b></caption>'
    return f"<table>{caption}{cells}</table>" + (f"<ul>{notes}</ul>" if notes else "")
