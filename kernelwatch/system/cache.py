"""A cache of compiled files on disk, shared by all processes.

A file's key is a hash of everything that it was made from: sources, macros, options, the compiler and its environment.
Headers are the exception: which of them a compiler reads is known only afterwards. Their hashes are kept beside the
file, which is made again if one of them has changed.
"""

import atexit
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

BUILT_MOST = 8  # built trees, and environments
BUILT_S = 3600.0  # one that was used within this time may be in use


@cache
def folder() -> Path:
    """The cache's folder: $KERNELWATCH_CACHE, else the user's cache folder; if it may not be written, a temporary
    folder that ends with this process."""
    try:
        named = os.environ.get("KERNELWATCH_CACHE")
        path = Path(named or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kernelwatch")).absolute()
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as probe:
            probe.write(bytes(4096))
    except (OSError, RuntimeError):  # RuntimeError: this user has no home
        path = Path(tempfile.mkdtemp(prefix="kernelwatch-"))
        atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def keep_newest(home: Path) -> None:
    """Remove all but the newest folders of built trees, or of environments, with the files that say they are whole."""
    folders = sorted((path for path in home.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for path in folders[:-BUILT_MOST]:
        if time.time() - path.stat().st_mtime > BUILT_S:  # noqa: TID251 (as the file system's stamps)
            path.with_name(f"{path.name}.done").unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)


def noted(key: str, suffix: str) -> dict[str, Any] | None:
    """A kept dictionary; None if there is none, or if it was cut short."""
    try:
        return dict(json.loads((folder() / f"{key}{suffix}").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def note(key: str, suffix: str, values: Mapping[str, Any]) -> None:
    """Keep a dictionary that JSON can hold. `key`: a hash of everything that decides it. A full disk keeps nothing."""
    with suppress(OSError), tempfile.TemporaryDirectory(dir=folder()) as inside:
        fresh = Path(inside, "note")
        fresh.write_text(json.dumps(values), encoding="utf-8")
        os.replace(fresh, folder() / f"{key}{suffix}")


# Variables that name the caches of compilers and libraries, and of packages that keep what they compile.
CACHES = {
    "CUDA_CACHE_PATH": "cuda",
    "CUPY_CACHE_DIR": "cupy",
    "NUMBA_CACHE_DIR": "numba",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "TRITON_CACHE_DIR": "triton",
    "XDG_CACHE_HOME": "others",
}
SETTLED_NS = 100_000_000  # a file that changed less long ago may change again, with the same time stamp
KEPT_MOST = 32  # trees whose caches are kept


def of_tree(content: str) -> dict[str, str]:
    """Environment variables with which a tree gets compile caches of its own: a commit whose cache has an incomplete
    key is then never given what another commit compiled. `content`: a hash of its files; trees with the same one share
    the caches."""
    home = folder() / "compiled"
    own = home / content[:24]
    try:
        own.mkdir(parents=True, exist_ok=True)
        os.utime(own)
        # Without its own, which looks old if the system's time was set back.
        others = [path for path in home.iterdir() if path.is_dir() and path != own]
        others.sort(key=lambda path: path.stat().st_mtime)
    except OSError:  # another process removes some
        others = []
    for path in others[: -(KEPT_MOST - 1)]:
        shutil.rmtree(path, ignore_errors=True)
    return {name: str(own / place) for name, place in CACHES.items()} | {"KERNELWATCH_CACHE": str(folder())}


@contextmanager
def of_harness() -> Iterator[None]:
    """Within it CuPy keeps what it compiles for all trees, instead of for the measured one. It is for what the harness
    itself computes, such as the references, whose kernels each tree would compile anew."""
    from cupy.cuda import compiler

    name = "CUPY_CACHE_DIR"
    tree, backend = os.environ.get(name), getattr(compiler, "_kernel_cache_backend", None)
    os.environ[name] = str(folder() / "harness" / CACHES[name])
    if backend is not None:  # CuPy 14 reads the variable once
        compiler._set_kernel_cache_backend(type(backend)())
    try:
        yield
    finally:
        os.environ.pop(name)
        if tree is not None:
            os.environ[name] = tree
        if backend is not None:
            compiler._set_kernel_cache_backend(backend)


_digests: dict[str, tuple[tuple[int, ...], str]] = {}  # by path: its state and its hash


def digest(path: Path) -> str:
    """The hash of a file, which is read once in a process unless it changes. Raises: OSError."""
    status = path.stat()
    state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    known, value = _digests.get(str(path), (None, ""))
    if known == state:
        return value
    value = hashlib.sha256(path.read_bytes()).hexdigest()
    if time.time_ns() - status.st_ctime_ns > SETTLED_NS:
        _digests[str(path)] = state, value
    return value


def inputs(path: Path) -> str:
    """A hash of all that a cached file was made from: of its key, and of what else was read."""
    read = json.loads(path.with_suffix(".json").read_text())["read"]
    return hashlib.sha256(json.dumps([path.name, read]).encode()).hexdigest()


def built(key: str, suffix: str, build: Callable[[Path], Iterable[Path] | None]) -> Path:
    """The path of a cached file; if it is missing or damaged, `build(path)` makes it first.

    `key`: of everything that decides what is built, but the files that `build` returns, such as headers: if one of them
    has changed, the file is built again. The note beside the file is written last and holds the hashes of the file and
    of these others, so a file that was cut short is built again, too.
    """
    path = folder() / f"{key}{suffix}"
    note = path.with_suffix(".json")
    try:
        known = json.loads(note.read_text())
        same = all(digest(Path(name)) == sha256 for name, sha256 in known["read"].items())
        if same and hashlib.sha256(path.read_bytes()).hexdigest() == known["sha256"]:
            return path
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    with tempfile.TemporaryDirectory(dir=path.parent) as inside:
        fresh, fresh_note = Path(inside, path.name), Path(inside, note.name)
        read = {str(one): digest(one) for one in sorted(set(build(fresh) or ()))}
        content = {"sha256": hashlib.sha256(fresh.read_bytes()).hexdigest(), "read": read}
        fresh_note.write_text(json.dumps(content))
        os.replace(fresh, path)
        os.replace(fresh_note, note)
    return path
