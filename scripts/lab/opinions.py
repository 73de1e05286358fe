#!/usr/bin/env python3
"""Compares rules that say "faster" or "slower", ours and others', on recorded pairs of runs whose truth is known.

In a pair a cell was measured by six processes or more at each of two commits, on the same GPU with the same versions.
Either both launched the same binary, so that nothing changed, or the second has a planted change. The rules are those
of versus and of links, NVIDIA's nvbench-compare-robust and nvbench-compare-legacy, KernelBench's fast_1, and two
textbook tests. NVIDIA's programs judge files that this script writes in nvbench's format. They come from the package
cuda-bench[compare], which this project does not install: `--tools` names the folder of the two programs. The outcome
goes to docs/opinions.json, and from there to the tables of docs/research/opinions.md. No GPU is needed.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import json
import math
import re
import shutil
import statistics
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast

from kernelwatch.comparison.paired import FALSE_ALARMS, FLOOR, LOOKS, WITHIN, judge
from kernelwatch.detect import judging
from kernelwatch.history import links, records
from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import write_whole
from kernelwatch.timing.record import Measurement, number
from lab.figures import write_block
from lab.planted import Change, changes_in

ROOT = Path(__file__).resolve().parent.parent.parent
JSON, PAPER = ROOT / "docs" / "opinions.json", ROOT / "docs" / "research" / "opinions.md"
WRITER = "scripts/lab/opinions"
LABELED = {
    "planted": (ROOT / "data" / "planted" / "results", ROOT / "data" / "planted" / "commits.toml"),
    "examples": (ROOT / "examples" / "results", ROOT / "examples" / "commits.toml"),
}
OWN = ROOT / "results"
NOISE = OWN / "nvidia-h200.intel-xeon-processor.x86-64.linux" / "noise.jsonl"
PROCESSES = 6  # of each side
CANARIES = ("memory", "compute")
PRESETS = ("default", "strict", "permissive")
SIZES = {"below 3 %": (0.0, 0.03), "3 to 10 %": (0.03, 0.1), "above 10 %": (0.1, math.inf)}
GROWN = (0.005, 0.01, 0.02, 0.05)  # by how much the second side of an unchanged pair is made slower

Word = Literal["faster", "slower", "same", "undecided"]
WORDS: dict[str, Word] = {"worse": "slower", "better": "faster", "no change": "same", "cannot tell": "undecided"}
STATUS: dict[str, Word] = {
    "FAST": "faster",
    "SLOW": "slower",
    "SAME": "same",
    "AMBG": "undecided",
    "????": "undecided",
}


# --- the pairs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A cell at two commits. `truth`: what is known of the second one's seconds. `size`: of a planted change, relative,
    from all commits that launch the same binaries. `cells`: how many cells were measured at both commits."""

    history: str
    commit: str
    cell: str
    before: tuple[Measurement, ...]
    after: tuple[Measurement, ...]
    truth: Literal["faster", "slower", "same"]
    size: float = 0.0
    cells: int = 1

    @property
    def sides(self) -> tuple[tuple[Measurement, ...], tuple[Measurement, ...]]:
        return self.before, self.after


@dataclass(frozen=True)
class Run:
    """A cell in a record. `order`: when the commit was measured, or its place in a history with labels."""

    order: tuple[Any, ...]
    commit: str
    cell: records.Measured


def pairs() -> list[Pair]:
    """All pairs of the recorded histories."""
    found = [pair for folder in _folders(OWN) for pair in pairs_of("own", folder, [])]
    for name, (results, labels) in LABELED.items():
        found += [pair for folder in _folders(results) for pair in pairs_of(name, folder, changes_in(labels))]
    return found


def _folders(results: Path) -> list[Path]:
    return sorted(path for path in results.iterdir() if path.is_dir())


