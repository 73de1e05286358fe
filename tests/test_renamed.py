"""A rung that was renamed (`was`): its history goes on under the name of today, and ids stay as they are."""

import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.project import PROJECT, parts
from gpukernels import ladder
from kernelwatch.comparison import linking
from kernelwatch.detect.events import change_id
from kernelwatch.history import confirmations, decisions, expected, links
from kernelwatch.history.confirmations import Confirmation
from kernelwatch.history.decisions import Accepted, Decision
from kernelwatch.history.links import NOT_ASKED, gone_id
from kernelwatch.plan.package import Absent, Importing
from kernelwatch.plan.problem import Problem, Rung
from kernelwatch.plan.project import Project
from kernelwatch.plan.renamed import NONE, Renamed
from tests.decided import Decided
from tests.repositories import new_project, rewrite
from tests.sums_of_rows import FAST, OTHER, OTHER_KERNEL, PLAIN, SLOW, Rows
from tests.test_chain import a_link, a_session
from tests.test_links import BOTH
from tests.test_regressions import FEWER, History, cell, stepped, write_results

pytestmark = pytest.mark.xdist_group("renamed")  # one repository with links for all of these

OLD, NEW = "row_sum/plain float32 256x256 cold", "row_sum/summed float32 256x256 cold"
SUMMED = BOTH.replace('"plain": ', '"summed": ')
RENAMED = 'Rung("summed", "cpu", ("float32",), was="plain"),' + OTHER
WAS = Renamed({"row_sum/summed": ("row_sum/plain",)})


