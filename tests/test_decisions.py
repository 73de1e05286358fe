"""Regressions that are accepted or expected: the decisions, their file, what reopens them, and bad input."""

import copy
import json
import math
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from kernelwatch.commands import accept
from kernelwatch.commands.confirming import Events
from kernelwatch.commands.shown import code_of
from kernelwatch.comparison import consents, verdict
from kernelwatch.comparison.exact import Difference, ExactSeries
from kernelwatch.comparison.paired import Interval, Judged, Pairs, Side
from kernelwatch.comparison.verdict import Report
from kernelwatch.detect.events import change_id
from kernelwatch.history import decisions
from kernelwatch.history.decisions import Accepted, Damaged, Decision
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.renamed import NONE
from kernelwatch.report import documents
from kernelwatch.report.comparison import as_markdown, document
from kernelwatch.report.documents import VERSION
from kernelwatch.system.errors import CANNOT, UserError
from tests.decided import (
    ACCEPTED,
    BACK,
    COMMITS,
    EXPECTED,
    LARGER,
    LATER,
    MADE_UP,
    MISSING,
    REFUTED,
    SHAPE,
    UNDONE,
    Decided,
)
from tests.schemas import check
from tests.test_regressions import stepped
from tests.test_site import git

pytestmark = pytest.mark.xdist_group("decisions")  # one history for all of these

REASON = 'the tile pays off\tat "large" sizes, <b>größer</b>'
PADDED = f"transpose/padded float32 {SHAPE} cold"


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Decided:
    """The published history, without a decision."""
    project = Decided(tmp_path_factory.mktemp("decided"))
    project.publish()
    return project


@pytest.fixture(scope="module")
def accepted(decided: Decided, tmp_path_factory: pytest.TempPathFactory) -> Decided:
    """The same history, in which someone accepted the regression of ACCEPTED and published."""
    project = decided.copied(tmp_path_factory.mktemp("accepted") / "project")
    done = project.accept(project.commits[ACCEPTED][:9], "--reason", REASON)
    assert done.returncode == 0, done.stderr
    assert f"host: {PADDED} +10.0" in done.stdout
    assert "commit it: results/decisions.toml" in done.stdout
    project.publish()
    return project


@pytest.fixture(scope="module")
def reopened(accepted: Decided, tmp_path_factory: pytest.TempPathFactory) -> Decided:
    """The same again, for tests that record other levels."""
    return accepted.copied(tmp_path_factory.mktemp("reopened") / "project")


def code_at(project: Decided, *places: int) -> int:
    """The exit code of a run that measured these commits."""
    path = project.folder / "html" / "data" / "events.json"
    events = Events(path, [project.commits[at] for at in places], "host")
    return code_of(event for event in events.now() if project.commits.index(event["last"]["hash"]) in places)


def feed(project: Decided) -> dict[int, str]:
    """The text of each regression in the feed, by the place of its commit."""
    entries = ElementTree.parse(project.folder / "html" / "regressions.xml").getroot().findall("{*}entry")
    texts = ["".join(entry.itertext()) for entry in entries]
    return {at: text for at, commit in enumerate(project.commits) for text in texts if f": {commit[:8]} " in text}


def published(project: Decided) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project.folder / "html" / "data" / "events.json").read_text())
    return found


# --- states ----------------------------------------------------------------------------------------------------------


def test_without_a_decision_a_regression_is_open(decided: Decided) -> None:
    states = {at: (event["state"], event["open"]) for at, event in decided.events().items()}
    assert states == {
        ACCEPTED: ("new", True),
        MADE_UP: ("confirmed", True),  # of an exact figure, which is still there
        UNDONE: ("fixed", False),
        EXPECTED: ("accepted", False),
        LARGER: ("new", True),
        REFUTED: ("refuted", False),
    }
    assert [code_at(decided, at) for at in (ACCEPTED, MADE_UP, UNDONE, EXPECTED, LARGER, REFUTED)] == [1, 1, 0, 0, 1, 0]


