"""A package whose rungs are plain functions: what its launches are called, and how far a faulty rung reaches."""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from kernelwatch.comparison.changes import changes
from kernelwatch.plan import functions, sources
from kernelwatch.plan.functions import FunctionPackage, adapt, parts_of_table
from kernelwatch.plan.package import ModulePackage
from kernelwatch.plan.project import Project
from kernelwatch.plan.tree import Places
from kernelwatch.system import installed

FILES = {
    "__init__.py": """
from mine import sums
from mine.sums import plain

KERNELS = {
    "row_sum": {
        "plain": plain,
        "scaled": sums.scaled,
        "far": "mine.rungs.far:far",
        "made": sums.make(1),
        "found": "mine.dynamic:found",
    }
}
""",
    "sums.py": """
import numpy as np


def plain(a, out):
    np.sum(a, axis=1, out=out)


def scaled(a, out):
    np.multiply(a.sum(axis=1), 1, out=out)


def make(factor):
    return lambda a, out: np.multiply(a.sum(axis=1), factor, out=out)
""",
    "rungs/__init__.py": "",
    "rungs/far.py": """
def far(a, out):
    from ..helpers import near

    near.near(a, out)
""",
    "helpers/near.py": "from foreign import fast\nfrom .deep import deep\n\n\ndef near(a, out):\n    deep(a, out)\n",
    "helpers/deep.py": "def deep(a, out):\n    out[:] = a.sum(axis=1)\n",
    "dynamic.py": "import importlib\n\nfound = lambda a, out: importlib.import_module('mine.hidden').found(a, out)\n",
    "hidden.py": "def found(a, out):\n    out[:] = a.sum(axis=1)\n",
}
# What depends on everything, since it cannot be told on what it does.
UNCLEAR = {"made", "found"}


@pytest.fixture
def identities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, str]]]:
    """By rung, the identities of the package with some files changed, beside version 1.0 of a distribution."""
    before = dict(sys.modules)
    count = 0

    def of(changed: Mapping[str, str] | None = None, version: str = "1.0") -> dict[str, str]:
        nonlocal count
        count += 1
        folder = tmp_path / str(count)
        written(folder, changed or {})
        distribution(tmp_path / f"site{count}", version)
        for name in [name for name in sys.modules if name.partition(".")[0] in ("mine", "foreign")]:
            del sys.modules[name]
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(tmp_path / f"site{count}"))
            patch.syspath_prepend(str(folder))
            package = adapt(importlib.import_module("mine"))
            assert isinstance(package, FunctionPackage)
            loaded = {rung: package.load("row_sum", rung, "float32") for rung in package.module.KERNELS["row_sum"]}
            a, out = np.ones((3, 4), np.float32), np.zeros(3, np.float32)
            launches = {rung: kernel.bind(a, out=out) for rung, kernel in loaded.items()}
            for launch in launches.values():
                out[:] = 0
                launch()
                assert out.tolist() == [4, 4, 4]
            assert package.imports()["foreign-kernels"] == version
            return {rung: launch.identity for rung, launch in launches.items()}

    yield of
    for name in sys.modules.keys() - before:
        del sys.modules[name]


def distribution(site: Path, version: str) -> None:
    """A distribution whose name is not that of its module."""
    (site / "foreign").mkdir(parents=True)
    (site / "foreign" / "__init__.py").write_text("")
    (site / "foreign" / "fast.py").write_text("")
    info = site / f"Foreign_Kernels-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: Foreign_Kernels\nVersion: {version}\n")
    (info / "RECORD").write_text("foreign/__init__.py,,\nforeign/fast.py,,\n")


Identities = Callable[..., dict[str, str]]


