"""`kernelwatch init`: what it finds in a repository, and what it writes into it."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwatch import __main__ as console
from kernelwatch.commands import init, watching
from kernelwatch.comparison import exact
from kernelwatch.plan.project import load_from
from kernelwatch.system.errors import CANNOT, UserError
from tests.reader import states, write
from tests.repositories import Project, new_project, without_modules

Said = pytest.CaptureFixture[str]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A repository with an empty commit, which is the current folder."""
    project = new_project(tmp_path, "rows")
    project.git("commit", "-q", "--allow-empty", "-m", "Begin")
    monkeypatch.chdir(project.folder)
    monkeypatch.setattr(init, "_has_gpu", lambda: False)
    return project


def called(capsys: Said, *arguments: str) -> tuple[int, str, str]:
    """The exit code of `kernelwatch init`, and what it prints and says on stderr."""
    code = console.main(["init", *arguments])
    return code, *capsys.readouterr()


def texts(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and ".git" not in path.relative_to(folder).parts)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def configured(project: Project) -> dict[str, object]:
    return dict(json.loads((project.folder / "asv.conf.json").read_text()))


GIT = {".gitignore", ".gitattributes"}
SUITES = {"asv.conf.json", *GIT, "benchmarks/__init__.py", "benchmarks/project.py", "benchmarks/row_sum.py"}
COMMIT = "git add asv.conf.json .gitattributes .gitignore benchmarks {} && git commit -m 'Measure the kernels'"
NEXT = f"next:\n  {COMMIT}\n  kernelwatch bench\n"


def test_it_writes_a_project_and_says_what_comes_next(repository: Project, capsys: Said) -> None:
    code, told, wrong = called(capsys)
    assert (code, wrong) == (0, "")
    made = {*SUITES, "rows/__init__.py", "rows/on_cpu.py"}
    assert set(texts(repository.folder)) == made
    assert not re.search("gpu|cupy", "".join(texts(repository.folder).values()), re.IGNORECASE)
    assert told == f"wrote {', '.join(sorted(made))}\n{NEXT.format('rows')}"
    assert (configured(repository)["project"], configured(repository)["branches"]) == ("rows", ["main"])
    assert not {"project_url", "show_commit_url"} & configured(repository).keys()


def test_with_a_gpu_it_writes_a_rung_for_it(repository: Project, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init, "_has_gpu", lambda: True)
    assert called(capsys)[0] == 0
    found = texts(repository.folder)
    assert "rows/on_gpu.py" in found
    assert "with a GPU" not in "".join(found.values())
    with without_modules("benchmarks"):
        (problem,) = load_from(repository.folder / "benchmarks").problems
    assert [(rung.name, rung.device) for rung in problem.rungs] == [
        ("numpy", "cpu"),
        ("einsum", "cpu"),
        ("cupy", "gpu"),
    ]
    assert found["rows/__init__.py"].count("rows.on_gpu:row_sum_cupy") == 1
    assert found["benchmarks/row_sum.py"].count('class GPU(timed.GpuFlops, project=PROJECT, op="row_sum"):\n') == 1


def test_it_overwrites_nothing(repository: Project, capsys: Said) -> None:
    own = {".gitignore": "*.log\n__pycache__/", "asv.conf.json": "{}", "benchmarks/project.py": "mine\n"}
    (repository.folder / "benchmarks").mkdir()
    for name, text in own.items():
        (repository.folder / name).write_text(text)
    code, told, wrong = called(capsys)
    assert (code, wrong) == (1, "")
    needs = ' (it needs "plugins": [".kernelwatch.asv"] and "environment_type": "checkout")'
    assert f"left as it is, since it exists: asv.conf.json{needs}\n" in told
    assert "left as it is, since it exists: benchmarks/project.py\n" in told
    once = texts(repository.folder)
    assert {name: once[name] for name in own if name != ".gitignore"} == {
        name: text for name, text in own.items() if name != ".gitignore"
    }
    ignored = once[".gitignore"].splitlines()
    assert ignored[:2] == own[".gitignore"].splitlines()
    assert sorted(ignored) == sorted({"*.log", *init.IGNORED})
    code, told, _ = called(capsys)
    assert (code, texts(repository.folder)) == (1, once)
    assert "wrote" not in told


