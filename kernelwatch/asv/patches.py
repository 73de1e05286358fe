"""Everything in asv that this engine replaces, in one table, with a digest of the code that each replacement is for.

asv has no hooks for these. Plugins replace a name through `replace`, which raises if the digest of asv's own code
differs from the table. If it does, compare asv's code with the replacement and update the digest (`digest(target)`).
"""

import hashlib
import importlib
import linecache
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import asv
from asv.util import UserError


@dataclass(frozen=True)
class Patch:
    """One replacement in asv.

    `target`: the name, as "module:Class.name", or a script of the pages, as "www/name.js".
    `digest`: `digest(target)` of the code that the replacement was written for.
    `why`: what the replacement achieves.
    `offer`: whether the change would serve every user of asv, so that it could be offered upstream.
    """

    target: str
    digest: str
    why: str
    offer: bool


PATCHES = (
    Patch(
        "asv.machine:Machine.get_unique_machine_name",
        "c49e6f8f317e8c96",
        "a machine is named after its GPU and CPU, not after a host name that changes",
        False,
    ),
    Patch(
        "asv.machine:MachineCollection.load",
        "25253409c022312a",
        "this machine is known without being registered, so that asv asks no questions",
        False,
    ),
    Patch(
        "asv.machine:MachineCollection.save",
        "e93ce43c0b64c507",
        "a home that may not be written stops no run: this machine is known without its file there",
        False,
    ),
    Patch("asv.results:Results.save", "381167150bf9d50a", "the sidecar is saved before the results", False),
    Patch("asv.util:write_json", "8d9e867b4b6f0880", "files are written whole, so a full disk destroys none", True),
    Patch(
        "asv.commands.run:Run.run",
        "7251f8f3e656a197",
        "one run per results folder; an interruption or a full disk ends it with a message; no process outlives it",
        True,
    ),
    Patch(
        "asv.commands.run:run_benchmarks",
        "64062565e2c0437f",
        "the suites of a commit know of each other, so that one can measure for all",
        False,
    ),
    Patch("asv.runner:run_benchmark", "57b643f479c8e2e3", "a series runs once for all its parameters", False),
    Patch("asv.commands.compare:unroll_result", "66d889c308d50b44", "values carry the better direction", True),
    Patch(
        "asv.commands.compare:_is_result_better", "64a0f9bb57cde2bd", "comparisons follow the better direction", True
    ),
    Patch("asv.commands.compare:Compare.print_table", "fb4fdaeb5723a2d7", "the better directions are read", True),
    Patch("asv.commands.compare:Compare.run", "5cb3e098d332e284", "the exit code is 1 if something got worse", True),
    Patch(
        "asv.plugins.regressions:Regressions.publish",
        "a9b29c0cdc114371",
        "changes are judged by measured noise and conditions, and grouped into events",
        False,
    ),
    Patch(
        "asv.commands.publish:Publish.run",
        "bfac5fc318acb544",
        "pages work from a folder; results are cleaned; a failed publication leaves the pages as they were",
        True,
    ),
    Patch(
        "asv.graph:Graph.get_data",
        "07d02780e033e886",
        "a graph's points are averaged once, and not for each of its uses",
        True,
    ),
    Patch(
        "asv.util:sanitize_filename",
        "84cbd05410d89b81",
        "the same few words are escaped once, and not for each graph",
        True,
    ),
    Patch("asv.graph:Graph.detect_steps", "3870449aa28fa1f4", "asv's list judges nothing: the events do", False),
    Patch(
        "asv.graph:Graph.get_steps",
        "315eb34c73846147",
        "asv's list asks for the steps of all series of a graph once for each of them, and need not search them",
        False,
    ),
    Patch(
        "asv.plugins.git:Git.get_tags",
        "f9e41e911e3f0f17",
        "a tag may have the name of a file, or one with markup",
        True,
    ),
    Patch(
        "asv.plugins.git:Git._run_git",
        "b36e26ab5ba9e0ea",
        "a checkout without submodules is not searched for them",
        True,
    ),
    Patch("www/graphdisplay.js", "07e5125f5f5c1d52", "the legend is beside the data; axes of rates start at 0", True),
)
TABLE = {patch.target: patch for patch in PATCHES}
WWW = Path(asv.__file__).parent / "www"


def owner_of(target: str) -> tuple[Any, str]:
    """The object that holds a target as an attribute, and the attribute's name."""
    module, _, path = target.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    return owner, name


@cache
def digest(target: str) -> str:
    """A hash of asv's own code for a target. The end of this module takes it before anything is replaced."""
    if target.startswith("www/"):
        return hashlib.sha256((WWW / target.removeprefix("www/")).read_bytes()).hexdigest()[:16]
    owner, name = owner_of(target)
    return hashlib.sha256(source_of(getattr(owner, name).__code__).encode()).hexdigest()[:16]


def source_of(code: CodeType) -> str:
    """The lines of a function: up to the next one that is not indented further. `inspect.getsource` takes a tenth of
    the time of asv's start for the same."""
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    begin = next(at for at, line in enumerate(lines) if line.lstrip().startswith("def "))  # after decorators
    indent = lines[begin].partition("def ")[0]
    end = begin + 1
    for at, line in enumerate(lines[end:], end):
        if line.startswith((f"{indent} ", f"{indent})")):
            end = at + 1
        elif line.strip():
            break
    return "".join(lines[:end])


def check(target: str) -> None:
    """Raises: UserError if asv's code is not the code that its replacement was written for."""
    if digest(target) != TABLE[target].digest:
        raise UserError(
            f"asv's {target} is not the one that kernelwatch replaces ({TABLE[target].why}); install asv==0.6.6"
        )


def replace(target: str, new: object) -> None:
    """Set one of asv's names to `new`. Raises: UserError, see `check`."""
    check(target)
    owner, name = owner_of(target)
    setattr(owner, name, new)


def replace_words(path: Path, words: dict[str, str]) -> None:
    """Replace passages (old -> new) in a script of asv's pages. Raises: UserError unless each occurs exactly once."""
    check(f"www/{path.name}")
    text = path.read_text(encoding="utf-8")
    for old, new in words.items():
        if text.count(old) != 1:
            raise UserError(f"{path.name} should contain {old!r} exactly once; install asv==0.6.6")
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


for _patch in PATCHES:
    digest(_patch.target)
