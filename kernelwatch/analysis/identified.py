"""What decides a launch: the files of a tree that a rung's process loads or reads, and the binaries that it launches.

Each rung gets a process of its own, a fork of the worker, which imports the measured package, launches the rung once
for each of its types at each of its shapes, the smallest first, and says what it has used. Nothing is timed.
"""

import ctypes
import json
import os
import selectors
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kernelwatch.analysis import existence, inotify
from kernelwatch.plan import sources, tree
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.functions import BINARIES, TABLE
from kernelwatch.plan.package import Absent, Launch, NotHere, Package
from kernelwatch.plan.problem import label
from kernelwatch.plan.project import Project, import_package, lacking
from kernelwatch.system.cache import CACHES
from kernelwatch.system.holding import holding
from kernelwatch.timing.check import GUARD_BYTES, packages
from kernelwatch.timing.record import Facts, Measurement

DEVICE = "identified"
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
LAUNCHING_S = 30.0  # for all types and shapes of a rung after the first; the others are left out
DIED = 70  # the exit code of a process that could not say anything
ABSENT = "absent"  # the identity of a launch that a commit does not have


def place(cell: Cell) -> str:
    """A type and a shape of a rung, such as "float32 64x64"."""
    return f"{cell.type} {label(cell.shape)}"


def cells_of(project: Project, rung: str) -> list[Cell]:
    """A rung ("op/rung") with each of its types at each shape at which a suite times it on one device, the smallest
    first; [] if no suite does."""
    op, _, name = rung.partition("/")
    problem = project.ops.get(op)
    declared = {each.name: each for each in problem.rungs} if problem else {}
    if problem is None or name not in declared:
        return []
    own = declared[name]
    timed = {cell.shape: cell for cell in plan(problem, own.device) if cell.rung == name}
    cells = [
        Cell(op, name, type, shape, "hot", own.device, repeats=cell.repeats, threads=cell.threads)
        for shape, cell in timed.items()
        for type in own.types
        if problem.takes(own, shape, type)
    ]
    return sorted(cells, key=lambda cell: problem.bytes_moved(name, cell.type, cell.shape))


class Identifier:
    """The device of a worker that asks what rungs are made from. `folder`: the tree."""

    def __init__(self, project: Project, folder: str, *_: object) -> None:
        self.project = project
        self.folder = folder

    def facts(self) -> Facts:
        return {"packages": packages(self.project.conditions)}

    def measure(self, cell: Cell) -> Measurement:
        """The files that the rung of a cell used, each with a digest of what counts of it, and the identity of its
        launch for each of its types and shapes.

        "skipped" has the types and shapes that were not launched, with the reasons. "error" says why there was no
        launch; the files are then those that were used until then.
        """
        read, write = os.pipe()
        watch = inotify.Watch(Path(self.folder))
        with tempfile.TemporaryDirectory() as cold:
            child = os.fork()
            if child == 0:
                os.close(read)
                # What a cache of compiled kernels already has would be compiled from sources that nobody reads.
                os.environ.update({name: os.path.join(cold, place) for name, place in CACHES.items()})
                _child(self.project, self.folder, cell, write)
            os.close(write)
            answer = self._answer(cell, child, read)
        opened = watch.opened()
        # What C code and other processes opened, such as a program in Python that makes sources.
        places = self.project.places(self.folder)
        own = {Path(self.folder, name) for name in ("pyproject.toml", "setup.cfg")}  # which the engine itself reads
        opened = {path for path in opened - own if "__pycache__" not in path.parts}
        others = sorted(path for path in opened if path.is_file())
        answer["files"] |= {places.name(path): sources.digest(path) for path in (*others, *places.included(others))}
        return answer

    def _answer(self, cell: Cell, child: int, read: int) -> Measurement:
        """What the process of a rung tells until it ends, or until it has had LAUNCHING_S after its first launch."""
        answer: Measurement = {"identities": {}, "skipped": {}, "files": {}, "absent": False, "error": ""}
        why = ""
        for event in _events(read, LAUNCHING_S):
            if event is None:
                why = f"not launched within {LAUNCHING_S:g} s"
                os.kill(child, signal.SIGKILL)
                break
            answer["identities"] |= event.pop("identities", {})
            answer["skipped"] |= event.pop("skipped", {})
            answer |= event  # type: ignore[typeddict-item]
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code and not why:
            why = f"its process died ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"
        if why:
            known = answer["identities"].keys() | answer["skipped"].keys()
            answer["skipped"] |= {
                place(each): why for each in cells_of(self.project, cell.name) if place(each) not in known
            }
        if not answer["identities"] and not answer["error"]:
            answer["error"] = next(iter(answer["skipped"].values()), why)
        answer["absent"] = answer["absent"] or set(answer["identities"].values()) == {ABSENT}
        return answer


