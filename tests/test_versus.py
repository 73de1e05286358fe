"""scripts/versus on real commits of a copy of this project with planted changes."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwatch.system.errors import CANNOT
from tests.repositories import (
    FEW_SAMPLES,
    FEWEST_TURNS,
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
)
from tests.schemas import check

CELL = "transpose/c_blocked float32 256x256 hot"
RUNGS = {"numpy", "c", "c_blocked", "elementwise", "padded", "naive_write"}
# What is timed in the copy: on a CPU the smallest shape, hot, since a cold pass of a rung that is made slower by far
# would take minutes; the shapes of a quick look, cold, on a GPU. What other tests look at for every rung is left out:
# most architectures (test_static) and long shapes (test_emulator).
FEW = {
    "kernelwatch/run/group.py": {
        "PROCESSES_MAX = 8": "PROCESSES_MAX = 1",  # tests run beside each other already
    },
    "kernelwatch/analysis/occupancy.py": {"\nARCHES = tuple(LIMITS)": '\nARCHES = ("sm_75", "sm_90")'},
    "kernelwatch/plan/checks.py": {"\nLONG_BYTES_MOST": "\nLONG.clear()\nLONG_BYTES_MOST"},
    "kernelwatch/plan/cells.py": {
        'if cache == "cold" or shape in hot]': 'if cache == ("cold" if device == "gpu" else "hot")]',
    },
}
LOOP = "    for (long long m0 = 0;"
WRITE = "out[n * M + m] = "
UNROLLED_READ = """#pragma unroll
    for (int step = 0; step < TILE_ROWS; step += BLOCK_Y) {
        const long long row = row0 + threadIdx.y + step"""
TILED = "            tile[threadIdx.y + step][threadIdx.x] = in[row * N + column];\n"


class History(Project):
    """A repository whose commits are named by what is planted in them."""

    def versus(self, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return self.run(sys.executable, "scripts/versus", *arguments, **{"COLUMNS": "80"} | more)

    def plant(self, name: str, file: str, old: str, new: str, message: str = "") -> None:
        path = self.folder / "gpukernels" / file
        text = path.read_text()
        assert text.count(old) == 1, (file, old)
        path.write_text(text.replace(old, new))
        self.commit(name, message)

    def commit(self, name: str, message: str = "") -> None:
        self.commit_all(message or name, "--allow-empty")
        self.git("tag", name)


def few_cells(folder: Path) -> None:
    """Leave of a copy's ladder the rungs that are planted in and their controls, and few shapes to time them at."""
    few_rungs(folder, RUNGS)
    ladder = folder / "gpukernels" / "ladder.toml"
    ladder.write_text(re.sub(r"(?m)^types = .*$", 'types = ["float32"]', ladder.read_text()))
    for edits in (FEW, FEWEST_TURNS, OWN_CLOCK, FEW_SAMPLES, cpu_processes(1)):
        rewrite(folder, edits)
    smaller(folder, shapes="problem.quick_shapes", cpu_shapes="problem.counted_shapes[:1]")


# What a commit says of itself: 32 wavefronts for 1, which is as it is meant to be.
ANNOUNCED = ("access.Transpose.track_shared_load_wavefronts +3100%",)
GOOD, SLOW = 10, 200  # times the work


def again(times: int) -> str:
    """More work, by the clock of the copied engine."""
    return f"    {WORKS}\n    optopt += {times};\n{LOOP}"


# An array that is indexed at run time lies in local memory, whose loads and stores count as spills.
SPILL = """    T indexed[64];
    for (int at = 0; at < 64; ++at)
        indexed[(at * N) & 63] = in[at];
    if (M < 0)
        out[0] = indexed[N & 63];
"""


@pytest.fixture(scope="module")
def history(kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> History:
    """On main: slow, faster, a comment, slower by far, a spill, another rung, slower by far in other words."""
    bare = new_project(tmp_path_factory.mktemp("versus"))
    project = History(bare.folder, bare.home)
    (project.folder / "README.md").write_text("nothing yet\n")
    project.commit("empty")
    copy_into(project.folder)
    uncommitted_harness(project.folder)
    few_cells(project.folder)
    project.commit("whole")
    blocked, padded = "transpose/c_blocked.c", "transpose/padded.cu"
    project.plant("good", blocked, LOOP, again(GOOD))
    project.plant("faster", blocked, again(GOOD), LOOP)
    project.plant("comment", blocked, LOOP, f"    // A comment.\n{LOOP}")
    project.plant("slower", blocked, LOOP, again(SLOW))
    project.plant("spill", padded, "    __shared__ T tile", f"{SPILL}    __shared__ T tile")
    project.plant("other", "transpose/c.c", "void transpose_c(", "// Another rung.\nvoid transpose_c(")
    project.plant("still", blocked, again(SLOW), again(SLOW + 1))
    project.git("checkout", "-q", "-b", "wrong", "comment")
    project.plant("wrong", blocked, WRITE, f"{WRITE}2 + ")
    project.git("checkout", "-q", "-b", "uncompiled", "comment")
    project.plant("uncompiled", padded, "    __shared__ T tile", "    no such thing; __shared__ T tile")
    project.git("checkout", "-q", "-b", "other-binaries", "comment")
    project.plant("unroll-lost", padded, UNROLLED_READ, UNROLLED_READ.replace("unroll\n", "unroll 1\n"))
    pointers = "const T *__restrict__ in, T *__restrict__ out"
    project.plant("restrict-lost", "transpose/naive_write.cu", pointers, pointers.replace("__restrict__ ", ""))
    project.git("checkout", "-q", "-b", "twice", "comment")
    project.plant("read-twice", padded, TILED, f"            for (int again = 0; again < 2; ++again)\n    {TILED}")
    project.git("checkout", "-q", "-b", "unpadded", "comment")
    project.plant("padding-removed", padded, "TILE_COLUMNS + 1]", "TILE_COLUMNS]")
    project.git("checkout", "-q", "-b", "announced", "comment")
    trailers = "".join(f"Perf-Expected: {text}\n" for text in ANNOUNCED)
    project.plant("padding-unwanted", padded, "TILE_COLUMNS + 1]", "TILE_COLUMNS]", f"No padding\n\n{trailers}")
    project.git("checkout", "-q", "-b", "added", "comment")
    add_rung(project)
    project.git("checkout", "-q", "main")
    return project


def add_rung(project: History) -> None:
    """Commit a rung that does what padded does, under another name and without padding."""
    folder = project.folder / "gpukernels"
    source = (folder / "transpose" / "padded.cu").read_text()
    ladder = (folder / "ladder.toml").read_text()
    entry = ladder[ladder.index('[[transpose.rungs]]\nname = "padded"') :].partition("\n\n")[0]
    (folder / "transpose" / "unpadded.cu").write_text(
        source.replace("transpose_padded", "transpose_unpadded").replace("TILE_COLUMNS + 1]", "TILE_COLUMNS]")
    )
    (folder / "ladder.toml").write_text(ladder.replace(entry, f"{entry}\n\n{entry.replace('padded', 'unpadded', 1)}"))
    project.commit("new-rung")


versus_group = pytest.mark.xdist_group("versus")  # one repository for all of these


@versus_group
def test_doubled_work_is_worse_and_halved_work_better(history: History) -> None:
    done = history.versus("comment", "slower")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("BASE = comment (")
    assert re.search(r"^256x256 hot .* x[\d.e+]+ .*worse *$", done.stdout, re.MULTILINE), done.stdout
    assert "transpose/numpy float32, CPU (control)" in done.stdout
    assert done.stdout.endswith("HEAD is worse than BASE: 1 cell\n")
    assert max(map(len, done.stdout.splitlines())) <= 80
    done = history.versus("slower", "comment", "--markdown")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("**HEAD is better than BASE: 1 cell** (BASE = slower (")
    row = next(line for line in done.stdout.splitlines() if "`transpose/c_blocked float32 256x256 hot`" in line)
    assert len(row.split("|")) == 9
    assert row.endswith(" better |")
    assert "no change (same launch) |" in done.stdout  # the control


@versus_group
def test_a_comment_compiles_to_the_same(history: History) -> None:
    done = history.versus("faster", "comment")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the source differs, the binary is the same: transpose/c_blocked" in done.stdout
    assert done.stdout.endswith("no change: all 10 launches are the same, and nothing was timed\n")
    done = history.versus("faster", "comment", "--only", "c_blocked")  # timed all the same
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^256x256 hot .* no change = *$", done.stdout, re.MULTILINE), done.stdout


@versus_group
def test_a_commit_against_itself(history: History) -> None:
    done = history.versus("good", "good")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no change: all 10 launches are the same, and nothing was timed" in " ".join(done.stdout.split())
    assert "note: both are one commit" in done.stdout
    comment = history.versus("good", "good", "--markdown")
    assert comment.stdout.startswith(
        "**no change: all 10 launches are the same, and nothing was timed** (BASE = good ("
    )
    done = history.versus("good", "good", "--all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no change =" in done.stdout
    assert not re.search(r"worse|better|cannot", done.stdout), done.stdout
    assert re.search(r"^[1-9]\d* exact figures compared, 0 differ$", done.stdout, re.MULTILINE), done.stdout


@versus_group
def test_a_wrong_kernel_comes_first_and_alone(history: History) -> None:
    done = history.versus("comment", "wrong", COLUMNS="300")
    assert done.returncode == 2, done.stdout + done.stderr
    first, failed, last = done.stdout.splitlines()
    assert first.startswith("BASE = comment")
    assert failed.startswith("HEAD failed: transpose/c_blocked float32 256x256 hot: WrongOutput: ")
    assert "65536 of 65536 elements wrong" in failed
    assert last == "nothing else is compared before this is right"
    mended = history.versus("wrong", "comment", COLUMNS="300")
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "repaired: transpose/c_blocked float32 256x256 hot: BASE: WrongOutput: " in mended.stdout
    assert mended.stdout.splitlines()[-1] == "repaired: 1 cell"


@versus_group
def test_a_kernel_that_does_not_compile_comes_first_and_alone(history: History) -> None:
    done = history.versus("comment", "uncompiled", COLUMNS="300")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout.splitlines()[1].startswith("HEAD failed: ")
    assert "NVRTC does not compile it for sm_75" in done.stdout
    assert "identifier" in done.stdout  # the compiler's own words
    assert "c_blocked" not in done.stdout


@versus_group
def test_a_spill_is_worse_without_a_gpu(history: History) -> None:
    done = history.versus("slower", "spill")
    assert done.returncode == 1, done.stdout + done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("spill_bytes"))
    assert row.rstrip().endswith("worse"), done.stdout
    assert re.search(r"HEAD is worse than BASE: \d+ exact figures", done.stdout)
    assert max(map(len, done.stdout.splitlines())) <= 80


@versus_group
def test_another_binary_that_was_not_timed_is_undecided(history: History, no_gpu: str) -> None:
    """A lost unroll (20 % slower on an H200) and a lost __restrict__: no exact figure that is judged tells them."""
    done = history.versus("comment", "restrict-lost", COLUMNS="300")
    assert done.returncode == 2, done.stdout + done.stderr
    rungs = "transpose/naive_write, transpose/padded"
    undecided = rf"^cannot tell: {rungs}: their launches differ, and were not judged \(no GPU here: .*\)$"
    assert re.search(undecided, done.stdout, re.MULTILINE), done.stdout
    assert "no change" not in done.stdout
    exact = history.versus("comment", "restrict-lost", "--exact", COLUMNS="300")
    assert exact.returncode == 0, exact.stdout + exact.stderr
    assert exact.stdout.splitlines()[-1] == "no figure is worse or better; by the exact figures alone"
    assert re.search(r"^[1-9]\d* exact figures compared, [1-9]\d* differ$", exact.stdout, re.MULTILINE), exact.stdout
    assert "no output was checked" not in exact.stdout  # the emulator has launched them
    told = json.loads(history.versus("comment", "restrict-lost", "--exact", "--json").stdout)
    assert (told["verdict"], told["exit_code"]) == ("figures alone", 0)


@versus_group
def test_counts_of_an_unchanged_binary_are_never_worse(history: History) -> None:
    done = history.versus("comment", "read-twice", COLUMNS="300")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^requests \(requests\) .* changed *$", done.stdout, re.MULTILINE), done.stdout
    assert not re.search("worse|better", done.stdout), done.stdout
    assert done.stdout.endswith("no change: all 10 launches are the same, and nothing was timed\n")


@versus_group
def test_what_was_not_counted_is_said(history: History, no_gpu: str) -> None:
    """Without a C++ compiler the lost padding shows only as higher occupancy."""
    done = history.versus("comment", "padding-removed", "--exact", COLUMNS="300", CXX="no-such-compiler")
    assert done.returncode == 2, done.stdout + done.stderr
    missing = r"no exact figure of transpose access \(no C\+\+ compiler: no-such-compiler not found; .*\)"
    assert re.search(rf"(?m)^{missing}$", done.stdout), done.stdout
    assert re.search(rf"cannot tell: {missing}; by the exact figures alone$", done.stdout, re.MULTILINE), done.stdout
    done = history.versus("comment", "padding-removed", "--exact", COLUMNS="300")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^shared_load_wavefronts .* 1 +32 +worse *$", done.stdout, re.MULTILINE), done.stdout


@versus_group
def test_a_regression_that_its_commit_announces_is_told_and_is_not_worse(history: History) -> None:
    done = history.versus("comment", "padding-unwanted", "--exact", COLUMNS="300")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^shared_load_wavefronts .* 1 +32 +accepted *$", done.stdout, re.MULTILINE), done.stdout
    assert f"Perf-Expected: {ANNOUNCED[0]}" in done.stdout
    assert re.search(r"worse, and accepted: \d exact figures?", done.stdout.splitlines()[-1]), done.stdout
    later = history.versus("slower", "spill", "--exact", "--json")  # nothing was said of it
    assert later.returncode == 1, later.stderr
    found = json.loads(later.stdout)
    check(found, "versus")
    assert (found["verdict"], found["exit_code"], found["whole"]) == ("worse", 1, True)
    spilled = next(each for each in found["figures"] if "spill_bytes" in each["series"])
    assert (spilled["verdict"], spilled["base"], spilled["unit"]) == ("worse", 0, "bytes")
    assert found["head"] == {"name": "spill", "commit": history.git("rev-parse", "spill").strip()}


@versus_group
def test_a_comparison_as_json(history: History) -> None:
    for arguments, verdict in (
        (("good", "faster"), "better"),
        (("slower", "slower"), "no change"),
        (("comment", "wrong"), "failed"),
        (("comment", "new-rung", "--exact"), "no change"),
    ):
        done = history.versus(*arguments, "--json")
        found = json.loads(done.stdout)
        check(found, "versus")
        assert (found["verdict"], found["exit_code"]) == (verdict, done.returncode), found["summary"]
        if verdict == "better":
            (cell,) = (each for each in found["cells"] if each["rung"] == "c_blocked" and each["verdict"] == "better")
            assert cell["head_s"] < cell["base_s"]
            assert cell["interval"][0] <= cell["change"] <= cell["interval"][1] < 0
            assert not cell["control"]


@versus_group
def test_a_new_rung_is_shown_beside_the_rung_before_it(history: History) -> None:
    history.git("checkout", "-q", "added")  # the checkout's ladder says which rungs there are
    try:
        done = history.versus("comment", "new-rung", COLUMNS="300")
    finally:
        history.git("checkout", "-q", "main")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "new: transpose/unpadded, with nothing to compare"
    assert "new rungs, and the rung before each in the ladder" in done.stdout
    wavefronts = r"^shared_load_wavefronts \(.*\) +transpose/unpadded float32 256x256 +1 +32 *$"
    assert re.search(wavefronts, done.stdout, re.MULTILINE), done.stdout


@versus_group
def test_a_commit_that_lacks_the_package(history: History) -> None:
    done = history.versus("empty", "whole", "--only", "c_blocked", COLUMNS="300")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^256x256 hot +[\d.]+ [mun]?s +new *$", done.stdout, re.MULTILINE), done.stdout
    assert "BASE: this commit has no package gpukernels to measure" in done.stdout
    done = history.versus("whole", "empty", "--only", "c_blocked", COLUMNS="300")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "HEAD: this commit has no package gpukernels to measure" in done.stdout
    assert "cannot tell: " in done.stdout.splitlines()[-1]


@versus_group
def test_the_commit_that_made_a_cell_slower_is_found(history: History) -> None:
    done = history.versus("--find", CELL, "good..still")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("6 commits after ")
    assert lines[0].endswith("; 3 may launch another transpose/c_blocked")  # comments and other rungs are not tried
    assert f"first worse: {history.git('rev-parse', 'slower')}" in lines
    assert any(re.search(r" faster: better ", line) for line in lines) or "faster" not in done.stdout
    assert " comment: " not in done.stdout
    assert " other: " not in done.stdout


@versus_group
@pytest.mark.parametrize(
    ("figure", "word", "commits"),
    [("spill_bytes", "worse", "good..still"), ("instructions", "higher", "slower..other")],
)
def test_the_commit_that_moved_an_exact_figure_is_found(history: History, figure: str, word: str, commits: str) -> None:
    """More instructions are neither better nor worse."""
    done = history.versus("--find", f"static.Transpose.track_{figure}(padded, float32, sm_90)", commits)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"first {word}: {history.git('rev-parse', 'spill')}" in done.stdout.splitlines()


@versus_group
def test_where_nothing_is_worse_no_commit_is_named(history: History) -> None:
    done = history.versus("--find", CELL, "faster..comment")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "no commit changed its launch: if its time moved, the environment moved it" in done.stdout
    done = history.versus("--find", "static.Transpose.track_spill_bytes(padded, float32, sm_90)", "good..slower")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "first worse" not in done.stdout


@versus_group
def test_a_commit_that_cannot_be_judged_is_named_with_its_neighbour(history: History) -> None:
    history.git("checkout", "-q", "-b", "doubtful", "comment")
    try:
        history.plant("broken", "transpose/c_blocked.c", WRITE, f"{WRITE}3 + ")
        history.git("checkout", "-q", "slower", "--", "gpukernels/transpose/c_blocked.c")
        history.commit("slow-again")
        done = history.versus("--find", CELL, "comment..doubtful")
        assert done.returncode == 2, done.stdout + done.stderr
        assert re.search(r"cannot tell: it is one of \w+ broken, \w+ slow-again", done.stdout), done.stdout
    finally:
        history.git("checkout", "-q", "main")


@versus_group
def test_the_commit_that_broke_a_cell_is_found(history: History) -> None:
    done = history.versus("--find", CELL, "good..wrong")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"first failed: {history.git('rev-parse', 'wrong')}" in done.stdout


@versus_group
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("good", "no-such"), r"scripts/versus: the repository in .* has no commit no-such; "),
        (("good",), "usage: scripts/versus"),
        (("good", "slower", "--only", "warp"), "scripts/versus: no cell matches 'warp'; one is "),
        (("--find", "transpose/warp", "good..slower"), "scripts/versus: no cell or exact series 'transpose/warp'"),
        (("--find", "transpose/numpy float32 256x256 hot", "wrong..slower"), "scripts/versus: wrong..slower: "),
    ],
)
def test_what_cannot_be_done_is_no_verdict(history: History, arguments: tuple[str, ...], message: str) -> None:
    done = history.versus(*arguments)
    assert done.returncode == CANNOT, done.stdout + done.stderr
    assert re.match(message, done.stderr), done.stderr
    assert "Traceback" not in done.stderr


