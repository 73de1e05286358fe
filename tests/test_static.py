"""The compile-time figures: real compilations for every architecture, planted changes that must move them."""

import contextlib
import dataclasses
import io
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpukernels
from benchmarks import static
from benchmarks.project import PROJECT, Gpukernels
from gpukernels import Rung, compiler
from kernelwatch.analysis import compiled
from kernelwatch.analysis import sass as sass_module
from kernelwatch.analysis.compiled import Compiler, target
from kernelwatch.analysis.occupancy import ARCHES, LIMITS, occupancy
from kernelwatch.analysis.sass import CLASSES, count, disassemble
from kernelwatch.emulator.build import headers_beside
from kernelwatch.plan.cubin import read_cubin
from kernelwatch.plan.package import NotHere
from kernelwatch.run.outcome import Group, Outcome
from kernelwatch.suites import compiled as suite_module
from kernelwatch.suites.compiled import measure
from kernelwatch.system import cache, tools
from kernelwatch.system.errors import ToolMissing
from kernelwatch.system.options import Options
from kernelwatch.timing.record import Measurement

ROOT = Path(__file__).resolve().parents[1]
SM = "sm_90"


class Changed(Gpukernels):
    """The package with one rung in place of the ladder's of that name."""

    def __init__(self, found: Rung) -> None:
        super().__init__(gpukernels)
        self.found = found

    def rung(self, op: str, name: str, type: str) -> Rung:
        assert (op, name) == (self.found.op, self.found.name)
        return self.found


def where(found: Rung, type: str = "float32", arch: str = SM) -> Measurement:
    """Where a rung's cubin is, as a worker tells it."""
    return Compiler(PROJECT, Changed(found)).measure(target(found.op, found.name, type, arch))


def figures(found: Rung, type: str = "float32", arch: str = SM) -> dict[str, Any]:
    """A rung's figures, as a worker and the engine make them together."""
    measurement = where(found, type, arch)
    assert compiled.read({"key": (arch, measurement)}) == ({}, {})
    return dict(measurement)


def spilled(found: dict[str, Any]) -> int:
    return int(found["spill_load_bytes"] + found["spill_store_bytes"])


Change = Callable[..., Rung]


@pytest.fixture(scope="module")
def sass(kernel_cache: Path) -> None:
    """Skips where there is no disassembler: then instructions and spills are n/a."""
    try:
        tools.nvdisasm()
    except ToolMissing as error:
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

    _, symbol = compiler.compile_cuda(found, type, arch)
    names = dict.fromkeys(compiler.in_and_out(type))
    includes = "".join(f"#include <{compiler.TYPES[name][2]}>\n" for name in names if compiler.TYPES[name][2])
    macros = [(name, str(value)) for name, value in sorted(found.macros().items())]
    options = ProgramOptions(
        arch=arch,
        std="c++17",
        define_macro=macros,
        include_path=[str(found.source.parent), *compiler._cuda_headers()],
        ptxas_options=["-v"],
    )
    expression = f"{found.symbol}<{', '.join(compiler.TYPES[name][0] for name in names)}>"
    said = io.StringIO()
    program = Program(includes + found.source.read_text(), "c++", options)
    program.compile("cubin", name_expressions=(expression,), logs=said)
    words = said.getvalue()
    assert symbol in words, words
    words = words.partition(f"entry function '{symbol}'")[2].partition("entry function")[0]

    def number(pattern: str) -> int:
        match = re.search(pattern, words)
        return int(match[1]) if match else 0

    return {
        "registers": number(r"Used (\d+) registers"),
        "static_shared_bytes": number(r"(\d+) bytes smem"),
        "stack_bytes": number(r"(\d+) bytes stack frame"),
        "spill_store_bytes": number(r"(\d+) bytes spill stores"),
        "spill_load_bytes": number(r"(\d+) bytes spill loads"),
    }


