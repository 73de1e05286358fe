"""Commits that are built before they are measured, and the caches that they compile into."""

import json
import os
import re
import shutil
import zipfile
from pathlib import Path
from textwrap import dedent

import pytest

from kernelwatch.system.errors import CANNOT
from tests.sums_of_rows import BY_CTYPES, C_SUMS, CONFIGURATION, FAST, SLOW, TABLE, Rows

PYBIND = """
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

using Array = pybind11::array_t<float, pybind11::array::c_style>;

extern "C" int optopt;  // the clock of the small engine

void plain(Array a, Array out) {{
    auto in = a.unchecked<2>();
    auto to = out.mutable_unchecked<1>();
    for (volatile int again = 0; again < {times}; ++again, ++optopt)
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
    assert f"changed: row_sum/plain: {source}, " in told
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


def test_what_was_built_is_told_by_what_it_is_made_from(rows: Rows) -> None:
    copy = "cp -r lib .built"
    compile = "cc -O2 -shared -fPIC -Inative/include -o .built/rows/libsums.so native/sums.c"
    rows.describe(more=f"build={(copy, compile)},")
    source = f'#include "times.h"\n{C_SUMS}'.format(times="TIMES")
    texts = {"lib/rows/__init__.py": TABLE, "lib/rows/sums.py": BY_CTYPES, "native/sums.c": source}
    rows.write_files({**texts, "native/include/times.h": "#define TIMES 4", "tests/test_sums.py": ""})
    rows.commit_all("first")
    rows.write_files({"native/include/times.h": "#define TIMES 5", "tests/test_sums.py": "TIMES = 5"})
    rows.commit_all("a header")
    library = ".built/rows/libsums.so"
    assert rows.changes().launched == {"row_sum/plain": ("native/include/times.h", library)}
    rows.write_files({"lib/rows/sums.py": f"import os\n{BY_CTYPES}", "native/include/times.h": "#define TIMES  5"})
    rows.commit_all("a module, and a header that means the same")
    assert rows.changes().launched == {"row_sum/plain": ("lib/rows/sums.py",)}
    rows.write_files({"lib/rows/sums.py": BY_CTYPES, "native/sums.c": source.replace("double sum", "float sum")})
    rows.commit_all("both")
    told = ("lib/rows/sums.py", "native/sums.c", library)
    assert sorted(rows.changes().launched["row_sum/plain"]) == sorted(told)


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
    assert "changed: row_sum/plain: version.txt, .built/rows/sums.py" in told
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