def test_what_another_commit_made_up_for_is_not_called_undone(decided: Decided) -> None:
    events, back = decided.events(), decided.commits[BACK]
    (undone,) = events[UNDONE]["changes"]
    assert (undone["ended"], undone["words"]) == ({"commit": back, "how": "undone"}, f"undone by {back[:8]}")
    (time,) = (change for change in events[MADE_UP]["changes"] if change["cell"])
    assert time["ended"] == {"commit": back, "how": "made up"}
    assert (time["state"], time["words"]) == ("fixed", f"made up for by {back[:8]}")


def test_an_accepted_regression_says_by_whom_and_why_and_is_not_red(accepted: Decided) -> None:
    event = accepted.events()[ACCEPTED]
    assert (event["state"], event["open"], event["words"]) == ("accepted", False, "accepted by Ada")
    assert event["decision"]["by"] == "Ada <ada@example.org>"
    assert event["decision"]["reason"] == " ".join(REASON.split())
    assert event["decision"]["size"] == event["size"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", event["decision"]["at"])
    assert code_at(accepted, ACCEPTED) == 0
    assert code_at(accepted, ACCEPTED, LARGER) == 1
    said = feed(accepted)[ACCEPTED]
    assert "regression, accepted by Ada: " in said
    assert "größer" in said


def test_it_is_open_again_if_a_later_commit_makes_it_worse(reopened: Decided) -> None:
    """By a step of its own, which is open as well until it is accepted, too."""
    worse = stepped(1e-5, 1.1e-5, ACCEPTED)
    reopened.record(padded=lambda at: worse(at) * (1.04 if at >= LATER else 1.0))
    before = reopened.decisions.read_text()
    try:
        reopened.publish()
        events = reopened.events()
        first, second = events[ACCEPTED], events[LATER]
        assert (first["state"], first["open"]) == ("new", True)
        since = f"worse than accepted since {reopened.commits[LATER][:8]}: +14."
        assert first["words"].startswith(f"not measured again yet, {since}")
        assert (second["state"], second["decision"]) == ("new", None)
        assert code_at(reopened, ACCEPTED) == 1
        assert reopened.accept(second["id"][:16], "--reason", "so be it").returncode == 0
        reopened.publish()
        states = {at: event["state"] for at, event in reopened.events().items()}
        assert states[ACCEPTED] == states[LATER] == "accepted"
    finally:
        reopened.decisions.write_text(before)


def test_it_is_open_again_if_it_is_measured_larger(reopened: Decided) -> None:
    for size, state, words in (
        (1.11e-5, "new", "not measured again yet, larger than accepted: +10.0"),
        (1.09e-5, "accepted", "accepted by Ada"),
    ):
        reopened.record(padded=stepped(1e-5, size, ACCEPTED))
        reopened.publish()
        event = reopened.events()[ACCEPTED]
        assert (event["state"], event["open"]) == (state, state == "new")
        assert event["words"].startswith(words)


# --- what commits announce -------------------------------------------------------------------------------------------


def test_what_a_commit_announces_is_compared_with_what_came(decided: Decided) -> None:
    events = decided.events()
    assert events[EXPECTED]["words"] == "as its commit expects"
    assert events[EXPECTED]["decision"]["reason"] == "Perf-Expected: transpose/dynamic +4%"
    assert events[LARGER]["words"] == "not measured again yet, larger than expected: +3.00 %"
    told = {each["text"]: (each["state"], each["words"], each["at"]) for each in decided.published()["expected"]}
    commits = decided.commits
    unreadable = "Perf-Expected cannot be read: it should be a cell, a rung or a figure and a size with its sign"
    assert told == {
        "transpose/dynamic +4%": ("smaller", "less than expected: +3.03 %", commits[EXPECTED]),
        "nonsense": ("unreadable", unreadable, commits[EXPECTED]),
        "transpose/gone +1%": ("unreadable", "no judged series has this name", commits[EXPECTED]),
        "transpose/copy float32 256x256 cold +3%": ("larger", "worse than expected: +6.01 %", commits[LARGER]),
        "transpose/memcpy +2%": ("missing", "it did not come", commits[MISSING]),
        "transpose/memcpy -5%": ("open", "one commit more must be measured", commits[COMMITS - 1]),
    }


def test_a_trailer_of_a_merged_branch_counts_for_the_merge(tmp_path: Path) -> None:
    from kernelwatch.history import expected

    git(tmp_path, "init", "-q", "--initial-branch=main")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    git(tmp_path, "checkout", "-q", "-b", "side")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "slower", "--trailer", "perf-expected: a/b -1.5 %")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "Perf-Expected: a/b +9%\n\nnot a trailer\n\nPerf-Expected:")
    git(tmp_path, "checkout", "-q", "main")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "between")
    git(tmp_path, "merge", "-q", "--no-ff", "-m", "merge", "side")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "last")
    line = git(tmp_path, "rev-list", "--first-parent", "--reverse", "main").split()

    def ask(arguments: list[str]) -> str:
        return subprocess.check_output(["git", *arguments], cwd=tmp_path, text=True)

    (found,) = expected.read(ask, [line[-1]])
    assert (found.author, found.subject, found.size) == ("someone", "a/b", -0.015)
    assert list(expected.positions(ask, [found], line)) == [(found, 2)]
    assert list(expected.positions(ask, [found], line[:2])) == []


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("0123456789ab-01234567", "no event and no commit is named '0123456789ab-01234567'"),
        ("", "no event and no commit is named ''"),
        ("{missing}", "has no event"),
        ("{undone}", "is not open, so there is nothing to accept: "),
        ("{refuted}", "is not open, so there is nothing to accept: "),
        ("{back}", "is no regression: "),
    ],
)
def test_what_cannot_be_accepted_is_said(decided: Decided, name: str, said: str) -> None:
    places = {"missing": MISSING, "undone": UNDONE, "refuted": REFUTED, "back": BACK}
    name = name.format(**{word: decided.commits[at] for word, at in places.items()})
    done = decided.accept(name, "--reason", "x")
    assert (done.returncode, done.stdout) == (CANNOT, "")
    assert said in done.stderr
    assert not decided.decisions.exists()


