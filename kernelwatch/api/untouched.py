"""Whether a candidate has changed what times, compares or counts: the functions of this process, the GPU's L2 cache; or
what it is compared with: the modules of the original and of what makes the arguments.
Also whether it left a thread at work, which may launch on a GPU what the timing does not see.

A candidate runs in the process that measures it. Nothing here stops code that knows this engine: it could undo a change
before anybody looks. What is published so far does not.
"""

import csv
import functools
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from kernelwatch.api.result import MeasureError
from kernelwatch.timing import l2

# What tells the time, makes a figure of samples, compares arrays, or runs what was enqueued.
MODULES = (
    *("time", "timeit", "statistics", "math", "itertools", "secrets", "gc", "numpy", "numpy.lib.stride_tricks"),
    *("cupy", "cupy.cuda", "cupy_backends.cuda.api.runtime", "torch.cuda", "torch.cuda.graphs", "pynvml"),
)
CLASSES = ("torch.Tensor", "torch.cuda.Event", "torch.cuda.Stream", "torch.cuda.CUDAGraph")
OWN = "kernelwatch."
SETTERS = re.compile(r"nvml\w*(Set|Reset|Clear|Create|Destroy)[A-Z]\w*")


class Untouched:
    """What there was before a candidate was imported. `why` says what it changed since. `files`: of the original and of
    what makes the arguments, whose modules are watched with those of their trees."""

    def __init__(self, device: str, files: Iterable[str] = ()) -> None:
        self.device = device
        self.own = _own([os.path.realpath(file) for file in files if file])
        self.functions = dict(_functions(self.own))
        self.l2_bytes = self._persisting_bytes()
        self.threads = {*sys._current_frames()}
        self.refused: list[str] = []

    def __enter__(self) -> "Untouched":
        """Let nobody change the settings of a GPU through NVML."""
        if not _HOOKED:
            sys.addaudithook(_refuse)  # it stays as long as the process
            _HOOKED.append(True)
        _WATCHING.append(self.refused)
        return self

    def __exit__(self, *_: object) -> None:
        _WATCHING.remove(self.refused)

    @contextmanager
    def original(self) -> Iterator[None]:
        """While the original is called: what that binds anew in its own tree, such as a kernel that is compiled when it
        is first needed, is no candidate's doing."""
        before = dict(_of_modules(self.own))
        yield
        now = dict(_of_modules(self.own))
        for key, parts in before.items():
            if key in self.functions and _same(self.functions[key], parts):
                self.functions[key] = now.get(key, ())

    def why(self) -> str:
        """What was changed, "" if nothing was."""
        if self.refused:
            return f"it calls {self.refused[0]}: the settings of a GPU are no candidate's to change"
        now = dict(_functions(self.own))
        changed = [key for key, before in self.functions.items() if _other(before, now.get(key, ()))]
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            return f"it replaces {'.'.join(changed[0])}{more}, which the measurement uses"
        l2_bytes = self._persisting_bytes()
        if l2_bytes is not None and self.l2_bytes is not None and l2_bytes > self.l2_bytes:
            return f"it sets {l2_bytes >> 20} MiB of the L2 cache aside for accesses that persist"
        if name := self._thread():
            return f"it leaves a thread at work, {name}, whose launches no timing sees"
        return ""

    def _persisting_bytes(self) -> int | None:
        """Of the L2 cache, set aside for accesses that persist; None if that cannot be read."""
        return l2.set_aside_bytes() if self.device == "gpu" else None

    def _thread(self) -> str:
        """A thread that a candidate started and that runs code of no installed distribution, "" if there is none.

        Threads of PyTorch and of Python's pools may wait. On a CPU a thread may take part in the work: if that goes on
        after the calls, the outputs are wrong.
        """
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items() if self.device == "gpu" else ():
            place = frame
            while ident not in self.threads and place:
                if not _installed(place.f_code.co_filename):
                    return f"{names.get(ident, 'unnamed')} in {Path(place.f_code.co_filename).name}"
                place = place.f_back  # type: ignore[assignment]
        return ""


# --- whose modules are watched -------------------------------------------------------------------------------------

STANDARD = sysconfig.get_paths()["stdlib"]
ENGINE = str(Path(__file__).parent.parent)


def _own(files: list[str]) -> list[str]:
    """The modules of these files, and those of the same trees that are not installed, such as helpers."""
    trees = {_tree(file) for file in files}
    names = []
    for name, content in [*sys.modules.items()]:
        # One of a class of its own may be imported only now that it is looked at.
        file = vars(content).get("__file__") if type(content) is ModuleType and not _is_used(name) else None
        if not isinstance(file, str):
            continue
        real = os.path.realpath(file)
        if real in files or (not _installed(file) and _tree(real) in trees and not _installed(real)):
            names.append(name)
    return names


