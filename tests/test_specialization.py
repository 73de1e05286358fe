"""The exact figures of the ladders' Triton rungs: what is compiled without a GPU is what their launches compile."""

import contextlib
import dataclasses
import itertools
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import gpukernels
from benchmarks import static
from benchmarks.project import PROJECT, Gpukernels
from gpukernels.kernel import python_function
from kernelwatch.analysis import compiled
from kernelwatch.analysis.compiled import Compiler, target
from kernelwatch.analysis.sass import CLASSES
from kernelwatch.plan.package import Absent, Importing
from kernelwatch.plan.problem import Shape
from kernelwatch.run import outcome
from kernelwatch.suites.compiled import measure
from kernelwatch.system import tools
from kernelwatch.system.options import Options

pytest.importorskip("triton", reason="compiles kernels without a GPU; it is in the requirements of the tests")
pytestmark = pytest.mark.xdist_group("triton")  # one process imports it

ROOT = Path(__file__).resolve().parents[1]
SM = "sm_90"
RUNGS = [found for op in gpukernels.ops() for found in op.rungs if "triton" in found.needs]
TYPES = [(found, type) for found in RUNGS for type in found.types]


class Compiling(Exception):
    """Raised in place of a compilation, with what is to be compiled: by a hash, and Triton's options."""


class Driver:
    """A GPU as Triton asks for one before it compiles a launch."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", int(SM[3:]), 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton with a GPU of SM, whose compiler raises Compiling; PyTorch's tensors, which are only an address."""
    import triton
    from triton.backends.nvidia.compiler import CUDABackend

    def compile(source: Any, target: Any, options: dict[str, Any]) -> None:
        raise Compiling(source.hash(), CUDABackend(target).parse_options(dict(options)))

    def from_dlpack(array: Any) -> Any:
        return SimpleNamespace(dtype=array.dtype.name, data_ptr=lambda: 1 << 20)

    monkeypatch.setattr(triton, "compile", compile)
    monkeypatch.setattr(triton.compiler, "compile", compile)
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(from_dlpack=from_dlpack))


def launched(found: gpukernels.Rung, type: str, shape: Shape) -> tuple[object, ...]:
    """What a launch asks Triton's compiler for."""
    function = python_function(found, found.source)
    function.__globals__["on_current_stream"] = contextlib.nullcontext
    operands = PROJECT.op(found.op).computes(found.name).operands(shape, type)
    arrays = [SimpleNamespace(shape=operand.shape, dtype=operand.dtype) for operand in operands.arrays]
    with pytest.raises(Compiling) as caught:
        function(*arrays)
    return caught.value.args


def offered(found: gpukernels.Rung, type: str) -> tuple[object, ...]:
    """What the suite's figures are of."""
    with pytest.raises(Compiling) as caught:
        Gpukernels(gpukernels).binary(found.op, found.name, type, SM)
    return caught.value.args


@pytest.mark.parametrize(("found", "type"), TYPES, ids=str)
def test_what_is_compiled_is_what_is_launched(found: gpukernels.Rung, type: str, asked: None) -> None:
    """At every shape that is timed, but for the ragged one: Triton compiles another kernel for that."""
    problem = PROJECT.op(found.op)
    shapes = {*problem.shapes, problem.element_shape}
    same = {shape for shape in shapes if launched(found, type, shape) == offered(found, type)}
    assert same == {shape for shape in shapes if not any(extent % 16 for extent in shape)}
    assert len(same) >= 4


def test_a_product_has_a_kernel_of_its_own_for_rows_that_are_no_multiple_of_16(asked: None) -> None:
    found = gpukernels.rung("matmul", "triton")
    whole, also_whole, ragged = (repr(launched(found, "float32", (rows, 64, 64))) for rows in (16, 4000, 17))
    assert whole == also_whole != ragged


# --- figures -------------------------------------------------------------------------------------------------------


