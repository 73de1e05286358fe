"""Regressions planted in real rungs, one of each op a commit, found by scripts/bench and asv publish without a GPU."""

import dataclasses
import io
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import gpukernels
from benchmarks.project import PROJECT, cuda_source
from kernelwatch.emulator import load
from lab import planted
from tests import gate
from tests.repositories import ROOT, Project, copy_into, new_project, rewrite, uncommitted_harness
from tests.test_emulator import loaded

pytestmark = pytest.mark.timeout(900)
planted_group = pytest.mark.xdist_group("planted")  # one history
recorded_group = pytest.mark.xdist_group("recorded")  # one repository

LADDER = "gpukernels/ladder.toml"
# What other tests look at for every rung is left out of the copy: long shapes (test_emulator) and most architectures
# (test_static). One process, since tests run beside each other already.
FEWER = {
    "kernelwatch/plan/checks.py": {"\nLONG_BYTES_MOST": "\nLONG.clear()\nLONG_BYTES_MOST"},
    "kernelwatch/analysis/occupancy.py": {"\nARCHES = tuple(LIMITS)": '\nARCHES = ("sm_90", "sm_100")'},
    "kernelwatch/run/group.py": {"PROCESSES_MAX = 8": "PROCESSES_MAX = 1"},
}


@dataclass(frozen=True)
class Plant:
    """A change to a file, whose text `old` becomes `new` at one place or everywhere; the rung that it makes worse, and
    the series that say so, none where neither a count nor a compile-time figure can."""

    subject: str
    file: str
    old: str
    new: str
    rung: str
    series: frozenset[str]
    everywhere: bool = False

    def apply(self, text: str) -> str:
        at = text.index(f'name = "{self.rung}"') if self.file == LADDER else 0
        assert text.count(self.old, at), f"{self.file} has no {self.old!r}"
        return text[:at] + text[at:].replace(self.old, self.new, -1 if self.everywhere else 1)


def plant(subject: str, file: str, old: str, new: str, rung: str = "", *series: str, everywhere: bool = False) -> Plant:
    return Plant(subject, f"gpukernels/{file}", old, new, rung or Path(file).stem, frozenset(series), everywhere)


HALVES = """    if constexpr (sizeof(T) == 16) {
        const double *from = reinterpret_cast<const double *>(in);
        double *to = reinterpret_cast<double *>(out);
        for (int half = 0; half < 2; ++half)
            for (int step = 0; step < TILE_ROWS; step += BLOCK_Y)
                if (row + step < M && column < N)
                    to[2 * ((row + step) * N + column) + half] = from[2 * ((row + step) * N + column) + half];
        return;
    }

#pragma unroll
"""
BETWEEN = """ = k0 + y < K && column < N ? B[(k0 + y) * N + column] : T(0.0f);
        __syncthreads();

        // Kept rolled: the compiler would otherwise anticipate the rung unrolled.
#pragma unroll 1
        for (int k = 0; k < TILE_K; ++k)
            sum += (Sum)As[y][k] * (Sum)"""
