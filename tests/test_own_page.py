"""docs/own.md is followed by the word, and what it says is so."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwatch.analysis.occupancy import ARCHES
from kernelwatch.commands import init
from tests.reader import BLOCK, Reader, states, write
from tests.repositories import ROOT, new_project


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, installed_engine: Path) -> Reader:
    """One who has read docs/own.md to its end."""
    project = new_project(tmp_path_factory.mktemp("page"), "rows")
    project.git("commit", "-q", "--allow-empty", "-m", "Begin")
    one = Reader(project, installed_engine, {})
    one.do((ROOT / "docs" / "own.md").read_text(encoding="utf-8"))
    return one


AXIS = "def row_sum(a, axis):\n    return a.sum(axis=axis)\n"


def test_the_past_is_measured_as_the_page_says(tmp_path: Path, small_engine: Path) -> None:
    """A table of rungs that knows a function's former name and signature, and commits that did not have it."""
    page = (ROOT / "docs" / "own.md").read_text(encoding="utf-8")
    _, past = page.split("\n## Measure the past\n")
    (table,) = (block[2] for block in BLOCK.finditer(past.partition("\n## ")[0]) if block[1] == "py")
    project = new_project(tmp_path, "rows")
    folder = project.folder
    commits = []
    for files in (
        {"rows/__init__.py": ""},
        {"rows/first.py": AXIS.replace("row_sum", "sum_rows").replace(", axis)", ")").replace("axis=axis", "axis=1")},
        {"rows/sums.py": AXIS.replace(", axis)", ")").replace("axis=axis", "axis=1")},
        {"rows/sums.py": AXIS},
    ):
        write(folder, files)
        commits.append(project.commit_all(", ".join(files)))
        if "rows/first.py" in files:
            (folder / "rows" / "first.py").unlink()
    own = {name: text for name, text in init.from_template("rows", False) if name.startswith("benchmarks/")}
    rungs = 'Rung("numpy", "cpu", ("float32",)),\n                Rung("einsum", "cpu", ("float32",)),'
    assert rungs in own["benchmarks/project.py"]
    description = own["benchmarks/project.py"].replace(rungs, 'Rung("own", "cpu", ("float32",)),')
    description = description.replace('package="rows",', 'package="rows",\n    table="rungs",')
    write(folder, {**own, "benchmarks/project.py": description, "benchmarks/rungs.py": table})
    values = {"version": 1, "project": "rows", "repo": ".", "branches": ["main"], "environment_type": "checkout"}
    values |= {"plugins": [".kernelwatch.asv"], "results_dir": "results", "env_dir": ".asv/env"}
    (folder / "asv.conf.json").write_text(json.dumps(values | {"html_dir": ".asv/html"}))
    project.commit_all("the description")

    def kernelwatch(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return project.run(sys.executable, "-m", "kernelwatch", *arguments, PYTHONPATH=str(small_engine))

    for chosen, code in ((commits[0], 2), (f"{commits[0]}..HEAD~1", 0)):
        done = kernelwatch("bench", "--no-confirm", chosen)
        assert done.returncode == code, done.stdout + done.stderr
        assert ("no cell gave a figure" in done.stdout) == (code == 2)
    seen = [states(project, commit)["row_sum/own float32 256x256 cold"] for commit in commits]
    assert seen == ["na", "ok", "ok", "ok"]
    done = kernelwatch("versus", commits[1], commits[3])
    assert "changed: row_sum/own: rows/first.py, rows/sums.py" in done.stdout, done.stdout + done.stderr


@pytest.mark.xdist_group("foreign")
class TestThePage:
    def test_its_commands_are_those_that_init_names(self, reader: Reader) -> None:
        told = reader.said["kernelwatch init"].splitlines()
        *_, add, bench = map(str.strip, told)
        assert add.startswith("git add ")
        first, second = (command for command in reader.said if command.startswith("kernelwatch b"))
        assert (first, second) == (bench, f"{bench} --all")

    def test_both_commits_are_measured(self, reader: Reader) -> None:
        first = {f"row_sum/{rung} float32 256x256 cold": "ok" for rung in ("numpy", "einsum")}
        own = {
            **{f"axpy/{rung} float32 65536 cold": "ok" for rung in ("numpy", "c", "new")},
            **{
                f"axpy/{rung} float32 {size} cold": "na"
                for rung in ("cuda", "elementwise", "triton", "torch", "core")
                for size in (1 << 16, 1 << 24)
            },
            # Neither Triton nor CuPy is installed.
            **{f"axpy/{rung} float32 {arch}": "na" for rung in ("triton", "cuda") for arch in ARCHES},
        }
        assert states(reader.project, "HEAD~1") == first
        assert states(reader.project, "HEAD") == first | own

    def test_both_are_published(self, reader: Reader) -> None:
        pages = reader.project.folder / ".asv" / "html"
        assert (pages / "index.html").is_file()
        tracked = json.loads((pages / "asv" / "index.json").read_text())["benchmarks"]
        assert {"row_sum.CPU.track_flops", "axpy.CPU.track_flops", "axpy.GPU.track_flops"} <= tracked.keys()
        judged = json.loads((pages / "data" / "series.json").read_text())["series"]
        assert {(series["benchmark"], series["params"]["rung"].strip("'")) for series in judged} == {
            ("row_sum.CPU.track_seconds", "numpy"),
            ("row_sum.CPU.track_seconds", "einsum"),
            ("axpy.CPU.track_seconds", "numpy"),
            ("axpy.CPU.track_seconds", "c"),
            ("axpy.CPU.track_seconds", "new"),
        }
        newest = json.loads(max((pages / "data").glob("**/at/*.json"), key=lambda path: int(path.stem)).read_text())
        assert newest["cells"]["axpy/numpy float32 65536 cold"]["state"] == "ok"
        assert newest["facts"]["axpy cpu"]["imports"].keys() == {"numpy"}
        committed = reader.project.git("ls-files").splitlines()
        assert not [name for name in committed if name.startswith(".asv/") or name.endswith(".pyc")]

    def test_asv_itself_publishes(self, reader: Reader) -> None:
        page = reader.project.folder / ".asv" / "html" / "asv" / "index.json"
        page.unlink()
        done = reader.call("asv publish --no-pull")
        assert done.returncode == 0, done.stderr
        assert json.loads(page.read_text())["benchmarks"]["axpy.CPU.track_flops"]["unit"] == "GFLOP/s"

    @pytest.mark.parametrize(
        ("old", "new", "code", "said"),
        [
            ("    np.sum(", "    for _ in range(20):\n        np.sum(", 1, "tree is worse than HEAD: 1 cell"),
            ("axis=1", "axis=0", 2, "tree failed: row_sum/numpy float32 256x256 cold: WrongOutput: row_sum/numpy at "),
        ],
    )
    def test_an_edit_is_compared(self, reader: Reader, old: str, new: str, code: int, said: str) -> None:
        done = edited(reader, "on_cpu.py", old, new)
        assert done.returncode == code, done.stdout + done.stderr
        assert said in done.stdout

    def test_an_edit_of_something_else_is_not(self, reader: Reader) -> None:
        """Without a GPU, that of a rung on the GPU cannot be told; no other rung imports its file."""
        done = edited(reader, "axpy_triton.py", "import triton\n", "import triton\n\nMORE = 1\n")
        assert "cannot tell: axpy/triton: " in done.stdout
        assert "row_sum" not in done.stdout

    def test_an_edit_that_no_rung_is_made_from_is_none(self, reader: Reader) -> None:
        done = edited(reader, "__init__.py", "KERNELS = {", "# A comment\nKERNELS = {")
        assert "launches are the same, and nothing was timed" in done.stdout

    def test_asvs_configuration_is_no_part_of_a_launch(self, reader: Reader) -> None:
        """A function might read any file that is no Python source, but not this one."""
        done = edited(reader, "../asv.conf.json", '"project":', '"show_commit_url": "x",\n    "project":')
        assert "launches are the same, and nothing was timed" in done.stdout, done.stdout + done.stderr

    def test_a_comment_in_c_leaves_the_library_as_it_was(self, reader: Reader) -> None:
        """The five launches on a CPU are the same; without a GPU, those on a GPU cannot be told."""
        done = edited(reader, "axpy.c", "void axpy", "// A comment\nvoid axpy", "axpy/c")
        assert "; 5 known to be the same on both sides" in done.stdout, done.stdout + done.stderr
        done = edited(reader, "axpy.c", "i < n;", "i < n - 1;", "axpy/c")
        assert "tree failed: axpy/c float32 65536 cold: WrongOutput" in done.stdout, done.stdout + done.stderr


def edited(
    reader: Reader, file: str, old: str, new: str, only: str = "row_sum/numpy"
) -> "subprocess.CompletedProcess[str]":
    """The dirty tree compared with HEAD after an edit of a file, which is undone."""
    path = reader.project.folder / "rows" / file
    before = path.read_text()
    assert before.count(old) == 1
    path.write_text(before.replace(old, new))
    try:
        return reader.call(f"kernelwatch bench --worktree --only {only}")
    finally:
        path.write_text(before)
