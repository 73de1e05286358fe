"""The compile-time figures: real compilations for every architecture, planted changes that must move them."""

import contextlib
import dataclasses
import io
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpukernels
from benchmarks import _static, static
from benchmarks._group import Group, Outcome
from benchmarks._ops import OPS, main_type
from benchmarks._static import ARCHES, Compiler, Target
from benchmarks._visit import NotHere
from gpukernels import Rung, kernel

ROOT = Path(__file__).resolve().parents[1]
SM = "sm_90"


def target(found: Rung, type: str = "float32", arch: str = SM) -> Target:
    return Target(found.op, found.name, type, (), "", "static", "", arch=arch)


def figures(found: Rung, type: str = "float32", arch: str = SM) -> dict[str, Any]:
    """A rung's figures, as a worker and the stick make them together."""
    wanted = target(found, type, arch)
    group = Group("", {wanted.key: Outcome("ok", "", [Compiler(gpukernels).measure(wanted, found)])}, {})
    _static.read(group, [wanted])
    assert group.facts == {}
    return group.outcomes[wanted.key].visits[0]


def spilled(found: dict[str, Any]) -> int:
    return int(found["spill_load_bytes"] + found["spill_store_bytes"])


Change = Callable[..., Rung]


@pytest.fixture(scope="module")
def sass(kernel_cache: Path) -> None:
    """Skips where there is no disassembler: then instructions and spills are n/a."""
    try:
        _static.nvdisasm()
    except NotHere as error:
        pytest.skip(f"needs nvdisasm: {error}")


@pytest.fixture
def changed(sass: None, tmp_path: Path) -> Change:
    """A rung of the ladder with its source changed: changed("matmul", "tiled_16", old=new, ...)."""

    def change(op: str, name: str, *pairs: tuple[str, str], **fields: Any) -> Rung:
        found = gpukernels.rung(op, name)
        text = found.source.read_text()
        for old, new in pairs:
            assert old in text, f"{found.source.name} has no {old!r}"
            text = text.replace(old, new)
        (tmp_path / found.source.name).write_text(text)
        return dataclasses.replace(found, source=tmp_path / found.source.name, **fields)

    return change


def ptxas(found: Rung, type: str, arch: str) -> dict[str, int]:
    """What ptxas itself says of a rung, compiled apart from the project's way."""
    from cuda.core import Program, ProgramOptions

    _, symbol = kernel.compile_cuda(found, type, arch)
    names = dict.fromkeys(kernel.in_and_out(type))
    includes = "".join(f"#include <{kernel.TYPES[name][2]}>\n" for name in names if kernel.TYPES[name][2])
    macros = [(name, str(value)) for name, value in sorted(found.macros().items())]
    options = ProgramOptions(
        arch=arch, std="c++17", define_macro=macros, include_path=list(kernel._cuda_headers()), ptxas_options=["-v"]
    )
    expression = f"{found.symbol}<{', '.join(kernel.TYPES[name][0] for name in names)}>"
    said = io.StringIO()
    program = Program(includes + found.source.read_text(), "c++", options)
    program.compile("cubin", name_expressions=(expression,), logs=said)
    words = said.getvalue()

    def number(pattern: str) -> int:
        match = re.search(pattern, words)
        return int(match[1]) if match else 0

    assert symbol in words, words
    return {
        "registers": number(r"Used (\d+) registers"),
        "static_shared_bytes": number(r"(\d+) bytes smem"),
        "stack_bytes": number(r"(\d+) bytes stack frame"),
        "spill_store_bytes": number(r"(\d+) bytes spill stores"),
        "spill_load_bytes": number(r"(\d+) bytes spill loads"),
    }


def bounds(arch: str) -> tuple[str, str]:
    """The change that asks for as many blocks as the SM has threads for: each then has too few registers."""
    name = "matmul_thread_tile_2d"
    return f"void {name}", f"void __launch_bounds__(256, {_static.LIMITS[arch][0] // 256}) {name}"


INDEXED = (  # an array that no register can hold, since the index is known at run time
    "out[i] = a[i] + b[i];",
    "{ T kept[8]; for (int k = 0; k < 8; ++k) kept[k] = a[(i + k) % N]; out[i] = kept[(N + i) & 7] + b[i]; }",
)


