"""Files that are whole or not there, and locks that end with the process that holds them."""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # some network file systems
POLL_S, SAY_S = 0.1, 5.0


class Busy(Exception):
    """Somebody else holds a lock; the message says who."""


def write_whole(path: str | Path, text: str) -> None:
    """Write a file so that it is there whole or not at all, whatever happens: beside it, synced, moved in."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except BaseException:
        with suppress(OSError):  # a disk that is not there any more
            fresh.unlink(missing_ok=True)
        raise


@contextmanager
def locked(path: Path, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold a lock file; the system drops the lock with this process, however it ends. What is held elsewhere is waited
    for where `waiting` is given, which is told who has it, at once and every few seconds. Where there can be no lock
    (a folder that cannot be written, a file system without locks) nothing is held.

    Raises: Busy where it is held and `waiting` is not given.
    """
    file = _open(path)
    if file is None:
        yield
        return
    said = -SAY_S
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                who = os.pread(file, 1000, 0).decode(errors="replace").strip() or "another process"
                if waiting is None:
                    raise Busy(who) from None
            except OSError as error:
                if error.errno in NO_LOCKS_HERE:
                    break
                raise
            if time.monotonic() - said >= SAY_S:
                said = time.monotonic()
                waiting(who)
            time.sleep(POLL_S)
        with suppress(OSError):  # read-only, or a full disk: it is held all the same
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} in {os.getcwd()}".encode(), 0)
        yield
    finally:
        os.close(file)


def _open(path: Path) -> int | None:
    for mode in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):  # another user's may be locked, if not written
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, mode | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    return None
