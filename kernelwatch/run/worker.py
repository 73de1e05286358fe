"""Measures cells in a fresh process. This script reads lines of JSON from stdin, and writes events as JSON.

It imports the modules of each line that is a list, until a line is its job.
The events are {"event": "waiting", "who", "device"} as long as another run holds the GPU or CPU; {"event": "start",
"facts"}; for each cell {"event": "begin", "key"} and {"event": "cell", "key", "state": "ok" | "na" | "failed",
"measurement" | "reason"}, and both once more for each further take, with the measurement that counts from then on;
{"event": "modules", "modules"} after those have been imported, which other processes may want early; and
{"event": "end"}. If this machine can measure nothing at all, the only event is {"event": "unavailable", "reason"}; if
the measured package cannot be imported, it is {"event": "broken", "reason"}. If the process dies, the cell of the last
"begin" is the one that it was measuring.
"""

import importlib
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from kernelwatch.plan.cells import Cell
    from kernelwatch.plan.devices import Device
    from kernelwatch.plan.package import Package
    from kernelwatch.plan.project import Project
    from kernelwatch.timing.record import Facts, Measurement

PLACES = ("site-packages", "dist-packages")  # folders of installed distributions
MANY_MODULES = 50  # at once, as of a library such as PyTorch: then what exists is kept, which is seldom
# A measured package may import these at its top; where one is missing, that is this machine's reason, not the commit's.
OPTIONAL = ("cupy", "cupyx", "cuda", "cutlass", "jax", "numba", "pycuda", "torch", "triton")


if TYPE_CHECKING:
    from typing import Protocol

    class Measurer(Protocol):
        """Measures cells. `measure` raises WrongOutput, NotHere, Absent, or the error of a faulty kernel."""

        def facts(self) -> Facts: ...

        def measure(self, cell: Cell) -> Measurement: ...

    class TakesFurther(Measurer, Protocol):
        """Has further takes of some cells after others: of those that `due` gives, as soon as it gives them.
        `take_further` returns the whole measurement, and raises what `measure` raises."""

        def due(self, last: bool) -> Iterator[Cell]: ...

        def take_further(self) -> Measurement: ...