# --- every rung ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def groups(sass: None, kernel_cache: Path) -> dict[str, Group]:
    """All ops, compiled by workers as asv's runs have it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUKERNELS_PACKAGE", str(ROOT))
        patch.delenv("GPUKERNELS_CELLS", raising=False)
        return {op: _static.measure(op) for op in OPS}


def test_every_rung_has_every_figure(groups: dict[str, Group]) -> None:
    rungs = [found for op in gpukernels.ops() for found in op.rungs if found.source.suffix == ".cu"]
    wanted = {_static.target_key(r.op, r.name, type, arch) for r in rungs for type in r.types for arch in ARCHES}
    outcomes = {key: outcome for group in groups.values() for key, outcome in group.outcomes.items()}
    assert set(outcomes) == wanted
    lacking = {key for r in rungs for type, least in r.arch_min for arch in ARCHES if int(arch[3:]) < least
               for key in [_static.target_key(r.op, r.name, type, arch)]}  # fmt: skip
    assert {key for key, outcome in outcomes.items() if outcome.state != "ok"} == lacking
    for key in lacking:
        assert outcomes[key].state == "na"
        assert "needs compute capability" in outcomes[key].reason
    for key in wanted - lacking:
        (visit,) = outcomes[key].visits
        assert 0 < visit["registers"] <= 255, key
        assert 0 < visit["occupancy_percent"] <= 100, key
        assert visit["instructions"] == sum(visit["mix"].values()) > visit["mix"]["global"] > 0, key
        assert (visit["mix"]["tensor"] > 0) == ("wmma" in key), key
        assert visit["mix"]["control"] > 0, key
        if key.startswith("matmul") and "wmma" not in key and " float16" not in key:
            assert visit["mix"]["fma"] > 0, key
        assert (visit["mix"]["shared"] > 0) == (visit["shared_bytes"] > 0), key
        assert "/" not in json.dumps(visit), key  # no path of this machine goes into the sidecar
    for group in groups.values():
        assert set(group.facts) == {"harness", "packages"}


def test_twice_the_same(groups: dict[str, Group], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From another cache, in other processes, and again from what is kept."""
    monkeypatch.setenv("GPUKERNELS_PACKAGE", str(ROOT))
    monkeypatch.setenv("GPUKERNELS_CACHE", str(tmp_path))
    for _ in range(2):
        again = _static.measure("vector_add")
        assert again == groups["vector_add"]
        kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
        monkeypatch.setattr(_static, "disassemble", None)  # a second call has nothing to ask it
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == kept


@pytest.mark.parametrize("arch", ARCHES)
def test_the_figures_are_ptxass(arch: str, changed: Change) -> None:
    for found, type in (
        (gpukernels.rung("transpose", "padded"), "complex128"),
        (gpukernels.rung("matmul", "conflict_free"), "float64"),
        (gpukernels.rung("matmul", "wmma"), "float16->float32"),
        (changed("matmul", "thread_tile_2d", bounds(arch)), "float32"),
    ):
        told = ptxas(found, type, arch)
        mine = figures(found, type, arch)
        assert {name: mine[name] for name in told} == told, f"{found} {arch}"


# --- planted changes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHES)
def test_launch_bounds_that_spill(changed: Change, arch: str) -> None:
    before = figures(gpukernels.rung("matmul", "thread_tile_2d"), arch=arch)
    after = figures(changed("matmul", "thread_tile_2d", bounds(arch)), arch=arch)
    assert spilled(before) == 0 < spilled(after)
    assert after["registers"] < before["registers"]
    assert after["occupancy_percent"] > before["occupancy_percent"]


def test_padding(changed: Change) -> None:
    before = figures(gpukernels.rung("transpose", "padded"))
    after = figures(changed("transpose", "padded", ("TILE_COLUMNS + 1]", "TILE_COLUMNS + 2]")))
    assert before["shared_bytes"] == 32 * 33 * 4
    assert after["shared_bytes"] == 32 * 34 * 4


