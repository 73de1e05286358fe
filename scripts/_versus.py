"""One commit against another: what is slower or faster beyond doubt, what is not, and what this machine cannot tell.

The commits take turns, A B B A ..., in fresh processes on the same device, measured by the checkout's stick; what is
undecided is measured longer, within the budget. Figures that carry no noise are compared exactly. Exit code: 0, no
change or better; 1, worse; 2, it cannot be told, or a cell of HEAD is wrong; 130, interrupted.
"""

import argparse
import math
import re
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import _static
from benchmarks._cells import Cell, label, plan, rungs
from benchmarks._group import Run
from benchmarks._ops import OPS, entries, main_type
from benchmarks._visit import Budget
from scripts import _exact, _history, _tables
from scripts._commits import Changes, changes, export, git, known_rungs
from scripts._exact import Difference
from scripts._paired import FALSE_ALARMS, SAME, Comparison, Judged, Pairs, Side, beside

BUDGET_S = 300.0
STYLES = {"worse": "red", "failed": "red", "better": "green", "cannot tell": "yellow"}
DEVICES = [(op, device) for op in OPS for device in ("gpu", "cpu")]


# --- what is compared ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """What is compared: cells to time with their controls, and the rungs ("op/rung") whose exact figures are."""

    cells: list[Cell]
    beside: dict[str, str]
    exact: set[str]


def choose(wanted: Iterable[Cell], exact: set[str], changed: Iterable[str]) -> Choice:
    """These cells with their controls: the line that the op is held against on the device, else its first rung that is
    not `changed`."""
    found, controls = list(wanted), {}
    for op, device in DEVICES:
        line = _history.held_against(op, device)
        names = [line, *rungs(op, device)] if line else rungs(op, device)
        controls[op, device] = next((name for name in names if f"{op}/{name}" not in changed), "")
    places = beside(found, controls)
    every = {cell.key: cell for op, device in DEVICES for cell in plan(op, device)}
    lines = [every[key] for key in dict.fromkeys(places.values()) if key in every]
    cells = [replace(cell, launch_cost=False) for cell in dict.fromkeys([*found, *lines])]
    return Choice(cells, places, exact)


def cells_of(names: Iterable[str]) -> list[Cell]:
    """The cells of rungs, each with its main type."""
    wanted = set(names)
    every = (cell for op, device in DEVICES for cell in plan(op, device) if not cell.reference)
    return [cell for cell in every if f"{cell.op}/{cell.rung}" in wanted and cell.type == main_type(cell.op, cell.rung)]


def by_pattern(pattern: str, changed: Iterable[str]) -> Choice:
    """The cells whose key matches, and the exact figures of their rungs, or of the targets that match. Raises:
    SystemExit where there are none."""
    every = [cell for op, device in DEVICES for cell in plan(op, device)]
    found = [cell for cell in every if re.search(pattern, cell.key)]
    targets = [target for op in OPS for target in _static.plan(op) if re.search(pattern, target.key)]
    if not found and not targets:
        raise SystemExit(f"scripts/versus: no cell matches {pattern!r}; one is named like {every[0].key!r}")
    return choose(found, {f"{cell.op}/{cell.rung}" for cell in [*found, *targets]}, changed)


def binaries_of_cpu(package: str, names: Iterable[str]) -> dict[str, str]:
    """What CPU rungs launch, by a visit to the smallest cell of each; where it fails, none."""
    cells: dict[str, Cell] = {}
    for cell in cells_of(names):
        if cell.device == "cpu":
            known = cells.setdefault(f"{cell.op}/{cell.rung}", cell)
            if math.prod(cell.shape) < math.prod(known.shape) or (cell.shape == known.shape and cell.cache == "hot"):
                cells[f"{cell.op}/{cell.rung}"] = cell
    run = Run(list(cells.values()), "cpu", package, Budget(1, 0.0))
    run.visit_all(0)
    visits = {rung: run.group.outcomes[cell.key].visits for rung, cell in cells.items()}
    return {rung: str(found[0].get("identity", "")) for rung, found in visits.items() if found}