def pairs_of(history: str, folder: Path, changes: Sequence[Change]) -> list[Pair]:
    """The pairs of neighboring runs in a machine's folder, of every cell that a GPU timed. `changes`: of a history with
    labels, what each commit after the first does; without any, the order is that of the measurements."""
    runs: dict[tuple[str, str], list[Run]] = {}
    sidecars = records.sidecars(folder.parent, folder.name)
    for at, path in enumerate(sidecars):
        record = records.read(path)
        for key, cell in record.cells.items():
            if cell.group.endswith(" gpu") and len(cell.seconds) >= PROCESSES and " " not in cell.identity:
                conditions = json.dumps(records.conditions(record, cell.group), sort_keys=True)
                measured_at = str(record.facts[cell.group].get("measured_at", ""))
                order = (at,) if changes else (measured_at, at)
                runs.setdefault((key, conditions), []).append(Run(order, record.commit, cell))
    found = []
    for (key, _), own in sorted(runs.items()):
        own.sort(key=lambda run: run.order)
        medians: dict[str, list[float]] = {}
        for run in own:
            medians.setdefault(run.cell.identity, []).append(run.cell.median_s)
        for before, after in pairwise(own):
            old, new = before.cell.identity, after.cell.identity
            sides = before.cell.measurements[:PROCESSES], after.cell.measurements[:PROCESSES]
            if old and old == new:
                found.append(Pair(history, after.commit, key, *sides, "same"))
            elif old and new and changes:
                change = changes[after.order[0] - 1]
                if change.effect and key.split(" ")[0] in (change.rung, f"{key.split('/')[0]}/{change.rung}"):
                    size = statistics.median(medians[new]) / statistics.median(medians[old]) - 1
                    truth: Literal["faster", "slower"] = "faster" if change.effect == "faster" else "slower"
                    found.append(Pair(history, after.commit, key, *sides, truth, size))
    counts = Counter((pair.commit, pair.truth == "same") for pair in found)
    return [replace(pair, cells=counts[pair.commit, True] + counts[pair.commit, False]) for pair in found]


def grown(pair: Pair, size: float) -> Pair:
    """A pair whose second side is slower by `size` than it was."""
    return replace(pair, after=tuple(_slower(each, 1 + size) for each in pair.after), truth="slower", size=size)


def _slower(measurement: Measurement, factor: float) -> Measurement:
    q1, q3 = measurement["quartiles_s"]
    slower = {"seconds": factor * measurement["seconds"], "quartiles_s": [factor * q1, factor * q3]}
    return cast(Measurement, measurement | slower)


# --- rules on what processes measured --------------------------------------------------------------------------------


def seconds(side: Sequence[Measurement]) -> list[float]:
    return [each["seconds"] for each in side]


def ours(pair: Pair, cells: int) -> tuple[Word, int]:
    """The rule of versus, and how many turns it took. The processes of the two runs stand for those of turns, though
    they were not measured in turns. That the binary is the same is not told to the rule. `cells`: how many cells share
    the chance of error."""
    word: Word = "undecided"
    for turns in LOOKS:
        if turns > min(map(len, pair.sides)):
            break
        before, after = pair.before[:turns], pair.after[:turns]
        controls = {f"the {name} canary": _logs(before, after, "canary_s", name) for name in CANARIES}
        judged = judge(
            _logs(before, after, "seconds"),
            {name: logs for name, logs in controls.items() if len(logs) == turns},
            floor=FLOOR["gpu"],
            within=WITHIN["gpu"],
            level=FALSE_ALARMS / (cells * (len(LOOKS) + 1)),
        )
        word = WORDS[judged.word]
        if word != "undecided":
            return word, turns
    return word, min(map(len, pair.sides))


def _logs(before: Sequence[Measurement], after: Sequence[Measurement], *name: str) -> list[float]:
    both = [(number(one, *name), number(other, *name)) for one, other in zip(before, after, strict=True)]
    return [math.log(head / base) for base, head in both if base and head]