def test_a_larger_tile_costs_occupancy(changed: Change) -> None:
    """The tile's memory, not its threads, becomes what limits."""
    before = figures(gpukernels.rung("transpose", "padded"), "complex128", "sm_75")
    after = figures(changed("transpose", "padded", ("TILE_COLUMNS + 1]", "TILE_COLUMNS + 33]")), "complex128", "sm_75")
    assert before["shared_bytes"] < after["shared_bytes"]
    assert before["occupancy_percent"] > after["occupancy_percent"]


def test_a_shrunk_tile(changed: Change) -> None:
    before = figures(gpukernels.rung("transpose", "padded"), arch="sm_80")
    after = figures(changed("transpose", "padded", tile=(8, 8), block=(8, 1)), arch="sm_80")
    assert (before["shared_bytes"], after["shared_bytes"]) == (32 * 33 * 4, 8 * 9 * 4)
    assert (before["occupancy_percent"], after["occupancy_percent"]) == (100, 50)  # 32 blocks of one warp, of 64


def test_a_lost_unroll(changed: Change) -> None:
    before = figures(gpukernels.rung("matmul", "unrolled"))
    after = figures(changed("matmul", "unrolled", ("#pragma unroll", "#pragma unroll 1")))
    assert after["instructions"] < before["instructions"]
    assert after["mix"]["fma"] < before["mix"]["fma"] == 32


def test_dynamic_shared_memory_is_that_of_the_launch(sass: None) -> None:
    found = gpukernels.rung("transpose", "dynamic")
    for type, size in (("float32", 4), ("complex128", 16)):
        mine = figures(found, type)
        assert (mine["static_shared_bytes"], mine["dynamic_shared_bytes"]) == (0, 32 * 33 * size)
        assert mine["block_threads"] == 1024
    assert figures(dataclasses.replace(found, pad=2))["shared_bytes"] == 32 * 34 * 4


def test_an_indexed_array_counts_as_spilled(changed: Change) -> None:
    """ptxas calls it a stack frame; the memory is the same, and it goes through the same loads and stores."""
    found = changed("vector_add", "elementwise", INDEXED)
    told, mine = ptxas(found, "float32", SM), figures(found)
    assert told["spill_store_bytes"] == told["spill_load_bytes"] == 0
    assert mine["stack_bytes"] == told["stack_bytes"] > 0
    assert mine["spill_load_bytes"] > 0
    assert mine["spill_store_bytes"] > 0


# --- one architecture only -----------------------------------------------------------------------------------------


def test_a_rung_that_fails_for_one_architecture_fails_there_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "gpukernels", tmp_path / "gpukernels", ignore=shutil.ignore_patterns("__pycache__"))
    source = tmp_path / "gpukernels" / "vector_add" / "elementwise.cu"
    planted = "#if __CUDA_ARCH__ == 750\n#error no longer for this one\n#endif\n"
    source.write_text(source.read_text() + planted)
    monkeypatch.setenv("GPUKERNELS_PACKAGE", str(tmp_path))
    monkeypatch.setenv("GPUKERNELS_FACTS", str(tmp_path))
    group = _static.measure("vector_add")
    failed = {key for key, outcome in group.outcomes.items() if outcome.state == "failed"}
    assert failed == {f"vector_add/elementwise {type} sm_75" for type in ("float32", "float64")}
    suite = static.VectorAdd()
    with pytest.raises(RuntimeError, match=r"NVRTC does not compile it for sm_75(.|\n)*no longer for this one"):
        suite.track_registers(group, "elementwise", "float32", "sm_75")
    assert suite.track_registers(group, "elementwise", "float32", "sm_80") > 0
    lines = [json.loads(line) for line in (tmp_path / "vector_add.static.jsonl").read_text().splitlines()]
    assert {line["key"] for line in lines if line.get("state") == "failed"} == failed


def test_a_commit_before_the_contract_is_not_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpukernels").mkdir()
    (tmp_path / "gpukernels" / "__init__.py").write_text("load = rung = 1\nclass LadderError(Exception): pass\n")
    monkeypatch.setenv("GPUKERNELS_PACKAGE", str(tmp_path))
    group = _static.measure("vector_add")
    said = {(outcome.state, outcome.reason) for outcome in group.outcomes.values()}
    assert said == {("na", "this commit's gpukernels lacks compile_cuda: older than the stick")}
    assert math.isnan(static.VectorAdd().track_spill_bytes(group, "elementwise", "float32", SM))
    assert math.isnan(static.VectorAdd().track_occupancy(group, "elementwise", "float32", SM))


