"""scripts/bench from end to end, on a small history of a copy of this project."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kernelwatch.commands import bench, publishing
from kernelwatch.system.errors import CANNOT
from tests.repositories import (
    CELLS,
    FEW_SAMPLES,
    FEWEST_TURNS,
    HARNESS,
    INTERRUPTIBLE,
    OWN_CLOCK,
    WORKS,
    Project,
    copy_into,
    cpu_processes,
    few_rungs,
    new_project,
    processes_in,
    rewrite,
    smaller,
    uncommitted_harness,
    wait_until,
    without_suites,
)
from tests.test_site import browser, visit
from tests.test_tables import table_row

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.xdist_group("bench")  # one project for all of these


def test_which_commits_have_results(tmp_path: Path) -> None:
    commits = ["0123abcd" + "0" * 32, "ffffffff" + "0" * 32]
    (tmp_path / "0123abcd-checkout-py3.12.json").touch()
    (tmp_path / "ffffffff-checkout-py3.12.facts.jsonl").touch()
    (tmp_path / "ffffffff-virtualenv-py3.12.json").touch()
    assert publishing.have_results(tmp_path, commits) == commits[:1]
    assert publishing.have_results(tmp_path / "none", commits) == []
    assert publishing.has_record(tmp_path)
    (tmp_path / "0123abcd-checkout-py3.12.json").unlink()  # a run that was interrupted leaves sidecars at most
    assert not publishing.has_record(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "is_full"),
    [
        ((), False),
        (("A..B",), False),
        (("--all",), True),
        (("A..B", "--changed"), True),
        (("--bench", "transpose"), True),
        (("--cluster", "local"), False),
        (("--cluster", "local", "--all"), True),
        (("--quick", "--only", "copy"), True),
        *(((f"--{name}",), True) for name in ("quick", "again", "no-gate", "no-confirm", "confirm-budget=1")),
    ],
)
def test_an_option_of_a_full_run_makes_one(arguments: tuple[str, ...], is_full: bool) -> None:
    assert bench.parsed("bench", [*arguments]).all is is_full


PLAN = "import json; from benchmarks.project import PROJECT; from kernelwatch.plan.cells import plan"
ENTRY = """
[[transpose.rungs]]
name = "c_lines"
idea = "a line of out after the other"
origin = "a test"
"""
# What the tree and HEAD differ in, by rungs.
CHANGED = """
import json, tempfile
from pathlib import Path
from benchmarks.project import PROJECT
from kernelwatch.comparison.changes import changes
from kernelwatch.system.git import export, export_checkout
with tempfile.TemporaryDirectory() as folder:
    head, tree = export(PROJECT.root, "HEAD", Path(folder, "HEAD")), Path(folder, "tree")
    export_checkout(PROJECT.root, tree)
    print(json.dumps(sorted(changes(PROJECT, head, str(tree)).rungs)))
"""
ALL = "import json; from benchmarks.project import PROJECT; print(json.dumps(PROJECT.rungs()))"
SOURCE = """// transpose/c_lines: out[n][m] = in[m][n], a line of out after the other.

void transpose_c_lines(const T *restrict in, T *restrict out, long long M, long long N) {
    for (long long n = 0; n < N; ++n)
        for (long long m = 0; m < M; ++m)
            out[n * M + m] = in[m * N + n];
}
"""


# A folder as people have them.
FOLDER = "my project (ä ö ü)"
RUNGS = ("elementwise", "numpy", "c", "c_blocked", "dynamic", "tiled_16", "tiled_32")  # of each op that has them


@pytest.fixture(scope="module")
def committed(kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy of this project with few rungs and shapes, committed: as it is, then with one more rung (a source and an
    entry, nothing else)."""
    project = new_project(tmp_path_factory.mktemp("bench"), FOLDER)
    copy_into(project.folder)
    uncommitted_harness(project.folder)
    without_suites(project.folder, "access", "device", "matmul", "static")
    few_rungs(project.folder, RUNGS)
    smaller(project.folder, cpu_shapes="problem.counted_shapes[:1]")
    for edits in (FEWEST_TURNS, OWN_CLOCK, FEW_SAMPLES, cpu_processes(1)):
        rewrite(project.folder, edits)
    project.commit_all("as it is")
    with (project.folder / "gpukernels" / "ladder.toml").open("a") as file:
        file.write(ENTRY)
    (project.folder / "gpukernels" / "transpose" / "c_lines.c").write_text(SOURCE)
    project.commit_all("one more rung")
    return project


@pytest.fixture
def project(committed: Project) -> Iterator[Project]:
    """The project with a clean tree before and after."""
    yield committed
    committed.git("checkout", "-q", ".")
    committed.git("clean", "-q", "-f", "-d")