def test_a_beginning_that_several_regressions_share_is_ambiguous(decided: Decided) -> None:
    events = list(decided.events().values())
    one, two, *_ = (event for event in events if event["open"])
    alike = [one, two | {"id": one["id"][:5] + two["id"][5:]}]
    project: Any = SimpleNamespace(root=decided.folder)
    with pytest.raises(UserError, match="may be one of several regressions; name one by its id"):
        accept.chosen(project, alike, one["id"][:5])
    assert accept.chosen(project, alike, one["id"]) is one


def test_a_reason_is_needed(decided: Decided) -> None:
    commit = decided.commits[ACCEPTED]
    assert decided.accept(commit, "--reason", "  ").returncode == CANNOT
    assert decided.accept(commit).returncode == CANNOT
    assert not decided.decisions.exists()


def test_nobody_accepts_nothing(decided: Decided) -> None:
    done = decided.accept(decided.commits[ACCEPTED], "--reason", "x", GIT_AUTHOR_NAME="")
    assert done.returncode == CANNOT
    assert "git does not know who you are" in done.stderr
    assert not decided.decisions.exists()


def test_without_pages_it_says_what_to_do(tmp_path: Path) -> None:
    project = Decided(tmp_path)
    done = project.accept(project.commits[ACCEPTED], "--reason", "x")
    assert done.returncode == CANNOT
    assert "publish them first" in done.stderr


DAMAGES = {  # what stands before the first decision, or in place of what; what is said
    "[[accepted]]": ("<<<<<<< HEAD\n[[accepted]]", "it is no TOML"),
    "reason = ": ("purpose = ", "an entry that is no decision: 'reason' is missing"),
    "size = ": ("size = nan, was = ", "an entry that is no decision: size and bounds should be finite numbers"),
}


def test_a_damaged_file_names_its_line_loses_nothing_and_makes_nothing_green(accepted: Decided) -> None:
    before = accepted.decisions.read_text()
    line = before[: before.index("[[accepted]]")].count("\n") + 1
    try:
        for old, (new, why) in DAMAGES.items():
            text = before.replace(old, new, 1)
            accepted.decisions.write_text(text)
            done = accepted.accept(accepted.commits[LARGER], "--reason", "x")
            assert done.returncode == CANNOT
            assert f"decisions.toml:{line}: {why}" in done.stderr
            assert accepted.decisions.read_text() == text
        said = accepted.publish()  # with the last of them
        assert f"decisions.toml:{line}: " in said.replace("\n", "")
        published = accepted.published()
        assert f"results/decisions.toml:{line}: {why}" in published["damaged"]
        assert accepted.events()[ACCEPTED]["open"]
        assert code_at(accepted, ACCEPTED) == 1
        entries = ElementTree.parse(accepted.folder / "html" / "regressions.xml").getroot().findall("{*}entry/{*}title")
        assert "the decisions cannot be read" in [title.text for title in entries]
    finally:
        accepted.decisions.write_text(before)
        accepted.publish()
    assert not accepted.published()["damaged"]


