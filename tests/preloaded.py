"""Runs commands as `python` does, in forks of a process that has imported what takes their interpreters longest.

Each command is still a process of its own, with its arguments, variables, folder and output, and so are the engine's
workers and asv's runners that it starts. What is imported before is installed and the same for all, or a copy of the
engine: the second command that uses one, and all after it, are forks of a process that has imported its modules, until
a file of it changes. The project comes from the folders that the command names.
This file, run as a script, is the process that forks: it reads requests as lines of JSON, and answers each with a line
of JSON.
"""

import _imp
import atexit
import copy
import functools
import gc
import hashlib
import importlib
import importlib.machinery
import json
import marshal
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
from typing import Any, NoReturn, TextIO

import importlib_metadata

EARLY = (
    *("ml_dtypes", "sqlite3", "filelock", "asv.main", "rich.console", "rich.progress", "rich.table", "scipy.special"),
    *("asv_runner.check", "asv_runner.discovery", "asv_runner.run", "asv_runner.setup_cache", "pytest"),
)
# What compiles and reads CUDA code, if it is installed. To import it initializes no driver.
CUDA = ("cuda.core", "cuda.pathfinder", "cuda.bindings.driver", "elftools.elf.elffile", "elftools.elf.sections")
# Modules of the engine that import most others, and none that adds to asv.
ENGINE = (
    *("publish.command", "comparison.verdict", "comparison.linking", "comparison.bisect", "comparison.confirm"),
    *("report.crossed", "report.comparison", "report.terminal", "suites.timed", "suites.counted", "run.worker"),
)
ENGINES_MOST = 4
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


def serve(requests: TextIO, answers: TextIO) -> None:
    """Fork for each command, and answer with its exit code, or at once with its process id if it leads a session."""
    FIRST.modules, FIRST.path, FIRST.finders = dict(sys.modules), [*sys.path], [*sys.meta_path]
    own = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "kernelwatch"}
    FIRST.states = {name: _copied(vars(module)) for name, module in own.items()}
    FIRST.asv, FIRST.derived = _of_asv(), {each: {*each.__subclasses__()} for each in _classes_of_asv()}
    for name, module in own.items():
        _restore(module, FIRST.states[name])  # nothing is kept that was asked under this process's variables
    gc.collect()
    gc.freeze()  # so that a collection in a fork copies nothing of it
    for line in requests:
        request = json.loads(line)
        if "ended" in request:
            answer = _exit_code(request["ended"], os.WNOHANG)
        elif engine := _engine_of(request):
            answer = engine.ask(line)
        elif fork := os.fork():
            answer = fork if "leads" in request else _exit_code(fork)
        else:
            _become(request)
        print(json.dumps(answer), file=answers, flush=True)


def _exit_code(fork: int, options: int = 0) -> int | None:
    process, status = os.waitpid(fork, options)
    return os.waitstatus_to_exitcode(status) if process else None


# --- copies of the engine ---------------------------------------------------------------------------------------------


class Engine:
    """A fork that has imported a copy of the engine, and forks for its commands.

    `folder`: what holds the copy; `files`: those of the copy, and when they were written.
    """

    def __init__(self, folder: str, files: object) -> None:
        self.files = files
        (reads, self._requests), (self._answers, writes) = os.pipe(), os.pipe()
        if not os.fork():
            _close_all_but(reads, writes)
            FIRST.engine = folder
            for stream, flags in enumerate((os.O_RDONLY, os.O_WRONLY)):  # which are those of this process's requests
                os.dup2(os.open(os.devnull, flags), stream)
            sys.path.insert(0, folder)
            with suppress(Exception, SystemExit):  # a copy that is broken: its commands say so
                for name in ENGINE:
                    importlib.import_module(f"kernelwatch.{name}")
            sys.path.remove(folder)
            serve(open(reads), open(writes, "w"))  # noqa: SIM115
            os._exit(0)
        os.close(reads)
        os.close(writes)
        self._answered = open(self._answers)  # noqa: SIM115

    def ask(self, request: str) -> Any:
        os.write(self._requests, request.encode())
        return json.loads(self._answered.readline())

    def end(self) -> None:
        os.close(self._requests)
        self._answered.close()