def test_a_header_is_compiled_with_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = gpukernels.rung("vector_add", "elementwise")
    source, package = tmp_path / found.source.name, PROJECT.adapt(gpukernels)
    text = found.source.read_text(encoding="utf-8")
    source.write_text(f'#include "times.cuh"\n{text.replace("+ b[i]", "+ TIMES * b[i]")}')
    moved = dataclasses.replace(found, source=source)
    monkeypatch.setattr(package, "rung", lambda *_: moved)
    made = []
    for times in (1, 3, 1):
        (tmp_path / "times.cuh").write_text(f"#define TIMES {times}\n")
        made.append(package.binary("vector_add", "elementwise", "float32", SM).path)
    plain = compiler.compile_cuda(found, "float32", SM)[0]
    assert made[0] == made[2]
    assert [path.read_bytes() == plain.read_bytes() for path in made[:2]] == [True, False]


def bounds(arch: str) -> tuple[str, str]:
    """The change that asks for as many blocks as the SM has threads for: each then has too few registers."""
    name = "matmul_thread_tile_2d"
    return f"void {name}", f"void __launch_bounds__(256, {LIMITS[arch][0] // 256}) {name}"


INDEXED = (  # an array that no register can hold, since the index is known at run time
    "out[i] = a[i] + b[i];",
    "{ T kept[8]; for (int k = 0; k < 8; ++k) kept[k] = a[(i + k) % N]; out[i] = kept[(N + i) & 7] + b[i]; }",
)


# --- every rung ----------------------------------------------------------------------------------------------------


compiled_group = pytest.mark.xdist_group("compiled")  # one compilation of all rungs for all of these


TENSOR = {  # on tensor cores
    "matmul/wmma",
    *(str(rung) for rung in gpukernels.op("matmul").rungs if rung.arch_only),
}


LARGE_TILE = 128 * 256


def exists(found: Rung, type: str, arch: str) -> bool:
    if found.arch_only:
        return arch == f"sm_{found.arch_only.rstrip('a')}"
    return int(arch[3:]) >= dict(found.arch_min).get(type, 0)


def is_compiled(found: Rung, type: str, arch: str) -> bool:
    """Each type is compiled for the first architecture that it exists for, which offers least; the main one for the
    last one and SM too, and vector_add, which is quickly compiled, for all. Large tiles in registers, which take
    seconds, are for one. What does not exist costs nothing."""
    there = [other for other in ARCHES if exists(found, type, other)]
    if not found.arch_only and math.prod(found.tile) >= LARGE_TILE:
        return arch == SM
    main = type == PROJECT.ops[found.op].main_type(found.name)
    return arch == there[0] or arch not in there or (main and arch in (SM, there[-1])) or found.op == "vector_add"


RUNGS = [found for op in gpukernels.ops() for found in op.rungs if found.source.suffix == ".cu"]
TARGETS = {
    target(found.op, found.name, type, arch).key: exists(found, type, arch)
    for found in RUNGS
    for type in found.types
    for arch in ARCHES
    if is_compiled(found, type, arch)
}
CHOSEN = Options(tree=str(ROOT), only=f"^({'|'.join(map(re.escape, TARGETS))})$")


@pytest.fixture(scope="module")
def groups(sass: None, kernel_cache: Path) -> dict[str, Group]:
    """All ops, compiled by workers as asv's runs have it."""
    return {op: measure(PROJECT, op, CHOSEN) for op in PROJECT.ops}


