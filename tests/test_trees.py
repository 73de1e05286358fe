"""Commits are measured as trees: the layouts that repositories have, their past, and how trees are judged."""

import re
import shutil
from pathlib import Path
from textwrap import dedent

import pytest

from kernelwatch.plan.project import load
from kernelwatch.system.errors import CANNOT
from kernelwatch.system.git import commits
from tests.repositories import new_project, without_modules
from tests.sums_of_rows import C_SUMS, FAST, OTHER, OTHER_KERNEL, PLAIN, SLOW, TABLE, Rows

# By layout: the files of the first commit, and the file that the second one makes slower.
LAYOUTS = {
    "root": ({"rows/__init__.py": TABLE, "rows/sums.py": FAST}, "rows/sums.py"),
    "src": ({"src/rows/__init__.py": TABLE, "src/rows/sums.py": FAST}, "src/rows/sums.py"),
    "beside the package": (
        {
            "rows/__init__.py": """
            import sys
            from pathlib import Path

            sys.path.insert(0, str(Path(__file__).parents[1] / "lib"))
            KERNELS = {"row_sum": {"plain": "fast_sums:plain"}}
            """,
            "lib/fast_sums.py": FAST,
        },
        "lib/fast_sums.py",
    ),
    "package-dir": (
        {
            "pyproject.toml": '[tool.setuptools.package-dir]\nrows = "code/of_rows"\n',
            "code/of_rows/__init__.py": TABLE,
            "code/of_rows/sums.py": FAST,
        },
        "code/of_rows/sums.py",
    ),
    "hatch": (
        {
            "pyproject.toml": '[tool.hatch.build.targets.wheel]\npackages = ["packages/rows"]\n',
            "packages/rows/__init__.py": TABLE,
            "packages/rows/sums.py": FAST,
        },
        "packages/rows/sums.py",
    ),
    "nested": ({"one/two/rows/__init__.py": TABLE, "one/two/rows/sums.py": FAST}, "one/two/rows/sums.py"),
}


LINK = ("HEAD", "--no-publish", "--budget", "12")  # as bench measures a commit
TIMED = ("root", "beside the package")  # in which all that is timed is imported: a package, and modules elsewhere


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_slower_commit_is_worse_wherever_the_kernels_lie(rows: Rows, layout: str) -> None:
    """What is timed is imported as what is launched to find what differs."""
    files, slower = LAYOUTS[layout]
    rows.describe()
    rows.write_files(files)
    rows.commit_all("fast")
    rows.write_files({slower: SLOW})
    assert rows.changes("HEAD", "").launched == {"row_sum/plain": (slower,)}
    rows.commit_all("slow")
    if layout in TIMED:
        told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=1)
        assert "HEAD is worse than BASE: 1 cell" in told
        assert f"changed: row_sum/plain: {slower}" in told
        assert "evidence: 1 launch changed; 1 judged by time" in told
        rows.kernelwatch("link", *LINK, code=1)
    rows.write_files({slower: f"# A comment.\n{SLOW}"})
    rows.write_files({"README.md": "Something else."})
    rows.commit_all("harmless")
    assert rows.changes().same == {"row_sum/plain"}
    if layout in TIMED:
        rows.kernelwatch("link", *LINK, code=0)


def test_a_dirty_tree_is_compared_with_head(rows: Rows) -> None:
    rows.describe()
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": FAST})
    rows.commit_all("fast")
    told = rows.kernelwatch("bench", "--worktree", code=0)
    assert "no change: the only launch is the same, and nothing was timed" in told
    rows.write_files({"rows/sums.py": SLOW})
    told = rows.kernelwatch("bench", "--worktree", code=1)
    assert "tree is worse than HEAD: 1 cell" in told


def test_a_submodule_is_measured_at_its_commit(rows: Rows, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    library = new_project(tmp_path / "elsewhere", "library")
    (library.folder / "sums.py").write_text(FAST)
    library.commit_all("fast")
    rows.describe()
    rows.write_files({"rows/__init__.py": 'KERNELS = {"row_sum": {"plain": "vendored.sums:plain"}}\n'})
    rows.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library.folder), "vendored")
    rows.commit_all("fast")
    (rows.folder / "vendored" / "sums.py").write_text(SLOW)
    assert "tree is worse than HEAD: 1 cell" in rows.kernelwatch("bench", "--worktree", code=1)
    rows.run("git", "-C", "vendored", "commit", "-qam", "slow")
    rows.commit_all("slow")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=1)
    assert "changed: row_sum/plain: vendored/sums.py" in told
    rows.kernelwatch("link", *LINK, code=1)
    shutil.rmtree(rows.folder / "vendored")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=CANNOT)
    assert "needs the submodule vendored" in told
    assert "git submodule update --init" in told


GENERATED = """
import subprocess
import sys

import numpy as np

TIMES = int(subprocess.check_output(f"{sys.executable} -m tools.gen", shell=True, cwd=__file__.partition("rows")[0]))


def plain(a, out):
    for _ in range(TIMES):
        np.sum(a, axis=1, out=out)
"""
REGISTERED = """
from rows.registry import REGISTRY


def plain(a):
    return REGISTRY["plain"](a)
"""


