"""Link commits in a repository: only what changed is measured, in turns, and the pages tell it."""

import itertools
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from benchmarks.project import PROJECT
from kernelwatch.comparison import linking
from kernelwatch.comparison.changes import Changes
from kernelwatch.detect.judging import judge
from kernelwatch.history import links
from kernelwatch.history.links import Session
from kernelwatch.plan.cells import Cell
from tests.repositories import FEWEST_TURNS, SMALL_ENGINE, copy_into, new_project, rewrite
from tests.sums_of_rows import FAST, KERNEL, OTHER, OTHER_KERNEL, PLAIN, Rows

BOTH = 'KERNELS = {"row_sum": {"plain": "rows.sums:plain", "other": "rows.more:other"}}\n'
SLOWER = KERNEL.format(times=1000)  # so much that it shows on a busy machine, too
DIVIDE = "\n--- the next run ---\n"
CELL = "row_sum/plain float32 256x256 cold"
pytestmark = pytest.mark.xdist_group("links")  # one process makes the repository


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory, small_engine: Path) -> tuple[Rows, dict[str, str], str]:
    """A repository whose commits are linked: its commits by what they do, and what the command printed."""
    base = tmp_path_factory.mktemp("linked")
    project = new_project(base, "rows")
    rows = Rows(project.folder, project.home, small_engine)
    rows.describe(PLAIN + OTHER, shapes="(256, 256)")
    rows.write_files({"rows/__init__.py": BOTH, "rows/sums.py": FAST, "rows/more.py": OTHER_KERNEL})
    commits = {"first": rows.commit_all("first")}
    begun = rows.kernelwatch("bench", code=0)
    for name, files in {
        "slower": {"rows/sums.py": SLOWER},
        "prose": {"README.md": "Sums of rows.\n"},
        "reverted": {"rows/sums.py": FAST},
        "broken": {"rows/sums.py": "def plain(a, out):\n    out[:] = 0\n"},
    }.items():
        rows.write_files(files)
        commits[name] = rows.commit_all(name)
    told = rows.kernelwatch("bench", f"{commits['first']}..HEAD", code=2)
    return rows, commits, f"{begun}{DIVIDE}{told}"


def sessions(rows: Rows) -> dict[str, Session]:
    (folder,) = (rows.folder / "results").glob("*/")
    found, messages = links.read(folder)
    assert not messages
    return {session.after: session for session in found}


def published(rows: Rows, name: str) -> Any:
    return json.loads((rows.folder / ".asv" / "html" / "data" / f"{name}.json").read_text())


def test_only_what_a_commit_changed_is_measured(linked: tuple[Rows, dict[str, str], str]) -> None:
    rows, commits, told = linked
    known = sessions(rows)
    assert set(known) == {commits[name] for name in ("slower", "reverted", "broken")}  # prose changes no launch
    for name in ("slower", "reverted"):
        session = known[commits[name]]
        assert [link.cell for link in session.changed] == [CELL]
        assert session.same == 1  # the other rung, by its sources
        assert [link.control for link in session.links] == [False, True]
    assert f"worse: {CELL}" in told
    assert f"better: {CELL}" in told


def test_a_machine_has_one_full_run_and_then_links(linked: tuple[Rows, dict[str, str], str]) -> None:
    rows, commits, told = linked
    (folder,) = (rows.folder / "results").glob("*/")
    assert [path.name[:8] for path in folder.glob("*-checkout-*.json")] == [commits["first"][:8]]
    begun, later = told.split(DIVIDE)
    assert begun.startswith(f"no full run on {folder.name} yet: one of {commits['first'][:8]} comes first\n")
    assert "1 new of 1 commits in " in begun
    assert "nothing to link: no commit of HEAD^! has a parent here" in begun
    assert "full run" not in later
    assert f"{commits['slower'][:7]} slower: 1 linked, 1 the same" in later


