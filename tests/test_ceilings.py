"""The roofs: each loop is full of the instruction that it measures and of nothing that moves data."""

import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.project import PROJECT
from kernelwatch.analysis.sass import disassemble
from kernelwatch.commands import ceilings as command
from kernelwatch.history import roofs
from kernelwatch.history.records import read, sidecars
from kernelwatch.plan.cubin import read_cubin
from kernelwatch.plan.problem import Unit
from kernelwatch.timing import ceilings, replay
from tests.fake_gpu import CLOCK_MHZ, MULTIPROCESSORS, SILENT, Cupy, Device

CAPABILITIES = (75, 80, 86, 89, 90, 100, 120)
OTHERS_MOST = 6  # beside them and what the uniform unit does: the counter, the branch, the waits of a warp group


def loop(instructions: list[tuple[str, str]], start: int) -> list[str]:
    """The names in the last loop of a kernel: from the target of the last backward branch on; without its padding.
    `start`: the kernel's first instruction in the listing."""
    for at, (name, operands) in reversed(list(enumerate(instructions))):
        target = re.search(r"0x([0-9a-f]+)", operands) if name.startswith("BRA") else None
        if target and (first := int(target[1], 16) // 16 - start) < at:
            return [name for name, _ in instructions[first : at + 1] if name != "NOP"]
    raise AssertionError("no loop")


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_loop_holds_the_instruction_of_its_unit(capability: int) -> None:
    cubin, arch = ceilings.compiled(capability).read_bytes(), f"sm_{capability}"
    units = ceilings.units(capability)
    codes = [read_cubin(cubin, f"ceiling_{unit.name}", arch) for unit in units]
    start = 0
    for unit, code, instructions in zip(units, codes, disassemble([c.code for c in codes], arch), strict=True):
        names = loop(instructions, start)
        start += len(instructions)
        assert names.count(unit.sass) == unit.count, (unit.name, names)
        assert not [name for name in names if re.match(r"LD|ST|ATOM|RED|LDSM", name)], (unit.name, names)
        assert sum(not name.startswith("U") for name in names) <= unit.count + OTHERS_MOST, (unit.name, names)
        assert not code.stack_bytes, unit.name
        assert any(name.startswith("STG") for name, _ in instructions), f"{unit.name}: nothing keeps the result alive"


def test_what_a_round_computes_follows_from_the_shape_of_the_instruction() -> None:
    for capability in CAPABILITIES:
        for unit in ceilings.units(capability):
            shape = re.search(r"\.(\d+)x(\d+)x(\d+)", unit.sass)
            if shape:
                m, n, k = map(int, shape.groups())
                assert unit.operations == 2 * m * n * k, unit
    per_round = {unit.name: unit.per_round() for unit in ceilings.units(90)}
    assert per_round["fp32"] == 256 * 64 * 2  # by each thread of a block
    assert per_round["fp64_tensor"] == 8 * 8 * 2 * 16 * 8 * 16  # by each of 8 warps
    assert per_round["fp8"] == 2 * 8 * 2 * 64 * 256 * 32  # by each of 2 groups of 4 warps


def test_gpus_of_a_datasheet_are_named_with_every_unit() -> None:
    """A roof without its datasheet's figure is shown as n/a: none of those that are known may be."""
    for gpu, figures in ceilings.DATASHEETS.items():
        capability = 80 if "A100" in gpu else 90
        assert set(figures) == {unit.name for unit in ceilings.units(capability)} | {"memory"}, gpu


def test_a_declared_unit_is_the_one_in_the_machine_code() -> None:
    """A rung whose kernels have instructions of tensor cores computes on them, any other on the multiply-adds of FP32
    or FP64. The kernels are those that were recorded last."""
    problem = PROJECT.op("matmul")
    records = [read(path) for path in sidecars(PROJECT.results) if "h200" in path.parent.name]
    groups = {each.key: each for record in records for each in record.cells.values() if each.group == "matmul static"}
    kinds = 0
    for key, cell in groups.items():
        where, type, arch = key.split()
        rung = where.partition("/")[2]
        if arch != "sm_90" or not cell.measurements or rung not in {each.name for each in problem.rungs}:
            continue
        mix = cell.measurements[0]["mix"]
        unit = problem.unit_of(rung, type)
        assert unit is not None, key
        assert (unit.name not in ("fp32", "fp64")) == (mix["tensor"] > 0), (key, unit, mix)
        kinds += mix["tensor"] > 0
    assert kinds > 10


def test_units_of_a_split_product_and_of_libraries() -> None:
    problem = PROJECT.op("matmul")
    assert problem.unit_of("bf16x6", "float32") == Unit("bf16", 6)
    assert problem.unit_of("fp16x3", "float32") == Unit("fp16", 3)
    assert problem.unit_of("cublas", "float32") == Unit("fp32")
    assert problem.unit_of("cublas_tf32", "float32") == Unit("tf32")
    assert problem.unit_of("torch_fp8", "float8_e4m3fn->float32") == Unit("fp8")
    assert problem.unit_of("numpy", "float32") is None  # on a CPU
    assert PROJECT.op("transpose").unit_of("padded", "float32") is None  # nothing is computed
    assert replace(problem, unit=None).unit_of("cublas", "float16") is None  # not known
    assert replace(problem, unit=None).unit_of("initial", "float64") == Unit("fp64")


def test_roofs_are_read_by_gpu_and_damaged_lines_are_left_out(tmp_path: Path) -> None:
    assert roofs.by_gpu(tmp_path) == {}
    line: dict[str, Any] = {"unit": "fp32", "title": "FP32", "instruction": "FFMA", "of": "FLOP/s", "rate": 6e13}
    line |= {"spread": 0.001, "clock_mhz": None, "per_clock": None, "datasheet": None, "limits": []}
    who = {"gpu": "A", "nvml_driver": "1", "measured_at": "2026-01-01T00:00:00+00:00"}
    bad: list[object] = [line, line | {"who": who, "rate": -1}, line | {"who": who, "rate": math.nan}, "text", 3]
    bad += [line | {"who": who, "limits": None}, line | {"who": who, "title": 3}, line | {"who": who, "spread": "x"}]
    lines = [json.dumps(each) for each in (line | {"who": who}, *bad, line | {"who": who | {"gpu": "B"}})]
    (tmp_path / roofs.FILE).write_text("\n".join([*lines, "{", "\ufffd"]), encoding="utf-8")
    own = {"measured_at": who["measured_at"], "driver": "1"}
    assert roofs.by_gpu(tmp_path) == {"A": [line | own], "B": [line | own]}


# --- on a GPU that is not there -------------------------------------------------------------------------------------

RATES = {"fp32": 6e13, "fp64": 3e13, "fp64_tensor": 6.5e13, "tf32": 4.5e14, "fp16": 9e14, "bf16": 9.5e14, "fp8": 1.8e15}
RATES |= {"int8": 1.9e15}  # of this device
COPIED = {"l2": 7e12, "memory": 4e12}


class Kernels:
    """In the place of the cubin: each kernel takes as long as its unit of this device needs. `wrong`: one that computes
    nothing."""

    def __init__(self, device: Device, wrong: str = "") -> None:
        self.device, self.wrong = device, wrong
        self.units = {unit.name: unit for unit in ceilings.units(90)}

    def get_function(self, name: str) -> Any:
        unit = name.removeprefix("ceiling_")

        def launch(grid: Any, block: Any, arguments: Any, shared_mem: int = 0) -> None:
            seconds = 1e-6
            if unit in self.units:
                out, rounds = arguments
                assert (block, shared_mem) == ((self.units[unit].block,), self.units[unit].shared_bytes)
                out[...] = 0 if unit == self.wrong else 1
                seconds = grid[0] * self.units[unit].per_round() * int(rounds) / RATES[unit]
            elif unit in COPIED:
                rounds = int(arguments[2]) if unit == "l2" else 1
                assert arguments[0].nbytes == grid[0] * 256 * 16 * (4 if unit == "l2" else 1)
                seconds = 2 * arguments[0].nbytes * rounds / COPIED[unit]
            self.device.enqueue(name, (grid,), seconds)

        return _Kernel(launch)


class _Kernel:
    max_dynamic_shared_size_bytes = 0

    def __init__(self, launch: Any) -> None:
        self.launch = launch

    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        self.launch(*arguments, **keywords)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], ceilings.Bench]:
    def made(wrong: str) -> ceilings.Bench:
        device = Device(l2_bytes=50 << 20)
        pytest.importorskip("cupy.cuda.compiler", reason="keeps what the harness compiles")
        cupy: Any = Cupy(device)
        nvml = SimpleNamespace(facts=lambda: {"sm_clock_max_mhz": None}, state=lambda: SILENT)
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        monkeypatch.setattr(ceilings, "Nvml", lambda bus: nvml)
        monkeypatch.setattr(replay, "time", SimpleNamespace(monotonic=device.now, sleep=device.sleep))
        monkeypatch.setattr(ceilings, "compiled", lambda capability: tmp_path)
        harness = cupy.RawModule
        monkeypatch.setattr(
            cupy,
            "RawModule",
            lambda code="", path="", options=(): Kernels(device, wrong) if path else harness(code, options),
        )
        monkeypatch.setenv("KERNELWATCH_LOCKS", str(tmp_path))
        return ceilings.Bench()

    return made


