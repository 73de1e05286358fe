"""Work in a process of its own, so that what it runs cannot choose the exit code of the command."""

import ctypes
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import IO, NoReturn, TypeVar

from kernelwatch.system.errors import UserError

PARENT_DIES = 1  # PR_SET_PDEATHSIG of prctl
PATIENCE_S, LOOK_S = 10.0, 0.02  # for the process to end what it has started
Result = TypeVar("Result")


def apart(work: Callable[[], Result]) -> Result:
    """What a function returns, or raises, in a fork of this process. What it prints, or a library, goes to stderr.

    Raises: UserError if the process ends before that, with whichever exit code; what the function raises.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as told:
        child = os.fork()
        if not child:
            _work(work, told)
        try:
            _, status = os.waitpid(child, 0)
        except ChildProcessError:  # who started this command lets SIGCHLD be ignored, and the status is lost
            status = 0
        except BaseException:  # an interrupt, or SIGTERM
            _end(child)
            raise
        told.seek(0)
        text = told.read()
    if not text:
        code = os.waitstatus_to_exitcode(status)
        how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        raise UserError(f"nothing was measured: a module or function of these ends its process, {how}")
    kind, content, notes = pickle.loads(text)
    if kind is None:
        return content  # type: ignore[no-any-return]
    error = kind(*content)
    for note in notes:
        error.add_note(note)
    raise error


def _work(work: Callable[[], object], told: IO[bytes]) -> NoReturn:
    """Do the work, write what it returns or raises, and end this process."""
    libc = ctypes.CDLL(None)
    libc.prctl(PARENT_DIES, signal.SIGKILL)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        text = pickle.dumps((None, work(), ()))
    except BaseException as error:
        text = pickle.dumps(_plain(error))
    told.write(text)
    told.flush()
    with suppress(Exception):
        sys.stderr.flush()
        libc.fflush(None)
    os._exit(0)


def _plain(error: BaseException) -> tuple[type[BaseException], tuple[object, ...], tuple[str, ...]]:
    """An error as its type, arguments and notes, without objects of the modules that raised it, which the command does
    not import. They may also change how errors are pickled, as tblib does for Dask."""
    if isinstance(error, UserError):  # or ToolMissing
        return UserError, tuple(map(str, error.args)), ()
    if isinstance(error, KeyboardInterrupt):
        return KeyboardInterrupt, (), ()
    if isinstance(error, OSError) and error.errno and error.strerror:  # a full disk
        return OSError, (error.errno, str(error.strerror), str(error.filename or "")), ()
    if isinstance(error, SystemExit):
        return SystemExit, (error.code if isinstance(error.code, int | None) else str(error.code),), ()
    return RuntimeError, (f"{type(error).__name__}: {error}",), ("".join(traceback.format_exception(error)),)


def _end(child: int) -> None:
    """Let a process end what it has started, and end it."""
    with suppress(ProcessLookupError, ChildProcessError):  # it has ended already
        os.kill(child, signal.SIGTERM)
        until = time.monotonic() + PATIENCE_S
        while not os.waitpid(child, os.WNOHANG)[0]:
            if time.monotonic() > until:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return
            time.sleep(LOOK_S)
