"""Which files of a folder a process asked for without opening them: whether they exist, or what a folder has.

Python has no audit event of a stat, so the functions of the module os are replaced, in a process that ends soon.
Importing uses others, and does not count.
"""

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ENGINE = str(Path(__file__).resolve().parents[1])
PYTHON = os.path.dirname(os.__file__)
STATUS, LISTS = ("stat", "lstat", "access"), ("listdir", "scandir")


class Asked:
    """What is asked about a folder from now on. `files`: by the path in it, whether it was there; of a folder that was
    listed, with a slash at its end, a digest of its names."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.path.join(os.path.realpath(folder), "")
        self._list, self._status = os.listdir, os.lstat
        self.files: dict[str, str] = {}
        for name in (*STATUS, *LISTS):
            setattr(os, name, self._noting(getattr(os, name), name in LISTS))

    def _noting(self, function: Callable[..., Any], lists: bool) -> Callable[..., Any]:
        def noting(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            if isinstance(path, str | bytes | os.PathLike) and not options.get("dir_fd") and not _of_engine():
                self._note(os.path.abspath(os.fsdecode(path)), lists)
            return function(path, *arguments, **options)

        return noting

    def _note(self, path: str, lists: bool) -> None:
        if not path.startswith(self._folder) or "__pycache__" in path or path.endswith(".py"):
            return
        name = path.removeprefix(self._folder)
        if lists:
            names = [each for each in self._list(path) if each != "__pycache__"] if self._is_there(path) else []
            self.files[f"{name}/"] = hashlib.sha256("\0".join(sorted(names)).encode()).hexdigest()[:16]
        else:
            self.files[name] = "there" if self._is_there(path) else "missing"

    def _is_there(self, path: str) -> bool:
        try:
            self._status(path)
        except (OSError, ValueError):
            return False
        return True


def _of_engine() -> bool:
    """Whether the engine asks, by Python's own modules or itself."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_code.co_filename.startswith((PYTHON, "<frozen")):
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(ENGINE)
