"""Confirming what is flagged: the verdict from turns, how it is kept, and a run of scripts/bench that is disturbed."""

import dataclasses
import json
import math
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.project import PROJECT
from kernelwatch.commands import confirming, shown
from kernelwatch.commands.confirming import LATE, Events
from kernelwatch.comparison import confirm as module
from kernelwatch.comparison.confirm import Flag, confirm
from kernelwatch.history import confirmations
from kernelwatch.history.confirmations import Confirmation, overall
from tests.repositories import (
    FEW_SAMPLES,
    FEWEST_TURNS,
    OWN_CLOCK,
    WORKS,
    copy_into,
    cpu_processes,
    few_rungs,
    new_project,
    rewrite,
    smaller,
    uncommitted_harness,
    without_suites,
)
from tests.test_turns import Synthetic, synthetic

__all__ = ["synthetic"]  # a fixture

PADDED, COPY = "transpose/padded float32 4096x4096 cold", "transpose/copy float32 4096x4096 cold"
BEFORE, AFTER = "1" * 40, "2" * 40


def test_the_newest_verdict_on_a_change_counts(tmp_path: Path) -> None:
    """Of those that were saved one after the other, and of those that a merge has put into one file."""
    confirmed: confirmations.Word = "confirmed"
    refuted: confirmations.Word = "refuted"
    older, newer = (
        Confirmation(PADDED, BEFORE, AFTER, word, 0.02, at=f"2026-01-0{day}T00:00:00+00:00")
        for day, word in ((1, confirmed), (2, refuted))
    )
    for one in (older, newer):
        confirmations.save(tmp_path, [one])
    key = PADDED, BEFORE, AFTER
    assert confirmations.read(tmp_path) == {key: newer}
    (path,) = tmp_path.iterdir()
    path.write_text("".join(f"{json.dumps(dataclasses.asdict(one))}\n" for one in (older, newer)))
    assert confirmations.read(tmp_path) == {key: newer}
    path.write_text("".join(f"{json.dumps(dataclasses.asdict(one))}\n" for one in (newer, older)))
    assert confirmations.read(tmp_path) == {key: newer}


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch, synthetic: type[Synthetic]) -> type[Synthetic]:
    """Commits need not exist: their packages are measured by a synthetic run, in which only padded differs."""
    monkeypatch.setattr(module, "tree_of_commit", lambda project, sha, folder: sha)
    monkeypatch.setattr(module, "changes", lambda *_: SimpleNamespace(rungs=["transpose/padded"]))
    return synthetic


def noise(turn: int) -> float:
    return 1 + 2e-4 * ((7 * turn) % 5 - 2)


@pytest.mark.parametrize(
    ("flagged", "truth", "word"),
    [
        (0.02, 1.02, "confirmed"),
        (0.02, 1.015, "confirmed"),
        (-0.02, 0.98, "confirmed"),
        (0.02, 1.0, "refuted"),
        (-0.02, 1.0, "refuted"),
        (0.03, 1.004, "refuted"),  # less than half, and no step that would be flagged
        (0.02, 0.98, "refuted"),
        (0.006, 1.006, "confirmed"),
        (0.006, 1.0, "refuted"),
    ],
)
def test_less_than_half_of_what_was_flagged_refutes_it(
    packages: type[Synthetic], flagged: float, truth: float, word: str
) -> None:
    packages.ratio = staticmethod(
        lambda side, rung, turn: noise(turn + len(rung)) * (truth if (side, rung) == (AFTER, "padded") else 1.0)
    )
    (verdict,) = confirm(PROJECT, [Flag(PADDED, BEFORE, AFTER, flagged)], 300.0)
    assert (verdict.word, verdict.cell, verdict.before, verdict.after) == (word, PADDED, BEFORE, AFTER)
    assert verdict.change is not None
    assert verdict.low is not None
    assert verdict.high is not None
    assert verdict.low <= verdict.change <= verdict.high
    assert abs(verdict.change - (truth - 1)) < 1e-3
    assert verdict.turns >= 4


def test_what_is_too_noisy_is_not_decided(packages: type[Synthetic]) -> None:
    packages.ratio = staticmethod(lambda side, rung, turn: 1 + 0.1 * ((13 * turn + 5 * (side == AFTER)) % 7 - 3))
    (verdict,) = confirm(PROJECT, [Flag(PADDED, BEFORE, AFTER, 0.01)], 0.0)
    assert verdict.word == "not decided"
    assert verdict.why


