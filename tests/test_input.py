"""Bad input, a bare machine, an output that takes nothing: a line says what is wrong, and a code is no verdict."""

import argparse
import dataclasses
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asv import util
from asv.commands.run import Run

from benchmarks.project import PROJECT
from kernelwatch import __main__ as console
from kernelwatch.asv import running
from kernelwatch.comparison.changes import changes
from kernelwatch.history import records
from kernelwatch.plan import project as plan_project
from kernelwatch.report.arguments import WIDE, Output, Parser, regular_expression
from kernelwatch.report.rows import by_reason
from kernelwatch.run.outcome import Group, Outcome
from kernelwatch.system import cache, git
from kernelwatch.system.errors import CANNOT, UserError
from kernelwatch.system.options import Options
from tests.repositories import ROOT, Project, without_modules
from tests.test_files import holder

sys.path.insert(0, str(ROOT / "scripts"))
import environment

Said = pytest.CaptureFixture[str]


def run(capsys: Said, name: str, *arguments: str) -> tuple[int, str]:
    """A command's exit code, and what it says on stderr."""
    code = console.run(name, list(arguments), name)
    return code, capsys.readouterr().err


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def foreign(tmp_path: Path) -> Project:
    """A small project that is no repository yet."""
    folder = tmp_path / "rows"
    shutil.copytree(ROOT / "tests" / "data" / "foreign", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return Project(folder, tmp_path)


WITHOUT_BYTECODE = "import sys; sys.dont_write_bytecode = True; from kernelwatch.__main__ import main; sys.exit(main())"


def kernelwatch(project: Project, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return project.run(sys.executable, "-c", WITHOUT_BYTECODE, *arguments, **{"PYTHONPATH": str(ROOT), **more})


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if ".git" not in path.parts)


# --- the exit code -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("versus", "no-such", "HEAD"),
            f"versus: the repository in {ROOT} has no commit no-such; name one by ",
        ),
        (("versus", "HEAD", "HEAD", "--only", "("), "'(' is no regular expression: missing ), unterminated subpattern"),
        (("bench", "--bench", "*", "--quick"), "'*' is no regular expression: nothing to repeat at position 0"),
        (("versus", "HEAD"), "versus: error: give two commits, BASE and HEAD"),
        (("versus", "--find", "nothing", "HEAD..HEAD"), "versus: no cell or exact series 'nothing'; a cell is named"),
        (("bench", "--changed"), "bench: error: --changed chooses among the commits of a range: name one, as A..B"),
        (("bench", "no-such..HEAD", "--no-gate"), f"bench: the repository in {ROOT} has no commits no-such..HEAD; "),
        (("ladder", "transpose", "--commit", "0000"), "ladder: nothing recorded for this under "),
        (("ladder", "nonsense"), f"ladder: no op nonsense; there are {', '.join(PROJECT.ops)}"),
        (("profile", "nonsense"), "profile: error: no op nonsense"),
        (("noise", "--runs", "1"), "noise: error: --runs must be at least 2, to differ; got 1"),
        (("sanitize", "--tool", "nonsense"), "sanitize: error: argument --tool: invalid choice: 'nonsense'"),
        (("truth", "--nonsense"), "truth: error: unrecognized arguments: --nonsense"),
        (("identity", "--nonsense"), "identity: error: unrecognized arguments: --nonsense"),
    ],
)
def test_what_cannot_be_done_is_no_verdict(arguments: tuple[str, ...], said: str, capsys: Said) -> None:
    code, error = run(capsys, *arguments)
    assert code == CANNOT not in (0, 1, 2)
    assert said in error
    assert "Traceback" not in error
    assert len([line for line in error.splitlines() if line.startswith(arguments[0])]) == 1