@compiled_group
def test_every_rung_has_every_figure(groups: dict[str, Group]) -> None:
    outcomes = {key: outcome for group in groups.values() for key, outcome in group.outcomes.items()}
    assert set(outcomes) == set(TARGETS)
    assert {key: outcome.state == "ok" for key, outcome in outcomes.items()} == TARGETS
    for key in [key for key, there in TARGETS.items() if not there]:
        assert outcomes[key].state == "na"
        assert "compute capability" in outcomes[key].reason
    for key in [key for key, there in TARGETS.items() if there]:
        (told,) = outcomes[key].measurements
        assert 0 < told["registers"] <= 255, key
        assert 0 < told["occupancy_percent"] <= 100, key
        assert told["instructions"] == sum(told["mix"].values()) > told["mix"]["global"] > 0, key
        name = key.split()[0]
        assert (told["mix"]["tensor"] > 0) == (name in TENSOR), key
        assert told["mix"]["control"] > 0, key
        if key.startswith("matmul") and name not in TENSOR and " float16" not in key:
            assert told["mix"]["fma"] > 0, key
        if name not in TENSOR - {"matmul/wmma"}:  # only the copy engine and the tensor cores access it
            assert (told["mix"]["shared"] > 0) == (told["shared_bytes"] > 0), key
        assert "/" not in json.dumps(told), key  # no path of this machine goes into the sidecar
    for group in groups.values():
        assert set(group.facts) - {"imports"} == {"harness", "packages"}


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Empty caches in a folder: of the package and of the engine."""
    for name in ("GPUKERNELS_CACHE", "KERNELWATCH_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    cache.folder.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    cache.folder.cache_clear()


@compiled_group
def test_twice_the_same(groups: dict[str, Group], cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From other caches, in other processes, and again from what is kept."""
    some = dataclasses.replace(CHOSEN, only=r"^vector_add/.* float32 ")
    for _ in range(2):
        again = measure(PROJECT, "vector_add", some)
        assert again.outcomes
        assert again.outcomes == {key: groups["vector_add"].outcomes[key] for key in again.outcomes}
        assert again.facts == groups["vector_add"].facts
        kept = {path: path.stat().st_mtime_ns for path in cold.rglob("*") if path.is_file()}
        assert {".cubin", ".sass"} <= {path.suffix for path in kept}
        monkeypatch.setattr(sass_module, "disassemble", None)  # a second call has nothing to ask it
    assert {path: path.stat().st_mtime_ns for path in cold.rglob("*") if path.is_file()} == kept


@pytest.mark.parametrize("arch", ["sm_75", SM, "sm_120"])
def test_the_figures_are_ptxass(arch: str, changed: Change) -> None:
    kernels = [
        (gpukernels.rung("transpose", "padded"), "complex128"),
        (changed("matmul", "thread_tile_2d", bounds(arch)), "float32"),
    ]
    if arch == SM:
        kernels.append((gpukernels.rung("matmul", "wmma"), "float16->float32"))
    for found, type in kernels:
        told = ptxas(found, type, arch)
        mine = figures(found, type, arch)
        assert {name: mine[name] for name in told} == told, f"{found} {arch}"


def disassembled(rungs: Sequence[tuple[Rung, str]]) -> list[list[tuple[str, str]]]:
    """The instructions (name, operands) of rungs with their types."""
    binaries = [compiler.compile_cuda(found, type, SM) for found, type in rungs]
    return disassemble([read_cubin(path.read_bytes(), symbol, SM).code for path, symbol in binaries], SM)


def read_by_multiply_adds(instructions: Sequence[tuple[str, str]]) -> Iterator[set[str]]:
    """The registers that each multiply-add reads. One that a multiply-add right before has read in the same place and
    kept (.reuse) is not read."""
    kept = ["", "", ""]
    for name, operands in instructions:
        if name == "FFMA":
            places = [place.strip() for place in operands.split(",")[1:]]
            registers = [place.removesuffix(".reuse") for place in places]
            yield {one for one, before in zip(registers, kept, strict=True) if one != before}
            kept = [one if place.endswith(".reuse") else "" for one, place in zip(registers, places, strict=True)]
        else:
            kept = ["", "", ""]


