"""What a call of link asks, leaves and goes on with: branches, rungs that are gone, broken commits, no GPU."""

import io
import shlex
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from benchmarks.project import PROJECT
from kernelwatch.asv.machine_names import machine_name
from kernelwatch.commands.link import code_of, foretold, show, standing_of
from kernelwatch.comparison import changes, linking
from kernelwatch.detect.chain import chains
from kernelwatch.history import links
from kernelwatch.history.links import NOT_HERE, Link, Session
from kernelwatch.history.returned import UNCOMPARED
from kernelwatch.plan.project import load
from kernelwatch.publish.lines import Line
from kernelwatch.publish.linked import failing as failing_of
from kernelwatch.publish.linked import lost
from kernelwatch.publish.linked import reach as reach_of
from kernelwatch.run import processes
from kernelwatch.system import cache
from kernelwatch.system.errors import CANNOT
from tests.repositories import new_project, rewrite, without_modules
from tests.sums_of_rows import FAST, KERNEL, OTHER, OTHER_KERNEL, PLAIN, SLOW, Rows
from tests.test_chain import COMMITS, a_link, a_session
from tests.test_links import BOTH, CELL, published


def new_rows(base: Path, engine: Path) -> Rows:
    """A repository with two rungs and one commit."""
    project = new_project(base, "rows")
    rows = Rows(project.folder, project.home, engine)
    rows.describe(PLAIN + OTHER, shapes="(256, 256), (300, 300)")
    rows.write_files({"rows/__init__.py": BOTH, "rows/sums.py": FAST, "rows/more.py": OTHER_KERNEL})
    rows.commit_all("first")
    return rows


def sessions(rows: Rows) -> list[Session]:
    found, messages = links.read(next((rows.folder / "results").glob("*/")))
    assert not messages
    return found


def changed(rows: Rows, message: str, **files: str) -> str:
    rows.write_files({name.replace("__", "/", 1) + ".py": text for name, text in files.items()})
    return rows.commit_all(message)


def test_a_second_call_links_what_the_first_left(tmp_path: Path, small_engine: Path) -> None:
    rows = new_rows(tmp_path, small_engine)
    after = changed(rows, "slower", rows__sums=SLOW)
    quick = ("--no-publish", "--budget", "1")
    rows.kernelwatch("link", "--only", "row_sum/other", *quick, code=0)
    (left,) = sessions(rows)
    assert left.unjudged == {"row_sum/plain": "it was not asked for"}
    rows.kernelwatch("link", "--only", "row_sum/other", *quick, code=0)
    assert len(sessions(rows)) == 1  # nothing further of this rung
    told = rows.kernelwatch("link", "--shape", "300x300", *quick)
    assert "1 linked, 1 the same, 1 not asked for, " in told
    assert "not measured" not in told  # which is what went wrong, of what was asked for
    told = rows.kernelwatch("link", "--no-publish", "--budget", "1")
    assert "1 linked" in told
    asked = sorted([link.cell for link in each.changed] for each in sessions(rows))  # some within one second
    assert asked == [[], [CELL], [CELL.replace("256x256", "300x300")]]
    assert {each.after for each in sessions(rows)} == {after}
    told = rows.kernelwatch("link", *quick, code=1)  # what is linked already is no better for that
    assert "1 of 1 commits are linked already" in told
    assert told.count(f"worse: {CELL}") == 1
    rows.kernelwatch("link", "--only", "row_sum/other", *quick, code=0)
    told = rows.kernelwatch("link", "--only", "nothing", code=128)
    assert "no cell" in told


FAR = 'Rung("far", "gpu", ("float32",)),'
THREE = BOTH.replace("}}", ', "far": "rows.far:far"}}')
FAR_KERNEL = """
def far(a, out):
    out[:] = a.sum(axis=1) * {factor}
"""


