"""Commits are measured as trees: the layouts that repositories have, and what is never called unchanged."""

import json
import os
import re
import shutil
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from kernelwatch.plan.project import load
from kernelwatch.system.errors import CANNOT
from kernelwatch.system.git import commits
from tests.repositories import Project, new_project, without_modules

DESCRIPTION = '''
"""What is measured."""

from pathlib import Path

import numpy as np

from kernelwatch.plan.problem import Computation, Problem, Rung
from kernelwatch.plan.project import Project

SUM = Computation.of_shapes(
    lambda shape: (shape,),
    lambda shape: shape[:1],
    lambda a: a.astype(np.float64).sum(axis=1),
    bound=lambda type, a: a.shape[1] * 2.0**-24 * abs(a).astype(np.float64).sum(axis=1),
    flops=lambda shape: shape[0] * shape[1],
)
PROJECT = Project(
    package="rows",
    here=Path(__file__).resolve(),
    problems=(
        Problem(
            name="row_sum",
            computation=SUM,
            rungs=({rungs}),
            shapes=((64, 64),),
            cpu_shapes=((64, 64),),
        ),
    ),
    {more}
)
'''
SUITE = '''
"""The suites of row_sum."""

from kernelwatch.run.outcome import Group
from kernelwatch.suites import timed

from .project import PROJECT


class CPU(timed.CpuFlops, project=PROJECT, op="row_sum"):
    def setup_cache(self) -> Group:
        return self.measure()
'''
CONFIGURATION = {
    "version": 1,
    "project": "rows",
    "repo": ".",
    "branches": ["main"],
    "environment_type": "checkout",
    "plugins": [".kernelwatch.asv"],
    "benchmark_dir": "benchmarks",
    "results_dir": "results",
    "env_dir": ".asv/env",
    "html_dir": ".asv/html",
}
PLAIN, OTHER = 'Rung("plain", "cpu", ("float32",)),', 'Rung("other", "cpu", ("float32",)),'
KERNEL = """
import numpy as np

TIMES = {times}


def plain(a, out):
    for _ in range(TIMES):
        np.sum(a, axis=1, out=out)
"""
FAST, SLOW = KERNEL.format(times=4), KERNEL.format(times=100)
OTHER_KERNEL = """
import numpy as np


def other(a, out):
    np.einsum("ij->i", a, out=out)
"""


@dataclass(frozen=True)
class Rows(Project):
    """A repository with a description and kernels, and a copy of the engine that it is measured by."""

    engine: Path = Path()

    def write(self, **texts: str) -> None:
        """Write files, with a double underscore for each slash in their names."""
        self.write_files({name.replace("__", "/") + ".py": text for name, text in texts.items()})

    def write_files(self, texts: dict[str, str]) -> None:
        for name, text in texts.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))

    def describe(self, rungs: str = PLAIN, more: str = "") -> None:
        """The description and asv's configuration."""
        texts = {"benchmarks/__init__.py": "", "benchmarks/project.py": DESCRIPTION.format(rungs=rungs, more=more)}
        texts |= {"benchmarks/row_sum.py": SUITE, "asv.conf.json": json.dumps(CONFIGURATION)}
        self.write_files({**texts, ".gitignore": "/.asv/\n__pycache__/\n/results/\n/results.lock\n"})

    def kernelwatch(self, *arguments: str, code: int | None = None, **more: str) -> str:
        """What a command of the engine prints; its exit code must be this one."""
        environment = {"PYTHONPATH": str(self.engine), "COLUMNS": "300"} | more
        done = self.run(sys.executable, "-m", "kernelwatch", *arguments, **environment)
        told = done.stdout + done.stderr
        assert code is None or done.returncode == code, f"exit code {done.returncode}\n{told}"
        return told


# --- layouts -------------------------------------------------------------------------------------------------------