def test_what_no_suite_times_is_not_tried(packages: type[Synthetic]) -> None:
    packages.ratio = staticmethod(lambda side, rung, turn: noise(turn))
    gone = "transpose/gone float32 4096x4096 cold"
    verdicts = confirm(PROJECT, [Flag(gone, BEFORE, AFTER, 0.1), Flag(PADDED, BEFORE, AFTER, 0.1)], 300.0)
    assert {verdict.cell: verdict.word for verdict in verdicts} == {gone: "not tried", PADDED: "refuted"}
    turns = {verdict.cell: [verdict.turns, len(verdict.logs)] for verdict in verdicts}
    assert turns == {gone: [0, 0], PADDED: [4, 4]}


def test_cells_between_the_same_commits_share_their_turns(packages: type[Synthetic]) -> None:
    packages.ratio = staticmethod(lambda side, rung, turn: noise(turn))
    other = "3" * 40
    flags = [Flag(PADDED, BEFORE, AFTER, 0.1), Flag(COPY, BEFORE, AFTER, 0.1)]
    assert len(confirm(PROJECT, flags, 300.0)) == 2
    assert len(confirm(PROJECT, [Flag(PADDED, AFTER, other, -0.1)], 300.0)) == 1
    sides = [side for side, _ in packages.calls]
    assert (sides.count(BEFORE), sides.count(AFTER), sides.count(other)) == (4, 8, 4)
    assert all({"padded", "copy"} <= set(rungs) for side, rungs in packages.calls if side == BEFORE)


def test_each_cell_is_held_against_its_own_flag(packages: type[Synthetic]) -> None:
    """A small change beside a large one: +0.4 % is most of what was flagged of one, and little of the other."""
    packages.ratio = staticmethod(
        lambda side, rung, turn: (
            noise(turn + len(rung)) * (1.004 if side == AFTER and rung in ("padded", "copy") else 1.0)
        )
    )
    verdicts = confirm(PROJECT, [Flag(PADDED, BEFORE, AFTER, 0.06), Flag(COPY, BEFORE, AFTER, 0.006)], 300.0)
    assert {verdict.cell: verdict.word for verdict in verdicts} == {PADDED: "refuted", COPY: "confirmed"}


def flagged(word: str | None) -> dict[str, Any]:
    change = {"cell": PADDED, "from": BEFORE, "to": AFTER, "change": 0.1, "place": {"machine": "here"}}
    return {"changes": [change | {"verdict": {"word": word} if word else None}]}


@pytest.mark.parametrize(
    ("word", "tried"), [(None, 1), ("not tried", 1), ("not decided", 1), ("confirmed", 0), ("refuted", 0)]
)
def test_what_is_not_decided_is_tried_by_the_next_run(word: str | None, tried: int) -> None:
    assert len(confirming.untried([flagged(word)], "here")) == tried
    assert confirming.untried([flagged(word)], "elsewhere") == []


# --- how verdicts are kept -----------------------------------------------------------------------------------------

TIME = "2026-01-01T00:00:00+00:00"
ONE = Confirmation(PADDED, BEFORE, AFTER, "confirmed", 0.02, 0.021, 0.019, 0.023, 4, "", TIME, (0.02,))
TWO = dataclasses.replace(ONE, cell=COPY, word="refuted", change=None, low=None, high=None, why="it changed")


def test_a_verdict_is_kept_and_the_newest_counts(tmp_path: Path) -> None:
    confirmations.save(tmp_path, [ONE, TWO])
    assert confirmations.read(tmp_path) == {(PADDED, BEFORE, AFTER): ONE, (COPY, BEFORE, AFTER): TWO}
    newer = dataclasses.replace(ONE, word="refuted", at="2026-01-02T00:00:00+00:00")
    confirmations.save(tmp_path, [newer])
    assert confirmations.read(tmp_path) == {(PADDED, BEFORE, AFTER): newer, (COPY, BEFORE, AFTER): TWO}
    (path,) = tmp_path.iterdir()
    assert path.name == f"{AFTER[:8]}.confirmed.jsonl"  # one file a commit
    path.write_text(path.read_text().replace(', "logs": [0.02]', ""))  # as versions before this field wrote it
    without = dataclasses.replace(newer, logs=())
    assert confirmations.read(tmp_path)[PADDED, BEFORE, AFTER] == without


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[: len(line) // 2],
        lambda line: "[1, 2]",
        lambda line: line.replace('"confirmed"', '"certain"'),
        lambda line: line.replace("0.021", "NaN"),
        lambda line: line.replace("[0.02]", "[NaN]"),
        lambda line: line.replace("0.021", '"<script>"'),
        lambda line: line.replace(f'"{PADDED}"', "7"),
    ],
)
def test_a_line_that_cannot_be_read_counts_as_not_tried(tmp_path: Path, damage: Callable[[str], str]) -> None:
    confirmations.save(tmp_path, [ONE, TWO])
    (path,) = tmp_path.iterdir()
    first, second = path.read_text().splitlines()
    assert damage(first) != first
    path.write_text(f"{damage(first)}\n{second}\n")
    assert list(confirmations.read(tmp_path).values()) == [TWO]


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["confirmed", "refuted", "not tried"], "confirmed"),
        (["refuted", "not decided"], "not decided"),
        (["refuted", "not tried"], "not tried"),
        (["refuted", "refuted"], "refuted"),
        ([], "not tried"),
    ],
)
def test_an_event_is_refuted_only_if_every_change_is(words: list[Any], word: str) -> None:
    assert overall(words) == word