def test_the_suite_has_their_figures(kernel_cache: Path) -> None:
    only = "^transpose/triton float32 sm_(75|90)$"
    group = measure(PROJECT, "transpose", Options(tree=str(ROOT), only=only))
    there, absent = (group.outcomes[target("transpose", "triton", "float32", arch).key] for arch in (SM, "sm_75"))
    assert (there.state, absent.state) == ("ok", "na")
    assert absent.reason == "Triton supports compute capability 8.0 and newer, not sm_75"
    suite, mix, place = static.Transpose(), static.TransposeMix(), ("triton", "float32", SM)
    (told,) = there.measurements
    assert told["block_threads"] == 256
    assert suite.track_registers(group, *place) == told["registers"] >= 8
    assert suite.track_shared_bytes(group, *place) == 64 * 64 * 4  # a tile
    assert 0 < float(suite.track_occupancy(group, *place)) <= 100
    if "instructions" in told:  # with a disassembler
        assert suite.track_spill_bytes(group, *place) == 0
        assert sum(float(mix.track_class(group, "triton", kind)) for kind in CLASSES) == told["instructions"]
    assert math.isnan(float(suite.track_registers(group, "triton", "float32", "sm_75")))
    assert group.facts["imports"].keys() >= {"triton", "triton ptxas", "triton ptxas-blackwell"}


class Changed(Gpukernels):
    """The package with another source of one rung."""

    def __init__(self, found: gpukernels.Rung) -> None:
        super().__init__(gpukernels)
        self.found = found

    def rung(self, _op: str, _name: str, _type: str) -> gpukernels.Rung:
        return self.found


def figures(found: gpukernels.Rung) -> dict[str, Any]:
    measurement = Compiler(PROJECT, Changed(found)).measure(target(found.op, found.name, "float32", SM))
    unreadable, _ = compiled.read({"key": (SM, measurement)})
    assert not unreadable
    return dict(measurement)


def test_a_changed_launch_changes_the_figures(kernel_cache: Path, tmp_path: Path) -> None:
    found = gpukernels.rung("transpose", "triton")
    text = found.source.read_text()
    of = [figures(found)]
    for at, (old, new) in enumerate(
        (("64, 64, 8", "64, 64, 4"), ("@triton.jit", "# Elsewhere in the file.\n@triton.jit"))
    ):
        assert old in text
        other = tmp_path / str(at) / found.source.name
        other.parent.mkdir()
        other.write_text(text.replace(old, new))
        of.append(figures(dataclasses.replace(found, source=other)))
    before, changed, moved = of
    assert (before["block_threads"], changed["block_threads"]) == (256, 128)
    assert changed["registers"] > before["registers"]
    assert moved == before


# --- commits and machines that lack something ----------------------------------------------------------------------


def test_a_commit_that_does_not_say_it() -> None:
    older = ModuleType("gpukernels")
    vars(older).update({name: getattr(gpukernels, name) for name in gpukernels.__all__ if name != "specialized"})
    with pytest.raises(Absent, match="this commit's gpukernels lacks specialized: older than the harness"):
        Gpukernels(older).binary("matmul", "triton", "float32", SM)


def test_a_machine_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    package = Gpukernels(gpukernels)
    with pytest.raises(package.not_here, match="matmul/triton: needs triton, which cannot be imported"):
        package.binary("matmul", "triton", "float32", SM)
    assert tools.ptxas_of_triton() == {}


# --- the compiler's version ----------------------------------------------------------------------------------------


def program(path: Path, prints: str) -> str:
    path.write_text(f"#!/bin/sh\necho '{prints}'\n")
    path.chmod(0o755)
    return str(path)


def test_the_compilers_version_is_a_condition(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = Gpukernels(gpukernels)
    assert isinstance(package, Importing)  # or no import would be recorded
    seen = []
    other = program(tmp_path / "ptxas", "Cuda compilation tools, release 99.9, V99.9.1")
    for path in ("", other, str(tmp_path / "nowhere"), program(tmp_path / "true", "no assembler")):
        monkeypatch.setenv("TRITON_PTXAS_PATH", path)
        seen.append(package.imports())
    own, changed, *broken = seen
    assert own.keys() >= {"triton", "triton ptxas", "triton ptxas-blackwell"}
    assert changed == own | {"triton ptxas": "99.9.1"}
    assert broken == [own, own]  # Triton then takes its own
    pairs = itertools.combinations([outcome.conditions({"imports": versions}) for versions in (own, changed)], 2)
    assert not any(outcome.alike(*pair) for pair in pairs)
