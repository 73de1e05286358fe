"""The code of launched kernels: which of the loaded modules a kernel is from, and what it makes of the identity."""

import ctypes
import importlib
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.project import PROJECT
from kernelwatch.analysis import cupti, launched
from kernelwatch.analysis.launched import Launched
from kernelwatch.plan import binaries
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.devices import Budget
from kernelwatch.run.codes import note_codes
from kernelwatch.run.processes import Run
from kernelwatch.timing import nodes
from kernelwatch.timing.record import Code, Measurement

CODES: list[Code] = [
    {"kernel": "axpy", "registers": 24, "static_shared_bytes": 0, "code": "aa", "instructions": 40},
    {"kernel": "axpy", "registers": 32, "static_shared_bytes": 0, "code": "bb", "instructions": 80},
    {"kernel": "sum", "registers": 24, "static_shared_bytes": 0, "code": "cc", "instructions": 90},
]


def measured(registers: int, **others: Any) -> Measurement:
    """A measurement of a cell that copies, then runs axpy with so many registers."""
    ran = {"kernel": "axpy", "registers": registers, "static_shared_bytes": 0, "grid": [8, 1, 1], "block": [64, 1, 1]}
    return {"sources": "0123", "identity": "0123", "kernels": [{"kind": "copy"}, ran], **others}  # type: ignore[typeddict-item]


def noted(registers: int, codes: list[Code], arguments: str = "4", **others: Any) -> Measurement:
    found = measured(registers, **others)
    launched.note(found, {"codes": codes, "arguments": arguments})
    return found


@pytest.mark.parametrize(("registers", "code", "instructions"), [(24, "aa", 40), (32, "bb", 80)])
def test_an_autotuned_kernel_has_the_code_of_its_own_configuration(
    registers: int, code: str, instructions: int
) -> None:
    copy, ran = noted(registers, CODES)["kernels"]
    assert copy == {"kind": "copy"}
    assert (ran["code"], ran["instructions"], ran["grid"]) == (code, instructions, [8, 1, 1])


def test_the_identity_covers_what_was_launched() -> None:
    changed: list[Code] = [{**code, "code": "dd"} for code in CODES]
    found = [
        noted(24, CODES),
        noted(32, CODES),
        noted(24, changed),
        noted(24, CODES, sources="4567"),
        noted(24, CODES, configurations=["axpy: BLOCK: 64"]),
        noted(40, CODES),  # no module has it: known by what the driver says of it
    ]
    assert len({one["identity"] for one in found}) == len(found)
    assert noted(24, CODES)["identity"] == found[0]["identity"]
    assert "code" not in found[-1]["kernels"][1]


def test_a_launch_is_told_without_its_sources() -> None:
    """Of the host's code only what it launches counts: which code, with which arguments."""

    def alone(codes: list[Code], registers: int = 24, arguments: str = "4", **others: Any) -> str:
        """Of a launch without the copy, whose size and addresses nobody tells."""
        found = measured(registers, **others)
        del found["kernels"][0]
        launched.note(found, {"codes": codes, "arguments": arguments})
        return found.get("launch", "")

    changed: list[Code] = [{**code, "code": "dd"} for code in CODES]
    first = alone(CODES)
    assert alone(CODES, sources="4567") == first
    others = [alone(changed), alone(CODES, 32), alone(CODES, arguments="5")]
    assert len({"", first, *others}) == 2 + len(others)
    assert not alone(CODES, 40)  # no module has it
    assert not alone(CODES, arguments="")  # the driver does not tell them
    assert "launch" not in noted(24, CODES)  # with the copy


class Error(int):
    """A result of the driver."""

    name = "CUDA_ERROR_NOT_SUPPORTED"


class Driver:
    """In the place of the driver's functions, a graph of one kernel. `parameters`: the bytes of each."""

    CUresult = SimpleNamespace(CUDA_ERROR_INVALID_VALUE=1)
    cluster, window, error = (1, 1, 1), 0, None

    def __init__(self, *parameters: bytes) -> None:
        self.sizes = [len(each) for each in parameters]
        self.kept = [ctypes.create_string_buffer(each, len(each)) for each in parameters]
        self.pointers = (ctypes.c_void_p * len(parameters))(*(ctypes.addressof(each) for each in self.kept))

    CUgraph = staticmethod(lambda graph: graph)
    cuGraphGetNodes = staticmethod(lambda graph, count=0: (0, ["node"], 1))
    cuGraphNodeGetType = staticmethod(lambda node: (0, SimpleNamespace(name="CU_GRAPH_NODE_TYPE_KERNEL")))

    def cuGraphKernelNodeGetParams(self, node: str) -> tuple[int, Any]:
        return 0, SimpleNamespace(func=1, kern=0, kernelParams=ctypes.addressof(self.pointers))

    CUlaunchAttributeID = SimpleNamespace(
        CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION="clusterDim", CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW="window"
    )

    def cuGraphKernelNodeGetAttribute(self, node: str, which: str) -> tuple[Any, Any]:
        from cuda.bindings.driver import CUlaunchAttributeValue  # the real structure

        if self.error:
            return self.error, None
        value = CUlaunchAttributeValue()
        if which == "clusterDim":
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = self.cluster
        else:
            value.accessPolicyWindow.num_bytes = self.window
        return 0, value

    def cuFuncGetParamInfo(self, function: int, at: int) -> tuple[int, int, int]:
        return (0, 0, self.sizes[at]) if at < len(self.sizes) else (1, 0, 0)


