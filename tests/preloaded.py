"""Runs commands as `python` does, in forks of a process that has imported what takes their interpreters longest.

Each command is still a process of its own, with its arguments, variables, folder and output, and so are the engine's
workers and asv's runners that it starts. What is imported before is installed and the same for all; the engine and the
project come from the folders that the command names.
This file, run as a script, is the process that forks: it reads requests as lines of JSON, and answers each with a line
of JSON.
"""

import atexit
import gc
import importlib
import json
import math
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

EARLY = (
    *("ml_dtypes", "sqlite3", "filelock", "asv.main", "rich.console", "rich.progress", "rich.table", "scipy.special"),
    "pytest",
)
POLL_S = 0.02


class Preloaded:
    """The process that forks, which ends with this one; it starts with the first command.

    `modules`: what it imports besides EARLY; `variables`: environment variables that these modules read.
    """

    def __init__(self, *modules: str, **variables: str) -> None:
        self._modules, self._variables = modules, variables
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
                request = _request(arguments, folder, variables)
                code = int(self._ask(request | {"out": out.name, "err": err.name}))
                said = [file.read().decode() for file in (out, err)]
            return subprocess.CompletedProcess([sys.executable, *arguments], code, *said)
        finally:
            self._busy.release()

    def start(self, arguments: Sequence[str], folder: Path, variables: Mapping[str, str]) -> "Background":
        """The same in the background, in a session of its own. /proc shows the arguments and variables of what it
        starts, and not its own."""
        with tempfile.NamedTemporaryFile(delete=False) as said:
            request = _request(arguments, folder, variables) | {"out": said.name, "err": said.name, "leads": True}
        with self._busy:
            return Background(self, int(self._ask(request)), Path(said.name))

    def ended(self, process: int) -> int | None:
        """The exit code of a command in the background, None as long as it runs."""
        with self._busy:
            code = self._ask({"ended": process})
        return None if code is None else int(code)

    def _ask(self, request: Mapping[str, object]) -> Any:
        if self._process is None:
            left = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, *self._modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, env=left | self._variables, start_new_session=True,
            )  # fmt: skip
            atexit.register(self.end)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            return json.loads(self._process.stdout.readline())
        except BaseException:  # the test ran out of time, or was interrupted
            self.end()
            raise

    def end(self) -> None:
        """Kill it, with the command that it runs."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            with self._process:
                self._process = None


class Background:
    """A command in the background, with what subprocess.Popen offers for one. `said`: the file that it prints into."""

    def __init__(self, server: Preloaded, pid: int, said: Path) -> None:
        self._server, self.pid, self._said = server, pid, said
        self.returncode: int | None = None

    @property
    def said(self) -> str:
        """What it has printed so far."""
        return self._said.read_text(encoding="utf-8")

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ended(self.pid)
        return self.returncode

    def wait(self, timeout: float = math.inf) -> int:
        """Its exit code. `timeout`: seconds. Raises: subprocess.TimeoutExpired."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def finish(self) -> str:
        """Wait until it ends; what it has printed."""
        self.wait()
        return self.said


def _request(arguments: Sequence[str], folder: Path, variables: Mapping[str, str]) -> dict[str, object]:
    return {"arguments": list(arguments), "folder": str(folder), "variables": dict(variables)}


def serve(modules: Sequence[str]) -> None:
    """Fork for each command, and answer with its exit code, or at once with its process id if it leads a session."""
    for name in (*EARLY, *modules):
        importlib.import_module(name)
    FIRST.modules, FIRST.path, FIRST.finders = dict(sys.modules), [*sys.path], [*sys.meta_path]
    gc.freeze()  # so that a collection in a fork copies nothing of it
    for line in sys.stdin:
        request = json.loads(line)
        if "ended" in request:
            answer = _exit_code(request["ended"], os.WNOHANG)
        elif fork := os.fork():
            answer = fork if "leads" in request else _exit_code(fork)
        else:
            _become(request)
        print(json.dumps(answer), flush=True)


