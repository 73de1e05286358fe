"""The command `kernelwatch`, which runs all others."""

import os
import sys

# `python -m` puts the current folder first on the path: its modules may have the names of Python's own.
if __name__ == "__main__":
    try:
        if sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(os.path.abspath(__file__))):
            del sys.path[0]
    except FileNotFoundError:  # the current folder was removed
        pass

import importlib
import io
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import NoReturn

from kernelwatch import extras
from kernelwatch.system.errors import CANNOT, UserError
from kernelwatch.system.git import leave_hook

OWN = {
    "init": "write what a repository needs for its kernels to be measured",
    "gate": "run the kernels' tests, which must pass before anything is timed",
    "bench": "measure commits and publish their history",
    "link": "measure what commits change, on any GPU, and add it to the history",
    "merge": "add links of other results folders, such as those of CI, to the history",
    "accept": "accept a regression that is meant to be",
    "versus": "compare two commits, or find the commit that caused a change",
    "measure": "measure a function, or compare it with another one",
    "campaign": "search for a faster function, with one chance of error for all candidates",
    "ladder": "print the ladder's tables from the recorded results",
    "profile": "show why a rung is slow, with or without a GPU",
    "ceilings": "measure the roofs of this GPU: arithmetic by instruction, L2 and memory by copies",
    "noise": "measure how far runs of the same commit differ (A/A)",
    "sanitize": "run every GPU rung under compute-sanitizer",
    "identity": "show or accept the files that the versions of the harness stand for",
}
COMMANDS = {name: (f"kernelwatch.commands.{name}", what) for name, what in OWN.items()} | extras.COMMANDS
ANYWHERE = ("init", "measure", "campaign", *extras.ANYWHERE)  # commands that need no project
UNDESCRIBED = ("accept", "merge")  # commands that need asv's configuration, and no description
# What commands do in a project without a description of kernels: they measure asv's benchmarks.
PLAIN = {"versus": "versus", "link": "link", "bench": "link"}


def commands() -> dict[str, tuple[str, str]]:
    """The module of each command and what it does, by name. Other distributions add theirs as entry points of the group
    kernelwatch.commands, each with a module that has `main(project, prog, arguments)`."""
    found = {each.name: (each.value, f"from {each.value}") for each in entry_points(group="kernelwatch.commands")}
    return found | COMMANDS


def usage() -> str:
    """The usage text with all commands."""
    known = commands()
    width = max(map(len, known))
    lines = [f"  {name:<{width}}  {what}" for name, (_, what) in known.items()]
    return "\n".join(["usage: kernelwatch COMMAND ...", "", *lines, "", "kernelwatch COMMAND --help tells more."])


def run(name: str, arguments: list[str], prog: str) -> int:
    """Run a command, most of them in the project around the current folder; its exit code. `prog`: how it is called."""

    def work() -> int:
        try:
            from kernelwatch.plan.project import Repository, find_root, is_plain, load
        except ImportError as error:
            needed = "what kernelwatch needs; install it with its dependencies"
            raise UserError(f"{sys.executable} cannot import {needed}: {error}") from None
        _absolute_path()
        module = importlib.import_module((COMMANDS.get(name) or commands()[name])[0])
        if name in ANYWHERE:
            return int(module.main(prog, arguments))
        try:
            here = Path.cwd()
        except FileNotFoundError:
            raise UserError("the current folder was removed; run this in a project that asv benchmarks") from None
        root = find_root(here)
        os.chdir(root)
        leave_hook(root)
        if name in PLAIN and is_plain(root):
            return int(importlib.import_module("kernelwatch.commands.plain").main(PLAIN[name], prog, arguments))
        if name in UNDESCRIBED or (name == "gate" and is_plain(root)):
            return int(module.main(Repository(root), prog, arguments))
        project = load(root)
        try:
            return int(module.main(project, prog, arguments))
        except Exception as error:
            if not isinstance(error, UserError) and (place := _raised_in(error, project.here.parent)):
                raise UserError(f"{place} raises {type(error).__name__}: {error}") from error
            raise

    return code_of(prog, work)


def code_of(prog: str, work: Callable[[], int]) -> int:
    """Do a command's work; its exit code. What it could not do is said in a line on stderr, and its code is CANNOT: no
    error can be taken for a verdict. `prog`: how the command was called."""
    _open_streams()
    try:
        try:
            with _staying(prog):
                code = work()
        except SystemExit as ended:  # argparse ends the process after --help, and a signal ends it with a code
            if isinstance(ended.code, str):
                raise UserError(ended.code.removeprefix(f"{prog}: ")) from None
            code = ended.code or 0
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _ended(prog, "interrupted", 128 + signal.SIGINT)
    except BrokenPipeError:  # whoever read the output has seen enough, such as `head`
        return _ended(prog, "", 128 + signal.SIGPIPE)
    except UserError as error:
        return _ended(prog, str(error))
    except OSError as error:  # a full disk, a folder that may not be written
        return _ended(prog, ": ".join(filter(None, (str(error.filename or ""), error.strerror or str(error)))))
    except Exception as error:
        with suppress(OSError):
            traceback.print_exc()
        return _ended(prog, f"a fault of this program, and no verdict: {type(error).__name__}: {error}")


def _raised_in(error: Exception, folder: Path) -> str:
    """The file and line that raised an error, if it lies in a folder, as a function of a description does; else ""."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno}" if Path(last.filename).is_relative_to(folder) else ""


@contextmanager
def _staying(prog: str) -> Iterator[None]:
    """Let a module of a project that calls os._exit end this process with CANNOT: its own code, such as 0, would be
    taken for a verdict. Forks of this process end as they like."""
    own, leave = os.getpid(), os._exit

    def left(status: int) -> NoReturn:
        if os.getpid() != own:
            leave(status)
        leave(_ended(prog, f"a module of the project calls os._exit({status!r}), which ended this command"))

    os._exit = left
    try:
        yield
    finally:
        os._exit = leave


def _absolute_path() -> None:
    """Make the folders of $PYTHONPATH absolute: this process changes its folder, and so do those that it starts."""
    if path := os.environ.get("PYTHONPATH"):
        folders = [os.path.abspath(folder) for folder in path.split(os.pathsep) if folder]
        os.environ["PYTHONPATH"] = os.pathsep.join(folders)


def _open_streams() -> None:
    """Connect the standard streams that are closed with /dev/null: the next file that is opened, such as one of
    results, would get the number of such a stream, and the output of child processes. What a stream cannot encode is
    escaped."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):  # as stderr: a locale may lack letters of a subject
        sys.stdout.reconfigure(errors="backslashreplace")


def _ended(prog: str, why: str, code: int = CANNOT) -> int:
    """Say why a command ended, and return its exit code. Python must not write the rest of the output when it ends: the
    write would fail again and change the exit code."""
    if why:
        with suppress(OSError):  # a full disk: the code tells it all the same
            print(f"{prog}: {why}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return code


def main(arguments: list[str] | None = None) -> int:
    """Run the command that the arguments name (by default this process's arguments); the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in ("-h", "--help"):

        def show() -> int:
            print(usage())
            return 0 if words else CANNOT

        return code_of("kernelwatch", show)
    if words[0] not in COMMANDS and words[0] not in commands():
        return _ended("kernelwatch", f"no command {words[0]!r}\n\n{usage()}")
    return run(words[0], words[1:], f"kernelwatch {words[0]}")


if __name__ == "__main__":
    sys.exit(main())
