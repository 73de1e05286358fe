"""A cache of compiled files on disk, shared by all processes. A file's key is a hash of what it was made from."""

import atexit
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path


@cache
def folder() -> Path:
    """The cache's folder: $KERNELWATCH_CACHE, else the user's cache folder; if it may not be written, a temporary
    folder that ends with this process."""
    try:
        named = os.environ.get("KERNELWATCH_CACHE")
        path = Path(named or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kernelwatch"))
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as probe:
            probe.write(bytes(4096))
    except (OSError, RuntimeError):  # RuntimeError: this user has no home
        path = Path(tempfile.mkdtemp(prefix="kernelwatch-"))
        atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def built(key: str, suffix: str, build: Callable[[Path], None]) -> Path:
    """The path of a cached file; if it is missing or damaged, `build(path)` makes it first.

    The note beside the file is written last and holds its hash, so a file that was cut short is built again.
    """
    path = folder() / f"{key}{suffix}"
    note = path.with_suffix(".json")
    try:
        if hashlib.sha256(path.read_bytes()).hexdigest() == json.loads(note.read_text())["sha256"]:
            return path
    except (OSError, ValueError, KeyError, TypeError):
        pass
    with tempfile.TemporaryDirectory(dir=path.parent) as inside:
        fresh, fresh_note = Path(inside, path.name), Path(inside, note.name)
        build(fresh)
        fresh_note.write_text(json.dumps({"sha256": hashlib.sha256(fresh.read_bytes()).hexdigest()}))
        os.replace(fresh, path)
        os.replace(fresh_note, note)
    return path
