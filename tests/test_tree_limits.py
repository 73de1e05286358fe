"""What repositories have besides: sparse checkouts, endless builds, modules without a source or in folders apart."""

import py_compile
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from kernelwatch.plan.tree import Guard, Places
from kernelwatch.system import git
from tests.repositories import processes_in, rewrite, wait_until
from tests.sums_of_rows import FAST, SLOW, TABLE, Rows


def test_what_a_sparse_checkout_leaves_out_is_not_deleted(rows: Rows) -> None:
    rows.describe()
    rows.write_files(
        {"rows/__init__.py": TABLE, "rows/sums.py": FAST.replace("import numpy", "import lib\nimport numpy")}
    )
    rows.write_files({"lib/__init__.py": "import lib.more", "lib/more.py": "", "assets/large.txt": "large"})
    rows.commit_all("all")
    rows.git("sparse-checkout", "set", "--no-cone", "/*", "!/assets/", "!/lib/")
    assert not (rows.folder / "lib").exists()
    told = rows.kernelwatch("bench", "--worktree", code=0)
    assert "the only launch is the same" in told
    rows.write_files({"rows/sums.py": SLOW.replace("import numpy", "import lib\nimport numpy")})
    told = rows.kernelwatch("bench", "--worktree", code=1)
    assert "changed: row_sum/plain: rows/sums.py\n" in told


def test_a_commit_is_written_by_its_own_attributes(rows: Rows, tmp_path: Path) -> None:
    """As git checks it out: what the commit keeps in another form, as Git LFS does, is not left so."""
    rows.git("config", "filter.capital.smudge", "tr a-z A-Z")
    rows.write_files({".gitattributes": "*.txt filter=capital\n", "a.txt": "text", "b/c.txt": "text"})
    rows.commit_all("filtered")
    rows.write_files({".gitattributes": ""})
    rows.commit_all("plain")
    for commit, text in (("HEAD", "text"), ("HEAD~1", "TEXT")):
        folder = tmp_path / text
        git.export(rows.folder, commit, folder)
        assert [(folder / name).read_text() for name in ("a.txt", "b/c.txt")] == [text, text]


# What asv does to a commit's folder before it measures the commit.
CHECK_OUT = """
import sys
from asv.plugins.git import Git
from kernelwatch import asv

asv.setup()
Git("..", "").checkout(sys.argv[1], "HEAD~1")
"""


def test_a_hook_of_a_linked_worktree_compares_its_checkout_and_leaves_it_alone(rows: Rows, tmp_path: Path) -> None:
    """git tells such a hook $GIT_DIR: any folder is then the top of the hook's checkout, also one of another commit."""
    rows.folder.joinpath("project").mkdir()
    project = replace(rows, folder=rows.folder / "project")
    project.describe()
    project.write_files({"rows/__init__.py": TABLE, "rows/sums.py": FAST})
    rows.commit_all("fast")
    project.write_files({"rows/sums.py": SLOW})
    rows.commit_all("slow")
    linked = tmp_path / "linked"
    rows.git("worktree", "add", "-q", str(linked), "-b", "work")
    here = replace(rows, folder=linked / "project")
    here.write_files({"rows/sums.py": f"{SLOW}# more\n", "staged": ""})
    here.git("add", "staged")
    before = here.git("status", "--porcelain", "--branch")
    folder = here.git("rev-parse", "--absolute-git-dir")
    hook = {"GIT_DIR": folder, "GIT_INDEX_FILE": f"{folder}/index", "GIT_PREFIX": ""}
    assert "the only launch is the same" in here.kernelwatch("bench", "--worktree", code=0, **hook)
    path = str(rows.engine)
    done = here.run(sys.executable, "-c", CHECK_OUT, str(tmp_path / "commit"), PYTHONPATH=path, **hook)
    assert done.returncode == 0, done.stderr
    assert here.git("status", "--porcelain", "--branch") == before


