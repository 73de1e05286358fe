"""Compare two trees: which cells are certainly slower or faster, which did not change, which cannot be decided.

The checkout's harness measures both trees in turns (A B B A ...) in fresh processes on the same device. Undecided
cells are measured longer, within the budget. Figures without noise are compared exactly. A rung that is launched
differently and was not timed is undecided, whatever its exact figures say; only a comparison of the exact figures alone
leaves time out of account. What only the first side has is a difference, too.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernelwatch.comparison import exact
from kernelwatch.comparison.changes import Changes, changes
from kernelwatch.comparison.choice import Choice, before_in_ladder, cells_of, choose, main_types
from kernelwatch.comparison.consents import Consents
from kernelwatch.comparison.exact import Difference, ExactSeries, Figures
from kernelwatch.comparison.paired import Comparison, Judged, Pairs, Side
from kernelwatch.plan.project import Project
from kernelwatch.plan.renamed import NONE, Renamed

FEW = 3  # names in one line
NOT_ASKED = "it was not asked for"
WORDS = ("worse", "accepted", "better", "repaired", "cannot tell", "gone")
WITHOUT_RATIO = ("n/a", "gone", "new", "repaired")  # of which one side has no time


@dataclass
class Report:
    """The result of a comparison. It is filled step by step, so that it can be printed after an interrupt. `what`: both
    sides in one line; `only`: a regular expression that chooses the cells to time; `exact_only`: time nothing;
    `details`: show each figure of new rungs, however many there are."""

    project: Project
    base: Side
    head: Side
    what: str
    only: str = ""
    exact_only: bool = False
    details: bool = False
    notes: list[str] = field(default_factory=list)
    compared: int = 0  # exact figures
    figured: set[str] = field(default_factory=set)  # rungs with exact figures on both sides
    whole: bool = False  # the comparison was not interrupted
    same: int = 0  # rungs that both sides certainly launch alike
    changed: dict[str, tuple[str, ...]] = field(default_factory=dict)  # rung that is launched otherwise -> what differs
    types: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of each of these, the types that differ
    unjudged: dict[tuple[str, str], str] = field(default_factory=dict)  # such a rung and type -> why it was not timed
    skipped: dict[str, str] = field(default_factory=dict)  # rung, type and shape -> why it was not launched here
    missing: dict[str, str] = field(default_factory=dict)  # exact figures -> why this machine lacks them
    untimed: dict[str, str] = field(default_factory=dict)  # changed rung -> why it was not timed
    new: dict[str, str] = field(default_factory=dict)  # rung that only the second side has -> the rung before it
    unseen: dict[str, str] = field(default_factory=dict)  # new rung that nothing looked at -> why it was not timed
    gone: list[str] = field(default_factory=list)  # rungs that only the first side has
    decided: dict[str, str] = field(default_factory=dict)  # changed file that no cell measures -> what it decides
    differences: list[Difference] = field(default_factory=list)
    broken: tuple[str, str] = ("", "")  # why a side's package cannot be imported
    figures: Figures | None = None  # of the second side
    reworked: dict[str, tuple[int, int]] = field(default_factory=dict)  # rung -> how often a launch does the work
    comparison: Comparison | None = None
    consents: Consents = field(default_factory=Consents)

    @property
    def failures(self) -> dict[str, str]:
        """The cells and series that fail on the second side, with the reasons."""
        exact = {str(pair.series): str(pair.head) for pair in self.differences if pair.verdict == "failed"}
        timed = self.comparison.failed() if self.comparison else {}
        if self.broken[1]:
            return {self.project.module: self.broken[1]}
        return exact | {key: judged.why for key, judged in timed.items()}

    def verdicts(self) -> list[tuple[Pairs, Judged]]:
        """The cells and controls with their verdicts: "accepted" if one is worse and what was said of it covers it."""
        found = self.comparison.verdicts() if self.comparison else ()
        return [(pairs, self._consented(pairs, judged)) for pairs, judged in found]

    def _consented(self, pairs: Pairs, judged: Judged) -> Judged:
        if judged.word != "worse":
            return judged
        key = pairs.cell.key
        said = self.consents.of([self.consents.renamed.first(key)], [key], judged.bounds[0])
        return judged if said is None else replace(judged, word="accepted" if said.covers else "worse", why=said.words)

    def judged(self) -> list[tuple[Pairs, Judged]]:
        """The cells with their verdicts, without controls."""
        known = self.comparison.judged if self.comparison else ()
        return [(pairs, judged) for pairs, judged in self.verdicts() if pairs.cell.key in known]

    def counts(self) -> dict[str, tuple[int, int]]:
        """How many cells and how many exact figures have each verdict."""
        cells = [judged.word for _, judged in self.judged()]
        exact = [difference.verdict for difference in self.differences]
        return {word: (cells.count(word), exact.count(word)) for word in WORDS}

    @property
    def alike(self) -> bool:
        """Whether there was nothing to compare: every launch is known on both sides, and the same."""
        return bool(self.same) and not (self.changed or self.new or self.gone or self.decided or self._timed)

    @property
    def by_figures(self) -> list[str]:
        """The changed rungs that were not timed, but of which exact figures of both sides were compared."""
        return [rung for rung in self.untimed if rung in self.figured and rung not in self.reworked]

    @property
    def unchecked(self) -> list[str]:
        """The changed and new rungs that are judged by exact figures of their compiled code: neither a device nor the
        emulator launched them, so they may compute anything."""
        launched = self.figures.repeats if self.figures else {}
        judged = [*self.by_figures, *(rung for rung in self.new if rung not in self.unseen)]
        return [rung for rung in judged if self.exact_only and rung not in launched]

    @property
    def undecided(self) -> list[str]:
        """Why more cannot be said, one reason a line; [] if nothing is undecided."""
        reasons = [f"{self.base.name}: {self.broken[0]}"] if self.broken[0] else []
        if cells := self.counts()["cannot tell"][0]:
            reasons.append(f"{cells} cell{'s' if cells > 1 else ''}")
        gone_cells, gone_figures = self.counts()["gone"]
        if self.gone:
            reasons.append(f"{some(self.gone)}: {'is' if len(self.gone) == 1 else 'are'} gone")
        elif gone_cells or gone_figures:
            counted = [(gone_cells, "cell"), (gone_figures, "exact figure")]
            reasons.append(f"{' and '.join(plural(n, noun) for n, noun in counted if n)} of {self.base.name} gone")
        left = [rung for rung in self.untimed if not (self.exact_only and rung in self.by_figures)]
        if left:
            verb = "its launch differs, and was" if len(left) == 1 else "their launches differ, and were"
            reasons.append(f"{some(left)}: {verb} not judged ({self.untimed[left[0]]})")
        if self.unseen:
            verb = "is new, and was" if len(self.unseen) == 1 else "are new, and were"
            reasons.append(f"{some(self.unseen)}: {verb} not looked at ({next(iter(self.unseen.values()))})")
        for rung, why, types in self._unjudged(asked=True):
            reasons.append(f"{rung} {', '.join(types)}: its launch differs, and was not judged ({why})")
        reasons += [
            f"{file} differs, which decides {what}: no cell measures that" for file, what in self.decided.items()
        ]
        if self.exact_only:
            reasons += self.absent
        if not reasons and not (self.same or self.new or self.compared or self._timed):
            reasons.append("nothing could be compared")
        return reasons

    @property
    def evidence(self) -> str:
        """How many launches were judged, and how."""
        timed = {pairs.cell.name for pairs, judged in self.judged() if judged.word not in WITHOUT_RATIO}
        changed = list(self.changed)
        by_time = sum(rung in timed for rung in changed)
        by_figures = sum(rung in self.by_figures for rung in changed) if self.exact_only else 0
        parts = [f"{plural(len(changed), 'launch')} changed"] if changed else []
        if changed:
            counts = [(by_time, "by time"), (by_figures, "by exact figures only")]
            told = [f"{n} judged {how}" for n, how in counts if n]
            rest = len(changed) - by_time - by_figures
            parts.append(", ".join([*told, *([f"{rest} not judged"] if rest else [])]))
        if self.unchecked:
            parts.append(f"no output was checked of {some(self.unchecked)}")
        parts += [f"not judged: {rung} {', '.join(types)} ({why})" for rung, why, types in self._unjudged()]
        if self.same:
            parts.append(f"{self.same} known to be the same on both sides")
        if self.skipped:
            name, why = next(iter(self.skipped.items()))
            more = f" and {len(self.skipped) - 1} more" if len(self.skipped) > 1 else ""
            parts.append(f"not launched here: {name} ({why}){more}")
        return "; ".join(parts)

    def _unjudged(self, asked: bool = False) -> list[tuple[str, str, list[str]]]:
        """The types that were not judged, by rung and reason. `asked`: only of those that were to be timed."""
        groups: dict[tuple[str, str], list[str]] = {}
        for (rung, type), why in self.unjudged.items():
            if not (asked and why == NOT_ASKED):
                groups.setdefault((rung, why), []).append(type)
        return [(*group, types) for group, types in groups.items()]

    @property
    def absent(self) -> list[str]:
        """The exact figures that this machine lacks, one reason a line."""
        groups: dict[str, list[str]] = {}
        for group, why in self.missing.items():
            groups.setdefault(why, []).append(group)
        return [f"no exact figure of {some(names)} ({why})" for why, names in groups.items()]

    @property
    def _timed(self) -> bool:
        return any(judged.word not in ("n/a", "gone") for _, judged in self.judged())

    @property
    def is_compared(self) -> bool:
        """Whether anything that both sides have was compared."""
        words = [judged.word for _, judged in self.judged()]
        return bool(self.same or self.compared) or any(word not in WITHOUT_RATIO for word in words)

    @property
    def _new_cells(self) -> list[str]:
        """The cells that only the second side has, of rungs that are not new as a whole."""
        new = [pairs.cell for pairs, judged in self.judged() if judged.word == "new"]
        return [cell.key for cell in new if cell.name not in self.new]

    @property
    def code(self) -> int:
        """The exit code."""
        if self.failures:
            return 2
        if any(self.counts()["worse"]):
            return 1
        return 2 if self.undecided else 0

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        base, head = self.base.name, self.head.name
        counts = self.counts()

        def amount(word: str) -> str:
            cells, exact = counts[word]
            return " and ".join(plural(n, noun) for n, noun in [(cells, "cell"), (exact, "exact figure")] if n)

        parts = [f"{head} is {word} than {base}: {amount(word)}" for word in ("worse", "better") if any(counts[word])]
        if any(counts["accepted"]):
            parts.append(f"worse, and accepted: {amount('accepted')}")
        if any(counts["repaired"]):
            parts.append(f"repaired: {amount('repaired')}")
        if new := [*self.new, *self._new_cells]:
            parts.append(f"new: {some(new)}, with nothing to compare")
        if self.undecided:
            parts.append(f"cannot tell: {'; '.join(self.undecided)}")
        if not self.whole:
            parts.append("interrupted before all was decided")
        elif not parts:
            launches = "the only launch is" if self.same == 1 else f"all {self.same} launches are"
            parts = [f"no change: {launches} the same, and nothing was timed"]
            if not self.alike:  # figures do not show that another binary is as fast
                parts = ["no figure is worse or better" if self.exact_only and self.changed else "no change"]
        alone = ["by the exact figures alone"] if self.exact_only and not self.alike else []
        return "; ".join([*parts, *alone])


def plural(count: int, noun: str) -> str:
    """A number of things."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{count} {noun}{'' if count == 1 else ending}"


