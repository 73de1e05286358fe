#!/usr/bin/env python3
"""Simulates how one history over many GPUs can be kept: links beside other designs, and links without their parts.

Anchors, controls and moderated noise are left out in turn, and changed launches respond differently to each GPU. What
GPUs differ by and how noisy turns are comes from results/. The seed determines the rest, and the same seed and records
make the same tables. Other tables simulate nothing: how far GPUs differ on one change, and on none (A/A), what they say
of the planted history, and what recorded sessions save if they stop measuring early. All go to docs/research/links.md.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kernelwatch.comparison.linking import CONTROLS, anchors_of
from kernelwatch.detect.chain import Chain, chains
from kernelwatch.detect.judging import Judged, judge, moderated, relative, word_of
from kernelwatch.detect.steps import Values
from kernelwatch.history import links as recorded_links
from kernelwatch.history import records
from kernelwatch.history.links import Link, Session, Word
from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from lab import early, gpus, pools
from lab.figures import write_block
from lab.pools import SIZES, TURNS, Recorded, Tally, a_link, a_session, name

ROOT = Path(__file__).resolve().parent.parent.parent
PAPER = ROOT / "docs" / "research" / "links.md"
PLANTED, NVRTC, TRITON, WARP = (ROOT / "data" / name for name in ("planted", "nvrtc", "triton", "warp"))
MACHINE = ROOT / "results" / "nvidia-h200.intel-xeon-processor.x86-64.linux"
CHANGED: tuple[Word, ...] = ("worse", "better")
SHARES = (1.0, 0.95, 0.9, 0.7)  # how far the response of a changed launch correlates with that of the one before it
CELLS = 30  # of a session whose launches all change
CHAIN = 50  # links
SPLIT = 24  # turns that one GPU takes, or three together


def share_text(count: float, of: float, digits: int = 0) -> str:
    """A share in percent, without its unit."""
    return f"{100 * count / of:.{digits}f}"


def designs_table(tallies: Mapping[str, Tally]) -> str:
    """The table of designs."""
    rows = [
        [
            design,
            f"{tally.false_per_1000:.1f}",
            *(share_text(tally.found[size], tally.steps[size]) for size in SIZES),
            share_text(tally.soon, tally.steps[0.01]),
            f"{1000 * tally.elsewhere / tally.changes:.0f}",
            f"{tally.cost_s / tally.commits:.0f}",
        ]
        for design, tally in tallies.items()
    ]
    sizes = [f"{100 * size:g} %" for size in SIZES]
    return table(["design", "false of 1,000", *sizes, "1 % soon", "elsewhere of 1,000", "GPU s a commit"], rows)


# --- anchors -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drift:
    """How far the levels at the end of chains are off, as logarithms, and how many chains have a gradual change."""

    off: Values
    gradual: int

    def within(self, share: float) -> float:
        """How far this share of the levels is off at most."""
        return float(np.quantile(abs(self.off), share))


def drift(known: Recorded, seed: int, bias: float, growth: float, *, anchored: bool, runs: int = 10) -> Drift:
    """Chains of CHAIN links. `bias`: by how much every link is too large, anchors included; `growth`: by how much the
    launch is slower after each change. `anchored`: whether anchors are measured where the engine asks for them."""
    steps, anchors = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2])
    off: list[float] = []
    gradual = 0
    for _ in range(runs):
        deviations = dict(zip(map(str, range(CELLS)), steps.choice(known.pool(), CELLS).tolist(), strict=True))
        sessions: list[Session] = []
        for at in range(CHAIN):
            step = a_session(at, at + 1, chained(steps, deviations, bias + growth))
            line = [name(earlier) for earlier in range(at + 1)]
            due = anchors_of(step, sessions, line) if anchored else {}
            sessions.append(step)
            for before, cells in due.items():
                first = int(before, 16)
                asked = {cell: deviations[cell] for cell in cells}
                own = chained(anchors, asked, bias + growth * (at + 1 - first))
                sessions.append(a_session(first, at + 1, own, kind="anchor"))
        made = chains(sessions, {name(at): at for at in range(CHAIN + 1)})
        off += [float(chain.levels[-1]) - CHAIN * growth for chain in made.values()]
        gradual += sum(bool(chain.gradual()) for chain in made.values())
    return Drift(np.array(off), gradual)


def chained(rng: np.random.Generator, deviations: Mapping[str, float], true: float) -> list[Link]:
    """Links of the same change. `deviations`: of a turn, by cell."""
    return [a_link(cell, true + own * rng.standard_normal(TURNS)) for cell, own in deviations.items()]


def anchors_table(known: Recorded, seed: int) -> str:
    """Chains with and without anchors."""
    rows = []
    for title, bias, growth in (
        ("noise alone", 0.0, 0.0),
        ("a bias of 0.02 % a link", 0.0002, 0.0),
        ("a true growth of 0.15 % a link", 0.0, 0.0015),
    ):
        for anchored in (False, True):
            told = drift(known, seed, bias, growth, anchored=anchored)
            figures = [100 * float(told.off.mean()), 100 * told.within(0.5), 100 * told.within(0.9)]
            rows.append(
                [
                    f"{title}, {'with' if anchored else 'without'} anchors",
                    *(f"{round(figure, 2) + 0.0:.2f}" for figure in figures),  # no -0.00
                    share_text(told.gradual, len(told.off)),
                ]
            )
    head = ["mean error, %", "median size, %", "p90 of sizes, %", "gradual changes, % of chains"]
    return table([f"the level after {CHAIN} links", *head], rows)


# --- controls ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Disturbed:
    """Sessions that something disturbs. `middle`: by how much the GPU is slower from a moment within the session on;
    `side`: by how much all launches of the second side are slower, though it launches them alike; `true`: by how much
    the changed launches are slower."""

    title: str
    middle: float = 0.0
    side: float = 0.0
    true: float = 0.0


SESSIONS = (
    Disturbed("nothing is disturbed, no launch is slower"),
    Disturbed("the GPU slows down in the middle by 1 %", middle=0.01),
    Disturbed("the same by 3 %", middle=0.03),
    Disturbed("the same by 10 %", middle=0.1),
    Disturbed("the second side is slower in all turns by 1 %", side=0.01),
    Disturbed("the same by 2 %", side=0.02),
    Disturbed("nothing is disturbed, the changed launches are slower by 2 %", true=0.02),
    Disturbed("the same, and the GPU slows down in the middle by 1 %", middle=0.01, true=0.02),
    Disturbed("the same by 3 %", middle=0.03, true=0.02),
)


def slowed(rng: np.random.Generator, links: int, slower: float) -> Values:
    """What a GPU adds to the turns of a session's links if it is slower from some moment of the session on. Each turn
    has a process of each side, A B B A ..., and each process measures the links one after the other."""
    moment = rng.uniform(0, 2 * TURNS)
    place = np.arange(links)[:, None] / links
    begins = 2 * np.arange(TURNS)
    first, second = (slower * (begins + process + place >= moment) for process in (0, 1))
    return np.asarray(np.where(np.arange(TURNS) % 2 == 0, second - first, first - second))


def words(known: Recorded, seed: int, kind: Disturbed, *, controlled: bool, sessions: int = 400) -> list[Word]:
    """The verdicts on the changed launches of sessions. `controlled`: whether controls were measured as well."""
    rng, told = np.random.default_rng([seed, 3]), []
    for _ in range(sessions):
        changed = int(rng.integers(1, pools.MOST + 1))
        deviations = rng.choice(known.pool(), changed + CONTROLS)
        logs = kind.side + deviations[:, None] * rng.standard_normal((len(deviations), TURNS))
        logs += rng.permutation(slowed(rng, len(logs), kind.middle))
        logs[:changed] += kind.true
        own = [a_link(str(at), each, control=at >= changed) for at, each in enumerate(logs)]
        judged = judge(a_session(0, 1, own if controlled else own[:changed]))
        told += [judged[link.cell].word for link in own[:changed]]
    return told


def controls_table(known: Recorded, seed: int) -> str:
    """Disturbed sessions with and without controls."""
    rows = []
    for kind in SESSIONS:
        both = [words(known, seed, kind, controlled=controlled) for controlled in (False, True)]
        rows.append([kind.title, *(share_text(sum(word in CHANGED for word in told), len(told), 1) for told in both)])
    return table(["called a change, % of the changed launches", "without controls", "with controls"], rows)


# --- moderated noise -----------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """A verdict on a link. `noisy`: whether it is of the noisiest tenth; `missed`: whether its 95 % interval misses the
    true ratio."""

    word: Word
    noisy: bool
    missed: bool


def verdicts(known: Recorded, seed: int, change: float, turns: int, links: int, count: int) -> dict[str, list[Verdict]]:
    """The verdicts on links with this change: from their own noise alone, and moderated. `links`: of a session;
    `count`: of links in all."""
    rng = np.random.default_rng([seed, 4, turns, links])
    told: dict[str, list[Verdict]] = {"plain t": [], "moderated": []}
    noisy, true = float(np.quantile(known.pool(), 0.9)), math.log1p(change)
    for _ in range(count // links):
        deviations = rng.choice(known.pool(), links)
        logs = true + deviations[:, None] * rng.standard_normal((links, turns))
        session = a_session(0, 1, [a_link(str(at), each) for at, each in enumerate(logs)])
        judged = judge(session)
        for link, deviation in zip(session.links, deviations.tolist(), strict=True):
            alone = moderated(link, None)
            plain = Judged(word_of(link.log, *alone), link.log, *alone)
            for rule, own in (("plain t", plain), ("moderated", judged[link.cell])):
                told[rule].append(Verdict(own.word, deviation >= noisy, abs(link.log - true) > own.half()))
    return told


def moderated_table(known: Recorded, seed: int) -> str:
    """Plain and moderated verdicts."""
    rows = []
    for links in (5, CELLS):
        for turns in (4, 6):
            still = verdicts(known, seed, 0.0, turns, links, 60_000)
            steps = [verdicts(known, seed, change, turns, links, 6_000) for change in (0.01, 0.02)]
            for rule, own in still.items():
                noisy = [one for one in own if one.noisy]
                rows.append(
                    [
                        f"{links} links a session, {turns} turns, {rule}",
                        *(f"{1000 * share_of_changed(each):.2f}" for each in (own, noisy)),
                        *(f"{100 * share_of_changed(told[rule]):.0f}" for told in steps),
                        f"{100 * sum(one.missed for one in own) / len(own):.1f}",
                    ]
                )
    head = ["false of 1,000", "of the noisiest tenth", "1 % found, %", "2 % found, %", "95 % interval misses, %"]
    return table(["rule", *head], rows)


def share_of_changed(told: Sequence[Verdict]) -> float:
    """The share of the verdicts that call a launch changed."""
    return sum(one.word in CHANGED for one in told) / len(told)


# --- responses that differ -----------------------------------------------------------------------------------------


RULES = (
    "one GPU, 24 turns",
    "three GPUs, 8 turns each",
    "one GPU, 8 turns; two more if it calls a change",
    "three GPUs, error from their differences alone",
)


@dataclass
class Asked:
    """How many unchanged launches a rule calls changed, how many 1 % steps it finds, and the turns it takes of each
    unchanged launch."""

    false: int = 0
    found: int = 0
    turns: int = 0


def on_gpus(known: Recorded, seed: int, share: float, trials: int = 40) -> tuple[dict[str, Asked], int]:
    """Changed launches, judged on one GPU, on three with as many turns together, and on two more GPUs if the first one
    calls them changed. `share`: how far their response correlates with that of the launches before them. Returns how
    many launches of each kind there were as well."""
    rng = np.random.default_rng([seed, 5])
    told = {rule: Asked() for rule in RULES}
    for _ in range(trials):
        launches = [known.launches[at] for at in rng.choice(len(known.launches), CELLS, replace=False)]
        none = np.zeros((CELLS, 3))
        old = pools.responses(rng, launches, none)
        moved = pools.correlated(rng, launches, old, none, share) - old
        deviations = rng.choice(known.pool(), CELLS)[:, None]
        noise = deviations[:, :, None] * rng.standard_normal((CELLS, 3, SPLIT))
        for change in (0.0, 0.01):
            logs = math.log1p(change) + moved[:, :, None] + noise
            whole = _chains(logs[:, :1])
            first = _chains(logs[:, :1, : SPLIT // 3])
            split = _chains(logs[:, :, : SPLIT // 3])
            for cell in map(str, range(CELLS)):
                again = first[cell].word(1) in CHANGED
                asked = {
                    RULES[0]: (whole[cell].word(1), SPLIT),
                    RULES[1]: (split[cell].word(1), SPLIT),
                    RULES[2]: (split[cell].word(1) if again else "no change", SPLIT if again else SPLIT // 3),
                    RULES[3]: (strict(split[cell]), SPLIT),
                }
                for rule, (word, turns) in asked.items():
                    if change:
                        told[rule].found += word == "worse"
                    else:
                        told[rule].false += word in CHANGED
                        told[rule].turns += turns
    return told, trials * CELLS


def strict(chain: Chain) -> Word:
    """The verdict if only the differences between the GPUs tell the error, with one degree of freedom less than
    GPUs."""
    logs = [edge.link.log for edge in chain.at_node(1)]
    return word_of(statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs)), len(logs) - 1)


def _chains(logs: Values) -> dict[str, Chain]:
    """The chains of launches that changed once. `logs`: by launch, GPU and turn."""
    sessions = [
        a_session(0, 1, [a_link(str(at), own[gpu]) for at, own in enumerate(logs)], gpu) for gpu in range(logs.shape[1])
    ]
    return chains(sessions, {name(0): 0, name(1): 1})


def responses_table(known: Recorded, seed: int) -> str:
    """Launches whose response to a GPU changes with them."""
    rows = []
    for share in SHARES:
        told, count = on_gpus(known, seed, share)
        for rule, asked in told.items():
            figures = [1000 * asked.false / count, 100 * asked.found / count, asked.turns / count]
            rows.append([f"correlation {share:g}: {rule}", *(f"{figure:.0f}" for figure in figures)])
    return table(["rule", "false of 1,000", "1 % found, %", "turns of an unchanged launch"], rows)


# --- all of it -----------------------------------------------------------------------------------------------------


def record_table(known: Recorded) -> str:
    """What the record gives."""
    apart = {kind: [float(np.std(one.rest)) for one in known.launches if one.kind == kind] for kind in known.shifts}
    rows = []
    for kind, own in sorted(apart.items()):
        own.sort()
        figures = [100 * float(np.quantile(own, share)) for share in (0.5, 0.9, 1)]
        shift = 100 * float(np.std(known.shifts[kind]))
        rows.append([kind, str(len(own)), f"{shift:.3f}", *(f"{each:.2f}" for each in figures)])
    return table(["sd between GPUs", "launches", "shared, %", "own: median, %", "p90, %", "most, %"], rows)


def turns_table(known: Recorded) -> str:
    """How noisy the turns of the recorded links are."""
    rows = [
        [cache, str(len(own)), *(f"{100 * float(np.quantile(own, share)):.2f}" for share in (0.1, 0.5, 0.9, 1))]
        for cache, own in known.deviations.items()
    ]
    return table(["sd of a turn of recorded links", "links", "p10, %", "median, %", "p90, %", "most, %"], rows)


def history_table(sessions: Sequence[Session]) -> str:
    """What recorded links say of the commits, the newest session first. If several sessions measured a cell of a
    commit, it is slower or faster only if all say so."""
    judged: dict[str, dict[str, list[Judged]]] = defaultdict(lambda: defaultdict(list))
    gpus_of: dict[str, set[str]] = defaultdict(set)
    for session in sorted(sessions, key=lambda each: each.at, reverse=True):
        for cell, own in judge(session).items() if session.kind == "step" else ():
            if cell in {link.cell for link in session.changed}:
                judged[session.after][cell].append(own)
                gpus_of[session.after].add(session.gpu)
    rows = []
    for commit, cells in judged.items():
        means = {cell: statistics.fmean(each.log for each in own) for cell, own in cells.items()}
        for word, sign in (("worse", 1), ("better", -1)):
            agreed = [cell for cell, own in cells.items() if all(each.word == word for each in own)]
            told = sorted(((sign * means[cell], cell) for cell in agreed), reverse=True)
            if told:
                size = f"{100 * math.expm1(sign * told[0][0]):+.1f} %"
                of = f"{len(told)} of {len(cells)}"
                rows.append([commit[:8], word, of, str(len(gpus_of[commit])), size, told[0][1]])
    return table(["commit", "is", "linked cells", "GPUs", "most", "at"], rows)


def planted_table(sessions: Sequence[Session]) -> str:
    """What links of several GPUs say of the commits of data/planted that change a launch, beside full runs of them on
    one GPU."""
    full = {record.commit: record.cells for record in map(records.read, records.sidecars(PLANTED / "results"))}
    names = sorted({session.gpu for session in sessions if session.gpu})
    rows = []
    for session in sessions:
        before, after = (full[commit[:8]] for commit in (session.before, session.after))
        for link in session.changed:
            on_one = statistics.median(after[link.cell].seconds) / statistics.median(before[link.cell].seconds) - 1
            own = judge(session)[link.cell]
            size, bounds = relative(own.log, own.half())
            told = [f"{100 * each:+.2f} %" for each in (on_one, size)]
            to = f"{100 * bounds[0]:+.2f} % to {100 * bounds[1]:+.2f} %"
            where = str(names.index(session.gpu) + 1), f"{session.seconds:.0f} s"
            rows.append([link.cell, session.after[:8], *told, to, own.word, *where])
    header = ["cell", "commit", "full runs on one GPU", "link", "95 % interval", "is", "on GPU", "the commit took"]
    return table(header, sorted(rows))


def environment_table(sessions: Sequence[Session]) -> str:
    """What another version of a package does to the launches of a commit, measured in both environments in turns."""
    rows = []
    for session in sessions:
        for link in session.changed if session.kind == "environment" else ():
            own = judge(session)[link.cell]
            size, (low, high) = relative(own.log, own.half())
            rows.append([link.cell, f"{100 * size:+.2f} %", f"{100 * low:+.2f} % to {100 * high:+.2f} %", own.word])
    (changed,) = {
        f"{package} {old} to {new}" for session in sessions for package, (old, new) in session.environments.items()
    }
    return table([changed, "change", "95 % interval", "is"], sorted(rows))


def suite_table(sessions: Sequence[Session]) -> str:
    """What each commit of a plain suite changes, and what it cost."""
    rows = []
    for session in sorted(sessions, key=lambda session: session.at):
        words = Counter(own.word for own in judge(session).values())
        told = [f"{session.same} use the same"] if session.same else []
        told += [f"{count} {word}" for word, count in sorted(words.items())]
        rows.append([session.after[:8], ", ".join(told), f"{session.seconds:.0f} s"])
    return table(["commit", "benchmarks", "it took"], rows)


def every_session() -> list[Session]:
    """All recorded sessions of this project's description."""
    folders = (ROOT / "results", PLANTED / "links", NVRTC, TRITON)
    return [session for folder in folders for session in gpus.sessions_in(folder)]