def rungs(project: Project) -> list[str]:
    """All rungs of the project's ladder."""
    names: list[str] = json.loads(project.python(ALL))
    return names


def blocked(project: Project) -> Path:
    return project.folder / "gpukernels" / "transpose" / "c_blocked.c"


@dataclass(frozen=True)
class Look:
    """A quick look, what it had left in the tree when it ended, and a copy of its results."""

    done: "subprocess.CompletedProcess[str]"
    status: str
    folders: frozenset[str]
    results: Path


@pytest.fixture(scope="module")
def quick(committed: Project) -> Look:
    # What another run was told is not for this one.
    done = committed.bench("--quick", "--no-gate", KERNELWATCH_ONLY="nothing", KERNELWATCH_TREE="/nowhere")
    folders = frozenset(path.name for path in (committed.folder / ".asv").iterdir() if path.is_dir())
    status = committed.git("status", "--porcelain", "--ignored")
    results = shutil.copytree(committed.folder / ".asv" / "quick" / "results", committed.home / "results")
    return Look(done, status, folders, results)


def test_a_quick_look_prints_the_table_and_where_the_pages_are(project: Project, quick: Look) -> None:
    assert quick.done.returncode == 0, quick.done.stdout + quick.done.stderr
    assert "1 new of 1 commits in " in quick.done.stdout
    assert "verdict: " not in quick.done.stdout  # one commit, and nothing to compare it with
    assert re.search(r"\ntook \d.* \(measuring \d.*, publishing \d+ s\)\n", quick.done.stdout)
    for rung in ("numpy", "c_blocked", "c_lines"):
        name, taken, spread, rate, _ = table_row(quick.done.stdout, rung)
        assert name == rung
        assert re.fullmatch(r"[\d.]+ (us|ms)", taken)
        assert re.fullmatch(r"± [\d.]+ %", spread)
        assert float(rate) > 0
    page = project.folder / ".asv" / "quick" / "html" / "index.html"
    assert f"pages: {page.as_uri()}" in quick.done.stdout
    assert page.is_file()


def test_a_quick_look_stays_out_of_the_history(project: Project, quick: Look) -> None:
    assert quick.done.returncode == 0
    left = {line for line in quick.status.splitlines() if "__pycache__" not in line and line[3:-1] not in HARNESS}
    assert left == {"!! .asv/"}  # nothing in results/, and the configuration of its own is gone
    assert quick.folders == {"env", "quick"}


def test_a_rung_is_a_source_and_an_entry(project: Project, quick: Look) -> None:
    """Nothing but these two files: its cells, its parameter in asv and its row are there."""
    assert project.git("diff", "--name-only", "HEAD~1").split() == [
        "gpukernels/ladder.toml",
        "gpukernels/transpose/c_lines.c",
    ]
    cells = "[cell.key for cell in plan(PROJECT.op('transpose'), 'cpu', only='c_lines float32 256x256')]"
    keys = json.loads(project.python(f"{PLAN}; print(json.dumps({cells}))"))
    assert keys == [f"transpose/c_lines float32 256x256 {cache}" for cache in ("cold", "hot")]
    params = json.loads(
        project.python("import json; from benchmarks import transpose as t; print(json.dumps(t.CPU.params))")
    )
    assert params[0][-1] == "c_lines"
    recorded = json.loads((quick.results / "benchmarks.json").read_text())
    assert recorded["transpose.CPU.track_seconds"]["params"][0][-1] == "'c_lines'"
    (result,) = quick.results.glob("*/*-checkout-*.json")
    assert {name.split(".", 1)[1] for name in json.loads(result.read_text())["results"]} == {
        "CPU.track_seconds",
        "GPU.track_seconds",
        "Launch.track_launch",
    }
    assert table_row(quick.done.stdout, "c_lines")


def test_a_slower_tree_shows_and_nothing_is_saved(project: Project) -> None:
    source = blocked(project).read_text()
    loop = "    for (long long m0 = 0;"
    assert source.count(loop) == 1
    blocked(project).write_text(source.replace(loop, f"    {WORKS}\n    optopt += 1000;\n{loop}"))
    before = sorted(path for path in project.folder.rglob("*") if ".git" not in path.parts and path.suffix != ".pyc")
    done = project.bench("--worktree", "transpose/c_blocked", only="256x256 hot")
    assert done.returncode == 1, done.stdout + done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("256x256 hot"))
    _, _, head, head_unit, tree, tree_unit, change, *_, verdict = row.split()
    assert change.startswith("x"), done.stdout  # a factor
    assert float(change[1:]) > 50, done.stdout
    assert (head, head_unit) != (tree, tree_unit)
    assert verdict == "worse"
    assert done.stdout.index("c_blocked") < done.stdout.index("numpy float32, CPU (control)")
    assert done.stdout.endswith("tree is worse than HEAD: 1 cell\n")
    after = sorted(path for path in project.folder.rglob("*") if ".git" not in path.parts and path.suffix != ".pyc")
    assert [path for path in after if path not in before and path.name != "__pycache__"] == []
    assert project.git("status", "--porcelain") == " M gpukernels/transpose/c_blocked.c"


