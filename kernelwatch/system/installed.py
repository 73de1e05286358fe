"""The versions of installed distributions.

They are read from the files themselves: every worker asks, and to import importlib.metadata, with its parsers of e-mail
and of zip files, takes a third as long as to import NumPy.
"""

import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

CUTE = ("", "-libs-base", "-libs-core", "-libs-cu12", "-libs-cu13")
# A module or a distribution -> the other distributions that compile its kernels.
COMPILERS = {
    "cuda-tile": ("nvidia-cuda-nvcc", "nvidia-cuda-tileiras", "nvidia-nvvm"),
    "cutlass": tuple(f"nvidia-cutlass-dsl{part}" for part in CUTE),
    "numba": ("llvmlite", "numba-cuda", "nvidia-nvjitlink", "nvidia-nvvm"),
}
KINDS = (".dist-info", ".egg-info")
FILES = ("METADATA", "PKG-INFO", "")  # "": an .egg-info may be a file


def versions(names: Iterable[str]) -> dict[str, str]:
    """Name -> version of those distributions that are installed. Of two, the first on Python's path counts."""
    places = _places(tuple(sys.path))
    known = {name: _version(places[normal(name)]) for name in names if normal(name) in places}
    return {name: version for name, version in known.items() if version is not None}


@lru_cache(maxsize=4)
def _places(path: tuple[str, ...]) -> dict[str, Path]:
    """Distribution -> the folder that describes it."""
    places: dict[str, Path] = {}
    for folder in path:
        with suppress(OSError):
            for entry in os.listdir(folder or "."):
                if entry.endswith(KINDS):
                    distribution = entry.rpartition(".")[0].partition("-")[0]
                    places.setdefault(normal(distribution), Path(folder, entry))
    return places


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _version(place: Path) -> str | None:
    for file in FILES:
        with suppress(OSError):
            line = re.search(r"^Version: *(\S+)", (place / file).read_text(encoding="utf-8"), re.MULTILINE)
            return line[1] if line else None
    return None


def behind(modules: Iterable[str]) -> dict[str, str]:
    """Name -> version of the distributions that provide these top-level modules or compile what they launch."""
    modules = list(modules)
    names = providers(modules)
    compilers = [name for each in (*modules, *names) for name in COMPILERS.get(each, ())]
    return versions(dict.fromkeys([*names, *compilers]))


def providers(modules: Iterable[str]) -> list[str]:
    """The names of the distributions that provide these top-level modules."""
    return list(_providers(tuple(sorted(set(modules))), tuple(sys.path)))


@lru_cache(maxsize=64)
def _providers(modules: tuple[str, ...], path: tuple[str, ...]) -> tuple[str, ...]:
    """A large installation lists some 100,000 files, and every rung that is loaded asks."""
    wanted = "|".join(map(re.escape, modules))
    if not wanted:
        return ()
    top_level = re.compile(rf"^(?:{wanted})\s*$", re.MULTILINE)
    recorded = re.compile(rf"^(?:{wanted})(?:/|\.)", re.MULTILINE)
    found = []
    for folder in path:
        with suppress(OSError):
            for entry in os.listdir(folder or "."):
                if entry.endswith(KINDS) and _provides(Path(folder, entry), top_level, recorded):
                    found.append(normal(entry.rpartition(".")[0].partition("-")[0]))
    return tuple(sorted(set(found)))


def _provides(place: Path, top_level: re.Pattern[str], recorded: re.Pattern[str]) -> bool:
    for file, pattern in (("top_level.txt", top_level), ("RECORD", recorded)):
        with suppress(OSError):
            return bool(pattern.search((place / file).read_text(encoding="utf-8")))
    return False