@pytest.mark.parametrize(
    ("remote", "name", "links"),
    [
        ("git@github.com:me/Fast-Rows.git", "Fast-Rows", ("https://github.com/me/Fast-Rows", "commit")),
        ("https://me:secret@github.com/me/rows/", "rows", ("https://github.com/me/rows", "commit")),
        ("ssh://git@gitlab.com:2222/a/b/rows.git", "rows", ("https://gitlab.com/a/b/rows", "-/commit")),
        ("https://gitlab.a.org:8443/b/rows", "rows", ("https://gitlab.a.org:8443/b/rows", "-/commit")),
        ("https://a.org/github.com/rows", "rows", None),
        ("../elsewhere/sums.git", "sums", None),
    ],
)
def test_the_remote_gives_name_and_links(
    repository: Project, capsys: Said, remote: str, name: str, links: tuple[str, str] | None
) -> None:
    repository.git("remote", "add", "other", "https://github.com/another/one")
    repository.git("remote", "add", "origin", remote)
    repository.git("checkout", "-q", "-b", "a/branch")
    assert called(capsys)[0] == 0
    found = configured(repository)
    assert (found["project"], found["branches"]) == (name, ["a/branch"])
    wanted = {"project_url": links[0], "show_commit_url": f"{links[0]}/{links[1]}/"} if links else {}
    assert {key: found[key] for key in ("project_url", "show_commit_url") if key in found} == wanted
    assert "secret" not in "".join(texts(repository.folder).values())


def test_without_a_branch_it_is_head(repository: Project, capsys: Said) -> None:
    repository.git("checkout", "-q", "--detach")
    assert called(capsys)[0] == 0
    assert configured(repository)["branches"] == ["HEAD"]


@pytest.mark.parametrize(
    ("folders", "package"),
    [
        ({}, "rows"),
        ({"rows/notes.txt": ""}, "rows_kernels"),
        ({"rows/a.txt": "", "rows_kernels": ""}, "kernels_rows"),
        ({"fast/__init__.py": "KERNELS: dict = {'row_sum': {}}"}, "fast"),
        ({"fast/__init__.py": "from .table import KERNELS"}, "fast"),
        ({"tests/__init__.py": ""}, "rows"),
    ],
)
def test_the_measured_package(repository: Project, capsys: Said, folders: dict[str, str], package: str) -> None:
    write(repository.folder, folders)
    code, told, _ = called(capsys)
    assert code == 0
    assert told.endswith(NEXT.format(package))
    found = texts(repository.folder)
    assert f'package="{package}"' in found["benchmarks/project.py"]
    assert (f"{package}/on_cpu.py" in found) is (package != "fast")
    assert "PACKAGE" not in "".join(found.values())
    assert {name: found[name] for name in folders} == folders


@pytest.mark.parametrize("name", ["json", "NumPy", "class", "3d", "..."])
def test_a_name_that_a_package_cannot_have(tmp_path: Path, name: str) -> None:
    package = init.new_name(tmp_path, name)
    assert package.isidentifier()
    assert package in {f"{name.lower()}_kernels", f"kernels_{name.lower()}", "own"}


def test_the_package_is_not_the_suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # it would find those of this project
    assert init.new_name(tmp_path, "benchmarks") == "benchmarks_kernels"


NAME = "found no kernels of Triton or CUDA C++; name the package to measure, such as: kernelwatch init {}"
ASV = "; asv's benchmarks need no description: kernelwatch versus HEAD~1 HEAD"
SUITE = {"asv.conf.json": "{}", "benchmarks/__init__.py": "", "benchmarks/suite.py": "def time_all(): ..."}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"src/fast/__init__.py": "import ctypes"}, NAME.format("src/fast")),
        ({"fast/__init__.py": "kernels = 'KERNELS'"}, NAME.format("fast")),
        ({"fast/__init__.py": "KERNELS = ("}, NAME.format("fast")),
        ({"fast/__init__.py": "", **SUITE}, NAME.format("fast") + ASV),
        (SUITE, NAME.format("PACKAGE") + ASV),
    ],
)
def test_an_example_is_for_a_repository_that_has_nothing_else(
    repository: Project, capsys: Said, files: dict[str, str], said: str
) -> None:
    """Its description would be in the way of that of the user's own functions, and of asv's benchmarks."""
    write(repository.folder, files)
    assert called(capsys) == (CANNOT, "", f"kernelwatch init: {said}\n")
    assert texts(repository.folder) == files