def fast_1(before_s: float, after_s: float) -> Word:
    """KernelBench's rule: the speedup is above 1. Its times are means in ms with three significant digits, and a
    speedup below 1 is read as slower.

    Source: KernelBench, get_timing_stats in src/kernelbench/timing.py at 0de4ce8a, fastp in src/score.py at 7ed4e989.
    """
    before_ms, after_ms = (float(f"{1000 * each:.3g}") for each in (before_s, after_s))
    speedup = before_ms / after_ms
    return "faster" if speedup > 1 else "slower" if speedup < 1 else "same"


def welch(before: Sequence[float], after: Sequence[float], level: float) -> Word:
    """Welch's t-test of two samples."""
    from scipy.stats import ttest_ind

    return _shown(float(ttest_ind(before, after, equal_var=False).pvalue), before, after, level)


def mann_whitney(before: Sequence[float], after: Sequence[float], level: float) -> Word:
    """The Mann-Whitney test of two samples, exact if no values are equal."""
    from scipy.stats import mannwhitneyu

    return _shown(float(mannwhitneyu(before, after).pvalue), before, after, level)


def _shown(chance: float, before: Sequence[float], after: Sequence[float], level: float) -> Word:
    """What a test says: it cannot tell a small change from none, so that everything else is undecided."""
    if not chance < level:
        return "undecided"
    return "faster" if statistics.fmean(after) < statistics.fmean(before) else "slower"