def test_without_a_gpu_nothing_of_one_is_linked_and_another_machine_goes_on(tmp_path: Path, small_engine: Path) -> None:
    rows = new_rows(tmp_path, small_engine)
    rows.describe(PLAIN + OTHER + FAR, shapes="(256, 256)")
    rows.write_files({"rows/__init__.py": THREE, "rows/far.py": FAR_KERNEL.format(factor=1)})
    rows.commit_all("a rung for a GPU")
    changed(rows, "it changes", rows__far=FAR_KERNEL.format(factor="1.0"))
    told = rows.kernelwatch("link", "--no-publish", code=2)
    assert "not measured: row_sum/far: there is no GPU here" in told
    assert "\nnote: without a GPU, `bench --all` records the exact figures of a commit\n" in told
    assert not [*(rows.folder / "results").glob("*/*.links.jsonl")]
    full = rows.folder / "results" / machine_name() / f"{rows.git('rev-parse', 'HEAD')[:8]}-checkout-x.json"
    full.parent.mkdir(parents=True)
    full.touch()
    assert "note: " not in rows.kernelwatch("link", "--no-publish", code=2)  # it has a full run
    full.unlink()
    changed(rows, "both change", rows__far=FAR_KERNEL.format(factor="+1.0"), rows__sums=SLOW)
    for linked, count in (("1 linked", 1), ("0 linked", 1)):  # the second time nothing further can be measured
        told = rows.kernelwatch("link", "--no-publish", "--budget", "1")
        assert linked in told
        assert "there is no GPU here" in told
        assert len(sessions(rows)) == count
    assert sessions(rows)[0].unjudged == {"row_sum/far": "there is no GPU here"}
    assert sessions(rows)[0].gpu  # the name of the CPU, which measured it


READS = """
from pathlib import Path

import numpy as np

TIMES = int((Path(__file__).parents[1] / "times.md").read_text())


def plain(a, out):
    for _ in range(TIMES):
        np.sum(a, axis=1, out=out)
"""


def test_a_commit_of_prose_that_a_kernel_reads_is_asked(tmp_path: Path, small_engine: Path) -> None:
    """It is not the newest of its range, which is always asked."""
    rows = new_rows(tmp_path, small_engine)
    rows.write_files({"times.md": "4"})
    first = changed(rows, "a number in prose", rows__sums=READS)
    rows.write_files({"times.md": "100"})
    slower = rows.commit_all("slower")
    rows.write_files({"README.md": "Sums of rows."})
    rows.commit_all("prose")
    told = rows.kernelwatch("link", f"{first}..HEAD", "--shape", "256x256", "--no-publish", "--budget", "1", code=1)
    assert f"worse: {CELL}" in told
    assert [each.after for each in sessions(rows) if each.changed] == [slower]


def test_branches_roots_and_nonsense(tmp_path: Path, small_engine: Path) -> None:
    rows = new_rows(tmp_path, small_engine)
    quick = ("--no-publish", "--budget", "1")
    told = rows.kernelwatch("link", *quick, code=0)
    assert "nothing to link: no commit of HEAD^!" in told
    rows.git("checkout", "-q", "-b", "feature")
    slower = changed(rows, "slower", rows__sums=SLOW)
    rows.git("checkout", "-q", "main")
    own = changed(rows, "own", rows__more=OTHER_KERNEL.replace("ij->i", "ab->a"))
    rows.git("merge", "-q", "--no-ff", "-m", "merged", "feature")
    merge = rows.git("rev-parse", "HEAD").strip()
    rows.git("tag", "-a", "v1", "-m", "v1")
    assert "linked" in rows.kernelwatch("link", "main~1..feature", *quick)
    assert sessions(rows)[0].after == slower
    assert "merged" in rows.kernelwatch("link", "v1", *quick)
    (merged,) = (each for each in sessions(rows) if each.after == merge)
    assert merged.before == own
    assert [link.cell.partition(" ")[0] for link in merged.changed] == ["row_sum/plain"] * 2
    for range in ("nonsense", "nonsense..HEAD", "HEAD^{tree}", "--all"):
        told = rows.kernelwatch("link", range, *quick)
        assert "Traceback" not in told
        assert "kernelwatch link: " in told
    for command in ("link", "bench", f"versus --find '{CELL}'"):
        for range, why in (("HEAD..main~1", "ends before it begins"), ("HEAD..v1", "begins and ends at one commit")):
            told = rows.kernelwatch(*shlex.split(command), range, code=CANNOT)
            assert told.endswith(f": no commits in {range}: it {why}\n")
    told = rows.kernelwatch("link", "--path", "rows/summs.py", *quick, code=CANNOT)
    assert "has the file or folder rows/summs.py (--path)" in told
    shallow = tmp_path / "shallow"
    rows.git("clone", "-q", "--depth", "1", f"file://{rows.folder}", str(shallow))
    there = Rows(shallow, rows.home, rows.engine)
    told = there.kernelwatch("link", "--no-publish", code=2)  # nobody knows what it changed
    assert "nothing to link" in told
    assert "shallow" in told