def differ(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    return {rung for rung in before if before[rung] != after[rung]}


def test_every_rung_has_an_identity_of_its_own(identities: Identities) -> None:
    once = identities()
    assert len(set(once.values())) == len(FILES) - 3 == 5
    assert identities() == once  # in another folder


@pytest.mark.parametrize(
    ("file", "rungs"),
    [
        ("sums.py", {"plain", "scaled"}),
        ("rungs/far.py", {"far"}),
        ("helpers/near.py", {"far"}),
        ("helpers/deep.py", {"far"}),
        ("dynamic.py", set()),
        ("hidden.py", set()),
        ("__init__.py", {"plain", "scaled", "far"}),  # code beside the table runs for all
    ],
)
def test_a_source_concerns_what_imports_it(identities: Identities, file: str, rungs: set[str]) -> None:
    """However far away: `far` imports `near` within the function, and `near` imports `deep`."""
    assert differ(identities(), identities({file: f"{FILES[file]}\nCHANGED = 1\n"})) == rungs | UNCLEAR


PARTS = {
    **{f"row_sum/{rung}": {"sums.py"} for rung in ("plain", "scaled")},
    "row_sum/far": {"rungs/far.py", "rungs/__init__.py", "helpers/near.py", "helpers/deep.py"},
    **{f"row_sum/{rung}": set[str]() for rung in UNCLEAR},
}


def written(folder: Path, changed: Mapping[str, str]) -> Path:
    for name, text in {**FILES, **changed}.items():
        path = folder / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "mine"


def parts_of(folder: Path, changed: Mapping[str, str] | None = None) -> dict[str, set[str]]:
    """The files, relative to the package, that each rung of the table is made from; none if that cannot be told."""
    package = written(folder, changed or {})
    found = parts_of_table(Places(folder, (folder,)), "mine")
    assert all(part.whole or not part.sources for part in found.values())
    return {rung: {path.relative_to(package).as_posix() for path in part.sources} for rung, part in found.items()}


def test_what_a_rung_is_made_from_is_read_from_the_sources(tmp_path: Path) -> None:
    """As its identity has it, for a function, a function of a module, a text, and what a call makes."""
    assert parts_of(tmp_path) == PARTS


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("KERNELS =", "KERNELS: dict[str, object] ="),
        ("from mine import sums\nfrom mine.sums import plain", "from . import sums\nfrom .sums import plain"),
        ("from mine.sums import plain", "from mine.sums import plain as simple"),
    ],
)
def test_a_table_may_be_written_otherwise(tmp_path: Path, old: str, new: str) -> None:
    text = FILES["__init__.py"].replace(old, new)
    if "simple" in new:
        text = text.replace(": plain", ": simple")
    assert parts_of(tmp_path, {"__init__.py": text}) == PARTS


def before_table(more: str) -> str:
    head, table = FILES["__init__.py"].split("\nKERNELS")
    return f"{head}\n{more}\nKERNELS{table}"


@pytest.mark.parametrize(
    "more",
    [
        "plain = sums.make(2)",
        "def plain(a, out): ...",
        "plain.factor = 2",
        "try:\n    from mine.rungs.far import far as plain\nexcept ImportError:\n    pass",
    ],
)
def test_a_name_that_is_bound_twice_may_be_anything(tmp_path: Path, more: str) -> None:
    package = written(tmp_path, {"__init__.py": before_table(more)})
    found = parts_of_table(Places(tmp_path, (tmp_path,)), "mine")["row_sum/plain"]
    assert package / "sums.py" in found.sources
    assert ("rungs" in more) == (package / "rungs" / "far.py" in found.sources)
    assert found.launch != parts_of_table_before(tmp_path / "before")


def parts_of_table_before(folder: Path) -> str:
    written(folder, {})
    return parts_of_table(Places(folder, (folder,)), "mine")["row_sum/plain"].launch