@pytest.mark.parametrize(
    ("files", "slower"),
    [
        ({"rows/sums.py": GENERATED, "tools/gen.py": "print(4)"}, {"tools/gen.py": "print(100)"}),
        (
            {
                "rows/__init__.py": "from rows import fast",
                "rows/registry.py": "REGISTRY = {}\n",
                "rows/fast.py": "from rows.registry import REGISTRY\nREGISTRY['plain'] = lambda a: a.sum(axis=1)\n",
                "rows/sums.py": REGISTERED,
            },
            {"rows/fast.py": "from rows.registry import REGISTRY\nREGISTRY['plain'] = lambda a: a.T.sum(axis=0)\n"},
        ),
    ],
    ids=["a program that the module runs", "a registry that the package fills"],
)
def test_what_a_rung_uses_without_importing_it_counts(
    rows: Rows, files: dict[str, str], slower: dict[str, str]
) -> None:
    rows.describe(more='table="rungs",')
    table = """
    def plain(a, out):
        from rows.sums import plain

        out[:] = plain(a) if plain.__code__.co_argcount == 1 else plain(a, out) or out


    KERNELS = {"row_sum": {"plain": plain}}
    """
    rows.write_files({"rows/__init__.py": "", "benchmarks/rungs.py": table, **files})
    rows.commit_all("fast")
    rows.write_files(slower)
    assert rows.changes("HEAD", "").launched == {"row_sum/plain": tuple(slower)}


FINDER = """
import importlib.util
import sys

class Editable:
    def find_spec(self, name, path=None, target=None):
        path = {folder!r} + "/" + name.replace(".", "/")
        for file, folders in ((path + "/__init__.py", [path]), (path + ".py", None)):
            try:
                open(file).close()
            except OSError:
                continue
            return importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)

sys.meta_path.insert(0, Editable())
"""


@pytest.mark.parametrize("how", ["path", "finder"])
def test_an_editable_install_does_not_put_the_checkout_in_the_place_of_a_commit(
    rows: Rows, tmp_path: Path, how: str
) -> None:
    """As setuptools installs a project, by a path; or as scikit-build-core does, by the first finder."""
    rows.describe()
    rows.write_files({"src/rows/__init__.py": TABLE, "src/rows/sums.py": FAST})
    rows.commit_all("fast")
    rows.write_files({"src/rows/sums.py": SLOW})
    rows.commit_all("slow")
    site = tmp_path / "site"
    site.mkdir()
    if how == "finder":
        (site / "sitecustomize.py").write_text(FINDER.format(folder=str(rows.folder / "src")))
        path = f"{rows.engine}:{site}"
    else:
        path = f"{rows.folder / 'src'}:{rows.engine}"
    assert "HEAD is worse than BASE" in rows.kernelwatch("versus", "HEAD~1", "HEAD", code=1, PYTHONPATH=path)
    if how == "path":  # with the finder, each process is an interpreter of its own, which takes longer
        rows.kernelwatch("link", *LINK, code=1, PYTHONPATH=path)


def test_what_a_tree_lacks_is_not_taken_from_the_checkout(rows: Rows, tmp_path: Path) -> None:
    """A module that nobody built in the commit's tree, and a file that is read from the checkout."""
    rows.describe()
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": "from rows._built import plain\n"})
    rows.write_files({".gitignore": "_built.py\n/.asv/\n__pycache__/\n"})
    rows.commit_all("needs a build")
    rows.write_files({"rows/_built.py": FAST})
    told = rows.kernelwatch("versus", "HEAD", "HEAD", "--all", code=2)
    assert "No module named 'rows._built'" in told
    where = rows.folder / "rows" / "_built.py"
    reading = f"exec(open({str(where)!r}).read())\n"
    rows.write_files({"rows/sums.py": reading})
    rows.commit_all("reads the checkout's")
    told = rows.kernelwatch("versus", "HEAD", "HEAD", "--all", code=2)
    assert f"it used {where}, which is not in the tree that is measured, /" in told
    imported = f"import sys\nsys.path.insert(0, {str(where.parent)!r})\nfrom _built import plain\n"
    rows.write_files({"rows/sums.py": imported})
    rows.commit_all("imports the checkout's")
    told = rows.kernelwatch("versus", "HEAD", "HEAD", "--all", code=2)
    assert f"_built is {where}, which is no file of the measured tree" in told


# --- the past ------------------------------------------------------------------------------------------------------

RUNGS = """
from kernelwatch.plan.package import Absent

def plain(a, out):
    try:
        from kernels.sums import plain
    except ImportError:  # its name until it could do more than one thing
        from kernels.first import sum_rows as plain
    plain(a, out)

def other(a, out):
    from kernels.others import other

    other(a, out)

KERNELS = {"row_sum": {"plain": plain, "other": other}}
"""