def of_one_bank(instructions: Sequence[tuple[str, str]]) -> int:
    """The multiply-adds that read three registers of one of the two register banks, as Volta has them (Jia et al.,
    Dissecting the NVIDIA Volta GPU architecture)."""
    triples = [read for read in read_by_multiply_adds(instructions) if len(read) == 3]
    return sum(len({int(one[1:]) % 2 for one in read if one[1:].isdigit()}) == 1 for read in triples)


@compiled_group
def test_a_vector_is_moved_by_one_access(sass: None) -> None:
    """Rungs with vectors.cuh have their code twice: for vectors and for single elements. If nvcc takes a vector apart,
    there are more accesses to single elements. Nor do sums that leave as vectors lie where both of their factors do."""
    rungs = [found for found in RUNGS if found.source.parent / "vectors.cuh" in headers_beside(found.source)]
    assert len(rungs) > 1
    for found, instructions in zip(rungs, disassembled([(found, found.types[0]) for found in rungs]), strict=True):
        names = [name.split(".") for name, _ in instructions]
        accesses = Counter((name, "128" in suffixes) for name, *suffixes in names)
        assert accesses["FFMA", False] > 0
        assert of_one_bank(instructions) <= 0.01 * accesses["FFMA", False], str(found)
        results = math.prod(found.tile) // math.prod(found.block)  # of a thread
        assert accesses["STG", False] == results, str(found)
        times = 3 if found.name == "split_tail" else 1  # it also stores its parts, for vectors and for single elements
        assert accesses["STG", True] == times * results // 4, str(found)
        assert accesses["LDG", False] == 4 * accesses["LDG", True], str(found)


@compiled_group
def test_multiply_adds_in_serpentine_order_read_fewer_registers(sass: None) -> None:
    """A thread has 8 x 8 sums. At 7 turns of 64 multiply-adds both factors changed before; now one of them stays."""
    rungs = [(gpukernels.rung("matmul", name), "float32") for name in ("async_stages", "serpentine")]
    before, after = (list(map(len, read_by_multiply_adds(instructions))) for instructions in disassembled(rungs))
    assert before.count(3) / len(before) - after.count(3) / len(after) > 0.8 * 7 / 64


@compiled_group
@pytest.mark.parametrize(("name", "parts"), [("bf16x6", 3), ("fp16x3", 2)])
def test_the_parts_of_eight_numbers_leave_by_one_access_each(sass: None, name: str, parts: int) -> None:
    """nvcc took an assignment to *(uint4 *) apart, into stores of 4 bytes, if there are two parts."""
    found = gpukernels.rung("matmul", name)
    path, _ = compiler.compile_cuda(found, found.types[0], SM)
    (instructions,) = disassemble([read_cubin(path.read_bytes(), f"matmul_{name}_parts", SM).code], SM)
    stores = Counter(mnemonic for mnemonic, _ in instructions if mnemonic.startswith("STG"))
    wide = sum(count for mnemonic, count in stores.items() if "128" in mnemonic)
    assert wide % parts == 0 < wide, stores
    assert stores["STG.E"] <= 2, stores  # scales


@compiled_group
def test_all_lanes_store_a_step_of_words_together(sass: None) -> None:
    """A store for each step of 32 words, one for what lies before the first sector, one at an edge. If nvcc unrolls by
    what lanes have left, there are more."""
    found = gpukernels.rung("transpose", "sector_words")
    for type, instructions in zip(found.types, disassembled([(found, type) for type in found.types]), strict=True):
        names = [name.split(".") for name, _ in instructions]
        words = found.of(type).tile[0] * np.dtype(type).itemsize // 4  # of a column
        assert [name for name, *_ in names].count("STG") == math.ceil(words / 32) + 2, type


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


