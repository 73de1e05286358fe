"""Runs commands as `python` does, in forks of a process that has imported what takes their interpreters longest.

Each command is still a process of its own, with its arguments, variables, folder and output. What is imported before is
installed and the same for all; the engine and the project come from the folders that the command names.
This file, run as a script, is the process that forks: it reads a command as a line of JSON, and writes its exit code.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

EARLY = ("ml_dtypes", "sqlite3", "filelock", "asv.main", "rich.console", "rich.progress", "rich.table", "scipy.special")


class Preloaded:
    """The process that forks, which ends with this one; it starts with the first command."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._busy = threading.Lock()

    def run(
        self, arguments: Sequence[str], folder: Path, variables: Mapping[str, str]
    ) -> "subprocess.CompletedProcess[str]":
        """What `python` does with these arguments: a script, `-m` and a module or `-c` and a program, then its own
        arguments. With nothing to answer questions with. Commands of several threads run at once, all but one in
        interpreters of their own."""
        if not self._busy.acquire(blocking=False):
            return subprocess.run(
                [sys.executable, *arguments],
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
        try:
            with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
                request = {"arguments": arguments, "folder": str(folder), "variables": dict(variables)}
                code = self._ask(request | {"out": out.name, "err": err.name})
                said = [file.read().decode() for file in (out, err)]
            return subprocess.CompletedProcess([sys.executable, *arguments], code, *said)
        finally:
            self._busy.release()

    def _ask(self, request: Mapping[str, object]) -> int:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, start_new_session=True,
            )  # fmt: skip
            atexit.register(self.end)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            return int(self._process.stdout.readline())
        except BaseException:  # the test ran out of time, or was interrupted
            self.end()
            raise

    def end(self) -> None:
        """Kill it, with the command that it runs."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            with self._process:
                self._process = None


def serve() -> None:
    """Fork for each line of stdin, one after the other."""
    for name in EARLY:
        importlib.import_module(name)
    gc.freeze()  # so that a collection in a fork copies nothing of it
    for line in sys.stdin:
        fork = os.fork()
        if not fork:
            _become(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]), flush=True)


def _become(request: dict[str, object]) -> NoReturn:
    """Be the interpreter of a command, from its start to its end."""
    files = (os.devnull, os.O_RDONLY), (request["out"], os.O_WRONLY), (request["err"], os.O_WRONLY)
    for stream, (name, flags) in enumerate(files):
        file = os.open(str(name), flags | os.O_APPEND)
        os.dup2(file, stream)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (the old one has read of the next lines)
    os.chdir(str(request["folder"]))
    os.environ.clear()
    os.environ.update(request["variables"])  # type: ignore[call-overload]
    tempfile.tempdir = None
    code = 0
    try:
        _interpret(list(request["arguments"]))  # type: ignore[call-overload]
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if code and not isinstance(ended.code, int):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # as an interpreter ends: its threads, then what they registered
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _interpret(arguments: list[str]) -> None:
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[:0] = [os.getcwd(), *paths]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path[:0] = ["", *paths]
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(arguments[1], vars(main))
    else:
        sys.argv = arguments
        sys.path[:0] = [str(Path(arguments[0]).resolve().parent), *paths]
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    serve()
