"""scripts/versus: verdicts on synthetic noise, and on real commits of a copy of this project with planted changes."""

import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.project import PROJECT
from kernelwatch.comparison import bisect, exact, paired
from kernelwatch.comparison.changes import changes, classify, read
from kernelwatch.comparison.choice import by_pattern, cells_of, choose, main_types
from kernelwatch.comparison.paired import Comparison, Side
from kernelwatch.comparison.verdict import undescribed
from kernelwatch.plan.cells import Cell, plan, timed
from kernelwatch.report import comparison
from kernelwatch.run.outcome import Outcome
from kernelwatch.system.errors import CANNOT, UserError
from kernelwatch.system.student import quantile
from tests.repositories import (
    INTERRUPTIBLE,
    ROOT,
    Project,
    copy_into,
    few_rungs,
    new_project,
    processes_in,
    rewrite,
    smaller,
)

# --- statistics ----------------------------------------------------------------------------------------------------

BASE, HEAD = Side("BASE", "base"), Side("HEAD", "head")


def cells(device: str, *names: str) -> list[Cell]:
    return [Cell("transpose", name, "float32", (256, 256), "cold", device) for name in names]


class Synthetic:
    """In the place of the harness's Run: seconds of 1 ms times what `ratio(side, rung, turn)` says."""

    calls: list[tuple[str, tuple[str, ...]]]
    ratio: Callable[[str, str, int], float]
    same: frozenset[str] = frozenset({"numpy"})

    def __init__(self, project: object, cells: list[Cell], device: str, package: str, budget: object) -> None:
        self.cells, self.package, self.unavailable = cells, package, ""
        self.group: Any = type("Group", (), {"outcomes": {cell.key: Outcome() for cell in cells}})()

    def measure_all(self, seed: int) -> None:
        type(self).calls.append((self.package, tuple(cell.rung for cell in self.cells)))
        for cell in self.cells:
            seconds = 1e-3 * type(self).ratio(self.package, cell.rung, seed)
            identity = cell.rung if cell.rung in self.same else f"{cell.rung} {self.package}"
            canary = {"memory": 1e-4 * type(self).ratio(self.package, "canary", seed)}
            beside = canary if cell.device == "gpu" else {}
            self.group.outcomes[cell.key] = Outcome(
                "ok", "", [{"seconds": seconds, "identity": identity, "canary_s": beside}]
            )


@pytest.fixture
def synthetic(monkeypatch: pytest.MonkeyPatch) -> type[Synthetic]:
    fresh = type("Fresh", (Synthetic,), {"calls": []})
    monkeypatch.setattr(paired, "Run", fresh)
    return fresh


def compared(
    synthetic: type[Synthetic], ratio: Callable[[str, str, int], float], device: str = "gpu", count: int = 5
) -> dict[str, str]:
    """The verdicts on `count` rungs beside a control, by rung."""
    synthetic.ratio = staticmethod(ratio)
    taken = cells(device, *(f"rung{at}" for at in range(count)), "numpy")
    controls = paired.controls_of(taken, {("transpose", device): "numpy"})
    found = Comparison(PROJECT, BASE, HEAD, taken, controls)
    found.run(math.inf)
    return {pairs.cell.rung: judged.word for pairs, judged in found.verdicts()}


def noise(seed: int, sigma: float, heavy: bool = False) -> Callable[[], float]:
    rng = np.random.default_rng(seed)
    return lambda: math.exp(sigma * (float(rng.standard_t(2)) if heavy else float(rng.normal())))


def test_an_interval_is_students_where_nothing_is_trimmed() -> None:
    logs = [0.01, 0.03, -0.02, 0.05]
    found = paired.interval(logs, 0.01)
    half = quantile(0.995, 3) * statistics.stdev(logs) / 2
    assert found.middle == pytest.approx(0.0175)
    assert found.half == pytest.approx(half)
    assert found.shows == pytest.approx(half * (1 + quantile(0.95, 3) / quantile(0.995, 3)))
    assert paired.interval([0.5], 0.01).half == math.inf


def test_one_process_that_was_held_up_does_not_blur_the_rest() -> None:
    quiet = [0.001 * (-1) ** at for at in range(10)]
    held_up = [*quiet[:-1], 3.0]
    assert paired.interval(held_up, 1e-3).half < 0.01
    assert abs(paired.interval(held_up, 1e-3).middle) < 0.001


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("sigma", [0.002, 0.05, 0.3])
def test_without_a_change_hardly_a_comparison_blames(synthetic: type[Synthetic], sigma: float, heavy: bool) -> None:
    """Of 60 comparisons of 5 cells each, all looks included, 1 % may; 5 or more would happen once in 2,500 times."""
    blamed = 0
    for seed in range(60):
        draw = noise(seed, sigma, heavy)
        words = compared(synthetic, lambda *_, draw=draw: draw(), "cpu").values()
        blamed += any(word in ("worse", "better") for word in words)
    assert blamed < 5


