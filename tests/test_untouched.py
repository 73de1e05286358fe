"""Whose modules are watched in a try of a campaign: what replaces itself blames nobody, what a candidate replaces is
refused by name. All in fresh processes, some with packages on PYTHONPATH."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.repositories import PRELOADED

ORIGINAL = """
import sys
import numpy as np
{imports}

rng = np.random.default_rng()

def add(x):
    return {how}

def inputs():
    return ({numbers},)
"""

# As lazy_importer 0.1.0 does it, on which importlib_metadata 10.2.0 rests: each use of the name, also `isinstance`,
# imports the module and puts it in the place of the proxy.
PROXY = """
import importlib

class Proxy:
    def __init__(self, name, namespace):
        object.__setattr__(self, "_of", (name, namespace))

    def __getattribute__(self, name):
        of, namespace = object.__getattribute__(self, "_of")
        module = importlib.import_module(of)
        for key, value in [*namespace.items()]:
            if value is self:
                namespace[key] = module
        return getattr(module, name)

    def __call__(self, *arguments):
        raise TypeError("a module")

colors = Proxy("colorsys", globals())

def gray(x):
    return colors.rgb_to_hsv(0, 0, x[0])[2]
"""

# As TensorFlow has it, and those who copied that: a module that fills itself.
LOADER = """
import importlib
import types

class Loader(types.ModuleType):
    def __getattr__(self, name):
        module = importlib.import_module(self.__name__)
        globals()["loaded"] = module
        vars(self).update(vars(module))
        return getattr(module, name)

loaded = Loader("colorsys")
"""

# A function that puts another one in its place when it is first called.
BUILT = """
def build(x):
    global one
    one = lambda x: x + 1
    return one(x)

one = build

def other(x):
    return x + 1

import functools

@functools.cache
def cached():
    return 1
"""


class Tree(NamedTuple):
    """A folder of a user, with a module `helper` in a folder beside those of the original and the candidate. `path`:
    for PYTHONPATH, before the engine."""

    folder: Path
    path: list[Path]

    def write(self, helper: str, imports: str, how: str = "x + 1", numbers: str = "rng.random(4096)") -> None:
        for folder in ("kernels", "candidates", "common"):
            (self.folder / folder).mkdir()
        (self.folder / "common" / "helper.py").write_text(helper)
        original = ORIGINAL.format(imports=imports, how=how, numbers=numbers)
        (self.folder / "kernels" / "original.py").write_text(original)

    def attempt(self, candidate: str, original: str = "") -> str:
        """What the command says of a candidate."""
        own = self.folder / "candidates" / "candidate.py"
        own.write_text(candidate)
        original = original or f"{self.folder}/kernels/original.py:add"
        path = os.pathsep.join(map(str, (*self.path, os.environ["PYTHONPATH"])))
        for words in (
            ["start", "own.jsonl", original, "--args", "inputs", "--device", "cpu", "--seconds", "0.01"],
            ["try", "own.jsonl", f"{own}:add"],
        ):
            command = ["-m", "kernelwatch", "campaign", *words]
            done = PRELOADED.run(command, self.folder.parent, os.environ | {"PYTHONPATH": path})
            assert not done.stderr.strip(), done.stderr
        return done.stdout


@pytest.fixture(autouse=True)
def engine(api_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(api_engine))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A repository; the folder of its helper is on PYTHONPATH."""
    folder = tmp_path / "own"
    folder.mkdir()
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    return Tree(folder, [folder / "common"])


def package(folder: Path, code: str, kind: str) -> Path:
    """A folder for PYTHONPATH with the package `parts`: as `pip install --target` makes it, or of another repository,
    which an editable install leads to."""
    (folder / "parts").mkdir(parents=True)
    (folder / "parts" / "__init__.py").write_text(code)
    if kind == "target":
        (folder / "parts-1.0.dist-info").mkdir()
        (folder / "parts-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: parts\nVersion: 1.0\n")
        record = "parts/__init__.py,,\nparts-1.0.dist-info/METADATA,,\nparts-1.0.dist-info/RECORD,,\n"
        (folder / "parts-1.0.dist-info" / "RECORD").write_text(record)
    else:
        subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    return folder


KINDS = ("target", "repository")


def is_refused(said: str) -> bool:
    return "refused" in said


# --- nobody's doing ------------------------------------------------------------------------------------------------


def test_a_lazy_import_of_a_package_that_nobody_uses(tree: Tree, tmp_path: Path) -> None:
    tree.write("", "import parts")
    tree.path.append(package(tmp_path / "site", PROXY, "target"))
    said = tree.attempt("def add(x):\n    return 1 + x\n")
    assert not is_refused(said), said