# --- what links tell -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Linked:
    """A repository whose rung became slower, was accepted as that, was renamed, and became faster. `before`,
    `after`: what the pages said before the renaming and after it; `told`: what its link printed."""

    rows: Rows
    commits: dict[str, str]
    before: dict[str, Any]
    after: dict[str, Any]
    told: str

    def published(self, name: str) -> Any:
        return json.loads((self.rows.folder / ".asv" / "html" / "data" / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory, small_engine: Path) -> Linked:
    project = new_project(tmp_path_factory.mktemp("renamed"), "rows")
    rows = Rows(project.folder, project.home, small_engine)
    rows.describe(PLAIN + OTHER, shapes="(256, 256)")
    rows.write_files({"rows/__init__.py": BOTH, "rows/sums.py": FAST, "rows/more.py": OTHER_KERNEL})
    commits = {"first": rows.commit_all("first")}
    rows.kernelwatch("bench", code=0)
    rows.write_files({"rows/sums.py": SLOW})
    commits["slower"] = rows.commit_all("slower")
    rows.kernelwatch("bench", code=1)
    rows.kernelwatch("accept", "HEAD", "--reason", "worth it", code=0)
    made = Linked(rows, commits, {}, {}, "")
    before = made.published("events")
    rows.describe(RENAMED, shapes="(256, 256)")
    rows.write_files({"rows/__init__.py": SUMMED})
    commits["renamed"] = rows.commit_all("renamed")
    told = rows.kernelwatch("bench", f"{commits['first']}..HEAD", code=0)
    after = made.published("events")
    rows.write_files({"rows/sums.py": FAST})
    commits["faster"] = rows.commit_all("faster")
    rows.kernelwatch("bench", "--all", code=0)
    rows.kernelwatch("link", f"{commits['first']}..HEAD", code=0)
    return Linked(rows, commits, before, after, told)


def test_the_chain_of_links_goes_on_across_a_renaming(linked: Linked) -> None:
    (reach,) = linked.published("events")["links"]
    assert (reach["gone"], reach["failed"], reach["unjudged"], reach["links"]) == ([], [], [], 2)
    told = linked.published(f"links/{reach['machine']}")
    assert set(told["cells"]) == {NEW}
    launches = told["cells"][NEW]["launches"]
    assert [each["word"] for each in launches] == ["", "worse", "better"]
    assert {each["piece"] for each in launches} == {0}
    assert launches[2]["log"] == pytest.approx(0, abs=1e-4)
    assert not any(session["new"] or session["gone"] for session in told["sessions"])


def test_a_renaming_alone_changes_no_launch(linked: Linked) -> None:
    before, after = linked.commits["slower"], linked.commits["renamed"]
    assert "1 of 2 commits are linked already" in linked.told  # whose session has the old name
    assert "renamed: 0 linked, 2 the same" in linked.told
    differ = linked.rows.changes(before, after)
    assert differ.same == {"row_sum/summed", "row_sum/other"}
    assert [*differ.new, *differ.gone, *differ.launched] == []
    assert "2 known to be the same" in linked.rows.kernelwatch("versus", before, after, code=0)
    told = linked.rows.kernelwatch("versus", before, after, "--all", code=0)
    (cell,) = re.findall(r"row_sum/summed float32, CPU.*?\n(256x256 cold [^\n]*)", told, re.DOTALL)
    assert cell.rstrip().endswith("no change =")  # its identity is the same
    assert "gone" not in told


def test_a_rung_whose_file_and_function_are_renamed_too_is_measured_in_turns(linked: Linked) -> None:
    rows = linked.rows
    rows.git("checkout", "-q", linked.commits["slower"])
    try:
        rows.describe(RENAMED, shapes="(256, 256)")
        rows.git("mv", "rows/sums.py", "rows/summed.py")
        moved = {"rows/__init__.py": SUMMED.replace("rows.sums:plain", "rows.summed:summed")}
        rows.write_files({**moved, "rows/summed.py": SLOW.replace("def plain", "def summed")})
        after = rows.commit_all("renamed throughout")
        told = rows.kernelwatch("versus", linked.commits["slower"], after, code=0)
    finally:
        rows.git("checkout", "-q", "--force", "main")
    assert "1 launch changed; 1 judged by time" in told
    assert told.rstrip().endswith("\nno change")
    assert "gone" not in told


def test_a_commit_before_the_renaming_is_measured_under_the_old_name(linked: Linked) -> None:
    """Also what was accepted of it still counts."""
    told = linked.rows.kernelwatch("versus", linked.commits["first"], linked.commits["renamed"], code=0)
    assert f"accepted: {NEW}: {linked.commits['slower'][:8]} accepted by a@b.org: worth it" in told


def test_an_edit_after_the_renaming_is_compared_with_the_old_name(linked: Linked) -> None:
    """The parent in the working tree's comparison has the old name only."""
    linked.rows.git("checkout", "-q", linked.commits["slower"])
    try:
        linked.rows.describe(RENAMED, shapes="(256, 256)")
        linked.rows.write_files({"rows/__init__.py": SUMMED, "rows/sums.py": FAST})
        told = linked.rows.kernelwatch("bench", "--worktree", code=0)
    finally:
        linked.rows.git("checkout", "-q", "--force", "main")
    assert "better" in told
    assert "row_sum/summed float32, CPU" in told
    assert "gone" not in told


def test_an_event_before_the_renaming_keeps_its_id_and_its_decision(linked: Linked) -> None:
    def regression(events: dict[str, Any]) -> Any:
        (found,) = (event for event in events["events"] if event["kind"] == "regression")
        return found

    accepted, after = regression(linked.before), regression(linked.after)
    now = regression(linked.published("events"))
    machine = accepted["changes"][0]["place"]["machine"]
    assert now["id"] == after["id"] == accepted["id"] == change_id(machine, [OLD], linked.commits["slower"])
    assert (after["state"], after["decision"]) == ("accepted", accepted["decision"])
    (change,) = now["changes"]
    assert (change["cell"], change["verdict"]["word"]) == (NEW, "confirmed")
    assert change["ended"] == {"commit": linked.commits["faster"], "how": "undone"}


def test_a_full_run_under_the_old_name_begins_the_series(linked: Linked) -> None:
    data = linked.rows.folder / ".asv" / "html" / "data"
    files = [json.loads(path.read_text())["cells"] for path in data.glob("*/history/*/0.json")]
    at = {key: own["at"] for cells in files for key, own in cells.items()}
    assert at[NEW] == [0, 3]
    assert OLD not in at
    assert linked.published("events")["retired"] == []
    own = [each for each in linked.published("series")["series"] if "plain" in json.dumps(each)]
    assert own == []


def test_sessions_from_before_anyone_said_that_it_was_renamed() -> None:
    """They have the old name as gone and the new one as new: that is what another session may compare."""
    known = a_session(0, 1, new=("row_sum/summed",), gone=("row_sum/plain",))
    session = links.by_now(known, WAS)
    assert (session.new, session.gone) == ((), ())
    assert session.why_left(NEW).endswith(NOT_ASKED)
    assert links.gone([session]) == {}
    assert links.by_now(known, NONE) is known


def test_a_session_tells_of_todays_name(tmp_path: Path) -> None:
    told = a_session(0, 1, a_link(0.1, cell=OLD), unjudged={OLD: "failed: x"}, described={"row_sum/plain": "12345678"})
    links.save(tmp_path, told)
    ((session,), _) = links.read(tmp_path, WAS)
    assert [each.cell for each in session.links] == [NEW]
    assert session.unjudged == {NEW: "failed: x"}
    assert session.described == {"row_sum/summed": "12345678"}
    assert links.read(tmp_path)[0] == [told]


def test_what_was_accepted_as_gone_stays_accepted() -> None:
    gone = a_session(0, 1, gone=("row_sum/plain",))
    accepted = {gone_id(gone.after, "row_sum/plain")}
    assert links.without(links.by_now(gone, WAS), accepted, WAS).gone == ()


# --- what full runs tell ---------------------------------------------------------------------------------------------

COMMITS, UP, OLDER, TODAY, LATER = 20, 8, 11, 13, 16  # slower at UP, faster at LATER, renamed between
WAS_PADDED = """
import dataclasses

PROJECT = dataclasses.replace(
    PROJECT,
    problems=tuple(
        dataclasses.replace(
            problem,
            rungs=tuple(
                dataclasses.replace(rung, was=["oldest", "older"]) if rung.name == "padded" else rung
                for rung in problem.rungs
            ),
        )
        if problem.name == "transpose"
        else problem
        for problem in PROJECT.problems
    ),
)
"""
SHAPE = "256x256"


def key(rung: str) -> str:
    return f"transpose/{rung} float32 {SHAPE} cold"


def histories(rung: str) -> list[History]:
    def level(at: int) -> float:
        return (stepped(1e-5, 1.1e-5, UP) if at < LATER else stepped(1.07e-5, 1.07e-5))(at)

    return [
        cell("transpose", rung, SHAPE, level, binary=lambda at: f"{at >= UP} {at >= LATER}"),
        cell("transpose", "tiled", SHAPE, stepped(1e-5, 1e-5), changed=99),
        History("static.Transpose.track_spill_bytes", lambda at: 8.0 * (at >= UP), FEWER,
                {"rung": rung, "type": "float32", "arch": "sm_90"}),
    ]  # fmt: skip


class Full(Decided):
    """Full runs of a rung that had two other names before."""

    def record(self, **_: Any) -> None:
        for rung, begin, end in (("oldest", 0, OLDER), ("older", OLDER, TODAY), ("padded", TODAY, COMMITS)):
            write_results(self.folder, self.commits, histories(rung), {"host": self.commits[begin:end]})

    def changes(self) -> dict[tuple[int, str], dict[str, Any]]:
        return {
            (self.commits.index(event["last"]["hash"]), change["benchmark"].rpartition("_")[2]): change
            | {"event": event}
            for event in self.published()["events"]
            for change in event["changes"]
        }


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Full:
    project = Full(tmp_path_factory.mktemp("full"))
    with (project.folder / "benchmarks" / "project.py").open("a") as file:
        file.write(WAS_PADDED)
    up = project.commits[UP]
    verdict = Confirmation(key("oldest"), project.commits[UP - 1], up, "confirmed", 0.1, 0.1, 0.09, 0.11, 4, "", "2024")
    confirmations.save(project.folder / "results" / "host", [verdict])
    name = change_id("host", [key("oldest")], up)
    spills = change_id("host", ["static.Transpose.track_spill_bytes", ("arch", "'sm_90'"), ("rung", "'oldest'"),
                                ("type", "'float32'")], up)  # fmt: skip
    both = Accepted(name, "host", 0.1, (0.09, 0.11)), Accepted(spills, "host", None)
    decisions.add(project.decisions, Decision(name, "Ada", "2024-02-01T00:00:00+00:00", "worth it", both))
    (project.folder / "results" / "host" / "noise.jsonl").write_text(json.dumps({"key": key("older"), "cv": 0.01}))
    project.publish()
    return project


def test_runs_under_three_names_are_one_series(full: Full) -> None:
    series = json.loads((full.folder / "html" / "data" / "series.json").read_text())["series"]
    names = [each["params"]["rung"] for each in series]
    assert sorted(names) == ["'padded'", "'padded'", "'tiled'"]
    (path,) = (
        path
        for path in (full.folder / "html" / "data" / "host" / "history").glob("*/0.json")
        if json.loads(path.read_text())["rung"] == "transpose/padded"
    )
    assert json.loads(path.read_text())["cells"][key("padded")]["at"] == list(range(COMMITS))
    assert full.published()["retired"] == []
    machine = json.loads((full.folder / "html" / "data" / "host" / "machine.json").read_text())
    assert machine["noise"] == {key("padded"): 0.01}
    assert "oldest" not in (full.folder / "html" / "data" / "cells.json").read_text()


def test_asvs_own_pages_have_one_series_too(full: Full) -> None:
    shown = json.loads((full.folder / "html" / "asv" / "index.json").read_text())["benchmarks"]
    assert shown["transpose.GPU.track_seconds"]["params"][0] == ["'padded'", "'tiled'"]
    graph = next((full.folder / "html" / "asv" / "graphs").rglob("transpose.GPU.track_seconds.json"))
    values = json.loads(graph.read_text())
    assert [value for _, value in values if value is None] == []
    assert len(values) == COMMITS


def test_events_on_both_sides_of_the_renamings(full: Full) -> None:
    """Those before keep their ids, verdicts and decisions; a later one has an id of the oldest name, too."""
    found = full.changes()
    assert set(found) == {(UP, "seconds"), (UP, "bytes"), (LATER, "seconds")}
    time, spills, later = found[UP, "seconds"], found[UP, "bytes"], found[LATER, "seconds"]
    assert [each["cell"] for each in (time, later)] == [key("padded")] * 2
    assert time["id"] == change_id("host", [key("oldest")], full.commits[UP])
    assert later["id"] == change_id("host", [key("oldest")], full.commits[LATER])
    assert (time["state"], spills["state"], later["state"]) == ("accepted", "accepted", "new")
    assert time["verdict"]["word"] == "confirmed"
    assert time["event"]["decision"]["reason"] == "worth it"


def test_pages_are_made_anew_if_only_the_names_change(full: Full, tmp_path: Path) -> None:
    """What is kept of earlier publications has the names of then."""
    other = full.copied(tmp_path / "project")
    path = other.folder / "benchmarks" / "project.py"
    path.write_text(path.read_text().replace('["oldest", "older"]', '"older"'))
    other.publish()
    (retired,) = other.published()["retired"]
    assert (retired["name"], retired["hash"]) == ("transpose/oldest", other.commits[OLDER - 1])


# --- what is said of it ----------------------------------------------------------------------------------------------


def test_an_announcement_by_the_old_name_is_of_the_rung() -> None:
    def ask(_: list[str]) -> str:
        return "\0" + "a" * 40 + "\nAda\nrow_sum/plain +3%\n"

    (told,) = expected.read(ask, ["HEAD"], WAS)
    assert told.is_about([NEW])
    assert told.text == "row_sum/plain +3%"


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a rung that exists": (
        {"a": "b", "b": ()},
        "op/a: was must be a name that no rung has any more; op/b still exists",
    ),
    "its own name": ({"a": "a"}, "op/a: was must be an earlier name of the rung; a is the one it has"),
    "a name of two": ({"a": "x", "b": ["y", "x"]}, "op/b: op/a has was x already; one rung had the name, and once"),
    "a name twice": ({"a": ["x", "x"]}, "op/a: op/a has was x already; one rung had the name, and once"),
    "the op, too": ({"a": "op/x"}, "op/a: was must be an earlier name, such as \"tiled\", or a list; got 'op/x'"),
    "no text": ({"a": [3]}, 'op/a: was must be an earlier name, such as "tiled", or a list; got 3'),
    "nothing": ({"a": ""}, "op/a: was must be an earlier name, such as \"tiled\", or a list; got ''"),
}