SEEN: dict[str, object] = {}  # the files of each copy that one command has used
ENGINES: dict[str, Engine] = {}  # by folder, the one that was used last at the end


def _engine_of(request: Mapping[str, Any]) -> Engine | None:
    """Who forks for a command; None for this process."""
    if FIRST.engine or "leads" in request:
        return None
    folder = _engine_folder(request["arguments"], request["folder"], request["variables"])
    if not folder:
        return None
    files = _files(folder)
    engine = ENGINES.pop(folder, None)
    if engine and engine.files != files:
        engine.end()
        engine = None
    if not engine and SEEN.get(folder) == files:
        engine = Engine(folder, files)
    SEEN[folder] = files
    if engine:
        ENGINES[folder] = engine
        if len(ENGINES) > ENGINES_MOST:
            ENGINES.pop(next(iter(ENGINES))).end()
    return engine


def _engine_folder(program: Sequence[str], here: str, variables: Mapping[str, str]) -> str:
    """The folder of the only copy of the engine that a program can find, "" if there are several or none."""
    engines = _engine_folders(program, here, variables)
    return engines[0] if len(engines) == 1 else ""


def _engine_folders(program: Sequence[str], here: str, variables: Mapping[str, str]) -> list[str]:
    """The folders of the copies of the engine that a program can find, the one that it finds first at the beginning."""
    paths = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]
    parents = () if program[0].startswith("-") else list(Path(here, program[0]).resolve().parents)[:3]
    found = [os.path.join(here, place) for place in (*(map(str, parents) if parents else [here]), *paths)]
    return [
        place for place in dict.fromkeys(found) if os.path.exists(os.path.join(place, "kernelwatch", "__init__.py"))
    ]


def _files(folder: str) -> object:
    """The modules of a copy of the engine, and when they were written."""
    walked = os.walk(os.path.join(folder, "kernelwatch"))
    paths = [os.path.join(place, name) for place, _, names in walked for name in names if name.endswith(".py")]
    return {path: ((told := os.stat(path)).st_mtime_ns, told.st_size) for path in paths}


def _close_all_but(*kept: int) -> None:
    """Close all files but the standard streams and these."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))


# --- bytecode ---------------------------------------------------------------------------------------------------------


def _keep_bytecode(folder: Path) -> None:
    """Have this process and its forks compile a source once, wherever copies of it lie: each command exports the trees
    of its commits anew, and compiling their modules takes longer than all else that imports them."""

    def compiled(self: Any, data: Any, path: Any, *, _optimize: int = -1) -> types.CodeType:
        if not isinstance(data, bytes) or _optimize != -1:
            return compile_source(self, data, path, _optimize=_optimize)
        kept = folder / hashlib.sha256(data).hexdigest()
        with suppress(OSError, EOFError, ValueError):
            code: types.CodeType = marshal.loads(kept.read_bytes())
            # As the import system does for a folder that was moved.
            _imp._fix_co_filename(code, path)  # type: ignore[attr-defined]
            return code
        code = compile_source(self, data, path)
        fresh = kept.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            fresh.write_bytes(marshal.dumps(code))
            fresh.replace(kept)
        return code

    compile_source = importlib.machinery.SourceFileLoader.source_to_code
    importlib.machinery.SourceFileLoader.source_to_code = compiled  # type: ignore[method-assign]


# --- a command --------------------------------------------------------------------------------------------------------


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
    _close_all_but()
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
WITHOUT_ASV = ("analysis", "identity", "plan", "run", "suites", "system", "timing")  # rooms of the engine
# What was imported before any command, and from where; the folder of the copy of the engine, "" if none was imported.
FIRST = types.SimpleNamespace(engine="")
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
        elif getattr(options.get("preexec_fn"), "__module__", "") == "asv.util":
            # asv's own function makes a process group, for which Python would fork: that copies the tables of all pages
            # of this process, while vfork copies none.
            del options["preexec_fn"]
            options["process_group"] = 0
        super().__init__(command, *arguments, **options)


def _is_same(folders: Sequence[str], known: str) -> bool:
    """Whether there is such a folder, and its engine is the known one, or a link to it."""
    return any(os.path.samefile(os.path.join(folder, "kernelwatch"), f"{known}/kernelwatch") for folder in folders)


def _stays(module: str, same_engine: bool, same_asv: bool) -> bool:
    """Whether a module that was imported before any command is as in a new interpreter of a program. asv is not if the
    command has changed it, as a plugin does; nor is what imported it then, nor another copy of the engine."""
    package, _, rest = module.partition(".")
    if package == "kernelwatch":
        return same_engine and (same_asv or rest.partition(".")[0] in ("", *WITHOUT_ASV))
    return same_asv or package != "asv"


def _classes_of_asv() -> list[type]:
    named = (vars(module) for name, module in FIRST.modules.items() if name.partition(".")[0] == "asv")
    values = {value for names in named for value in names.values() if isinstance(value, type)}
    return [value for value in values if value.__module__.partition(".")[0] == "asv"]


def _of_asv() -> dict[object, object]:
    """What a plugin or a command can replace in asv: the names of its modules and of its classes, and what the objects
    in its modules hold."""
    told: dict[object, object] = {}
    for name, module in FIRST.modules.items():
        if name.partition(".")[0] == "asv":
            for key, value in vars(module).items():
                told[name, key] = id(value)
                if type(value) in (dict, list, set):
                    told[name, key, "holds"] = repr(value)
                elif type(value).__module__.partition(".")[0] == "asv":
                    told[name, key, "holds"] = repr(vars(value))
    return told | {each: {key: id(value) for key, value in vars(each).items()} for each in _classes_of_asv()}


class Outside:
    """What a class is derived from that a command had derived from one of asv's."""