# --- the file --------------------------------------------------------------------------------------------------------

ONE = Decision(
    "0123456789ab-01234567", 'A "B" <a@b.org>', "2026-01-01T00:00:00+00:00", "why\u2028\x7f'''",
    (Accepted("0123456789ab-01234567", "m: a/b \\", 0.1, (0.09, 0.11)), Accepted("0123456789ab-11111111", "f", None)),
)  # fmt: skip


def other(event: str, **changes: Any) -> Decision:
    return replace(ONE, event=event, changes=(replace(ONE.changes[0], id=event),), **changes)


def test_decisions_are_read_as_they_were_written_and_stay_sorted(tmp_path: Path) -> None:
    path = tmp_path / decisions.NAME
    assert decisions.read(path) == []
    many = [ONE, other("fedcba987654-01234567"), other("000000000000-00000000"), other("7" * 12 + "-" + "8" * 8)]
    for each in many:
        decisions.add(path, each)
    assert decisions.read(path) == sorted(many, key=lambda each: each.event)
    path.write_text(path.read_text().replace("[[accepted]]", "# theirs\n[[accepted]]  # mine", 1))
    decisions.add(path, replace(ONE, reason="better"))
    assert {each.event: each.reason for each in decisions.read(path)} == {
        each.event: "better" if each is ONE else each.reason for each in many
    }
    assert "# theirs\n[[accepted]]  # mine" in path.read_text()
    assert [each.name for each in tmp_path.iterdir()] == [decisions.NAME]  # nothing unfinished


def test_two_people_accept_two_events_and_their_branches_merge(tmp_path: Path) -> None:
    path = tmp_path / decisions.NAME
    for name in ("3" * 12 + "-" + "3" * 8, "9" * 12 + "-" + "9" * 8):
        decisions.add(path, other(name))
    git(tmp_path, "init", "-q", "--initial-branch=main")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "first")
    for branch, digit in (("ada", "1"), ("ben", "6")):
        git(tmp_path, "checkout", "-q", "-b", branch, "main")
        decisions.add(path, other(digit * 12 + "-" + digit * 8))
        git(tmp_path, "commit", "-q", "-am", branch)
    git(tmp_path, "merge", "-q", "-m", "merge", "ada")
    assert [each.event[0] for each in decisions.read(path)] == ["1", "3", "6", "9"]


def test_the_newer_of_two_decisions_on_a_change_counts() -> None:
    newer = replace(ONE, at="2026-02-01T00:00:00+00:00", reason="newer")
    for order in ([ONE, newer], [newer, ONE]):
        assert decisions.by_change(order)[ONE.event][0].reason == "newer"


def test_two_decisions_at_once_are_both_kept(accepted: Decided) -> None:
    before = accepted.decisions.read_text()
    try:
        with ThreadPoolExecutor() as pool:
            names = [accepted.events()[at]["id"] for at in (LARGER, MADE_UP)]
            done = list(pool.map(lambda name: accepted.accept(name, "--reason", "at once"), names))
        assert [each.returncode for each in done] == [0, 0], done
        assert len(decisions.read(accepted.decisions)) == 3
    finally:
        accepted.decisions.write_text(before)


@pytest.mark.parametrize(
    "text",
    ["accepted = 1", "[other]\nx = 1", "[[accepted]]\nevent = 1", "\ufeff\x00", "x = " + "[" * 9999],
    ids=range(5),
)  # fmt: skip
def test_nonsense_is_no_decision(tmp_path: Path, text: str) -> None:
    path = tmp_path / decisions.NAME
    path.write_text(text)
    with pytest.raises(Damaged, match=r"decisions\.toml:\d+: "):
        decisions.read(path)
    with pytest.raises(Damaged):
        decisions.add(path, ONE)
    assert path.read_text() == text