NOTHING = "nothing of fast is measured yet: "
TAKE = (
    f"{NOTHING}take what is to be measured out of its comments in benchmarks/rungs.py (how it is called), "
    "benchmarks/project.py (what it computes) and benchmarks/suites.py, and fill in each ...\n"
)
TO_FILL = {"asv.conf.json", *GIT, "benchmarks/__init__.py", "benchmarks/project.py", "benchmarks/suites.py"}


@pytest.mark.parametrize(
    ("text", "files", "said"),
    [
        ("", {*TO_FILL, "benchmarks/rungs.py"}, TAKE),
        (
            "KERNELS = {'gemm': {'tiled': 0, 'naive': 0}, 'axpy': {}}",
            TO_FILL,
            f"{NOTHING}describe the ops (gemm, axpy) of its KERNELS in benchmarks/project.py, and their suites in "
            "benchmarks/suites.py\n",
        ),
        ("from .a import load", TO_FILL, f"{NOTHING}describe the ops of its KERNELS in benchmarks/project.py, and"),
        ("KERNELS = {'row_sum': {}}", SUITES, "fast is measured\n"),
    ],
)
def test_a_package_that_is_named(repository: Project, capsys: Said, text: str, files: set[str], said: str) -> None:
    write(repository.folder, {"fast/__init__.py": text, "other/__init__.py": "KERNELS = {}"})
    code, told, _ = called(capsys, "--package", "fast")
    assert code == 0
    assert said in told
    assert told.endswith(NEXT.format("fast"))
    assert set(texts(repository.folder)) == {*files, "fast/__init__.py", "other/__init__.py"}
    with without_modules("benchmarks"):
        project = load_from(repository.folder / "benchmarks")
    assert (project.package, project.source) == ("fast", "")
    assert project.table == ("rungs" if "benchmarks/rungs.py" in files else "")
    assert [problem.name for problem in project.problems] == ([] if files != SUITES else ["row_sum"])


def test_the_ops_of_a_table_are_named(repository: Project, capsys: Said) -> None:
    write(repository.folder, {"fast/__init__.py": "KERNELS = {'gemm': {'tiled': 0, 'naive': 0}, 'axpy': {}}"})
    assert called(capsys)[0] == 0
    uncomment(repository.folder)
    with without_modules("benchmarks"):
        (problem,) = load_from(repository.folder / "benchmarks").problems
    assert (problem.name, [rung.name for rung in problem.rungs]) == ("gemm", ["tiled", "naive"])
    assert "Others were found: axpy." in (repository.folder / "benchmarks" / "project.py").read_text()


def test_it_asks_for_a_package_only_if_it_must(repository: Project, capsys: Said) -> None:
    both = {"fast/__init__.py": "KERNELS = {}", "slow/__init__.py": "KERNELS = {}", "notes/a.txt": ""}
    write(repository.folder, both)
    there = "there are fast, slow, and a path names one elsewhere\n"
    for arguments, said in {
        (): "fast, slow offer KERNELS; name the one to measure: kernelwatch init fast\n",
        ("none",): f"no package none in {repository.folder}; {there}",
        ("--package", "none"): f"no package none in {repository.folder}; {there}",
        ("fast.none",): f"no package fast.none in {repository.folder}; {there}",
        ("../elsewhere",): f"no package ../elsewhere in {repository.folder}; {there}",
        ("notes",): f"{repository.folder}/notes is no package, since it has no __init__.py, and has no kernels of",
        (".",): f"{repository.folder} has several packages; name the one to measure: fast, slow\n",
        ("fast", "--package", "slow"): "error: name one package: fast, or --package slow\n",
    }.items():
        code, told, wrong = called(capsys, *arguments)
        assert (code, told) == (CANNOT, "")
        assert said in wrong
    assert texts(repository.folder) == both