def _exit_code(fork: int, options: int = 0) -> int | None:
    process, status = os.waitpid(fork, options)
    return os.waitstatus_to_exitcode(status) if process else None


def _become(request: dict[str, object]) -> NoReturn:
    """Be the interpreter of a command, from its start to its end."""
    if "leads" in request:
        os.setsid()
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
    if "leads" not in request:
        subprocess.Popen = Starting  # type: ignore[assignment, misc]
    _run(lambda: _interpret(list(request["arguments"])))  # type: ignore[call-overload]


def _run(program: Callable[[], object]) -> NoReturn:
    """Run a program, and end as its interpreter does."""
    code = 0
    try:
        program()
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


def _interpret(arguments: list[str], safe: bool = False) -> None:
    """What an interpreter does with its arguments. `safe`: without the folder of what it runs in the path (-P)."""
    kind = arguments[0]
    folder = os.getcwd() if kind == "-m" else "" if kind == "-c" else str(Path(kind).resolve().parent)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = paths if safe else [folder, *paths]
    if kind == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(arguments[1], vars(main))
    else:
        sys.argv = arguments
        runpy.run_path(kind, run_name="__main__")


# --- the programs of a command ----------------------------------------------------------------------------------------

PROGRAMS = (str(Path("kernelwatch", "run", "worker.py")), str(Path("asv", "benchmark.py")))
MODULES = ("asv", "pytest")
FIRST = types.SimpleNamespace()  # what was imported before any command, and from where
HANDLERS: dict[int, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGPIPE: signal.SIG_IGN,
}
KEPT: list[object] = []  # what a program has of its command: a file that is finalized would write, or close another's


def _forks(program: Sequence[str], variables: Mapping[str, str]) -> bool:
    """Whether what a command starts by an interpreter is a fork."""
    paths = variables.get("PYTHONPATH", "").split(os.pathsep)
    if any(Path(path, "sitecustomize.py").exists() for path in paths if path):  # by what only an interpreter runs
        return False
    return program[0].endswith(PROGRAMS) or (program[0] == "-m" and program[1] in MODULES)


class Starting(subprocess.Popen[Any]):
    """Starts a program; one of the engine, of asv or of pytest as a fork, which then has what the first process had,
    and no more."""

    def __init__(self, command: Sequence[str], *arguments: Any, **options: Any) -> None:
        own = command[1:] if command[0] == sys.executable else []
        safe = own[:1] == ["-P"]
        program = list(own[safe:])
        variables = dict(os.environ if options.get("env") is None else options["env"])
        if program and _forks(program, variables):
            before = options.get("preexec_fn") or (lambda: None)
            options["preexec_fn"] = lambda: _be(program, safe, variables, before)
        super().__init__(command, *arguments, **options)


def _be(program: list[str], safe: bool, variables: Mapping[str, str], before: Callable[[], None]) -> NoReturn:
    """Be a program's interpreter, in a fork of its command whose standard streams are the program's already."""
    before()
    gc.freeze()
    KEPT.extend((sys.stdin, sys.stdout, sys.stderr, dict(sys.modules)))
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with suppress(OSError):
                os.close(int(name))
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
    for number, handler in HANDLERS.items():
        if signal.getsignal(number) != signal.SIG_IGN:  # which a new interpreter inherits
            signal.signal(number, handler)
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # what ends with the command, such as its folders
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    atexit._clear()
    sys.modules.clear()
    # asv anew: its command may have changed it, as a plugin does.
    sys.modules.update({name: module for name, module in FIRST.modules.items() if name.partition(".")[0] != "asv"})
    sys.path[:] = FIRST.path
    sys.meta_path[:] = FIRST.finders
    sys.path_importer_cache.clear()
    _run(lambda: _interpret(program, safe))


if __name__ == "__main__":
    serve(sys.argv[1:])