def test_a_table_beside_the_description_reaches_commits_from_before_it(rows: Rows) -> None:
    """The first commits have no description; in the first, a function has another name, and one rung is missing."""
    rows.write_files({"kernels/__init__.py": "", "kernels/first.py": SLOW.replace("def plain", "def sum_rows")})
    rows.commit_all("first")
    rows.git("mv", "kernels/first.py", "kernels/sums.py")
    rows.write_files({"kernels/sums.py": FAST, "kernels/others.py": OTHER_KERNEL})
    rows.commit_all("faster, under another name")
    rows.describe(PLAIN + OTHER, 'table="rungs",', package="kernels")
    rows.write_files({"benchmarks/rungs.py": RUNGS})
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", "--only", "plain", code=0)
    assert "HEAD is better than BASE: 1 cell" in told
    told = rows.kernelwatch("bench", "--no-gate", "--no-confirm", "HEAD", code=0)
    assert "first: " in told
    assert "1 ok, 1 n/a; 1 to go" in told
    assert "verdict: nothing was judged" in told
    assert "evidence: 0 of 2 series judged at" in told


BY_FILE = """
import ctypes
import functools
import subprocess
import tempfile

from kernelwatch.plan import tree


@functools.cache
def compiled():
    source = tree.file("src/sums.c")
    with tempfile.TemporaryDirectory() as folder:
        library = folder + "/row_sum.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-I", source.parent, "-o", library, source], check=True)
        return ctypes.CDLL(library).row_sum


def plain(a, out):
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in (a, out))
    compiled()(*pointers, ctypes.c_longlong(a.shape[0]), ctypes.c_longlong(a.shape[1]))

KERNELS = {"row_sum": {"plain": plain}}
"""


def test_a_repository_without_a_package_is_measured_from_its_first_commit(rows: Rows) -> None:
    """Its sources are compiled by the table, and include each other."""
    rows.write_files({"README.md": "nothing yet"})
    rows.commit_all("empty")
    rows.write_files({"src/sums.c": '#include "sums.h"\n', "src/sums.h": C_SUMS.format(times=4)})
    rows.commit_all("fast")
    rows.write_files({"src/sums.h": C_SUMS.format(times=200)})
    rows.commit_all("slow")
    rows.describe(more='table="rungs",', package="")
    rows.write_files({"benchmarks/rungs.py": BY_FILE})
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=1)
    assert "changed: row_sum/plain: src/sums.h" in told
    told = rows.kernelwatch("versus", "HEAD~2", "HEAD~1", code=0)
    assert "new: row_sum/plain, with nothing to compare" in told


def test_changed_leaves_out_what_no_kernel_depends_on(rows: Rows) -> None:
    """Documents, the description, results; but not a source beside the package."""
    rows.describe()
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": FAST})
    first = rows.commit_all("first")
    rows.write_files({"docs/page.md": "words", ".github/x.yml": "a: 1"})
    rows.commit_all("documents")
    rows.write_files({"native/sums.cu": "// a kernel"})
    source = rows.commit_all("a source beside the package")
    rows.describe(more="conditions=(),")
    newest = rows.commit_all("the description")
    with without_modules("benchmarks"):
        project = load(rows.folder)
        assert commits(rows.folder, "main", project.pathspecs()) == [newest, source, first]


def test_a_slower_commit_on_another_branch_is_a_regression(rows: Rows) -> None:
    """Pull requests are on branches that the configuration does not name."""
    rows.describe()
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": FAST})
    rows.commit_all("fast")
    for at in range(3):
        rows.write_files({"README.md": f"{at}"})
        rows.commit_all(f"harmless {at}")
    rows.git("checkout", "-q", "-b", "feature")
    for at in range(3):
        rows.write_files({"rows/sums.py": f"{SLOW}# {at}\n"})
        rows.commit_all(f"slow {at}")
    told = rows.kernelwatch("bench", "--no-gate", "--no-confirm", "main", code=0)
    assert re.search("verdict: (no new regression|nothing was judged)\nevidence: [01] of 1 series judged at", told)
    told = rows.kernelwatch("bench", "--no-gate", "--no-confirm", "main..feature", code=1)
    assert "verdict: 1 new regression" in told
    assert "series judged at" in told
    assert "(feature)" in told
    told = rows.kernelwatch("bench", "--no-gate", "--no-confirm", "main", code=0)  # that is not main's
    assert "verdict: 1 new" not in told


def test_two_comparisons_build_one_tree(rows: Rows) -> None:
    """The build writes down where the tree is; the second comparison waits for it."""
    rows.describe(more='build="python gen.py {tree}",')
    generate = "import sys, time\ntime.sleep(2)\nopen('rows/_where.py', 'w').write(f'WHERE = {sys.argv[1]!r}\\n')\n"
    kernel = f"import os\nfrom rows._where import WHERE\nassert os.path.isdir(WHERE)\n{dedent(FAST)}"
    rows.write_files({"gen.py": generate, "rows/__init__.py": TABLE, "rows/sums.py": kernel})
    rows.commit_all("built")
    environment = {"PYTHONPATH": str(rows.engine), "COLUMNS": "300"}
    other = rows.begin("-m", "kernelwatch", "versus", "HEAD", "HEAD", **environment)
    assert "the only launch is the same" in rows.kernelwatch("versus", "HEAD", "HEAD", code=0)
    assert other.wait(600) == 0