PLANTED = (
    plant("Padding removed", "transpose/padded.cu", "TILE_COLUMNS + 1]", "TILE_COLUMNS]", "padded",
          "access.track_shared_load_wavefronts"),
    plant("Index swapped: neighbors read a column", "vector_add/elementwise.cu",
          "    if (i < N)\n        out[i] = a[i] + b[i]",
          "    const long long j = N % 32 ? i : i % 32 * (N / 32) + i / 32;\n"
          "    if (i < N)\n        out[j] = a[j] + b[j]",
          "elementwise", "access.track_load_sectors", "access.track_store_sectors", "access.track_moved"),
    plant("float4 split: 16 bytes as twice 8", "transpose/copy.cu", "#pragma unroll\n", HALVES, "copy",
          "access.track_moved", "access.track_requests", "static.track_occupancy"),
    plant("Launch bounds that spill", "matmul/thread_tile_2d.cu", "__global__ void matmul",
          "__global__ void __launch_bounds__(BLOCK_X * BLOCK_Y, 4) matmul", "thread_tile_2d",
          "static.track_spill_bytes"),
    plant("Extra barrier", "transpose/tiled.cu", "    __syncthreads();\n",
          "    __syncthreads();\n    __syncthreads();\n", "tiled", "access.track_barriers"),
    plant("Tile shrunk", "ladder.toml", 'origin = "Hallym"\ntile = [32, 32]\nblock = [32, 32]',
          'origin = "Hallym"\ntile = [16, 16]\nblock = [16, 16]', "conflict_free",
          "access.track_moved", "access.track_requests", "access.track_barriers", "access.track_load_sectors",
          "access.track_store_sectors", "access.track_shared_store_wavefronts"),
    plant("Tile stored transposed", "matmul/tiled.cu", f"Bs[y][x]{BETWEEN}Bs[k][x]", f"Bs[x][y]{BETWEEN}Bs[x][k]",
          "tiled_32", "access.track_shared_load_wavefronts", "access.track_shared_store_wavefronts"),
    plant("Shared tile bypassed", "matmul/thread_tile_1d.cu", "(Sum)Bs[k][x];",
          "(Sum)(k0 + k < K && column < N ? B[(k0 + k) * N + column] : T(0.0f));", "thread_tile_1d",
          "access.track_moved", "static.track_occupancy"),
    plant("Shared memory wasted", "transpose/naive_write.cu", "long long N) {\n",
          "long long N) {\n    __shared__ T waste[2048];\n    waste[threadIdx.y * BLOCK_X + threadIdx.x] = in[0];\n"
          "    if (M < 0)\n        out[0] = waste[blockIdx.x];\n", "naive_write",
          "static.track_occupancy", "access.track_moved", "access.track_requests"),
    plant("Unroll lost", "matmul/unrolled.cu", "#pragma unroll\n", "#pragma unroll 1\n", "unrolled"),
    plant("Read-only path lost", "matmul/read_only.cu", "__ldg(&A[row * K + k])", "A[row * K + k]", "read_only"),
    plant("Extra arithmetic in the inner loop", "matmul/initial.cu", "sum += ",
          "sum -= Sum(0) * Sum(k), sum += ", "initial"),
)  # fmt: skip
HARMLESS = (
    plant("A comment", "transpose/padded.cu", "    // Row of out", "    // A row of out"),
    plant("A name", "matmul/thread_tile_2d.cu", "b_column", "column_b", everywhere=True),
)
RUNGS = {"numpy"} | {one.rung for one in PLANTED}


def op_of(one: Plant) -> str:
    """The op whose rung a change makes worse."""
    return next(op for op, problem in PROJECT.ops.items() if one.rung in {rung.name for rung in problem.rungs})


PLANTING = 2  # commits that plant something: each takes seconds


def commits() -> list[tuple[Plant, ...]]:
    """What each commit changes: some of each op, and the last one what is harmless. Each change is told apart, since no
    two of a commit, and no two regressions, are in one rung."""
    assert len({(op_of(one), one.rung) for one in PLANTED}) == len(PLANTED)
    by_op = [[one for one in PLANTED if op_of(one) == op] for op in PROJECT.ops]
    *first, last = [tuple(one for found in by_op for one in found[at::PLANTING]) for at in range(PLANTING)]
    assert not {one.rung for one in last} & {one.rung for one in HARMLESS}
    return [*first, (*last, *HARMLESS)]


def subject_of(found: tuple[Plant, ...]) -> str:
    return "; ".join(one.subject for one in found)


COMMITS = commits()
SUBJECTS = {one: subject_of(found) for found in COMMITS for one in found}


def trimmed(text: str) -> str:
    """The ladder with the rungs that are planted in, and of each of them the types that tell."""
    head, *rest = re.split(r"(?m)^(?=\[)", text)  # a table a part
    kept = [head]
    for part in rest:
        name = re.search(r'^name = "(.*)"$', part, re.MULTILINE)
        kept += [part] if not name or name[1] in RUNGS else []
    found = "".join(kept)
    return re.sub(r'(?m)^types = .*?(, "complex128")?]$', r'types = ["float32"\1]', found)


