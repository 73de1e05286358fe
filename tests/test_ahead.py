"""Compiling ahead of a GPU group: what is in the package's cache before the first process gets its job. No GPU is
needed: a stand-in for the processes that measure looks at the cache, and NVML's answer is given."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpukernels
from benchmarks.project import PROJECT, Gpukernels
from gpukernels import compiler
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.run import ahead, group
from kernelwatch.run.outcome import Group
from kernelwatch.run.processes import Run
from kernelwatch.system import cache
from kernelwatch.system.options import Options
from kernelwatch.timing import nvml
from tests.groups import Package, few_processes, package

__all__ = ["package"]  # a fixture

ARCH = "sm_90"
RUNGS = ("tiled", "padded")
TYPES = ("float32", "uint8")
ONLY = rf"^transpose/({'|'.join(RUNGS)}) ({'|'.join(TYPES)}) (256x256|4096x4096) "


class Seen:
    """What the processes of a group found when they got their job: the cubins in the cache, by process; the cells that
    were compiled ahead by all workers; and the caches of all of them."""

    def __init__(self, kernels: Path) -> None:
        self.kernels = kernels
        self.cubins: list[set[Path]] = []
        self.compiled: list[str] = []
        self.caches: set[str] = set()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Seen:
    """A machine of 4 cores with cold caches, whose GPU is an sm_90."""
    found, worker = Seen(tmp_path / "kernels"), Run._worker
    monkeypatch.setenv("GPUKERNELS_CACHE", str(found.kernels))
    monkeypatch.setenv("KERNELWATCH_CACHE", str(tmp_path / "engine"))
    monkeypatch.setattr(cache, "folder", lambda: tmp_path / "engine")
    (tmp_path / "engine").mkdir()
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)), raising=False)
    monkeypatch.setattr(nvml, "architecture", lambda: ARCH)
    few_processes(monkeypatch, 2)

    def stand_in(run: Run, cells: list[Cell], seed: int, tick: Callable[[], None], more: int = 0) -> int:
        found.caches.add(run.workers._environment["XDG_CACHE_HOME"])
        if run.device != "gpu":
            found.compiled += [cell.key for cell in cells]
            return worker(run, cells, seed, tick, more)
        found.cubins.append({*found.kernels.glob("*.cubin")})
        for cell in cells:
            run.group.outcomes[cell.key].state = "ok"
        return len(cells)

    monkeypatch.setattr(Run, "_worker", stand_in)
    return found


def measure(tree: Path, **options: Any) -> Group:
    return group.measure(PROJECT, "transpose", "gpu", Options(**{"only": ONLY, "tree": str(tree)} | options))


def test_everything_is_compiled_before_the_first_process_measures(
    seen: Seen, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the path that the package looks for when it loads the kernel; each rung and type once for all shapes."""
    tree = package()
    measured = measure(tree)
    assert len(measured.outcomes) > len(RUNGS) * len(TYPES)
    assert sorted(seen.compiled) == sorted(f"transpose/{rung} {type} {ARCH}" for rung in RUNGS for type in TYPES)
    assert len(seen.cubins) == 2
    assert len(seen.cubins[0]) == len(RUNGS) * len(TYPES)
    assert seen.cubins[1] == seen.cubins[0]
    # As the GPU's processes ask for them (gpukernels/kernel.py), which then compile nothing.
    monkeypatch.setattr(compiler, "cache_folder", lambda: seen.kernels)
    asked = {
        gpukernels.compile_cuda(gpukernels.rung("transpose", rung), type, ARCH)[0] for rung in RUNGS for type in TYPES
    }
    assert asked == seen.cubins[0]
    assert {*seen.kernels.glob("*.cubin")} == seen.cubins[0]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_every_rung_is_compiled_as_a_gpu_loads_it(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same key: gpukernels/kernel.py compiles the ladder's entry for the type and architecture."""
    monkeypatch.setattr(compiler, "_compiled", lambda suffix, inputs, build: (compiler.digest(*inputs), "symbol"))
    package, same = Gpukernels(gpukernels), 0
    for one in ahead.targets(PROJECT, [cell for op in PROJECT.problems for cell in plan(op, "gpu")], arch):
        try:
            made = package.binary(one.op, one.rung, one.type, arch).path
        except gpukernels.ToolMissing:  # its instructions are those of another architecture
            continue
        assert made == gpukernels.compile_cuda(gpukernels.rung(one.op, one.rung), one.type, arch)[0]
        same += 1
    assert same > 50


def test_who_compiles_ahead_has_the_caches_of_who_measures(
    seen: Seen, package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if exact figures are measured with another interpreter. The group's progress is that of its own cells."""
    monkeypatch.delenv("GPUKERNELS_CACHE")
    progress = tmp_path / "progress"
    measure(package(), python=sys.executable, progress=str(progress))
    (caches,) = seen.caches
    assert len([*Path(caches).rglob("*.cubin")]) == len(RUNGS) * len(TYPES)
    assert {json.loads(line)["group"] for line in progress.read_text().splitlines()} == {"transpose gpu"}


def test_what_does_not_compile_costs_nothing_else(seen: Seen, package: Package) -> None:
    tree = package()
    broken = tree / "gpukernels" / "transpose" / "padded.cu"
    broken.write_text(broken.read_text().replace("__global__", "no such word", 1))
    assert {one.state for one in measure(tree).outcomes.values()} == {"ok"}  # by the stand-in, which got all cells
    assert len(seen.cubins[0]) == len(TYPES)
    assert len(seen.compiled) == len(RUNGS) * len(TYPES)
    measure(tree)
    assert len(seen.compiled) == len(RUNGS) * len(TYPES)  # its own cells say what is wrong, once more


def test_nothing_is_compiled_ahead_that_the_cache_has(seen: Seen, package: Package) -> None:
    """A tree with other sources is another one, and so is a cache from which a cubin is gone."""
    tree = package()
    measure(tree)
    seen.compiled.clear()
    measure(tree)
    assert seen.compiled == []
    next(iter(seen.cubins[0])).unlink()
    measure(tree)
    assert len(seen.compiled) == len(RUNGS) * len(TYPES)
    assert seen.cubins[-2] == seen.cubins[0]
    seen.compiled.clear()
    other = package("other")
    source = other / "gpukernels" / "transpose" / "padded.cu"
    source.write_text(source.read_text() + "\n// changed\n")
    measure(other)
    assert len(seen.compiled) == len(RUNGS) * len(TYPES)


@pytest.mark.parametrize("why", ["one kernel", "no NVML", "one core", "the CPU"])
def test_where_it_saves_no_time_no_worker_is_started(
    why: str, seen: Seen, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(group, "measure_once", lambda *_: started.append(1))
    if why == "one core":
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    if why == "no NVML":
        monkeypatch.setattr(nvml, "architecture", lambda: "")
    if why == "the CPU":
        run = Run(PROJECT, plan(PROJECT.op("transpose"), "cpu"), "cpu", str(package()), PROJECT.devices["cpu"].budget)
        group._compile_ahead(run, Options())
    else:
        measure(package(), only=r"/padded float32 " if why == "one kernel" else ONLY)
        assert seen.cubins == [set(), set()]
    assert started == []


def test_no_failure_of_it_is_one_of_the_run(
    seen: Seen, package: Package, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(group, "measure_once", full)
    assert {one.state for one in measure(package()).outcomes.values()} == {"ok"}
    assert "not all kernels could be compiled ahead: OSError: [Errno 28] No space left" in capsys.readouterr().out


def test_only_cuda_rungs_are_compiled_ahead() -> None:
    cells = [cell for problem in PROJECT.problems for cell in plan(problem, "gpu")]
    found = ahead.targets(PROJECT, cells, ARCH)
    cuda = {
        (cell.op, cell.rung, cell.type)
        for cell in cells
        if not cell.reference and PROJECT.op(cell.op).rung(cell.rung).is_cuda
    }
    assert len(found) == len(cuda)
    assert {(one.op, one.rung, one.type) for one in found} == cuda
    assert {one.arch for one in found} == {ARCH}


# --- the architecture ----------------------------------------------------------------------------------------------


class NvmlError(Exception):
    pass


def pynvml(*capabilities: Any, broken: str = "") -> Any:
    def answer(name: str, value: Callable[..., Any]) -> Callable[..., Any]:
        def reply(*given: Any) -> Any:
            if name == broken:
                raise NvmlError
            return value(*given)

        return reply

    answers: dict[str, Callable[..., Any]] = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: len(capabilities),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetCudaComputeCapability": lambda handle: capabilities[handle],
    }
    return SimpleNamespace(NVMLError=NvmlError, **{name: answer(name, value) for name, value in answers.items()})


@pytest.mark.parametrize(
    ("capabilities", "arch"),
    [([[9, 0]], "sm_90"), ([(8, 6), [8, 6]], "sm_86"), ([[12, 0]], "sm_120"), ([[9, 0], [8, 0]], ""), ([], "")],
)
def test_the_architecture_is_that_of_all_gpus(capabilities: list[Any], arch: str) -> None:
    assert nvml.architecture(pynvml(*capabilities)) == arch


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetCudaComputeCapability"])
def test_an_nvml_that_does_not_answer_knows_no_architecture(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert nvml.architecture(pynvml([9, 0], broken=broken)) == ""
    old = pynvml([9, 0])
    delattr(old, broken)
    assert nvml.architecture(old) == ""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.architecture() == ""


@pytest.mark.gpu
def test_the_architecture_is_cudas() -> None:
    import cupy

    assert nvml.architecture() == f"sm_{cupy.cuda.Device().compute_capability}"