TABLE = 'KERNELS = {"row_sum": {"plain": "rows.sums:plain"}}\n'
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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_slower_commit_is_worse_wherever_the_kernels_lie(rows: Rows, layout: str) -> None:
    files, slower = LAYOUTS[layout]
    rows.describe()
    rows.write_files(files)
    rows.commit_all("fast")
    rows.write_files({slower: SLOW})
    told = rows.kernelwatch("bench", "--worktree", code=1)
    assert "tree is worse than HEAD: 1 cell" in told
    rows.commit_all("slow")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=1)
    assert "HEAD is worse than BASE: 1 cell" in told
    assert f"changed: row_sum/plain: {slower}" in told
    assert "evidence: 1 launch changed; 1 judged by time" in told
    rows.write_files({slower: f"# A comment.\n{SLOW}"})
    rows.write_files({"README.md": "Something else."})
    rows.commit_all("harmless")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=0)
    assert "no change: the only launch is the same, and nothing was timed" in told


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
    shutil.rmtree(rows.folder / "vendored")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=CANNOT)
    assert "needs the submodule vendored" in told
    assert "git submodule update --init" in told


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


# --- builds --------------------------------------------------------------------------------------------------------

C_SUMS = """
void row_sum(const float *a, float *out, long long rows, long long columns) {{
    for (volatile int again = 0; again < {times}; ++again)
        for (long long row = 0; row < rows; ++row) {{
            double sum = 0;
            for (long long at = 0; at < columns; ++at)
                sum += a[row * columns + at];
            out[row] = sum;
        }}
}}
"""
BY_CTYPES = """
import ctypes
from pathlib import Path

LIBRARY = ctypes.CDLL(str(Path(__file__).parent / "libsums.so"))


def plain(a, out):
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in (a, out))
    LIBRARY.row_sum(*pointers, ctypes.c_longlong(a.shape[0]), ctypes.c_longlong(a.shape[1]))
"""
PYBIND = """
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

using Array = pybind11::array_t<float, pybind11::array::c_style>;

void plain(Array a, Array out) {{
    auto in = a.unchecked<2>();
    auto to = out.mutable_unchecked<1>();
    for (volatile int again = 0; again < {times}; ++again)
        for (long row = 0; row < in.shape(0); ++row) {{
            double sum = 0;
            for (long at = 0; at < in.shape(1); ++at)
                sum += in(row, at);
            to(row) = sum;
        }}
}}

PYBIND11_MODULE(_sums, module) {{
    module.def("plain", &plain, pybind11::arg("a").noconvert(), pybind11::arg("out").noconvert());
}}
"""
SETUPTOOLS = {
    "pyproject.toml": """
    [build-system]
    requires = ["setuptools", "pybind11"]
    build-backend = "setuptools.build_meta"
    [project]
    name = "rows"
    version = "1"
    """,
    "setup.py": """
    from pybind11.setup_helpers import Pybind11Extension
    from setuptools import setup

    setup(packages=["rows"], ext_modules=[Pybind11Extension("rows._sums", ["native/sums.cpp"])])
    """,
}
SCIKIT_BUILD = {
    "pyproject.toml": """
    [build-system]
    requires = ["scikit-build-core", "pybind11"]
    build-backend = "scikit_build_core.build"
    [project]
    name = "rows"
    version = "1"
    """,
    "CMakeLists.txt": """
    cmake_minimum_required(VERSION 3.15)
    project(rows LANGUAGES CXX)
    find_package(pybind11 REQUIRED)
    pybind11_add_module(_sums native/sums.cpp)
    install(TARGETS _sums DESTINATION rows)
    """,
}
PYTORCH = {
    "pyproject.toml": SETUPTOOLS["pyproject.toml"].replace("pybind11", "torch"),
    "setup.py": """
    from setuptools import setup
    from torch.utils.cpp_extension import BuildExtension, {kind}

    setup(
        packages=["rows"],
        ext_modules=[{kind}("rows._sums", ["{source}"])],
        cmdclass={{"build_ext": BuildExtension}},
    )
    """,
}
WHEEL = 'build="python -m pip wheel --quiet . --no-deps -w {wheels}",'
WITH_TORCH = (
    'build="TORCH_CUDA_ARCH_LIST=9.0 python -m pip wheel --quiet . --no-deps --no-build-isolation -w {wheels}",'
)
FROM_NATIVE = {"rows/__init__.py": 'KERNELS = {"row_sum": {"plain": "rows._sums:plain"}}\n'}
# By the way it is built: the fields of the Project, the files, and the source with the number of times as text.
BUILDS = {
    "Makefile": (
        'build="make -s",',
        {
            "Makefile": "rows/libsums.so: native/sums.c\n\t$(CC) -O2 -shared -fPIC -o $@ $<\n",
            "rows/__init__.py": TABLE,
            "rows/sums.py": BY_CTYPES,
        },
        ("native/sums.c", C_SUMS),
    ),
    "setuptools": (WHEEL, {**SETUPTOOLS, **FROM_NATIVE}, ("native/sums.cpp", PYBIND)),
    "scikit-build": (WHEEL, {**SCIKIT_BUILD, **FROM_NATIVE}, ("native/sums.cpp", PYBIND)),
}
for kind, source in (("CppExtension", "native/sums.cpp"), ("CUDAExtension", "native/sums.cu")):
    setup = PYTORCH["setup.py"].format(kind=kind, source=source)
    loads = {"rows/__init__.py": f"import torch\n\n{FROM_NATIVE['rows/__init__.py']}"}
    BUILDS[kind] = (WITH_TORCH, {**PYTORCH, "setup.py": setup, **loads}, (source, PYBIND))
