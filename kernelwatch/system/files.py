"""Atomic writes, reads that never wait, and locks that the system releases when their process ends."""

import errno
import fcntl
import json
import os
import platform
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

SAY_S = 5.0  # between two reports of who holds the lock


class Busy(Exception):
    """Another process holds the lock; the message says which."""


def write_whole(path: str | Path, text: str) -> None:
    """Replace a file atomically: write a temporary file beside it, sync it, rename it. Encoding: UTF-8.

    What killed writers of the file left behind is removed.

    Raises: OSError; the old file, if any, is then unchanged.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    fresh = path.with_name(f"{_unfinished(path)}{os.getpid()}")
    try:
        with _locked_file(fresh) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except BaseException:
        with suppress(OSError):  # the disk may have gone
            fresh.unlink(missing_ok=True)
        raise


def replace_lines(path: Path, fresh: Mapping[str, Mapping[str, object]]) -> None:
    """Write JSON lines into a file, each with its "key", in place of older lines with these keys; others stay."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    known = {json.loads(line)["key"]: line for line in lines}
    known |= {key: json.dumps({"key": key, **values}) for key, values in fresh.items()}
    write_whole(path, "".join(f"{line}\n" for line in known.values()))


def open_regular(path: Path) -> BinaryIO:
    """A regular file, or one that links lead to, open for reading. What a stranger put in its place is refused: a pipe
    would wait for a writer for ever, and a device may never end.

    Raises: OSError.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return open(file, "rb")
    os.close(file)
    raise OSError(errno.EINVAL, "no regular file", str(path))


def read_regular(path: Path) -> bytes:
    """The content of a regular file. Raises: OSError, see `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def remove(path: Path) -> None:
    """Remove a file, if it exists, and what killed writers of it left behind.

    Raises: OSError.
    """
    path.unlink(missing_ok=True)
    _remove_abandoned(path)


def _unfinished(path: Path) -> str:
    """How the names begin of this machine's temporary files for a file; the ID of the process follows."""
    return f".{path.name}.{platform.node()}."


def _locked_file(path: Path) -> TextIO:
    """A file, opened for writing, whose lock says that it is being written. The system releases the lock when this
    process ends, even if nobody has waited for the process and its ID is still taken."""
    while True:
        file = path.open("w", encoding="utf-8")
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another process removed it before it was locked


def _remove_abandoned(path: Path) -> None:
    """Remove the temporary files of this machine that nobody is writing. Those of other machines, which may share the
    folder, stay: nobody here knows whether they are being written."""
    start = _unfinished(path)
    with suppress(OSError):
        for found in os.listdir(path.parent):
            if found.startswith(start) and found.removeprefix(start).isdecimal():
                _remove_unlocked(path.with_name(found))


def _remove_unlocked(path: Path) -> None:
    """Remove a file, unless another process has locked it or it can't be locked."""
    with suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold a lock file. The system releases the lock when this process ends, however it ends.

    If another process holds the lock and `waiting` is given, wait, and call `waiting(holder)` at once and every few
    seconds. If no lock can be made (the folder is read-only, the file system has no locks), continue without one.

    Raises: Busy if another process holds the lock and `waiting` is not given.
    """
    from filelock import FileLock, Timeout  # not at the top: asv forks from a process that imports this module

    # Writable for all users of the machine, whatever the umask, so that each can lock it and write their name.
    lock = FileLock(path, mode=0o666, fallback_to_soft=False, on_acquired=_sign)
    timeout_s = 0.0
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(lock.acquire(timeout=timeout_s))
                break
            except Timeout:
                holder = _holder(path)
                if waiting is None:
                    raise Busy(holder) from None
                waiting(holder)
                timeout_s = SAY_S
            except OSError:
                break  # no lock can be made here
        yield


def _sign(file: int) -> None:
    """Write into a lock file which process holds it."""
    with suppress(OSError):  # a full disk: the lock is held all the same
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} in {os.getcwd()}".encode(), 0)


def _holder(path: Path) -> str:
    """The process that holds a lock file. Not followed or waited for: in a folder that everyone may write, the file may
    have been replaced by a link or a pipe."""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return os.read(file, 1000).decode(errors="replace").strip() or "another process"
        finally:
            os.close(file)
    return "another process"