def change(project: Project, found: tuple[Plant, ...]) -> None:
    for one in found:
        path = project.folder / one.file
        path.write_text(one.apply(path.read_text(encoding="utf-8")), encoding="utf-8")
    project.commit_all(subject_of(found))


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory, kernel_cache: Path) -> dict[str, list[dict[str, Any]]]:
    """The events of the published page by the subject of their commit."""
    project = new_project(tmp_path_factory.mktemp("planted"))
    copy_into(project.folder)
    uncommitted_harness(project.folder)
    ladder = project.folder / LADDER
    ladder.write_text(trimmed(ladder.read_text(encoding="utf-8")), encoding="utf-8")
    rewrite(project.folder, FEWER)
    conf = project.folder / "asv.conf.json"
    values = json.loads(conf.read_text(encoding="utf-8"))
    conf.write_text(json.dumps(values | {"explained_events": 0}), encoding="utf-8")  # test_pages_event looks at those
    project.commit_all("The rungs as they are")
    for found in COMMITS:
        change(project, found)
    done = project.bench("--no-gate", "--bench", "^(static|access)", "main", only="")
    said = done.stdout
    assert done.returncode == 1, said[-3000:] + done.stderr[-3000:]  # there are regressions
    padding = re.escape(SUBJECTS[PLANTED[0]])
    series = r"\d+ series of .*access\.Transpose\.track_shared_load_wavefronts"
    assert re.search(rf"(?m)^regression, confirmed at \w{{8}} \({padding}\): {series}", said), said
    published = json.loads((project.folder / ".asv/html/data/events.json").read_text())["events"]
    by_subject: dict[str, list[dict[str, Any]]] = {}
    for event in published:
        assert event["first"] == event["last"], event
        by_subject.setdefault(event["last"]["subject"], []).append(event)
    return by_subject


def suite_of(one: Plant) -> str:
    """The suite of the op that a change is in."""
    return "".join(map(str.capitalize, op_of(one).split("_")))


def suite_in(change: dict[str, Any]) -> str:
    return str(change["benchmark"].split(".")[1]).removesuffix("Mix")


def flagged(found: list[dict[str, Any]], one: Plant) -> set[tuple[str, str]]:
    """(rung, series) of the regressions in the op that a change is in."""
    changes = [change for event in found if event["kind"] == "regression" for change in event["changes"]]
    return {
        (change["params"]["rung"].strip("'"), re.sub(r"\.\w+\.", ".", change["benchmark"], count=1))
        for change in changes
        if suite_in(change) == suite_of(one)
    }


@pytest.mark.parametrize("one", PLANTED, ids=lambda one: one.subject)
def test_what_is_planted_is_no_mistake(one: Plant, tmp_path: Path) -> None:
    """The rung is worse, and as right as before."""
    found = gpukernels.rung(op_of(one), one.rung)
    if one.file == LADDER:
        found = dataclasses.replace(found, tile=(16, 16), block=(16, 16))
    else:
        copy = tmp_path / found.source.name
        copy.write_text(one.apply(found.source.read_text(encoding="utf-8")), encoding="utf-8")
        found = dataclasses.replace(found, source=copy)
    here = dataclasses.replace(found, device="cpu")  # the gate then leaves the operands on the host
    for type in [type for type in found.types if type in ("float32", "complex128")]:
        kernel = loaded(load, cuda_source(found, type))
        for extents in gate.shapes(found, None):
            gate.check(kernel, here, type, extents)


@planted_group
@pytest.mark.parametrize("one", PLANTED, ids=lambda one: one.subject)
def test_what_is_planted_is_found(one: Plant, events: dict[str, list[dict[str, Any]]]) -> None:
    found = flagged(events.get(SUBJECTS[one], []), one)
    assert {series for rung, series in found if rung == one.rung} == one.series


