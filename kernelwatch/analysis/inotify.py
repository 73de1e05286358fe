"""Which files of a folder were opened, by whatever process or library: Linux's inotify."""

import ctypes
import os
import struct
from collections.abc import Collection
from pathlib import Path

OPENED = 0x20  # IN_OPEN of sys/inotify.h
OF_A_FOLDER = 0x40000000  # IN_ISDIR
OVERFLOW = 0x4000  # IN_Q_OVERFLOW
HEAD = struct.Struct("iIII")  # struct inotify_event without its name


class Watch:
    """A watch on a folder and all below it, which begins when it is made. `without`: the names of folders that are not
    watched."""

    def __init__(self, folder: Path, without: Collection[str] = (".git", "__pycache__")) -> None:
        self.folder = folder
        libc = ctypes.CDLL(None, use_errno=True)
        self._queue = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._folders: dict[int, str] = {}
        self._all = self._queue < 0  # this system has no watch left
        for top, folders, _ in os.walk(folder):
            folders[:] = [name for name in folders if name not in without]
            watch = -1 if self._all else libc.inotify_add_watch(self._queue, os.fsencode(top), OPENED)
            self._all = self._all or watch < 0
            self._folders[watch] = top

    def opened(self) -> set[Path]:
        """The files that were opened; all files if that cannot be told. It ends the watch."""
        found: set[Path] = set()
        while not self._all:
            try:
                content = os.read(self._queue, 1 << 20)
            except BlockingIOError:
                break
            at = 0
            while at < len(content):
                watch, mask, _, length = HEAD.unpack_from(content, at)
                name = content[at + HEAD.size : at + HEAD.size + length].rstrip(b"\0")
                at += HEAD.size + length
                self._all = self._all or bool(mask & OVERFLOW)
                if name and not mask & OF_A_FOLDER:
                    found.add(Path(self._folders[watch], os.fsdecode(name)))
        if self._queue >= 0:
            os.close(self._queue)
        return {path for path in self.folder.rglob("*") if path.is_file()} if self._all else found