@pytest.mark.parametrize("how", BAD)
def test_an_earlier_name_that_is_none(how: str) -> None:
    was, message = BAD[how]
    rungs = tuple(Rung(name, "cpu", ("float32",), was=names) for name, names in was.items())
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Problem("op", PROJECT.problems[0].computation, rungs, ((8,),))


def test_a_bad_entry_of_the_ladder_is_told_by_every_command(tmp_path: Path, small_engine: Path) -> None:
    project = new_project(tmp_path, "rows")
    rows = Rows(project.folder, project.home, small_engine)
    rows.describe(RENAMED.replace('was="plain"', 'was="other"'))
    rows.write_files({"rows/__init__.py": SUMMED, "rows/sums.py": FAST, "rows/more.py": OTHER_KERNEL})
    rows.commit_all("first")
    told = rows.kernelwatch("ladder", code=128)
    assert "row_sum/summed: was must be a name that no rung has any more; row_sum/other still exists" in told


def test_both_names_in_one_record_are_of_two_rungs(tmp_path: Path) -> None:
    known = {OLD: 1, NEW: 2, "row_sum/other float32 8x8 cold": 3}
    assert WAS.by_now(known) == known
    assert WAS.by_now({OLD: 1, "row_sum/plain": 2}) == {NEW: 1, "row_sum/summed": 2}


