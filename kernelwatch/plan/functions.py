"""A measured package whose rungs are plain functions, in a table: KERNELS = {op: {rung: function}}.

A function takes the inputs, `out=` (a tuple of arrays if the problem has several outputs) and the problem's scalars by
name, and overwrites `out`. One without a parameter `out` returns its output, a new array, or a tuple of them. On a GPU
the arrays are CuPy's, which offer DLPack and __cuda_array_interface__, and it enqueues on the current stream, which
CuPy and PyTorch know; a function with a parameter `stream` gets it, as an object with __cuda_stream__ (with NumPy's
arrays only if the parameter has no default). An entry may also be the text "module:function", whose module is imported
only when the rung is measured.

The identity of a launch covers the function's module, all modules of the tree that it imports, directly or not, every
file of the tree that is no Python source, and the versions of the distributions that these modules import. If it cannot
be told what a function depends on, it covers all modules of the tree.
"""

import hashlib
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from kernelwatch.plan import sources, tree
from kernelwatch.plan.package import Absent, Binary, Kernel, Launch, ModulePackage, NotHere, Package, Parts
from kernelwatch.plan.problem import Array
from kernelwatch.plan.sources import Sources
from kernelwatch.plan.tree import Places
from kernelwatch.system import cache, installed, tools

TABLE = "KERNELS"
BINARIES = "BINARIES"
INSTEAD = ("load", "binary", "repeats", "cuda_source", "__getattr__")  # what a package may have in place of a table


@dataclass(frozen=True)
class _Launch:
    """`of_sources`: the identity says nothing of what a launch then runs, such as the choice of an autotuner."""

    call: Callable[[], object]
    identity: str
    of_sources: bool = True
    returns: bool = False

    def __call__(self) -> object:
        return self.call()


@dataclass(frozen=True)
class _Function:
    function: Callable[..., object]
    identity: str

    def bind(self, *inputs: Array, out: Array | tuple[Array, ...], **scalars: Any) -> Launch:
        outs = out if isinstance(out, tuple) else (out,)
        fills = _takes_out(self.function)
        call = partial(self.function, *inputs, **({"out": out} if fills else {}), **scalars)
        returns = not fills and outs != ()
        on_host = _on_host((*outs, *inputs)[0])
        if "stream" not in scalars and _takes_stream(self.function, on_host):
            return _Launch(lambda: call(stream=_stream()), self.identity, returns=returns)
        return _Launch(call, self.identity, returns=returns)


