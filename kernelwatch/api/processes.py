"""Runs a measurement in fresh processes."""

import importlib
import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from kernelwatch.api.named import resolve
from kernelwatch.api.result import MeasureError, Refused

HUNG_S, HUNG_TIMES = 900.0, 20.0  # so long, and so many times as long as it measures, a process may take
END_S = 20.0  # for a process to end that was killed: only a driver that hangs holds it for longer
LEFT_S = 1.0  # for what it has started to end by itself, as what tracks the resources of Python's multiprocessing does
LIBRARIES = ("cupy", "torch")  # whose import takes a second or more
CORES_LEAST = 4  # with fewer, imports would delay what is being measured


class Worker(NamedTuple):
    """A process, and the file of its standard error: a pipe would be open as long as anything that it has started."""

    process: subprocess.Popen[bytes]
    said: IO[bytes]


class Died(MeasureError):
    """A fresh process ended without a result."""


class Place(NamedTuple):
    """What a process takes over from this one when it starts."""

    path: tuple[str, ...]
    folder: str
    variables: dict[str, str]

    @classmethod
    def here(cls) -> "Place":
        return cls(tuple(sys.path), os.getcwd(), dict(os.environ))


class Ahead:
    """Starts the processes of some jobs, each while the one before it measures: it imports the libraries that the one
    before it had imported, and waits for its job. It runs no code of a user before that.

    `jobs`: how many there are at most. `on_gpu`: whether what is measured runs on a GPU. On a CPU the imports would
    move the figures, so no process starts early.
    """

    def __init__(self, jobs: int, on_gpu: bool = False) -> None:
        self.jobs, self.on_gpu = jobs, on_gpu
        self.modules: list[str] = []  # the libraries that the last process imported, in their order
        self._waiting: tuple[Place, Worker] | None = None

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, *_: object) -> None:
        """End the process that waits."""
        waiting, self._waiting = self._waiting, None
        if waiting:
            _killed(waiting[1])

    def take(self) -> Worker:
        """The process for the next job. If more jobs follow, another process starts."""
        here, waiting, self._waiting = Place.here(), self._waiting, None
        if waiting and (waiting[0] != here or waiting[1].process.poll() is not None):
            _killed(waiting[1])
            waiting = None
        worker = waiting[1] if waiting else _started([])
        self.jobs -= 1
        if self.jobs > 0 and self.on_gpu and (os.cpu_count() or 1) >= CORES_LEAST:
            self._waiting = here, _started(["kernelwatch.api.trials", *self.modules])
        return worker


def each(
    what: Callable[..., Any],
    functions: Sequence[Callable[..., object] | str],
    arguments: Sequence[object],
    given: dict[str, Any],
    count: int,
    seconds: float = 1.0,
    ahead: Ahead | None = None,
) -> list[Any]:
    """The results of a function of this package, `what`, in fresh processes, one after the other.
    `seconds`: as long as each measures, about, after what is done once. `ahead`: starts the processes.

    Raises: MeasureError if a process cannot import a function, or cannot measure it; Died if it ends before that.
    """
    job, limit_s = _job(what, functions, arguments, given), HUNG_S + HUNG_TIMES * seconds
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{number}.pickle") for number in range(count)]
        return [_one(job, file, limit_s, ahead or Ahead(1)) for file in files]


def _job(
    what: Callable[..., Any], functions: Sequence[Callable[..., object] | str], arguments: Any, given: dict[str, Any]
) -> bytes:
    for function in functions:
        if getattr(function, "__module__", "") == "__main__":
            name = getattr(function, "__name__", repr(function))
            raise MeasureError(
                f"{name} is defined in the main program, which a fresh process does not run: put it into a module, and "
                "give it as 'module:function'"
            )
    try:
        # The functions come first: the arguments may be of classes in their files.
        return pickle.dumps((what, tuple(functions))) + pickle.dumps((tuple(arguments), given))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise MeasureError(f"a fresh process cannot be handed the function or its arguments: {error}") from error


def _started(modules: Sequence[str]) -> Worker:
    """A fresh process, which imports these modules and waits for a job."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from kernelwatch.api.processes import main; main()"
    said = tempfile.TemporaryFile()  # noqa: SIM115 (closed once its process has ended)
    process = subprocess.Popen(
        [sys.executable, "-c", code, *modules],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=said,
        start_new_session=True,
    )
    return Worker(process, said)


def _one(job: bytes, file: Path, limit_s: float, ahead: Ahead) -> Any:
    worker = ahead.take()
    try:
        worker.process.communicate(pickle.dumps(file) + job, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise Died(_ended(worker, limit_s)) from None
    except BaseException:
        _ended(worker, limit_s)
        raise
    _end_left(worker.process.pid)
    with worker.said:
        worker.said.seek(0)
        lines = worker.said.read().decode(errors="replace").strip().splitlines() or ["no message"]
    if not file.exists():
        raise Died(f"a fresh process ended with {worker.process.returncode}: {lines[-1]}")
    result, ahead.modules = pickle.loads(file.read_bytes())
    if isinstance(result, MeasureError):
        raise result
    return result


def _end_left(group: int) -> None:
    """End what a process left running, which would hold up or slow down what is measured next."""
    until = time.monotonic() + LEFT_S
    with suppress(ProcessLookupError, PermissionError):  # there is none, or none of this user's
        while time.monotonic() < until:
            os.killpg(group, 0)
            time.sleep(LEFT_S / 100)
        os.killpg(group, signal.SIGKILL)


def _killed(worker: Worker) -> bool:
    """End a process with all that it has started; whether it has ended."""
    if worker.process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(worker.process.pid, signal.SIGKILL)
    worker.said.close()
    try:
        worker.process.communicate(timeout=END_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _ended(worker: Worker, limit_s: float) -> str:
    """End a process that hangs; what is said of it."""
    if not _killed(worker):
        return f"the driver hangs: process {worker.process.pid} cannot be killed"
    return f"it hung, or a call of the driver did: its process gave no result within {limit_s:g} s, and was killed"


def _taken(job: IO[bytes]) -> Any:
    """The next part of a job. Raises: MeasureError."""
    try:
        return pickle.load(job)
    except Exception as error:  # whatever a class of the user's raises
        raise MeasureError(
            "a fresh process cannot make the function or its arguments anew, put what they need into a module: "
            f"{type(error).__name__}: {error}"
        ) from error


def main() -> None:
    """Do the job on stdin in a fresh process, and write its result into the file that the job names. The arguments are
    modules, which are imported before the job comes."""
    for module in sys.argv[1:]:
        with suppress(Exception):  # the job imports what it needs, and says what fails
            importlib.import_module(module)
    job = io.BytesIO(sys.stdin.buffer.read())  # all of it: a module that reads its input would take the rest
    try:
        file = pickle.load(job)
    except EOFError:  # no job is left
        return
    result: object
    try:
        what, functions = _taken(job)
        for function in functions:
            resolve(function)
        arguments, given = _taken(job)
        result = what(*functions, *arguments, **given)
    except MeasureError as error:
        kind = Refused if isinstance(error, Refused) else MeasureError
        result = kind(str(error))  # its cause may be of a class that cannot be handed on
    file.write_bytes(pickle.dumps((result, [name for name in sys.modules if name in LIBRARIES])))