def event(kind: str, state: str) -> dict[str, Any]:
    return {"kind": kind, "state": state, "open": kind == "regression" and state in ("new", "confirmed")}


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([], 0),
        ([event("regression", "refuted"), event("improvement", "confirmed")], 0),
        ([event("regression", "confirmed")], 1),
        ([event("regression", "new")], 1),
        ([event("regression", "accepted"), event("regression", "fixed")], 0),
    ],
)
def test_an_open_regression_is_the_exit_code(events: list[dict[str, Any]], code: int) -> None:
    assert shown.code_of(events) == code


# --- a real run ----------------------------------------------------------------------------------------------------

LOOP = "    for (long long m0 = 0;"
SERIES = "transpose.CPU.track_seconds"
SUITE = f"^{re.escape(SERIES)}"
COMMITS, STEP, DISTURBED = 40, 15, (30, 31)
TIMES = 100
ONLY_HOT = {"kernelwatch/plan/cells.py": {'if cache == "cold" or shape in hot]': 'if cache == "hot"]'}}


def one_rung(folder: Path) -> None:
    """Leave of a copy's CPU ladder the rung that changes and its control."""
    few_rungs(folder, ("numpy", "c_blocked"))
    ladder = folder / "gpukernels" / "ladder.toml"
    ladder.write_text(re.sub(r"(?m)^types = .*$", 'types = ["float32"]', ladder.read_text()))
    for edits in (ONLY_HOT, FEWEST_TURNS, OWN_CLOCK, FEW_SAMPLES, cpu_processes(2)):  # the fewest with a spread
        rewrite(folder, edits)
    smaller(folder, cpu_shapes="problem.cpu_shapes[:1]")


def recorded_like(folder: Path, measured: str, commit: str, scale: float) -> None:
    """Record a commit as another one was measured, every time multiplied, with processes that hardly differ."""
    for path in list(folder.glob(f"{measured[:8]}-checkout*")):
        copy = folder / path.name.replace(measured[:8], commit[:8])
        if path.suffix == ".json":
            result = json.loads(path.read_text())
            result["commit_hash"] = commit
            for name, entry in result["results"].items():
                if name.endswith("track_seconds"):
                    entry[0] = [value and scale * value for value in entry[0]]
            copy.write_text(json.dumps(result))
        else:
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            for line in lines:
                visits = line.get("visits", ())
                middle = statistics.median(visit["seconds"] for visit in visits) if visits else 0.0
                for visit in visits:
                    visit["seconds"] = scale * middle * (1 + 1e-3 * (visit["process"] - 1))
                    visit["identity"] += commit  # another binary each time: a step can be the commit's
            copy.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def seconds_of(folder: Path, commit: str) -> list[float]:
    """What is recorded of a commit."""
    (path,) = folder.glob(f"{commit[:8]}-checkout*.json")
    return [value for value in json.loads(path.read_text())["results"][SERIES][0] if value and not math.isnan(value)]