def _leave_asv() -> None:
    """Have asv, which looks for all classes that are derived from its own, not find those of a command."""
    for each in _classes_of_asv():
        if not issubclass(each, BaseException):  # for which it does not look
            for derived in set(each.__subclasses__()) - FIRST.derived[each]:
                derived.__bases__ = tuple(
                    dict.fromkeys(Outside if base is each else base for base in derived.__bases__)
                )


def _copied(names: Mapping[str, Any]) -> dict[str, Any]:
    """The names of a module. What it collects in them is collected from here on apart."""
    return {name: copy.copy(value) if type(value) in (dict, list, set) else value for name, value in names.items()}


def _restore(module: types.ModuleType, state: Mapping[str, Any]) -> None:
    """Have a module of the engine as it was when it had been imported, whatever its command has done."""
    vars(module).clear()
    vars(module).update(_copied(state))
    for value in state.values():
        if isinstance(value, functools._lru_cache_wrapper):
            value.cache_clear()


def _be(program: list[str], safe: bool, variables: Mapping[str, str], before: Callable[[], None]) -> NoReturn:
    """Be a program's interpreter, in a fork of its command whose standard streams are the program's already."""
    before()
    gc.freeze()
    same_asv = not program[0].endswith(PROGRAMS) and _of_asv() == FIRST.asv  # these do not import it
    if same_asv:
        _leave_asv()
    KEPT.extend((sys.stdin, sys.stdout, sys.stderr, dict(sys.modules)))
    _close_all_but()
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
    same_engine = FIRST.engine != "" and _is_same(_engine_folders(program, os.getcwd(), variables)[:1], FIRST.engine)
    stay = {name: module for name, module in FIRST.modules.items() if _stays(name, same_engine, same_asv)}
    sys.modules.update(stay)
    for name in sys.modules.keys() & FIRST.states.keys():
        _restore(sys.modules[name], FIRST.states[name])
    sys.path[:] = FIRST.path
    sys.meta_path[:] = FIRST.finders
    sys.path_importer_cache.clear()
    _run(lambda: _interpret(program, safe))


if __name__ == "__main__":
    gc.set_threshold(100_000)  # collections while modules are imported free nothing, and forks inherit it
    # asv asks for its version, which is in a file to parse, once for each of its commands whenever it starts.
    importlib_metadata.version = functools.cache(importlib_metadata.version)
    for name in (*EARLY, *sys.argv[1:]):
        importlib.import_module(name)
    for name in CUDA:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    _keep_bytecode(Path(tempfile.mkdtemp(prefix="bytecode")))
    serve(sys.stdin, sys.stdout)
