"""Whether a candidate has changed what times, compares or counts: the functions of this process, the GPU's L2 cache; or
what it is compared with: the modules of the original and of what makes the arguments.
Also whether it left a thread at work, which may launch on a GPU what the timing does not see.

A candidate runs in the process that measures it. Nothing here stops code that knows this engine: it could undo a change
before anybody looks. What is published so far does not.
"""

import re
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from kernelwatch.api.result import MeasureError

# What tells the time, makes a figure of samples, compares arrays, or runs what was enqueued.
MODULES = (
    *("time", "timeit", "statistics", "math", "itertools", "secrets", "gc", "numpy", "numpy.lib.stride_tricks"),
    *("cupy", "cupy.cuda", "cupy_backends.cuda.api.runtime", "torch.cuda", "torch.cuda.graphs", "pynvml"),
)
CLASSES = ("torch.Tensor", "torch.cuda.Event", "torch.cuda.Stream", "torch.cuda.CUDAGraph")
OWN = "kernelwatch."
PERSISTING_L2 = 6  # cudaLimitPersistingL2CacheSize
SETTERS = re.compile(r"nvml\w*(Set|Reset|Clear|Create|Destroy)[A-Z]\w*")


class Untouched:
    """What there was before a candidate was imported. `why` says what it changed since."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.functions = dict(_functions())
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
        """While the original is called: what that binds anew in modules of users, such as a kernel that is compiled
        when it is first needed, is no candidate's doing."""
        before = dict(_of_users())
        yield
        now = dict(_of_users())
        for key, parts in before.items():
            if key in self.functions and _same(self.functions[key], parts):
                self.functions[key] = now.get(key, ())

    def why(self) -> str:
        """What was changed, "" if nothing was."""
        if self.refused:
            return f"it calls {self.refused[0]}: the settings of a GPU are no candidate's to change"
        now = dict(_functions())
        changed = [key for key, before in self.functions.items() if not _same(before, now.get(key, ()))]
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
        if self.device != "gpu":
            return None
        import cupy  # type: ignore[import-not-found,unused-ignore]

        try:
            return int(cupy.cuda.runtime.deviceGetLimit(PERSISTING_L2))
        except Exception:  # before the Ampere generation, an older runtime, or after an error of the candidate's
            return None

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


STANDARD = sysconfig.get_paths()["stdlib"]
ENGINE = str(Path(__file__).parent.parent)


def _installed(file: str) -> bool:
    """Whether a file of Python belongs to Python, to an installed distribution or to this engine."""
    parts = Path(file).parts
    return file.startswith(("<frozen ", STANDARD, ENGINE)) or "site-packages" in parts or "dist-packages" in parts


_WATCHING: list[list[str]] = []
_HOOKED: list[bool] = []


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Raises: MeasureError if a candidate looks up a function of NVML that changes a setting, by whatever binding."""
    if event == "ctypes.dlsym" and _WATCHING:
        name = str(arguments[1])
        if SETTERS.fullmatch(name):
            _WATCHING[-1].append(name)
            raise MeasureError(f"{name} is refused while candidates are measured")


def _functions() -> Iterator[tuple[tuple[str, str], tuple[object, ...]]]:
    """What each name of the modules and classes stands for."""
    for module, content in [*sys.modules.items()]:
        if _is_used(module):
            yield from _of(module, content)
    yield from _of_users()
    for path in CLASSES:
        owner: Any = sys.modules.get(path.partition(".")[0])
        for part in path.split(".")[1:]:
            owner = getattr(owner, part, None)
        if isinstance(owner, type):
            yield from _of(path, owner)


def _is_used(module: str) -> bool:
    """Whether the engine itself uses a module."""
    return module in MODULES or module.startswith(OWN)


def _of_users() -> Iterator[tuple[tuple[str, str], tuple[object, ...]]]:
    """The same of the modules of no installed distribution, such as the original's."""
    for module, content in [*sys.modules.items()]:
        # One of a class of its own may be imported only now that it is looked at.
        file = vars(content).get("__file__") if type(content) is ModuleType else None
        if file and not _is_used(module) and not _installed(file):
            yield from _of(module, content)


def _of(name: str, owner: ModuleType | type) -> Iterator[tuple[tuple[str, str], tuple[object, ...]]]:
    for attribute, value in [*vars(owner).items()]:
        if callable(value) or isinstance(value, staticmethod | classmethod | property | ModuleType):
            yield (name, attribute), _parts(value)
        if isinstance(value, type) and isinstance(owner, ModuleType) and value.__module__ == name:
            yield from _of(f"{name}.{attribute}", value)


def _parts(value: object) -> tuple[object, ...]:
    """A function and what can be replaced within it; anything else by itself."""
    return (value, value.__code__, value.__defaults__) if isinstance(value, FunctionType) else (value,)


def _same(before: tuple[object, ...], now: tuple[object, ...]) -> bool:
    return len(before) == len(now) and all(a is b for a, b in zip(before, now, strict=True))
