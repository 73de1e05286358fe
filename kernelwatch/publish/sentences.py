"""What happened at an event, in a sentence for a manager and in one for a kernel engineer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelwatch.analysis import sassdiff
from kernelwatch.detect.events import Event
from kernelwatch.detect.states import headline
from kernelwatch.publish.figures import Figure
from kernelwatch.report.texts import change_text, time_text

MOST = 3  # clauses of a kind
QUOTED_MOST = 90  # characters of a line of source
OPCODES = 4
NO_FIGURE = "no exact figure of the kernel is known on both sides"


@dataclass(frozen=True)
class Look:
    """What is known of a kernel on both sides.

    `figures`: the exact ones; `origin`: by "compiled" and "counted", whether they were "recorded" or "looked" at now;
    `lines`: the accesses that moved; `sass`: how the SASS changed; `why`: why it was not looked at.
    """

    name: str
    figures: Sequence[Figure]
    origin: Mapping[str, str]
    lines: Sequence[Mapping[str, Any]]
    sass: Mapping[str, Any]
    why: str = ""


def for_a_manager(event: Event, size: float | None, device: str, subject: str) -> str:
    """By how much, of what, where, since which commit; without a word that only a kernel engineer knows. `size`: of its
    largest change, as all pages tell it; None from 0."""
    if event.kind == "environment":
        return f"No commit is to blame: {event.why or 'the conditions changed'}."
    change = headline(event)
    series, step = change.series, change.step
    if series.cell:
        name, _, where = series.cell.partition(" ")
        word = "slower" if step.after > step.before else "faster"
        text = f"{name} ({where}) is {abs(100 * (size or 0.0)):.3g} % {word} on {device}: "
        text += f"{time_text(step.before)} became {time_text(step.after)}".replace(" us", " \u00b5s")
    else:
        values = [value.strip("'") for value in series.params.values()]
        figure = series.benchmark.rpartition(".")[2].removeprefix("track_").replace("_", " ")
        figure = f"{figure[:1].upper()}{figure[1:]}"
        named = f"{figure} of {', '.join(values)}" if values else figure
        text = f"{named} {'rose' if step.after > step.before else 'fell'} from {step.before:.4g} to {step.after:.4g}"
        text += "" if series.exact else f" on {device}"
    when = "by many small changes up to" if event.first != event.last else "since"
    others = len(event.changes) - 1
    more = f" {others} more series moved with it." if others else ""
    return f"{text}, {when} the commit \u201c{subject}\u201d.{more}"


def for_an_engineer(
    event: Event, size: float | None, looks: Sequence[Look], diff: Sequence[str] = (), why: str = ""
) -> str:
    """What moved of the exact figures, and by which line. `diff`: the lines of the commit's diff, if it alone is to
    blame; `why`: why no kernel could be looked at."""
    if event.kind == "environment":
        return f"The environment changed: {event.why or 'the conditions are others'}."
    amount = "from 0" if size is None else change_text(size)
    source = since(diff)
    head = f"{amount}, since {source}" if source else amount
    known = [look for look in looks if look.figures]
    if not known:
        reasons = [why, *(look.why or str(look.sass.get("why") or "") for look in looks), NO_FIGURE]
        reason = next(filter(None, reasons))
        return f"{head}: no exact figure says why ({reason})."
    said = cause(known[0], is_worse=event.kind == "regression")  # of the kernel whose time changed most
    if len(looks) > 1:
        others = ", ".join(look.name for look in looks if look is not known[0])
        said += f". That is {known[0].name}; {others} changed, too"
    return f"{head}: {said}."


def cause(look: Look, *, is_worse: bool) -> str:
    """What moved of a kernel; what moved against the change of its time stands at the end. `is_worse`: that change."""
    wanted = "worse" if is_worse else "better"
    moved = [each for each in look.figures if each.moved and each.clause]
    moved.sort(key=lambda each: (each.verdict != wanted, not each.verdict, each.name.endswith("requests")))
    clauses = [_clause(each, look.lines) for each in moved if each.verdict in (wanted, "")][:MOST]
    against = [_clause(each, look.lines) for each in moved if each.verdict not in (wanted, "")][:MOST]
    before, after = look.sass.get("loops", (0, 0))
    if before != after:
        clauses.append(f"the code has {after} {'loop' if after == 1 else 'loops'} instead of {before}")
    if opcodes := _opcodes(look.sass):
        clauses.append(opcodes)
    if not moved and clauses:
        clauses = ["no exact figure moved", *clauses]
    elif not moved:
        names = ", ".join(each.name for each in look.figures if each.clause and not each.name.endswith("requests"))
        clauses = [f"no exact figure moved ({names})", *filter(None, [_unmoved(look.sass)])]
    return "; ".join(clauses) + (f"{'; ' if clauses else ''}although {' and '.join(against)}" if against else "")


def _clause(figure: Figure, lines: Sequence[Mapping[str, Any]]) -> str:
    text = figure.clause.format(number(figure.after), number(figure.before))
    is_ratio = figure.kind and not figure.name.endswith("requests")
    own = [each["after"] or each["before"] for each in lines if is_ratio and each["kind"] == figure.kind]
    numbers = sorted({line for line in own if line})
    if not numbers:
        return text
    return f"{text}, {'line' if len(numbers) == 1 else 'lines'} {' and '.join(map(str, numbers[:MOST]))}"


def number(value: float) -> str:
    """A figure without noise: whole numbers as they are, others with four digits."""
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.4g}"


def _opcodes(sass: Mapping[str, Any]) -> str:
    """The likely instructions whose number changed, in a clause; "" if there are none."""
    changed = sass.get("opcodes", {}).items()
    own = [each for each in changed if sassdiff.SUSPECTS.fullmatch(each[0].partition(".")[0])][:OPCODES]
    return "in its SASS " + ", ".join(f"{name} {old} \u2192 {new}" for name, (old, new) in own) if own else ""


def _unmoved(sass: Mapping[str, Any]) -> str:
    """What differs between binaries whose figures are all the same, in a clause."""
    if "same" not in sass:
        return ""
    if sass["same"]:
        return "the code is the same, bit by bit"
    if sass["removed"] or sass["added"]:
        return f"its SASS lost {sass['removed']} instructions and gained {sass['added']}"
    if sass["moved"]:
        return f"in its SASS {sass['moved']} instructions stand elsewhere"
    if sass["renamed"]:
        others = f"{sass['renamed']} of them with other registers or addresses"
        return f"its SASS has the same instructions in the same order, {others}"
    return "its SASS is the same, so only what nvdisasm does not print differs: how long instructions wait"


def since(diff: Sequence[str]) -> str:
    """The change of the source, if it is one line: "`a` became `b`"; "" for more."""
    body = [line for line in diff if not line.startswith(("---", "+++"))]
    removed = [line[1:].strip() for line in body if line.startswith("-") and line[1:].strip()]
    added = [line[1:].strip() for line in body if line.startswith("+") and line[1:].strip()]
    if max(map(len, (removed, added))) > 1 or any(len(line) > QUOTED_MOST for line in removed + added):
        return ""
    if removed and added:
        return f"`{removed[0]}` became `{added[0]}`"
    return f"`{added[0]}` was added" if added else f"`{removed[0]}` was removed" if removed else ""