# --- nvbench's files and programs ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """What nvbench would have written of one measurement. `summaries`: seconds, shares and Hz by the end of the tag;
    `samples`: seconds and Hz of each sample, as --jsonbin keeps them."""

    summaries: Mapping[str, float]
    samples: Sequence[tuple[float, float]] = ()


def of_process(measurement: Measurement, low: float) -> State:
    """A process's own samples, of which its record keeps the median, the quartiles and the clock. nvbench's least value
    is not kept: it is put `low` interquartile ranges below the first quartile. Mean and standard deviation are those of
    a normal distribution with these quartiles."""
    (q1, q3), median = sorted(measurement["quartiles_s"]), measurement["seconds"]
    q1, q3 = min(q1, median), max(q3, median)
    width = q3 - q1
    summaries = _summaries(q1 - low * width, q1, median, q3, q3 + low * width, median, width / 1.349)
    clock_mhz = number(measurement, "clock64_mhz")
    return State(summaries | ({"sm_clock_rate/mean": 1e6 * clock_mhz} if clock_mhz else {}))


def of_processes(side: Sequence[Measurement]) -> State:
    """The medians of several processes as the samples of one measurement."""
    ordered = sorted(seconds(side))
    q1, median, q3 = (ordered[(percent * (len(ordered) - 1) + 50) // 100] for percent in (25, 50, 75))
    mean, deviation = statistics.fmean(ordered), statistics.stdev(ordered)
    summaries = _summaries(ordered[0], q1, median, q3, ordered[-1], mean, deviation)
    clocks_mhz = [number(each, "clock64_mhz") for each in side]
    known = [1e6 * clock for clock in clocks_mhz if clock]
    if len(known) < len(ordered):
        return State(summaries)
    samples = list(zip(seconds(side), known, strict=True))
    return State(summaries | {"sm_clock_rate/mean": statistics.fmean(known)}, samples)


def _summaries(
    least: float, q1: float, median: float, q3: float, most: float, mean: float, deviation: float
) -> dict[str, float]:
    return {
        "time/gpu/min": least,
        "time/gpu/max": most,
        "time/gpu/mean": mean,
        "time/gpu/stdev/absolute": deviation,
        "time/gpu/stdev/relative": deviation / mean,
        "time/gpu/q1": q1,
        "time/gpu/median": median,
        "time/gpu/q3": q3,
        "time/gpu/iqr/absolute": q3 - q1,
        "time/gpu/iqr/relative": (q3 - q1) / median,
    }


BATCH = 1000  # states of a benchmark: nvbench-compare-legacy looks for each in a list


def write_nvbench(path: Path, states: Sequence[State]) -> None:
    """Write states as a result file of nvbench, with their samples in a folder beside it."""
    samples = path.with_name(f"{path.name}-bin")
    samples.mkdir()
    benchmarks: list[dict[str, Any]] = []
    for start in range(0, len(states), BATCH):
        numbered = list(enumerate(states[start : start + BATCH], start))
        benchmarks.append(
            {
                "name": f"batch {start // BATCH}",
                "index": len(benchmarks),
                "devices": [0],
                "axes": [
                    {
                        "name": "pair",
                        "type": "string",
                        "flags": "",
                        "values": [{"input_string": str(at), "description": ""} for at, _ in numbered],
                    }
                ],
                "states": [_state(samples, at, state) for at, state in numbered],
            }
        )
    root = {
        "meta": {"argv": [], "version": {"json": {"major": 1, "minor": 0, "patch": 0, "string": "1.0.0"}}},
        "devices": [{"id": 0, "name": "GPU"}],
        "benchmarks": benchmarks,
    }
    path.write_text(json.dumps(root), encoding="utf-8")


def _state(samples: Path, at: int, state: State) -> dict[str, Any]:
    summaries = [
        {"tag": f"nv/cold/{tag}", "data": [{"name": "value", "type": "float64", "value": repr(value)}]}
        for tag, value in state.summaries.items()
    ]
    if state.samples:
        for tag, end, values in (
            ("nv/json/bin:nv/cold/sample_times", "", [each for each, _ in state.samples]),
            ("nv/json/freqs-bin:nv/cold/sample_freqs", "-freqs", [each for _, each in state.samples]),
        ):
            file = samples / f"{at}{end}.bin"
            file.write_bytes(struct.pack(f"<{len(values)}f", *values))
            data = [
                {"name": "filename", "type": "string", "value": str(file)},
                {"name": "size", "type": "int64", "value": str(len(values))},
            ]
            summaries.append({"tag": tag, "data": data})
    axis = {"name": "pair", "type": "string", "value": str(at)}
    return {
        "name": f"Device=0 pair={at}",
        "device": 0,
        "type_config_index": 0,
        "is_skipped": False,
        "axis_values": [axis],
        "summaries": summaries,
    }


def statuses(output: str) -> dict[int, Word]:
    """What nvbench's programs say of each pair, from the rows of their tables."""
    found = {}
    for line in output.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        said = [STATUS[word] for cell in cells[1:] for word in STATUS if word in cell.split()]
        if re.fullmatch(r"\d+", cells[0]) and len(said) == 1:
            found[int(cells[0])] = said[0]
    return found


