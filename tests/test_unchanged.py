"""What decides a launch, and what is never called unchanged."""

from pathlib import Path

from kernelwatch.system.errors import CANNOT
from tests.sums_of_rows import FAST, OTHER, OTHER_KERNEL, PLAIN, SLOW, TABLE, Rows


def test_a_package_that_cannot_be_imported_has_failed(rows: Rows) -> None:
    rows.describe()
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": FAST})
    rows.commit_all("good")
    rows.write_files({"rows/__init__.py": f"import no_such_distribution\n{TABLE}"})
    rows.commit_all("broken")
    why = "rows cannot be imported: ModuleNotFoundError: No module named 'no_such_distribution'"
    told = rows.kernelwatch("bench", "--no-gate", "--no-confirm", code=2)
    assert "1 failed" in told
    assert why in told
    assert "verdict: some cells failed" in told
    assert why in rows.kernelwatch("versus", "HEAD~1", "HEAD", code=2)


def test_a_description_of_a_package_that_does_not_exist_measures_nothing(rows: Rows) -> None:
    rows.describe()
    rows.write_files({"others/__init__.py": TABLE})
    rows.commit_all("another name")
    for arguments in (("bench", "--no-gate"), ("versus", "HEAD", "HEAD"), ("bench", "--worktree")):
        told = rows.kernelwatch(*arguments, code=CANNOT)
        assert "the checkout has no package rows" in told
        assert "`package` of the Project" in told


def test_a_rung_that_is_gone_or_renamed_is_a_difference(rows: Rows) -> None:
    rows.describe(PLAIN + OTHER)
    both = 'KERNELS = {"row_sum": {"plain": "rows.sums:plain", "other": "rows.others:other"}}\n'
    rows.write_files({"rows/__init__.py": both, "rows/sums.py": FAST, "rows/others.py": OTHER_KERNEL})
    rows.commit_all("both")
    rows.write_files({"rows/__init__.py": both.replace('"other"', '"einsum"')})
    rows.describe(PLAIN + OTHER.replace("other", "einsum"))
    rows.commit_all("renamed")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=2)
    assert "cannot tell: row_sum/other: is gone" in told
    assert "new: row_sum/einsum" in told
    rows.write_files({"rows/__init__.py": TABLE})
    rows.describe()
    rows.commit_all("removed")
    for arguments in (("versus", "HEAD~1", "HEAD"), ("versus", "--exact", "HEAD~1", "HEAD")):
        assert "cannot tell: row_sum/einsum: is gone" in rows.kernelwatch(*arguments, code=2)
    rows.write_files({"README.md": "harmless"})
    rows.commit_all("harmless")
    rows.kernelwatch("versus", "HEAD~1", "HEAD", code=0)


def test_what_the_base_cannot_launch_is_not_called_unchanged(rows: Rows) -> None:
    """It has the package and no table of rungs, so that its sources do not say which rungs it has."""
    rows.describe()
    rows.write_files({"rows/__init__.py": "", "rows/sums.py": FAST})
    rows.commit_all("no table")
    rows.write_files({"rows/__init__.py": TABLE})
    rows.commit_all("a table")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=0)
    assert "evidence: 1 launch changed; 1 not judged\n" in told
    assert told.endswith("\nnew: row_sum/plain float32 64x64 cold, with nothing to compare\n")
    assert '"verdict": "new"' in rows.kernelwatch("versus", "HEAD~1", "HEAD", "--json", code=0)


def test_another_launch_by_the_same_binary_is_timed(rows: Rows) -> None:
    """A table of the package says how often the same code runs; it is read when the rung is first called."""
    reading = FAST.replace("TIMES = 4", "TIMES = int((Path(__file__).parent / 'times.txt').read_text())")
    rows.describe()
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": f"from pathlib import Path\n{reading}"})
    rows.write_files({"rows/times.txt": "4", "rows/unread.json": "{}"})
    rows.commit_all("fast")
    rows.write_files({"rows/times.txt": "100"})
    rows.commit_all("slow")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=1)
    assert "changed: row_sum/plain: rows/times.txt" in told
    rows.write_files({"rows/unread.json": "[]"})
    rows.commit_all("a file that the rung does not read")
    assert "the only launch is the same" in rows.kernelwatch("versus", "HEAD~1", "HEAD", code=0)


BY_NVRTC = """
from pathlib import Path

from kernelwatch.plan import binaries

SOURCE = Path(__file__).with_name("sum.cu")
KERNELS = {"row_sum": {"plain": "rows.launch:plain"}}
BINARIES = {"row_sum": {"plain": lambda type, arch: binaries.of_cuda(SOURCE, "row_sum", arch, 64)}}
"""
SUM = """
extern "C" __global__ void row_sum(const float *a, float *out, int rows, int columns) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int at = 0; at < columns && row < rows; ++at)
        sum += a[row * columns + at];
    if (row < rows)
        out[row] = sum;
}
"""
STATIC = """
from kernelwatch.run.outcome import Group
from kernelwatch.suites import compiled

from .project import PROJECT


class Static(compiled.Static, project=PROJECT, op="row_sum"):
    def setup_cache(self) -> Group:
        return self.measure()
"""