def test_a_rung_that_fails_for_one_architecture_fails_there_only(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "gpukernels", tmp_path / "gpukernels", ignore=shutil.ignore_patterns("__pycache__"))
    source = tmp_path / "gpukernels" / "vector_add" / "elementwise.cu"
    planted = "#if __CUDA_ARCH__ == 750\n#error no longer for this one\n#endif\n"
    source.write_text(source.read_text() + planted)
    group = measure(PROJECT, "vector_add", Options(tree=str(tmp_path), facts=str(tmp_path)))
    failed = {key for key, outcome in group.outcomes.items() if outcome.state == "failed"}
    assert failed == {f"vector_add/elementwise {type} sm_75" for type in ("float32", "float64")}
    suite = static.VectorAdd()
    with pytest.raises(RuntimeError, match=r"NVRTC does not compile it for sm_75(.|\n)*no longer for this one"):
        suite.track_registers(group, "elementwise", "float32", "sm_75")
    assert suite.track_registers(group, "elementwise", "float32", "sm_80") > 0
    lines = [json.loads(line) for line in (tmp_path / "vector_add.static.jsonl").read_text().splitlines()]
    assert {line["key"] for line in lines if line.get("state") == "failed"} == failed


def test_a_commit_before_the_contract_is_not_available(tmp_path: Path) -> None:
    (tmp_path / "gpukernels").mkdir()
    (tmp_path / "gpukernels" / "__init__.py").write_text("load = rung = 1\nclass LadderError(Exception): pass\n")
    group = measure(PROJECT, "vector_add", Options(tree=str(tmp_path)))
    said = {(outcome.state, outcome.reason) for outcome in group.outcomes.values()}
    assert said == {("na", "this commit's gpukernels lacks compile_cuda: older than the harness")}
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
        ("sm_90", 16, 0, 100 * 1024, 256, 100 * 2 * 8 / 64),  # 228 KiB hold two of 100 + 1 KiB
        ("sm_86", 16, 0, 100 * 1024, 256, 0.0),  # a block may have 99 KiB
        ("sm_90", 16, 0, 0, 32, 50.0),  # 32 blocks of one warp
        ("sm_120", 16, 0, 0, 32, 100 * 24 / 48),  # 24 blocks of one warp
    ],
)  # fmt: skip
def test_occupancy(
    kernel_cache: Path, arch: str, registers: int, static_shared: int, dynamic_shared: int, threads: int, percent: float
) -> None:
    found = occupancy(arch, registers, static_shared, dynamic_shared, threads)
    assert found == pytest.approx(percent)


# --- instructions --------------------------------------------------------------------------------------------------