def some(names: Iterable[str]) -> str:
    """The first of some names, and how many more there are."""
    names = list(names)
    return ", ".join(names[:FEW]) + (f" and {len(names) - FEW} more" if len(names) > FEW else "")


def compare(
    report: Report,
    choose_from: Callable[[Changes], Choice | None],
    budget_s: float,
    within: float | None,
    tell: Callable[[str], None],
) -> None:
    """Fill a report. `choose_from`: chooses what to compare, knowing what changed; None stands for the rungs that are
    launched differently. `tell` gets the text of each stage. Raises: UserError."""
    project, base, head = report.project, report.base, report.head
    tell("looking for what changed ...")
    differ = changes(project, base.tree, head.tree)
    report.broken = differ.broken
    if any(differ.broken):
        return
    choice = choose_from(differ)
    rungs = choice.exact if choice else {*differ.rungs, *differ.gone}
    described = set(project.rungs())
    differ = differ.only(rungs if choice else {*described, *differ.gone})
    report.new = {rung: before_in_ladder(project, rung) for rung in differ.new if rung in described}
    report.gone = list(differ.gone)
    report.same = len(differ.same)
    if choice is None:
        report.decided = undescribed(project, base, head)
    tell("compiling ...")
    asked = (rungs & described) | {before for before in report.new.values() if before}
    figures = [exact.figures_of(project, side.tree, asked) for side in (base, head)]
    take_exact(report, *figures)
    if report.failures:
        return
    report.changed = dict(differ.launched) | _recompiled(report, differ, figures, chosen=choice is not None)
    report.types = {rung: _types(project, rung, differ, figures) for rung in report.changed if rung in described}
    report.skipped = {
        f"{rung} {place}": why for rung, places in differ.skipped.items() for place, why in places.items()
    }
    timed = list(report.changed)
    whole_choice = choice is None and not report.only
    if choice is None:
        before = [name for name in report.new.values() if name]
        types = {**main_types(project, [*report.new, *before]), **report.types}
        choice = choose(project, cells_of(project, types, report.only), rungs, [*timed, *report.new])
    elif choice.cells:
        named = {cell.name for cell in choice.cells}
        timed = [rung for rung in timed if rung in named]
    else:
        report.exact_only = True
    if choice.cells and not report.exact_only:
        report.comparison = Comparison(project, base, head, choice.cells, choice.controls, within, report.changed)
        report.comparison.run(budget_s, tell)
    report.untimed = _untimed(report, timed)
    named = {cell.name for cell in choice.cells}
    new = [rung for rung in report.new if rung in named or whole_choice or not named]
    report.unseen = _unseen(report, new)
    report.unjudged = _unjudged_types(report, "no suite here times it" if whole_choice else NOT_ASKED)