def test_the_arguments_of_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers count by their value, addresses do not; a structure may hold both, and then nothing is known."""
    bindings = pytest.importorskip("cuda.bindings", reason="the driver's functions")

    def told(*parameters: bytes, **others: Any) -> str:
        driver = Driver(*parameters)
        vars(driver).update(others)
        monkeypatch.setattr(bindings, "driver", driver, raising=False)
        return nodes.arguments(SimpleNamespace(graph=0))

    address, other = (struct.pack("<Q", 0x7F00_0000_0000 + at) for at in (0, 512))
    ten, eleven = (struct.pack("<i", value) for value in (10, 11))
    long, longer, half = struct.pack("<q", 10), struct.pack("<q", 11), struct.pack("<d", 0.5)
    assert told(address, ten) == told(other, ten) != ""
    assert len({told(address, each) for each in (ten, eleven, long, longer, half)}) == 5
    assert told(address, struct.pack("<QQ", 10, 11)) == ""
    old = Error(801)  # a driver that knows no clusters
    assert len({told(ten), told(ten, cluster=(2, 1, 1)), told(ten, cluster=(1, 2, 1)), told(ten, error=old)}) == 4
    assert told(ten, window=4096) == ""


def test_the_driver_has_what_is_asked_of_a_launch() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="the driver's functions")
    names = {each.name.removeprefix("CU_LAUNCH_ATTRIBUTE_") for each in driver.CUlaunchAttributeID}
    assert {*nodes.LAUNCHED_WITH, nodes.WINDOW} <= names


def test_the_code_is_left_out_if_several_modules_could_have_been_launched() -> None:
    found = noted(24, [*CODES, {**CODES[0], "code": "dd"}])["kernels"][1]
    assert "code" not in found
    assert "instructions" not in found


def codes_of(monkeypatch: pytest.MonkeyPatch, modules: list[bytes], *names: str) -> list[Code]:
    monkeypatch.setattr(cupti, "cubins", modules)
    launched._cubins.cache_clear()
    return Launched._codes(cast(Launched, SimpleNamespace(arch="sm_90")), names)


TRITON = """
import triton
import triton.language as tl


@triton.jit
def axpy(x, y, out, alpha, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, alpha * tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)
"""


def test_configurations_with_as_many_registers_are_told_apart_by_their_block(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("triton", reason="compiles kernels without a GPU; it is in the requirements of the tests")
    (tmp_path / "mine_launched.py").write_text(TRITON)
    monkeypatch.syspath_prepend(str(tmp_path))
    kernel = importlib.import_module("mine_launched").axpy
    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "alpha": "fp32", "n": "i32"}
    made = [
        binaries.of_triton(kernel, "sm_90", signature, {"BLOCK": 256 * warps}, num_warps=warps).path.read_bytes()
        for warps in (1, 4)
    ]
    codes = codes_of(monkeypatch, made, "axpy")
    assert codes[0]["registers"] == codes[1]["registers"]
    assert codes[0]["code"] != codes[1]["code"]
    for code, threads in zip(codes, (32, 128), strict=True):
        found = measured(code["registers"])
        found["kernels"][1]["block"] = [threads, 1, 1]
        launched.note(found, {"codes": codes, "arguments": "4"})
        assert found["kernels"][1]["code"] == code["code"]


def test_a_tile_kernel_is_launched_with_one_thread() -> None:
    """Its compiler chose the block, as that of cuTile does; the launch says 1 x 1 x 1."""
    chosen: Code = {**CODES[0], "only_threads": 256}
    found = measured(24)
    for block, known in (([1, 1, 1], True), ([256, 1, 1], True), ([128, 1, 1], False)):
        found["kernels"][1] = {**measured(24)["kernels"][1], "block": block}
        launched.note(found, {"codes": [chosen]})
        assert (found["kernels"][1].get("code") == "aa") == known


def test_kernels_with_the_same_instructions_have_both_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    source = 'extern "C" __global__ void NAME(float *x) { x[threadIdx.x] = 3.0f; }'
    made = [
        binaries.of_cuda(source.replace("NAME", name), name, "sm_90", 64).path.read_bytes() for name in ("one", "two")
    ]
    codes = codes_of(monkeypatch, made, "one", "two")
    assert [code["kernel"] for code in codes] == ["one", "two"]
    assert codes[0]["code"] == codes[1]["code"]


def test_who_waits_for_the_gpu_to_look_at_the_code_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("transpose", "torch", "float32", (4, 4), "cold", "gpu")
    run, said = Run(PROJECT, [cell], "gpu", "", Budget(1, 0.0)), list[str]()
    run.group.outcomes[cell.key].measurements.append(measured(24))
    run.note = said.append
    waiting = {"event": "waiting", "who": "another run", "device": "GPU"}
    monkeypatch.setattr(Run, "measure_all", lambda self, seed: self._last(waiting, seed, lambda: None))
    note_codes(run)
    assert said == ["waiting: another run is measuring on the GPU"]