def test_a_file_that_is_none_is_not_waited_for(tmp_path: Path) -> None:
    import os

    path = tmp_path / decisions.NAME
    os.mkfifo(path)
    with pytest.raises(Damaged, match="no regular file"):
        decisions.read(path)


# --- for other tools -------------------------------------------------------------------------------------------------


def test_events_of_every_state_are_as_their_schema_says(accepted: Decided) -> None:
    found = published(accepted)
    assert {"new", "confirmed", "refuted", "accepted", "fixed"} <= {event["state"] for event in found["events"]}
    check(found, "events")
    for event in found["events"]:
        causes = json.loads((accepted.folder / "html" / "data" / "causes" / f"{event['id']}.json").read_text())
        check(causes, "events", "causes")
        check({"schema": "kernelwatch/event", "version": VERSION, **event, "causes": causes}, "events", "copied")


def test_a_document_that_is_otherwise_is_refused(accepted: Decided) -> None:
    """The schemas say something: each of these would be told."""
    jsonschema = pytest.importorskip("jsonschema")
    whole = published(accepted)
    for path, value in (
        (("version",), 2),
        (("events", 0, "state"), "open"),
        (("events", 0, "id"), "x"),
        (("events", 0, "changes", 0, "interval"), [0.0]),
        (("events", 0, "changes", 0, "new_key"), 1),
        (("evidence", 0, "series"), "many"),
    ):
        wrong: Any = copy.deepcopy(whole)
        place = wrong
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        with pytest.raises(jsonschema.ValidationError):
            check(wrong, "events")
    del whole["events"][0]["open"]
    with pytest.raises(jsonschema.ValidationError, match="'open' is a required property"):
        check(whole, "events")


def test_a_comparison_knows_what_was_accepted_and_announced(accepted: Decided) -> None:
    """By the commit between both sides, on the machine that decided, and no more than was accepted."""
    commits = accepted.commits
    project: Any = SimpleNamespace(
        root=accepted.folder, results=accepted.folder / "results", launch_paths=lambda: ["."], renamed=NONE
    )

    def between(base: int, head: int, machine: str = "host") -> consents.Consents:
        return consents.between(project, machine, commits[base], commits[head])

    said = between(ACCEPTED - 1, ACCEPTED).of([PADDED], [PADDED], 0.09)
    assert said is not None
    assert said.covers
    assert said.words.startswith(f"{commits[ACCEPTED][:8]} accepted by Ada: the tile pays off")
    more = between(ACCEPTED - 1, ACCEPTED).of([PADDED], [PADDED], 0.2)
    assert more is not None
    assert not more.covers
    assert more.words.startswith("more than +10.")
    assert between(ACCEPTED, ACCEPTED + 1).of([PADDED], [PADDED], 0.09) is None
    assert between(ACCEPTED - 1, ACCEPTED, "other").of([PADDED], [PADDED], 0.09) is None
    assert between(ACCEPTED - 1, ACCEPTED).of(["another cell"], ["another cell"], 0.09) is None
    dynamic, copied = (f"transpose/{rung} float32 {SHAPE} cold" for rung in ("dynamic", "copy"))
    known = between(0, COMMITS - 1)
    expected = known.of([dynamic], [dynamic], 0.03)
    assert expected == consents.Consent(
        f"{commits[EXPECTED][:8]} says Perf-Expected: transpose/dynamic +4%", covers=True
    )
    larger = known.of([copied], [copied], 0.05)  # it announced 3 %
    assert larger is not None
    assert not larger.covers


