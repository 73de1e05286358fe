"""Keeps groups until their commit's results are saved, so that an interrupted run can resume: after each process.

There is one file for each commit, asv environment and group, in the sidecar's format. A run does not reuse a group that
has other cells, or that was measured with another harness, package, compiler, driver, CPU or GPU.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

from kernelwatch.run import outcome
from kernelwatch.run.outcome import Group
from kernelwatch.system.files import write_whole
from kernelwatch.system.options import Options
from kernelwatch.timing.record import Facts

UNFINISHED = "processes"  # the fact of a group that is not finished


def stem(commit: str, environment: str) -> str:
    """The beginning of the file names of a commit and asv environment."""
    return f"{commit}-{environment}."


def place(group: str, options: Options) -> Path | None:
    """The file for a group of the commit that asv measures; None outside of asv's runs and in quick runs."""
    commit = os.environ.get("ASV_COMMIT")  # set by asv, as is ASV_ENV_NAME
    if not options.kept or not commit or options.quick:
        return None
    environment = os.environ.get("ASV_ENV_NAME", "")
    return Path(options.kept, f"{stem(commit, environment)}{group.replace(' ', '.')}.jsonl")


def keep(group: Group, options: Options, processes: int | None = None) -> None:
    """Keep a group, unless it lacks the facts that identify its machine. A failed write (a full disk) is ignored.

    `processes`: how many processes have measured it, if others are to follow.
    """
    if processes is not None:
        group = replace(group, facts=cast(Facts, {**group.facts, UNFINISHED: processes}))
    path = place(group.name, options)
    # Without one of these facts the figures could be another machine's.
    if path and (group.facts.get("cpu") or group.facts.get("nvml_uuid_sha256")):
        with suppress(OSError):
            write_whole(path, "".join(f"{line}\n" for line in group.lines()))


def taken(kept: Group) -> int | None:
    """How many processes have measured a kept group; None if it is finished. The group's facts no longer say so."""
    facts = cast("dict[str, int]", kept.facts)
    return facts.pop(UNFINISHED, None)


def there(group: str, keys: Iterable[str], options: Options) -> Group | None:
    """The kept group, if it has exactly the cells `keys`; None if there is none, or if the run measures all again."""
    path = place(group, options)
    if path is None or options.again:
        return None
    try:
        groups = outcome.read(path.read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError):
        return None
    if len(groups) != 1:
        return None
    (kept,) = groups
    return kept if kept.facts and list(kept.outcomes) == list(keys) else None
