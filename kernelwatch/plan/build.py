"""Make the tree of a commit, or of the checkout: export its files, and build it if the project says how.

A tree is built once for its files, commands and environment, and kept in the engine's cache by a hash of these. A tree
that cannot be built holds the reason, and all of its cells have failed.
"""

import functools
import glob
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from kernelwatch.plan.interpreters import Interpreter
from kernelwatch.plan.project import Project
from kernelwatch.plan.tree import BROKEN, BUILT, EXPORTED, all_files
from kernelwatch.system import cache, content
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import locked
from kernelwatch.system.git import export, export_checkout, resolve, tree_hash

ASV = "asv"  # as `build` of a Project: asv's own build_command
WHEELS = ".wheels"  # the folder of a tree in which its commands put wheels
LIMIT_S = 3600.0  # for a command of a build
DESCRIPTIONS = ("METADATA", "PKG-INFO", "")  # of a distribution; "": an .egg-info may be a file
# Environment variables that compilers and build backends read; their values are part of a built tree's key.
READ = re.compile(
    r"^(CC|CXX|CPP|LD|AR|NVCC|CUDAHOSTCXX|CPATH|PATH|LIBRARY_PATH|LD_LIBRARY_PATH|SOURCE_DATE_EPOCH)$"
    r"|FLAGS$|^(CMAKE|CUDA|NVCC|TORCH|TRITON|SKBUILD|PIP|SETUPTOOLS|PYBIND11|MESON|NINJA|MAKE)_"
)


def tree_of_commit(project: Project, commit: str, folder: Path, by: Interpreter | None = None) -> str:
    """The folder of a commit's tree: `folder`, or a kept one if it is built. `by`: the environment that builds it, by
    default this process's own. Raises: UserError."""
    sha = resolve(project.root, commit)
    if not (project.build or project.wheels):
        content.know(str(folder), content.of_commit(project.root, sha))
        return export(project.root, sha, folder)
    return _built(project, tree_hash(project.root, sha), sha, lambda path: export(project.root, sha, path), by)


def tree_of_checkout(project: Project, folder: Path, by: Interpreter | None = None) -> str:
    """The folder of a tree with the files of the checkout, its uncommitted changes included. `by`: as in
    `tree_of_commit`. Raises: UserError."""
    hash = export_checkout(project.root, folder)
    content.know(str(folder), {"": hash})
    if not project.build:
        return str(folder)
    return _built(project, hash, "", lambda path: shutil.copytree(folder, path, symlinks=True, dirs_exist_ok=True), by)


def _built(
    project: Project, hash: str, commit: str, export_to: Callable[[Path], object], by: Interpreter | None
) -> str:
    """The folder of a built tree. `hash`: of its files; `commit`: "" for the checkout."""
    commands = _commands(project)
    wheels = _named_wheels(project, commit) if commit else []
    key = hashlib.sha256(
        json.dumps([hash, commands, project.wheels, [_file_hash(path) for path in wheels], _environment(by)]).encode()
    ).hexdigest()[:24]
    home = cache.folder() / "trees"
    home.mkdir(exist_ok=True)
    kept, done = home / key, home / f"{key}.done"
    with locked(
        home / f"{key}.lock", lambda who: print(f"waiting for {who}, which builds the same tree", file=sys.stderr)
    ):
        # It is built where it is used, since a build may write down where it is.
        if not (done.is_file() and (kept / EXPORTED).is_file()):
            shutil.rmtree(kept, ignore_errors=True)
            export_to(kept)
            names = [path.relative_to(kept).as_posix() for path in all_files(kept)]
            (kept / EXPORTED).write_text("\0".join(names), encoding="utf-8", errors="surrogateescape")
            why = (
                _unpack(kept, wheels)
                if wheels
                else _run(commands, project, kept, home / f"{key}.log", by.python if by else sys.executable)
            )
            if why:
                (kept / BROKEN).write_text(why, encoding="utf-8")
            else:
                done.touch()
        os.utime(kept)
    content.know(str(kept), {"": key})
    cache.keep_newest(home)
    return str(kept)


def _commands(project: Project) -> list[str]:
    """The commands that build a tree. Raises: UserError if asv's configuration has none."""
    if project.build != ASV:
        return [project.build] if isinstance(project.build, str) and project.build else list(project.build)
    configured = project.configuration.get("build_command")
    if not configured:
        raise UserError(f'build="asv" needs a build_command in the {project.root} configuration of asv')
    return [configured] if isinstance(configured, str) else list(configured)