def test_a_true_step_is_confirmed_and_a_disturbed_run_refuted_and_measured_again(
    kernel_cache: Path, tmp_path: Path
) -> None:
    """One commit works a hundred times more; two later runs were recorded as if the machine had been as busy."""
    project = new_project(tmp_path)
    copy_into(project.folder)
    uncommitted_harness(project.folder)
    without_suites(project.folder, "access", "device", "matmul", "static")
    one_rung(project.folder)
    source = project.folder / "gpukernels" / "transpose" / "c_blocked.c"
    commits = []
    for at in range(COMMITS):
        if at == STEP:
            slow = f"    {WORKS}\n    optopt += {TIMES};\n{LOOP}"
            source.write_text(source.read_text().replace(LOOP, slow))
        commits.append(project.commit_all(f"commit {at}", "--allow-empty"))
    arguments = ("--no-gate", "--bench", SUITE)
    measured = commits[STEP - 1], commits[STEP]
    done = project.asv("run", "-E", "checkout", "--bench", SUITE, f"{commits[STEP - 2]}..{commits[STEP]}")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (path for path in (project.folder / "results").iterdir() if path.is_dir())
    for at, commit in enumerate(commits):
        scale = (1 + 1e-3 * (at % 3)) * (TIMES if at in DISTURBED else 1.0)
        recorded_like(folder, measured[at >= STEP], commit, scale)
    done = project.bench(*arguments, "--confirm-budget", "300", f"{commits[0]}..main", only="")
    assert done.returncode == 1, done.stdout + done.stderr
    said = done.stdout
    step, begin, end = (commits[at][:8] for at in (STEP, DISTURBED[0], DISTURBED[-1] + 1))
    for commit, flagged, verdict in ((step, "x", "confirmed: x"), (begin, "x", "refuted: "), (end, "-", "refuted: ")):
        assert re.search(rf"^\w+\.\.{commit} transpose/.*: flagged {flagged}.*; {verdict}", said, re.MULTILINE), said
    assert "disturbed runs: 2 commits are measured again" in said
    assert re.search(rf"^regression, confirmed at {step} \(commit {STEP}\): ", said, re.MULTILINE), said
    events = json.loads((project.folder / ".asv/html/data/events.json").read_text())["events"]
    words_now = {(event["last"]["hash"][:8], event["verdict"]) for event in events if event["kind"] != "environment"}
    assert (step, "confirmed") in words_now
    (shown,) = (
        event["id"] for event in events if event["last"]["hash"][:8] == step and event["verdict"] == "confirmed"
    )
    causes = json.loads((project.folder / f".asv/html/data/causes/{shown}.json").read_text())
    assert all(len(cell["confirmed"]) == 2 for cell in causes["cells"])
    assert {word for _, word in words_now - {(step, "confirmed")}} <= {"refuted"}
    for commit in (commits[at] for at in DISTURBED):
        usual, again = (seconds_of(folder, other) for other in (commits[DISTURBED[0] - 1], commit))
        assert again == pytest.approx(usual, rel=0.01)
    words = {(verdict.after[:8], verdict.word) for verdict in confirmations.read(folder).values()}
    assert words >= {(step, "confirmed"), (begin, "refuted"), (end, "refuted")}


@pytest.mark.parametrize(
    ("own", "change", "commits", "is_new"),
    [
        ({}, {}, ["main 9"], True),  # it shows some commits after its own
        ({}, {"later": LATE + 1}, ["main 9"], False),
        ({}, {"later": LATE + 1}, ["main 3"], True),  # the run measured its own commit
        ({}, {"verdict": {"word": "refuted"}}, ["main 9"], False),
        ({}, {"verdict": {"word": "not decided"}}, ["main 9"], True),
        ({}, {"place": {"machine": "other"}}, ["main 3"], False),
        ({"kind": "environment"}, {}, ["main 3"], False),
        ({}, {}, ["feature 9"], False),  # a run of another line of commits
        ({"branch": "feature"}, {}, ["main 9"], False),
        ({"branch": "feature"}, {}, ["feature 9"], True),
    ],
)
def test_which_events_are_new_to_a_run(
    tmp_path: Path, own: dict[str, str], change: dict[str, Any], commits: list[str], is_new: bool
) -> None:
    place, names = {"machine": "host"}, {"cell": "a/b float32 8x8 cold", "from": "main 2", "to": "main 3"}
    told = {"place": place, "later": LATE, "change": 0.1, "verdict": None, **names, **change}
    older = {**told, "later": 3 * LATE}  # another series, which was measured at more commits
    event: dict[str, Any] = {"kind": "regression", "branch": "main", "changes": [told, older]} | own
    event |= {name: {"hash": "main 3"} for name in ("first", "last")}
    lines = [{"name": "main", "configured": True}, {"name": "feature", "configured": False, "commits": ["feature 9"]}]
    page = tmp_path / "events.json"
    page.write_text(json.dumps({"events": [event], "lines": lines}))
    assert Events(page, commits, "host").now() == [event] * is_new