def test_classes_and_bytes() -> None:
    found = count(
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
    measurement, place = where(gpukernels.rung("vector_add", "elementwise")), ("elementwise", "float32", SM)

    def missing() -> tools.Tool:
        raise ToolMissing("no nvdisasm is found")

    monkeypatch.setattr(tools, "nvdisasm", missing)
    key = target("vector_add", *place).key
    assert compiled.read({key: (SM, measurement)}) == ({}, {f"instructions {SM}": "no nvdisasm is found"})
    group = Group("", {key: Outcome("ok", "", [measurement])}, {})
    suite = static.VectorAdd()
    assert math.isnan(suite.track_instructions(group, *place))
    assert math.isnan(suite.track_spill_bytes(group, *place))
    assert suite.track_registers(group, *place) > 0
    assert suite.track_occupancy(group, *place) == 100


def test_why_a_figure_is_missing_is_among_the_facts(kernel_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> float:
        raise ToolMissing("no cuda_occupancy.h is found")

    monkeypatch.setattr(compiled, "occupancy", missing)
    group = measure(PROJECT, "vector_add", Options(tree=str(ROOT), only=f" float32 {SM}$"))
    facts: Any = group.facts
    assert facts["occupancy"] == "no cuda_occupancy.h is found"
    place = "elementwise", "float32", SM
    assert math.isnan(static.VectorAdd().track_occupancy(group, *place))
    assert static.VectorAdd().track_registers(group, *place) > 0


def test_code_that_nvdisasm_does_not_know_is_said(sass: None) -> None:
    with pytest.raises(NotHere, match="nvdisasm does not read the code for sm_90"):
        disassemble([b"\xff" * 64], SM)


@pytest.mark.parametrize("damage", ["empty", "only a header", "another kind of file", "headers beyond it", "cut short"])
def test_a_cubin_that_cannot_be_read_fails_alone(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {type: where(gpukernels.rung("vector_add", "elementwise"), type) for type in ("float32", "float64")}
    whole = Path(told["float32"]["cubin"]).read_bytes()
    content = {
        "empty": b"",
        "only a header": b"\x7fELF" + bytes(100),
        "another kind of file": Path(compiler.__file__).read_bytes(),
        "headers beyond it": whole[:0x28] + b"\xff" * 8 + whole[0x30:],  # the section headers lie beyond every file
        "cut short": whole[:999],
    }[damage]
    (tmp_path / "x.cubin").write_bytes(content)
    told["float32"]["cubin"] = str(tmp_path / "x.cubin")
    cells = {type: target("vector_add", "elementwise", type, SM) for type in told}
    outcomes = {cells[type].key: Outcome("ok", "", [measurement]) for type, measurement in told.items()}
    monkeypatch.setattr(suite_module, "measure_once", lambda *_: Group("vector_add static", outcomes, {}))
    group = measure(PROJECT, "vector_add", Options(only=f" {SM}$"))
    with pytest.raises(RuntimeError, match="its cubin cannot be read"):
        static.VectorAdd().track_registers(group, "elementwise", "float32", SM)
    assert static.VectorAdd().track_registers(group, "elementwise", "float64", SM) > 0
    assert group.outcomes[cells["float32"].key].measurements == []


# --- series --------------------------------------------------------------------------------------------------------


@compiled_group
def test_series_read_the_group(groups: dict[str, Group]) -> None:
    group, place = groups["matmul"], ("thread_tile_2d", "float32", SM)
    (told,) = group.outcomes[target("matmul", *place).key].measurements
    suite, mix = static.Matmul(), static.MatmulMix()
    assert suite.track_registers(group, *place) == told["registers"]
    assert suite.track_shared_bytes(group, *place) == told["shared_bytes"]
    assert suite.track_instructions(group, *place) == told["instructions"]
    assert suite.track_spill_bytes(group, *place) == 0
    assert suite.track_occupancy(group, *place) == told["occupancy_percent"] < 100
    assert {kind: mix.track_class(group, "thread_tile_2d", kind) for kind in CLASSES} == told["mix"]
    assert math.isnan(suite.track_registers(group, "wmma", "float32", SM))  # of no such type


def test_parameters_are_the_checkouts() -> None:
    for suite, mix in ((static.VectorAdd, static.VectorAddMix), (static.Transpose, static.TransposeMix),
                       (static.Matmul, static.MatmulMix)):  # fmt: skip
        ladder = gpukernels.op(suite.op).rungs
        rungs = [found for found in ladder if found.source.suffix == ".cu" or "triton" in found.needs]
        assert suite.params[0] == mix.params[0] == [found.name for found in rungs]
        assert set(suite.params[1]) == {type for found in rungs for type in found.types}
        assert suite.params[2] == list(ARCHES)
        assert mix.params[1] == list(CLASSES)
        assert mix.arch in ARCHES
        assert all(suite().problem.main_type(found.name) in found.types for found in rungs)


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
                path, symbol = compiler.compile_cuda(found, type, arch)
                told = cupy.RawModule(path=str(path)).get_function(symbol).attributes
                mine = figures(found, type, arch)
                assert mine["registers"] == told["num_regs"], f"{found} {type}"
                assert mine["static_shared_bytes"] == told["shared_size_bytes"], f"{found} {type}"
                assert mine["stack_bytes"] == told["local_size_bytes"], f"{found} {type}"
                compared += 1
    assert compared > 50
