"""`kernelwatch init`: what it writes into a repository, and the page that leads from there to published figures."""

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelwatch import __main__ as console
from kernelwatch.analysis.occupancy import ARCHES
from kernelwatch.commands import init
from kernelwatch.history import records
from kernelwatch.plan.project import load_from
from kernelwatch.system.errors import CANNOT
from tests.repositories import ROOT, Project, new_project, without_modules

Said = pytest.CaptureFixture[str]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"`([\w/]+\.py)`")


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
        ({"rows/__init__.py": "", "rows_kernels": ""}, "kernels_rows"),
        ({"fast/__init__.py": "KERNELS: dict = {'row_sum': {}}"}, "fast"),
        ({"fast/__init__.py": "from .table import KERNELS"}, "fast"),
        ({"fast/__init__.py": "kernels = 'KERNELS'"}, "rows"),
        ({"fast/__init__.py": "KERNELS = ("}, "rows"),
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
    package, is_new = init._package(tmp_path, "", name)
    assert is_new
    assert package.isidentifier()
    assert package in {f"{name.lower()}_kernels", f"kernels_{name.lower()}", "own"}


def test_the_package_is_not_the_suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # it would find those of this project
    assert init._package(tmp_path, "", "benchmarks") == ("benchmarks_kernels", True)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "fast offers no kernels yet: fast/__init__.py must define such as KERNELS = "),
        (
            "KERNELS = {'gemm': {}, 'axpy': {}}",
            "fast is measured: describe its ops (gemm, axpy) in benchmarks/project.py, in place of the example row_sum",
        ),
        ("from .a import load", "fast is measured: describe its ops in benchmarks/project.py, in place of"),
        ("KERNELS = {'row_sum': {}}", "fast is measured\n"),
    ],
)
def test_a_package_that_is_named(repository: Project, capsys: Said, text: str, said: str) -> None:
    write(repository.folder, {"fast/__init__.py": text, "other/__init__.py": "KERNELS = {}"})
    code, told, _ = called(capsys, "--package", "fast")
    assert code == 0
    assert said in told
    assert set(texts(repository.folder)) == {*SUITES, "fast/__init__.py", "other/__init__.py"}


def test_it_asks_for_a_package_only_if_it_must(repository: Project, capsys: Said) -> None:
    both = {"fast/__init__.py": "KERNELS = {}", "slow/__init__.py": "KERNELS = {}"}
    write(repository.folder, both)
    for arguments, said in {
        (): "fast, slow offer KERNELS; name the one to measure: --package fast",
        ("--package", "none"): f"no package none in {repository.folder}; --package names one, which has an __init__.py",
        ("--package", "../rows/fast"): f"no package ../rows/fast in {repository.folder}; --package names one, which",
    }.items():
        code, told, wrong = called(capsys, *arguments)
        assert (code, told) == (CANNOT, "")
        assert wrong.startswith(f"kernelwatch init: {said}")
    assert texts(repository.folder) == both


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


# --- the page ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reader:
    """Someone who does what the page says, in a repository. `said`: by command, what it printed."""

    project: Project
    programs: Path
    said: dict[str, str]

    def do(self, page: str) -> None:
        before = 0
        for block in BLOCK.finditer(page):
            named = NAMED.findall(page[before : block.start()])
            before = block.end() if block[1] != "diff" else before
            match block[1]:
                case "sh":
                    for command in block[2].splitlines():
                        self._call(command)
                case "python":
                    path = self.project.folder / named[-1]
                    assert not path.exists()
                    path.write_text(block[2])
                case "diff":
                    self._edit(self.project.folder / named[-1], block[2].splitlines())

    def _call(self, command: str) -> None:
        if command == "pip install ./kernelwatch":
            return  # the fixture has done just this
        done = self.call(command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        self.said[command] = self.said.get(command, "") + done.stdout

    def call(self, command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=self.project.folder,
            env=self.project.environment(
                PATH=f"{self.programs}{os.pathsep}{os.environ['PATH']}",
                KERNELWATCH_CACHE=str(self.project.home / "cache"),
            ),
            capture_output=True,
            text=True,
            check=False,
        )

    def _edit(self, path: Path, lines: list[str]) -> None:
        before = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
        after = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
        text = path.read_text()
        assert text.count(before) == 1, (path, before)
        path.write_text(text.replace(before, after))


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, installed_engine: Path) -> Reader:
    """One who has read docs/own.md to its end."""
    project = new_project(tmp_path_factory.mktemp("page"), "rows")
    project.git("commit", "-q", "--allow-empty", "-m", "Begin")
    one = Reader(project, installed_engine, {})
    one.do((ROOT / "docs" / "own.md").read_text(encoding="utf-8"))
    return one


def states(reader: Reader, commit: str) -> dict[str, str]:
    """The state of each timed cell at a commit."""
    sha = reader.project.git("rev-parse", commit)[:8]
    (path,) = reader.project.folder.glob(f"results/*/{sha}-*.facts.jsonl")
    return {key: cell.state for key, cell in records.read(path).cells.items()}


@pytest.mark.xdist_group("foreign")
class TestThePage:
    def test_its_commands_are_those_that_init_names(self, reader: Reader) -> None:
        told = reader.said["kernelwatch init"].splitlines()
        *_, add, bench = map(str.strip, told)
        assert add.startswith("git add ")
        assert [bench] == [command for command in reader.said if command.startswith("kernelwatch b")]

    def test_both_commits_are_measured(self, reader: Reader) -> None:
        first = {f"row_sum/{rung} float32 256x256 cold": "ok" for rung in ("numpy", "einsum")}
        own = {
            **{f"axpy/{rung} float32 65536 cold": "ok" for rung in ("numpy", "new")},
            **{
                f"axpy/{rung} float32 {size} cold": "na"
                for rung in ("cuda", "elementwise", "triton", "torch", "core")
                for size in (1 << 16, 1 << 24)
            },
            # Neither Triton nor CuPy is installed.
            **{f"axpy/{rung} float32 {arch}": "na" for rung in ("triton", "cuda") for arch in ARCHES},
        }
        assert states(reader, "HEAD~1") == first
        assert states(reader, "HEAD") == first | own

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
            ("axpy.CPU.track_seconds", "new"),
        }
        newest = json.loads(max((pages / "data").glob("**/at/*.json"), key=lambda path: int(path.stem)).read_text())
        assert newest["cells"]["axpy/numpy float32 65536 cold"]["state"] == "ok"
        assert newest["facts"]["axpy cpu"]["imports"].keys() == {"numpy"}
        committed = reader.project.git("ls-files").splitlines()
        assert not [name for name in committed if name.startswith(".asv/") or name.endswith(".pyc")]

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


def edited(reader: Reader, file: str, old: str, new: str) -> "subprocess.CompletedProcess[str]":
    """The dirty tree compared with HEAD after an edit of a file, which is undone."""
    path = reader.project.folder / "rows" / file
    before = path.read_text()
    assert before.count(old) == 1
    path.write_text(before.replace(old, new))
    try:
        return reader.call("kernelwatch bench --worktree --only row_sum/numpy")
    finally:
        path.write_text(before)
