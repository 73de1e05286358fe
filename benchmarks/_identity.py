"""Which version of the measuring code a figure was taken with, and what that version is made of.

A version is raised by hand when the code starts to measure something else; two figures of one version may be compared.
It is asv's `version` of the series, and one of the conditions beside every result. The lock file holds a digest of the
tokens (no comments, no docstrings, no layout) of each file that can move a figure: a test compares, so that a change
of these files is either shown to measure alike or raises the version.
"""

import hashlib
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LOCK = HERE / "identity.lock.json"


@dataclass(frozen=True)
class Identity:
    """One kind of figures. `version`: raise it when the figures change their meaning. `files`: patterns, relative to
    this folder, of what can move them. `fact`: its name among the facts of a group. `before`: the name that this fact
    had while it was a hash of files, and the versions that those recorded hashes stand for."""

    version: str
    files: tuple[str, ...]
    fact: str
    before: tuple[str, dict[str, str]]


TIMED = Identity(
    "1",
    ("_gpu.py", "_cpu.py", "_stick.cu", "_visit.py", "_worker.py", "_group.py", "_cells.py", "_ops.py", "_nvml.py"),
    "harness",
    ("stick", {"1a988c45ace2976a": "1", "cf1d4b80fc851a67": "1"}),  # the planted history's, the kernels' own
)
COUNTED = Identity(
    "1",
    ("_access.py", "_emulator/**/*.py", "_emulator/**/*.cpp", "_emulator/**/*.h"),
    "emulator",
    ("stand_in", {"24a859126da19458": "1"}),
)
COMPILED = Identity("1", ("_static.py",), "reader", ("", {}))
IDENTITIES = {"timed": TIMED, "counted": COUNTED, "compiled": COMPILED}


def known(facts: dict[str, Any], identity: Identity) -> str | None:
    """The version that a group's facts name, None where they name none. A hash that no version is known for stays a
    hash: such figures are comparable with nothing else."""
    name, recorded = identity.before
    old = facts.get(name)
    return facts.get(identity.fact) or (recorded.get(old, old) if old else None)


# --- the lock ------------------------------------------------------------------------------------------------------


def _python(text: str) -> Iterator[str]:
    """The tokens of Python source. An f-string is one token, as it was before Python 3.12."""
    lines = text.splitlines(keepends=True)
    start, depth, fresh = (0, 0), 0, True  # fresh: a logical line begins here, so that a string would be a docstring
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
    (row, column), (last, stop) = start, end
    if row == last:
        return lines[row - 1][column:stop]
    return "".join([lines[row - 1][column:], *lines[row : last - 1], lines[last - 1][:stop]])


_OF_C = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\\\n|\n|\w+|\S", re.DOTALL)


def _c(text: str) -> Iterator[str]:
    """The tokens of C, C++ or CUDA C++; the end of a line counts where a directive begins or ends there."""
    directive = False
    for token in _OF_C.findall(text):
        if token.startswith(("//", "/*")) or token == "\\\n":
            continue
        directive = directive or token == "#"
        if token != "\n" or directive:
            yield token
        directive = directive and token != "\n"


def digest(path: Path) -> str:
    """A hash of a file's tokens."""
    text = path.read_text(encoding="utf-8")
    tokens = _python(text) if path.suffix == ".py" else _c(text)
    return hashlib.sha256("\0".join(tokens).encode()).hexdigest()[:16]


def locked() -> dict[str, Any]:
    """What the lock says: by kind of figures the version, and the digests of the files."""
    return dict(json.loads(LOCK.read_text(encoding="utf-8")))


def now() -> dict[str, Any]:
    """The same of the files as they are."""
    return {
        name: {
            "version": identity.version,
            "files": {
                path.relative_to(HERE).as_posix(): digest(path)
                for pattern in identity.files
                for path in sorted(HERE.glob(pattern))
            },
        }
        for name, identity in IDENTITIES.items()
    }


def unlocked() -> list[str]:
    """What differs between the files and the lock, a sentence each; [] where nothing does."""
    old, new = locked(), now()
    said = []
    for name in IDENTITIES:
        files = {**old.get(name, {}).get("files", {}), **new[name]["files"]}
        changed = [
            file for file in files if old.get(name, {}).get("files", {}).get(file) != new[name]["files"].get(file)
        ]
        if changed:
            said.append(
                f"{name} figures: {', '.join(changed)} changed. If the figures keep their meaning, show it by an A/A "
                f"(the same commit measured before and after); if not, raise the version in {Path(__file__).name}. "
                f"Then rewrite the lock: {WRITE}"
            )
        elif old.get(name) != new[name]:
            said.append(f"{name} figures: the version changed. Rewrite the lock: {WRITE}")
    return said


WRITE = "python -m benchmarks._identity --write"

if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(f"usage: {WRITE}")
    LOCK.write_text(json.dumps(now(), indent=1) + "\n", encoding="utf-8")