# --- the comparison ------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """What is known, from the beginning on, so that an interrupt can print it. `what`: both sides, in a line."""

    base: Side
    head: Side
    what: str
    notes: list[str] = field(default_factory=list)
    compared: int = 0  # exact figures
    whole: bool = False  # not interrupted
    alike: bool = False  # nothing was to be compared
    differences: list[Difference] = field(default_factory=list)
    comparison: Comparison | None = None

    @property
    def failures(self) -> dict[str, str]:
        """What is wrong on the second side, and why."""
        exact = {str(one.series): str(one.head) for one in self.differences if one.verdict == "failed"}
        timed = self.comparison.failed() if self.comparison else {}
        return exact | {key: judged.why for key, judged in timed.items()}

    def judged(self) -> list[tuple[Pairs, Judged]]:
        """The cells with their verdicts, controls left out."""
        found = self.comparison
        return [(pairs, one) for pairs, one in found.verdicts() if pairs.cell.key in found.judged] if found else []

    def counts(self) -> dict[str, tuple[int, int]]:
        """By verdict, how many cells and how many exact figures."""
        cells, exact = [one.word for _, one in self.judged()], [one.verdict for one in self.differences]
        return {word: (cells.count(word), exact.count(word)) for word in ("worse", "better", "cannot tell")}

    @property
    def code(self) -> int:
        """The exit code."""
        if self.failures:
            return 2
        counts = self.counts()
        if any(counts["worse"]):
            return 1
        timed = [one for _, one in self.judged()]
        nothing = not self.alike and not self.compared and all(one.word == "n/a" for one in timed)
        return 2 if counts["cannot tell"][0] or nothing else 0

    @property
    def summary(self) -> str:
        """The verdict in a line."""
        base, head = self.base.name, self.head.name
        counts = self.counts()

        def amount(word: str) -> str:
            cells, exact = counts[word]
            parts = [(cells, "cell"), (exact, "exact figure")]
            return " and ".join(f"{n} {what}{'s' if n > 1 else ''}" for n, what in parts if n)

        said = [f"{head} is {word} than {base}: {amount(word)}" for word in ("worse", "better") if any(counts[word])]
        if counts["cannot tell"][0]:
            said.append(f"cannot tell: {amount('cannot tell')}")
        absent = sum(one.word == "n/a" for _, one in self.judged())
        if not self.whole:
            said.append("interrupted before all was decided")
        elif not said:
            said = ["nothing could be compared" if self.code == 2 else "no change"]
        if absent and self.code != 2:
            said.append(f"not timed here: {absent} cell{'s' if absent > 1 else ''}")
        return "; ".join(said)


def compare(report: Report, choice: Choice | None, budget_s: float, console: Console, within: float | None) -> None:
    """Fill a report. `choice`: what to compare; None for what differs by its compiled code or its launch."""
    base, head = report.base, report.head
    found = None if choice else changes(base.package, head.package)
    exact = choice.exact if choice else set(found.rungs) if found else set()
    with console.status("compiling ..."):
        figures = [_exact.measure(side.package, exact) for side in (base, head)]
    report.differences = _exact.differences(*figures)
    pairs = [(figures[0].values[series], value) for series, value in figures[1].values.items()]
    report.compared = sum(not any(isinstance(one, str) or math.isnan(one) for one in both) for both in pairs)
    if report.failures:
        return
    if found:
        timed = found.launched + _recompiled(report, found, figures)
        choice = choose(cells_of(timed), exact, found.launched + found.compiled if not found.shared else timed)
        for rung in (rung for rung in timed if rung not in {f"{cell.op}/{cell.rung}" for cell in choice.cells}):
            report.notes.append(f"{rung} is timed by no suite (or left out by GPUKERNELS_CELLS)")
    report.alike = not (choice and choice.cells) and (found is not None or not exact)
    if choice and choice.cells:
        report.comparison = Comparison(base, head, choice.cells, choice.beside, within)
        with console.status("timing ...") as status:
            report.comparison.run(budget_s, status.update)