def test_a_build_that_never_ends_is_killed_with_what_it_started(rows: Rows, tmp_path: Path) -> None:
    shutil.copytree(rows.engine, tmp_path / "hasty")
    rewrite(tmp_path / "hasty" / "kernelwatch", {"plan/build.py": {"LIMIT_S = 3600.0": "LIMIT_S = 2.0"}})
    mark = tmp_path / "endless"
    rows.describe(more='build="sh endless.sh",')
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": FAST})
    rows.write_files(
        {"endless.sh": f"echo begun\nsh -c 'sleep 1000; echo {mark}' &\nsh -c 'sleep 1000; echo {mark}'\n"}
    )
    rows.commit_all("endless")
    told = rows.kernelwatch("versus", "HEAD", "HEAD", "--all", code=2, PYTHONPATH=str(tmp_path / "hasty"))
    assert "the build failed: `sh endless.sh`: it has not ended within 2 s and was killed; its output: " in told
    assert "begun" in Path(told.split("its output: ")[1].split()[0]).read_text()
    assert wait_until(lambda: not processes_in(mark))


def test_bytecode_without_its_source_is_part_of_a_launch(rows: Rows, tmp_path: Path) -> None:
    rows.describe()
    rows.write_files({"rows/__init__.py": TABLE, ".gitignore": "/.asv/\n__pycache__/\n/results.lock\n"})
    for text in (FAST, SLOW):
        (tmp_path / "sums.py").write_text(text)
        py_compile.compile(str(tmp_path / "sums.py"), str(rows.folder / "rows" / "sums.pyc"))
        rows.commit_all("bytecode")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=1)
    assert "changed: row_sum/plain: rows/sums.pyc" in told


ADDS = {
    "by a list": "import sys\nsys.path.insert(0, str(Path(__file__).parents[1] / 'shared' / 'lib'))\n",
    "by its other name": "import sys as python\npython.path += [str(Path(__file__).parents[1] / 'shared' / 'lib')]\n",
    "by site": "import site\nsite.addsitedir(Path(__file__).parents[1] / 'shared' / 'lib')\n",
    "in a module": "import rows.paths\n",
    "to a package": "import rows\nrows.__path__.append(str(Path(__file__).parents[1] / 'shared' / 'lib'))\n",
}


@pytest.mark.parametrize("how", ADDS)
def test_a_module_in_a_folder_that_code_adds_to_the_path_is_a_difference(rows: Rows, how: str) -> None:
    rows.describe()
    package = "rows." if how == "to a package" else ""
    rows.write_files(
        {
            "rows/__init__.py": TABLE,
            "rows/paths.py": f"from pathlib import Path\n{ADDS['by a list']}",
            "rows/sums.py": f"from pathlib import Path\n{ADDS[how]}import {package}times\n{FAST}",
            "shared/lib/times.py": f"import {package}values",
            "shared/lib/values.py": "ONE = 1",
            "shared/lib/other.py": "import no_such_module",
        }
    )
    rows.commit_all("one")
    rows.write_files({"shared/lib/values.py": "ONE = 2"})
    rows.commit_all("another")
    assert rows.changes("HEAD~1", "HEAD").launched == {"row_sum/plain": ("shared/lib/values.py",)}
    rows.write_files({"shared/lib/values.py": "ONE = 2  # as before", "shared/lib/other.py": ""})
    assert rows.changes("HEAD", "").same == {"row_sum/plain"}


RUNGS = """
import sys

from kernelwatch.plan import tree

sys.path.append(str(tree.guard().places.folder / "shared" / "lib"))
KERNELS = {"row_sum": {"plain": "rows.sums:plain"}}
"""


def test_the_table_of_rungs_may_add_the_folder(rows: Rows) -> None:
    rows.describe(more='table="rungs",')
    rows.write_files({"benchmarks/rungs.py": RUNGS, "rows/__init__.py": "", "rows/sums.py": f"import times\n{FAST}"})
    for times in "12":
        rows.write_files({"shared/lib/times.py": f"TIMES = {times}"})
        rows.commit_all(times)
    assert rows.changes().launched == {"row_sum/plain": ("shared/lib/times.py",)}


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("make {nowhere}", "cannot be read: Configuration error: {nowhere} not available"),
        ("make 'half", "cannot be read: No closing quotation"),
        ("CXX=clang++", "names no program"),
        ("in-dir=nowhere make", "No such file or directory: "),
    ],
)
def test_a_command_that_is_none_fails_the_build(rows: Rows, command: str, why: str) -> None:
    rows.describe(more=f"build={command!r},")
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": FAST})
    rows.commit_all("a build")
    told = rows.kernelwatch("versus", "HEAD", "HEAD", "--all", code=2)
    assert f"the build failed: `{command}`" in told
    assert why in told