def test_a_link_holds_what_was_measured(linked: tuple[Rows, dict[str, str], str]) -> None:
    rows, commits, _ = linked
    session = sessions(rows)[commits["slower"]]
    (link,) = session.changed
    assert session.before == commits["first"]
    assert len(link.logs) == 2  # exact, as the clock is: the first look decides
    assert link.log > 1
    assert link.seconds[1] > 3 * link.seconds[0]
    old, new = link.identities
    assert old != new
    assert all((old, new))
    assert session.conditions["harness"]
    assert session.seconds > 0


def test_what_is_wrong_is_no_link(linked: tuple[Rows, dict[str, str], str]) -> None:
    rows, commits, told = linked
    session = sessions(rows)[commits["broken"]]
    assert not session.changed
    assert "elements wrong" in session.unjudged[CELL]
    assert f"not measured: {CELL}: failed" in told


def test_the_pages_tell_what_links_found(linked: tuple[Rows, dict[str, str], str]) -> None:
    rows, commits, _ = linked
    events = published(rows, "events")
    told = {(event["kind"], event["last"]["hash"]): event for event in events["events"]}
    assert set(told) == {("regression", commits["slower"]), ("improvement", commits["reverted"])}
    (slower,) = told["regression", commits["slower"]]["changes"]
    assert slower["linked"]
    assert slower["ended"] == {"commit": commits["reverted"], "how": "undone"}
    assert slower["verdict"]["word"] == "confirmed"
    assert slower["verdict"]["change"] == slower["change"]
    (reach,) = events["links"]
    assert (reach["first"], reach["newest"]) == (commits["first"], commits["broken"])
    assert (reach["asked"], reach["links"], reach["missing"], reach["later"]) == (3, 2, [], 0)
    ((why, count),) = reach["unjudged"]
    assert count == 1
    assert "elements wrong" in why
    data = published(rows, f"links/{reach['machine']}")
    launches = data["cells"][CELL]["launches"]
    assert [launch["word"] for launch in launches] == ["", "worse", "better", "cannot tell"]
    assert launches[2]["log"] == pytest.approx(0, abs=1e-4)  # the launch is back, whatever its own link measured
    assert launches[3]["piece"] == 3
    assert "elements wrong" in launches[3]["why"]


@pytest.mark.parametrize("command", [("link", "--no-publish"), ("bench",)])
def test_the_same_command_goes_on_where_it_stopped(
    linked: tuple[Rows, dict[str, str], str], command: tuple[str, ...]
) -> None:
    rows, commits, _ = linked
    (rows.folder / "rows" / "sums.py").write_text("not committed")
    told = rows.kernelwatch(*command, f"{commits['first']}..HEAD", code=2)  # a launch is still wrong
    rows.git("checkout", "-q", ".")
    assert "3 of 3 commits are linked already" in told
    assert f"not measured: {CELL}: failed: " in told
    note = "note: uncommitted changes are not measured, such as of rows/sums.py (--worktree measures them)"
    assert (note in told) is (command == ("bench",))


def test_a_damaged_session_is_named_and_not_half_believed(
    linked: tuple[Rows, dict[str, str], str], tmp_path: Path
) -> None:
    rows, commits, _ = linked
    (folder,) = (rows.folder / "results").glob("*/")
    for name in ("cut", "hostile"):
        shutil.copytree(folder, tmp_path / name)
    (path,) = (tmp_path / "cut").glob(f"{commits['slower'][:8]}.*")
    whole = path.read_text()
    path.write_text(whole[:-100])
    found, (message,) = links.read(tmp_path / "cut")
    assert commits["slower"] not in {session.after for session in found}
    assert str(path) in message
    path.write_text(whole.partition("\n")[0] + "\n")  # cut at the end of a line: each of its lines is one
    found, (message,) = links.read(tmp_path / "cut")
    assert commits["slower"] not in {session.after for session in found}
    assert f"{path}: it is not read: ValueError: it was changed or cut" in message
    (path,) = (tmp_path / "hostile").glob(f"{commits['slower'][:8]}.*")
    text = path.read_text()
    for bad in (text.replace('"log": ', '"log": 1e999, "old": '), text.replace('"cell": "', '"cell": 1, "old": "')):
        path.write_text(bad)
        (message,) = links.read(tmp_path / "hostile")[1]
        assert "changed or cut" not in message, bad[:200]  # it is found by what it says, and not by its name alone