def nvbench(tool: Path, before: Sequence[State], after: Sequence[State], *options: str) -> list[Word]:
    """The words of one of nvbench's programs on the states of two sides. Raises: UserError if it does not say one of
    each. The exit code says nothing: nvbench-compare-legacy's is the number of its failures."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("before.json", "after.json")]
        for file, states in zip(files, (before, after), strict=True):
            write_nvbench(file, states)
        done = subprocess.run(
            [str(tool), "--no-color", *options, *map(str, files)], capture_output=True, text=True, check=False
        )
    found = statuses(done.stdout)
    if sorted(found) != list(range(len(before))):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"{tool.name} judged {len(found)} of {len(before)} pairs, exit code {done.returncode}: {last}")
    return [found[at] for at in range(len(before))]


# --- all rules on all pairs ------------------------------------------------------------------------------------------


@dataclass
class Told:
    """What a rule said of a pair. One-process rules judge each process of one side against one of the other. `words`:
    how often it said each; `processes`, `busy_s`: the processes that all that took, and the seconds of their timed
    launches."""

    words: Counter[str] = field(default_factory=Counter)
    processes: int = 0
    busy_s: float = 0.0

    def add(self, word: str, *measurements: Measurement) -> None:
        self.words[word] += 1
        self.processes += len(measurements)
        self.busy_s += sum(each["launches"] * each["seconds"] for each in measurements)


Rule = Callable[[Pair], Iterator[tuple[Word, tuple[Measurement, ...]]]]  # what it says, and of which processes


def by_turns(alone: bool) -> Rule:
    def said(pair: Pair) -> Iterator[tuple[Word, tuple[Measurement, ...]]]:
        word, turns = ours(pair, 1 if alone else pair.cells)
        yield word, pair.before[:turns] + pair.after[:turns]

    return said


def by_fast_1(pair: Pair) -> Iterator[tuple[Word, tuple[Measurement, ...]]]:
    for before, after in zip(*pair.sides, strict=True):
        yield fast_1(before["seconds"], after["seconds"]), (before, after)


def by_test(test: Callable[[Sequence[float], Sequence[float], float], Word], level: float) -> Rule:
    def said(pair: Pair) -> Iterator[tuple[Word, tuple[Measurement, ...]]]:
        yield test(seconds(pair.before), seconds(pair.after), level), pair.before + pair.after

    return said


RULES: dict[str, Rule] = {
    "kernelwatch versus: one cell": by_turns(alone=True),
    "kernelwatch versus: all cells of a commit": by_turns(alone=False),
    "KernelBench fast_1": by_fast_1,
    "Welch, 5 %": by_test(welch, 0.05),
    "Welch, 1 %": by_test(welch, 0.01),
    "Mann-Whitney, 1 %": by_test(mann_whitney, 0.01),
}
SIX, NARROW, WIDE = "six medians", "one process, narrow", "one process, wide"
FORMS = (SIX, NARROW, WIDE)
NVBENCH = {f"nvbench robust {preset}: {form}": (preset, form) for form in FORMS for preset in PRESETS}
LEGACY = {f"nvbench legacy: {form}": form for form in (SIX, NARROW)}


def told_by_rules(known: Sequence[Pair]) -> dict[str, list[Told]]:
    """What each rule that runs here says of each pair."""
    found: dict[str, list[Told]] = {}
    for name, rule in RULES.items():
        for pair in known:
            told = Told()
            for word, measurements in rule(pair):
                told.add(word, *measurements)
            found.setdefault(name, []).append(told)
    return found


def told_by_nvbench(known: Sequence[Pair], tools: Path) -> dict[str, list[Told]]:
    """What nvbench's programs say of each pair."""
    found: dict[str, list[Told]] = {}
    for form in FORMS:
        rows = [
            (at, measurements)
            for at, pair in enumerate(known)
            for measurements in (
                [pair.sides] if form == SIX else [((a,), (b,)) for a, b in zip(*pair.sides, strict=True)]
            )
        ]
        low = 1.5 if form == WIDE else 0.0
        states = [
            [of_processes(sides[side]) if form == SIX else of_process(sides[side][0], low) for _, sides in rows]
            for side in (0, 1)
        ]
        runs: dict[str, tuple[str, tuple[str, ...]]] = {
            name: ("nvbench-compare-robust", ("--preset", preset, "--display", "simple"))
            for name, (preset, own) in NVBENCH.items()
            if own == form
        }
        runs |= {name: ("nvbench-compare-legacy", ()) for name, own in LEGACY.items() if own == form}
        for name, (tool, options) in runs.items():
            found[name] = [Told() for _ in known]
            for (at, sides), word in zip(rows, nvbench(tools / tool, states[0], states[1], *options), strict=True):
                found[name][at].add(word, *sides[0], *sides[1])
    return found


def told(known: Sequence[Pair], tools: Path) -> dict[str, list[Told]]:
    """What every rule says of each pair. `tools`: the folder of nvbench's programs."""
    return told_by_rules(known) | told_by_nvbench(known, tools)