def test_what_is_renamed_broken_or_back(tmp_path: Path, small_engine: Path) -> None:
    rows = new_rows(tmp_path, small_engine)
    quick = ("--no-publish", "--budget", "1")
    first = rows.git("rev-parse", "HEAD").strip()
    broken = changed(rows, "broken", rows____init__="raise RuntimeError('no')\n")
    mended = changed(rows, "mended", rows____init__=BOTH)
    told = rows.kernelwatch("link", f"{first}..HEAD", *quick, "--limit", "1e-9", code=2)
    assert "commits are left" in told  # and of these nothing is known
    told = rows.kernelwatch("link", f"{first}..HEAD", *quick, code=2)
    assert "RuntimeError" in told
    by_commit = {each.after: each for each in sessions(rows) if each.before != first or each.after == broken}
    (across,) = (each for each in sessions(rows) if each.before == first and each.after == mended)
    assert (across.links, across.same) == ((), 2)  # it is what it was before it was broken
    assert [*by_commit[broken].unjudged] == [broken[:8]]
    assert by_commit[broken].unjudged[broken[:8]].startswith("failed: rows cannot be imported: RuntimeError: no")
    assert by_commit[mended].unjudged == {broken[:8]: by_commit[broken].unjudged[broken[:8]].removeprefix("failed: ")}
    steps, line = [by_commit[broken], by_commit[mended]], {first: 0, broken: 1, mended: 2}
    assert [each["hash"] for each in failing_of(steps[:1], line)] == [broken]
    assert not failing_of(steps, line)
    assert reach_of("m", sessions(rows), [], Line("main", [*line]), [], None)["unjudged"] == []
    gone = changed(rows, "gone", rows____init__=BOTH.replace('"other": "rows.more:other"', ""))
    assert "gone: row_sum/other float32 256x256 cold" in rows.kernelwatch("link", *quick, code=2)
    again = changed(rows, "back", rows____init__=BOTH)
    rows.kernelwatch("link", f"{mended}..HEAD", *quick, code=0)
    by_commit = {each.after: each for each in sessions(rows) if each.before != mended or each.after == gone}
    assert {cell.partition(" ")[0] for cell in by_commit[gone].gone} == {"row_sum/other"}
    assert {cell.partition(" ")[0] for cell in by_commit[again].new} == {"row_sum/other"}
    only = ("--only", "row_sum/plain")
    rows.kernelwatch("link", f"{mended}..{gone}", *only, *quick, code=0)  # what is gone was not asked for
    rows.kernelwatch("link", f"{mended}..{gone}", "--again", *only, *quick, code=0)
    changed(rows, "gone again", rows____init__=BOTH.replace('"other": "rows.more:other"', ""))
    rows.kernelwatch("link", f"{mended}..HEAD", *quick, code=2)


def test_what_is_back_is_compared_whoever_measured_that_it_was_gone(tmp_path: Path, small_engine: Path) -> None:
    """Two people each link a commit: the one that removed a rung, and the one that brought it back."""
    rows = new_rows(tmp_path, small_engine)
    quick = ("--no-publish", "--budget", "1")
    first = rows.git("rev-parse", "HEAD").strip()
    gone = changed(rows, "gone", rows____init__=BOTH.replace('"other": "rows.more:other"', ""))
    rows.kernelwatch("link", *quick, code=2)
    shutil.move(rows.folder / "results", tmp_path / "theirs")
    back = changed(rows, "back", rows____init__=BOTH)
    rows.kernelwatch("link", *quick, code=0)
    rows.kernelwatch("merge", str(tmp_path / "theirs"), code=0)
    rows.kernelwatch("link", "--only", "row_sum/plain", code=0)
    (reach,) = published(rows, "events")["links"]
    assert [UNCOMPARED, 1] in [[why, min(count, 1)] for why, count in reach["unjudged"]]
    assert reach["gone"] == []
    rows.kernelwatch("link", *quick, code=0)
    (across,) = (each for each in sessions(rows) if (each.before, each.after) == (first, back))
    assert across.links or across.same
    before = {each.at for each in sessions(rows)}
    rows.kernelwatch("link", f"{gone}..HEAD", code=0)
    assert {each.at for each in sessions(rows)} == before
    (reach,) = published(rows, "events")["links"]
    assert UNCOMPARED not in dict(reach["unjudged"])