HOSTILE: dict[str, tuple[str, str]] = {
    "a number that is none": ('"log": ', '"log": NaN, "old": '),
    "a number without an end": ('"log": ', '"log": 1e999, "old": '),
    "a number of 400 digits": ('"log": ', '"log": 1' + "0" * 400 + ', "old": '),
    "a ratio of e to the 1e300": ('"log": ', '"log": 1e300, "old": '),
    "an error of 1e300": ('"error": ', '"error": 1e300, "old": '),
    "negative seconds": ('"seconds": [', '"seconds": [-1, 1], "old": ['),
    "no pair": ('"seconds": [', '"seconds": [1], "old": ['),
    "a cell that is a number": ('"cell": "', '"cell": 1, "old": "'),
    "an option of git": ('"before": "', '"before": "--upload-pack=touch x", "old": "'),
    "conditions of another type": ('"nvml_driver": ', '"nvml_driver": {"a": []}, "old": '),
    "an environment of another type": ('"conditions": {', '"conditions": {"environment": [], '),
    "letters for a list": ('"new": ', '"new": "row_sum", "old": '),
    "a ratio without turns": ('"logs": ', '"logs": [], "old": '),
    "a device that is none": ('"device": "', '"device": "tpu", "old": "'),
    "a depth of 100,000": ('"unjudged": ', '"deep": ' + "[" * 100_000 + ', "unjudged": '),
    "an empty file": ("", ""),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_session_is_named_and_left_out(
    linked: tuple[Rows, dict[str, str], str], tmp_path: Path, how: str
) -> None:
    rows, commits, _ = linked
    (path,) = (rows.folder / "results").glob(f"*/{commits['slower'][:8]}.*")
    text, (old, new) = path.read_text(), HOSTILE[how]
    assert old in text
    (tmp_path / path.name).write_text(text.replace(old, new, 1) if old else "")
    found, (message,) = links.read(tmp_path)
    assert not found
    assert path.name in message
    assert "changed or cut" not in message  # it is found by what it says, and not by its name alone


def test_a_session_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"fifo{links.SUFFIX}")
    (tmp_path / f"loop{links.SUFFIX}").symlink_to(f"loop{links.SUFFIX}")
    (tmp_path / f"folder{links.SUFFIX}").mkdir()
    with (tmp_path / f"huge{links.SUFFIX}").open("wb") as file:
        file.truncate(2**40)
    found, messages = links.read(tmp_path)
    assert not found
    assert len(messages) == 4


def test_two_links_of_one_cell_are_no_session(linked: tuple[Rows, dict[str, str], str], tmp_path: Path) -> None:
    rows, commits, _ = linked
    (path,) = (rows.folder / "results").glob(f"*/{commits['slower'][:8]}.*")
    lines = path.read_text().splitlines()
    (tmp_path / path.name).write_text("\n".join([*lines, lines[1]]))
    found, (message,) = links.read(tmp_path)
    assert not found
    assert "a cell that has two links" in message


def test_one_measurement_counts_once_however_it_is_written(tmp_path: Path) -> None:
    """Two people keep one session with more and with fewer digits. Together they would be surer than the turns are."""
    conditions = {"gpu": "H200", "nvml_uuid_sha256": "a"}
    link = links.Link(CELL, 0.0075123, 0.0004, 3, (0.0071001, 0.0078), (1e-5, 1e-5), device="gpu")
    session = Session("step", "a" * 40, "b" * 40, "2026-11-28T00:00:00+00:00", 2.0, conditions, 3, links=(link,))
    links.save(tmp_path, session)
    links.save(tmp_path, replace(session, links=(replace(link, log=0.0075, logs=(0.0071, 0.0078)),)))
    found, (message,) = links.read(tmp_path)
    assert len(found) == 1
    assert "once more" in message
    for other in (replace(session, at="2026-11-28T00:00:09+00:00"), replace(session, conditions={"gpu": "H200"})):
        links.save(tmp_path, other)
    links.save(tmp_path, replace(session, links=(), same=4))
    assert len(links.read(tmp_path)[0]) == 4