# --- what it finds -------------------------------------------------------------------------------------------------

TRITON = """
import torch
import triton
import triton.language as tl
from triton import autotune, jit as compiled


@triton.jit
def squared(x):
    return x * x


@triton.autotune(configs=[], key=["n"])
@triton.jit
def _scale_kernel(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    squared(1)


if torch:
    @compiled
    def alone_kernel(x, n, BLOCK: "tl.constexpr" = 4):
        pass


def scale(x, y=None, *, factor):
    out = torch.empty_like(x)
    _scale_kernel[lambda meta: (1,)](x, out, x.numel(), factor, BLOCK=128)
    return out


def unrelated(x):
    return x
"""
CUDA = """
// __global__ void in_a_comment(float *a) {}
__global__ void declared(float *a);

namespace ops {
namespace {
int unnamed;
}
template <typename T, int N = (3)>
static __global__ void __launch_bounds__(256, (2)) scale(const T *__restrict__ x, float (&out)[N], int n = 3) {
    if (n) { }
}
}  // namespace ops

extern "C" {
__global__ __launch_bounds__(64)
void row_sum(const float a[], float *out,
             long long n) {}
}
"""


def uncomment(folder: Path) -> None:
    """As an editor does, with all comments of the description."""
    for path in (folder / "benchmarks").glob("*.py"):
        path.write_text(re.sub(r"^( *)# ?", r"\1", path.read_text(), flags=re.MULTILINE))


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((), "found 3 kernels: later in src/fast/more/again.py, _scale_kernel in src/fast/ops/scale.py, alone_kernel"),
        (("fast",), "found 3 kernels: later in src/fast/more/again.py, _scale_kernel in"),
        (("src/fast",), "found 3 kernels: later in src/fast/more/again.py, _scale_kernel in"),
        (("src",), "found 3 kernels: later in src/fast/more/again.py, _scale_kernel in"),
        (("--package", "fast"), "found 3 kernels: later in src/fast/more/again.py, _scale_kernel in"),
        (("fast.ops",), "found 2 kernels: _scale_kernel in src/fast/ops/scale.py, alone_kernel in"),
        (("src/fast/ops/scale.py",), "found 2 kernels: _scale_kernel in src/fast/ops/scale.py, alone_kernel in"),
        (("src/fast/more",), "found 1 kernel: later in src/fast/more/again.py\n"),
    ],
)
def test_functions_of_triton_are_found(
    repository: Project, capsys: Said, arguments: tuple[str, ...], found: str
) -> None:
    own = {
        "src/fast/__init__.py": "",
        "src/fast/ops/__init__.py": "",
        "src/fast/ops/scale.py": TRITON,
        "src/fast/more/__init__.py": "",
        "src/fast/more/again.py": "from triton import jit\n\n\n@jit\ndef later(x):\n    pass\n",
        "tests/__init__.py": "",
        "tests/test_it.py": TRITON,
        "lib/other/__init__.py": "",
        "ignored/__init__.py": TRITON,
        ".gitignore": "/ignored/\n",
    }
    write(repository.folder, own)
    code, told, _ = called(capsys, *arguments)
    assert code == 0
    assert found in told
    assert told.endswith(NEXT.format("src/fast"))
    made = texts(repository.folder)
    assert set(made) == {*own, *TO_FILL, "benchmarks/rungs.py"}
    assert 'package="fast"' in made["benchmarks/project.py"]
    if "_scale_kernel" in found:
        table = made["benchmarks/rungs.py"]
        assert "# # src/fast/ops/scale.py, line 25: scale(x, y=None, *, factor)\n" in table
        assert "# # It launches _scale_kernel(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr)\n" in table
        assert "alone_kernel[grid](x=..., n=..., BLOCK=...)" in table
        assert "squared" not in table
    uncomment(repository.folder)
    with without_modules("benchmarks"):
        project = load_from(repository.folder / "benchmarks")
        rungs = importlib.import_module("benchmarks.rungs").KERNELS
        (problem,) = project.problems
        assert list(rungs[problem.name]) == [rung.name for rung in problem.rungs] == ["triton"]
        assert problem.rungs[0].arrays == "torch"
        assert importlib.import_module("benchmarks.suites")  # its op is described
        assert project.places(str(repository.folder)).package("fast") == repository.folder / "src" / "fast"