BLOCKS: dict[str, Callable[[Recorded, int, int], str]] = {  # of the record, the seed and the number of histories
    "record": lambda known, _, __: record_table(known),
    "turns": lambda known, _, __: turns_table(known),
    "history": lambda *_: history_table(recorded_links.read(MACHINE)[0]),
    "designs": lambda known, seed, count: designs_table(pools.compared(known, seed, count)),
    "responding": lambda known, seed, count: designs_table(pools.compared(known, seed, count, share=0.9)),
    "responses": lambda known, seed, _: responses_table(known, seed),
    "between": lambda *_: gpus.responding_table(gpus.sessions_in(ROOT / "results")),
    "alike": lambda *_: gpus.alike_table(gpus.sessions_in(ROOT / "results")),
    "planted": lambda *_: planted_table(gpus.sessions_in(PLANTED / "links")),
    "nvrtc": lambda *_: environment_table(gpus.sessions_in(NVRTC)),
    "triton": lambda *_: environment_table(gpus.sessions_in(TRITON)),
    "warp": lambda *_: suite_table(gpus.sessions_in(WARP)),
    "anchors": lambda known, seed, _: anchors_table(known, seed),
    "controls": lambda known, seed, _: controls_table(known, seed),
    "moderated": lambda known, seed, _: moderated_table(known, seed),
    "early": lambda *_: early.recorded_table(every_session()),
    "stopping": lambda known, seed, _: early.simulated_table(known, seed),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the simulation and write its tables; the exit code."""
    parser = Parser("scripts/lab/links", __doc__)
    parser.add_argument("--seed", type=int, default=33, help="seed of all random numbers (default: 33)")
    parser.add_argument("--histories", type=int, default=3, help="for each table of designs (default: 3)")
    parser.add_argument("--print", action="store_true", help="print the tables, write no file")
    parser.add_argument("--only", action="append", choices=BLOCKS, help="only this table")
    options = parser.parse_args(arguments)
    known, began = pools.recorded(MACHINE), time.monotonic()
    for title, make in BLOCKS.items():
        if options.only and title not in options.only:
            continue
        text = make(known, options.seed, options.histories)
        print(f"{time.monotonic() - began:6.0f} s  {title}", flush=True)
        if options.print:
            print(f"\n{text}\n", flush=True)
        else:
            write_block(PAPER, title, text, "scripts/lab/links")
    return 0