@versus_group
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are looked up in Linux's /proc")
def test_an_interrupt_prints_what_is_known_and_ends_what_was_started(history: History, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    head = "#include <stdio.h>\nvoid transpose_c_blocked(const T *in, T *out, long long M, long long N) {\n"
    body = f'    fclose(fopen("{begun}", "w"));\n    for (volatile int i = 1; i;);\n'
    history.git("checkout", "-q", "-b", "endless", "comment")
    try:
        source = f"{head}    (void)in, (void)out, (void)M, (void)N;\n{body}}}\n"
        (history.folder / "gpukernels" / "transpose" / "c_blocked.c").write_text(source)
        history.commit("for-ever")
    finally:
        history.git("checkout", "-q", "main")
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "scripts/versus", "comment", "endless", "--only", "c_blocked"],
        cwd=history.folder,
        env=history.environment(COLUMNS="80"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert wait_until(lambda: begun.exists() or process.poll() is not None, pause_s=0.05)
        assert begun.exists(), "the kernel was never launched"
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does
        said, _ = process.communicate(timeout=600)
        assert process.returncode == 130
        assert said.endswith("interrupted: that is what was known by then; nothing was saved\n")
        assert "cannot tell: nothing could be compared; interrupted before all was decided" in said
        assert wait_until(lambda: not processes_in(history.folder), pause_s=0.05), processes_in(history.folder)
    finally:
        process.kill()
        process.communicate()


# --- on a GPU ------------------------------------------------------------------------------------------------------

GPU_CELLS = r"transpose/(vector_copy|padded|naive_write) float32 (256x256|4096x4096) cold"


@pytest.mark.gpu
@versus_group
def test_on_a_gpu_nothing_changes_where_nothing_changed(history: History) -> None:
    done = history.versus("good", "good", "--only", GPU_CELLS)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if re.match(r"(256x256|4096x4096) cold ", line)]
    assert rows, done.stdout
    assert all(line.rstrip().endswith("no change =") for line in rows), done.stdout
    # Another binary that is as fast: three spare columns are as good as one.
    history.git("checkout", "-q", "-b", "wider", "good")
    try:
        history.plant("wider-tile", "transpose/padded.cu", "TILE_COLUMNS + 1]", "TILE_COLUMNS + 3]")
    finally:
        history.git("checkout", "-q", "main")
    done = history.versus("good", "wider-tile")
    assert re.search(r"^4096x4096 cold .* no change *$", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.gpu
@versus_group
def test_on_a_gpu_fewer_loads_in_flight_are_worse(history: History) -> None:
    history.git("checkout", "-q", "-b", "in-flight-lost", "good")
    try:
        loop = "\n    for (int step = 0; step < TILE_ROWS; step += BLOCK_Y) {\n        const long long row = row0 +"
        loop += " threadIdx.y"
        history.plant("in-flight", "transpose/padded.cu", f"#pragma unroll{loop}", f"#pragma unroll 1{loop}")
    finally:
        history.git("checkout", "-q", "main")
    done = history.versus("good", "in-flight")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^4096x4096 cold .* worse *$", done.stdout, re.MULTILINE), done.stdout
    assert "naive_write" not in done.stdout
