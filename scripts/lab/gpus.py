"""What links say of the GPUs that measured them: how far these differ on one change, and on none.

A change is a cell with the launches before and after it, whichever commits have them. GPUs of different models are
never compared.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernelwatch.detect.judging import judge
from kernelwatch.detect.steps import Values
from kernelwatch.history import links
from kernelwatch.history.links import Link, Session
from kernelwatch.report.markdown import table

LEAST = 3  # GPUs that must have measured a change before it tells how they differ
SLOWED = 0.98  # of the highest clock that links of the model have: below it, power or heat lowered the clock
KINDS = ("cold", "hot", "lowered clock")


@dataclass(frozen=True)
class Change:
    """A change that several GPUs measured. By GPU: the logarithm of the ratio in `logs`, its standard error in
    `errors`, and the logarithms of the seconds before and after in `seconds`. `links`: how many there are."""

    cell: str
    kind: str
    gpus: Sequence[str]
    logs: Values
    errors: Values
    seconds: Values
    links: int

    @property
    def apart(self) -> float:
        """The standard deviation of the ratio between the GPUs."""
        return float(np.std(self.logs, ddof=1))

    @property
    def noise(self) -> float:
        """What that would be if GPUs differed by the errors of their links alone."""
        return math.sqrt(float(np.mean(self.errors**2)))

    @property
    def rest(self) -> float:
        """What the noise leaves of it."""
        return math.sqrt(max(0.0, self.apart**2 - self.noise**2))

    @property
    def level(self) -> float:
        """The standard deviation of the seconds between the GPUs, of both launches together."""
        return math.sqrt(float(np.mean(np.var(self.seconds, axis=0, ddof=1))))


def sessions_in(results: Path) -> list[Session]:
    """The sessions of all machines."""
    return [session for folder in sorted(results.glob("*/")) for session in links.read(folder)[0]]


def clocks(sessions: Iterable[Session]) -> dict[str, float]:
    """The highest clock that links of a GPU's model have."""
    highest: dict[str, float] = {}
    for session in sessions:
        for link in session.links:
            highest[model(session)] = max(highest.get(model(session), 0.0), *(mhz or 0.0 for mhz in link.clocks_mhz))
    return highest


def model(session: Session) -> str:
    """The name of a session's GPU; "" if it had none."""
    return str(session.conditions.get("gpu") or "")


def kind_of(cell: str, measured: Sequence[Link], highest: float) -> str:
    """Of which kind a cell is, as most of its links have it."""
    known = [min(each) for link in measured if (each := [mhz for mhz in link.clocks_mhz if mhz])]
    return KINDS[2] if known and statistics.median(known) < SLOWED * highest else cell.rpartition(" ")[2]


def changes(sessions: Sequence[Session], least: int = LEAST) -> list[Change]:
    """The changes that at least so many GPUs of a model measured."""
    highest = clocks(sessions)
    known: dict[tuple[str, str, tuple[str, str]], dict[str, list[tuple[Link, float]]]] = {}
    for session in (each for each in sessions if each.kind != "environment" and model(each)):
        judged = judge(session)
        for link in session.changed:
            if link.device == "gpu" and all(link.identities) and link.identities[0] != link.identities[1]:
                place = known.setdefault((model(session), link.cell, link.identities), defaultdict(list))
                place[session.gpu].append((link, judged[link.cell].error))
    found = []
    for (name, cell, _), by_gpu in known.items():
        if len(by_gpu) < least:
            continue
        own = [*by_gpu.values()]
        every = [link for measured in own for link, _ in measured]
        found.append(
            Change(
                cell,
                kind_of(cell, every, highest[name]),
                [*by_gpu],
                np.array([statistics.fmean(link.log for link, _ in each) for each in own]),
                np.array([math.hypot(*(error for _, error in each)) / len(each) for each in own]),
                np.array([np.mean([np.log(link.seconds) for link, _ in each], axis=0) for each in own]),
                len(every),
            )
        )
    return found


def correlation(found: Sequence[Change]) -> float:
    """How far the seconds after a change differ between GPUs as those before it do. NaN if they do not differ."""
    apart = [change.seconds - change.seconds.mean(axis=0) for change in found]
    before, after = np.concatenate(apart).T
    scale = math.sqrt(float(before @ before) * float(after @ after))
    return float(before @ after) / scale if scale else math.nan


def percent(values: Iterable[float], share: float) -> str:
    """A quantile of shares, in percent."""
    return f"{100 * float(np.quantile([*values], share)):.2f}"


def responding_table(sessions: Sequence[Session], least: int = LEAST) -> str:
    """How far the ratio of one change differs between the GPUs that measured it."""
    found, rows = changes(sessions, least), []
    for kind in KINDS:
        own = [change for change in found if change.kind == kind]
        if own:
            rows.append(
                [
                    kind,
                    str(len(own)),
                    str(sum(change.links for change in own)),
                    str(len({gpu for change in own for gpu in change.gpus})),
                    *(percent((change.apart for change in own), share) for share in (0.5, 0.9, 1)),
                    percent((change.noise for change in own), 0.5),
                    percent((change.rest for change in own), 0.5),
                    percent((change.level for change in own), 0.5),
                    f"{correlation(own):.2f}",
                ]
            )
    head = ["changes", "links", "GPUs", "median, %", "p90, %", "most, %", "noise, %", "without noise, %"]
    head += ["of seconds, %", "correlation"]
    none = [f"no change was measured by {least} GPUs yet", *[""] * len(head)]
    return table(["sd of a ratio between GPUs", *head], rows or [none])


def alike_table(sessions: Sequence[Session]) -> str:
    """What links say of a commit that is linked with itself: two environments that do not differ."""
    highest, rows = clocks(sessions), []
    told: dict[str, list[tuple[str, Link, str, float]]] = {kind: [] for kind in KINDS}
    for session in sessions:
        if session.kind == "environment" and not session.environments and model(session):
            judged = judge(session)
            for link in session.changed:
                own = judged[link.cell]
                kind = kind_of(link.cell, [link], highest[model(session)])
                told[kind].append((session.gpu, link, own.word, own.half()))
    for kind, links_of in told.items():
        if links_of:
            rows.append(
                [
                    kind,
                    str(len(links_of)),
                    str(len({gpu for gpu, *_ in links_of})),
                    str(sum(word in ("worse", "better") for _, _, word, _ in links_of)),
                    str(sum(word == "cannot tell" for _, _, word, _ in links_of)),
                    *(percent((abs(link.log) for _, link, _, _ in links_of), share) for share in (0.5, 0.9, 1)),
                    percent((half for *_, half in links_of), 0.5),
                ]
            )
    head = ["links", "GPUs", "slower or faster", "not decided", "median, %", "p90, %", "most, %", "half-width, %"]
    return table(["A/A", *head], rows or [["none was measured yet", *[""] * len(head)]])