def test_a_wrong_tree_is_told(project: Project) -> None:
    blocked(project).write_text(blocked(project).read_text().replace("out[n * M + m] = ", "out[n * M + m] = 2 + "))
    done = project.bench("--worktree")  # it finds by itself what differs
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout.startswith("the dirty tree against HEAD\ntree failed: ")
    assert "transpose/c_blocked at (256, 256) float32: 65536 of 65536 elements wrong" in done.stdout
    assert "c_lines" not in done.stdout
    assert "HEAD:" not in done.stdout  # no table, nothing else


def test_a_new_rung_in_the_tree(project: Project) -> None:
    project.git("checkout", "-q", "HEAD~1", "--", "gpukernels/ladder.toml")
    project.git("rm", "-q", "-f", "gpukernels/transpose/c_lines.c")
    project.git("commit", "-q", "-m", "without it again")
    try:
        project.git("checkout", "-q", "HEAD~1", "--", "gpukernels")
        done = project.bench("--worktree", "transpose/c_lines")
    finally:
        project.git("reset", "-q", "--hard", "HEAD~1")
    assert done.returncode == 0, done.stdout + done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("256x256 hot"))
    assert re.fullmatch(r"256x256 hot +[\d.]+ [mun]?s +new *", row)
    assert "new: 2 cells (transpose/c_lines float32 256x256 cold, ...): HEAD: this commit has no rung" in done.stdout


def test_which_rungs_differ(project: Project) -> None:
    def changed() -> list[str]:
        found: list[str] = json.loads(project.python(CHANGED))
        return found

    blocked(project).write_text(blocked(project).read_text() + "\n")  # it was launched: its binary is the same
    other = project.folder / "gpukernels" / "vector_add" / "elementwise.cu"
    other.write_text(other.read_text() + "\n")
    assert changed() == ["vector_add/elementwise"]
    blocked(project).write_text(blocked(project).read_text() + "int more = 1;\n")
    project.git("add", "-A")
    assert changed() == ["transpose/c_blocked", "vector_add/elementwise"]
    project.git("reset", "-q", "--hard")
    kernel = project.folder / "gpukernels" / "kernel.py"
    kernel.write_text(kernel.read_text() + "\nMORE = 1\n")  # what launches them all
    assert changed() == sorted(rungs(project))


def test_an_entry_that_differs_is_its_rung(project: Project) -> None:
    def changed() -> list[str]:
        found: list[str] = json.loads(project.python(CHANGED))
        return found

    ladder = project.folder / "gpukernels" / "ladder.toml"
    text = ladder.read_text()
    ladder.write_text(f"# a comment\n{text.replace('pad = 1', 'pad = 2')}")
    assert changed() == ["transpose/dynamic"]
    ladder.write_text(text.replace('types = ["float32", "float64"]', 'types = ["float32"]', 1))
    assert changed() == sorted(name for name in rungs(project) if name.startswith("vector_add/"))


def test_a_source_of_two_rungs_is_both_and_no_more(project: Project) -> None:
    source = project.folder / "gpukernels" / "matmul" / "tiled.cu"
    text = source.read_text()
    try:
        source.write_text(f"{text}\n// a word more\n")
        assert json.loads(project.python(CHANGED)) == ["matmul/tiled_16", "matmul/tiled_32"]
    finally:
        source.write_text(text)


def test_a_clean_tree_has_nothing_to_compare(project: Project) -> None:
    done = project.bench("--worktree")
    assert done.returncode == 0
    assert re.search(r"no change: all \d+ launches are the same, and nothing was timed", done.stdout), done.stdout


# What scripts/bench does, once for each list of arguments in the first argument; its exit codes, and what is on stderr.
EACH = """
import contextlib, io, json, sys
from kernelwatch.__main__ import run
said = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        said.append((run("bench", arguments, "scripts/bench"), stderr.getvalue()))
print(json.dumps(said))
"""
IMPOSSIBLE = {
    ("--worktree", "transpose/warp"): "scripts/bench: no rung transpose/warp; the ladder has vector_add/elementwise, ",
    (
        "HEAD..HEAD",
        "--no-gate",
        "--quick",
    ): "scripts/bench: no commits in HEAD..HEAD: it begins and ends at one commit\n",
    (
        "no-such-branch",
        "--quick",
    ): "scripts/bench: the repository in FOLDER has no commits no-such-branch; name a commit, a branch, ",
    ("--no-gate", "--only", "c_blocked"): "usage: scripts/bench ",
    ("--shape", "256x256"): "usage: scripts/bench ",
    ("HEAD..HEAD",): "scripts/bench: no commits in HEAD..HEAD: it begins and ends at one commit\n",
    (
        "no-such-branch",
    ): "scripts/bench: the repository in FOLDER has no commits no-such-branch; name a commit, a branch, ",
    ("--quick", "--no-gate", "--only", "nonsense"): "scripts/bench: no cell matches 'nonsense'; one is ",
    ("--changed",): "usage: scripts/bench ",
}


