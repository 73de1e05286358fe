"""What differs between two packages, and which cells and series are compared for it."""

import math
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

import gpukernels
from benchmarks.project import PROJECT
from kernelwatch.comparison import bisect, exact
from kernelwatch.comparison.changes import changes, classify, read
from kernelwatch.comparison.choice import before_in_ladder, by_pattern, cells_of, choose, main_types
from kernelwatch.comparison.paired import Side
from kernelwatch.comparison.verdict import undescribed
from kernelwatch.plan.cells import plan, timed
from kernelwatch.run.outcome import Group, Outcome
from kernelwatch.system.errors import UserError
from kernelwatch.timing.record import Measurement
from tests.repositories import (
    ROOT,
    copy_into,
)


def test_a_change_of_the_ladder_alone_is_a_change_of_the_launch(tmp_path: Path) -> None:
    """The binary may be the same: `--find` must not pass over it."""
    folders = [tmp_path / "before", tmp_path / "after"]
    for folder in folders:
        shutil.copytree(ROOT / "gpukernels", folder / "gpukernels", ignore=shutil.ignore_patterns("__pycache__"))
    ladder = folders[1] / "gpukernels" / "ladder.toml"
    ladder.write_text(ladder.read_text().replace("edges = [32, 16, 8]", "edges = [16, 32, 8]"))
    before, after = (bisect.Commit(PROJECT, folder.name, tmp_path, str(folder)) for folder in folders)
    assert not bisect.same_launches(before, after, "transpose/dynamic")
    assert bisect.same_launches(before, after, "transpose/padded")


def test_a_past_commit_may_lack_a_file_that_its_rungs_now_have(tmp_path: Path) -> None:
    """What prepares the launch of these rungs had no module of its own then."""
    folders = [tmp_path / "before", tmp_path / "after"]
    for folder in folders:
        shutil.copytree(ROOT / "gpukernels", folder / "gpukernels", ignore=shutil.ignore_patterns("__pycache__"))
    (folders[0] / "gpukernels" / "prepare.py").unlink()
    found = changes(PROJECT, *map(str, folders), launch=False)
    assert "gpukernels/prepare.py" in found.launched["matmul/wgmma"]
    assert "transpose/padded" in found.same


def test_which_series_are_judged_is_the_pages_business() -> None:
    series = {str(one): one for one in exact.series_of(PROJECT, {"transpose/padded"})}
    spills = series["static.Transpose.track_spill_bytes(padded, float32, sm_90)"]
    registers = series["static.Transpose.track_registers(padded, float32, sm_90)"]
    assert spills.verdict(0.0, 8.0) == "worse"
    assert spills.verdict(8.0, 0.0) == "better"
    assert registers.verdict(8.0, 9.0) == "changed"
    assert spills.verdict(math.nan, 0.0) == spills.verdict("does not compile", "nor this") == "n/a"
    assert spills.verdict(0.0, "does not compile") == "failed"
    assert spills.verdict("does not compile", 0.0) == "repaired"


def test_a_rung_that_compiles_for_some_targets_only_has_no_binary() -> None:
    """The others may be the same on both sides, which says nothing of the one that failed."""
    outcomes = {
        "transpose/padded float32 sm_80": Outcome("ok", "", [Measurement(process=0, cubin_sha256="same")]),
        "transpose/padded float32 sm_90": Outcome("failed", "error: no such instruction"),
        "transpose/tiled float32 sm_80": Outcome("ok", "", [Measurement(process=0, cubin_sha256="other")]),
    }
    assert [*exact._binaries([Group("transpose static", outcomes, {})])] == ["transpose/tiled"]


def test_a_new_rung_repeats_its_work_no_otherwise_than_before() -> None:
    base, head = (exact.Figures({}, {}, {}, {"transpose/padded": 64} | new) for new in ({}, {"transpose/new": 32}))
    assert exact.repeated(base, head) == exact.repeated(head, base) == {}


def test_a_new_rung_is_measured_beside_the_one_before_it_on_its_device() -> None:
    for problem in PROJECT.problems:
        before: dict[str, str] = {}
        for rung in problem.rungs:
            assert before_in_ladder(PROJECT, f"{problem.name}/{rung.name}") == before.get(rung.device, "")
            before[rung.device] = f"{problem.name}/{rung.name}"


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
        UserError, match=r"no cell matches 'nonsense'; one is named like 'vector_add/elementwise float32 65536 "
    ):
        by_pattern(PROJECT, "nonsense", [])


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


def reached(source: Path) -> set[Path]:
    """A source and the headers beside it that it includes, directly or by another header."""
    names = re.findall(r'^#include "(\w+\.cuh)"', source.read_text(encoding="utf-8"), re.MULTILINE)
    return {source}.union(*(reached(source.with_name(name)) for name in names))


HEADERS = sorted(Path(gpukernels.__file__).parent.glob("*/*.cuh"))


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.stem)
def test_a_header_is_part_of_every_source_that_includes_it(header: Path, packages: Packages) -> None:
    op = header.parent.name
    packages.edit(f"{op}/{header.name}", "#pragma once\n", "#pragma once  // once\n")
    rungs = [found for found in gpukernels.op(op).rungs if found.source.suffix == ".cu"]
    including = [str(found) for found in rungs if header in reached(found.source)]
    assert including
    assert ("matmul/wgmma" in including) == (header.stem in ("ampere", "hopper", "wgmma", "tma_store", "persistent"))
    assert packages.differ() == ([], including)


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