def _import_engine() -> None:
    """Import the engine from this file's folder. The checkout is not put on the path, since it holds another version of
    the measured package."""
    here = Path(__file__).resolve().parent.parent
    spec = importlib.util.spec_from_file_location(
        "kernelwatch", here / "__init__.py", submodule_search_locations=[str(here)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernelwatch"] = module
    spec.loader.exec_module(module)


def _die_with_parent() -> None:
    """Leave as soon as stdin closes: a parent that was killed cannot leave a process behind that holds the GPU."""

    def watch() -> None:
        while os.read(0, 4096):  # not through sys.stdin, whose lock would abort the interpreter at its normal end
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _emit(stream: TextIO, **event: object) -> None:
    stream.write(json.dumps(event, allow_nan=False) + "\n")
    stream.flush()


class _Imports:
    """The modules of other distributions that this process imports. `own`: the measured package."""

    def __init__(self, own: str) -> None:
        self._own = (own, "kernelwatch")
        self._known: set[str] = set()

    def new(self) -> list[str]:
        """Those since the last call, in the order of their import."""
        names = [name for name in sys.modules if name not in self._known]
        self._known.update(names)
        return [name for name in names if name.partition(".")[0] not in self._own and _installed(sys.modules[name])]


def _installed(module: object) -> bool:
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    return isinstance(origin, str) and any(part in PLACES for part in Path(origin).parts)


def _import_early(modules: list[str]) -> None:
    from kernelwatch.system import garbage

    for name in modules:
        with suppress(Exception, SystemExit):  # the job imports what it needs, and reports what fails
            importlib.import_module(name)
    garbage.keep()


def _device(described: "Device", *arguments: object) -> "Measurer":
    module, _, kind = described.measures.partition(":")
    device: Measurer = getattr(importlib.import_module(module), kind)(*arguments)
    return device


def run(job: dict[str, Any], out: TextIO) -> None:
    """Measure the job's cells in order, and write events to `out`. Raises: UserError if the project does not load."""
    from kernelwatch.plan.cells import Cell
    from kernelwatch.plan.devices import Budget
    from kernelwatch.plan.package import Absent, Importing, NotHere
    from kernelwatch.plan.project import import_package, load_from
    from kernelwatch.plan.tree import BROKEN

    project = load_from(Path(job["project"]))
    cells = [Cell.from_json(values) for values in job["cells"]]
    tree, described = job["tree"], project.devices[job["device"]]
    try:
        if not tree:
            raise Absent(f"this commit has no package {project.package} to measure")
        if (broken := Path(tree, BROKEN)).is_file():
            _emit(out, event="broken", reason=broken.read_text(encoding="utf-8"))
            return
        if os.path.isdir(tree):
            os.chdir(tree)  # a path relative to the working folder is not one of the checkout
        _prepare(described)
        if described.name == "identified":  # its processes import the package
            device = _device(described, project, tree)
            _measure(device, described, cells, project, None, out, _Imports(project.package))
            _emit(out, event="end")
            return
        package = import_package(project, tree)
    except (Absent, NotHere) as error:
        _emit(out, event="unavailable", reason=str(error))
        return
    except _Lost as error:
        _emit(out, event="lost", reason=str(error))
        return
    except Exception as error:
        missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if missing in OPTIONAL and not _in_tree(missing):
            _emit(out, event="unavailable", reason=f"{project.package} needs {missing}, which is not installed here")
        else:
            _emit(out, event="broken", reason=f"{project.module} cannot be imported: {_told(error)}")
        return
    if job["early"] and isinstance(package, Importing):  # before other runs have to wait for this process
        _import_early(package.needed({(cell.op, cell.rung) for cell in cells}))
    with _alone(described, job, out):
        try:
            device = _device(described, project, package, cells, Budget(**job["budget"]), job["seed"])
        except Exception as error:
            if not (why := _lost(described)):
                raise
            _emit(out, event="lost", reason=f"{type(error).__name__}: {error}; {why}")
            return
        _measure(device, described, cells, project, package, out, _Imports(project.package))
    _emit(out, event="end")


class _Lost(Exception):
    """A GPU has fallen off the bus; the message says which."""


def _lost(described: "Device") -> str:
    """Which GPU has fallen off the bus, "" if none has, or if this device needs none."""
    if not described.on_gpu:
        return ""
    from kernelwatch.timing import nvml

    return nvml.lost()


def _prepare(described: "Device") -> None:
    """What a device needs before the measured package is imported, which may load modules. Raises: NotHere, _Lost."""
    from kernelwatch.plan.package import NotHere

    if described.name == "launched":
        from kernelwatch.analysis import cupti

        cupti.subscribe()
    if described.on_gpu:
        try:
            import cupy

            cupy.cuda.runtime.getDevice()
        except Exception as error:
            from kernelwatch.system.machine import no_gpu

            if why := _lost(described):
                raise _Lost(f"{type(error).__name__}: {error}; {why}") from None
            raise NotHere(f"no GPU here: {no_gpu(error)}") from None


def _told(error: Exception) -> str:
    """An error of the measured code, and what it tried to import from outside of its tree."""
    from kernelwatch.plan import tree

    guard = tree.guard()
    refused = guard.refused() if guard and isinstance(error, ImportError) else ""
    return "; ".join(filter(None, (f"{type(error).__name__}: {error}", refused)))


def _in_tree(module: str) -> bool:
    from kernelwatch.plan import tree

    guard = tree.guard()
    return guard is not None and guard.places.source(module.partition(".")[0]) is not None


def _check_strays() -> None:
    """Raises: RuntimeError if this process used files of the repository that are not of the measured tree."""
    from kernelwatch.plan import tree

    guard = tree.guard()
    if strays := guard.strays() if guard else []:
        assert guard is not None
        more = f" and {len(strays) - 1} more files" if len(strays) > 1 else ""
        raise RuntimeError(
            f"it used {strays[0]}{more}, which is not in the tree that is measured, {guard.places.folder}: import "
            "everything from the tree, by paths relative to its own files"
        )


@contextmanager
def _alone(described: "Device", job: dict[str, Any], out: TextIO) -> Iterator[None]:
    """Hold the locks of the GPUs or the CPU that are timed, and wait for other runs of this engine from any checkout;
    nothing if no time is measured, or if the caller holds them."""
    from kernelwatch.system.holding import CPU, holding

    device, names = "CPU", [CPU] if described.holds == "CPU" and job["cells"] else []
    if described.on_gpu and job["alone"]:
        import cupy

        cards = [cupy.cuda.Device()]
        if described.holds == "GPUs":
            cards = [cupy.cuda.Device(at) for at in range(cupy.cuda.runtime.getDeviceCount())]
        device = "GPU"
        names = sorted(card.pci_bus_id for card in cards)  # in one order for all, or two runs wait for each other
    with ExitStack() as locks:
        for name in names:
            locks.enter_context(holding(name, lambda who: _emit(out, event="waiting", who=who, device=device)))
        yield


def _turns(device: "Measurer", cells: "list[Cell]") -> "Iterator[tuple[Cell, Callable[[], Measurement]]]":
    """Each cell with what measures it. After a cell come those that have a further take then."""
    for at, cell in enumerate(cells, 1):
        yield cell, partial(device.measure, cell)
        if hasattr(device, "take_further"):
            further = cast("TakesFurther", device)
            yield from ((due, further.take_further) for due in further.due(last=at == len(cells)))


def _measure(
    device: "Measurer",
    described: "Device",
    cells: "list[Cell]",
    project: "Project",
    package: "Package | None",
    out: TextIO,
    imports: _Imports,
) -> None:
    """Measure cells in order, with further takes of some in between. After a CUDA error the process ends, and the next
    cell gets a fresh one."""
    from kernelwatch.identity import TIMED
    from kernelwatch.plan.package import Absent, Importing, NotHere
    from kernelwatch.plan.project import lacking
    from kernelwatch.system import garbage
    from kernelwatch.system.errors import ToolMissing

    not_here: tuple[type[Exception], ...] = (Absent, NotHere, ToolMissing, *(package.not_here if package else ()))
    versions: Facts = {"imports": package.imports()} if isinstance(package, Importing) else {}
    _emit(out, event="start", facts={TIMED.fact: TIMED.version, **device.facts(), **versions})
    for cell, measured in _turns(device, cells):
        if modules := imports.new():
            _emit(out, event="modules", modules=modules)
            if len(modules) >= MANY_MODULES:
                garbage.keep()
        _emit(out, event="begin", key=cell.key)
        try:
            measurement = measured()
            _check_strays()
            _emit(out, event="cell", key=cell.key, state="ok", measurement=measurement)
        except not_here as error:
            _emit(out, event="cell", key=cell.key, state="na", reason=str(error))
        except Exception as error:
            if lacks := lacking(project, error):
                _emit(out, event="cell", key=cell.key, state="na", reason=lacks)
                continue
            reason = _told(error)
            is_cuda = "CUDA" in reason  # in the name of CuPy's error, in the text of PyTorch's and Triton's
            if is_cuda and (why := _lost(described)):
                reason = f"{reason}; {why}"
            _emit(out, event="cell", key=cell.key, state="failed", reason=reason)
            if is_cuda:
                os._exit(3)  # the CUDA context may be lost, and with it everything on the GPU


if __name__ == "__main__":
    _import_engine()
    for line in sys.stdin:
        job = json.loads(line)
        if isinstance(job, dict):
            break
        _import_early(job)
    else:
        sys.exit()
    _die_with_parent()
    # Events get a stream of their own; other output to stdout, even a C library's, goes to stderr.
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run(job, events)
    events.close()
    os._exit(0)  # a daemon thread still reads stdin
