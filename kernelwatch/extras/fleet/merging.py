"""Merge the files of one run into a results folder: what the run measured replaces what was there of the same series.

It is done series by series and group by group, so that merging the same files twice changes nothing, and the order in
which runs of other series are merged does not matter.
"""

import json
from pathlib import Path

from kernelwatch.history import records
from kernelwatch.publish.cleaning import problem
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import write_whole

FACTS = ".facts.jsonl"


def merge(folder: Path, files: dict[str, str]) -> None:
    """Merge files of a machine (their texts by name) into its folder. The facts come before the results, as in a run:
    a commit that has results is not measured again.

    Raises: UserError if a file is none of asv's, or of another version of asv; OSError. Every file is then whole.
    """
    for name, text in sorted(files.items(), key=lambda item: not item[0].endswith(FACTS)):
        path = folder / name
        if Path(name).name != name:
            raise UserError(f"a worker sent a file {name}; it should have no folder")
        if name.endswith(FACTS):
            write_whole(path, records.merged(_text(path), text))
        elif name == "machine.json":
            if not path.exists():
                write_whole(path, text)
        else:
            write_whole(path, merged_result(_text(path) if not problem(path) else "", text))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def merged_result(old: str, new: str) -> str:
    """A result file with the series of both; those of the new one replace the old. Raises: UserError."""
    fresh = json.loads(new)
    if not old:
        return new
    before = json.loads(old)
    for name in ("version", "result_columns", "commit_hash", "env_name"):
        if before.get(name) != fresh.get(name):
            raise UserError(f"results of {fresh['commit_hash'][:8]} have another {name} than those that are there")
    both = {name: {**before[name], **fresh[name]} for name in ("results", "durations")}
    return json.dumps({**before, **fresh, **both}, separators=(",", ":"))