def test_each_rate_is_that_of_the_device(
    bench: Callable[[str], ceilings.Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ceilings.DATASHEETS, "none", {"fp64": 34.0})
    found = {each["unit"]: each for each in bench("").all(lambda who: None)}
    rates = RATES | COPIED
    assert {unit: each["rate"] for unit, each in found.items()} == pytest.approx(rates, rel=0.01)
    assert found["int8"]["of"] == "OP/s"
    assert found["memory"]["of"] == "B/s"
    clock = found["fp32"]["clock_mhz"]
    assert clock == pytest.approx(CLOCK_MHZ, rel=0.01)
    assert found["fp32"]["per_clock"] == pytest.approx(RATES["fp32"] / (CLOCK_MHZ * 1e6 * MULTIPROCESSORS), rel=0.02)
    assert found["l2"]["per_clock"] is None
    assert all(each["spread"] < 0.01 and each["datasheet"] is None for each in found.values() if each["unit"] != "fp64")
    assert found["fp64"]["datasheet"] == 34e12


def test_a_kernel_that_computes_nothing_yields_no_roof(bench: Callable[[str], ceilings.Bench]) -> None:
    with pytest.raises(RuntimeError, match="ceiling_tf32 computed zero or NaN"):
        list(bench("tf32").all(lambda who: None))


def test_a_new_measurement_takes_the_place_of_that_gpus_older_one(
    bench: Callable[[str], ceilings.Bench],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "Bench", lambda: bench(""))
    monkeypatch.setattr(command, "machine_name", lambda: "mine")
    project: Any = SimpleNamespace(root=tmp_path, results=tmp_path / "results")
    for gpu in ("A", "B", "A"):
        monkeypatch.setattr(command, "who", lambda gpu=gpu: {"gpu": gpu, "nvml_driver": "1"})
        assert command.main(project, "ceilings", []) == 0
    recorded = roofs.by_gpu(project.results / "mine")
    assert {gpu: len(own) for gpu, own in recorded.items()} == {"A": 10, "B": 10}
    said = capsys.readouterr().out
    assert "recorded in results/mine/ceilings.jsonl" in said
    assert "450 TFLOP/s" in said
    assert command.main(project, "ceilings", ["--dry", "--json"]) == 0
    assert roofs.by_gpu(project.results / "mine") == recorded
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["unit"] for line in lines] == [*RATES, *COPIED]