# --- occupancy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "registers", "static_shared", "dynamic_shared", "threads", "percent"),
    [
        ("sm_75", 32, 0, 0, 256, 100.0),  # 4 blocks of 8 warps on 32
        ("sm_90", 32, 0, 0, 256, 100.0),
        ("sm_90", 33, 0, 0, 256, 75.0),  # 40 registers a thread are allocated: 6 blocks of 8 warps of 64
        ("sm_90", 255, 0, 0, 256, 12.5),  # one block
        ("sm_90", 255, 0, 0, 1024, 0.0),  # 1024 x 256 registers are more than 65,536: it cannot be launched
        ("sm_86", 32, 0, 0, 1024, 100 * 32 / 48),  # one block of 32 warps on 48
        ("sm_75", 16, 33 * 1024, 0, 256, 25.0),  # 64 KiB hold one block
        ("sm_80", 16, 31 * 1024, 0, 256, 100 * 5 * 8 / 64),  # 164 KiB hold five of 31 + 1 KiB
        ("sm_80", 16, 0, 31 * 1024, 256, 100 * 5 * 8 / 64),  # dynamic all the same
        ("sm_90", 16, 0, 0, 32, 50.0),  # 32 blocks of one warp
        ("sm_120", 16, 0, 0, 32, 100 * 24 / 48),  # 24 blocks of one warp
    ],
)  # fmt: skip
def test_occupancy(
    kernel_cache: Path, arch: str, registers: int, static_shared: int, dynamic_shared: int, threads: int, percent: float
) -> None:
    found = _static.occupancy(kernel.cache_folder(), arch, registers, static_shared, dynamic_shared, threads)
    assert found == pytest.approx(percent)


# --- instructions --------------------------------------------------------------------------------------------------


def test_classes_and_bytes() -> None:
    found = _static.count(
        [
            ("LDG.E.128.CONSTANT", "R4, desc[UR4][R2.64]"), ("STG.E", "R2, R4"), ("LDGSTS.E.BYPASS.128", ""),
            ("LDS.128", "R4, [R2]"), ("LDSM.16.M88.4", ""), ("STS", ""), ("FFMA", ""), ("DFMA", ""),
            ("HFMA2.BF16_V2", "R1, R2, R3, R4"), ("HFMA2.MMA", "R1, -RZ, RZ, 0, 0"), ("HMMA.16816.F32", ""),
            ("BRA", "0x10"), ("BAR.SYNC.DEFER_BLOCKING", "0x0"), ("REDUX", ""), ("MOV", ""), ("NOP", ""),
            ("LDL.64", ""), ("LDL", ""), ("STL.128", ""), ("LDL.LU.U8", ""), ("STL.S16", ""),
        ]
    )  # fmt: skip
    assert found["mix"] == {"global": 3, "shared": 3, "fma": 3, "tensor": 1, "control": 2, "other": 8}
    assert found["instructions"] == 20
    assert (found["spill_load_bytes"], found["spill_store_bytes"]) == (8 + 4 + 1, 16 + 2)


