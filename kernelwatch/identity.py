"""The version of the harness that a figure was taken with, and the files that the version stands for.

A version is raised by hand when the code starts to measure something else; two figures of the same version are
comparable. It is asv's `version` of the series, and one of the conditions recorded with every result. The lock file
holds a digest of the tokens (no comments, no docstrings, no layout) of each file that can move a figure. A test
compares them, so that a change of these files either is shown to measure the same or raises the version.
"""

import hashlib
import io
import json
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LOCK = HERE / "identity.lock.json"


@dataclass(frozen=True)
class Identity:
    """The version of one kind of figures.

    `version`: raised when the figures change their meaning.
    `files`: glob patterns, relative to this folder, of the files that can move the figures.
    `fact`: the version's name among the facts of a group.
    `before`: older records hold a hash of files instead of a version: that fact's name, and the version that each
    recorded hash stands for.
    """

    version: str
    files: tuple[str, ...]
    fact: str
    before: tuple[str, dict[str, str]]


TIMED = Identity(
    "2",  # 1: some cells were timed beside a graph that was uploaded and never launched
    (
        *("timing/gpu.py", "timing/launch.py", "timing/cpu.py", "timing/replay.py"),
        *("extras/streamed/timer.py", "extras/several/timer.py", "extras/several/rank*.py", "extras/*/device.py"),
        *("timing/kernels.cu", "timing/device.py", "timing/check.py", "timing/nvml.py", "timing/clocks.py"),
        *("timing/l2.py", "plan/cells.py", "plan/devices.py", "plan/problem.py"),
        *("run/worker.py", "run/workers.py", "run/processes.py", "run/group.py", "run/codes.py", "run/outcome.py"),
    ),
    "harness",
    ("stick", {"1a988c45ace2976a": "1", "cf1d4b80fc851a67": "1"}),  # in data/planted; in results/
)
COUNTED = Identity(
    "1",
    ("analysis/counted.py", "emulator/*.py", "emulator/runtime.cpp", "emulator/include/**/*"),
    "emulator",
    ("stand_in", {"24a859126da19458": "1"}),
)
COMPILED = Identity(
    "1",
    ("plan/binaries.py", "plan/cubin.py", *(f"analysis/{name}.py" for name in ("compiled", "occupancy", "sass"))),
    "reader",
    ("", {}),
)
IDENTITIES = {"timed": TIMED, "counted": COUNTED, "compiled": COMPILED}


def comparisons() -> Path:
    """The file beside the lock with the A/As that let changes keep their version, a line each."""
    return LOCK.with_name("identity.aa.jsonl")


def known(facts: Mapping[str, Any], identity: Identity) -> str | None:
    """The version that a group's facts name; None if they name none.

    A recorded hash that stands for no known version is returned as it is, so that its figures are comparable only with
    those of the same hash.
    """
    name, recorded = identity.before
    old = facts.get(name)
    return facts.get(identity.fact) or (recorded.get(old, old) if old else None)


# --- the lock ------------------------------------------------------------------------------------------------------


def _python(text: str) -> Iterator[str]:
    """The tokens of Python source. An f-string is one token, as it was before Python 3.12."""
    lines = text.splitlines(keepends=True)
    start, depth, fresh = (0, 0), 0, True  # fresh: at the start of a logical line; a string there is a docstring
    layout = {tokenize.INDENT: ">", tokenize.DEDENT: "<", tokenize.NEWLINE: ";"}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        if name == "FSTRING_START":
            start, depth = (token.start if not depth else start), depth + 1
        elif name == "FSTRING_END":
            depth -= 1
            if not depth:
                yield _between(lines, start, token.end)
        elif depth or token.type in (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER):
            continue
        elif token.type in layout:
            if not (token.type == tokenize.NEWLINE and fresh):  # the end of a docstring
                yield layout[token.type]
            fresh = True
            continue
        elif not (token.type == tokenize.STRING and fresh):
            yield token.string
            fresh = False


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    """The source from one position (row from 1, column from 0) up to another."""
    (row, column), (last, stop) = start, end
    if row == last:
        return lines[row - 1][column:stop]
    return "".join([lines[row - 1][column:], *lines[row : last - 1], lines[last - 1][:stop]])