@dataclass(frozen=True)
class FunctionPackage(ModulePackage):
    """A package with a table of functions; it may also have a table BINARIES, whose functions take a type and an
    architecture and return a Binary, and `repeats`, `binary` and `cuda_source` as in Package. `first`: what an identity
    calls a rung ("op/rung"), which outlives a renaming."""

    first: Callable[[str], str] = str

    def load(self, op: str, rung: str, type: str) -> Kernel:
        """Raises: Absent; TypeError if the table or this entry is not as it should be; what the import raises."""
        entry = self._entry(TABLE, op, rung)
        if "torch" in self._sources(entry).others:
            with suppress(ImportError):  # the function's own import says it
                importlib.import_module("torch")  # now, so that its current stream is set before the first launch
        return _Function(self._function(TABLE, op, rung, entry), self._identity(op, rung, entry))

    def binary(self, op: str, rung: str, type: str, arch: str) -> Binary:
        """By the table BINARIES. Raises: as `load`; NotHere if there is no such table, or if another package that the
        function imports, such as a compiler, is not installed; what the function raises."""
        if not hasattr(self.module, BINARIES):
            return super().binary(op, rung, type, arch)
        try:
            binary: Binary = self._function(BINARIES, op, rung, self._entry(BINARIES, op, rung))(type, arch)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == self.module.__name__:
                raise
            raise NotHere(f"{op}/{rung} cannot be compiled here: {error}") from error
        return binary

    def imports(self) -> dict[str, str]:
        """Distribution -> version, of all that the rungs of the table import, and of the assemblers that Triton calls;
        {} if it is no such table."""
        table = getattr(self.module, TABLE)
        ops = [rungs for rungs in table.values() if isinstance(rungs, Mapping)] if isinstance(table, Mapping) else []
        others = {name for rungs in ops for entry in rungs.values() for name in self._sources(entry).others}
        return installed.behind(others) | (tools.ptxas_of_triton() if "triton" in others else {})

    def needed(self, rungs: Iterable[tuple[str, str]]) -> list[str]:
        """The modules of others that these rungs certainly import. An entry that is not as it should be has none, nor
        one of which that cannot be told: any module of the tree may import what this rung never loads."""
        found: set[str] = set()
        for op, rung in rungs:
            with suppress(Absent, TypeError):
                told = self._sources(self._entry(TABLE, op, rung))
                found |= told.others if told.complete else set()
        return sorted(found)

    @property
    def _places(self) -> Places:
        """Where the modules of the measured tree lie; without a tree, beside the module."""
        known = tree.guard()
        if known and (known.places.source(self.module.__name__) or known.places.description):
            return known.places
        folder = Path(next(iter(getattr(self.module, "__path__", [])), "") or self.module.__file__ or "").parent
        return Places(folder, (folder,))

    def _named(self, table: str, *keys: str) -> str:
        return f"{self.module.__name__}.{table}" + "".join(f'["{key}"]' for key in keys)

    def _entry(self, name: str, op: str, rung: str) -> Any:
        """An entry of a table. Raises: Absent; TypeError if it is no such table."""
        table = getattr(self.module, name)
        if not isinstance(table, Mapping):
            raise TypeError(f"{self._named(name)} must be a table {{op: {{rung: function}}}}; it is {table!r}")
        rungs = table.get(op, {})
        if not isinstance(rungs, Mapping):
            raise TypeError(f"{self._named(name, op)} must be a table {{rung: function}}; it is {rungs!r}")
        if rung not in rungs:
            raise Absent(f"this commit has no {op}/{rung}: {self._named(name)} does not list it")
        return rungs[rung]

    def _function(self, table: str, op: str, rung: str, entry: object) -> Callable[..., Any]:
        """The function of an entry. Raises: TypeError if it has none; what the import of its module raises."""
        if callable(entry):
            return entry
        where = self._named(table, op, rung)
        module, _, name = entry.partition(":") if isinstance(entry, str) else ("", "", "")
        if not (module and name):
            raise TypeError(f'{where} must be a function or a text "module:function"; it is {entry!r}')
        function: Callable[..., Any] = attrgetter(name)(importlib.import_module(module))
        if not callable(function):
            raise TypeError(f"{where} names {entry}, which must be a function; it is {function!r}")
        return function

    def _sources(self, entry: object) -> Sources:
        """What an entry of the table depends on; all modules of the tree if that cannot be told."""
        module = entry.partition(":")[0] if isinstance(entry, str) else _home(entry)
        if (known := tree.guard()) and known.asks:
            return Sources(frozenset(), frozenset(), False)
        with tree.unwatched():
            places = self._places
            table = places.source(self.module.__name__)

            def look() -> dict[str, Any]:
                found = sources.reached_by(places, module, frozenset({table} if table else ()))
                read = found.files | sources.named(places, {*found.files, *([table] if table else [])})
                files = sorted(os.path.relpath(path, places.folder) for path in read)
                return {"files": files, "others": sorted(found.others), "complete": found.complete}

            told = _kept(places, ("sources", self.module.__name__, module), look)
        files = frozenset(Path(os.path.normpath(places.folder / name)) for name in told["files"])
        return Sources(files, frozenset(told["others"]), told["complete"])

    def _identity(self, op: str, rung: str, entry: object) -> str:
        if (known := tree.guard()) and known.asks:  # who asks what a rung reads must not see what this would read
            return ""
        found, places = self._sources(entry), self._places
        what = f"{self.first(f'{op}/{rung}')} {entry if isinstance(entry, str) else _place(entry)}"
        versions = repr(sorted(installed.behind(found.others).items()))

        def read() -> dict[str, Any]:
            digest = hashlib.sha256(what.encode())
            if table := places.source(self.module.__name__):
                digest.update(sources.besides(table, (TABLE, BINARIES)).encode())
            for path in sorted({*found.files, *sources.data(places)}):
                digest.update(os.fsencode(places.name(path)) + f"\0{sources.digest(path)}\0".encode())
            digest.update(versions.encode())
            return {"identity": digest.hexdigest()[:16]}

        with tree.unwatched():
            # Files that are no module and are named by one are not in the state of the tree.
            aside = [sources.digest(path) for path in sorted(found.files) if path.suffix != ".py"]
            return str(_kept(places, ("identity", self.module.__name__, what, versions, *aside), read)["identity"])