def _recompiled(report: Report, found: Changes, figures: list[_exact.Figures]) -> list[str]:
    """Of the rungs of which only the source differs those that compile to something else, or not at all; says so of
    the others."""
    sides = [report.base.package, report.head.package]
    cpu = [binaries_of_cpu(package, found.compiled) for package in sides]
    differ: list[str] = []
    alike: list[str] = []
    for rung in found.compiled:
        binaries = [of_cpu.get(rung) or of.binaries.get(rung) for of_cpu, of in zip(cpu, figures, strict=True)]
        known = binaries[0] is not None and binaries[0] == binaries[1]
        untouched = _is_python(rung) and found.shared and not known  # its text is the same, or it would be `launched`
        (alike if known or untouched else differ).append(rung)
    if found.shared:
        report.notes.append(f"of all rungs {', '.join(found.shared)} differs: --all times what compiles to the same")
    elif alike:
        report.notes.append(f"the source differs, the binary is the same: {', '.join(alike)}")
    return differ


def _is_python(rung: str) -> bool:
    op, name = rung.split("/")
    source = next(entry.source for entry in entries(op) if entry.name == name)
    return not any(Path(_tables.ROOT, "gpukernels", op, f"{source}{suffix}").is_file() for suffix in (".cu", ".c"))


# --- how it is shown -----------------------------------------------------------------------------------------------


def change_text(change: float, unit: str = " %") -> str:
    """A relative change in per cent, as a factor where it is large; "" for NaN."""
    if math.isnan(change):
        return ""
    if change >= 1:
        return f"x{1 + change:.3g}"
    return f"{100 * change:+.{1 if abs(change) >= 0.1 else 2}f}{unit}"


def interval_text(judged: Judged) -> str:
    """The bounds of a change, in per cent or as factors."""
    if not judged.ratio.half < 5:
        return "unknown"
    low, high = judged.bounds
    if high >= 1:
        return f"x{1 + low:.3g}..{1 + high:.3g}"
    return f"{change_text(low, '')}..{change_text(high, '')}"


def _row(pairs: Pairs, judged: Judged, same: str) -> list[str]:
    if not pairs.visits:
        return ["", _tables.time_text(pairs.seconds(1)), "", "", "", judged.word]
    times = [_tables.time_text(pairs.seconds(side)) for side in (0, 1)]
    shows = "> 100 %" if judged.would_show > 1 else change_text(judged.would_show).lstrip("+")
    word = f"{judged.word} {same}" if judged.why == SAME else judged.word
    return [*times, change_text(judged.change), interval_text(judged), shows, word]