@pytest.mark.parametrize(
    "text",
    [
        before_table("def load(op, rung, type): ..."),
        before_table("from mine.sums import load"),
        before_table("from mine.sums import *"),
        before_table("def binary(op, rung, type, arch): ..."),
        before_table("def __getattr__(name): ..."),
        before_table("more = {}").replace('"plain": plain', '**more, "plain": plain'),
        before_table("OP = 'row_sum'").replace('"row_sum": {', "OP: {"),
        FILES["__init__.py"] + "KERNELS['row_sum']['plain'] = sums.scaled",
        FILES["__init__.py"] + "KERNELS.update(more)",
        FILES["__init__.py"] + "BINARIES = make_binaries()",
        FILES["__init__.py"] + "BINARIES = {**sums.BINARIES}",
        FILES["__init__.py"] + "from mine.sums import BINARIES",
        "from mine.sums import KERNELS",
        "KERNELS = {'row_sum': {",
    ],
)
def test_a_table_that_the_source_does_not_tell(tmp_path: Path, text: str) -> None:
    """It is made or changed by code, or there is `load`: every edit concerns every rung."""
    assert parts_of(tmp_path, {"__init__.py": text}) == {}


def changed(base: Path, head: Path, monkeypatch: pytest.MonkeyPatch, *rungs: str) -> set[str]:
    """Of these rungs, those that differ between the packages in two folders."""
    monkeypatch.setattr(Project, "rungs", lambda _: [f"row_sum/{name}" for name in rungs])
    project = Project("mine", base / "project.py", ())
    return {name.removeprefix("row_sum/") for name in changes(project, str(base), str(head)).rungs}


def test_a_rung_that_is_registered_by_code_may_depend_on_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, head = tmp_path / "base", tmp_path / "head"
    written(base, {})
    written(head, {"hidden.py": "CHANGED = 1"})
    assert changed(base, head, monkeypatch, "plain", "registered") == {"registered", *UNCLEAR}
    assert changed(base, base, monkeypatch, "plain", "registered") == set()


@pytest.mark.parametrize(
    ("bound", "counts"),
    [
        ("from .quick import far", True),
        ("from .far import far as _far\nfar = print(_far)", True),
        ("from . import far", False),
    ],
)
def test_a_function_with_the_name_of_a_module_is_the_one_that_the_folder_binds(
    tmp_path: Path, bound: str, counts: bool
) -> None:
    files = {
        "rungs/__init__.py": bound,
        "rungs/quick.py": "def far(a, out): ...",
        "sums.py": "from mine.rungs import far\n" + FILES["sums.py"],
    }
    found = parts_of(tmp_path, files)["row_sum/plain"]
    assert found >= {"sums.py", "rungs/far.py"}
    assert "rungs/__init__.py" in found  # it runs before its modules
    assert ("rungs/quick.py" in found) == (counts and "quick" in bound)


@pytest.mark.parametrize(
    ("file", "text", "rungs"),
    [
        ("sums.py", "CHANGED = 1", {"plain", "scaled"} | UNCLEAR),
        ("helpers/deep.py", "CHANGED = 1", {"far"} | UNCLEAR),
        (
            "__init__.py",
            FILES["__init__.py"].replace("mine.rungs.far:far", "mine.helpers.deep:deep"),
            {"far"},
        ),
        ("__init__.py", FILES["__init__.py"] + "# changed", set()),
        ("__init__.py", FILES["__init__.py"].replace("mine.sums import", "mine.hidden import"), {"plain"}),
        ("kernel.cu", "new", {"plain", "scaled", "far"} | UNCLEAR),
    ],
)
def test_an_edit_changes_the_rungs_that_it_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, rungs: set[str]
) -> None:
    base, head = tmp_path / "base", tmp_path / "head"
    written(base, {})
    written(head, {file: text})
    assert changed(base, head, monkeypatch, "plain", "scaled", "far", *UNCLEAR) == rungs


@pytest.mark.parametrize("file", ["kernel.cu", "rungs/_fast.cpython-311-x86_64-linux-gnu.so"])
def test_what_is_no_python_concerns_every_rung(identities: Identities, file: str) -> None:
    """A source that a rung reads, an extension that it calls: neither is an import of Python source."""
    before = identities({file: "1"})
    assert differ(before, identities({file: "2"})) == set(before)


