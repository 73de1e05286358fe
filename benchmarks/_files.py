"""Files that are whole or not there, and locks that end with the process that holds them."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

SAY_S = 5.0  # between two words about whom a lock is waited for


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
    for if `waiting` is given, which is told who has it, at once and every few seconds. Where there can be no lock (a
    folder that cannot be written, a file system without locks) nothing is held.

    Raises: Busy if it is held and `waiting` is not given.
    """
    from filelock import FileLock, Timeout  # not at the top: asv forks from a process that imports this module

    # For all users of the machine, whatever the umask, so that each can lock and sign it.
    lock = FileLock(path, mode=0o666, fallback_to_soft=False, on_acquired=_sign)
    timeout_s = 0.0
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(lock.acquire(timeout=timeout_s))
                break
            except Timeout:
                who = _holder(path)
                if waiting is None:
                    raise Busy(who) from None
                waiting(who)
                timeout_s = SAY_S
            except OSError:
                break  # there can be no lock here
        yield


def _sign(file: int) -> None:
    """Say in a lock file who holds it."""
    with suppress(OSError):  # a full disk: it is held all the same
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} in {os.getcwd()}".encode(), 0)


def _holder(path: Path) -> str:
    """Who holds a lock file. In a folder that all may write it may have become a link or a pipe by now."""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return os.read(file, 1000).decode(errors="replace").strip() or "another process"
        finally:
            os.close(file)
    return "another process"