def compare_environments(
    report: Report,
    choice: Choice,
    budget_s: float,
    within: float | None,
    tell: Callable[[str], None],
    known: dict[tuple[str, str], Figures] | None = None,
) -> None:
    """Fill a report on one tree that two environments measure. What a launch is made of lies in the environment as
    well, so no cell is taken to be the same on both sides, and none is a control. `known`: the exact figures so far, by
    tree and interpreter, to which these are added. Raises: UserError."""
    project, base, head = report.project, report.base, report.head
    known = {} if known is None else known
    tell("compiling ...")
    for side in (base, head):
        if (side.tree, side.python) not in known:
            own = exact.figures_of(project, side.tree, choice.exact, python=side.python)
            known[side.tree, side.python] = own
    figures = [known[side.tree, side.python] for side in (base, head)]
    take_exact(report, *figures)
    report.missing = {
        name: f"{side.name}: {why}"
        for side, own in zip((base, head), figures, strict=True)
        for name, why in own.missing.items()
    }
    if report.failures or report.exact_only:
        return
    rungs = {cell.name for cell in choice.cells}
    report.comparison = Comparison(project, base, head, choice.cells, {}, within, rungs)
    report.comparison.run(budget_s, tell)


def undescribed(project: Project, base: Side, head: Side) -> dict[str, str]:
    """The files that differ between the sides and that decide something that no cell measures: file -> what."""
    found = {}
    for file, what in project.decides.items():
        sides = [Path(side.tree, file) for side in (base, head) if side.tree]
        contents = [path.read_bytes() if path.is_file() else None for path in sides]
        if len(contents) == 2 and contents[0] != contents[1]:
            found[file] = what
    return found


