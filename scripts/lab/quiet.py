#!/usr/bin/env python3
"""Shows how quiet full runs of one commit are, on several GPUs: what an A/A of the harness must hold.

It takes the sidecars of such runs and the records of `kernelwatch noise`, and keeps in docs/quiet.jsonl what each
process measured of each cold GPU cell, a line for a cell of a run. The tables of docs/research/measuring.md are written
from it. Each file on the command line is a run; files of one GPU are its first, second, ... run in that order.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from kernelwatch.history.instrument import LEVELS_APART_S, LEVELS_MOST_S
from kernelwatch.history.records import read
from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from kernelwatch.report.texts import percent
from kernelwatch.run.outcome import LEAST
from kernelwatch.system.files import write_whole
from lab.figures import write_block

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD, PAGE = ROOT / "docs" / "quiet.jsonl", ROOT / "docs" / "research" / "measuring.md"
SHORT_S = 30e-6  # cells below this are told by themselves: a fixed time a launch shows there first

# `gpu`, `uuid`, `driver`: of the run; `run`: its number among those of its GPU; `kernels`: of a launch; `seconds`: of
# each process; `limited`: the cell is marked. Of `kernelwatch noise`, `runs` has the seconds of each process of each
# run.
Line = dict[str, Any]


def of_sidecar(path: Path) -> Iterator[Line]:
    """The lines of a full run, whose number is not yet known."""
    record = read(path)
    for cell in record.cells.values():
        if cell.group.endswith(" gpu") and cell.key.endswith(" cold") and len(cell.seconds) >= LEAST:
            kernels = max(1, *(len(each.get("kernels") or ()) for each in cell.measurements))
            yield {
                **who(record.facts[cell.group]),
                "commit": record.commit,
                "key": cell.key,
                "kernels": kernels,
                "seconds": [float(f"{seconds:.6g}") for seconds in cell.seconds],
                "limited": bool(cell.limits),
            }


def of_noise(path: Path) -> Iterator[Line]:
    """The lines of a record of `kernelwatch noise`."""
    for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        yield {**who(line["who"]), "key": line["key"], "kernels": 1, "runs": line["processes_s"]}


def who(facts: Any) -> Line:
    """What tells a run's GPU."""
    names = {"gpu": "gpu", "uuid": "nvml_uuid_sha256", "driver": "nvml_driver"}
    return {name: facts.get(key) for name, key in names.items()}


def kept(paths: Sequence[Path]) -> list[Line]:
    """The lines of all files, with the number of each run."""
    lines: list[Line] = []
    runs: Counter[str] = Counter()
    for path in paths:
        found = list(of_sidecar(path) if path.name.endswith(".facts.jsonl") else of_noise(path))
        if not found:
            raise SystemExit(f"{path}: it has no cold GPU cell that {LEAST} processes measured")
        if "seconds" in found[0]:
            runs[str(found[0]["uuid"])] += 1
            found = [{**line, "run": runs[str(line["uuid"])]} for line in found]
        lines += found
    return lines


def variation(values: Sequence[float]) -> float:
    """The coefficient of variation: standard deviation over mean."""
    return statistics.stdev(values) / statistics.mean(values)


def quantiles(values: Sequence[float]) -> list[str]:
    """The median, what 90 % stay below, and the most, as text."""
    if not values:
        return ["n/a"] * 3
    ordered = sorted(values)
    shown = (statistics.median(ordered), ordered[math.ceil(0.9 * len(ordered)) - 1], ordered[-1])
    return [percent(value, 2) for value in shown]


def two_levels(seconds: Sequence[float], kernels: int) -> bool:
    """Whether a process is slower than the lower half of them by the fixed time a kernel that makes a second level."""
    low = statistics.mean(sorted(seconds)[: len(seconds) // 2])
    return any(LEVELS_APART_S < (each - low) / kernels < LEVELS_MOST_S for each in seconds)


def full_runs(lines: list[Line]) -> str:
    """A row for each run: its cold cells that are not marked, those below 30 us, and how many are marked."""
    gpus = list(dict.fromkeys(line["uuid"] for line in lines))
    rows = []
    for (uuid, run), own in groupby(lines, itemgetter("uuid", "run")):
        cells = list(own)
        free = [line for line in cells if not line["limited"]]
        short = [line for line in free if min(line["seconds"]) < SHORT_S]
        levels = sum(two_levels(line["seconds"], line["kernels"]) for line in short)
        rows.append(
            [
                f"GPU {gpus.index(uuid) + 1}, run {run}",
                *(str(len(free)), *quantiles([variation(line["seconds"]) for line in free])),
                *(str(len(short)), *quantiles([variation(line["seconds"]) for line in short])),
                f"{levels}",
                percent(1 - len(free) / len(cells), 1),
            ]
        )
    header = ["", "cells", "median", "90 %", "most", "below 30 us", "median", "90 %", "most", "two levels", "marked"]
    one = lines[0]
    return f"{one['gpu']}, driver {one['driver']}, commit {one['commit']}.\n\n{table(header, rows)}"


def repeated(lines: list[Line]) -> str:
    """One row for the runs of `kernelwatch noise`: between all processes, and between the medians of the runs."""
    apart = [variation([each for run in line["runs"] for each in run]) for line in lines]
    medians = [variation([statistics.median(run) for run in line["runs"]]) for line in lines]
    levels = sum(two_levels([each for run in line["runs"] for each in run], line["kernels"]) for line in lines)
    count = max(len(line["runs"]) for line in lines)
    header = [f"{len(lines)} cells below 30 us, {count} runs", "median", "90 %", "most"]
    rows = [["between all processes", *quantiles(apart)], ["between the medians of the runs", *quantiles(medians)]]
    told = f"{lines[0]['gpu']}, driver {lines[0]['driver']}. Cells with a process on a second level: {levels}."
    return f"{told}\n\n{table(header, rows)}"


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("scripts/lab/quiet", __doc__)
    parser.add_argument("files", nargs="*", type=Path, help="sidecars, and noise.jsonl (default: only the tables)")
    options = parser.parse_args(arguments)
    if options.files:
        write_whole(RECORD, "".join(f"{json.dumps(line)}\n" for line in kept(options.files)))
    lines = [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]
    write_block(PAGE, "quiet", full_runs([line for line in lines if "seconds" in line]), "scripts/lab/quiet")
    write_block(PAGE, "repeated", repeated([line for line in lines if "runs" in line]), "scripts/lab/quiet")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
