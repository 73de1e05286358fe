"""Runs a measurement in fresh processes."""

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernelwatch.api.named import resolve
from kernelwatch.api.result import MeasureError, Refused


class Died(MeasureError):
    """A fresh process ended without a result."""


def each(
    what: Callable[..., Any],
    functions: Sequence[Callable[..., object] | str],
    arguments: Sequence[object],
    given: dict[str, Any],
    count: int,
) -> list[Any]:
    """The results of a function of this package, `what`, in fresh processes, one after the other.

    Raises: MeasureError if a process cannot import a function, or cannot measure it; Died if it ends before that.
    """
    job = _job(what, functions, arguments, given)
    with tempfile.TemporaryDirectory() as folder:
        return [_one(job, Path(folder, f"{number}.pickle")) for number in range(count)]


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


def _one(job: bytes, file: Path) -> Any:
    code = f"import sys; sys.path[:] = {sys.path!r}; from kernelwatch.api.processes import main; main()"
    done = subprocess.run([sys.executable, "-c", code, str(file)], input=job, capture_output=True, check=False)
    if not file.exists():
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise Died(f"a fresh process ended with {done.returncode}: {lines[-1]}")
    result = pickle.loads(file.read_bytes())
    if isinstance(result, MeasureError):
        raise result
    return result


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
