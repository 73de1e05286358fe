"""What is said of an event: the exact figures that moved, the lines, a sentence, and why there may be none."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.project import PROJECT
from kernelwatch.analysis import compiled
from kernelwatch.detect.chain import chains
from kernelwatch.detect.events import Change, Event, JudgedSeries, events
from kernelwatch.detect.linked import linked
from kernelwatch.detect.results import Result
from kernelwatch.detect.steps import Point, Step
from kernelwatch.history.links import Session
from kernelwatch.plan.project import Project
from kernelwatch.publish import explaining, figures, sentences
from kernelwatch.publish.causes import Causes, moved_lines
from kernelwatch.publish.explaining import Explaining, Kernel
from kernelwatch.publish.sentences import Look
from tests.test_chain import POSITIONS, a_link, a_session

ONLY = "only commits of the configured branches are compiled"
KERNEL = compiled.target("transpose", "padded", "float32", "sm_90")
COUNTED = {
    "global_load": {"requests": 8, "cost": 32},
    "global_store": {"requests": 8, "cost": 32},
    "shared_load": {"requests": 8, "cost": 8},
    "shared_store": {"requests": 8, "cost": 8},
    "blocks": 2,
    "barriers": 2,
}
COMPILED = {
    "registers": 32,
    "spill_load_bytes": 0,
    "spill_store_bytes": 0,
    "shared_bytes": 4224,
    "block_threads": 256,
    "occupancy_percent": 100.0,
    "instructions": 150,
    "mix": {"global": 8},
}


def look(counted: dict[str, Any], binary: dict[str, Any], lines: Any = (), sass: Any = None) -> Look:
    found = figures.compiled_figures(COMPILED, COMPILED | binary) + figures.counted_figures(COUNTED, COUNTED | counted)
    return Look("transpose/padded float32 sm_90", found, {}, lines, sass or {})


@pytest.mark.parametrize(
    ("counted", "binary", "said"),
    [
        (
            {"shared_load": {"requests": 8, "cost": 16}},
            {},
            "each warp\u2019s load of shared memory takes 2 passes through the banks instead of 1",
        ),
        (
            {"global_load": {"requests": 8, "cost": 256}},
            {},
            "each warp\u2019s load of global memory touches 32 sectors instead of 4",
        ),
        ({"barriers": 10}, {}, "a block waits at 5 barriers instead of 1"),
        ({}, {"spill_load_bytes": 16, "spill_store_bytes": 8}, "a thread spills 24 bytes instead of 0"),
        ({}, {"occupancy_percent": 75.0}, "75 % of the warps fit on a multiprocessor instead of 100 %"),
        ({}, {"registers": 40}, "a thread has 40 registers instead of 32"),
    ],
)
def test_each_figure_has_its_clause(counted: dict[str, Any], binary: dict[str, Any], said: str) -> None:
    assert sentences.cause(look(counted, binary), is_worse=True) == said


def test_what_explains_the_change_comes_first_and_what_does_not_last() -> None:
    moved = look({"shared_load": {"requests": 8, "cost": 16}}, {"registers": 40, "spill_load_bytes": 16})
    said = sentences.cause(moved, is_worse=True)
    assert said.startswith("a thread spills 16 bytes")
    assert said.index("2 passes") < said.index("40 registers")
    assert "although" not in said
    said = sentences.cause(moved, is_worse=False)
    assert said.startswith("a thread has 40 registers instead of 32; although a thread spills 16 bytes")


def test_a_figure_that_moved_names_its_lines() -> None:
    before = {"text": ["a", "b", "c"], "lines": [[2, "shared_load", 8, 8, "b"], [3, "shared_store", 8, 8, "c"]]}
    after = {"text": ["new", "a", "b", "c"], "lines": [[3, "shared_load", 8, 16, "b"], [4, "shared_store", 8, 8, "c"]]}
    lines = moved_lines(Kernel(KERNEL, before, after))
    assert lines == [
        {"kind": "shared_load", "before": 2, "after": 3, "text": "b", "requests": [8, 8], "cost": [8, 16]}
    ]  # the other stands one line lower, and is the same
    said = sentences.cause(look({"shared_load": {"requests": 8, "cost": 16}}, {}, lines), is_worse=True)
    assert said.endswith("instead of 1, line 3")
    gone = moved_lines(Kernel(KERNEL, before, {"text": ["a", "b"], "lines": [[2, "shared_load", 8, 8, "b"]]}))
    assert [(each["before"], each["after"], each["cost"]) for each in gone] == [(3, 0, [8, 0])]


def test_a_sentence_says_that_nothing_moved() -> None:
    same = {"same": False, "removed": 0, "added": 0, "moved": 0, "renamed": 0}
    said = sentences.cause(look({}, {}, sass=same), is_worse=True)
    assert said.startswith("no exact figure moved (")
    assert said.endswith("how long instructions wait")
    assert sentences.cause(look({}, {}, sass=same | {"renamed": 7}), is_worse=True).endswith(
        "7 of them with other registers or addresses"
    )
    assert "bit by bit" in sentences.cause(look({}, {}, sass={"same": True}), is_worse=True)


@pytest.mark.parametrize(
    ("diff", "said"),
    [
        (["--- a/x.cu", "+++ b/x.cu", "-pitch = 33;", "+  pitch = 34;"], "`pitch = 33;` became `pitch = 34;`"),
        (["@@ -1 +1,2 @@", " a", "+  __syncthreads();", "+"], "`__syncthreads();` was added"),
        (["-  b;"], "`b;` was removed"),
        (["-a", "-b", "+c"], ""),
        (["+" + 91 * "x"], ""),
        ([], ""),
    ],
)
def test_a_source_that_changed_by_a_line_is_quoted(diff: list[str], said: str) -> None:
    assert sentences.since(diff) == said


def test_what_cannot_be_looked_at_has_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(project: Project, commit: str, folder: Path) -> str:
        raise RuntimeError(f"no {commit}")

    monkeypatch.setattr(explaining, "tree_of_commit", broken)
    (kernel,) = Explaining(PROJECT).explain("1" * 40, "2" * 40, [KERNEL])
    assert kernel.why == f"11111111: RuntimeError: no {'1' * 40}"
    (kernel,) = Explaining(PROJECT, 0).explain("1" * 40, "2" * 40, [KERNEL])
    assert kernel.why.startswith("one publication looks at 0 events")
    assert Explaining(None).explain("1" * 40, "2" * 40, [KERNEL]) == []


def test_no_more_events_are_looked_at_than_wanted_and_each_kernel_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    def found(project: Project, tree: str, cells: Any) -> dict[str, dict[str, Any]]:
        looked.append((tree, [cell.key for cell in cells]))
        return {cell.key: {"no_binary": "it is a test"} for cell in cells}

    monkeypatch.setattr(explaining, "tree_of_commit", lambda project, commit, folder: commit)
    monkeypatch.setattr(explaining, "_found", found)
    first = Explaining(PROJECT, 1)
    assert [kernel.why for kernel in first.explain("a" * 40, "b" * 40, [KERNEL])] == [""]
    assert first.explain("b" * 40, "c" * 40, [KERNEL])[0].why.startswith("one publication looks at 1 events")
    assert [tree for tree, _ in looked] == ["a" * 40, "b" * 40]
    second = Explaining(PROJECT, 1)  # the next publication
    assert [kernel.why for kernel in second.explain("a" * 40, "b" * 40, [KERNEL])] == [""]
    assert [kernel.why for kernel in second.explain("b" * 40, "c" * 40, [KERNEL])] == [""]
    assert [tree for tree, _ in looked] == ["a" * 40, "b" * 40, "c" * 40]


def test_what_one_clone_has_looked_at_another_one_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not so a project in another folder of the repository, which may be described alike."""
    looked: list[str] = []

    def found(project: Project, tree: str, cells: Any) -> dict[str, dict[str, Any]]:
        looked.append(str(project.root.relative_to(tmp_path)))
        return {cell.key: {"no_binary": "it is a test"} for cell in cells}

    monkeypatch.setattr(explaining, "tree_of_commit", lambda project, commit, folder: commit)
    monkeypatch.setattr(explaining, "_found", found)
    for clone in ("one", "two"):
        (tmp_path / clone / ".git").mkdir(parents=True)
        for folder in ("", "below"):
            here = tmp_path / clone / folder / "benchmarks" / "project.py"
            here.parent.mkdir(parents=True)
            here.write_bytes(PROJECT.here.read_bytes())
            (here.parents[1] / "asv.conf.json").write_text("{}")
            Explaining(replace(PROJECT, here=here)).explain("d" * 40, "e" * 40, [KERNEL])
    assert looked == ["one"] * 2 + ["one/below"] * 2


