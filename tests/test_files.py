"""Files that are whole or not there, and locks that end with their process."""

import errno
import fcntl
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelwatch.system.files import Busy, locked, read_regular, remove, write_whole

ROOT = Path(__file__).resolve().parents[1]

# --- whole files ---------------------------------------------------------------------------------------------------


def test_a_file_is_written_with_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.json"
    write_whole(path, "new ü\n")
    assert path.read_bytes() == "new ü\n".encode()
    write_whole(str(path), "newer")
    assert path.read_text() == "newer"
    assert list(path.parent.iterdir()) == [path]


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    """Nobody writes into the pipe, and the device has no end."""
    file, link, pipe = (tmp_path / name for name in ("file", "link", "pipe"))
    file.write_text("content")
    link.symlink_to(file)
    os.mkfifo(pipe)
    assert read_regular(file) == read_regular(link) == b"content"
    for other in (pipe, tmp_path, Path("/dev/null")):
        with pytest.raises(OSError, match=rf"no regular file: '{other}'"):
            read_regular(other)


def fail_in_write(monkeypatch: pytest.MonkeyPatch) -> str:
    return "begins well " * 10_000 + "\ud800"  # half of a character: no UTF-8


def fail_in_fsync(monkeypatch: pytest.MonkeyPatch) -> str:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    return "new"


def fail_in_replace(monkeypatch: pytest.MonkeyPatch) -> str:
    def interrupted(source: Path, target: Path) -> None:
        assert source.read_text() == "new"
        assert source.parent == target.parent  # a move within one file system
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    return "new"


@pytest.mark.parametrize("fail", [fail_in_write, fail_in_fsync, fail_in_replace])
@pytest.mark.parametrize("old", ["old", None])
def test_a_file_is_whole_or_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fail: Any, old: str) -> None:
    path = tmp_path / "file"
    if old:
        path.write_text(old)
    with monkeypatch.context() as patch, pytest.raises((OSError, ValueError, KeyboardInterrupt)):
        write_whole(path, fail(patch))
    assert [(found, found.read_text()) for found in tmp_path.iterdir()] == ([(path, "old")] if old else [])


def test_what_is_replaced_is_synced_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = []
    replace = os.replace

    def fsync(descriptor: int) -> None:
        calls.append(("fsync", os.fstat(descriptor).st_size))

    def move(source: Path, target: Path) -> None:
        calls.append(("replace", source.stat().st_size))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", move)
    write_whole(tmp_path / "file", "new")
    assert calls == [("fsync", 3), ("replace", 3)]


WRITES = """
import os, sys
from kernelwatch.system.files import write_whole

def wait(file):
    print(end="begun", flush=True)
    sys.stdin.read()

os.fsync = wait
write_whole(sys.argv[1], "of another process")
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has begun to write the file `file`, and goes on when its stdin is closed."""
    command = [sys.executable, "-c", WRITES, str(tmp_path / "file")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.read(len("begun")) == "begun"
        yield process


@pytest.mark.parametrize("act", [lambda path: write_whole(path, "new"), remove])
def test_what_a_killed_writer_left_goes(act: Any, tmp_path: Path, writer: subprocess.Popen[str]) -> None:
    """At once: nobody has waited for the writer yet, so that its ID is still taken."""
    path = tmp_path / "file"
    path.write_text("old")
    writer.kill()
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
    (left,) = set(tmp_path.iterdir()) - {path}
    assert left.read_text() == "of another process"
    assert path.read_text() == "old"
    assert left.name.endswith(f".{writer.pid}")
    others = [
        left.with_name(name)
        for name in (
            left.name.replace(platform.node(), "elsewhere"),  # nobody here knows
            left.name.replace("file", "file2"),
            ".file.left",
        )
    ]
    for other in others:
        other.touch()
    act(path)
    assert set(tmp_path.iterdir()) - {path} == set(others)


def test_what_another_process_writes_stays(tmp_path: Path, writer: subprocess.Popen[str]) -> None:
    path = tmp_path / "file"
    write_whole(path, "new")
    remove(path)
    assert len(list(tmp_path.iterdir())) == 1
    writer.communicate()
    assert writer.returncode == 0
    assert path.read_text() == "of another process"
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_whose_file_was_removed_before_it_was_locked_begins_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flock = fcntl.flock
    removed: list[Path] = []

    def late(file: Any, operation: int) -> None:
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].unlink()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    write_whole(tmp_path / "file", "new")
    assert len(removed) == 1
    assert [path.read_text() for path in tmp_path.iterdir()] == ["new"]


def test_a_file_system_without_locks_is_written_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What killed writers left stays there: nobody knows whether it is being written."""

    def refused(file: Any, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    path = tmp_path / "file"
    left = tmp_path / f".file.{platform.node()}.1"
    left.touch()
    monkeypatch.setattr(fcntl, "flock", refused)
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert set(tmp_path.iterdir()) == {path, left}


# --- locks ---------------------------------------------------------------------------------------------------------

HOLD = """
import sys
from collections.abc import Iterator
from pathlib import Path
from kernelwatch.system.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(path: Path, **environment: str) -> "subprocess.Popen[str]":
    """A process that holds a lock until its stdin closes."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_says_who_has_it_and_ends_with_them(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.lock"
    with holder(path) as process:
        with pytest.raises(Busy, match=f"process {process.pid} in {os.getcwd()}"), locked(path):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        with locked(path):
            assert path.read_text() == f"process {os.getpid()} in {os.getcwd()}"


def test_a_lock_is_for_every_user(tmp_path: Path) -> None:
    """The one of a GPU lies in /tmp: whoever comes first must not keep the others from locking it."""
    before = os.umask(0o077)
    try:
        with locked(tmp_path / "a.lock"):
            assert (tmp_path / "a.lock").stat().st_mode & 0o777 == 0o666
    finally:
        os.umask(before)


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    said = []
    with holder(tmp_path / "a.lock") as process:

        def waiting(who: str) -> None:
            said.append(who)
            assert process.stdin is not None
            process.stdin.close()

        with locked(tmp_path / "a.lock", waiting):
            assert said == [f"process {process.pid} in {os.getcwd()}"]
            process.wait()


def test_a_lock_is_no_childs(tmp_path: Path) -> None:
    """A child that outlives the holder does not hold the lock for it."""
    with locked(tmp_path / "a.lock"):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with locked(tmp_path / "a.lock"):
        assert child.poll() is None
    child.communicate(b"\n")


def test_where_no_lock_can_be_nothing_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a file").touch()
    with locked(tmp_path / "a file" / "a.lock"):
        pass
    (tmp_path / "link").symlink_to(tmp_path / "another's")  # planted where everybody may write
    with locked(tmp_path / "link"):
        assert not (tmp_path / "another's").exists()

    def none(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with locked(tmp_path / "a.lock"):
        pass