@pytest.mark.parametrize("code", ["parts.gray(x)", "parts.one(x)"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inside", [False, True])
def test_what_a_package_replaces_when_the_candidate_uses_it(
    tree: Tree, tmp_path: Path, kind: str, code: str, inside: bool
) -> None:
    """Also if it lies in a folder of the user's repository."""
    tree.write("", "import parts")
    tree.path.append(package((tree.folder if inside else tmp_path) / "site", PROXY + BUILT, kind))
    said = tree.attempt(f"import parts\n\ndef add(x):\n    {code}\n    return 1 + x\n")
    assert not is_refused(said), said


@pytest.mark.parametrize(
    "code", ["helper.gray(x)", "isinstance(helper.colors, int)", "helper.loaded.rgb_to_hsv(0, 0, 0)"]
)
def test_a_lazy_import_of_a_helper_that_the_candidate_uses_first(tree: Tree, code: str) -> None:
    tree.write(PROXY + LOADER, "import helper")
    said = tree.attempt(f"import helper\n\ndef add(x):\n    {code}\n    return 1 + x\n")
    assert not is_refused(said), said


def test_what_the_original_binds_when_it_is_first_called_and_the_candidate_uses(tree: Tree) -> None:
    tree.write(BUILT, "import helper", "helper.one(x)")
    said = tree.attempt("import helper\n\ndef add(x):\n    return helper.one(x)\n")
    assert not is_refused(said), said


def test_nobody_imports_a_module_to_look_at_its_proxy(tree: Tree) -> None:
    """It may be missing."""
    missing = PROXY.replace("colorsys", "a_module_that_is_missing")
    other = missing.replace("__call__", "call").replace("colors", "shades")  # Python takes it for no callable
    tree.write(missing + other, "import helper")
    said = tree.attempt("def add(x):\n    return 1 + x\n")
    assert not is_refused(said), said


# --- a candidate's doing -------------------------------------------------------------------------------------------


REPLACED = {
    "a function of the helper": ("helper.other = lambda x: x", "helper.other"),
    "what is in a function": ("helper.other.__code__ = (lambda x: x).__code__", "helper.other"),
    "a function by itself": (
        "from types import FunctionType as F\n"
        "helper.other.__code__ = (lambda x: x).__code__\n"
        "helper.other = F(helper.other.__code__, vars(helper))",
        "helper.other",
    ),
    "what is no function, with what a function has": (
        "fake = lambda x: x\n"
        "for name in ('__code__', '__globals__', '__defaults__', '__kwdefaults__', '__closure__'):\n"
        "    setattr(helper.cached, name, getattr(fake, name))\n"
        "helper.cached = fake",
        "helper.cached",
    ),
    "a lazy import": ("import math\nhelper.colors = math", "helper.colors"),
    "a lazy import by a module that is made": (
        "import types\nhelper.colors = sys.modules['made'] = types.ModuleType('made')",
        "helper.colors",
    ),
    "a lazy import by a part of it": (
        "import colorsys, types\nhelper.colors = types.ModuleType('')\nvars(helper.colors).clear()\n"
        "helper.colors.rgb_to_hsv = colorsys.rgb_to_hsv",
        "helper.colors",
    ),
    "the module of the helper": (
        "import types\nsys.modules['helper'] = types.ModuleType('helper')",
        r"helper.\w+ and \d+ more",
    ),
    "the helper by something else": ("sys.modules['helper'] = 1", r"helper.\w+ and \d+ more"),
}


@pytest.mark.parametrize("what", REPLACED)
def test_what_a_candidate_replaces_in_the_tree_of_the_original_is_refused(tree: Tree, what: str) -> None:
    code, name = REPLACED[what]
    tree.write(PROXY + BUILT, "import helper", "helper.other(x)")
    said = tree.attempt(f"import sys\nimport helper\n{code}\n\ndef add(x):\n    return x + 1\n")
    assert re.search(rf"it replaces {name}, which the measurement uses", said), said


def test_without_a_repository_the_tree_is_what_python_imports_from(tree: Tree) -> None:
    shutil.rmtree(tree.folder / ".git")
    tree.write(BUILT, "import common.helper")
    tree.path[:] = [tree.folder]
    said = tree.attempt("from common import helper\nhelper.other = None\n\ndef add(x):\n    return x + 1\n")
    assert "it replaces common.helper.other, which the measurement uses" in said


def test_an_original_of_an_installed_package_is_watched(tree: Tree, tmp_path: Path) -> None:
    tree.write("", "import parts")
    code = ORIGINAL.format(imports="", how="x + 1", numbers="rng.random(4096)")
    tree.path.append(package(tmp_path / "site", code, "target"))
    said = tree.attempt("import parts\nparts.add = lambda x: x + 1\n\ndef add(x):\n    return x + 1\n", "parts:add")
    assert "it replaces parts.add, which the measurement uses" in said


def test_a_kernel_that_the_original_has_bound_is_not_replaced(tree: Tree) -> None:
    tree.write(BUILT, "import helper", "helper.one(x)")
    said = tree.attempt("import helper\n\ndef add(x):\n    helper.one = lambda x: x + 1\n    return x + 1\n")
    assert "it replaces helper.one, which the measurement uses" in said


CALLS = "CALLS = []\n\ndef call(x):\n    CALLS.append(x[0])\n    return x + 1\n"


@pytest.mark.parametrize(("numbers", "calls"), [("rng.random(4096)", 1), ("np.arange(4096.0)", 0)])
def test_no_right_output_is_computed_before_the_candidate_has_its_turn(tree: Tree, numbers: str, calls: int) -> None:
    """The call of the original ahead of it has other numbers, and none is made if they are always the same."""
    tree.write(CALLS, "import helper", "helper.call(x)", numbers)
    said = tree.attempt(
        "import helper\n\ndef add(x):\n"
        "    raise ValueError(f'{len(helper.CALLS)} before, the same: {x[0] in helper.CALLS}')\n"
    )
    assert f"ValueError: {calls} before, the same: False" in said