def test_links_that_compare_nothing_are_not_green(tmp_path: Path, small_engine: Path) -> None:
    """Neither commit has the package."""
    rows = new_rows(tmp_path, small_engine)
    rows.git("rm", "-q", "-r", "rows")
    rows.commit_all("no package")
    changed(rows, "nor here", others____init__="")
    rows.write_files({"rows/__init__.py": BOTH, "rows/sums.py": FAST, "rows/more.py": OTHER_KERNEL})  # not committed
    told = rows.kernelwatch("link", code=2)
    assert "0 linked, 0 the same" in told
    assert "nothing could be compared" in told
    (reach,) = published(rows, "events")["links"]
    assert (reach["compared"], reach["gone"]) == (False, [])
    gone = rows.git("rev-parse", "HEAD~1")
    rows.kernelwatch("link", "HEAD~2..HEAD", code=2)
    (reach,) = published(rows, "events")["links"]
    assert reach["compared"]
    assert [(each["cell"], each["hash"]) for each in reach["gone"]] == [
        ("row_sum/plain", gone),
        ("row_sum/other", gone),
    ]


def test_what_is_described_no_more_is_not_missed(tmp_path: Path, small_engine: Path) -> None:
    rows = new_rows(tmp_path, small_engine)
    cells = ("row_sum/plain float32 300x300 cold", "row_sum/plain float32 64x64 cold", "row_sum/old")
    session = a_session(3, 4, gone=cells)
    positions = {session.before: 0, session.after: 1}
    with without_modules("benchmarks"):
        assert [each["cell"] for each in lost([session], positions, load(rows.folder))] == [cells[0]]


@pytest.mark.parametrize("first", ["py3.11", "py3.12"])
def test_what_another_environment_has_may_be_gone(first: str) -> None:
    has = a_session(3, 4, a_link(0.0), conditions={"environment": "py3.11"})
    lacks = a_session(3, 4, gone=(a_link(0.0).cell,), conditions={"environment": "py3.12"})
    sessions = [has, lacks] if first == "py3.11" else [lacks, has]
    assert (code_of([has]), code_of(sessions)) == (0, 2)


def test_pages_without_any_full_run(tmp_path: Path, small_engine: Path) -> None:
    rows = new_rows(tmp_path, small_engine)
    after = changed(rows, "slower", rows__sums=SLOW)
    rows.kernelwatch("link", "--budget", "1", code=1)
    events = published(rows, "events")
    (event,) = events["events"]
    assert event["last"]["hash"] == after
    assert event["verdict"] == "confirmed"
    assert {change["cell"].partition(" ")[0] for change in event["changes"]} == {"row_sum/plain"}
    assert published(rows, "site")["machines"] == []
    (reach,) = events["links"]
    assert (reach["asked"], reach["links"]) == (1, 2)
    (reach,) = events["links"]
    assert [each["name"] for each in reach["since"]] == ["first", "commit"]
    changed(rows, "not asked", rows__sums=FAST)
    rows.kernelwatch("link", "HEAD~2", code=0)  # a root has nothing to link: it only publishes
    (reach,) = published(rows, "events")["links"]
    assert reach["later"] == 1
    assert [each["name"] for each in reach["since"]] == ["first"]  # nobody knows what the newest commit changed


def test_a_branch_that_is_not_configured_has_its_links_and_events(tmp_path: Path, small_engine: Path) -> None:
    rows = new_rows(tmp_path, small_engine)
    changed(rows, "faster", rows__sums=FAST.replace("4", "3"))
    rows.git("checkout", "-q", "-b", "feature")
    slower = changed(rows, "slower", rows__sums=SLOW)
    rows.git("checkout", "-q", "main")
    rows.kernelwatch("link", "main..feature", "--budget", "1", code=1)
    rows.kernelwatch("bench", "main..feature", code=1)  # not green because another call measured it
    events = published(rows, "events")
    (event,) = events["events"]
    assert (event["last"]["hash"], event["branch"], event["configured"]) == (slower, "feature", False)
    (reach,) = events["links"]
    assert (reach["branch"], reach["newest"], reach["asked"], reach["later"]) == ("feature", slower, 1, 0)