def test_what_was_imported_of_the_checkout_is_forgotten_if_the_tree_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module, one of a namespace, one whose folder has another name, and one of the description."""
    checkout, exported = tmp_path / "checkout", tmp_path / "exported"
    files = {"kw_one": "kw_one.py", "kw_space.one": "kw_space/one.py", "kw_name": "src/__init__.py",
             "kw_own.one": "kw_own/one.py", "kw_only": "kw_only.py"}  # fmt: skip
    for name, file in files.items():
        for folder in (checkout, exported) if name != "kw_only" else (checkout,):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).touch()
        module = ModuleType(name)
        module.__file__ = str(checkout / file)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    renamed = (("kw_name", exported / "src"),)
    guard = Guard(Places(exported, (exported,), renamed, description=exported / "kw_own"), checkout)
    guard.install()
    guard.watches = False
    assert [name for name in files if name in sys.modules] == ["kw_only"]


def test_a_file_of_the_checkout_is_told_through_any_links(tmp_path: Path) -> None:
    """Of a file, of its folder, of both; and where ".." follows a link."""
    checkout, elsewhere, exported = tmp_path / "checkout", tmp_path / "elsewhere", tmp_path / "exported"
    for folder in (checkout / "sub", elsewhere / "sub", exported):
        folder.mkdir(parents=True)
        (folder / "one.py").touch()
    (elsewhere / "file.py").symlink_to(checkout / "sub" / "one.py")
    (elsewhere / "folder").symlink_to(checkout / "sub")
    (elsewhere / "again").symlink_to(elsewhere / "folder")
    (checkout / "sub" / "out.py").symlink_to(elsewhere / "sub" / "one.py")
    (checkout / "out").symlink_to(elsewhere / "sub")
    (checkout / "exported").symlink_to(exported)
    guard = Guard(cast(Any, SimpleNamespace(folder=exported)), checkout)
    strays = {
        path: guard.is_stray(str(elsewhere / path))
        for path in (
            *("file.py", "folder/one.py", "again/one.py", "again/../sub/one.py"),
            *("again/out.py", "sub/one.py", "again/../../elsewhere/sub/one.py"),
        )
    }
    assert strays == {
        **dict.fromkeys(("file.py", "folder/one.py", "again/one.py", "again/../sub/one.py"), True),
        **dict.fromkeys(("again/out.py", "sub/one.py", "again/../../elsewhere/sub/one.py"), False),
    }
    assert guard.is_stray(str(checkout / "sub" / "one.py"))
    assert not guard.is_stray(str(checkout / "out" / "one.py"))
    assert not guard.is_stray(str(checkout / "exported" / "one.py"))


def test_what_a_process_made_is_no_file_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CI often keeps caches and temporary files in the checkout. A variable that names all of it exempts nothing."""
    checkout, exported = tmp_path / "checkout", tmp_path / "exported"
    for name in ("cache", "compiled", "temporary", "other"):
        (checkout / name).mkdir(parents=True)
        (checkout / name / "one.so").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(checkout / "cache"))
    monkeypatch.setenv("KERNELWATCH_CACHE", str(checkout / "compiled"))
    monkeypatch.setenv("CCACHE_BASEDIR", str(checkout / "other"))  # sources
    monkeypatch.setenv("CI_CACHE", str(checkout))
    monkeypatch.setenv("HOME_CACHE", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(checkout / "temporary"))
    guard = Guard(cast(Any, SimpleNamespace(folder=exported)), checkout)
    strays = [path.parent.name for path in sorted(checkout.glob("*/one.so")) if guard.is_stray(str(path))]
    assert strays == ["other"]
