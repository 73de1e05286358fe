"""The planted history by links: its commits spread over GPUs, linked, merged and held against their labels."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.project import PROJECT
from kernelwatch.history import links
from kernelwatch.history.links import Link, Session
from kernelwatch.plan.cells import plan
from lab import planted
from lab.gpus import sessions_in
from lab.planted import Change
from tests.repositories import ROOT, SMALL_ENGINE, WORKS, rewrite, small_cache

pytestmark = [pytest.mark.xdist_group("planted_links"), pytest.mark.timeout(600)]
MACHINES = "nvidia-h200.intel-xeon.x86-64.linux", "nvidia-h200.amd-epyc.x86-64.linux"
SIGNS = {"slower": 1, "faster": -1, "": 0}
EXACTLY = "flagged is exactly what was planted"
BLOCKED = "gpukernels/transpose/c_blocked.c"
LOOP = "    for (long long m0 = 0;"
AGAIN = f"    {WORKS}\n    for (volatile int i = 0; i < 1000; ++i, ++optopt)\n{LOOP}"


@pytest.fixture
def known_base() -> None:
    base, _ = planted.history()
    if subprocess.run(["git", "cat-file", "-e", base], cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip(f"this clone has no commit {base}, which data/planted begins with: it is a shallow one")


@pytest.fixture
def built(tmp_path: Path, known_base: None) -> Path:
    folder = tmp_path / "repository"
    planted.build(folder)
    return folder


def session(before: str, after: str, change: Change, gpu: int, at: int) -> Session:
    """What a GPU says of a commit: its rung is slower or faster by 2 %, or nothing is launched otherwise."""
    sign, found = SIGNS[change.effect], []
    cells = [cell for op in planted.CELLS for cell in plan(PROJECT.op(op), "gpu", only=planted.CELLS[op])]
    for cell in (each for each in cells if sign and each.rung == change.rung):
        log = 0.02 * sign
        found.append(Link(cell.key, log, 0.0001, 3, (log,) * 4, (1e-5, 1e-5), (f"{before[:8]}", f"{after[:8]}")))
    conditions = {"gpu": "NVIDIA H200", "nvml_uuid_sha256": f"{gpu:016x}", "nvml_driver": "1", "harness": "2"}
    when = f"2026-11-26T{at:02}:00:00+00:00"
    return Session("step", before, after, when, 1.0, conditions, 3, links=tuple(found))


def test_the_recorded_links_are_of_six_gpus() -> None:
    """The recorded links: all commits, of which six GPUs measured those that change a launch."""
    sessions = sessions_in(planted.DATA / "links")
    of_gpus = {session.gpu for session in sessions if session.gpu}
    assert len(of_gpus) == 6
    assert len({session.after for session in sessions}) == len(planted.history()[1])
    changed = {session.after[:8] for session in sessions if session.changed}
    assert len(changed) == sum(bool(change.effect) for change in planted.history()[1])


def linked(folder: Path, results: Path) -> list[Path]:
    """Sessions of five GPUs, the last of which is in a machine of its own, on all commits but those of the README."""
    listed, changes = planted.commits(folder), planted.history()[1]
    by_gpu = [planted.part_of(listed, at, 5, 1) for at in range(5)]
    saved = []
    for at, change in enumerate(changes):
        gpu = next(gpu for gpu, own in enumerate(by_gpu) if listed[at + 1] in own)
        if not change.file.endswith(".md"):
            machine = results / MACHINES[gpu == 4]
            saved.append(links.save(machine, session(listed[at], listed[at + 1], change, gpu, at % 24)))
    return saved


def test_each_commit_but_the_first_is_in_one_part() -> None:
    listed = [str(at) for at in range(30)]
    parts = [planted.part_of(listed, at, 5, 1) for at in range(5)]
    assert sorted(map(len, parts)) == [5, 6, 6, 6, 6]
    assert sorted(commit for own in parts for commit in own) == sorted(listed[1:])
    assert parts == [planted.part_of(listed, at, 5, 1) for at in range(5)]
    assert parts != [planted.part_of(listed, at, 5, 2) for at in range(5)]
    with pytest.raises(SystemExit):
        planted.main(["link", "anywhere", "--part", "5/5"])


def test_merged_links_of_several_gpus_flag_what_was_planted(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = linked(built, tmp_path / "sent")
    command = ["-m", "kernelwatch", "merge", str(tmp_path / "sent")]
    planted.run(built, sys.executable, *command, PYTHONPATH=str(ROOT))
    assert planted.main(["judge", str(built)]) == 0
    assert EXACTLY in capsys.readouterr().out
    results = built / "results"
    told = [path for path in saved if links.parsed(path.read_text().splitlines()).links]
    assert len(told) == 8
    assert {path.parent.name for path in told} == {*MACHINES}
    lost = random.Random(1).choice(told)
    (results / lost.parent.name / lost.name).unlink()
    assert planted.main(["judge", str(built)]) == 1


def test_a_wrong_flag_of_links_is_told(built: Path) -> None:
    listed, changes = planted.commits(built), planted.history()[1]
    harmless = next(at for at, change in enumerate(changes) if change.subject == "An empty line")
    linked(built, built / "results")
    wrong = Change("", "", "", "", rung="copy", effect="slower")
    links.save(built / "results" / MACHINES[0], session(listed[harmless], listed[harmless + 1], wrong, 0, 23))
    assert planted.main(["judge", str(built)]) == 1


def test_parts_are_linked_and_go_on(
    tmp_path: Path, known_base: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """On the CPU, with a history of its own. The base's table of rungs is older than the harness."""
    changes = [
        Change("A comment", BLOCKED, "tile by tile", "one tile at a time"),
        Change("A thousand times", BLOCKED, LOOP, AGAIN, effect="slower"),
        Change("README: a sentence", "README.md", "Kernels", "The kernels"),
    ]
    base, _ = planted.history()
    monkeypatch.setattr(planted, "history", lambda: (base, changes))
    monkeypatch.setattr(planted, "CELLS", {"transpose": "^transpose/c_blocked float32 256x256 cold$"})
    folder = tmp_path / "repository"
    planted.build(folder)
    small_cache(folder / "kernelwatch")
    for edits in SMALL_ENGINE:  # its clock is exact, so that few turns decide
        rewrite(folder, edits)

    assert planted.main(["link", str(folder), "--limit", "-1"]) == 2
    assert "3 commits are left" in capfd.readouterr().out
    for at in range(2):
        assert planted.main(["link", str(folder), "--part", f"{at}/2", "--budget", "20"]) == 0
    told = capfd.readouterr().out
    assert "worse: transpose/c_blocked float32 256x256 cold" in told
    before = sorted((folder / "results").rglob("*"))
    assert planted.main(["link", str(folder), "--budget", "1"]) == 0
    assert "c_blocked" not in capfd.readouterr().out
    assert sorted((folder / "results").rglob("*")) == before
    (flag,) = planted.flags(folder)
    assert (flag.kind, flag.subject, flag.rung) == ("regression", "A thousand times", "c_blocked")
    assert flag.change > 10
