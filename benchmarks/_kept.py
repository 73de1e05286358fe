"""Groups that an interrupted run had finished, kept under $GPUKERNELS_KEPT until their commit's results are saved.

One file a commit, asv environment and group, in the sidecar's lines. What was measured with another stick, package,
compiler, driver, CPU or GPU is not taken up, nor what has other cells, nor anything under $GPUKERNELS_AGAIN.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks._files import write_whole
from benchmarks._identity import COUNTED, TIMED, known

# What must be the same for two records of a group to be compared, or for one to stand in for the other.
CONDITIONS = ("gpu", "nvml_uuid_sha256", "nvml_driver", "cpu", "cores", "compiler", "packages")


def conditions(facts: dict[str, Any]) -> dict[str, Any]:
    """The GPU or CPU, the driver, the versions of packages and of the harness, of a group's facts."""
    told = {name: facts.get(name) for name in CONDITIONS}
    return told | {identity.fact: known(facts, identity) for identity in (TIMED, COUNTED)}


def stem(commit: str, environment: str) -> str:
    """What the files of a commit and asv environment begin with."""
    return f"{commit}-{environment}."


def place(group: str) -> Path | None:
    """Where a group of the commit that asv measures is kept; None where nothing is: no asv run, or only a look."""
    folder, commit = os.environ.get("GPUKERNELS_KEPT"), os.environ.get("ASV_COMMIT")
    if not folder or not commit or os.environ.get("GPUKERNELS_QUICK", "") not in ("", "0"):
        return None
    return Path(folder, f"{stem(commit, os.environ.get('ASV_ENV_NAME', ''))}{group.replace(' ', '.')}.jsonl")


def keep(group: str, lines: Iterable[dict[str, Any]]) -> None:
    """Keep a group's lines; a disk that is full costs no more than that."""
    path, (head, *rest) = place(group), lines
    facts = head["facts"]
    if path and (facts.get("cpu") or facts.get("nvml_uuid_sha256")):  # else nobody could tell whose they are
        with suppress(OSError):
            write_whole(path, "".join(json.dumps(line) + "\n" for line in (head, *rest)))


def there(group: str, keys: Iterable[str]) -> list[dict[str, Any]] | None:
    """The lines of a group as it was kept, of just these cells; None where there is none, or again is asked for."""
    path = place(group)
    if path is None or os.environ.get("GPUKERNELS_AGAIN", "") not in ("", "0"):
        return None
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if lines[0]["record"] == "run" and [line["key"] for line in lines[1:]] == list(keys):
            return lines
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
    return None