@pytest.mark.parametrize(("own", "why"), [(None, ""), (("c1",), ONLY)])
def test_only_commits_of_configured_branches_are_compiled(own: tuple[str, ...] | None, why: str) -> None:
    """To compile a commit runs its code. A series along another line of commits names those that are its own."""
    results = [Result(f"c{at}", Point(at, 1.0 + at)) for at in range(2)]
    series = JudgedSeries("a.b", {}, {}, False, False, results, "transpose/padded float32 4096x4096 cold", own=own)
    event = Event("regression", (Change(series, Step(1, "step", 1.0, 2.0, 0.01)),))
    cells, told = explaining.kernels_of(event, [series.cell], PROJECT, "sm_90")
    assert told == why
    assert cells == ([] if why else [KERNEL])


def test_the_links_of_an_event_are_not_looked_for_in_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit may change ten thousand launches: to search all of a session for each of them takes minutes."""
    cells = [f"op/rung float32 {at}x1 cold" for at in range(20)]
    session = a_session(1, 2, *(a_link(0.03, cell=cell) for cell in cells), replace(a_link(0.001), control=True))
    [*known] = chains([session], POSITIONS).items()
    searched: list[str] = []

    def counted(name: str, found: Any) -> property:
        def get(_: Session) -> Any:
            searched.append(name)
            return found

        return property(get)

    for name in ("changed", "links"):
        monkeypatch.setattr(Session, name, counted(name, getattr(session, name)))
    series = linked([], {"m": dict(known)}, "main")
    [event] = events(change for each in series for change in each.changes())
    assert {test.name for change in event.changes for test in change.step.tests} == {"interval", "control"}
    causes = Causes(SimpleNamespace(conf=None, project=None), {}, {"m": [session]}, {}, {})  # type: ignore[arg-type]
    assert causes._links(event) == [session] * len(cells)
    assert searched == ["links"]  # once for all controls