def _types(project: Project, rung: str, differ: Changes, figures: list[Figures]) -> tuple[str, ...]:
    """The types of a changed rung that may be launched differently: all, unless binaries tell."""
    op, _, name = rung.partition("/")
    every = project.op(op).rung(name).types
    known = differ.types.get(rung)
    if known is None and rung in differ.compiled:
        known = _compiled_otherwise(rung, every, [side.binaries.get(rung, {}) for side in figures])
    return tuple(type for type in every if type in known) if known else every


def _compiled_otherwise(rung: str, types: Iterable[str], sides: list[Mapping[str, object]]) -> tuple[str, ...]:
    """The types for which a rung was compiled to another binary for any architecture, or not compiled."""

    def of(type: str) -> list[dict[str, object]]:
        return [{key: what for key, what in side.items() if key.startswith(f"{rung} {type} ")} for side in sides]

    return tuple(type for type in types if not all(of(type)) or of(type)[0] != of(type)[1])


def shown_of(series: ExactSeries, renamed: Renamed = NONE) -> list[object]:
    """What names an exact series in the id of a change: the benchmark and its parameters, as asv writes them."""
    params = dict(zip(series.names, map(repr, series.where), strict=True))
    return [series.name, *sorted(renamed.first_params(series.rung, params).items())]


