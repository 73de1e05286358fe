"""Hashes of the files of a folder, without reading those of which git, or an earlier look, knows the content."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from kernelwatch.system import cache
from kernelwatch.system.errors import UserError
from kernelwatch.system.git import git

# git's settings by which the same commit is written as other files.
SETTINGS = r"^(core\.(autocrlf|eol|symlinks|attributesfile)|filter\..*)$"
LINK, SUBMODULE = "120000", "160000"  # git's modes
_known: dict[str, Mapping[str, str]] = {}


def know(folder: str, hashes: Mapping[str, str]) -> None:
    """Take it that a folder, which nobody edits, has files with these hashes, by their paths in it."""
    _known[os.path.realpath(folder)] = hashes


def of_commit(root: Path, commit: str) -> dict[str, str]:
    """The hashes of the files of a commit, and git's settings that decide how they are written. Raises: UserError."""
    hashes = {"": _settings(root)}
    for entry in git(root, "ls-tree", "-r", "-z", "--full-tree", commit).split("\0"):
        what, _, name = entry.partition("\t")
        hashes |= {name: what} if name else {}
    return hashes


def hashes(folder: Path, counts: Callable[[str], bool]) -> Mapping[str, str]:
    """The hash of each file below a folder by its path in it, for the paths that count."""
    if known := _known.get(os.path.realpath(folder)):
        return {name: value for name, value in known.items() if not name or counts(name)}
    if (folder / ".git").exists():
        with suppress(UserError):
            return _of_checkout(folder, counts)
    return _read(folder, _walk(folder), counts)


def _of_checkout(folder: Path, counts: Callable[[str], bool]) -> dict[str, str]:
    """By git's index, which knows the files that were not modified. Raises: UserError."""
    modified = set(git(folder, "diff", "--name-only", "-z", "--no-ext-diff", "--no-renames").split("\0"))
    found = {"": _settings(folder)}
    others = []
    for entry in git(folder, "ls-files", "--cached", "--stage", "-v", "-z").split("\0"):
        what, _, name = entry.partition("\t")
        tag, _, what = what.partition(" ")
        if not name or not counts(name):
            continue
        if tag == "H" and name not in modified and not what.startswith((LINK, SUBMODULE)):
            found[name] = what
        else:  # also where git was told not to look
            others.append(name)
    hidden = ":(exclude,top,glob).*/**"
    others += git(folder, "ls-files", "--others", "-z", "--", ".", hidden, ":(exclude)**/__pycache__/**").split("\0")
    below = (name for other in others if other for name in _below(folder, other))
    return found | _read(folder, below, counts)


def _below(folder: Path, name: str) -> Iterator[str]:
    """A path, or the files below it: of a submodule, or of another repository."""
    if (folder / name).is_dir() and not (folder / name).is_symlink():
        yield from (f"{name.rstrip('/')}/{below}" for below in _walk(folder / name))
    else:
        yield name


def _walk(folder: Path) -> Iterator[str]:
    for top, folders, files in os.walk(folder):
        below = os.path.relpath(top, folder)
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".git")]
        links = [name for name in folders if os.path.islink(os.path.join(top, name))]
        yield from (name if below == "." else os.path.join(below, name) for name in (*files, *links))


def _read(folder: Path, names: Iterator[str], counts: Callable[[str], bool]) -> dict[str, str]:
    found = {}
    for name in filter(counts, names):
        path = folder / name
        with suppress(OSError):
            if path.is_dir():  # a link to a folder
                found[name] = os.readlink(path)
            elif path.is_file():
                found[name] = cache.digest(path) + ("x" if os.access(path, os.X_OK) else "")
    return found


def _settings(root: Path) -> str:
    try:
        return git(root, "config", "--get-regexp", SETTINGS)
    except UserError:  # none of them is set
        return ""
