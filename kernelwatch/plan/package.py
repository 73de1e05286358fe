"""The protocols of a measured package. Any object that has these attributes qualifies.

`Package.load` gives a `Kernel`, `Kernel.bind` gives a `Launch`, and a call of the launch runs it. Compile-time figures
need a `Binary`, and counted accesses need a `CudaSource`; a package without them has no such series.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from kernelwatch.plan.problem import Array


class Absent(Exception):
    """The measured commit has no such rung, or no such type of it. The cell is n/a, with this message as its reason."""


class NotHere(Exception):
    """This machine cannot measure a cell: it lacks the memory, a compiler, a GPU, or a cache that is large enough."""


@runtime_checkable
class Launch(Protocol):
    """A kernel bound to its operands. On a GPU a call enqueues the work on CuPy's current stream and does not wait for
    it; on a CPU the call returns when the work is done.

    `identity`: a text that changes whenever the code, its flags, its library or the launch could: what has the same
    identity on both sides of a comparison counts as the same binary, and is neither timed nor checked.
    `of_sources`, optional: True if the identity is one of sources, which say nothing of the choices of an autotuner or
    a compiler; the engine then adds what was launched to it.
    `returns`, optional: True if a call returns its outputs and leaves `out` alone.
    """

    @property
    def identity(self) -> str: ...

    def __call__(self) -> object: ...


@runtime_checkable
class Kernel(Protocol):
    """A loaded rung. `bind` takes the inputs in the order of the problem, its scalars by name, and `out`, the array to
    overwrite (a tuple of arrays if the problem has several outputs). It returns a Launch and runs nothing."""

    def bind(self, *inputs: Array, out: Array | tuple[Array, ...], **scalars: Any) -> Launch: ...


@dataclass(frozen=True)
class Parts:
    """What one rung of one tree is made from, as far as that can be told without running it.

    `launch`: what decides how it is launched, as text, besides the files.
    `sources`: the files that it is made from; what they include is found.
    `others`: files that `launch` accounts for, so that an edit of them need not concern this rung.
    `whole`: whether that is all it is made from, but for files that are no Python source: it may read any of those,
    unless `data` is False.
    """

    launch: str
    sources: frozenset[Path] = frozenset()
    others: frozenset[Path] = frozenset()
    whole: bool = True
    data: bool = True


@dataclass(frozen=True)
class Binary:
    """A compiled kernel and its launch. `path`: the cubin; `symbol`: the kernel's mangled name in it;
    `block_threads`: threads of a block; `dynamic_shared_bytes`: dynamic shared memory of a block."""

    path: Path
    symbol: str
    block_threads: int
    dynamic_shared_bytes: int


Extents = Mapping[str, int]


@dataclass(frozen=True)
class CudaSource:
    """The source of one kernel, as the emulator compiles and launches it.

    `name`: op/rung, for messages.
    `entry`: the template or function to call; `template`: its template arguments in C++; `headers`: CUDA's own headers
    that these arguments need.
    `types`: the types of the inputs and of the output, as NumPy names them.
    `dims`: the names of the extents, in the order in which the kernel takes them after its operands.
    `inputs`, `output`: the operands' shapes in these names, such as "M K".
    `grid(extents)`: the number of blocks in x, y, z; `block`: the threads of a block in x, y.
    `dynamic_shared_bytes`: dynamic shared memory of a block.
    `loop_step`: the step of the kernel's loop in a dimension that its blocks do not divide, 0 if it is not known.
    `arguments`: needed only if the kernel's arguments are not the operands followed by the extents. Called with the
    compiled library, the operands' addresses, their sizes in bytes and the extents as ctypes values, it returns all
    arguments as ctypes values.
    """

    name: str
    path: Path
    entry: str
    template: tuple[str, ...]
    headers: tuple[str, ...]
    macros: Mapping[str, int]
    types: tuple[str, str]
    dims: tuple[str, ...]
    inputs: tuple[str, ...]
    output: str
    grid: Callable[[Extents], tuple[int, int, int]]
    block: tuple[int, int]
    dynamic_shared_bytes: int = 0
    loop_step: int = 0
    arguments: Callable[[Any, list[int], list[int], list[Any]], list[Any]] | None = None
    standard: str = "c++17"

    def __str__(self) -> str:
        return self.name


class Package(Protocol):
    """The kernels of one commit.

    Every method raises Absent if the commit has no such rung or type, NotHere if this machine lacks something that the
    kernel needs, and any other error if the kernel is at fault. `not_here`: the package's own errors that mean the
    same as NotHere; binding and calling a launch may raise them too.
    """

    @property
    def not_here(self) -> tuple[type[Exception], ...]: ...

    def load(self, op: str, rung: str, type: str) -> Kernel:
        """The compiled kernel for one element type; a CUDA rung is loaded on the current device."""
        ...

    def variants(self, op: str, rung: str, type: str) -> Iterable[Kernel]:
        """The kernel in each configuration in which it can be launched; only the first is timed."""
        ...

    def repeats(self, op: str, rung: str) -> int:
        """How often one launch does the whole work, and writes its output; 1 unless the kernel repeats it."""
        ...

    def binary(self, op: str, rung: str, type: str, arch: str) -> Binary:
        """The kernel compiled for an architecture such as "sm_90". It needs no GPU."""
        ...

    def cuda_source(self, op: str, rung: str, type: str) -> CudaSource:
        """The source of a CUDA rung."""
        ...


@runtime_checkable
class Importing(Protocol):
    """A Package that knows the distributions that its kernels import."""

    def imports(self) -> dict[str, str]:
        """Distribution -> version. An upgrade of one changes the conditions of a group."""
        ...

    def needed(self, rungs: Iterable[tuple[str, str]]) -> list[str]:
        """The top-level modules of others that these rungs, each (op, rung), import."""
        ...


@dataclass(frozen=True)
class ModulePackage:
    """A package without an adapter of its own: a module with `load(op, rung, type)`, and optionally `repeats`, `binary`
    and `cuda_source` as in Package. They raise LookupError if there is no such rung or type."""

    module: ModuleType
    not_here: tuple[type[Exception], ...] = ()

    def _call(self, name: str, *arguments: str) -> Any:
        function = getattr(self.module, name, None)
        if function is None:
            raise NotHere(f"{self.module.__name__} has no {name}(){' and no table KERNELS' if name == 'load' else ''}")
        try:
            return function(*arguments)
        except LookupError as error:
            raise Absent(f"this commit has no {'/'.join(arguments[:2])} {' '.join(arguments[2:])}: {error}") from error

    def load(self, op: str, rung: str, type: str) -> Kernel:
        kernel: Kernel = self._call("load", op, rung, type)
        return kernel

    def variants(self, op: str, rung: str, type: str) -> Iterable[Kernel]:
        return [self.load(op, rung, type)]

    def repeats(self, op: str, rung: str) -> int:
        return int(self._call("repeats", op, rung)) if hasattr(self.module, "repeats") else 1

    def binary(self, op: str, rung: str, type: str, arch: str) -> Binary:
        binary: Binary = self._call("binary", op, rung, type, arch)
        return binary

    def cuda_source(self, op: str, rung: str, type: str) -> CudaSource:
        source: CudaSource = self._call("cuda_source", op, rung, type)
        return source