def test_the_level_is_for_all_cells_and_looks_together(
    synthetic: type[Synthetic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a floor and without a control, that nothing but the level is between noise and a verdict."""
    monkeypatch.setattr(paired, "FLOOR", {"cpu": 0.0})
    blamed = 0
    for seed in range(60):
        draw = noise(seed, 0.05)
        synthetic.ratio = staticmethod(lambda *_, draw=draw: draw())
        found = Comparison(PROJECT, BASE, HEAD, cells("cpu", *(f"rung{at}" for at in range(5))), {})
        found.run(math.inf)
        blamed += any(judged.word in ("worse", "better") for _, judged in found.verdicts())
    assert blamed < 5


@pytest.mark.parametrize(("change", "word"), [(1.0, "no change"), (1.012, "worse"), (0.988, "better")])
def test_at_a_gpus_noise_a_change_of_a_per_cent_is_told(synthetic: type[Synthetic], change: float, word: str) -> None:
    for seed in range(40):
        draw = noise(seed, 0.001)

        def ratio(side: str, rung: str, _: int, draw: Callable[[], float] = draw) -> float:
            return draw() * (change if side == "head" and rung.startswith("rung") else 1)

        words = compared(synthetic, ratio)
        assert {words[f"rung{at}"] for at in range(5)} == {word}


def test_noise_that_hides_everything_is_said_to(synthetic: type[Synthetic]) -> None:
    draw = noise(1, 0.3)
    words = compared(synthetic, lambda *_: draw(), "cpu")
    assert {words[f"rung{at}"] for at in range(5)} == {"cannot tell"}


@pytest.mark.parametrize("moved", ["numpy", "canary"])
def test_what_moves_its_control_as_well_is_the_environment(synthetic: type[Synthetic], moved: str) -> None:
    draw = noise(2, 0.0005)

    def ratio(side: str, rung: str, _: int) -> float:
        return draw() * (1.05 if side == "head" and (rung.startswith("rung") or rung == moved) else 1)

    words = compared(synthetic, ratio)
    assert {words[f"rung{at}"] for at in range(5)} == {"cannot tell"}
    assert compared(synthetic, lambda *_: 1.2 * ratio(*_) if _[:2] == ("head", "rung0") else ratio(*_))["rung0"] == (
        "worse"  # more than its control
    )


def test_a_control_that_moves_alone_leaves_no_change_in_doubt(synthetic: type[Synthetic]) -> None:
    draw = noise(3, 0.0005)
    words = compared(synthetic, lambda side, rung, _: draw() * (1.05 if (side, rung) == ("head", "numpy") else 1))
    assert {words[f"rung{at}"] for at in range(5)} == {"cannot tell"}


def test_the_same_binary_is_never_blamed(synthetic: type[Synthetic]) -> None:
    synthetic.same = frozenset({"rung0", "numpy"})
    words = compared(synthetic, lambda side, rung, _: 2.0 if (side, rung) == ("head", "rung0") else 1.0, count=1)
    assert words["rung0"] == "cannot tell"  # nor called unchanged: its identity may lack something
    words = compared(synthetic, lambda side, rung, _: 1.0, count=1)
    assert words["rung0"] == "no change"


def test_sides_take_turns_and_only_the_undecided_is_measured_longer(synthetic: type[Synthetic]) -> None:
    draw, loud = noise(4, 0.0001), noise(5, 0.3)
    compared(synthetic, lambda _, rung, __: loud() if rung == "rung1" else draw(), count=2)
    turns = [side for side, _ in synthetic.calls]
    assert turns[:8] == ["base", "head", "head", "base"] * 2
    assert len(turns) == 2 * paired.LOOKS[-1]
    assert synthetic.calls[0][1] == ("rung0", "rung1", "numpy")
    assert synthetic.calls[-1][1] == ("rung1", "numpy")


def test_a_budget_ends_it_but_not_before_the_first_look(synthetic: type[Synthetic]) -> None:
    loud = noise(6, 0.3)
    synthetic.ratio = staticmethod(lambda *_: loud())
    found = Comparison(PROJECT, BASE, HEAD, cells("cpu", "rung0"), {})
    found.run(0.0)
    assert found.turns == paired.LOOKS[0]


def test_a_side_that_fails_later_on_is_not_told_of(synthetic: type[Synthetic], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first turns do not make the other side's cell a new one; a process that hung is tried once more."""
    attempts: list[str] = []

    class Hangs(synthetic):  # type: ignore[valid-type, misc]
        def measure_all(self, seed: int) -> None:
            super().measure_all(seed)
            if seed == 1 and self.package == "base":
                attempts.append(self.package)
                for cell in self.cells:
                    self.group.outcomes[cell.key] = Outcome("failed", "it hung: nothing for 60 s")

    monkeypatch.setattr(paired, "Run", Hangs)
    draw = noise(7, 0.001)
    Hangs.ratio = staticmethod(lambda *_: draw())
    found = Comparison(PROJECT, BASE, HEAD, cells("cpu", "rung0"), {})
    found.run(math.inf)
    ((pairs, judged),) = found.verdicts()
    assert attempts == ["base", "base"]
    assert (judged.word, judged.why) == ("cannot tell", "BASE: it hung: nothing for 60 s")
    assert comparison._row(pairs, judged, "=")[2:] == ["", "unknown", "> 100 %", "cannot tell"]


@pytest.mark.parametrize(
    ("verdicts", "found"),
    [
        ("gggb", (2, 3, [])),
        ("gbbb", (0, 1, [])),
        ("ggbbbbbbb", (1, 2, [])),
        ("gg?b", (1, 3, [2])),
        ("g?gb", (2, 3, [])),  # what cannot be judged is passed over where others decide
        ("g??bb", (0, 3, [1, 2])),
    ],
)
def test_the_first_bad_one(verdicts: str, found: tuple[int, int, list[int]]) -> None:
    words = {"g": "good", "b": "bad", "?": "cannot tell"}
    assert bisect.first_bad(len(verdicts), lambda at: words[verdicts[at]]) == found


def test_a_change_of_the_ladder_alone_is_a_change_of_the_launch(tmp_path: Path) -> None:
    """The binary may be the same: `--find` must not pass over it."""
    folders = [tmp_path / "before", tmp_path / "after"]
    for folder in folders:
        shutil.copytree(ROOT / "gpukernels", folder / "gpukernels", ignore=shutil.ignore_patterns("__pycache__"))
    ladder = folders[1] / "gpukernels" / "ladder.toml"
    ladder.write_text(ladder.read_text().replace("edges = [32, 16, 8]", "edges = [16, 32, 8]"))
    before, after = (bisect.Commit(PROJECT, folder.name, tmp_path, str(folder)) for folder in folders)
    assert not bisect._alike(before, after, "transpose/dynamic")
    assert bisect._alike(before, after, "transpose/padded")


def test_which_series_are_judged_is_the_pages_business() -> None:
    series = {str(one): one for one in exact.series_of(PROJECT, {"transpose/padded"})}
    spills = series["static.Transpose.track_spill_bytes(padded, float32, sm_90)"]
    registers = series["static.Transpose.track_registers(padded, float32, sm_90)"]
    assert spills.verdict(0.0, 8.0) == "worse"
    assert spills.verdict(8.0, 0.0) == "better"
    assert registers.verdict(8.0, 9.0) == "changed"
    assert spills.verdict(math.nan, 0.0) == spills.verdict("does not compile", "nor this") == "n/a"
    assert spills.verdict(0.0, "does not compile") == "failed"


def test_cells_have_a_control_beside_them() -> None:
    names = ["matmul/wmma", "matmul/c", "transpose/c_blocked", "transpose/padded"]
    found = choose(PROJECT, cells_of(PROJECT, main_types(PROJECT, names)), set(), names)
    by_rung = {key.split()[0]: other.split()[0] for key, other in found.controls.items()}
    assert by_rung == {
        "matmul/wmma": "matmul/cublas",
        "matmul/c": "matmul/numpy",
        "transpose/c_blocked": "transpose/numpy",
        "transpose/padded": "transpose/vector_copy",
    }
    assert {cell.type for cell in found.cells if cell.rung == "wmma"} == {"float16->float32"}
    wanted = cells_of(PROJECT, main_types(PROJECT, ["transpose/numpy", "transpose/c"]))
    changed = choose(PROJECT, wanted, set(), ["transpose/numpy"])
    on_cpu = plan(PROJECT.op("transpose"), "cpu")
    assert set(changed.controls.values()) == {cell.key for cell in on_cpu if cell.rung == "c"}
    assert cells_of(PROJECT, main_types(PROJECT, ["matmul/between_grids"])) == []


def test_a_pattern_names_cells_and_what_is_compiled() -> None:
    cells = [cell for cell in timed(PROJECT) if re.search("transpose/padded float32 1024x1024", cell.key)]
    found = by_pattern(PROJECT, "transpose/padded float32 1024x1024", [])
    assert {cell.key for cell in cells} == {cell.key for cell in found.cells if cell.rung == "padded"} != set()
    assert {cell.rung for cell in found.cells} == {"padded", "vector_copy"}
    assert found.exact == {"transpose/padded"}
    found = by_pattern(PROJECT, "transpose/padded float32 sm_90", [])
    assert found.cells == []
    assert found.exact == {"transpose/padded"}
    with pytest.raises(
        UserError, match=r"no cell matches 'warp'; one is named like 'vector_add/elementwise float32 65536 "
    ):
        by_pattern(PROJECT, "warp", [])


# --- what differs between two packages -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Packages:
    """Two folders with a copy of the package each; the second is edited."""

    base: Path
    head: Path

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.head / PROJECT.package / file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file} has {text.count(old)} of {old!r}"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def edit_entry(self, rung: str, old: str, new: str) -> None:
        """Change the first text of this kind in the ladder's entry of a rung."""
        path = self.head / PROJECT.package / "ladder.toml"
        head, found, entry = path.read_text(encoding="utf-8").partition(f'\nname = "{rung}"\n')
        assert found
        assert old in entry.partition("\n[")[0], f"the entry of {rung} has no {old!r}"
        path.write_text(f"{head}{found}{entry.replace(old, new, 1)}", encoding="utf-8")

    def differ(self) -> tuple[list[str], list[str]]:
        """Of the second to the first, before anything is launched: launched otherwise, compiled from another source."""
        every = PROJECT.rungs()
        found = classify(read(PROJECT, str(self.base), every), read(PROJECT, str(self.head), every))
        assert found.rungs == [*found.launched, *found.compiled, *found.new]
        assert len(found.same) == len(every) - len(found.rungs)
        return list(found.launched), list(found.compiled)


@pytest.fixture
def packages(tmp_path: Path) -> Packages:
    found = Packages(tmp_path / "base", tmp_path / "head")
    for folder in (found.base, found.head):
        folder.mkdir()
        copy_into(folder, [PROJECT.package])
    return found


def rungs_of(op: str) -> list[str]:
    return [name for name in PROJECT.rungs() if name.startswith(f"{op}/")]


def test_the_same_package_differs_in_nothing(packages: Packages) -> None:
    made = packages.head / PROJECT.package / "transpose" / "__pycache__"
    made.mkdir(exist_ok=True)
    (made / "numpy.pyc").touch()
    assert packages.differ() == ([], [])


@pytest.mark.parametrize(("old", "new"), [('idea = "', 'idea = "In other words: '), ('origin = "', 'origin = "after ')])
def test_the_words_of_an_entry_launch_nothing(packages: Packages, old: str, new: str) -> None:
    packages.edit_entry("padded", old, new)
    assert packages.differ() == ([], [])


def test_another_block_is_launched_otherwise(packages: Packages) -> None:
    packages.edit_entry("conflict_free", "block = [32, 32]", "block = [32, 16]")
    assert packages.differ() == (["matmul/conflict_free"], [])


def test_another_source_is_compiled(packages: Packages) -> None:
    packages.edit("transpose/padded.cu", "    // Row of out", "    // A row of out")
    packages.edit("transpose/c.c", "void transpose_c(", "// A comment.\nvoid transpose_c(")
    assert packages.differ() == ([], ["transpose/padded", "transpose/c"])


def test_a_source_of_two_rungs_is_compiled_for_both(packages: Packages) -> None:
    packages.edit("matmul/tiled.cu", "#pragma unroll 1\n", "#pragma unroll 2\n")
    assert packages.differ() == ([], ["matmul/tiled_16", "matmul/tiled_32"])


def test_the_code_that_launches_all_rungs_concerns_all(packages: Packages) -> None:
    """The binaries are the same, and their launches may be slower: by a stream that is synchronized after each."""
    packages.edit("kernel.py", '"""Load and launch', '"""Load, and launch')
    assert packages.differ() == ([], [])
    packages.edit("kernel.py", "    def __call__(self) -> None:\n        self._run()\n", SYNCHRONIZED)
    assert packages.differ() == (PROJECT.rungs(), [])


SYNCHRONIZED = """    def __call__(self) -> None:
        self._run()
        import cupy

        cupy.cuda.get_current_stream().synchronize()
"""


def test_what_no_rung_includes_concerns_none(packages: Packages) -> None:
    header = packages.head / PROJECT.package / "transpose" / "shared.cuh"
    header.write_text("constexpr int SPARE = 1;\n")
    assert packages.differ() == ([], [])
    packages.edit("transpose/padded.cu", "template", '#include "shared.cuh"\ntemplate')
    shutil.copy(packages.head / PROJECT.package / "transpose" / "padded.cu", packages.base / "gpukernels" / "transpose")
    shutil.copy(header, packages.base / PROJECT.package / "transpose")
    assert packages.differ() == ([], [])
    header.write_text("constexpr int SPARE = 0;\n")
    assert packages.differ() == ([], ["transpose/padded"])


def test_what_lies_beside_a_source_launches_it(packages: Packages) -> None:
    path = packages.head / PROJECT.package / "matmul" / "texture.py"
    path.write_text(path.read_text(encoding="utf-8") + "\nMORE = 1\n", encoding="utf-8")
    assert packages.differ() == (["matmul/texture"], [])


def test_a_rung_of_one_package_only(packages: Packages) -> None:
    ladder = packages.base / PROJECT.package / "ladder.toml"
    head, found, rest = ladder.read_text(encoding="utf-8").partition('[[transpose.rungs]]\nname = "padded"\n')
    assert found
    ladder.write_text(head + rest[rest.index("\n[") + 1 :], encoding="utf-8")
    (packages.base / PROJECT.package / "transpose" / "padded.cu").unlink()
    assert packages.differ() == ([], [])
    assert changes(PROJECT, str(packages.base), str(packages.head)).new == ("transpose/padded",)
    assert changes(PROJECT, str(packages.head), str(packages.base)).gone == ("transpose/padded",)


def test_without_a_package_on_one_side_every_rung_is_new_or_gone(packages: Packages) -> None:
    assert sorted(changes(PROJECT, "", str(packages.head)).new) == sorted(PROJECT.rungs())
    assert sorted(changes(PROJECT, str(packages.head), "").gone) == sorted(PROJECT.rungs())


def test_a_table_of_the_fastest_rungs_decides_what_no_cell_measures(packages: Packages) -> None:
    sides = Side("BASE", str(packages.base)), Side("HEAD", str(packages.head))
    assert undescribed(PROJECT, *sides) == {}
    table = packages.head / PROJECT.package / "best.toml"
    table.write_text(table.read_text() + "\n# another\n")
    assert packages.differ() == ([], [])
    assert undescribed(PROJECT, *sides) == {"gpukernels/best.toml": 'which rung load(op, "best") launches'}


# --- real commits --------------------------------------------------------------------------------------------------

CELL = "transpose/c_blocked float32 256x256 hot"
RUNGS = {"numpy", "c", "c_blocked", "elementwise", "padded", "naive_write"}
# What is timed in the copy: on a CPU the smallest shape, hot, since a cold pass of a rung that is made slower by far
# would take minutes; the shapes of a quick look, cold, on a GPU. What other tests look at for every rung is left out:
# most architectures (test_static) and long shapes (test_emulator).
FEW = {
    "kernelwatch/run/group.py": {
        "PROCESSES_MAX = 8": "PROCESSES_MAX = 1",  # tests run beside each other already
        '"cpu": Budget(samples=7, sample_s=0.004)': '"cpu": Budget(samples=3, sample_s=0.001)',
    },
    "kernelwatch/analysis/occupancy.py": {"\nARCHES = tuple(LIMITS)": '\nARCHES = ("sm_75", "sm_90")'},
    "kernelwatch/plan/checks.py": {"\nLONG_BYTES_MOST": "\nLONG.clear()\nLONG_BYTES_MOST"},
    "kernelwatch/plan/cells.py": {
        'if cache == "cold" or shape in hot]': 'if cache == ("cold" if device == "gpu" else "hot")]',
    },
}
LOOP = "    for (long long m0 = 0;"
WRITE = "out[n * M + m] = "
UNROLLED_READ = """#pragma unroll
    for (int step = 0; step < TILE_ROWS; step += BLOCK_Y) {
        const long long row = row0 + threadIdx.y + step"""
TILED = "            tile[threadIdx.y + step][threadIdx.x] = in[row * N + column];\n"


class History(Project):
    """A repository whose commits are named by what is planted in them."""

    def versus(self, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return self.run(sys.executable, "scripts/versus", *arguments, **{"COLUMNS": "80"} | more)

    def plant(self, name: str, file: str, old: str, new: str) -> None:
        path = self.folder / "gpukernels" / file
        text = path.read_text()
        assert text.count(old) == 1, (file, old)
        path.write_text(text.replace(old, new))
        self.commit(name)

    def commit(self, name: str) -> None:
        self.commit_all(name, "--allow-empty")
        self.git("tag", name)


def few_cells(folder: Path) -> None:
    """Leave of a copy's ladder the rungs that are planted in and their controls, and few shapes to time them at."""
    few_rungs(folder, RUNGS)
    ladder = folder / "gpukernels" / "ladder.toml"
    ladder.write_text(re.sub(r"(?m)^types = .*$", 'types = ["float32"]', ladder.read_text()))
    rewrite(folder, FEW)
    smaller(folder, shapes="problem.quick_shapes", cpu_shapes="problem.counted_shapes[:1]")


GOOD, SLOW = 10, 200  # times the work: so much that no verdict depends on what else this machine does


def again(times: int) -> str:
    return f"    for (volatile int again = 0; again < {times}; ++again)\n{LOOP}"


# An array that is indexed at run time lies in local memory, whose loads and stores count as spills.
SPILL = """    T indexed[64];
    for (int at = 0; at < 64; ++at)
        indexed[(at * N) & 63] = in[at];
    if (M < 0)
        out[0] = indexed[N & 63];
"""


@pytest.fixture(scope="module")
def history(kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> History:
    """On main: slow, faster, a comment, slower by far, a spill, another rung, slower by far in other words."""
    bare = new_project(tmp_path_factory.mktemp("versus"))
    project = History(bare.folder, bare.home)
    (project.folder / "README.md").write_text("nothing yet\n")
    project.commit("empty")
    copy_into(project.folder)
    few_cells(project.folder)
    project.commit("whole")
    blocked, padded = "transpose/c_blocked.c", "transpose/padded.cu"
    project.plant("good", blocked, LOOP, again(GOOD))
    project.plant("faster", blocked, again(GOOD), LOOP)
    project.plant("comment", blocked, LOOP, f"    // A comment.\n{LOOP}")
    project.plant("slower", blocked, LOOP, again(SLOW))
    project.plant("spill", padded, "    __shared__ T tile", f"{SPILL}    __shared__ T tile")
    project.plant("other", "transpose/c.c", "void transpose_c(", "// Another rung.\nvoid transpose_c(")
    project.plant("still", blocked, again(SLOW), again(SLOW + 1))
    project.git("checkout", "-q", "-b", "wrong", "comment")
    project.plant("wrong", blocked, WRITE, f"{WRITE}2 + ")
    project.git("checkout", "-q", "-b", "uncompiled", "comment")
    project.plant("uncompiled", padded, "    __shared__ T tile", "    no such thing; __shared__ T tile")
    project.git("checkout", "-q", "-b", "other-binaries", "comment")
    project.plant("unroll-lost", padded, UNROLLED_READ, UNROLLED_READ.replace("unroll\n", "unroll 1\n"))
    pointers = "const T *__restrict__ in, T *__restrict__ out"
    project.plant("restrict-lost", "transpose/naive_write.cu", pointers, pointers.replace("__restrict__ ", ""))
    project.git("checkout", "-q", "-b", "twice", "comment")
    project.plant("read-twice", padded, TILED, f"            for (int again = 0; again < 2; ++again)\n    {TILED}")
    project.git("checkout", "-q", "-b", "unpadded", "comment")
    project.plant("padding-removed", padded, "TILE_COLUMNS + 1]", "TILE_COLUMNS]")
    project.git("checkout", "-q", "-b", "added", "comment")
    add_rung(project)
    project.git("checkout", "-q", "main")
    return project


def add_rung(project: History) -> None:
    """Commit a rung that does what padded does, under another name and without padding."""
    folder = project.folder / "gpukernels"
    source = (folder / "transpose" / "padded.cu").read_text()
    ladder = (folder / "ladder.toml").read_text()
    entry = ladder[ladder.index('[[transpose.rungs]]\nname = "padded"') :].partition("\n\n")[0]
    (folder / "transpose" / "unpadded.cu").write_text(
        source.replace("transpose_padded", "transpose_unpadded").replace("TILE_COLUMNS + 1]", "TILE_COLUMNS]")
    )
    (folder / "ladder.toml").write_text(ladder.replace(entry, f"{entry}\n\n{entry.replace('padded', 'unpadded', 1)}"))
    project.commit("new-rung")


versus_group = pytest.mark.xdist_group("versus")  # one repository for all of these


@versus_group
def test_doubled_work_is_worse_and_halved_work_better(history: History) -> None:
    done = history.versus("comment", "slower")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("BASE = comment (")
    assert re.search(r"^256x256 hot .* x[\d.e+]+ .*worse *$", done.stdout, re.MULTILINE), done.stdout
    assert "transpose/numpy float32, CPU (control)" in done.stdout
    assert done.stdout.endswith("HEAD is worse than BASE: 1 cell\n")
    assert max(map(len, done.stdout.splitlines())) <= 80
    done = history.versus("slower", "comment", "--markdown")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("**HEAD is better than BASE: 1 cell** (BASE = slower (")
    row = next(line for line in done.stdout.splitlines() if "`transpose/c_blocked float32 256x256 hot`" in line)
    assert len(row.split("|")) == 9
    assert row.endswith(" better |")
    assert "no change (same launch) |" in done.stdout  # the control


@versus_group
def test_a_comment_compiles_to_the_same(history: History) -> None:
    done = history.versus("faster", "comment")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the source differs, the binary is the same: transpose/c_blocked" in done.stdout
    assert done.stdout.endswith("no change: all 10 launches are the same, and nothing was timed\n")
    done = history.versus("faster", "comment", "--only", "c_blocked")  # timed all the same
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^256x256 hot .* no change = *$", done.stdout, re.MULTILINE), done.stdout


@versus_group
def test_a_commit_against_itself(history: History) -> None:
    done = history.versus("good", "good")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no change: all 10 launches are the same, and nothing was timed" in " ".join(done.stdout.split())
    comment = history.versus("good", "good", "--markdown")
    assert comment.stdout.startswith(
        "**no change: all 10 launches are the same, and nothing was timed** (BASE = good ("
    )
    done = history.versus("good", "good", "--all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no change =" in done.stdout
    assert not re.search(r"worse|better|cannot", done.stdout), done.stdout
    assert re.search(r"^[1-9]\d* exact figures compared, 0 differ$", done.stdout, re.MULTILINE), done.stdout


@versus_group
def test_a_wrong_kernel_comes_first_and_alone(history: History) -> None:
    done = history.versus("comment", "wrong", COLUMNS="300")
    assert done.returncode == 2, done.stdout + done.stderr
    first, failed, last = done.stdout.splitlines()
    assert first.startswith("BASE = comment")
    assert failed.startswith("HEAD failed: transpose/c_blocked float32 256x256 hot: WrongOutput: ")
    assert "65536 of 65536 elements wrong" in failed
    assert last == "nothing else is compared before this is right"
    mended = history.versus("wrong", "comment", COLUMNS="300")
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "repaired: transpose/c_blocked float32 256x256 hot: BASE: WrongOutput: " in mended.stdout
    assert mended.stdout.splitlines()[-1] == "repaired: 1 cell"


@versus_group
def test_a_kernel_that_does_not_compile_comes_first_and_alone(history: History) -> None:
    done = history.versus("comment", "uncompiled", COLUMNS="300")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout.splitlines()[1].startswith("HEAD failed: ")
    assert "NVRTC does not compile it for sm_75" in done.stdout
    assert "identifier" in done.stdout  # the compiler's own words
    assert "c_blocked" not in done.stdout


@versus_group
def test_a_spill_is_worse_without_a_gpu(history: History) -> None:
    done = history.versus("slower", "spill")
    assert done.returncode == 1, done.stdout + done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("spill_bytes"))
    assert row.rstrip().endswith("worse"), done.stdout
    assert re.search(r"HEAD is worse than BASE: \d+ exact figures", done.stdout)
    assert max(map(len, done.stdout.splitlines())) <= 80


@versus_group
def test_another_binary_that_was_not_timed_is_undecided(history: History, no_gpu: str) -> None:
    """A lost unroll (20 % slower on an H200) and a lost __restrict__: no exact figure that is judged tells them."""
    done = history.versus("comment", "restrict-lost", COLUMNS="300")
    assert done.returncode == 2, done.stdout + done.stderr
    rungs = "transpose/naive_write, transpose/padded"
    undecided = rf"^cannot tell: {rungs}: their launches differ, and were not judged \(no GPU here: .*\)$"
    assert re.search(undecided, done.stdout, re.MULTILINE), done.stdout
    assert "no change" not in done.stdout
    exact = history.versus("comment", "restrict-lost", "--exact", COLUMNS="300")
    assert exact.returncode == 0, exact.stdout + exact.stderr
    assert exact.stdout.splitlines()[-1] == "no change; by the exact figures alone"
    assert re.search(r"^[1-9]\d* exact figures compared, [1-9]\d* differ$", exact.stdout, re.MULTILINE), exact.stdout


@versus_group
def test_counts_of_an_unchanged_binary_are_never_worse(history: History) -> None:
    done = history.versus("comment", "read-twice", COLUMNS="300")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^requests \(requests\) .* changed *$", done.stdout, re.MULTILINE), done.stdout
    assert not re.search("worse|better", done.stdout), done.stdout
    assert done.stdout.endswith("no change: all 10 launches are the same, and nothing was timed\n")


@versus_group
def test_what_was_not_counted_is_said(history: History, no_gpu: str) -> None:
    """Without a C++ compiler the lost padding shows only as higher occupancy."""
    done = history.versus("comment", "padding-removed", "--exact", COLUMNS="300", CXX="no-such-compiler")
    assert done.returncode == 2, done.stdout + done.stderr
    missing = r"no exact figure of transpose access \(no C\+\+ compiler: no-such-compiler not found; .*\)"
    assert re.search(rf"(?m)^{missing}$", done.stdout), done.stdout
    assert re.search(rf"cannot tell: {missing}; by the exact figures alone$", done.stdout, re.MULTILINE), done.stdout
    done = history.versus("comment", "padding-removed", "--exact", COLUMNS="300")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^shared_load_wavefronts .* 1 +32 +worse *$", done.stdout, re.MULTILINE), done.stdout


@versus_group
def test_a_new_rung_is_shown_beside_the_rung_before_it(history: History) -> None:
    history.git("checkout", "-q", "added")  # the checkout's ladder says which rungs there are
    try:
        done = history.versus("comment", "new-rung", COLUMNS="300")
    finally:
        history.git("checkout", "-q", "main")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "new: transpose/unpadded, with nothing to compare"
    assert "new rungs, and the rung before each in the ladder" in done.stdout
    wavefronts = r"^shared_load_wavefronts \(.*\) +transpose/unpadded float32 256x256 +1 +32 *$"
    assert re.search(wavefronts, done.stdout, re.MULTILINE), done.stdout


@versus_group
def test_a_commit_that_lacks_the_package(history: History) -> None:
    done = history.versus("empty", "whole", "--only", "c_blocked", COLUMNS="300")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^256x256 hot +[\d.]+ [mun]?s +new *$", done.stdout, re.MULTILINE), done.stdout
    assert "BASE: this commit has no package gpukernels to measure" in done.stdout
    done = history.versus("whole", "empty", "--only", "c_blocked", COLUMNS="300")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "HEAD: this commit has no package gpukernels to measure" in done.stdout
    assert "cannot tell: " in done.stdout.splitlines()[-1]


@versus_group
def test_the_commit_that_made_a_cell_slower_is_found(history: History) -> None:
    done = history.versus("--find", CELL, "good..still")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("6 commits after ")
    assert lines[0].endswith("; 3 may launch another transpose/c_blocked")  # comments and other rungs are not tried
    assert f"first worse: {history.git('rev-parse', 'slower')}" in lines
    assert any(re.search(r" faster: better ", line) for line in lines) or "faster" not in done.stdout
    assert " comment: " not in done.stdout
    assert " other: " not in done.stdout


@versus_group
@pytest.mark.parametrize(
    ("figure", "word", "commits"),
    [("spill_bytes", "worse", "good..still"), ("instructions", "higher", "slower..other")],
)
def test_the_commit_that_moved_an_exact_figure_is_found(history: History, figure: str, word: str, commits: str) -> None:
    """More instructions are neither better nor worse."""
    done = history.versus("--find", f"static.Transpose.track_{figure}(padded, float32, sm_90)", commits)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"first {word}: {history.git('rev-parse', 'spill')}" in done.stdout.splitlines()


@versus_group
def test_where_nothing_is_worse_no_commit_is_named(history: History) -> None:
    done = history.versus("--find", CELL, "faster..comment")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "no commit changed it: what moved is the environment" in done.stdout
    done = history.versus("--find", "static.Transpose.track_spill_bytes(padded, float32, sm_90)", "good..slower")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "first worse" not in done.stdout


@versus_group
def test_a_commit_that_cannot_be_judged_is_named_with_its_neighbour(history: History) -> None:
    history.git("checkout", "-q", "-b", "doubtful", "comment")
    try:
        history.plant("broken", "transpose/c_blocked.c", WRITE, f"{WRITE}3 + ")
        history.git("checkout", "-q", "slower", "--", "gpukernels/transpose/c_blocked.c")
        history.commit("slow-again")
        done = history.versus("--find", CELL, "comment..doubtful")
        assert done.returncode == 2, done.stdout + done.stderr
        assert re.search(r"cannot tell: it is one of \w+ broken, \w+ slow-again", done.stdout), done.stdout
    finally:
        history.git("checkout", "-q", "main")


@versus_group
def test_the_commit_that_broke_a_cell_is_found(history: History) -> None:
    done = history.versus("--find", CELL, "good..wrong")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"first failed: {history.git('rev-parse', 'wrong')}" in done.stdout


@versus_group
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("good", "no-such"), r"scripts/versus: the repository in .* has no commit no-such; "),
        (("good",), "usage: scripts/versus"),
        (("good", "slower", "--only", "warp"), "scripts/versus: no cell matches 'warp'; one is "),
        (("--find", "transpose/warp", "good..slower"), "scripts/versus: no cell or exact series 'transpose/warp'"),
        (("--find", "transpose/numpy float32 256x256 hot", "wrong..slower"), "scripts/versus: wrong..slower: "),
    ],
)
def test_what_cannot_be_done_is_no_verdict(history: History, arguments: tuple[str, ...], message: str) -> None:
    done = history.versus(*arguments)
    assert done.returncode == CANNOT, done.stdout + done.stderr
    assert re.match(message, done.stderr), done.stderr
    assert "Traceback" not in done.stderr