def test_what_is_due_to_be_compared_with_its_anchor() -> None:
    from kernelwatch.comparison.linking import EVERY, anchors_of
    from tests.test_chain import COMMITS, a_link, a_session

    due = {COMMITS[0]: ["op/rung float32 64x64 cold"]}
    steps = [a_session(at, at + 1, a_link(0.001)) for at in range(EVERY + 2)]
    last = steps[EVERY - 1]
    assert anchors_of(steps[EVERY - 2], steps[: EVERY - 2], COMMITS[: EVERY - 1]) == {}
    assert anchors_of(last, steps[: EVERY - 1], COMMITS[:EVERY]) == due
    assert anchors_of(last, steps[: EVERY - 1][::-1], COMMITS[:EVERY]) == due  # however late the first ones were linked
    twice = [steps[EVERY - 2]] * EVERY
    assert anchors_of(last, twice, COMMITS[:EVERY]) == {}  # one step, again and again
    assert anchors_of(last, steps[: EVERY - 1], COMMITS[5:EVERY]) == {}  # steps of another branch
    anchored = [*steps[:EVERY], a_session(0, EVERY, a_link(0.01), kind="anchor")]
    assert anchors_of(steps[EVERY], anchored, COMMITS[: EVERY + 1]) == {}


def test_links_that_end_in_any_order_have_the_same_anchors() -> None:
    """As on a fleet, which plans them when all links are there."""
    from kernelwatch.comparison.linking import EVERY, planned
    from tests.test_chain import COMMITS, a_link, a_session

    steps = [a_session(at, at + 1, a_link(0.001)) for at in range(2 * EVERY + 1)]
    due = planned(steps, steps[::-1], lambda commit: COMMITS[: COMMITS.index(commit) + 1])
    found = [(one.kind, one.before, one.after, [link.cell for link in one.changed]) for one in due]
    ends = [COMMITS[at] for at in (0, EVERY, 2 * EVERY)]
    assert found == [("anchor", before, after, [steps[0].links[0].cell]) for before, after in itertools.pairwise(ends)]


def test_a_commit_beyond_its_time_takes_two_turns_of_what_is_unchanged(tmp_path: Path) -> None:
    """Measured with the turns of the engine itself, by a clock that is exact."""
    engine = tmp_path / "engine"
    engine.mkdir()
    copy_into(engine, ["kernelwatch"])
    for edits in SMALL_ENGINE:
        if edits is not FEWEST_TURNS:
            rewrite(engine, edits)
    project = new_project(tmp_path, "rows")
    rows = Rows(project.folder, project.home, engine)
    rows.describe(PLAIN + OTHER, shapes="(64, 64), (64, 128), (128, 64), (128, 128)")
    rows.write_files({"rows/__init__.py": BOTH, "rows/sums.py": FAST, "rows/more.py": OTHER_KERNEL})
    rows.commit_all("first")
    slower = OTHER_KERNEL.replace("    np", "    for _ in range(100):\n        np")
    rows.write_files({"rows/sums.py": FAST.replace("TIMES = 4", "TIMES = 2 + 2"), "rows/more.py": slower})
    after = rows.commit_all("one is slower")
    for budget, turns in (("1e-3", 2), ("3600", 4)):
        rows.kernelwatch("link", "--budget", budget, "--no-publish", code=1)
        session = sessions(rows)[after]
        taken = {link.cell.partition(" ")[0]: len(link.logs) for link in session.links}
        words = {cell.partition(" ")[0]: judged.word for cell, judged in judge(session).items()}
        assert len(session.links) == 8
        assert taken == {"row_sum/plain": turns, "row_sum/other": 4}
        assert words == {"row_sum/plain": "no change", "row_sum/other": "worse"}
        shutil.rmtree(rows.folder / "results")