def _tree(file: str) -> str:
    """The folder of the repository of a file. Without one it is the outermost folder from which Python imports what is
    in it."""
    folders = [str(folder) for folder in Path(file).parents]
    repository = next((folder for folder in folders if os.path.exists(os.path.join(folder, ".git"))), "")
    imported = {os.path.realpath(path) for path in sys.path}
    return repository or next((folder for folder in reversed(folders) if folder in imported), folders[0])


def _installed(file: str) -> bool:
    """Whether a file of Python belongs to Python, to an installed distribution or to this engine."""
    parts = Path(file).parts
    if file.startswith(("<frozen ", STANDARD, ENGINE)) or "site-packages" in parts or "dist-packages" in parts:
        return True
    # With "pip install --target" a distribution is in any folder.
    return any(file in _recorded(str(folder)) for folder in Path(file).parents)


@functools.cache
def _recorded(folder: str) -> frozenset[str]:
    """The files of the distributions that are installed in a folder."""
    files = []
    for record in Path(folder).glob("*.dist-info/RECORD"):
        with suppress(OSError, csv.Error), record.open(encoding="utf-8", errors="replace", newline="") as lines:
            files += [os.path.join(folder, row[0]) for row in csv.reader(lines) if row]
    return frozenset(files)


_WATCHING: list[list[str]] = []
_HOOKED: list[bool] = []


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Raises: MeasureError if a candidate looks up a function of NVML that changes a setting, by whatever binding."""
    if event == "ctypes.dlsym" and _WATCHING:
        name = str(arguments[1])
        if SETTERS.fullmatch(name):
            _WATCHING[-1].append(name)
            raise MeasureError(f"{name} is refused while candidates are measured")


# --- what they define ----------------------------------------------------------------------------------------------


def _functions(own: list[str]) -> Iterator[tuple[tuple[str, str], tuple[object, ...]]]:
    """What each name of the modules and classes stands for. `own`: further modules."""
    yield from _of_modules([*filter(_is_used, [*sys.modules]), *own])
    for path in CLASSES:
        owner: Any = sys.modules.get(path.partition(".")[0])
        for part in path.split(".")[1:]:
            owner = getattr(owner, part, None)
        if isinstance(owner, type):
            yield from _of(path, owner)


def _is_used(module: str) -> bool:
    """Whether the engine itself uses a module."""
    return module in MODULES or module.startswith(OWN)


def _of_modules(names: list[str]) -> Iterator[tuple[tuple[str, str], tuple[object, ...]]]:
    for name in names:
        module = sys.modules.get(name)
        if issubclass(type(module), ModuleType):
            yield from _of(name, module)  # type: ignore[arg-type]


def _of(name: str, owner: ModuleType | type) -> Iterator[tuple[tuple[str, str], tuple[object, ...]]]:
    for attribute, value in [*vars(owner).items()]:
        kind = type(value)  # `isinstance` would ask the value: a proxy would import what it stands for
        if callable(value) or issubclass(kind, staticmethod | classmethod | property | ModuleType):
            yield (name, attribute), _parts(value)
        if issubclass(kind, type) and isinstance(owner, ModuleType) and value.__module__ == name:
            yield from _of(f"{name}.{attribute}", value)


def _parts(value: object) -> tuple[object, ...]:
    """A function and what can be replaced within it; anything else by itself."""
    if type(value) is FunctionType:
        return value, value.__code__, value.__defaults__
    return (value,)


def _same(before: tuple[object, ...], now: tuple[object, ...]) -> bool:
    return len(before) == len(now) and all(a is b for a, b in zip(before, now, strict=True))


def _other(before: tuple[object, ...], now: tuple[object, ...]) -> bool:
    """Whether a name stands for something else than before."""
    return not _same(before, now) and not (len(before) == 1 and now and _stands_for(before[0], now[0]))


WHOLE: dict[type, tuple[str, ...]] = {  # by type, what a proxy must have of a thing to stand for it
    FunctionType: ("__code__", "__globals__", "__defaults__", "__kwdefaults__", "__closure__"),
    type: ("__mro__",),
}


def _stands_for(proxy: Any, thing: Any) -> bool:
    """Whether an object is a proxy of the thing that has taken its place: of a lazy import that was used. Whoever puts
    the attributes of a function or a class into another object makes no proxy of it."""
    is_module = type(thing) is ModuleType
    names = tuple(vars(thing)) if is_module else WHOLE.get(type(thing), ())
    try:
        if is_module and sys.modules.get(proxy.__name__) is not thing:
            return False
        if not is_module and not _attributes(proxy).keys().isdisjoint(names):
            return False
        return bool(names) and all(getattr(proxy, name) is getattr(thing, name) for name in names)
    except Exception:  # whatever a proxy raises
        return False


def _attributes(thing: object) -> dict[str, object]:
    """What an object itself has; a proxy is not asked."""
    try:
        return dict(object.__getattribute__(thing, "__dict__"))
    except AttributeError:
        return {}