@versus_group
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are looked up in Linux's /proc")
def test_an_interrupt_prints_what_is_known_and_ends_what_was_started(history: History, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    head = "#include <stdio.h>\nvoid transpose_c_blocked(const T *in, T *out, long long M, long long N) {\n"
    body = f'    fclose(fopen("{begun}", "w"));\n    for (volatile int i = 1; i;);\n'
    history.git("checkout", "-q", "-b", "endless", "comment")
    try:
        source = f"{head}    (void)in, (void)out, (void)M, (void)N;\n{body}}}\n"
        (history.folder / "gpukernels" / "transpose" / "c_blocked.c").write_text(source)
        history.commit("for-ever")
    finally:
        history.git("checkout", "-q", "main")
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "scripts/versus", "comment", "endless", "--only", "c_blocked"],
        cwd=history.folder,
        env=history.environment(COLUMNS="80"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + 60
        while not begun.exists() and time.monotonic() < end and process.poll() is None:
            time.sleep(0.05)
        assert begun.exists(), "the kernel was never launched"
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 130
        assert said.endswith("interrupted: that is what was known by then; nothing was saved\n")
        assert "cannot tell: nothing could be compared; interrupted before all was decided" in said
        end = time.monotonic() + 30
        while (left := processes_in(history.folder)) and time.monotonic() < end:
            time.sleep(0.05)
        assert left == {}
    finally:
        process.kill()
        process.communicate()


# --- on a GPU ------------------------------------------------------------------------------------------------------

GPU_CELLS = r"transpose/(vector_copy|padded|naive_write) float32 (256x256|4096x4096) cold"


@pytest.mark.gpu
@versus_group
def test_on_a_gpu_nothing_changes_where_nothing_changed(history: History) -> None:
    done = history.versus("good", "good", "--only", GPU_CELLS)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if re.match(r"(256x256|4096x4096) cold ", line)]
    assert rows, done.stdout
    assert all(line.rstrip().endswith("no change =") for line in rows), done.stdout
    # Another binary that is as fast: three spare columns are as good as one.
    history.git("checkout", "-q", "-b", "wider", "good")
    try:
        history.plant("wider-tile", "transpose/padded.cu", "TILE_COLUMNS + 1]", "TILE_COLUMNS + 3]")
    finally:
        history.git("checkout", "-q", "main")
    done = history.versus("good", "wider-tile")
    assert re.search(r"^4096x4096 cold .* no change *$", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.gpu
@versus_group
def test_on_a_gpu_fewer_loads_in_flight_are_worse(history: History) -> None:
    history.git("checkout", "-q", "-b", "in-flight-lost", "good")
    try:
        loop = "\n    for (int step = 0; step < TILE_ROWS; step += BLOCK_Y) {\n        const long long row = row0 +"
        loop += " threadIdx.y"
        history.plant("in-flight", "transpose/padded.cu", f"#pragma unroll{loop}", f"#pragma unroll 1{loop}")
    finally:
        history.git("checkout", "-q", "main")
    done = history.versus("good", "in-flight")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^4096x4096 cold .* worse *$", done.stdout, re.MULTILINE), done.stdout
    assert "naive_write" not in done.stdout