def _events(pipe: int, limit_s: float) -> Iterator[dict[str, Any] | None]:
    """The lines of JSON that a process writes; None as soon as `limit_s` have passed since the first one."""
    text, end = b"", None
    with os.fdopen(pipe, "rb", buffering=0) as stream, selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            left = None if end is None else end - time.monotonic()
            if left is not None and (left <= 0 or not selector.select(left)):
                yield None
                return
            chunk = stream.read(1 << 16)
            if not chunk:
                return
            *lines, text = (text + chunk).split(b"\n")
            yield from map(json.loads, lines)
            if lines and end is None:
                end = time.monotonic() + limit_s


def _child(project: Project, folder: str, cell: Cell, write: int) -> None:
    """Launch a rung and write what it used to a pipe; ends this process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # an endless kernel ends with the worker
    os.dup2(2, 1)
    asked = existence.Asked(Path(folder))

    def tell(**event: object) -> None:
        os.write(write, json.dumps(event).encode() + b"\n")

    try:
        try:
            package = import_package(project, folder)
            if guard := tree.guard():
                guard.asks = True
            _launch_all(project, package, cells_of(project, cell.name), tell)
        except Absent as error:
            tell(absent=True, error=str(error))
        except BaseException as error:
            if not isinstance(error, Exception):
                traceback.print_exc()
            tell(absent=bool(isinstance(error, Exception) and lacking(project, error)), error=_told(error))
        tell(files={**asked.files, **_digests(project)})
    except BaseException:
        traceback.print_exc()
        os._exit(DIED)
    finally:
        with suppress(OSError):
            sys.stderr.flush()
    os._exit(0)


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, NotHere) else f"{type(error).__name__}: {error}"


def _launch_all(project: Project, package: Package, cells: list[Cell], tell: Callable[..., None]) -> None:
    """Launch a rung once for each of its cells. Raises: what the first of them raises if the commit lacks the rung."""
    with _launcher(project, package, cells) as launched:
        for cell in cells:
            try:
                launch = launched(cell)
            except Absent:
                tell(identities={place(cell): ABSENT})
            except Exception as error:
                if lacking(project, error):
                    raise
                tell(skipped={place(cell): _told(error)})
            else:
                tell(identities={place(cell): "" if getattr(launch, "of_sources", False) else launch.identity})


@contextmanager
def _launcher(project: Project, package: Package, cells: list[Cell]) -> Iterator[Callable[[Cell], Launch]]:
    """What launches a cell once, over memory that all of them share. It raises NotHere if that is too little."""
    from kernelwatch.timing.launch import bind

    def bound(kernel: Any, cell: Cell, device: Any, slot: tuple[list[Any], list[Any]]) -> Launch:
        return bind(kernel, project.ops[cell.op].rung(cell.rung), device._operands_of(cell), *slot)

    def fits(needed: int, there: int) -> None:
        if needed > there:
            raise NotHere(f"it needs {needed >> 20} MiB of memory, which are not free")

    if cells[0].device == "cpu":
        from kernelwatch.timing.cpu import Cpu

        class OnceCpu(Cpu):
            def launch(self, cell: Cell) -> Launch:
                fits(self._arena_bytes(cell) + GUARD_BYTES, self.arena.nbytes)
                kernel = self.package.load(cell.op, cell.rung, cell.type)
                self._fill(cell, 0)
                launch = bound(kernel, cell, self, self._operands(cell, 0))
                launch()
                return launch

        yield OnceCpu(project, package, cells, Budget(1, 0.0), 0).launch
        return

    from kernelwatch.timing.gpu import Gpu
    from kernelwatch.timing.launch import current

    class OnceGpu(Gpu):
        def launch(self, cell: Cell) -> Launch:
            fits(self._arena_bytes(cell) + GUARD_BYTES, self.arena.nbytes)
            kernel = self.package.load(cell.op, cell.rung, cell.type)
            with current(self.stream):
                self._fill(cell)
                launch = bound(kernel, cell, self, self._operands(cell, 0))
                launch()
            self.stream.synchronize()
            return launch

    import cupy

    with holding(cupy.cuda.Device().pci_bus_id, lambda _: None):  # a launch would disturb what another run measures
        yield OnceGpu(project, package, cells, Budget(1, 0.0), 0).launch


def _digests(project: Project) -> Mapping[str, str]:
    guard = tree.guard()
    if guard is None:
        return {}
    table = guard.places.source(project.module)  # whose entries the parts of a rung have
    return {
        guard.places.name(path): sources.digest(path, (TABLE, BINARIES) if path == table else ())
        for path in sorted(guard.used())
    }