def test_what_cannot_be_told_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nvdisasm: no instructions, no spills, with the reason; the rest as ever."""
    found = gpukernels.rung("vector_add", "elementwise")
    wanted = target(found)
    group = Group("", {wanted.key: Outcome("ok", "", [Compiler(gpukernels).measure(wanted, found)])}, {})

    def missing() -> tuple[str, str]:
        raise NotHere("no nvdisasm is found")

    with monkeypatch.context() as patch:
        patch.setattr(_static, "nvdisasm", missing)
        _static.read(group, [wanted])
    assert group.facts == {f"instructions {SM}": "no nvdisasm is found"}
    suite, where = static.VectorAdd(), ("elementwise", "float32", SM)
    assert math.isnan(suite.track_instructions(group, *where))
    assert math.isnan(suite.track_spill_bytes(group, *where))
    assert suite.track_registers(group, *where) > 0
    assert suite.track_occupancy(group, *where) == 100


def test_code_that_nvdisasm_does_not_know_is_said(sass: None) -> None:
    with pytest.raises(NotHere, match="nvdisasm does not read the code for sm_90"):
        _static.disassemble([b"\xff" * 64], SM)


def test_a_cubin_that_cannot_be_read_fails_alone(tmp_path: Path) -> None:
    found = gpukernels.rung("vector_add", "elementwise")
    wanted, other = target(found), target(found, "float64")
    group = Group(
        "", {one.key: Outcome("ok", "", [Compiler(gpukernels).measure(one, found)]) for one in (wanted, other)}, {}
    )
    whole = Path(group.outcomes[wanted.key].visits[0]["cubin"]).read_bytes()
    damaged = whole[:0x28] + b"\xff" * 8 + whole[0x30:]  # the section headers lie beyond every file
    for at, content in enumerate(
        (b"", b"\x7fELF" + bytes(100), Path(kernel.__file__).read_bytes(), damaged, whole[:999])
    ):
        (tmp_path / "x.cubin").write_bytes(content)
        group.outcomes[wanted.key] = Outcome("ok", "", [{"cubin": str(tmp_path / "x.cubin"), "symbol": "x"}])
        _static.read(group, [wanted] if at else [wanted, other])
        with pytest.raises(RuntimeError, match="its cubin cannot be read"):
            static.VectorAdd().track_registers(group, "elementwise", "float32", SM)
        assert static.VectorAdd().track_registers(group, "elementwise", "float64", SM) > 0


# --- series --------------------------------------------------------------------------------------------------------


def test_series_read_the_group(groups: dict[str, Group]) -> None:
    group, where = groups["matmul"], ("thread_tile_2d", "float32", SM)
    (visit,) = group.outcomes[_static.target_key("matmul", *where)].visits
    suite, mix = static.Matmul(), static.MatmulMix()
    assert suite.track_registers(group, *where) == visit["registers"]
    assert suite.track_shared_bytes(group, *where) == visit["shared_bytes"]
    assert suite.track_instructions(group, *where) == visit["instructions"]
    assert suite.track_spill_bytes(group, *where) == 0
    assert suite.track_occupancy(group, *where) == visit["occupancy_percent"] < 100
    assert {kind: mix.track_class(group, "thread_tile_2d", kind) for kind in _static.CLASSES} == visit["mix"]
    assert math.isnan(suite.track_registers(group, "wmma", "float32", SM))  # of no such type


def test_parameters_are_the_checkouts() -> None:
    for suite, mix in ((static.VectorAdd, static.VectorAddMix), (static.Transpose, static.TransposeMix),
                       (static.Matmul, static.MatmulMix)):  # fmt: skip
        rungs = [found for found in gpukernels.op(suite.op).rungs if found.source.suffix == ".cu"]
        assert suite.params[0] == mix.params[0] == [found.name for found in rungs]
        assert set(suite.params[1]) == {type for found in rungs for type in found.types}
        assert suite.params[2] == list(ARCHES)
        assert mix.params[1] == list(_static.CLASSES)
        assert mix.arch in ARCHES
        assert all(main_type(suite.op, found.name) in found.types for found in rungs)


# --- the very cubin that is loaded ---------------------------------------------------------------------------------


@pytest.mark.gpu
def test_the_loaded_kernels_attributes() -> None:
    import cupy

    arch = f"sm_{cupy.cuda.Device().compute_capability}"
    if arch not in ARCHES:
        pytest.skip(f"{arch} has no figures: they are of {', '.join(ARCHES)}")
    compared = 0
    for found in (found for op in gpukernels.ops() for found in op.rungs if found.source.suffix == ".cu"):
        for type in found.types:
            with contextlib.suppress(gpukernels.ToolMissing):
                path, symbol = kernel.compile_cuda(found, type, arch)
                told = cupy.RawModule(path=str(path)).get_function(symbol).attributes
                mine = figures(found, type, arch)
                assert mine["registers"] == told["num_regs"], f"{found} {type}"
                assert mine["static_shared_bytes"] == told["shared_size_bytes"], f"{found} {type}"
                assert mine["stack_bytes"] == told["local_size_bytes"], f"{found} {type}"
                compared += 1
    assert compared > 50