def said(consents: Consents, difference: Difference) -> Difference:
    """A difference, with what was said of it if it is worse."""
    series, base, head = difference.series, difference.base, difference.head
    if difference.verdict != "worse" or isinstance(base, str) or isinstance(head, str):
        return difference
    sign = -1.0 if series.higher_is_better else 1.0
    least = head / base - 1 if base else math.inf * sign
    told = consents.of(
        shown_of(series, consents.renamed), (series.name, f"{series.name}({', '.join(series.where)})"), least, sign
    )
    return difference if told is None else replace(difference, why=told.words, accepted=told.covers)


def is_number(value: exact.Value) -> bool:
    """Whether an exact figure is one, not n/a and not a reason."""
    return isinstance(value, float) and not math.isnan(value)


def take_exact(report: Report, base: Figures, head: Figures) -> None:
    """Put the exact figures of both sides into a report."""
    report.differences = [said(report.consents, each) for each in exact.differences(base, head)]
    both = [series for series, value in head.values.items() if is_number(value) and is_number(base.values[series])]
    report.compared = len(both)
    report.figured = {series.rung for series in both}
    report.figures = head
    report.missing = head.missing
    report.reworked = exact.repeated(base, head)
    report.notes += [
        f"{rung}: a launch does the work {now} times, not {before} times: its figures are not compared"
        for rung, (before, now) in report.reworked.items()
    ]


def _untimed(report: Report, timed: list[str]) -> dict[str, str]:
    """Of the rungs that are launched differently, those without a measured cell, each with the reason."""
    words: dict[str, list[Judged]] = {}
    for pairs, judged in report.judged():
        words.setdefault(pairs.cell.name, []).append(judged)
    untimed = {}
    for rung in timed:
        verdicts = words.get(rung, [])
        if all(judged.word in ("n/a", "gone") for judged in verdicts):
            why = "times were not asked for" if report.exact_only else "no suite here times it"
            untimed[rung] = verdicts[0].why if verdicts else why
    return untimed


def _unseen(report: Report, new: list[str]) -> dict[str, str]:
    """Of some new rungs, those that ran nowhere, each with the reason why it was not timed: neither on a device nor
    on the emulator, which checks outputs, too. Without times, any exact figure will do."""
    figures = report.figures or Figures({}, {}, {})
    seen = set(figures.repeats)
    if report.exact_only:
        seen |= {series.rung for series, value in figures.values.items() if is_number(value)}
    return {rung: why for rung, why in _untimed(report, new).items() if rung not in seen}


def _unjudged_types(report: Report, why: str) -> dict[tuple[str, str], str]:
    """Of the changed launches that were timed, the types that differ and have no measured cell. `why`: the reason if
    there was no such cell at all."""
    words: dict[tuple[str, str], list[Judged]] = {}
    for pairs, judged in report.judged():
        words.setdefault((pairs.cell.name, pairs.cell.type), []).append(judged)
    timed = {rung for (rung, _), verdicts in words.items() if any(judged.word != "n/a" for judged in verdicts)}
    unjudged = {}
    for rung, types in report.types.items():
        for type in types if rung in timed and rung not in report.untimed else ():
            verdicts = words.get((rung, type), [])
            if all(judged.word == "n/a" for judged in verdicts):
                unjudged[rung, type] = verdicts[0].why if verdicts else why
    return unjudged


def _recompiled(report: Report, differ: Changes, figures: list[Figures], chosen: bool) -> dict[str, tuple[str, ...]]:
    """Of the rungs of which only compiled sources changed, those whose binary changed or is not known. Adds a note
    about the others, unless the cells to time were `chosen`: then they are timed all the same."""
    changed: dict[str, tuple[str, ...]] = {}
    alike = list(differ.rebuilt)
    for rung, files in differ.compiled.items():
        binaries = [side.binaries.get(rung) for side in figures]
        if binaries[0] is not None and binaries[0] == binaries[1]:
            alike.append(rung)
        else:
            changed[rung] = files
    report.same += len(alike) - len(differ.rebuilt)
    if alike and not chosen:
        report.notes.append(f"the source differs, the binary is the same: {some(alike)}")
    return changed