@pytest.mark.parametrize("is_known", [True, False])
def test_a_function_that_launches_the_same_is_not_timed(monkeypatch: pytest.MonkeyPatch, is_known: bool) -> None:
    """Sources differ, but of all cells only the first is launched otherwise. What is not known is measured."""
    asked = linking.asked_of(PROJECT, "^transpose/triton ", ["gpu"])
    first = asked[0].key

    def launches(project: object, asked: dict[str, list[Cell]]) -> dict[str, dict[str, str]]:
        def of(folder: str, cells: list[Cell]) -> dict[str, str]:
            return {cell.key: folder if cell.key == first else "the same" for cell in cells} if is_known else {}

        return {folder: of(folder, cells) for folder, cells in asked.items()}

    monkeypatch.setattr(linking, "launches", launches)
    made = Mock(changes=lambda *_: Changes(launched={"transpose/triton": ("triton.py",)}), of=str)
    one = linking.step(PROJECT, "before", "after", made, asked)
    assert len(asked) > 1
    assert [cell.key for cell in one.cells] == ([first] if is_known else [cell.key for cell in asked])
    assert one.alike == (len(asked) - 1 if is_known else 0)
    assert one.launches.get(first) == (("before", "after") if is_known else None)


@pytest.mark.parametrize(
    ("plain", "changed", "measured"),
    [
        ("padded.cu", {"compiled": {"transpose/padded": ("padded.cu",)}}, 0),
        ("", {"compiled": {"transpose/padded": ("padded.cu",)}}, 1),
        ("padded.cu", {"compiled": {"transpose/padded": ("helper.cu",)}}, 1),
        ("padded.cu", {"compiled": {"transpose/padded": ("helper.cu", "padded.cu")}}, 1),
        ("padded.cu", {"launched": {"transpose/padded": ("kernel.py",)}}, 1),
    ],
)
def test_a_comment_in_the_source_of_a_plain_launch_is_measured_in_no_cell(
    monkeypatch: pytest.MonkeyPatch, plain: str, changed: dict[str, Any], measured: int
) -> None:
    """Where the host's code differs, or prepares a launch, or another source does, more may differ than the binary."""
    asked = linking.asked_of(PROJECT, "^transpose/padded ", ["gpu"])
    types = {cell.type for cell in asked}
    binaries = {("transpose/padded", type): linking.Binary("the same", 256, 0, plain) for type in types}
    monkeypatch.setattr(linking, "_binaries", lambda *_: binaries)
    made = Mock(changes=lambda *_: Changes(**changed), of=str)
    one = linking.step(PROJECT, "before", "after", made, asked)
    assert len(one.cells) == measured
    assert one.alike == (0 if measured else len(asked))
    assert one.represented == (len(asked) - 1 if measured else 0)

    other = {place: replace(binary, sha256="another") for place, binary in binaries.items()}
    sides = iter((binaries, other))
    monkeypatch.setattr(linking, "_binaries", lambda *_: next(sides))
    assert len(linking.step(PROJECT, "before", "after", made, asked).cells) == len(asked)


def test_a_comment_in_a_kernel_is_measured_if_a_launch_is_prepared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Compiled for a GPU that is not here, and read from two trees."""
    root = Path(__file__).resolve().parent.parent
    trees = [tmp_path / name for name in ("before", "after")]
    for tree in trees:
        for name in ("gpukernels", "benchmarks"):
            shutil.copytree(root / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for source in ("transpose/padded.cu", "matmul/texture.cu"):
        with (trees[1] / "gpukernels" / source).open("a") as file:
            file.write("// a comment\n")
    monkeypatch.setattr(linking, "architecture", lambda: "sm_90")
    asked = linking.asked_of(PROJECT, "^(transpose/padded|matmul/texture) float32 ", ["gpu"])
    made = linking.Trees(PROJECT, tmp_path, {tree.name: str(tree) for tree in trees})
    one = linking.step(PROJECT, "before", "after", made, asked)
    assert set(one.differ.compiled) == {"transpose/padded", "matmul/texture"}
    assert [cell.name for cell in one.cells] == ["matmul/texture"]  # the binary is the same, its .py makes the launch
    assert one.alike == sum(cell.name == "transpose/padded" for cell in asked)