def test_what_ran_nowhere_is_told_beside_its_exact_figures(rows: Rows) -> None:
    """A bound that is off by one: the kernel writes out of bounds, and its figures are the same."""
    rows.describe('Rung("plain", "gpu", ("float32",), compiled=True),')
    rows.write_files(
        {"benchmarks/row_sum.py": STATIC, "rows/__init__.py": BY_NVRTC, "rows/launch.py": "", "rows/sum.cu": SUM}
    )
    rows.commit_all("right")
    rows.write_files({"rows/sum.cu": SUM.replace("if (row < rows)", "if (row <= rows)")})
    rows.commit_all("out of bounds")
    told = rows.kernelwatch("versus", "--exact", "HEAD~1", "HEAD", code=0)
    assert (
        "evidence: 1 launch changed; 1 judged by exact figures only; no output was checked of row_sum/plain\n" in told
    )


def test_what_was_not_judged_is_not_green_under_exact(rows: Rows) -> None:
    """A rung without exact figures."""
    rows.describe()
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": FAST})
    rows.commit_all("fast")
    rows.write_files({"rows/sums.py": SLOW})
    rows.commit_all("slow")
    told = rows.kernelwatch("versus", "--exact", "HEAD~1", "HEAD", code=2)
    assert "cannot tell: row_sum/plain: its launch differs, and was not judged (times were not asked for)" in told
    assert "evidence: 1 launch changed; 1 not judged" in told


def test_what_a_rung_reads_is_asked_once(rows: Rows, tmp_path: Path) -> None:
    """The answer is kept for the tree's files, the description and the environment."""
    telling = FAST + f"\nopen({str(tmp_path / 'launched')!r}, 'a').write('once ')\n"
    rows.describe()
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": telling, "rows/unread.json": "{}"})
    rows.commit_all("first")
    rows.write_files({"rows/unread.json": "[]"})
    rows.commit_all("second")
    for count in (2, 2):
        told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=0, KERNELWATCH_CACHE=str(tmp_path / "cache"))
        assert "the only launch is the same" in told
        assert (tmp_path / "launched").read_text().split() == ["once"] * count


READING = """
import ctypes
import os
import subprocess
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
TIMES = int({times})


def plain(a, out):
    for _ in range(TIMES):
        np.sum(a, axis=1, out=out)
"""
BY_SHELL = 'subprocess.run("cat times.txt", shell=True, cwd=HERE, capture_output=True).stdout'
# By rung: how often the work is done, and the file that says so, before and after. "imported": the table's module does.
HIDDEN = {
    "imported": ('os.environ.get("TIMES", "4")', "rows/tune.py", "", 'import os\nos.environ["TIMES"] = "1000"\n'),
    "executed": ('eval((HERE / "impl.py").read_text())', "rows/impl.py", "4", "1000"),
    "by_another_process": (BY_SHELL, "rows/times.txt", "4", "1000"),
    "hidden": ('(HERE / ".times.json").read_text()', "rows/.times.json", "4", "1000"),
    "relative_to_the_working_folder": ('Path("tables/times.txt").read_text()', "tables/times.txt", "4", "1000"),
}


def test_what_decides_a_launch_is_found_wherever_it_is(rows: Rows, tmp_path: Path) -> None:
    """Also if the folder of temporary files is a link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    rows.describe("".join(PLAIN.replace("plain", rung) for rung in HIDDEN))
    table = {rung: f"rows.{rung}:plain" for rung in HIDDEN}
    rows.write_files({"rows/__init__.py": f"from . import tune\nKERNELS = {{'row_sum': {table}}}\n"})
    for rung, (times, file, fast, _) in HIDDEN.items():
        rows.write_files({f"rows/{rung}.py": READING.format(times=times), file: fast})
    rows.commit_all("fast")
    for _, file, _, slow in HIDDEN.values():
        rows.write_files({file: slow})
    rows.commit_all("slow")
    launched = rows.changes().launched
    assert {rung: HIDDEN[rung.partition("/")[2]][1] in files for rung, files in launched.items()} == {
        f"row_sum/{rung}": True for rung in HIDDEN
    }
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=1, TMPDIR=str(tmp_path / "link"))
    assert f"HEAD is worse than BASE: {len(HIDDEN)} cells" in told


def test_a_rung_is_not_said_to_read_what_one_beside_it_reads(rows: Rows) -> None:
    """Several are launched at a time, if there are enough, and what was opened in a tree is seen of all of them."""
    rungs = [f"k{at}" for at in range(8)]
    rows.describe("".join(PLAIN.replace("plain", rung) for rung in rungs))
    entries = ", ".join(f'"{rung}": "rows.{rung}:plain"' for rung in rungs)
    rows.write_files({"rows/__init__.py": f'KERNELS = {{"row_sum": {{{entries}}}}}\n'})
    for at, rung in enumerate(rungs):
        text = f"import importlib, time\n\ntime.sleep({0.2 + 0.4 * (at % 2)})\n"
        text += f'plain = importlib.import_module("rows.of_" + "{rung}").plain\n'
        rows.write_files({f"rows/{rung}.py": text, f"rows/of_{rung}.py": FAST})
    rows.commit_all("all fast")
    rows.write_files({"rows/of_k0.py": SLOW})
    rows.commit_all("one slow")
    found = rows.changes()
    assert found.launched == {"row_sum/k0": ("rows/of_k0.py",)}
    assert found.same == {f"row_sum/{rung}" for rung in rungs[1:]}