def words(own: Sequence[Told]) -> dict[str, int]:
    """How often a rule said each word."""
    return dict(sum((one.words for one in own), Counter[str]()))


def joined(known: Sequence[Pair], turns: int) -> list[Pair]:
    """Unchanged pairs of as many turns as a comparison takes at most, and at least `turns`: the runs of a cell that
    follow each other and have the same binary are taken for one side and the other by turns."""
    chains: dict[tuple[str, str, str], list[Pair]] = {}
    for pair in known:
        if pair.truth == "same":
            chains.setdefault((pair.history, pair.cell, pair.after[0].get("identity", "")), []).append(pair)
    found = []
    for (history, cell, _), own in chains.items():
        runs = [own[0].before]
        for pair in own:
            if pair.before == runs[-1]:  # else there was another run between
                runs.append(pair.after)
        found.append(by_run(history, cell, runs))
    return [pair for pair in found if len(pair.before) >= turns]


def in_record(path: Path) -> list[Pair]:
    """The same of an A/A record, which has no canaries."""
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        by_run(
            "A/A record",
            entry["key"],
            [tuple(cast(Measurement, {"seconds": each, "quartiles_s": [each] * 2}) for each in run) for run in runs],
        )
        for entry in entries
        for runs in [entry["processes_s"]]
    ]


def by_run(history: str, cell: str, runs: Sequence[tuple[Measurement, ...]]) -> Pair:
    """A pair whose sides are every second run."""
    before, after = (tuple(each for run in runs[side::2] for each in run) for side in (0, 1))
    count = min(len(before), len(after), LOOKS[-1])
    return Pair(history, "", cell, before[:count], after[:count], "same")


def carried_on(known: Sequence[Pair]) -> dict[str, Any]:
    """The rule of versus on these pairs, one cell at a time, unchanged and made slower. `turns`: the sum of all."""
    told: dict[str, Any] = {}
    for size in (0.0, *GROWN):
        judged = [ours(grown(pair, size), 1) for pair in known]
        own = dict(Counter(word for word, _ in judged))
        told[f"{100 * size:g} %"] = {"words": own, "turns": sum(turns for _, turns in judged)}
    return told


def told_by_turns(folders: Sequence[Path]) -> dict[str, Any]:
    """What the rule of links says of the recorded links whose two sides launch the same binary in turns, each judged as
    if its launches differed, beside fast_1 on each turn. `links`, `turns`: how many there are."""
    words: dict[str, Counter[str]] = {"kernelwatch, the rule of links": Counter(), "KernelBench fast_1": Counter()}
    alike = turns = 0
    for session in (session for folder in folders for session in links.read(folder)[0]):
        for link in session.links:
            if not link.identities[0] or link.identities[0] != link.identities[1]:
                continue
            alike, turns = alike + 1, turns + len(link.logs)
            asked = replace(link, control=False, identities=("before", "after"))
            others = tuple(asked if each is link else each for each in session.links)
            judged = judging.judge(replace(session, links=others))[link.cell]
            words["kernelwatch, the rule of links"][WORDS[judged.word]] += 1
            for log in link.logs:
                words["KernelBench fast_1"][fast_1(link.seconds[0], link.seconds[0] * math.exp(log))] += 1
    return {"links": alike, "turns": turns, "rules": {name: dict(own) for name, own in words.items()}}


def outcome(known: Sequence[Pair], told: Mapping[str, Sequence[Told]]) -> dict[str, Any]:
    """The outcome as docs/opinions.json holds it, without the links."""
    unchanged: dict[str, dict[str, Any]] = {}
    planted = []
    for at, pair in enumerate(known):
        if pair.truth == "same":
            history = unchanged.setdefault(pair.history, {"pairs": 0, "runs": set(), "rules": {}})
            history["pairs"] += 1
            history["runs"].add(pair.commit)
            for name, own in told.items():
                total = history["rules"].setdefault(name, Told())
                total.words.update(own[at].words)
                total.processes += own[at].processes
                total.busy_s += own[at].busy_s
        else:
            rules = {name: dict(own[at].words) for name, own in told.items()}
            entry = {"history": pair.history, "commit": pair.commit[:8], "cell": pair.cell, "truth": pair.truth}
            planted.append(entry | {"size": pair.size, "rules": rules})
    for history in unchanged.values():
        history["runs"] = len(history["runs"])
        history["rules"] = {
            name: {"words": dict(own.words), "processes": own.processes, "busy_s": own.busy_s}
            for name, own in history["rules"].items()
        }
    return {"unchanged": unchanged, "planted": planted}