@planted_group
@pytest.mark.parametrize("one", [*PLANTED, *HARMLESS], ids=lambda one: one.subject)
def test_nothing_else_is_flagged(one: Plant, events: dict[str, list[dict[str, Any]]]) -> None:
    found = {rung for rung, _ in flagged(events.get(SUBJECTS[one], []), one)}
    beside = {other.rung for other, subject in SUBJECTS.items() if subject == SUBJECTS[one]}
    assert found <= beside | ({"tiled_16"} if "tiled_32" in beside else set())  # they share a file
    assert (one.rung in found) == bool(one.series)


@planted_group
def test_every_event_is_of_a_planted_commit(events: dict[str, list[dict[str, Any]]]) -> None:
    assert set(events) == {SUBJECTS[one] for one in PLANTED if one.series}
    for subject, found in events.items():
        own = {suite_of(one) for one, told in SUBJECTS.items() if told == subject}
        assert {suite_in(change) for event in found for change in event["changes"]} <= own


# --- the recorded history of data/planted --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its repository."""
    base, _ = planted.history()
    known = subprocess.run(["git", "cat-file", "-e", base], cwd=ROOT, capture_output=True, check=False)
    if known.returncode:
        pytest.skip(f"this clone has no commit {base}, which data/planted begins with: it is a shallow one")
    folder = tmp_path_factory.mktemp("recorded") / "repository"
    planted.build(folder)
    return folder


@recorded_group
def test_its_repository_is_the_one_that_was_measured(recorded: Path) -> None:
    measured = {path.name[:8] for path in planted.DATA.glob("results/*/*-checkout-*.json")}
    assert measured == {commit[:8] for commit in planted.commits(recorded)}
    assert len(measured) == 30


@recorded_group
@pytest.mark.parametrize("what", ["results", "links"])
def test_what_was_planted_on_a_gpu_is_flagged_and_nothing_else(
    what: str, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert planted.main(["judge", str(recorded), "--recorded", what]) == 0
    assert "30 commits, 8 of them planted: flagged is exactly what was planted" in capsys.readouterr().out


@recorded_group
def test_a_flag_too_many_or_too_few_is_told(recorded: Path) -> None:
    found = planted.flags(recorded, planted.DATA / "results")
    console = Console(file=io.StringIO())
    assert planted.judge(found, console)
    assert not planted.judge([flag for flag in found if flag.rung != "unrolled"], console)
    harmless = dataclasses.replace(found[0], subject="README: a sentence")
    assert not planted.judge([*found, harmless], console)
    wrong_way = dataclasses.replace(found[0], kind="improvement" if found[0].kind == "regression" else "regression")
    assert not planted.judge([*found, wrong_way], console)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(SystemExit, match="is not empty; name a new folder"):
        planted.build(tmp_path)


def test_exact_figures_join_the_seconds_of_their_commit(tmp_path: Path) -> None:
    stem = "*/08ef6ba0-checkout-*"
    source = next(planted.DATA.glob(f"results/{stem}.json"))
    recorded, fresh = (tmp_path / name / source.parent.name for name in ("recorded", "fresh"))
    for folder in (recorded, fresh):
        folder.mkdir(parents=True)
        for path in (source, source.with_suffix(".facts.jsonl")):
            shutil.copy(path, folder)
        shutil.copy(planted.DATA / "results" / "benchmarks.json", folder.parent)
    whole = json.loads(source.read_text())
    path, sidecar = recorded / source.name, (recorded / source.name).with_suffix(".facts.jsonl")
    timed = {name: row for name, row in whole["results"].items() if "GPU" in name}
    assert 0 < len(timed) < len(whole["results"])
    path.write_text(json.dumps(whole | {"results": timed}))
    lines = sidecar.read_text().splitlines()
    assert len([line for line in lines if json.loads(line)["group"] in ("transpose gpu", "matmul gpu")]) < len(lines)
    sidecar.write_text("".join(f"{line}\n" for line in lines if " gpu" in json.loads(line)["group"]))

    assert planted.add_exact(fresh.parent, recorded.parent) == 1
    assert json.loads(path.read_text()) == whole
    assert sorted(sidecar.read_text().splitlines()) == sorted(lines)
    path.unlink()
    with pytest.raises(SystemExit, match="has no results of the commit 08ef6ba0"):
        planted.add_exact(fresh.parent, recorded.parent)
