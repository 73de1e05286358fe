"""What failed as a whole at each commit, for the pages. Where no reason was kept, asv's nulls say what failed."""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelwatch.history.failures import suite_of
from kernelwatch.plan.project import is_described
from kernelwatch.publish import plain
from kernelwatch.publish.recorded import History, Recorded
from kernelwatch.publish.series import cell_of

UNTOLD = "asv recorded null, and no reason is kept"


def failures(
    history: History, benchmarks: Mapping[str, Any], folder: Path, newest: Collection[tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    """What failed as a whole at each commit, as data/events.json has it.

    `folder`: of the suites. `newest`: machines and their newest commits; of a project without a description only these
    are told.
    """
    for recorded in history.recorded:
        if not is_described(folder.absolute()):
            if (recorded.machine, recorded.commit) in newest:
                yield from _of_benchmarks(recorded, benchmarks)
            continue
        yield from (
            {"machine": recorded.machine, "commit": recorded.commit, **told}
            for told in _of_suites(recorded, benchmarks, folder, history.judged)
        )


def _of_benchmarks(recorded: Recorded, benchmarks: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The benchmarks of asv that failed at a commit."""
    for name, places in sorted(recorded.head["failed"].items()):
        if name in benchmarks:
            count = math.prod(map(len, benchmarks[name]["params"]))
            reason = f"{len(places)} of {count} values: {UNTOLD}" if count > 1 else UNTOLD
            yield {
                "machine": recorded.machine,
                "commit": recorded.commit,
                "suite": name,
                "reason": reason,
                "log": "",
                "series": 1,
            }


def _of_suites(
    recorded: Recorded, benchmarks: Mapping[str, Any], folder: Path, judged: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    failed: dict[str, list[int]] = recorded.head["failed"]
    if not failed:  # what a suite said of an earlier run that failed counts no more
        return
    suites = {told["suite"]: told for told in recorded.head["suites"]}
    known = _failed_cells(recorded)
    unexplained: dict[str, int] = {}
    for name, places in failed.items():
        suite = suite_of(name)
        if suite not in suites and name in benchmarks:
            if judged.get(name) == plain.JUDGED:
                unexplained[suite] = unexplained.get(suite, 0) + 1
                continue
            combinations = list(itertools.product(*benchmarks[name]["params"]))
            cells = (cell_of(folder, name, combinations[at])[0] for at in places if at < len(combinations))
            if not all(cell in known for cell in cells):
                unexplained[suite] = unexplained.get(suite, 0) + 1
    has_nulls = {suite_of(name) for name in failed}
    yield from (told for suite, told in suites.items() if suite in has_nulls)
    for suite, count in unexplained.items():
        yield {"suite": suite, "reason": UNTOLD, "log": "", "series": count}


def _failed_cells(recorded: Recorded) -> set[str]:
    """The keys of the cells that failed, each with a reason of its own."""
    _, record = recorded.load()
    odd = record.odd.items() if record else ()
    return {record.layout.keys[at] for at, (state, _) in odd if state == "failed"} if record else set()