def test_functions_of_triton_in_several_packages(repository: Project, capsys: Said) -> None:
    files = {"a/__init__.py": TRITON, "src/b/__init__.py": "", "src/b/c.py": TRITON, "src/b/without/d.py": TRITON}
    write(repository.folder, files)
    code, told, wrong = called(capsys)
    assert (code, told) == (CANNOT, "")
    assert "a, b have kernels of Triton; name the one to measure: kernelwatch init a\n" in wrong
    assert called(capsys, "b")[0] == 0
    table = (repository.folder / "benchmarks" / "rungs.py").read_text()
    assert "from b.c import scale" in table
    assert "from b.without.d import scale" in table


def test_kernels_of_one_name_get_entries_of_their_own(repository: Project, capsys: Said) -> None:
    text = "import triton\n\n@triton.jit\ndef _fwd_kernel(x):\n    pass\n"
    write(repository.folder, {f"a/{name}": text for name in ("__init__.py", "mm.py", "b/__init__.py", "b/mm.py")})
    write(repository.folder, {"a/__init__.py": "", "a/b/__init__.py": "", "a/c/mm.py": text})
    assert called(capsys)[0] == 0
    uncomment(repository.folder)
    with without_modules("benchmarks"):
        load_from(repository.folder / "benchmarks")
        rungs = importlib.import_module("benchmarks.rungs").KERNELS
    assert list(rungs) == ["fwd", "mm_fwd", "mm_fwd_2"]


@pytest.mark.parametrize("arguments", [(), ("kernels",), ("adapter",)])
def test_kernels_of_cuda_beside_an_adapter(repository: Project, capsys: Said, arguments: tuple[str, ...]) -> None:
    own = {"adapter/__init__.py": "", "kernels/ops.cuh": CUDA, "kernels/notes.txt": "", "tests/a.cu": CUDA}
    write(repository.folder, own)
    code, told, _ = called(capsys, *arguments)
    assert code == 0
    assert "found 2 kernels: ops::scale in kernels/ops.cuh, row_sum in kernels/ops.cuh\n" in told
    assert told.endswith(NEXT.format("adapter"))
    made = texts(repository.folder)
    assert set(made) == {*own, *TO_FILL, "benchmarks/rungs.py"}
    table = made["benchmarks/rungs.py"]
    scale = "<typename T, int N = (3)> ops::scale(const T *__restrict__ x, float (&out)[N], int n = 3)"
    assert f"# # kernels/ops.cuh, line 10: {scale}\n" in table
    assert '#     kernel = compiled("kernels/ops.cuh", "ops::scale<...>")\n' in table
    assert "# # kernels/ops.cuh, line 16: row_sum(const float a[], float *out, long long n)\n" in table
    assert "#         ...,  # a\n#         ...,  # out\n#         ...,  # n\n" in table
    uncomment(repository.folder)
    with without_modules("benchmarks"):
        load_from(repository.folder / "benchmarks")
        assert list(importlib.import_module("benchmarks.rungs").KERNELS) == ["scale", "row_sum"]


def test_kernels_of_cuda_without_any_package(repository: Project, capsys: Said) -> None:
    """There must be one to import."""
    write(repository.folder, {"kernels/ops.cu": CUDA})
    assert called(capsys)[0] == 0
    made = texts(repository.folder)
    assert set(made) == {"kernels/ops.cu", *TO_FILL, "benchmarks/rungs.py", "rows/__init__.py"}
    assert "KERNELS" not in made["rows/__init__.py"]