def _kept(places: Places, what: tuple[str, ...], read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `read` tells of a tree, kept on disk: to read a large package takes seconds, and each process would."""
    key = hashlib.sha256(json.dumps([state(places), *what]).encode()).hexdigest()
    known = cache.noted(key, ".sources")
    if known is None:
        known = read()
        cache.note(key, ".sources", known)
    return known


@lru_cache(maxsize=16)
def state(places: Places) -> list[Any]:
    """All that what is read of a tree follows from: the files of the tree and of the description beside it, where the
    modules lie, and the code that reads them."""
    code = [cache.digest(Path(module.__file__ or "")) for module in (sources, tree, sys.modules[__name__])]
    beside = sorted(places.description.rglob("*.py")) if places.description else []
    described = [(os.path.relpath(path, places.folder), cache.digest(path)) for path in beside]
    folders = [*places.roots, *(folder for _, folder in places.renamed), *places.apart]
    layout = [os.path.relpath(folder, places.folder) for folder in folders]
    aside = [places.name(path) for path in sorted(places.aside())]
    return [code, places.content(), described, layout, [name for name, _ in places.renamed], aside]


def adapt(module: ModuleType) -> Package:
    """The package of a module with `load`, or with a table of functions."""
    return FunctionPackage(module) if hasattr(module, TABLE) and not hasattr(module, "load") else ModulePackage(module)


def parts_of_table(places: Places, module: str) -> dict[str, Parts]:
    """What each rung of a module's table KERNELS is made from, and compiled by (BINARIES), by "op/rung".

    It is read from the sources of a tree; {} if they do not tell all of both tables. What a rung is made from is not
    known, and has no files, if its function is made by a call, or if a module imports others by computed names.
    """
    source = places.source(module)
    if source is None:
        return {}
    kernels, binaries = (sources.table(source, module, name, INSTEAD) for name in (TABLE, BINARIES))
    found: dict[str, Parts] = {}
    if kernels is None or binaries is None:
        return found
    beside = sources.besides(source, (TABLE, BINARIES))  # code of the table's module that runs for every rung
    for rung, entry in kernels.items():
        entries = [entry, *filter(None, [binaries.get(rung)])]
        homes = [home for _, home in entries] + [module] * bool(beside)
        reached = [sources.reached_by(places, home, frozenset({source})) for home in homes]
        known = all(home and each.complete for home, each in zip(homes, reached, strict=True))
        files = {path for each in reached for path in each.files} if known else set()
        files |= sources.named(places, {*files, source}) if known else set()
        launch = " ".join([*(f"{text} of {home}" for text, home in entries), beside])
        found[rung] = Parts(launch, frozenset(files - {source}), frozenset({source}), known)
    return found


def _takes_stream(function: Callable[..., object], on_host: bool) -> bool:
    """Whether a function is given the stream. One for both devices has a default, which it keeps with arrays of the
    host."""
    try:
        parameter = inspect.signature(function).parameters.get("stream")
    except (TypeError, ValueError):  # a callable of a C extension may have no signature
        return False
    return parameter is not None and not (on_host and parameter.default is not parameter.empty)


def _takes_out(function: Callable[..., object]) -> bool:
    """Whether a function is given the arrays to overwrite; if not, it returns its results."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a C extension, as NumPy's own functions, which take it
        return True
    return "out" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def _on_host(array: Any) -> bool:
    """Whether an array is NumPy's, or a tensor of PyTorch in the host's memory."""
    return isinstance(array, np.ndarray) or getattr(array, "is_cuda", None) is False


def _stream() -> Any:
    """CuPy's current stream."""
    import cupy

    return cupy.cuda.get_current_stream()


def _place(function: object) -> str:
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"


def _home(function: object) -> str:
    """The module whose source says all about a function: the one that defines it at its top level. "" if there is none:
    a function that another one made depends on what it was given."""
    module, _, name = _place(function).partition(":")
    return module if name and getattr(sys.modules.get(module), name, None) is function else ""