BUILDS["asv"] = (
    'build="asv",',
    {
        "native/Makefile": "../rows/libsums.so: $(SOURCE)\n\t$(CC) -O2 -shared -fPIC -o $@ $<\n",
        "rows/__init__.py": TABLE,
        "rows/sums.py": BY_CTYPES,
    },
    ("native/sums.c", C_SUMS),
)
BUILD_COMMAND = ["return-code=any false", "in-dir=native SOURCE=sums.c make -s"]
# Each of the others fetches its build backend for each tree, which takes a minute and more.
QUICK = ("Makefile", "asv")


@pytest.mark.parametrize("how", BUILDS)
def test_a_commit_is_built(rows: Rows, how: str) -> None:
    if how not in QUICK and not os.environ.get("KERNELWATCH_BUILDS"):
        pytest.skip("builds by pip take minutes: $KERNELWATCH_BUILDS=1 asks for them")
    if how.endswith("Extension"):
        pytest.importorskip("torch.utils.cpp_extension", reason="PyTorch is not installed")
        if how == "CUDAExtension" and not shutil.which("nvcc"):
            pytest.skip("nvcc is not on the PATH")
    more, files, (source, text) = BUILDS[how]
    rows.describe(more=more)
    configuration = {**CONFIGURATION, "build_command": BUILD_COMMAND}
    rows.write_files({**files, source: text.format(times=4), "asv.conf.json": json.dumps(configuration)})
    rows.commit_all("fast")
    rows.write_files({source: text.format(times=200)})
    rows.commit_all("slow")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD")
    if "No matching distribution found" in told:
        pytest.skip("pip has no network to build with")
    assert "HEAD is worse than BASE: 1 cell" in told
    rows.write_files({"README.md": "harmless"})
    rows.commit_all("harmless")
    assert "the only launch is the same" in rows.kernelwatch("versus", "HEAD~1", "HEAD", code=0)
    rows.write_files({source: "no such thing"})
    rows.commit_all("broken")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=2)
    assert "the build failed: `" in told
    log = re.search(r"its output: (\S+)", told)
    assert log is not None
    assert "no such thing" in Path(log[1]).read_text() or "error" in Path(log[1]).read_text()
    if how in QUICK:
        told = rows.kernelwatch("bench", "--no-gate", "--no-confirm", "HEAD~1..HEAD", code=2)
        assert "1 failed" in told
        assert f"the build failed: `{BUILD_COMMAND[1] if how == 'asv' else 'make -s'}`" in told


def test_wheels_that_were_built_elsewhere_are_imported(rows: Rows) -> None:
    rows.describe(more='wheels="wheels/{commit}/*.whl",')
    rows.write_files({"rows/__init__.py": TABLE, ".gitignore": "/wheels/\n/.asv/\n__pycache__/\n"})
    for text in (FAST, SLOW):
        rows.write_files({"version.txt": str(len(text))})
        commit = rows.commit_all("a wheel of it lies elsewhere")
        folder = rows.folder / "wheels" / commit
        folder.mkdir(parents=True)
        with zipfile.ZipFile(folder / "rows-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr("rows/__init__.py", TABLE)
            wheel.writestr("rows/sums.py", dedent(text))
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=1)
    assert "HEAD is worse than BASE: 1 cell" in told
    shutil.rmtree(folder)
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=CANNOT)
    assert f"no wheel of commit {commit[:8]}: " in told