def test_a_fault_of_the_program_is_no_verdict(capsys: Said) -> None:
    def work() -> int:
        raise KeyError("out of luck")

    assert console.code_of("scripts/versus", work) == CANNOT
    error = capsys.readouterr().err
    assert error.startswith("Traceback ")
    assert error.endswith("scripts/versus: a fault of this program, and no verdict: KeyError: 'out of luck'\n")


@pytest.mark.parametrize(("ended", "code"), [(0, 0), (2, 2), (143, 143), (None, 0), ("scripts/x: no", CANNOT)])
def test_how_a_command_ends_itself(ended: object, code: int, capsys: Said) -> None:
    """argparse after --help, a signal, a program of the laboratory with a message."""

    def work() -> int:
        raise SystemExit(ended)

    assert console.code_of("scripts/x", work) == code
    assert capsys.readouterr().err == ("scripts/x: no\n" if code == CANNOT else "")


def test_an_interrupt_is_no_verdict(capsys: Said) -> None:
    def work() -> int:
        raise KeyboardInterrupt

    assert console.code_of("x", work) == 130
    assert capsys.readouterr().err == "x: interrupted\n"


@pytest.mark.parametrize("name", console.COMMANDS)
def test_every_command_tells_its_exit_code(name: str, capsys: Said) -> None:
    assert console.run(name, ["--help"], name) == 0
    assert f"Exit code {CANNOT}: the command could not do its job" in capsys.readouterr().out


def test_without_an_environment_there_is_no_verdict(foreign: Project) -> None:
    assert environment.CANNOT == CANNOT
    done = foreign.run(
        sys.executable, str(ROOT / "scripts" / "versus"), GPUKERNELS_PYTHON="/no/python", GPUKERNELS_INSIDE=""
    )
    assert (done.returncode, done.stdout) == (CANNOT, "")
    assert done.stderr == "gpukernels: GPUKERNELS_PYTHON=/no/python: no such interpreter; give the path of one\n"


