"""What a process of a measured project uses: the files that it opens in its environment, by whatever library, and the
code that it loads onto a GPU.

Two commits' environments are alike otherwise. So a process that uses the same of both does the same on both.
"""

import ctypes
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import source_from_cache
from io import BytesIO
from pathlib import Path

from kernelwatch.analysis import loaded
from kernelwatch.analysis.inotify import Watch

LARGE_BYTES = 2**26  # a larger file names no environment: it is not searched for the path of one
# What a program may act by of a package's metadata, all of which asv reads; the rest is prose, such as the README.
METADATA = re.compile(rb"^(?:Name|Version|Requires-\S+|Provides-\S+): .*$", re.MULTILINE)
NOTES = re.compile(r"debug|^\.note|^\.(sym|str|shstr)tab$")  # sections of a cubin that a GPU does not read
NAMED = re.compile(r"\.(dist|egg)-info$")  # folders that have a version in their names, and that are opened if asked
SCRIPT = loaded.__file__


@dataclass
class Environment:
    """The folder of an environment."""

    folder: Path
    _digests: dict[tuple[Path, int, int], str] = field(default_factory=dict)

    @contextmanager
    def watched(self, files: set[Path]) -> Iterator[None]:
        """Add the files to `files` that any process opens there meanwhile. Each process needs a watch of its own: the
        one before it may have made folders."""
        watch = Watch(self.folder, without=(".git",))
        try:
            yield
        finally:
            files |= watch.opened()

    def identity(self, files: Collection[Path]) -> str:
        """Of the content of files, relative to the folder, and of the names beside them, among which a library may have
        looked. A module stands for what Python compiled of it."""
        own = sorted({_source(path) for path in (self.folder / each for each in files) if path.is_file()})
        whole = hashlib.sha256()
        for path in own:
            whole.update(f"{path.relative_to(self.folder)} {self._digest(path)}\n".encode())
        for folder in sorted({path.parent for path in own}):
            names = sorted(name for name in os.listdir(folder) if name != "__pycache__" and not NAMED.search(name))
            whole.update(f"{folder.relative_to(self.folder)} {names}\n".encode())
        return whole.hexdigest()[:16]

    def _digest(self, path: Path) -> str:
        """Of a file, without the path of the environment, which pip writes into some."""
        stat = path.stat()
        key = path, stat.st_mtime_ns, stat.st_size
        if key not in self._digests:
            with path.open("rb") as file:
                if stat.st_size > LARGE_BYTES:
                    self._digests[key] = hashlib.file_digest(file, "sha256").hexdigest()
                else:
                    content = file.read().replace(os.fsencode(self.folder), b"")
                    if path.name in ("METADATA", "PKG-INFO") and NAMED.search(path.parent.name):
                        content = b"\n".join(METADATA.findall(content.partition(b"\n\n")[0]))
                    self._digests[key] = hashlib.sha256(content).hexdigest()
        return self._digests[key]


def _source(path: Path) -> Path:
    if path.suffix == ".pyc" and path.parent.name == "__pycache__":
        source = Path(source_from_cache(path))
        return source if source.is_file() else path
    return path


def has_driver() -> bool:
    """Whether a process here may load code onto a GPU."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def on_gpu(folder: Path) -> str | None:
    """A hash of the code that a process loaded onto a GPU, as the script `loaded` left it; "" if it did not use CUDA,
    None if that is not known."""
    try:
        told = json.loads((folder / loaded.TOLD).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # it was killed
        return None
    if not told["cuda"]:
        return ""
    codes = sorted({code_of(path.read_bytes()) for path in folder.glob("*.cubin")})
    return None if told["why"] else hashlib.sha256("\n".join(codes).encode()).hexdigest()[:16]


def code_of(cubin: bytes) -> str:
    """A hash of what a cubin has for a GPU: of its sections but those in which compilers note the paths of sources. Of
    what is no cubin, such as PTX, a hash of all."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    whole = hashlib.sha256()
    try:
        for section in sorted(ELFFile(BytesIO(cubin)).iter_sections(), key=lambda each: str(each.name)):
            if not NOTES.search(section.name):
                own = b"" if section["sh_type"] == "SHT_NOBITS" else section.data()
                whole.update(f"{section.name} {section['sh_size']} ".encode() + own)
    except (ELFError, OverflowError):
        return hashlib.sha256(cubin).hexdigest()
    return whole.hexdigest()