CARELESS = """
import ctypes
import os
import subprocess
from pathlib import Path

import numpy as np

LIBRARY = Path(os.environ["XDG_CACHE_HOME"], "rows", "row_sum.so")  # whatever it is made from
if not LIBRARY.exists():
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).parents[1] / "native" / "sums.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", LIBRARY, source], check=True)
ROW_SUM = ctypes.CDLL(str(LIBRARY)).row_sum


def plain(a, out):
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in (a, out))
    ROW_SUM(*pointers, ctypes.c_longlong(a.shape[0]), ctypes.c_longlong(a.shape[1]))
"""


def test_a_commit_is_never_given_what_another_one_compiled(rows: Rows, tmp_path: Path) -> None:
    """The commits keep what they compile under a key that lacks its source."""
    rows.describe()
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": CARELESS, "native/sums.c": C_SUMS.format(times=4)})
    rows.commit_all("fast")
    rows.write_files({"native/sums.c": C_SUMS.format(times=200)})
    rows.commit_all("slow")
    for _ in range(2):  # the second time, all that is compiled is in the caches
        told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=1, XDG_CACHE_HOME=str(tmp_path / "cache"))
        assert "HEAD is worse than BASE: 1 cell" in told
        assert "changed: row_sum/plain: native/sums.c" in told


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
    rows.describe(PLAIN + OTHER, 'table="rungs",')
    text = (rows.folder / "benchmarks" / "project.py").read_text().replace('package="rows"', 'package="kernels"')
    rows.write_files({"benchmarks/project.py": text, "benchmarks/rungs.py": RUNGS})
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
    rows.describe(more='table="rungs",')
    text = (rows.folder / "benchmarks" / "project.py").read_text().replace('package="rows"', 'package=""')
    rows.write_files({"benchmarks/project.py": text, "benchmarks/rungs.py": BY_FILE})
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=1)
    assert "changed: row_sum/plain: src/sums.h" in told
    told = rows.kernelwatch("versus", "HEAD~2", "HEAD~1", code=0)
    assert "new: row_sum/plain, with nothing to compare" in told


# --- no green without evidence -------------------------------------------------------------------------------------


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


def test_a_dead_suite_is_named(rows: Rows) -> None:
    rows.describe()
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": FAST})
    suite = (rows.folder / "benchmarks" / "row_sum.py").read_text()
    rows.write_files(
        {"benchmarks/row_sum.py": suite.replace("return self.measure()", "raise OSError('no such place')")}
    )
    rows.commit_all("a suite that ends")
    told = rows.kernelwatch("bench", "--no-gate", "--no-confirm", code=2)
    assert "failed at" in told
    assert "no such place" in told
    assert "; its output: .asv/failed/" in told
    assert "verdict: 1 suite failed" in told


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
# By what hides it: how often the work is done, and the file that says so, before and after.
HIDDEN = {
    "a module that the table's module imports": (
        'os.environ.get("TIMES", "4")',
        "rows/tune.py",
        "",
        'import os\nos.environ["TIMES"] = "100"\n',
    ),
    "a file that is executed": ('eval((HERE / "impl.py").read_text())', "rows/impl.py", "4", "100"),
    "a file that another process reads": (BY_SHELL, "rows/times.txt", "4", "100"),
    "a hidden file": ('(HERE / ".times.json").read_text()', "rows/.times.json", "4", "100"),
    "a path relative to the working folder": ('Path("tables/times.txt").read_text()', "tables/times.txt", "4", "100"),
}


@pytest.mark.parametrize("what", HIDDEN)
def test_what_decides_a_launch_is_found_wherever_it_is(rows: Rows, tmp_path: Path, what: str) -> None:
    """Also if the folder of temporary files is a link."""
    times, file, fast, slow = HIDDEN[what]
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    rows.describe()
    rows.write_files({"rows/__init__.py": f"from . import tune\n{TABLE}", "rows/tune.py": ""})
    rows.write_files({"rows/sums.py": READING.format(times=times), file: fast})
    rows.commit_all("fast")
    rows.write_files({file: slow})
    rows.commit_all("slow")
    told = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=1, TMPDIR=str(tmp_path / "link"))
    assert "HEAD is worse than BASE: 1 cell" in told


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
    assert other.wait(120) == 0