def test_asv_is_told_of_an_expression_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELWATCH_ONLY", "(")
    with pytest.raises(util.UserError, match=r"KERNELWATCH_ONLY=\(: no regular expression: missing \), "):
        running._measure(Run, SimpleNamespace(results_dir=str(tmp_path / "results")))
    assert list(tmp_path.iterdir()) == []


# --- the repository ------------------------------------------------------------------------------------------------


def test_without_git(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    for arguments in (("versus", "HEAD~1", "HEAD"), ("bench", "--quick", "--no-gate"), ("bench", "--worktree")):
        assert run(capsys, *arguments) == (CANNOT, f"{arguments[0]}: git is not on the PATH; install it\n")


def test_without_a_repository_or_a_commit_nothing_is_written(foreign: Project) -> None:
    before = files(foreign.folder)
    done = kernelwatch(foreign, "bench", "--quick", GIT_CEILING_DIRECTORIES=str(foreign.home))
    assert done.returncode == CANNOT
    assert done.stderr.startswith("kernelwatch bench: git rev-parse --git-dir: fatal: not a git repository")
    foreign.git("init", "-q", "-b", "main")
    done = kernelwatch(foreign, "bench", "--quick")
    assert done.returncode == CANNOT
    assert done.stderr.startswith(f"kernelwatch bench: the repository in {foreign.folder} has no commit HEAD; ")
    foreign.commit_all("one")
    for wrong in (("--quick", "--only", "nothing"), ("no-such", "--quick")):
        done = kernelwatch(foreign, "bench", *wrong)
        assert (done.returncode, "Traceback" in done.stderr) == (CANNOT, False), done.stderr
    assert files(foreign.folder) == before


def test_a_shallow_clone_says_what_it_lacks(foreign: Project) -> None:
    foreign.git("init", "-q", "-b", "main")
    first = foreign.commit_all("one")
    foreign.git("commit", "-q", "--allow-empty", "-m", "two")
    clone = Project(foreign.home / "clone", foreign.home)
    foreign.git("clone", "-q", "--depth=1", foreign.folder.as_uri(), str(clone.folder))
    done = kernelwatch(clone, "versus", "--exact", first, "HEAD")
    assert done.returncode == CANNOT
    assert done.stderr.endswith(
        f" has no commit {first}; it is a shallow clone: `git fetch --unshallow` gets the whole history\n"
    )


def test_links_that_loop_end_no_search(tmp_path: Path) -> None:
    """One that leads nowhere is no file; one to a folder is a difference, since a rung may read through it."""
    project = Project(tmp_path / "project", tmp_path)
    package = project.folder / plan_project.load(ROOT).package
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    project.git("init", "-q")
    project.commit_all("bare")
    (package / "loop").symlink_to("loop")
    project.commit_all("a link")
    (package / "itself").symlink_to(".")
    project.commit_all("a link to its own folder")
    sides = [git.export(project.folder, commit, tmp_path / commit) for commit in ("HEAD~2", "HEAD~1", "HEAD")]
    assert (tmp_path / "HEAD" / package.name / "loop").is_symlink()
    described = plan_project.load(ROOT)
    assert changes(described, *sides[:2]).rungs == []
    assert "transpose/padded" in changes(described, *sides[1:]).rungs  # which cannot be launched to see


def test_a_description_that_cannot_be_imported(tmp_path: Path) -> None:
    suites = tmp_path / "broken_suites"
    suites.mkdir()
    (suites / "__init__.py").touch()
    description = suites / "project.py"
    (suites / "source").symlink_to("source")
    description.write_text("from pathlib import Path\n\nPath(__file__).with_name('source').read_text()\n")
    with pytest.raises(UserError) as error:
        plan_project.load_from(suites)
    assert str(error.value).startswith(f"{description} cannot be imported: OSError: ")
    assert "Too many levels of symbolic links" in str(error.value)


def test_a_description_ends_no_command_and_moves_it_nowhere(
    foreign: Project, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(foreign.folder)
    description = foreign.folder / "benchmarks" / "project.py"
    for end, said in (("sys.exit(0)", "SystemExit: 0"), ("sys.exit()", "SystemExit: "), ("1 / 0", "ZeroDivisionError")):
        description.write_text(f"import os, sys\n\nPROJECT = 1\nos.chdir('/')\n{end}\n")
        with without_modules("benchmarks"):
            code, error = run(capsys, "versus", "HEAD", "HEAD")
        assert (code, Path.cwd()) == (CANNOT, foreign.folder)
        assert error.startswith(f"versus: {description} cannot be imported: {said}")


@pytest.mark.parametrize(
    ("field", "value", "right"),
    [
        ("decides", ("best.toml",), "a dictionary"),
        ("environment", "OMP_NUM_THREADS=1", "a dictionary"),
        ("conditions", "torch", "a tuple"),
        ("problems", PROJECT.problems[0], "a tuple"),
        ("source", Path("src"), "a text"),
    ],
)
def test_a_description_whose_fields_are_not_as_they_should_be(field: str, value: object, right: str) -> None:
    with pytest.raises(TypeError, match=f"^{field} of the Project must be {right}; it is ") as raised:
        dataclasses.replace(PROJECT, **{field: value})  # type: ignore[arg-type]
    assert repr(value) in str(raised.value)


def test_two_projects_whose_folders_have_one_name_are_told_apart(tmp_path: Path) -> None:
    described = "from pathlib import Path\nfrom kernelwatch.plan.project import Project\nfrom .name import NAME\n"
    with without_modules("same_name"):
        for package in ("one", "two"):
            folder = tmp_path / package / "same_name"
            folder.mkdir(parents=True)
            (folder / "__init__.py").touch()
            (folder / "name.py").write_text(f"NAME = {package!r}\n")
            (folder / "project.py").write_text(f"{described}PROJECT = Project(NAME, Path(__file__), ())\n")
            assert plan_project.load_from(folder).package == package
        assert plan_project.load_from(tmp_path / "one" / "same_name").package == "one"


def test_what_this_machine_cannot_take_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison reads from the group which figures are missing, and why."""
    suite = importlib.import_module("benchmarks.access").VectorAdd
    options = Options(tree=str(ROOT), only="^vector_add/elementwise float32 1000 ")
    assert suite.missing(suite().measure(options)) == {}
    monkeypatch.setenv("CXX", "/no/such")
    counted = suite().measure(options)
    assert {one.state for one in counted.outcomes.values()} == {"na"}
    assert suite.missing(counted) == {"": "no C++ compiler: /no/such not found; install gcc or set CXX"}
    facts: Any = {"occupancy": "no g++", "instructions sm_90": "no nvdisasm", "packages": {"numpy": "2"}}
    assert importlib.import_module("benchmarks.static").VectorAdd.missing(Group("vector_add static", {}, facts)) == {
        "occupancy": "no g++", "instructions sm_90": "no nvdisasm"
    }  # fmt: skip


def test_a_quick_look_keeps_away_from_a_recording_run(foreign: Project) -> None:
    foreign.git("init", "-q", "-b", "main")
    foreign.commit_all("one")
    before = files(foreign.folder)
    with holder(foreign.folder / "measured.lock") as other:
        done = kernelwatch(foreign, "bench", "--quick", "--no-gate")
        assert done.returncode == CANNOT
        where = f"process {other.pid} in {os.getcwd()} measures into {foreign.folder / 'measured'}; wait for it or end"
        assert where in done.stderr
    (foreign.folder / "measured.lock").unlink()
    assert files(foreign.folder) == before


def test_a_quick_look_holds_off_a_recording_run(tmp_path: Path) -> None:
    """And leaves no lock where no run has recorded yet."""
    results = tmp_path / "results"
    with running.not_beside(results):
        assert list(tmp_path.iterdir()) == []
    with running.alone(results):
        pass
    with running.not_beside(results), pytest.raises(UserError), running.alone(results):
        pass
    with running.not_beside(results), running.alone(tmp_path / "quick"):
        pass


# --- the home ------------------------------------------------------------------------------------------------------


def test_a_home_that_may_not_be_written_stops_no_run(foreign: Project, small_engine: Path) -> None:
    """A file stands for it."""
    foreign.git("init", "-q", "-b", "main")
    foreign.commit_all("one")
    (foreign.home / "file").touch()
    left = {name: "" for name in ("KERNELWATCH_CACHE", "GPUKERNELS_CACHE", "XDG_CACHE_HOME")}
    temporary = foreign.home / "tmp"
    temporary.mkdir()
    done = kernelwatch(
        foreign,
        "bench",
        "--quick",
        "--no-gate",
        "--bench",
        "Extremes",
        TMPDIR=str(temporary),
        HOME=str(foreign.home / "file"),
        PYTHONPATH=str(small_engine),
        **left,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 new of 1 commits" in done.stdout
    assert "this machine is not registered: " in (foreign.folder / ".asv" / "bench.log").read_text()
    assert list(temporary.iterdir()) == []


def test_a_user_without_a_home_has_a_cache_for_a_while(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KERNELWATCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cache.folder.cache_clear()
    try:
        assert cache.folder().parent == tmp_path
        assert cache.folder() == cache.folder()
    finally:
        cache.folder.cache_clear()


# --- the output ----------------------------------------------------------------------------------------------------

SCRIPT = [sys.executable, "-m", "kernelwatch", "ladder"]  # prints by rich; with --markdown, by itself


def printed_to(output: int, *arguments: str, unbuffered: bool = False) -> "subprocess.CompletedProcess[bytes]":
    plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "PYTHONUNBUFFERED")}
    plain |= {"PYTHONUNBUFFERED": "1"} if unbuffered else {}
    return subprocess.run(
        [*SCRIPT, *arguments], cwd=ROOT, env=plain, stdout=output, stderr=subprocess.PIPE, check=False
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(("option", "unbuffered"), [("--markdown", False), ("--help", True)])
def test_a_full_disk_is_an_error(option: str, unbuffered: bool) -> None:
    with open("/dev/full", "wb") as full:
        done = printed_to(full.fileno(), option, unbuffered=unbuffered)
    assert done.returncode == CANNOT
    assert done.stderr.splitlines()[-1] == b"kernelwatch ladder: No space left on device"
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


@pytest.mark.parametrize("option", [(), ("--markdown",)])
def test_a_reader_may_leave(option: tuple[str, ...]) -> None:
    """As `| head` does: no error, and the code of a program that SIGPIPE ended."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = printed_to(writer, "transpose", *option)
    finally:
        os.close(writer)
    assert done.returncode == 141
    assert [line for line in done.stderr.splitlines() if not line.startswith(b"note: ")] == []


def test_a_pipe_gets_whole_lines(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    Output().print("x" * (WIDE - 1))
    assert capsys.readouterr().out == "x" * (WIDE - 1) + "\n"
    monkeypatch.setenv("COLUMNS", "40")
    Output().print("x" * 60)
    assert capsys.readouterr().out == "x" * 40 + "\n" + "x" * 20 + "\n"


def test_a_regular_expression_is_checked() -> None:
    assert regular_expression("^(a|b) ") == "^(a|b) "
    parser = Parser("x", "what it does")
    parser.add_argument("--only", type=regular_expression)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--only", "[a"])
    assert ended.value.code == CANNOT
    with pytest.raises(argparse.ArgumentTypeError, match="'a' is no"):
        raise argparse.ArgumentTypeError("'a' is no")


# --- recorded results ----------------------------------------------------------------------------------------------


@pytest.fixture
def results(tmp_path: Path) -> list[Path]:
    """Two sidecars, the newest last."""
    cell = {"state": "ok", "reason": "", "visits": [{"process": 0, "seconds": 1e-3}], "roofline": {}}
    paths = []
    for at, commit in enumerate(("0123abcd", "89abcdef")):
        lines = [
            {"group": "rows cpu", "record": "run", "facts": {"cpu": "some"}},
            *({"group": "rows cpu", "record": "cell", "key": f"rows/{rung} int8 4 hot", **cell} for rung in "ab"),
        ]
        path = tmp_path / "here" / f"{commit}-checkout-py3.facts.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        path.with_name(f"{commit}-checkout-py3.json").write_text(json.dumps({"date": at}))
        paths.append(path)
    assert records.sidecars(tmp_path) == paths
    assert records.newest(paths)[0].commit == "89abcdef"
    assert records.newest(paths)[1] == []
    return paths


def test_what_is_no_sidecar_is_passed_over(results: list[Path]) -> None:
    """A pipe would be waited for, and a link to itself ends the search."""
    folder = results[0].parent
    os.mkfifo(folder / "00000000-checkout-py3.facts.jsonl")
    (folder / "11111111-checkout-py3.facts.jsonl").symlink_to("11111111-checkout-py3.facts.jsonl")
    result = results[1].with_name("89abcdef-checkout-py3.json")
    result.unlink()
    os.mkfifo(result)
    assert records.sidecars(folder.parent) == results


def cut(share: float) -> Callable[[str], str]:
    return lambda text: text[: round(len(text) * share)]


@pytest.mark.parametrize(
    ("damage", "commit", "why"),
    [
        (cut(0), "0123abcd", "it holds no cell"),
        (cut(0.1), "0123abcd", "1 of 1 lines cannot be read"),
        (cut(0.9), "89abcdef", "1 of 3 lines cannot be read"),
        (lambda text: text + "[" * 200_000, "89abcdef", "1 of 4 lines cannot be read"),
    ],
)
def test_a_damaged_sidecar_is_named_and_the_next_one_is_taken(
    results: list[Path], damage: Callable[[str], str], commit: str, why: str
) -> None:
    newest = results[-1]
    newest.write_text(damage(newest.read_text()))
    record, messages = records.newest(results)
    assert record.commit == commit
    assert record.cells
    assert messages == [f"{newest} is damaged: {why}; measure this commit again (bench --again)"]


def test_a_sidecar_that_was_cut_at_the_end_of_a_line_is_damaged(results: list[Path]) -> None:
    """Each line of it can be read, but its groups tell how many cells they had. Older sidecars did not."""
    newest = results[-1]
    cells = {f"rows/{rung} int8 4 hot": Outcome("ok", "", [{"process": 0, "seconds": 1e-3}]) for rung in "abc"}
    lines = [*Group("rows cpu", cells, {"cpu": "some"}).lines(), *Group("rows static", cells, {}).lines()]
    newest.write_text("".join(f"{line}\n" for line in lines))
    assert records.newest(results)[1] == []
    whole = records.merged("", "\n".join(lines)).splitlines()
    for kept, why in ((6, "it has 1 of 3 cells of rows static"), (4, "it has no cell of rows static")):
        newest.write_text("".join(f"{line}\n" for line in whole[:kept]))
        record, (message,) = records.newest(results)
        assert record.cells
        assert message == f"{newest} is damaged: {why}; measure this commit again (bench --again)"
    newest.write_text(records.merged("".join(f"{line}\n" for line in whole[:4]), "\n".join(lines[4:])))
    assert records.newest(results)[1] == [], "the lost group was measured again"


def test_no_sidecar_that_is_whole_is_an_error(results: list[Path]) -> None:
    for path in results:
        path.write_text("")
    with pytest.raises(UserError) as error:
        records.newest(results)
    assert [line.partition(" is damaged: ")[0] for line in str(error.value).splitlines()] == [
        str(results[1]), str(results[0]), "no other file fits"
    ]  # fmt: skip


def test_the_ladder_says_whose_figures_and_which_files(
    results: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    results[-1].write_text("")
    described = plan_project.load(ROOT)
    monkeypatch.setattr(type(described), "results", results[0].parents[1])
    code, error = run(capsys, "ladder", "transpose")
    notes = error.splitlines()
    assert code == 0
    assert notes[0] == (f"note: {results[-1]} is damaged: it holds no cell; measure this commit again (bench --again)")
    assert notes[1].startswith("note: these figures are of another machine, here; this one is ")
    assert notes[2] == "note: no cell of transpose was timed at 0123abcd on here"


# --- reasons -------------------------------------------------------------------------------------------------------


def test_a_compilers_error_is_said_once() -> None:
    """For all types and architectures together; what differs in more than these is said for itself."""
    error = "KernelError: rows/{rung} {type}: NVRTC does not compile it for {arch}: rows/{rung}.cu(15): error: {what}"
    reasons = {
        f"rows/{rung} {type} {arch}": error.format(rung=rung, type=type, arch=arch, what=what)
        for rung, what in (("a", "no x"), ("b", "no y"))
        for type in ("float32", "float64", "float16->float32")
        for arch in ("sm_75", "sm_100")
    }
    reasons |= {f"access.Rows.track_{name}(a, float32 1000)": "rows/a at (33) float32: 1 wrong" for name in "xy"}
    reasons["static.RowsMix.track_class(b, global)"] = reasons["rows/b float64 sm_100"]
    found = by_reason(reasons.items())
    assert {why: len(keys) for why, keys in found.items()} == {
        error.format(rung="a", type="float32", arch="sm_75", what="no x"): 6,
        error.format(rung="b", type="float32", arch="sm_75", what="no y"): 7,
        "rows/a at (33) float32: 1 wrong": 2,
    }
    assert sorted(key for keys in found.values() for key in keys) == sorted(reasons)