def test_a_launch_that_is_due_is_compared_with_its_anchor(tmp_path: Path, small_engine: Path) -> None:
    """With an engine that asks for an anchor at every second link."""
    engine = shutil.copytree(small_engine, tmp_path / "engine")
    rewrite(engine, {"kernelwatch/comparison/linking.py": {"EVERY = 10": "EVERY = 2"}})
    rows = new_rows(tmp_path, engine)
    first = rows.git("rev-parse", "HEAD")
    changed(rows, "slower", rows__sums=SLOW)
    newest = changed(rows, "faster again", rows__sums=KERNEL.format(times=30))
    told = rows.kernelwatch("link", f"{first}..HEAD", "--only", "plain .* 256x256", "--no-publish", "--budget", "1")
    assert "1 anchored" in told
    (anchor,) = (each for each in sessions(rows) if each.kind == "anchor")
    assert (anchor.before, anchor.after) == (first, newest)
    assert [link.cell for link in anchor.changed] == [CELL]
    assert (anchor.same, anchor.represented, anchor.new, dict(anchor.unjudged)) == (0, 0, (), {})
    line = rows.git("rev-list", "--reverse", "HEAD").split()
    chain = chains(sessions(rows), {commit: at for at, commit in enumerate(line)})[CELL]
    assert [(edge.before, edge.after) for edge in chain.edges if edge.session.kind == "anchor"] == [(0, 2)]


def test_a_slower_launch_that_is_expected_or_accepted_is_not_red(tmp_path: Path, small_engine: Path) -> None:
    rows = new_rows(tmp_path, small_engine)
    expected = changed(rows, "slower\n\nPerf-Expected: row_sum/plain +9999999%", rows__sums=SLOW)
    told = rows.kernelwatch("link", "--shape", "256x256", "--budget", "1", code=0)
    assert f"regression, as its commit expects at {expected[:8]} (slower): 1 series of" in told
    assert f"expected at {expected[:8]}: row_sum/plain +9999999%; less than expected: +" in told
    other = changed(rows, "other is slower, too", rows__more=SLOW.replace("plain", "other"))
    told = rows.kernelwatch("link", "--shape", "256x256", "--budget", "1", code=1)
    assert f"regression, confirmed at {other[:8]}" in told
    told = rows.kernelwatch("accept", "HEAD", "--reason", "it sums more", code=0, GIT_AUTHOR_NAME="Ada")
    assert f"accepted: {other[:12]}-" in told
    assert "pages: file://" in told
    states = {event["last"]["hash"]: event["words"] for event in published(rows, "events")["events"]}
    assert states == {expected: "as its commit expects", other: "accepted by Ada"}


def test_a_range_is_foretold_and_its_trees_take_no_more_room_than_a_batch(tmp_path: Path, small_engine: Path) -> None:
    assert foretold(3, [], 60) == "3 commits may change a launch: at most 3 min of measuring"
    known = [a_session(0, 1, a_link(0.1), a_link(0.2)), a_session(1, 2, a_link(0.1)), a_session(1, 3, kind="anchor")]
    known = [replace(session, seconds=seconds) for session, seconds in zip(known, (20.0, 40.0, 500.0), strict=True)]
    assert foretold(10, known, 60) == (
        "10 commits may change a launch: some 15 links in 5 min of measuring, "
        "if they are like the 2 that were linked before"
    )
    rows = new_rows(tmp_path, small_engine)
    hashes = [changed(rows, f"number {at}", rows__sums=KERNEL.format(times=at + 2)) for at in range(3)]
    with without_modules("benchmarks"), linking.trees(load(rows.folder)) as made:
        for commit in hashes:
            made.of(commit)
        made.only(hashes[1:])
        assert sorted(path.name for path in made.folder.iterdir()) == sorted(hashes[1:])
        assert Path(made.of(hashes[0]), "rows").is_dir()  # it is made again if it is asked for


