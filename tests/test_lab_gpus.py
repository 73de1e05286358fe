"""What links of several GPUs say of each other, from sessions whose differences are known."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.project import PROJECT
from kernelwatch.comparison.linking import asked_of
from kernelwatch.history.links import Link, Session
from kernelwatch.system.git import resolve
from lab import gpus, links, others, pools, twins

COMMITS = [pools.name(at) for at in range(3)]
COLD, HOT, LOWERED = (f"op/rung float32 {shape}" for shape in ("64x64 cold", "64x64 hot", "4096x4096 cold"))
CELLS = {COLD: 1980.0, HOT: 1980.0, LOWERED: 1500.0}


def a_session(gpu: int, *own: Link, model: str = "H200", **more: object) -> Session:
    conditions = {"gpu": model, "nvml_uuid_sha256": f"{gpu:016x}"[::-1], "nvml_driver": "1"}
    made = Session("step", COMMITS[0], COMMITS[1], f"2026-11-26T{gpu:02}:00:00", 1.0, conditions, 0, links=tuple(own))
    return replace(made, **more)  # type: ignore[arg-type]


def a_link(cell: str, log: float, error: float = 0.0001, slow: float = 0.0, **more: object) -> Link:
    """A link of a GPU that is slower by `slow` before the change."""
    seconds = (float(np.exp(slow)), float(np.exp(slow + log)))
    made = Link(cell, log, error, 3, (log,) * 4, seconds, ("a", "b"), (CELLS[cell], CELLS[cell]))
    return replace(made, **more)  # type: ignore[arg-type]


def rows(text: str) -> dict[str, list[str]]:
    found = [[each.strip() for each in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {own[0]: own[1:] for own in found}


def test_the_ratio_of_a_change_differs_between_gpus_by_more_than_its_noise() -> None:
    offs = np.array([-0.01, 0.0, 0.01, 0.0])
    sessions = [
        a_session(gpu, a_link(COLD, 0.05 + off), a_link(HOT, 0.05), a_link(LOWERED, 0.05 + 3 * off, 0.02))
        for gpu, off in enumerate(offs.tolist())
    ]
    found = {change.cell: change for change in gpus.changes(sessions)}
    apart = float(np.std(offs, ddof=1))
    assert found[COLD].apart == pytest.approx(apart)
    assert found[COLD].noise == pytest.approx(0.0001)
    assert found[COLD].rest == pytest.approx(apart, rel=0.01)
    assert found[LOWERED].rest == pytest.approx(np.sqrt(9 * apart**2 - 0.02**2))
    assert found[HOT].rest == 0
    told = rows(gpus.responding_table(sessions))
    assert list(told) == ["cold", "hot", "lowered clock"]
    assert told["cold"][:6] == ["1", "4", "4", "0.82", "0.82", "0.82"]
    assert told["lowered clock"][3] == "2.45"


def test_what_too_few_gpus_measured_tells_nothing() -> None:
    two = [a_session(gpu, a_link(COLD, 0.05)) for gpu in (0, 1, 1)]
    others = [
        a_session(2, a_link(COLD, 0.05), model="H100"),
        a_session(2, a_link(COLD, 0.05, identities=("a", "c"))),
        a_session(2, a_link(COLD, 0.05, identities=("", ""))),
        a_session(2, a_link(COLD, 0.05, control=True)),
        a_session(2, a_link(COLD, 0.05), kind="environment", after=COMMITS[0]),
    ]
    assert gpus.changes([*two, *others]) == []
    assert "no change was measured by 3 GPUs yet" in gpus.responding_table(two)
    third = a_session(3, a_link(COLD, 0.05), before=COMMITS[1], after=COMMITS[2])  # the same launches elsewhere
    (change,) = gpus.changes([*two, third])
    assert (len(change.gpus), change.links) == (3, 4)
    assert len(gpus.changes(two, least=2)) == 1


def test_the_correlation_is_that_of_the_seconds_before_and_after() -> None:
    rng, share, sd = np.random.default_rng(3), 0.8, 0.01
    cells = [f"op/rung float32 {at}x64 cold" for at in range(1, 60)]
    old = sd * rng.standard_normal((len(cells), 5))
    new = share * old + np.sqrt(1 - share**2) * sd * rng.standard_normal(old.shape)
    sessions = []
    for gpu in range(5):
        own = []
        for at, cell in enumerate(cells):
            log = float(new[at, gpu] - old[at, gpu])
            seconds = (float(np.exp(old[at, gpu])), float(np.exp(new[at, gpu])))
            own.append(replace(a_link(COLD, log), cell=cell, seconds=seconds))
        sessions.append(a_session(gpu, *own))
    assert gpus.correlation(gpus.changes(sessions)) == pytest.approx(share, abs=0.06)
    alike = [a_session(gpu, a_link(COLD, 0.05, slow=0.01 * gpu)) for gpu in range(3)]
    assert gpus.correlation(gpus.changes(alike)) == pytest.approx(1)
    assert rows(gpus.responding_table(alike))["cold"][3:] == ["0.00", "0.00", "0.00", "0.01", "0.00", "1.00", "1.00"]


def test_an_a_a_that_calls_a_launch_slower_is_counted() -> None:
    sessions = [
        a_session(gpu, *(a_link(cell, log, identities=("", "")) for cell in CELLS), kind="environment",
                  after=COMMITS[0])
        for gpu, log in enumerate((0.0005, -0.001, 0.02))
    ]  # fmt: skip
    told = rows(gpus.alike_table(sessions))
    assert told["cold"][:7] == ["3", "3", "1", "0", "0.10", "1.62", "2.00"]
    assert [*told] == ["cold", "hot", "lowered clock"]
    two = [replace(each, environments={"torch": ("1", "2")}) for each in sessions]
    assert "none was measured yet" in gpus.alike_table([*two, a_session(0, a_link(COLD, 0.5))])


def test_an_a_a_takes_its_launches_for_different_ones_and_keeps_a_session_of_no_commits() -> None:
    """All its turns are measured, as those of a change are, though both sides launch the same."""
    cells = asked_of(PROJECT, "^transpose/c_blocked float32 256x256 cold$")
    session = twins.twins(PROJECT, resolve(PROJECT.root, "HEAD"), cells, 1.0)
    (link,) = session.changed
    assert len(link.logs) >= 4
    assert link.identities == ("", "")
    assert (session.kind, session.before, dict(session.environments)) == ("environment", session.after, {})
    assert [link.cell for link in session.links if link.control] == ["transpose/numpy float32 256x256 cold"]


def test_the_a_a_has_cells_of_each_kind() -> None:
    keys = [cell.key for cell in asked_of(PROJECT, twins.CELLS)]
    assert len(keys) == 19
    assert {key.rpartition(" ")[2] for key in keys} == {"cold", "hot"}
    assert {key.partition("/")[0] for key in keys} == {"vector_add", "transpose", "matmul"}


def test_the_history_has_a_commit_once_and_what_all_its_gpus_say() -> None:
    sessions = [
        a_session(0, a_link(COLD, 0.05), a_link(HOT, -0.02), a_link(LOWERED, 0.02)),
        a_session(1, a_link(COLD, 0.07), a_link(HOT, -0.02), a_link(LOWERED, 0.0)),
        a_session(1, a_link(COLD, 0.5), kind="environment", after=COMMITS[0]),
    ]
    told = [line.strip("| ").split(" | ")[1:] for line in links.history_table(sessions).splitlines()[2:]]
    assert told == [["worse", "1 of 3", "2", "+6.2 %", COLD], ["better", "1 of 3", "2", "-2.0 %", HOT]]


def test_what_the_history_cost_counts_each_commit_once() -> None:
    first, again, other = a_session(0), a_session(1), a_session(1, after=COMMITS[2])
    anchor = a_session(0, kind="anchor", after=COMMITS[2])
    assert others.first_steps([anchor, first, again, other]) == [first, other]