def test_what_cannot_be_done_is_said(project: Project) -> None:
    done = project.run(sys.executable, "-c", EACH, json.dumps(list(IMPOSSIBLE)), PYTHONPATH=str(project.folder))
    assert done.returncode == 0, done.stderr
    for (arguments, message), (code, said) in zip(
        IMPOSSIBLE.items(), json.loads(done.stdout.splitlines()[-1]), strict=True
    ):
        assert code == CANNOT, arguments
        assert said.startswith(message.replace("FOLDER", str(project.folder)))
        assert "Traceback" not in said
    assert not (project.folder / "results").exists()


def test_nothing_is_measured_where_the_gate_fails(project: Project) -> None:
    (project.folder / "tests").mkdir()
    (project.folder / "tests" / "test_kernels.py").write_text("def test_it():\n    assert 'this rung' == 'wrong'\n")
    done = project.bench("--quick")
    assert done.returncode == CANNOT
    assert "the gate failed; nothing was measured" in done.stderr
    assert "this rung" in done.stdout
    assert " new of " not in done.stdout


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are looked up in Linux's /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_all_that_was_started(
    project: Project, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    begun = tmp_path / "begun"
    head = "#include <stdio.h>\nvoid transpose_c_blocked(const T *in, T *out, long long M, long long N) {\n"
    body = f'    fclose(fopen("{begun}", "w"));\n    for (volatile int i = 1; i;);\n'
    blocked(project).write_text(f"{head}    (void)in, (void)out, (void)M, (void)N;\n{body}}}\n")
    project.git("commit", "-q", "-a", "-m", "for ever")
    command = ["scripts/bench", "--quick", "--no-gate", "--bench", "transpose.CPU", "--only", CELLS]
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *command],
        cwd=project.folder,
        env=project.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert wait_until(lambda: begun.exists() or process.poll() is not None, pause_s=0.05)
        assert begun.exists(), "the kernel was never launched"
        os.killpg(process.pid, number)  # as the terminal does
        said, _ = process.communicate(timeout=600)
        assert process.returncode == code
        assert ("interrupted; nothing was saved" in said) is (number == signal.SIGINT)
        assert wait_until(lambda: not processes_in(project.folder), pause_s=0.05), processes_in(project.folder)
        assert not (project.folder / ".asv.quick.conf.json").exists()
    finally:
        process.kill()
        process.communicate()
        for process_id in processes_in(project.folder):
            os.kill(process_id, signal.SIGKILL)
        project.git("reset", "-q", "--hard", "HEAD~1")


def test_a_folder_with_spaces_and_umlauts(project: Project, quick: Look, browser: "Browser") -> None:
    """bench has measured and published there; what is recorded is printed and published as well."""
    assert quick.done.returncode == 0
    shutil.copytree(quick.results, project.folder / "results")
    ladder = project.run(sys.executable, "scripts/ladder", "transpose")
    assert ladder.returncode == 0, ladder.stdout + ladder.stderr
    assert table_row(ladder.stdout, "c_lines") == table_row(quick.done.stdout, "c_lines")
    published = project.asv("publish", "--no-pull")
    assert published.returncode == 0, published.stdout + published.stderr
    pages = project.folder / ".asv" / "html"
    assert "transpose.CPU.track_seconds" in json.loads((pages / "asv" / "index.json").read_text())["benchmarks"]
    with visit(
        browser, f"{pages.as_uri()}/", missing="swallow.ico"
    ) as page:  # asv's question whether a network is there
        page.locator("main[data-shown=status] .machine").wait_for()
        page.get_by_role("link", name="asv\u2019s grid and list").click()
        page.locator(".benchmark-text", has_text="track_seconds").first.wait_for()
        page.evaluate("location.hash = '#transpose.CPU.track_seconds'")
        page.locator("#main-graph canvas").first.wait_for()
        page.evaluate("location.hash = '#/regressions'")
        page.locator("main[data-shown=regressions]").wait_for()


def test_ladder_has_nothing_to_print(project: Project) -> None:
    done = project.run(sys.executable, "scripts/ladder")
    assert done.returncode == CANNOT
    assert done.stderr.startswith("scripts/ladder: nothing recorded for this under ")
    assert done.stderr.endswith("; the command bench measures\n")