def test_trees_are_asked_at_the_same_time_under_one_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each answer is its tree's; a cell that fails has none and is asked again; what is known is not asked."""
    held: list[bool] = []
    together = threading.Barrier(2, timeout=600)  # two runs after one another would never pass it
    asked: list[tuple[str, str]] = []

    class Running(processes.Run):
        def measure_all(self, seed: int, tick: Callable[[], None] = lambda: None, *, more: int = 0) -> None:
            together.wait()
            assert held == [True]
            assert not self.alone
            for cell in self.cells:
                asked.append((self.tree, cell.key))
                if cell != failing:
                    launch = "" if cell == unknown else f"{self.tree} {cell.key}"
                    self.group.outcomes[cell.key].measurements.append({"launch": launch})

    @contextmanager
    def holding() -> Iterator[None]:
        held.append(True)
        yield
        held.pop()

    monkeypatch.setattr(changes, "gpu_here", lambda: "a GPU")
    monkeypatch.setattr(changes, "Run", Running)
    monkeypatch.setattr(changes, "_holding_the_gpu", holding)
    monkeypatch.setattr(changes, "LAUNCHING_MOST", 2)
    monkeypatch.setattr(cache, "folder", lambda: tmp_path / "cache")
    cells = linking.asked_of(PROJECT, "^transpose/triton ", ["gpu"])[:4]
    failing, unknown = cells[-1], cells[-2]
    trees = [str(tmp_path / name) for name in ("before", "after")]
    for tree in trees:
        Path(tree).mkdir()
        Path(tree, "kernel.py").write_text(tree)
    for times in (1, 2):
        found = changes.launches(PROJECT, dict.fromkeys(trees, cells))
        assert found == {tree: {cell.key: f"{tree} {cell.key}" for cell in cells[:-2]} for tree in trees}
        assert asked.count((trees[0], failing.key)) == times
        assert asked.count((trees[0], cells[0].key)) == 1
    monkeypatch.setattr(changes, "gpu_here", lambda: "another GPU")  # whose kernels may be others
    changes.launches(PROJECT, dict.fromkeys(trees, cells))
    assert asked.count((trees[0], cells[0].key)) == 2


def test_what_decides_the_exit_code_of_links() -> None:
    slower, still, unsure = a_link(0.03), a_link(0.0), a_link(0.02, 0.02)
    left = {"op/rung": "CPU cells were not asked for"}
    for code, sessions in (
        (1, [a_session(1, 2, slower)]),
        (0, [a_session(1, 2, slower), a_session(1, 2, still)]),  # measured again
        (1, [a_session(1, 2, still), a_session(1, 2, slower)]),
        (1, [a_session(1, 2, slower), a_session(2, 3, still)]),  # another commit
        (1, [a_session(1, 2, slower), a_session(1, 2, unjudged=left)]),  # which asked for less
        (0, [a_session(1, 2, unjudged=left), a_session(1, 2, still)]),
        (0, [a_session(1, 2, still), a_session(1, 2, unjudged={"op/rung": NOT_HERE})]),
        (2, [a_session(1, 2, unjudged={"op/rung": NOT_HERE})]),
        (0, [a_session(1, 2, still), a_session(0, 2, slower, kind="anchor")]),  # the level says what came of it
        (2, [a_session(1, 2, still), a_session(0, 2, unjudged={CELL: "failed: wrong"}, kind="anchor")]),
        (2, [a_session(1, 2, unsure)]),
        (2, [a_session(1, 2, still, unjudged={"op/other": "its process was killed"})]),
        (0, [a_session(1, 2, still, unjudged={"op/other": "repaired: wrong"})]),
        (2, [a_session(1, 2, slower, unjudged={"op/other": "failed: wrong"})]),
        (0, []),
    ):
        assert code_of(sessions) == code, sessions
    place = COMMITS[2], still.cell
    assert [code_of([a_session(1, 2, still)], {place: is_open}) for is_open in (True, False)] == [1, 0]
    assert [code_of([a_session(1, 2, slower)], {place: is_open}) for is_open in (True, False)] == [1, 0]


def test_a_regression_that_is_open_somewhere_is_open() -> None:
    """On one machine it is accepted, on another one nobody has decided; in either order."""
    there, here = (
        {"kind": "regression", "changes": [{"to": "b" * 40, "cell": CELL, "open": each}]} for each in (True, False)
    )
    for events in ([there, here], [here, there]):
        assert standing_of(events) == {("b" * 40, CELL): True}
    assert standing_of([here, {**there, "kind": "improvement"}]) == {("b" * 40, CELL): False}


def test_what_is_left_out_of_a_list_is_counted() -> None:
    links = tuple(
        Link(f"op/r{at} float32 8 cold", 0.01, 0.05, 3, (-0.09, 0.11, -0.03, 0.05), (1.0, 1.01), ("a", "b"))
        for at in range(5)
    )
    unjudged = {f"op/left{at}": "no suite times it" for at in range(4)}
    session = Session("step", "a" * 40, "b" * 40, "", 1.0, {}, 0, links=links, unjudged=unjudged)
    console = Console(file=io.StringIO(), width=300)
    show("b", session, console)
    said = cast(io.StringIO, console.file).getvalue().splitlines()
    assert [line for line in said if line.endswith(" more")] == ["  not decided: 2 more", "  not measured: 1 more"]
    assert len([line for line in said if "not decided: op/" in line]) == 3