# --- the tables ------------------------------------------------------------------------------------------------------


def share(count: int, of: int) -> str:
    """A count, with its share if it is not 0."""
    return f"{count} ({100 * count / of:.2g} %)" if count else "0"


def unchanged_table(result: Mapping[str, Any]) -> str:
    """Pairs of the same binary."""
    histories = result["unchanged"]
    rows = []
    for name in next(iter(histories.values()))["rules"]:
        own = [history["rules"][name] for history in histories.values()]
        words: Counter[str] = sum((Counter(each["words"]) for each in own), Counter())
        count = sum(words.values())
        false = [each["words"].get("faster", 0) + each["words"].get("slower", 0) for each in own]
        parts = [f"{100 * wrong / sum(each['words'].values()):.1f}" for wrong, each in zip(false, own, strict=True)]
        rows.append(
            [
                name,
                str(count),
                *(share(words[word], count) for word in ("faster", "slower")),
                *(f"{100 * words[word] / count:.0f} %" for word in ("same", "undecided")),
                " / ".join(parts),
                f"{sum(each['processes'] for each in own) / count:.1f}",
                f"{1000 * sum(each['busy_s'] for each in own) / count:.0f} ms",
            ]
        )
    head = ["rule", "decisions", "false faster", "false slower", "no change", "undecided"]
    return table([*head, f"false, %: {' / '.join(histories)}", "processes", "timed launches"], rows)


def planted_table(result: Mapping[str, Any]) -> str:
    """Planted changes, by size: the share of decisions that are right, and those of the wrong direction."""
    rows = []
    classes = {
        title: [each for each in result["planted"] if low <= abs(each["size"]) < high]
        for title, (low, high) in SIZES.items()
    }
    for name in result["planted"][0]["rules"]:
        row, total = [name], Counter[str]()
        for own in classes.values():
            words = Counter[str]()
            for each in own:
                for word, times in each["rules"][name].items():
                    words["found" if word == each["truth"] else "wrong" if word in ("faster", "slower") else word] += (
                        times
                    )
            total += words
            row.append(f"{words['found']} of {words.total()}")
        row += [share(total[word], total.total()) for word in ("wrong", "same", "undecided")]
        rows.append(row)
    head = [f"found, {title} ({len(own)} changes)" for title, own in classes.items()]
    return table(["rule", *head, "wrong direction", "called no change", "undecided"], rows)


def grown_table(result: Mapping[str, Any]) -> str:
    """Unchanged pairs whose second side was made slower: the share found, and the share called no change."""
    sizes = result["grown"]
    rows = []
    for name in next(iter(sizes.values())):
        row = [name]
        for own in sizes.values():
            said, count = own[name], sum(own[name].values())
            found, missed, wrong = (100 * said.get(word, 0) / count for word in ("slower", "same", "faster"))
            row.append(f"{found:.0f} / {missed:.0f} / {wrong:.2g}")
        rows.append(row)
    return table(["found / no change / faster, %", *(f"slower by {size}" for size in sizes)], rows)


def carried_table(result: Mapping[str, Any]) -> str:
    """The rule of versus with as many turns as it takes."""
    rows = []
    for record, sizes in result["carried on"].items():
        for size, own in sizes.items():
            count = sum(own["words"].values())
            shares = [f"{100 * own['words'].get(word, 0) / count:.0f} %" for word in WORDS.values()]
            rows.append([f"{record}: slower by {size}", str(count), *shares, f"{own['turns'] / count:.1f}"])
    return table(["second side", "cells", *WORDS.values(), "turns"], rows)