def _reasons(judged: Iterable[tuple[Pairs, Judged]], word: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for pairs, one in judged:
        if one.word == word and one.why and "never hot" not in one.why:
            found.setdefault(one.why, []).append(pairs.cell.key)
    return found


def _lines(report: Report) -> Iterator[str]:
    """What is said below the tables."""
    timed = report.judged()
    for word in ("cannot tell", "new", "n/a"):
        for why, keys in _reasons(timed, word).items():
            what = keys[0] if len(keys) == 1 else f"{len(keys)} cells ({keys[0]}, ...)"
            yield f"{word}: {what}: {why}"
    limits = {
        limit: pairs.cell.key
        for pairs, _ in timed
        for both in pairs.visits.values()
        for visit in both
        for limit in visit.get("throttled", ())
    }
    for limit, key in limits.items():
        yield f"limit met: {limit} (last at {key})"
    yield from (f"note: {note}" for note in report.notes)
    if report.comparison and any(pairs.visits for pairs, _ in timed):
        yield (
            f"{report.comparison.turns} turns; intervals (per cent, or factors) that hold for all cells together in "
            f"{100 - 100 * FALSE_ALARMS:g} % of runs; shows: the smallest change that this run could have seen; "
            "=: both sides launch the same binary"
        )


def _places(differences: list[Difference]) -> dict[tuple[str, str, str, str, str], list[str]]:
    """The exact figures that differ, those that differ alike in one: (series, rung, base, head, verdict) -> where."""
    found: dict[tuple[str, str, str, str, str], list[str]] = {}
    for one in differences:
        values = [f"{value:g}" if isinstance(value, float) else "failed" for value in (one.base, one.head)]
        name = one.series.name.rpartition(".track_")[2]
        place = (f"{name} ({one.series.unit})", one.series.rung, values[0], values[1], one.verdict)
        found.setdefault(place, []).append(" ".join(one.series.where[1:]))
    return found


def _where(found: list[str]) -> str:
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")


def _table(title: str, headers: tuple[str, ...]) -> Table:
    """Of 80 columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), collapse_padding=True, title=title, title_justify="left")
    for header in headers:
        table.add_column(header, justify="left" if header in ("cell", "series", "where", "") else "right")
    return table


def show(report: Report, console: Console) -> None:
    """Print a report; what failed alone."""
    console.print(report.what, markup=False, highlight=False)
    if report.failures:
        _show_failures(report, console)
        return
    by_rung: dict[str, list[tuple[Pairs, Judged]]] = {}
    for pairs, judged in report.comparison.verdicts() if report.comparison else ():
        if pairs.visits or pairs.alone_s:
            name = f"{pairs.cell.op}/{pairs.cell.rung} {pairs.cell.type}, {pairs.cell.device.upper()}"
            line = "" if pairs.cell.key in report.comparison.judged else " (control)"  # type: ignore[union-attr]
            by_rung.setdefault(name + line, []).append((pairs, judged))
    for name, found in by_rung.items():
        table = _table(name, ("cell", report.base.name, report.head.name, "change", "interval", "shows", ""))
        for pairs, judged in found:
            where = f"{label(pairs.cell.shape)} {pairs.cell.cache}"
            table.add_row(where, *_row(pairs, judged, "="), style=STYLES.get(judged.word))
        console.print(table)
    if report.differences:
        table = _table("exact figures", ("series", "where", report.base.name, report.head.name, ""))
        for (series, rung, base, head, verdict), places in _places(report.differences).items():
            table.add_row(series, f"{rung} {_where(places)}", base, head, verdict, style=STYLES.get(verdict))
        console.print(table)
    if report.compared:
        console.print(f"{report.compared} exact figures compared, {len(report.differences)} differ", highlight=False)
    for line in _lines(report):
        console.print(line, markup=False, highlight=False, style="yellow" if line.startswith("cannot tell") else None)
    console.print(report.summary, markup=False, highlight=False, style="bold")


def _show_failures(report: Report, console: Console) -> None:
    for why, keys in _by_reason(report.failures).items():
        what = keys[0] if len(keys) == 1 else f"{len(keys)} cells ({keys[0]}, ...)"
        console.print(f"{report.head.name} failed: {what}: {why}", style="red", markup=False, highlight=False)
    console.print("nothing else is compared before this is right")


def _by_reason(failures: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, why in failures.items():
        found.setdefault(why, []).append(key)
    return found


def markdown(report: Report) -> str:
    """The same as a comment on a pull request."""
    names = (report.base.name, report.head.name)
    if report.failures:
        failed = [f"- `{', '.join(keys)}`: {why}" for why, keys in _by_reason(report.failures).items()]
        return "\n".join([f"**{names[1]} failed** ({report.what})", "", *failed])
    parts = [f"**{report.summary}** ({report.what})"]
    timed = [pair for pair in (report.comparison.verdicts() if report.comparison else ())]
    timed = [pair for pair in timed if pair[0].visits or pair[0].alone_s]
    if timed:
        rows = [
            "| " + " | ".join((f"`{pairs.cell.key}`", *_row(pairs, one, f"({SAME})"))) + " |" for pairs, one in timed
        ]
        heads = ("cell", *names, "change", "interval", "shows", "verdict")
        parts.append("\n".join(["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * 5 + " --- |", *rows]))
    if report.differences:
        rows = [
            f"| {series} | {rung} {_where(places)} | {base} | {head} | {verdict} |"
            for (series, rung, base, head, verdict), places in _places(report.differences).items()
        ]
        head = f"| exact figure | where | {names[0]} | {names[1]} | verdict |"
        parts.append("\n".join([head, "| --- | --- | ---: | ---: | --- |", *rows]))
    lines = [f"{report.compared} exact figures compared, {len(report.differences)} differ"] if report.compared else []
    parts.append("\n".join(f"- {line}" for line in [*lines, *_lines(report)]))
    return "\n\n".join(part for part in parts if part)


# --- the command ---------------------------------------------------------------------------------------------------


def resolve(name: str) -> str:
    """A commit's hash. Raises: SystemExit."""
    return git("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")


def versus(given: argparse.Namespace, console: Console) -> int:
    """Compare two commits and print the report."""
    names, shas = given.commits, [resolve(name) for name in given.commits]
    with tempfile.TemporaryDirectory(prefix="gpukernels-") as folder:
        base, head = (
            Side(side, export(sha, Path(folder, side))) for side, sha in zip(("BASE", "HEAD"), shas, strict=True)
        )
        what = ", ".join(f"{side} = {n} ({s[:8]})" for side, n, s in zip(("BASE", "HEAD"), names, shas, strict=True))
        report = Report(base, head, what)
        differ = changes(base.package, head.package)
        if given.all:
            every = [replace(cell) for op, device in DEVICES for cell in plan(op, device)]
            choice: Choice | None = choose(every, set(known_rungs()), differ.rungs)
        elif given.cells:
            choice = by_pattern(given.cells, differ.rungs)
        else:
            choice = None
            if not differ.rungs:
                console.print(f"{what}: gpukernels/ is the same: nothing to compare (--cells or --all do all the same)")
                return 0
        return finish(report, choice, console, given.budget, given.within, given.markdown)


def finish(
    report: Report,
    choice: Choice | None,
    console: Console,
    budget_s: float,
    within: float | None = None,
    as_markdown: bool = False,
) -> int:
    """Compare, print what is known also when interrupted, and return the exit code."""
    interrupted = False
    try:
        compare(report, choice, budget_s, console, within)
        report.whole = True
    except KeyboardInterrupt:
        interrupted = True
    if as_markdown:
        print(markdown(report))
    else:
        show(report, console)
    if interrupted:
        console.print("interrupted: that is what was known by then; nothing was saved")
    return 130 if interrupted else report.code


def within_of(text: str) -> float:
    """A share from per cent."""
    value = float(text.removesuffix("%"))
    if not 0 < value < 100:
        raise ValueError(text)
    return value / 100


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/versus", description=__doc__)
    parser.add_argument("commits", nargs="+", metavar="COMMIT", help="BASE and HEAD; with --find a range, GOOD..BAD")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--cells", metavar="REGEX", help="these cells (default: of the rungs that compile to another)")
    which.add_argument("--all", action="store_true", help="every cell")
    which.add_argument(
        "--find", metavar="CELL", help="the commit of GOOD..BAD that made this cell, or exact series, what it is in BAD"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=BUDGET_S,
        metavar="SECONDS",
        help="of timing, for what is undecided after the least that can decide; with --find for each commit tried "
        f"(default: {BUDGET_S:g})",
    )
    parser.add_argument(
        "--within",
        type=within_of,
        metavar="PER_CENT",
        help='"no change" is said of less (default: 1 on a GPU, 2 on a CPU)',
    )
    parser.add_argument("--markdown", action="store_true", help="for a comment on a pull request")
    given = parser.parse_args(arguments)
    console = Console(stderr=given.markdown)
    for name in ("SIGTERM", "SIGHUP"):  # as Ctrl-C: what was started ends with this process
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda number, _: sys.exit(128 + number))
    wrong = 1 if given.find else 2
    if len(given.commits) != wrong or (given.find and ".." not in given.commits[0]):
        parser.error("--find takes one range, GOOD..BAD" if given.find else "give two commits, BASE and HEAD")
    if given.find:
        from scripts import _find

        try:
            return _find.main(given, console)
        except KeyboardInterrupt:
            console.print("interrupted; what was tried by then is above")
            return 130
    return versus(given, console)