class Old:
    """A package from before the renaming."""

    not_here = ()

    def load(self, op: str, rung: str, *rest: str) -> str:
        if rung != "plain":
            raise Absent(f"this commit has no {op}/{rung}")
        return " ".join([f"{op}/{rung}", *rest])

    repeats = variants = binary = cuda_source = load


class OldImporting(Old):
    def imports(self) -> dict[str, str]:
        return {"numpy": "2"}

    def needed(self, rungs: Any) -> list[str]:
        return sorted(rung for _, rung in rungs)


def test_a_package_that_has_the_old_name_only() -> None:
    package: Any = WAS.package(Old())  # type: ignore[arg-type]
    assert not isinstance(package, Importing)
    for name in ("load", "variants", "cuda_source"):
        assert getattr(package, name)("row_sum", "summed", "float32") == "row_sum/plain float32"
    assert package.repeats("row_sum", "summed") == "row_sum/plain"
    assert package.binary("row_sum", "summed", "float32", "sm_90") == "row_sum/plain float32 sm_90"
    with pytest.raises(Absent, match="no row_sum/other"):
        package.load("row_sum", "other", "float32")
    with pytest.raises(Absent, match="no another/summed"):
        package.load("another", "summed", "float32")
    importing: Any = WAS.package(OldImporting())  # type: ignore[arg-type]
    assert isinstance(importing, Importing)
    assert importing.needed([("row_sum", "summed")]) == ["plain", "summed"]
    assert importing.imports() == {"numpy": "2"}