_OF_C = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\\\n|\n|\w+|\S", re.DOTALL)


def _c(text: str) -> Iterator[str]:
    """The tokens of C, C++ or CUDA C++. The end of a line is a token only after a preprocessor directive."""
    directive = False
    for token in _OF_C.findall(text):
        if token.startswith(("//", "/*")) or token == "\\\n":
            continue
        directive = directive or token == "#"
        if token != "\n" or directive:
            yield token
        directive = directive and token != "\n"


def digest(path: Path) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a file's tokens."""
    text = path.read_text(encoding="utf-8")
    tokens = _python(text) if path.suffix == ".py" else _c(text)
    return hashlib.sha256("\0".join(tokens).encode()).hexdigest()[:16]


def locked() -> dict[str, Any]:
    """The lock file: kind of figures -> {"version": its version, "files": {path: digest}}; "without_aa" -> debt()."""
    return dict(json.loads(LOCK.read_text(encoding="utf-8")))


def now() -> dict[str, Any]:
    """The kinds of figures for the files as they are now."""
    return {
        name: {
            "version": identity.version,
            "files": {
                path.relative_to(HERE).as_posix(): digest(path)
                for pattern in identity.files
                for path in sorted(HERE.glob(pattern))
                if path.is_file()
            },
        }
        for name, identity in IDENTITIES.items()
    }


def changed_files(name: str) -> list[str]:
    """The files of a kind of figures that are not as the lock has them, those that came or went included."""
    old, new = locked().get(name, {}).get("files", {}), now()[name]["files"]
    return [file for file in {**old, **new} if old.get(file) != new.get(file)]


def raised(name: str) -> bool:
    """Whether the version of a kind of figures is another one than the lock's."""
    return bool(locked().get(name, {}).get("version") != IDENTITIES[name].version)


def unlocked() -> list[str]:
    """The differences between the files and the lock, a sentence for each kind of figures; [] if there are none."""
    old, new = locked(), now()
    sentences = []
    for name in IDENTITIES:
        if changed := changed_files(name):
            sentences.append(
                f"{name} figures: {', '.join(changed)} changed. If the figures keep their meaning, show it by an A/A "
                f"(the same launches measured before and after); if not, raise the version in {Path(__file__).name}. "
                f"Then rewrite the lock: {WRITE}"
            )
        elif old.get(name) != new[name]:
            sentences.append(f"{name} figures: the version changed. Rewrite the lock: {WRITE}")
    return sentences


WRITE = "kernelwatch identity --accept"


def debt() -> list[dict[str, Any]]:
    """The changes of timed files that were accepted without an A/A, the oldest first, until an A/A or a new version
    removes them: {"after": the commit that the lock stood for before, "files": what changed, "why": the given reason}.
    """
    return list(locked().get("without_aa", ()))


def accept(without_aa: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write the lock file for the files as they are now. `without_aa`: the changes that have no A/A."""
    LOCK.write_text(json.dumps(now() | {"without_aa": list(without_aa)}, indent=1) + "\n", encoding="utf-8")


# --- a project's description ---------------------------------------------------------------------------------------


def changed_description(path: Path) -> str:
    """What to do about a project's description that is not as its own lock file has it, in a sentence; "" if it is, or
    if it has no lock file."""
    lock = path.with_suffix(".lock")
    if not lock.is_file() or lock.read_text(encoding="utf-8").strip() == digest(path):
        return ""
    return (
        f"{path.name} changed. If a cell still measures the same (operands, reference, launch), accept it: {WRITE}. If "
        "not, give the op or rung another name, or its old figures are compared with new ones"
    )


def accept_description(path: Path) -> None:
    """Write the lock file of a project's description."""
    path.with_suffix(".lock").write_text(f"{digest(path)}\n", encoding="utf-8")