@pytest.mark.parametrize(
    ("files", "argument", "package", "source"),
    [
        ({"a/one/__init__.py": "", "b/one/__init__.py": ""}, "b/one", "one", "b"),
        ({"one/__init__.py": "", "src/one/__init__.py": ""}, "one", "one", ""),
        ({"one/__init__.py": "", "src/one/__init__.py": ""}, "./one", "one", "."),
        ({"a/b/c/one/__init__.py": ""}, "one", "one", ""),
        ({"a/b/c/d/e/one/__init__.py": ""}, "a/b/c/d/e/one", "one", "a/b/c/d/e"),
        (
            {"code/of_one/__init__.py": "", "pyproject.toml": '[tool.setuptools.package-dir]\none = "code/of_one"\n'},
            "code/of_one",
            "one",
            "",
        ),
        ({"one/__init__.py": "", "one/without/two.py": TRITON}, "one/without", "one", ""),
        ({"one.py": TRITON}, "one", "one", ""),
        ({"kernels/one.py": TRITON}, "kernels", "one", "kernels"),
    ],
)
def test_where_a_package_lies(
    repository: Project, capsys: Said, files: dict[str, str], argument: str, package: str, source: str
) -> None:
    write(repository.folder, files)
    assert called(capsys, argument)[0] == 0
    with without_modules("benchmarks"):
        project = load_from(repository.folder / "benchmarks")
    assert (project.package, project.source) == (package, source)
    project.check()


def test_a_package_of_which_there_are_several(repository: Project, capsys: Said) -> None:
    write(repository.folder, {"a/one/__init__.py": "", "b/one/__init__.py": ""})
    code, told, wrong = called(capsys, "one")
    assert (code, told) == (CANNOT, "")
    assert "one lies in a, b; name one of them by its path\n" in wrong