def renamed_padded() -> Project:
    """This project, whose rung transpose/padded is called spare_column now."""
    known = PROJECT.ops["transpose"]
    rungs = tuple(
        replace(rung, name="spare_column", was="padded") if rung.name == "padded" else rung for rung in known.rungs
    )
    return replace(PROJECT, problems=(replace(known, rungs=rungs),))


def test_a_renamed_entry_of_the_ladder_is_launched_as_before(tmp_path: Path) -> None:
    """Of this project: the source is named, so that nothing but the name changes."""
    before, after = (tmp_path / side / "gpukernels" for side in ("before", "after"))
    for folder in (before, after):
        shutil.copytree(ladder.HERE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    entry = '[[transpose.rungs]]\nname = "padded"\n'
    new = entry.replace("padded", "spare_column") + 'was = "padded"\nsource = "padded.cu"\n'
    rewrite(after, {"ladder.toml": {entry: new}})
    assert ladder.read(after / "ladder.toml")["transpose"].rungs[0].was == ()
    old, fresh = (parts(PROJECT.places(str(folder.parent))) for folder in (before, after))
    assert fresh["transpose/spare_column"].launch == old["transpose/padded"].launch
    project = renamed_padded()
    told = project.parts_in(project.places(str(before.parent)))
    assert told["transpose/spare_column"] == old["transpose/padded"]
    assert "transpose/padded" not in told


def test_what_sessions_knew_of_the_description_is_known_after_a_renaming() -> None:
    """Else every commit whose cells it does not name would be asked again."""
    (before,) = linking.described(PROJECT, ["transpose/padded"]).values()
    assert linking.described(renamed_padded(), ["transpose/spare_column"]) == {"transpose/spare_column": before}
