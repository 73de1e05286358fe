"""Python environments that take turns in measuring one commit: an interpreter, or what a file of requirements asks for.

The environment of such a file is made once, by virtualenv and pip as asv makes its own, and is kept in the engine's
cache by a hash of all that the file says. The harness is the same source in every environment, imported by its path;
what it needs itself (NEEDED) must be installed in each.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelwatch.system import cache
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import locked

# What the harness imports in a process that measures: module -> distribution. On a GPU it also needs CuPy, cuda-core
# and NVRTC; without them its cells are n/a there.
NEEDED = {"numpy": "numpy", "ml_dtypes": "ml_dtypes", "filelock": "filelock", "elftools": "pyelftools"}
OLDEST = (3, 11)  # Python's version that the harness needs
PYTHON = "Python"  # as a package, in what tells two environments apart
INCLUDE = ("-r", "--requirement", "-c", "--constraint")  # options of a line that names another such file
ASK = """
import importlib.metadata, importlib.util, json, re, sys
packages = {}
for each in importlib.metadata.distributions():
    told = each.metadata  # which is a file to parse
    packages.setdefault(re.sub(r"[-_.]+", "-", told["Name"] or "?").lower(), told["Version"])
lacking = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
print(json.dumps([list(sys.version_info[:3]), packages, lacking]))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python environment: how it was named, the path of its interpreter, and its packages with their versions, Python
    itself among them."""

    name: str
    python: str
    packages: Mapping[str, str]


def interpreter(text: str, tell: Callable[[str], None] = lambda _: None) -> Interpreter:
    """The environment that a text names: the folder of a virtual environment, the path or the name of an interpreter,
    or a file of requirements, whose environment is made if it must be. Raises: UserError."""
    path = Path(text)
    inside = path / "bin" / "python"
    if path.is_dir() and not inside.exists():
        raise UserError(f"{text} is no virtual environment: it has no bin/python")
    if path.is_dir():
        python = str(inside)
    elif path.is_file() and not os.access(path, os.X_OK):
        python = _made(path, tell)
    elif found := shutil.which(text):
        python = found
    else:
        raise UserError(f"{text} is no Python interpreter, no virtual environment, and no file of requirements")
    return _asked(text, os.path.abspath(python))  # not resolved: a link is what makes it that of its environment


def differences(before: Interpreter, after: Interpreter) -> dict[str, tuple[str, str]]:
    """The packages that differ, with both versions, "" where there is none: Python first, then those that both have."""
    both = {
        name: (before.packages.get(name, ""), after.packages.get(name, ""))
        for name in sorted({*before.packages, *after.packages})
    }
    differ = [(name, versions) for name, versions in both.items() if versions[0] != versions[1]]
    return dict(sorted(differ, key=lambda each: (each[0] != PYTHON, not all(each[1]))))


def _asked(name: str, python: str) -> Interpreter:
    """Raises: UserError if it is no Python, is too old, or lacks what the harness needs."""
    with tempfile.TemporaryDirectory() as folder:  # the present folder may have modules of these names
        command = [python, "-c", ASK, *NEEDED]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, check=True, env=variables(python)
            )
            version, packages, lacking = json.loads(done.stdout)
        except (OSError, subprocess.CalledProcessError, ValueError) as error:
            said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            raise UserError(f"{name}: {python} does not answer as Python does: {said[-1] if said else error}") from None
    if tuple(version[:2]) < OLDEST:
        oldest, own = (".".join(map(str, each)) for each in (OLDEST, version))
        raise UserError(f"{name}: the harness needs Python {oldest} or newer, and this is {own}")
    if lacking:
        missing = ", ".join(NEEDED[module] for module in lacking)
        raise UserError(f"{name}: the harness needs {missing}, which this environment lacks; install it there")
    return Interpreter(name, python, {PYTHON: ".".join(map(str, version)), **packages})


def variables(python: str) -> dict[str, str]:
    """The environment variables of a process of an interpreter: none that puts this process's packages on its path."""
    if not python:
        return dict(os.environ)
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


# --- what a file of requirements asks for --------------------------------------------------------------------------


def _made(file: Path, tell: Callable[[str], None]) -> str:
    """The interpreter of the environment of a file of requirements. Raises: UserError."""
    options = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    told = [list(requirement_lines(file)), sys.version, platform.machine(), options]
    home = cache.folder() / "environments"
    home.mkdir(exist_ok=True)
    kept = home / hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:24]
    done, log = kept.with_suffix(".done"), kept.with_suffix(".log")
    python = kept / "bin" / "python"
    with locked(kept.with_suffix(".lock"), lambda who: tell(f"waiting for {who}, which makes the same environment")):
        if not done.is_file():
            tell(f"installing {file} ...")
            shutil.rmtree(kept, ignore_errors=True)
            with log.open("w", encoding="utf-8") as output:
                for command in (
                    [sys.executable, "-m", "virtualenv", "--quiet", str(kept)],
                    [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-r", str(file.resolve())],
                ):
                    ended = subprocess.run(
                        command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=variables(str(python)),
                        cwd=file.resolve().parent, check=False,
                    )  # fmt: skip
                    if ended.returncode:
                        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["it says nothing"]
                        raise UserError(f"{file} cannot be installed: {errors[-1]}; its output: {log}")
            done.touch()
        os.utime(kept)
    cache.keep_newest(home)
    return str(python)


def requirement_lines(file: Path, within: tuple[Path, ...] = ()) -> Iterator[str]:
    """What a file of requirements says, with the files that it names in their place, and a hash for each wheel or
    archive. Raises: UserError."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read as a file of requirements: {error}") from None
    for line in text.replace("\\\n", " ").splitlines():
        words = line.partition(" #")[0].split()
        if not words or words[0].startswith("#"):
            continue
        option, _, value = words[0].partition("=")
        named = file.parent / (value or words[-1])
        if option in INCLUDE:
            yield option
            inside = (*within, file.resolve())
            yield from requirement_lines(named, inside) if named.resolve() not in inside else ()
            continue
        place = file.parent / words[-1].removeprefix("file://")
        if place.is_dir() and option not in ("--find-links", "-f"):
            raise UserError(f"{file} installs the folder {words[-1]}, whose files may change; name a wheel of it")
        yield " ".join(words)
        if place.is_file():
            yield hashlib.sha256(place.read_bytes()).hexdigest()
