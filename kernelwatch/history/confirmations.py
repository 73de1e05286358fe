"""The stored verdicts on flagged changes: what a comparison of the commits on both sides said of each cell.

They lie beside the results of a machine, <machine>/<commit>.confirmed.jsonl, one line for each cell, and are read when
the pages are made. A verdict is about two commits and a cell, not about a run, so it stays true if they are measured
again.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal, get_args

from kernelwatch.plan.renamed import NONE, Renamed
from kernelwatch.system.files import write_whole

Word = Literal["confirmed", "refuted", "not decided", "not tried"]
SUFFIX = ".confirmed.jsonl"


@dataclass(frozen=True)
class Confirmation:
    """A verdict on a flagged change of a cell.

    `cell`: its key; `before`, `after`: the commits on both sides.
    `flagged`: the relative change of the seconds that was flagged.
    `change`, `low`, `high`: the relative change in turns and its interval; None if it was not measured.
    `turns`: how many there were; `why`: the reason, if the word does not follow from the interval.
    `at`: when it was decided, in ISO format.
    `logs`: the logarithm of the ratio of each turn; verdicts of older versions have none.
    """

    cell: str
    before: str
    after: str
    word: Word
    flagged: float
    change: float | None = None
    low: float | None = None
    high: float | None = None
    turns: int = 0
    why: str = ""
    at: str = ""
    logs: tuple[float, ...] = ()


Verdicts = dict[tuple[str, str, str], Confirmation]  # by cell, commit before, commit after


def read(folder: Path, renamed: Renamed = NONE) -> Verdicts:
    """The newest verdicts in a machine's folder. Lines that cannot be read are skipped: their changes count as not
    tried."""
    verdicts: Verdicts = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if verdict := _parsed(line):
                verdict = replace(verdict, cell=renamed.now(verdict.cell))
                key = verdict.cell, verdict.before, verdict.after
                if key not in verdicts or verdict.at >= verdicts[key].at:  # a merge may put lines in any order
                    verdicts[key] = verdict
    return verdicts


def _parsed(line: str) -> Confirmation | None:
    try:
        values = json.loads(line)
        known = {field.name: values[field.name] for field in fields(Confirmation) if field.name != "logs"}
        verdict = Confirmation(**known, logs=tuple(values.get("logs", ())))
        texts = (verdict.cell, verdict.before, verdict.after, verdict.why, verdict.at)
        figures = (verdict.flagged, verdict.change, verdict.low, verdict.high, verdict.turns, *verdict.logs)
        sound = verdict.word in get_args(Word) and all(isinstance(text, str) for text in texts)
        return verdict if sound and all(figure is None or math.isfinite(figure) for figure in figures) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def save(folder: Path, verdicts: Iterable[Confirmation]) -> None:
    """Add verdicts to a machine's folder; they replace older ones on the same cells and commits."""
    fresh = {(verdict.cell, verdict.before, verdict.after): verdict for verdict in verdicts}
    for commit in dict.fromkeys(after for _, _, after in fresh):
        path = folder / f"{commit[:8]}{SUFFIX}"
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
        known = {(old.cell, old.before, old.after): old for old in map(_parsed, lines) if old}
        known |= {key: verdict for key, verdict in fresh.items() if key[2] == commit}
        write_whole(path, "".join(f"{json.dumps(asdict(verdict))}\n" for verdict in known.values()))


def overall(words: Iterable[Word]) -> Word:
    """The verdict on an event from those on its changes: one confirmed change confirms it, and it is refuted only if
    every change is."""
    found = set(words)
    order: tuple[Word, ...] = ("confirmed", "not decided", "not tried", "refuted")
    return next((word for word in order if word in found), "not tried")