def turns_table(result: Mapping[str, Any]) -> str:
    """Links of the same binary."""
    rows = []
    for name, words in result["turns"]["rules"].items():
        count = sum(words.values())
        rows.append(
            [
                name,
                str(count),
                *(share(words.get(word, 0), count) for word in ("faster", "slower", "same", "undecided")),
            ]
        )
    return table(["rule", "decisions", "false faster", "false slower", "no change", "undecided"], rows)


def sizes_table(result: Mapping[str, Any]) -> str:
    """The planted changes themselves."""
    rows = [
        [each["cell"], each["history"], each["commit"], f"{100 * each['size']:+.2f} %"]
        for each in sorted(result["planted"], key=lambda each: abs(each["size"]))
    ]
    return table(["planted change", "history", "commit", "size"], rows)


def told_text(result: Mapping[str, Any]) -> str:
    """What was compared."""
    histories = result["unchanged"].items()
    parts = [f"{own['pairs']} of the history {name} at {own['runs']} commits" for name, own in histories]
    turns = result["turns"]
    return (
        f"Pairs of the same binary: {', '.join(parts)}. Planted changes: {len(result['planted'])} pairs. Links of the "
        f"same binary: {turns['links']}, with {turns['turns']} turns. nvbench: cuda-bench {result['cuda-bench']}."
    )


BLOCKS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "compared": told_text,
    "unchanged": unchanged_table,
    "planted": planted_table,
    "sizes": sizes_table,
    "grown": grown_table,
    "carried": carried_table,
    "turns": turns_table,
}


def main(arguments: list[str] | None = None) -> int:
    """Judge all pairs by all rules, and write the record and the tables; the exit code."""
    parser = Parser("scripts/lab/opinions", __doc__)
    parser.add_argument("--tools", help="the folder of nvbench-compare-robust (default: that of PATH)")
    parser.add_argument("--tables", action="store_true", help="only rewrite the tables from docs/opinions.json")
    options = parser.parse_args(arguments)
    if not options.tables:
        tools = tools_in(options.tools)
        known = pairs()
        result = {"cuda-bench": version_in(tools), **outcome(known, told(known, tools))}
        result["grown"] = {}
        for size in GROWN:
            slower = [grown(pair, size) for pair in known if pair.truth == "same"]
            result["grown"][f"{100 * size:g} %"] = {name: words(own) for name, own in told(slower, tools).items()}
        long = joined(known, LOOKS[-2])
        records_of = {"histories, with canaries": long, "A/A record, without": in_record(NOISE)}
        result["carried on"] = {name: carried_on(own) for name, own in records_of.items()}
        result["turns"] = told_by_turns(_folders(OWN))
        write_whole(JSON, json.dumps(result, indent=1) + "\n")
    result = json.loads(JSON.read_text(encoding="utf-8"))
    for name, make in BLOCKS.items():
        write_block(PAPER, name, make(result), WRITER)
    return 0


def tools_in(folder: str | None) -> Path:
    """The folder of nvbench's programs. Raises: UserError without them."""
    found = shutil.which("nvbench-compare-robust", path=folder)
    if not found:
        raise UserError(
            f"no nvbench-compare-robust in {folder or 'PATH'}: install cuda-bench[compare] into an environment of its "
            "own, and name its folder bin by --tools"
        )
    return Path(found).parent


def version_in(tools: Path) -> str:
    """The version of cuda-bench to which the programs belong."""
    command = "import importlib.metadata; print(importlib.metadata.version('cuda-bench'))"
    return subprocess.run(
        [str(tools / "python"), "-c", command], capture_output=True, text=True, check=True
    ).stdout.strip()
