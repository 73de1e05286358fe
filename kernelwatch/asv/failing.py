"""What failed as a whole, written when asv saves its results.

asv keeps null for a benchmark that failed, and neither its output nor its exit code. The reason goes into the sidecar
(history/failures.py), the whole output into a log.
"""

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from kernelwatch.history.failures import KIND, SuiteFailure, last_line, suite_of
from kernelwatch.run import outcome
from kernelwatch.system.files import write_whole

SKIPPED = "asv skipped it and gave no reason, as it does if the project could not be built or installed"
EXCEPTION = 1  # the exit code of a benchmark that raised


def failed_suites(results: Any, reasons: Collection[str], logs: Path | None) -> list[SuiteFailure]:
    """The suites that failed as a whole in this run of asv.

    `results`: asv's Results. `reasons`: those of the cells that failed, which the sidecar has already.
    `logs`: the folder into which the outputs are written, None for nowhere.
    """
    outputs: dict[str, dict[str, None]] = {}
    counts: dict[str, int] = {}
    for name, code in results.errcode.items():
        output = results.stderr.get(name) or ""
        values = results._results.get(name)
        failed = code not in (0, None) and (values is None or None in values)
        if not failed or (code == EXCEPTION and any(reason in output for reason in reasons if reason)):
            continue
        suite = suite_of(name)
        outputs.setdefault(suite, {})[output] = None
        counts[suite] = counts.get(suite, 0) + 1
    found = []
    for suite, texts in outputs.items():
        text = "\n\n".join(filter(None, texts))
        log = _log(logs, f"{results.commit_hash[:8]}-{results.env_name}-{suite}", text)
        found.append(SuiteFailure(suite, last_line(text) or SKIPPED, log, counts[suite]))
    return found


def _log(folder: Path | None, name: str, text: str) -> str:
    """Write an output into a log; its path from the folder in which asv runs, "" if it could not be written."""
    if folder is None or not text:
        return ""
    path = folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8", errors="replace")
    except OSError:  # the reason is in the sidecar
        return ""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def note_failures(sidecar: Path, measured: Iterable[str], failures: Iterable[SuiteFailure]) -> None:
    """Write the failures into a sidecar, in place of what an earlier run said of the suites that were `measured`."""
    groups = {f"{KIND} {suite}" for suite in measured}
    old = sidecar.read_text(encoding="utf-8", errors="replace").splitlines() if sidecar.is_file() else []
    lines = [line for line in old if outcome.group_of(line) not in groups]
    lines += [failure.line() for failure in failures]
    if lines != old:
        write_whole(sidecar, "".join(f"{line}\n" for line in lines))