@pytest.mark.parametrize("sign", [1, -1])
def test_what_a_decision_covers_of_a_comparison_ends_on_the_worse_side(sign: int) -> None:
    """`sign`: -1 for a rate, of which less is worse. Two commits allow their sizes together."""
    commits = ["a" * 40, "b" * 40]
    own = [Accepted(change_id("m", ["x"], commit), "x", 0.1 * sign, (0.08 * sign, 0.12 * sign)) for commit in commits]
    accepted = {each.id: (Decision(each.id, "Ada", "now", "why", (each,)), each) for each in own}
    one, both = (consents.Consents("m", commits[:count], accepted) for count in (1, 2))
    allowed = (1 + 0.12 * sign) ** 2 - 1
    for told, least, covers in (
        (one, 0.11 * sign, True),
        (one, 0.13 * sign, False),
        (both, 0.13 * sign, True),
        (both, allowed + 0.001 * sign, False),
        (both, allowed - 0.001 * sign, True),
    ):
        said = told.of(["x"], ["x"], least, sign)
        assert said
        assert said.covers is covers
    assert one.of(["y"], ["y"], 0.01 * sign, sign) is None


def test_an_exact_figure_of_a_comparison_has_the_name_of_its_series(accepted: Decided) -> None:
    """So that a decision on it is found: the id of the published change."""
    (change,) = (each for each in accepted.events()[MADE_UP]["changes"] if each["exact"])
    series = ExactSeries(change["benchmark"], ("tiled",), "bytes", False, True, "transpose", ("rung",))
    shown = verdict.shown_of(series)
    assert change_id("host", shown, accepted.commits[MADE_UP]) == change["id"]
    decision = Decision("", "Ada <a>", "", "worth it", (Accepted(change["id"], "", None),))
    known = consents.Consents("host", [accepted.commits[MADE_UP]], decisions.by_change([decision]))
    difference = Difference(series, 0.0, 8.0)
    assert verdict.said(known, difference).verdict == "accepted"
    assert verdict.said(consents.Consents(), difference).verdict == "worse"


def test_a_damaged_file_of_decisions_accepts_nothing_of_a_comparison(accepted: Decided, tmp_path: Path) -> None:
    (tmp_path / decisions.NAME).write_text("no = ")
    project: Any = SimpleNamespace(root=accepted.folder, results=tmp_path, launch_paths=lambda: ["."], renamed=NONE)
    known = consents.between(project, "host", accepted.commits[ACCEPTED - 1], accepted.commits[ACCEPTED])
    assert known.of([PADDED], [PADDED], 0.05) is None
    assert "it is no TOML" in known.damaged


class Slower:
    """A comparison in which one cell became slower by 9 to 11 %."""

    tests = 7
    turns = 4

    def __init__(self) -> None:
        self.cell = Cell("transpose", "padded", "float32", (256, 256), "cold", "gpu")
        self.judged = {self.cell.key}

    def verdicts(self) -> list[tuple[Pairs, Judged]]:
        measurement: Any = {"seconds": 1.0, "state": {}}
        pairs = Pairs(self.cell, {0: (measurement, measurement | {"seconds": 1.1})})
        return [(pairs, Judged("worse", ratio=Interval(math.log1p(0.1), 0.009, 0.01)))]

    def failed(self) -> dict[str, Judged]:
        return {}


def test_what_was_accepted_is_told_and_is_not_worse(accepted: Decided) -> None:
    project: Any = SimpleNamespace(
        root=accepted.folder, results=accepted.folder / "results", launch_paths=lambda: ["."], renamed=NONE
    )
    commits = accepted.commits[ACCEPTED - 1], accepted.commits[ACCEPTED]
    base, head = (Side(name, "") for name in ("BASE", "HEAD"))
    slower: Any = Slower()
    assert slower.cell.key == PADDED
    for known, word, code in (
        (consents.between(project, "host", *commits), "accepted", 0),
        (consents.Consents("host"), "worse", 1),
    ):
        report = Report(project, base, head, "what", whole=True, comparison=slower, consents=known)
        report.changed = {"transpose/padded": ("padded.cu",)}
        assert (report.code, [judged.word for _, judged in report.judged()]) == (code, [word])
        assert ("worse, and accepted: 1 cell" in report.summary) == (code == 0)
        assert ("HEAD is worse than BASE: 1 cell" in report.summary) == (code == 1)
        found = documents.versus(report, ("a", "b"), commits, "host", report.code)
        check(found, "versus")
        assert (found["verdict"], found["exit_code"]) == (word, code)
        assert found["cells"][0]["interval"] == pytest.approx([0.0901, 0.1099], abs=1e-3)
        text = as_markdown(document(report))
        assert ("accepted by Ada" in text) == (code == 0)
        assert f"| {word} |" in text