def test_an_upgrade_concerns_what_imports_the_distribution(
    identities: Identities, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = identities(version="1.0")
    assert differ(before, identities(version="1.1")) == {"far"} | UNCLEAR
    monkeypatch.setitem(installed.COMPILERS, "foreign", ("pytest",))
    assert differ(before, identities(version="1.0")) == {"far"} | UNCLEAR


def test_who_provides_a_module_is_what_python_says() -> None:
    said = metadata.packages_distributions()
    assert len(said) > 20
    for module, names in said.items():
        assert installed.providers([module]) == sorted({installed.normal(name) for name in names}), module
    assert installed.providers(["no_such_module"]) == installed.providers([]) == []


def test_what_compiles_the_kernels_of_a_module_counts_if_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba's compiler is no file of Numba, and cuTile's no file of cuTile; the files of CuTe are no modules."""
    files = {
        "numba-1.0": "numba/__init__.py,,",
        "numba_cuda-2.0": "numba_cuda/__init__.py,,",
        "cuda_tile-3.0": "cuda/tile/__init__.py,,",
        "nvidia_cuda_tileiras-4.0": "nvidia/cu13/bin/tileiras,,",
        "nvidia_cutlass_dsl_libs_cu13-5.0": "nvidia_cutlass_dsl/cu13/lib/x.so,,",
        "unrelated-6.0": "unrelated.py,,",
    }
    for name, record in files.items():
        info = tmp_path / f"{name}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nVersion: {name.partition('-')[2]}\n")
        (info / "RECORD").write_text(f"{record}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert installed.behind(["numba"]) == {"numba": "1.0", "numba-cuda": "2.0"}
    assert installed.behind(["cuda"]) == {"cuda-tile": "3.0", "nvidia-cuda-tileiras": "4.0"}
    assert installed.behind(["cutlass"]) == {"nvidia-cutlass-dsl-libs-cu13": "5.0"}
    assert installed.behind(["unrelated", "no_such_module"]) == {"unrelated": "6.0"}
    assert installed.behind([]) == {}


@pytest.mark.parametrize(
    ("statement", "reached"),
    [
        ("import mine.a.b", {"__init__.py", "a/__init__.py", "a/b.py"}),
        ("import mine.a.b as b", {"a/b.py"}),
        ("from mine import a", {"a/__init__.py"}),
        ("from . import TILE", {"__init__.py"}),
        ("from .a.b import *", {"a/b.py"}),
        ("from .a import c", {"a/__init__.py"}),
        ("if False:\n    from mine.a import b", {"a/b.py"}),
        ("import os, numpy.linalg", set()),
    ],
)
def test_what_an_import_reaches(tmp_path: Path, statement: str, reached: set[str]) -> None:
    package = tmp_path / "mine"
    (package / "a").mkdir(parents=True)
    for name, text in {"__init__.py": "", "a/__init__.py": "", "a/b.py": "", "start.py": statement}.items():
        (package / name).write_text(text)
    found = sources.reached(Places(tmp_path, (tmp_path,)), ("mine.start",))
    above = {"__init__.py", *(["a/__init__.py"] if any("a/" in name for name in reached) else [])}
    assert {path.relative_to(package).as_posix() for path in found.files} == reached | {"start.py"} | above
    assert found.complete
    assert found.others == ({"numpy"} if "numpy" in statement else set())


def test_an_import_within_a_folder_is_relative_to_it(tmp_path: Path) -> None:
    package = tmp_path / "mine"
    (package / "a").mkdir(parents=True)
    for name, text in {"__init__.py": "", "a/__init__.py": "from .b import c", "a/b.py": "from . import d"}.items():
        (package / name).write_text(text)
    for name in ("b.py", "a/d.py"):
        (package / name).write_text("")
    found = sources.reached(Places(tmp_path, (tmp_path,)), ("mine.a",))
    assert {path.relative_to(package).as_posix() for path in found.files} == {
        "__init__.py", "a/__init__.py", "a/b.py", "a/d.py"
    }  # fmt: skip


START = "def device():\n    return 'cuda'\ndef setup():\n    global TIMES\n    TIMES = 4\n"
HOOK = "class Base:\n    def __init_subclass__(cls):\n        print(cls)\n"


@pytest.mark.parametrize(
    ("text", "acts"),
    [
        ("from . import start\nstart.TIMES = 4", True),
        ("if True:\n    import os\n    os.environ['OMP_NUM_THREADS'] = '1'", True),
        ("from .registry import kernel\n@kernel\ndef fast(a):\n    return a", True),
        ("import torch\n@torch.library.custom_op('mine::fast')\ndef fast(a):\n    return a", True),
        ("import numpy\nnumpy.seterr(all='ignore')", True),
        ("from .registry import Base\nclass Fast(Base):\n    pass", True),
        ("from .deep import far", True),  # which acts itself
        ("from . import start\nREADY = start.setup()", True),
        ("def setup():\n    import os\n    os.environ['A'] = '1'\nREADY = setup()", True),
        ("from .registry import kernel\nclass Fast:\n    @kernel\n    def run(self):\n        pass", True),
        ("import numpy\nclass Fast:\n    numpy.seterr(all='ignore')", True),
        ("from .start import device\nDEVICE = device()", False),
        ("from .start import setup\nREADY = setup()", True),
        ("from .start import absent\nREADY = absent()", True),
        ("def double(x):\n    return 2 * x\nSIZE = double(4)", False),
        ("class Fast:\n    size = 4\n    @property\n    def twice(self):\n        return setup(self)", False),
        ("import numpy as np\nSIZES = np.arange(4)\nNAMES = sorted(set('ab'))", False),
        ("import importlib\nfor name in NAMES:\n    OWN = importlib.import_module(name)", True),
        ("import numpy as np\nSIZES = {}\nSIZES['a'] = np.float32(1)\ndef fast(a):\n    np.copyto(a, 1)", False),
        ("import triton\n@triton.jit\ndef fast(a):\n    pass", False),
        ('"""Words."""\nfrom .start import plain as other', False),
    ],
)
def test_what_a_package_imports_counts_if_it_acts_on_others(tmp_path: Path, text: str, acts: bool) -> None:
    """Only `mine.start` is imported by name, the rest by the package above it."""
    package = tmp_path / "mine"
    package.mkdir()
    files = {"__init__.py": "from . import more", "more.py": text, "start.py": START, "deep.py": "print()"}
    for name, content in {**files, "registry.py": HOOK}.items():
        (package / name).write_text(content)
    found = sources.reached(Places(tmp_path, (tmp_path,)), ("mine.start",))
    names = {path.name for path in found.files}
    assert names >= {"__init__.py", "start.py"}
    assert bool(names & {"more.py", "deep.py"}) == acts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("open('tools/gen.py')", {"tools/gen.py"}),
        ("open(f'{folder}/gen.py')", {"tools/gen.py"}),
        ("open(folder / f'{name}.py')", {"tools/gen.py", "mine/__init__.py"}),
        ("folder.glob('*.md')", {"README.md"}),
        ("open('.tuned/best.json')", {".tuned/best.json"}),
        ("folder.joinpath('.tuned')", {".tuned/best.json"}),
        ("open('benchmarks/sizes.json')", {"benchmarks/sizes.json"}),
        ('"""See README.md and gen.py."""', set()),
        ("error = 'Nothing. At all.'", set()),
    ],
)
def test_files_that_a_source_names_count(tmp_path: Path, text: str, names: set[str]) -> None:
    """What lies beside the modules and is neither imported nor data may be read all the same."""
    files = ("tools/gen.py", "README.md", ".tuned/best.json", "benchmarks/sizes.json", "data.json")
    for name in (*files, "mine/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "mine" / "__init__.py").write_text("KERNELS = {'row_sum': {'plain': 'mine.sums:plain'}}")
    (tmp_path / "mine" / "sums.py").write_text(text)
    places = Places(tmp_path, (tmp_path,), apart=(tmp_path / "benchmarks",))
    sums = tmp_path / "mine" / "sums.py"
    found = {path.relative_to(tmp_path).as_posix() for path in sources.named(places, [sums])} - {"mine/sums.py"}
    assert found == names
    parts = parts_of_table(places, "mine")["row_sum/plain"]
    assert {path.relative_to(tmp_path).as_posix() for path in parts.sources} | {"mine/__init__.py"} == (
        names | {"mine/sums.py", "mine/__init__.py"}
    )


@pytest.mark.parametrize(
    "text",
    [
        "def (",
        "importlib.import_module(name)",
        "__import__(name)",
        "\0",
        "import subprocess",
        "os.system(command)",
        "import lazy_loader as lazy",
    ],
)
def test_a_module_that_does_not_say_what_it_imports(tmp_path: Path, text: str) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text(text)
    assert not sources.reached(Places(tmp_path, (tmp_path,)), ("mine",)).complete


def test_a_package_with_load_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("mine")
    assert type(adapt(module)) is ModulePackage
    vars(module)["KERNELS"] = {}
    assert type(adapt(module)) is FunctionPackage
    vars(module)["load"] = None
    assert type(adapt(module)) is ModulePackage


@pytest.mark.parametrize(
    ("function", "scalars", "stream"),
    [
        ("def rung(a, out, stream):\n    out.append(stream)", {}, "current"),
        ("def rung(a, *, out, stream=None):\n    out.append(stream)", {}, "current"),
        ("def rung(a, out, stream):\n    out.append(stream)", {"stream": 7}, 7),  # a scalar of the problem
        ("def rung(a, out, **options):\n    out.append(options)", {}, {}),
    ],
)
def test_a_function_that_asks_for_the_stream_gets_it(
    function: str, scalars: dict[str, int], stream: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = SimpleNamespace(get_current_stream=lambda: "current")
    monkeypatch.setitem(sys.modules, "cupy", cast(Any, SimpleNamespace(cuda=cuda)))
    module = ModuleType("mine")
    exec(function, vars(module))
    vars(module).update(KERNELS={"op": {"rung": vars(module)["rung"]}}, __path__=[])
    monkeypatch.setattr(FunctionPackage, "_identity", lambda *_: "")
    monkeypatch.setattr(FunctionPackage, "_sources", lambda *_: sources.Sources(frozenset(), frozenset(), True))
    out: Any = []
    adapt(module).load("op", "rung", "float32").bind(cast(Any, 1), out=out, **scalars)()
    assert out == [stream]


def test_a_function_for_both_devices_gets_no_stream_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # as where there is none
    got = []

    def rung(a: Any, out: Any, stream: object = "none") -> None:
        got.append(stream)

    for out in (np.ones(3), (np.ones(3), np.ones(3))):
        functions._Function(rung, "").bind(np.ones(3), out=out)()
    assert got == ["none", "none"]


def test_pytorch_is_imported_before_the_first_launch(
    identities: Identities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its current stream can be set only then; the rung imports it when it is called."""
    (tmp_path / "torch.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    identities()
    package = adapt(sys.modules["mine"])
    package.load("row_sum", "plain", "float32")
    assert "torch" not in sys.modules
    (Path(sys.modules["mine"].__path__[0]) / "sums.py").write_text("def late(a, out):\n    import torch\n")
    sources.reached.cache_clear()
    functions.state.cache_clear()
    package.load("row_sum", "plain", "float32")
    assert sys.modules["torch"].__file__ == str(tmp_path / "torch.py")


def test_only_what_a_rung_certainly_imports_is_imported_early(identities: Identities) -> None:
    """Of a module that imports by a computed name any module of the tree may follow, which is no reason to load all
    that these import."""
    identities()
    package = adapt(sys.modules["mine"])
    assert isinstance(package, FunctionPackage)
    source = Path(sys.modules["mine"].__path__[0]) / "sums.py"
    for text, known in (("", ["numpy"]), ("importlib.import_module(NAME)\n", [])):
        source.write_text(f"import importlib\nimport numpy\n{text}\n\ndef late(a, out):\n    pass\n")
        sources.reached.cache_clear()
        functions.state.cache_clear()
        assert package.needed([("row_sum", "plain")]) == known
