"""What decides a launch: the files of a tree that a rung's process loads or reads, and the binary that it launches.

Each rung gets a process of its own, a fork of the worker, which imports the measured package, launches the rung once at
its smallest shape and says what it has used. Nothing is timed.
"""

import ctypes
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernelwatch.analysis import inotify
from kernelwatch.plan import sources, tree
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.functions import BINARIES, TABLE
from kernelwatch.plan.package import Absent, Launch, Package
from kernelwatch.plan.project import Project, import_package, lacking
from kernelwatch.system.cache import CACHES
from kernelwatch.system.files import gpu_lock, locked
from kernelwatch.system.options import Options
from kernelwatch.timing.check import Budget, packages
from kernelwatch.timing.record import Facts, Measurement

DEVICE = "identified"
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
DIED = 70  # the exit code of a process that could not say anything


class Identifier:
    """The device of a worker that asks what rungs are made from. `folder`: the tree."""

    def __init__(self, project: Project, folder: str, *_: object) -> None:
        self.project = project
        self.folder = folder

    def facts(self) -> Facts:
        return {"packages": packages(self.project.conditions)}

    def measure(self, cell: Cell) -> Measurement:
        """The files that a rung used, each with a digest of what counts of it, and the identity of its launch.

        "error" says why it could not be launched; the files are then those that were used until then.
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
            with os.fdopen(read, "rb") as pipe:
                text = pipe.read()
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        opened = watch.opened()
        if not text:
            died = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return {"identity": "", "files": {}, "absent": False, "error": f"its process died ({died})"}
        answer: Measurement = json.loads(text)
        # What C code and other processes opened; a module was imported, which the process itself says.
        places = self.project.places(self.folder)
        own = {Path(self.folder, name) for name in ("pyproject.toml", "setup.cfg")}  # which the engine itself reads
        others = sorted(path for path in opened - own if path.suffix not in (".py", ".pyc") and path.is_file())
        answer["files"] |= {
            places.name(path): sources.digest(path)
            for path in (*others, *places.included(others))
            if not any(path.is_relative_to(folder) for folder in places.apart)
        }
        return answer


def _child(project: Project, folder: str, cell: Cell, write: int) -> None:
    """Launch a rung and write what it used to a pipe; ends this process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # an endless kernel ends with the worker
    os.dup2(2, 1)
    answer: dict[str, Any] = {"identity": "", "error": "", "absent": False}
    try:
        package = import_package(project, folder)
        if guard := tree.guard():
            guard.asks = True
        answer["identity"] = _launched(project, package, cell)
    except Absent as error:
        answer |= {"absent": True, "error": str(error)}
    except BaseException as error:
        lacks = lacking(project, error) if isinstance(error, Exception) else ""
        answer["absent"] = bool(lacks)
        if not isinstance(error, Exception):
            traceback.print_exc()
        answer["error"] = f"{type(error).__name__}: {error}"
    try:
        answer["files"] = _digests(project)
        with os.fdopen(write, "wb") as pipe:
            pipe.write(json.dumps(answer).encode())
    except BaseException:
        traceback.print_exc()
        os._exit(DIED)
    finally:
        with suppress(OSError):
            sys.stderr.flush()
    os._exit(0)


def _launched(project: Project, package: Package, cell: Cell) -> str:
    """Launch a rung once; the identity of its launch, "" if that is one of sources."""
    if cell.device == "cpu":
        from kernelwatch.timing.cpu import Cpu
        from kernelwatch.timing.launch import bind

        class OnceCpu(Cpu):
            def launch(self) -> Launch:
                kernel = self.package.load(cell.op, cell.rung, cell.type)
                self._fill(cell, 0)
                rung = self.project.ops[cell.op].rung(cell.rung)
                launch = bind(kernel, rung, self._operands_of(cell), *self._operands(cell, 0))
                launch()
                return launch

        launch = OnceCpu(project, package, [cell], Budget(1, 0.0), 0).launch()
    else:
        from kernelwatch.timing.gpu import Gpu
        from kernelwatch.timing.launch import bind, current

        class OnceGpu(Gpu):
            def launch(self) -> Launch:
                kernel = self.package.load(cell.op, cell.rung, cell.type)
                rung = self.project.ops[cell.op].rung(cell.rung)
                with current(self.stream):
                    self._fill(cell)
                    launch = bind(kernel, rung, self._operands_of(cell), *self._operands(cell, 0))
                    launch()
                self.stream.synchronize()
                return launch

        import cupy

        bus = cupy.cuda.Device().pci_bus_id
        with locked(
            Path(Options.here().locks, gpu_lock(bus)), lambda _: None
        ):  # a launch would disturb what another run measures
            launch = OnceGpu(project, package, [cell], Budget(1, 0.0), 0).launch()
    return "" if getattr(launch, "of_sources", False) else launch.identity


def _digests(project: Project) -> Mapping[str, str]:
    guard = tree.guard()
    if guard is None:
        return {}
    table = guard.places.source(project.module)  # whose entries the parts of a rung have
    return {
        guard.places.name(path): sources.digest(path, (TABLE, BINARIES) if path == table else ())
        for path in sorted(guard.used())
        if not any(path.is_relative_to(folder) for folder in guard.places.apart)
    }
