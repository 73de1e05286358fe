"""Runs a measurement in fresh processes."""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernelwatch.api.named import resolve
from kernelwatch.api.result import MeasureError, Refused

HUNG_S, HUNG_TIMES = 900.0, 20.0  # so long, and so many times as long as it measures, a process may take
END_S = 20.0  # for a process to end that was killed: only a driver that hangs holds it for longer


class Died(MeasureError):
    """A fresh process ended without a result."""


def each(
    what: Callable[..., Any],
    functions: Sequence[Callable[..., object] | str],
    arguments: Sequence[object],
    given: dict[str, Any],
    count: int,
    seconds: float = 1.0,
) -> list[Any]:
    """The results of a function of this package, `what`, in fresh processes, one after the other.
    `seconds`: as long as each measures, about, after what is done once.

    Raises: MeasureError if a process cannot import a function, or cannot measure it; Died if it ends before that.
    """
    job, limit_s = _job(what, functions, arguments, given), HUNG_S + HUNG_TIMES * seconds
    with tempfile.TemporaryDirectory() as folder:
        return [_one(job, Path(folder, f"{number}.pickle"), limit_s) for number in range(count)]


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


def _one(job: bytes, file: Path, limit_s: float) -> Any:
    code = f"import sys; sys.path[:] = {sys.path!r}; from kernelwatch.api.processes import main; main()"
    worker = subprocess.Popen(
        [sys.executable, "-c", code, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _, errors = worker.communicate(job, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise Died(_ended(worker, limit_s)) from None
    except BaseException:
        _ended(worker, limit_s)
        raise
    if not file.exists():
        lines = errors.decode(errors="replace").strip().splitlines() or ["no message"]
        raise Died(f"a fresh process ended with {worker.returncode}: {lines[-1]}")
    result = pickle.loads(file.read_bytes())
    if isinstance(result, MeasureError):
        raise result
    return result


def _ended(worker: "subprocess.Popen[bytes]", limit_s: float) -> str:
    """End a process that hangs, with all that it has started; what is said of it."""
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    try:
        worker.communicate(timeout=END_S)
    except subprocess.TimeoutExpired:
        return f"the driver hangs: process {worker.pid} cannot be killed"
    return f"it hung, or a call of the driver did: its process gave no result within {limit_s:g} s, and was killed"


def main() -> None:
    """Do the job on stdin in a fresh process, and write its result into the file that is the argument."""
    what, functions = pickle.load(sys.stdin.buffer)
    result: object
    try:
        for function in functions:
            resolve(function)
        arguments, given = pickle.load(sys.stdin.buffer)
        result = what(*functions, *arguments, **given)
    except MeasureError as error:
        kind = Refused if isinstance(error, Refused) else MeasureError
        result = kind(str(error))  # its cause may be of a class that cannot be handed on
    Path(sys.argv[1]).write_bytes(pickle.dumps(result))