def test_what_it_writes_is_filled_in_and_measures_the_past(tmp_path: Path, small_engine: Path) -> None:
    project = new_project(tmp_path, "rows")

    def kernelwatch(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return project.run(sys.executable, "-m", "kernelwatch", *arguments, PYTHONPATH=str(small_engine))

    write(project.folder, {"src/fast/__init__.py": "def twice(x):\n    return 2 * x\n", "README.md": ""})
    project.commit_all("before the description")
    told = kernelwatch("init", "fast").stdout
    *_, add, bench = map(str.strip, told.splitlines())
    assert project.run("bash", "-c", add).returncode == 0
    assert bench == "kernelwatch bench"
    done = kernelwatch("bench")
    assert done.returncode == CANNOT
    where = project.folder / "benchmarks"
    told = f"nothing is measured yet: {where}/project.py describes no cell; fill in a Problem with rungs and shapes in"
    assert told in done.stderr
    assert told in kernelwatch("bench", "--worktree").stderr
    uncomment(project.folder)
    filled = {
        "rungs.py": (("import function", "import twice"), ("function(x)", "twice(x)")),
        "project.py": (("lambda x: ...", "lambda x: 2 * x"), ("    bound=lambda type, x: ...,\n", "")),
    }
    for name, edits in filled.items():
        text = (where / name).read_text()
        for old, new in edits:
            assert text.count(old) == 1
            text = text.replace(old, new)
        assert "..." not in text.rpartition('"""')[2]
        (where / name).write_text(text)
    project.commit_all("fill it in")
    for commit in ("HEAD~2", "HEAD"):
        done = kernelwatch("bench", "--no-confirm", commit)
        assert done.returncode == 0, done.stdout + done.stderr
        assert states(project, commit) == {"own/first float32 65536 cold": "ok"}


# --- where nothing can be measured ---------------------------------------------------------------------------------


def test_outside_a_repository(tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    said = f"kernelwatch init: {tmp_path} is in no git repository; make one first: git init\n"
    assert called(capsys) == (CANNOT, "", said)
    assert list(tmp_path.iterdir()) == []


def test_before_the_first_commit(tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    project = new_project(tmp_path)
    monkeypatch.chdir(project.folder)
    first = "make one first: git commit --allow-empty -m Begin"
    said = f"kernelwatch init: the repository in {project.folder} has no commit yet; {first}\n"
    assert called(capsys) == (CANNOT, "", said)
    assert texts(project.folder) == {}


@pytest.mark.parametrize("place", ["bare", "rows/.git"])
def test_in_a_repository_without_files(
    repository: Project, place: str, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.git("clone", "-q", "--bare", ".", "../bare")
    folder = repository.folder.parent / place
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    said = f"kernelwatch init: {folder} is in a bare repository, which has no files; run this in a clone of it\n"
    assert called(capsys) == (CANNOT, "", said)
    assert sorted(folder.iterdir()) == before


def test_where_nothing_may_be_written(repository: Project, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """/sys takes no file from anyone, not even from root."""
    monkeypatch.setenv("GIT_DIR", str(repository.folder / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", "/sys")
    monkeypatch.chdir("/sys")
    code, told, wrong = called(capsys)
    assert (code, told) == (CANNOT, "")
    assert re.fullmatch(
        r"kernelwatch init: /sys/\S+ cannot be written: .+; run this in a clone that you may write to\n", wrong
    )


def test_a_file_in_place_of_a_folder(repository: Project, capsys: Said) -> None:
    (repository.folder / "benchmarks").write_text("mine")
    code, _, wrong = called(capsys)
    assert code == CANNOT
    assert f"{repository.folder}/benchmarks/__init__.py cannot be written: " in wrong
    assert (repository.folder / "benchmarks").read_text() == "mine"


def test_from_a_folder_below(repository: Project, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository.folder / "below").mkdir()
    monkeypatch.chdir(repository.folder / "below")
    code, told, _ = called(capsys)
    assert code == 0
    assert "git add ../asv.conf.json ../.gitattributes ../.gitignore ../benchmarks ../rows" in told
    assert (repository.folder / "rows" / "__init__.py").is_file()


def test_it_writes_where_asv_looks_for_suites(
    repository: Project, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a project that lies in a folder of the repository, and whose suites have a folder of another name."""
    conf = '{"project": "one", /* JSON5 */ "benchmark_dir": "perf/suites"}'
    write(repository.folder, {"libs/one/asv.conf.json": conf, "libs/one/one/__init__.py": "KERNELS = {}\n"})
    (repository.folder / "libs" / "one" / "docs").mkdir()
    monkeypatch.chdir(repository.folder / "libs" / "one" / "docs")
    code, told, _ = called(capsys)
    assert code == 1  # the configuration is left as it is
    assert "in perf/suites/project.py, and their suites in perf/suites/suites.py" in told
    assert "git add ../asv.conf.json ../.gitattributes ../.gitignore ../perf/suites ../one" in told
    made = {"perf/suites/__init__.py", "perf/suites/project.py", "perf/suites/suites.py"}
    every = {"asv.conf.json", "one/__init__.py", *GIT, *made}
    assert set(texts(repository.folder)) == {f"libs/one/{name}" for name in every}
    with without_modules("suites"):
        assert load_from(repository.folder / "libs" / "one" / "perf" / "suites").package == "one"


def test_benchmarks_of_asv_beside_the_suites_may_import_what_only_commits_have(repository: Project) -> None:
    """A suite of the engine may not: its series would be missing, and no change be told of them."""
    files = dict(init.from_template("rows", False))
    write(repository.folder, {**files, "benchmarks/own.py": "import of_a_commit\n\n\ndef time_own(): ...\n"})
    with without_modules("benchmarks"):
        project = load_from(repository.folder / "benchmarks")
        assert len(watching.quick_series(project)) == 1
        assert exact.series_of(project, {"row_sum/numpy"}) == []
        write(repository.folder, {"benchmarks/row_sum.py": "import of_a_commit\n" + files["benchmarks/row_sum.py"]})
        said = "benchmarks/row_sum.py cannot be imported: ModuleNotFoundError: No module named 'of_a_commit'"
        for ask in (watching.quick_series, lambda project: exact.series_of(project, {"row_sum/numpy"})):
            sys.modules.pop("benchmarks.row_sum", None)
            with pytest.raises(UserError, match=said):
                ask(project)