def _run(commands: list[str], project: Project, tree: Path, log: Path, python: str) -> str:
    """Build a tree; why that failed, "" if it did not. The commands are read as asv reads its own."""
    from asv import util as asv  # not at the top: a worker, which never builds, need not import it

    wheels = tree / WHEELS
    wheels.mkdir(exist_ok=True)
    known = {"python": python, "tree": str(tree), "wheels": str(wheels)}
    known |= {"build_dir": str(tree), "build_cache_dir": str(wheels), "conf_dir": str(project.root)}
    with log.open("w", encoding="utf-8") as file:
        for command in commands:
            try:
                words, variables, codes, folder = asv.interpolate_command(command, known)
            except (asv.UserError, ValueError, LookupError) as error:
                return f"the build failed: `{command}` cannot be read: {error}"
            if not words:
                return f"the build failed: `{command}` names no program"
            if words[:1] == ["python"]:
                words[0] = python
            file.write(f"$ {shlex.join([*(f'{name}={value}' for name, value in variables.items()), *words])}\n")
            file.flush()
            code = _ended(words, tree / (folder or ""), {**os.environ, **variables}, file)
            if isinstance(code, str) or not (codes is None or code in codes):
                last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1]
                return f"the build failed: `{command}`: {code if isinstance(code, str) else last}; its output: {log}"
    return _unpack(tree, sorted(wheels.glob("*.whl")))


def _ended(words: list[str], folder: Path, variables: Mapping[str, str], output: TextIO) -> int | str:
    """Run a command of a build; its exit code, or why it has none."""
    try:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=variables,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return f"{error.strerror}: {error.filename}"
    try:
        return process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"it has not ended within {LIMIT_S:g} s and was killed"
    finally:
        with suppress(ProcessLookupError):  # also what a command that ended has left behind
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _unpack(tree: Path, wheels: list[Path]) -> str:
    """Unpack wheels into a tree, from where they are imported; why that failed, or ""."""
    for wheel in wheels:
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(tree / BUILT)
        except (OSError, zipfile.BadZipFile) as error:
            return f"the wheel {wheel} cannot be unpacked: {error}"
    return ""


def _named_wheels(project: Project, commit: str) -> list[Path]:
    """The wheels that were built elsewhere for a commit. Raises: UserError if there are none and no commands."""
    if not project.wheels:
        return []
    pattern = str(project.root / project.wheels.format(commit=commit))
    found = sorted(map(Path, glob.glob(pattern)))
    if not found and not project.build:
        raise UserError(f"no wheel of commit {commit[:8]}: {pattern} matches no file, and `build` names no commands")
    return found


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@functools.cache
def environment() -> dict[str, object]:
    """What a build depends on besides the tree: Python, the installed distributions, compilers and their options."""
    installed = sorted("==".join(map(str, _told(each))) for each in importlib.metadata.distributions())
    compilers = {name: _version(name) for name in (os.environ.get("CXX", "c++"), os.environ.get("CC", "cc"), "nvcc")}
    variables = {name: value for name, value in sorted(os.environ.items()) if READ.search(name)}
    return {
        "python": sys.version,
        "machine": platform.machine(),
        "installed": installed,
        "compilers": compilers,
        "variables": variables,
    }


def _told(distribution: importlib.metadata.Distribution) -> tuple[str | None, ...]:
    """The name and the version of a distribution, of whose description the parser of e-mails reads all."""
    text = next(filter(None, map(distribution.read_text, DESCRIPTIONS)), "") or ""
    lines = (re.search(rf"^{field}: *(.*?) *$", text, re.MULTILINE) for field in ("Name", "Version"))
    return tuple(line[1] if line else None for line in lines)


def _environment(by: Interpreter | None) -> dict[str, object]:
    """What a build by an environment depends on besides the tree."""
    return {**environment(), "installed": dict(by.packages), "python": by.python} if by else environment()


def _version(compiler: str) -> str:
    try:
        done = subprocess.run([*shlex.split(compiler), "--version"], capture_output=True, text=True, check=False)
    except (OSError, ValueError):
        return ""
    return done.stdout
