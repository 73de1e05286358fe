"""What a long session of links saves and loses if it stops measuring what is unchanged: recorded turns, and simulated.

A rule ends launches after their first turns. The others keep all their turns, and so do the controls.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kernelwatch.comparison.linking import BUDGET_S, CONTROLS
from kernelwatch.comparison.paired import LOOKS, trimmed_mean
from kernelwatch.detect.chain import chains
from kernelwatch.detect.judging import EARLY, WITHIN, judge, unchanged
from kernelwatch.detect.steps import Values
from kernelwatch.detect.testing import FLOOR
from kernelwatch.history.links import Link, Session
from kernelwatch.report.markdown import table
from lab.pools import CELL_S, START_S, Recorded, a_link, a_session, name

LEAST = 20  # links of a recorded session that is asked
LAUNCHES = 200  # of a simulated session
CHANGED = 10  # of these have a step
STEPS = (0.007, 0.01)
SESSIONS = 100  # of each step
CHAIN = 10  # links until an anchor is due
CHAINED = 60  # launches of a session that is one of a chain
CHAINS = 60
GROWTH = 0.0015  # of a link of a chain
EVENTS = ("worse", "better")


@dataclass(frozen=True)
class Rule:
    """Which launches end after EARLY turns: `ended` returns their cells from the links as these turns tell them."""

    title: str
    ended: Callable[[Sequence[Link]], set[str]]

    def of(self, session: Session) -> Session:
        """A session in which launches ended early."""
        first = {link.cell: cut(link) for link in session.links}
        ended = self.ended([*first.values()])
        return replace(session, links=tuple(first[link.cell] if link.cell in ended else link for link in session.links))


def cut(link: Link) -> Link:
    """A link as its first turns tell it."""
    logs = link.logs[:EARLY]
    log, error, freedom = trimmed_mean(logs)
    return replace(link, log=log, error=error, freedom=freedom, logs=logs)


def by_word(links: Sequence[Link]) -> set[str]:
    """The cells whose verdict is "no change"."""
    judged = judge(a_session(0, 1, links))
    return {link.cell for link in links if not link.control and judged[link.cell].word == "no change"}


RULES = (
    Rule("none", lambda _: set()),
    Rule(f"the interval lies within {100 * FLOOR:g} %", unchanged),
    Rule('the verdict is "no change"', by_word),
)


# --- recorded turns ------------------------------------------------------------------------------------------------


@dataclass
class Told:
    """What a rule makes of recorded sessions.

    `still`: unchanged launches, as all turns tell; `ended`: how many of them end early.
    `lost`, `more`: events that only all turns tell, and that only the rule tells.
    `large`, `undecided`: launches that end, and of which all turns say a change of 1 % for certain, or nothing.
    `halves`: half-widths of the launches that end, by all turns and by their first.
    `seconds`, `saved_s`: of sessions whose first look took longer than BUDGET_S.
    """

    still: int = 0
    ended: int = 0
    lost: int = 0
    more: int = 0
    large: int = 0
    undecided: int = 0
    halves: list[tuple[float, float]] = field(default_factory=list)
    seconds: float = 0.0
    saved_s: float = 0.0

    def take(self, session: Session, rule: Rule) -> None:
        """Add a session."""
        made = rule.of(session)
        every, few = judge(session), judge(made)
        ended = [
            link.cell for link, own in zip(session.links, made.links, strict=True) if len(own.logs) < len(link.logs)
        ]
        for cell in (link.cell for link in session.changed):
            old, new = every[cell].word, few[cell].word
            self.still += old == "no change"
            self.lost += old in EVENTS and new != old
            self.more += new in EVENTS and new != old
        for cell in ended:
            own = every[cell]
            self.ended += own.word == "no change"
            self.undecided += own.word == "cannot tell"
            self.large += abs(own.log) - own.half() > math.log1p(WITHIN)
            self.halves.append((own.half(), few[cell].half()))
        turns = max(len(link.logs) for link in session.links)
        if session.seconds * LOOKS[0] / turns > BUDGET_S:
            taken = START_S * turns + CELL_S * sum(len(link.logs) for link in session.links)
            self.seconds += session.seconds
            self.saved_s += session.seconds * CELL_S * len(ended) * (LOOKS[0] - EARLY) / taken


def asked(sessions: Iterable[Session]) -> list[Session]:
    """The sessions with LEAST links, all of which were measured until the first look."""
    return [
        session
        for session in sessions
        if len(session.links) >= LEAST and all(len(link.logs) >= LOOKS[0] for link in session.links)
    ]


def told(sessions: Iterable[Session], rule: Rule) -> Told:
    """What a rule makes of recorded sessions."""
    found = Told()
    for session in asked(sessions):
        found.take(session, rule)
    return found


def saved_of_all(sessions: Iterable[Session], launches: int) -> float:
    """The share of its seconds that a commit saves by the engine's rule if it changes so many launches and the speed of
    none, by the share of recorded unchanged launches that end."""
    own = told(sessions, RULES[1])
    taken = START_S * LOOKS[0] + CELL_S * launches * LOOKS[0]
    return CELL_S * launches * (own.ended / own.still) * (LOOKS[0] - EARLY) / taken


def recorded_table(sessions: Sequence[Session]) -> str:
    """The rules on recorded turns."""
    rows = []
    for rule in RULES[1:]:
        own = told(sessions, rule)
        before, after = (100 * statistics.median(halves) for halves in zip(*own.halves, strict=True))
        counts = (own.lost, own.more, own.large, own.undecided)
        rows.append(
            [
                rule.title,
                f"{own.ended} of {own.still}",
                *map(str, counts),
                f"{before:.2f} to {after:.2f}",
                f"{own.saved_s:.0f} of {own.seconds:.0f}",
            ]
        )
    head = ["unchanged that end", "events lost", "more", "1 % that end", "undecided that end", "half-width, %"]
    return table([f"ends after {EARLY} turns if", *head, "s saved"], rows)


# --- simulated turns -----------------------------------------------------------------------------------------------


@dataclass
class Found:
    """What a rule makes of simulated sessions.

    `steps`: by step, the share of launches with it that are called slower; `false`: of 1,000 unchanged launches, those
    that are called changed; `missed`: the share of their 95 % intervals that miss 0; `turns`: of an unchanged launch.
    `gradual`: of 1,000 chains of unchanged launches, and of those that grow by GROWTH a link, those with a gradual
    change.
    """

    steps: dict[float, float]
    false: float
    missed: float
    turns: float
    gradual: tuple[float, float]


def simulated(known: Recorded, seed: int, rule: Rule, sessions: int = SESSIONS, count: int = CHAINS) -> Found:
    """What a rule makes of sessions with the noise of recorded turns. A seed draws the same for each rule. `sessions`:
    of each step; `count`: of chains, for each launch."""
    steps = dict.fromkeys(STEPS, 0)
    false = missed = turns = 0
    for step in STEPS:
        rng = np.random.default_rng([seed, 6])
        for _ in range(sessions):
            true = np.where(np.arange(LAUNCHES + CONTROLS) < CHANGED, math.log1p(step), 0.0)
            session = drawn(rng, true, rng.choice(known.pool(), len(true)), rule, controls=CONTROLS)
            judged = judge(session)
            steps[step] += sum(judged[link.cell].word == "worse" for link in session.links[:CHANGED])
            for link in session.links[CHANGED:LAUNCHES]:
                own = judged[link.cell]
                false += own.word in EVENTS
                missed += abs(own.log) > own.half()
                turns += len(link.logs)
    still = len(STEPS) * sessions * (LAUNCHES - CHANGED)
    return Found(
        {step: each / (sessions * CHANGED) for step, each in steps.items()},
        1000 * false / still,
        missed / still,
        turns / still,
        (gradual(known, seed, rule, 0.0, count), gradual(known, seed, rule, GROWTH, count)),
    )


def gradual(known: Recorded, seed: int, rule: Rule, growth: float, count: int) -> float:
    """Of 1,000 chains whose launches grow by this logarithm a link, those with a gradual change."""
    rng, found = np.random.default_rng([seed, 7]), 0
    for _ in range(count):
        deviations = rng.choice(known.pool(), CHAINED)
        sessions = [drawn(rng, np.full(CHAINED, growth), deviations, rule, at) for at in range(CHAIN)]
        made = chains(sessions, {name(at): at for at in range(CHAIN + 1)})
        found += sum(bool(chain.gradual()) for chain in made.values())
    return 1000 * found / (count * CHAINED)


def drawn(
    rng: np.random.Generator, true: Values, deviations: Values, rule: Rule, at: int = 0, controls: int = 0
) -> Session:
    """A session of a commit under a rule. `true`: the logarithms; `deviations`: of a turn; `controls`: how many links
    at the end are controls."""
    logs = true[:, None] + deviations[:, None] * rng.standard_normal((len(true), LOOKS[0]))
    links = [a_link(str(cell), own, control=cell >= len(logs) - controls) for cell, own in enumerate(logs)]
    return rule.of(a_session(at, at + 1, links))


def simulated_table(known: Recorded, seed: int) -> str:
    """The rules on simulated turns."""
    rows = []
    for rule in RULES:
        own = simulated(known, seed, rule)
        rows.append(
            [
                rule.title,
                f"{own.turns:.1f}",
                f"{own.false:.2f}",
                *(f"{100 * share:.0f}" for share in own.steps.values()),
                f"{100 * own.missed:.1f}",
                *(f"{each:.1f}" for each in own.gradual),
            ]
        )
    steps = [f"{100 * step:g} % found, %" for step in STEPS]
    head = ["turns of an unchanged launch", "false of 1,000", *steps, "95 % interval misses, %"]
    return table([f"ends after {EARLY} turns if", *head, "gradual, false of 1,000", "gradual, found of 1,000"], rows)
