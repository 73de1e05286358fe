"""What many series do at once although their binaries are the same: the environment moved, and no commit did."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest

from kernelwatch.detect import common, events
from kernelwatch.detect.results import Result
from kernelwatch.detect.steps import Point

STEP = 8  # the commit at which something moves
NOISE = (0.0, 4e-4, -3e-4, 1e-4, -4e-4, 3e-4, -1e-4)
CELLS = 8


def judged_cell(name: str, values: Sequence[float], changed: int | None, machine: str = "host") -> events.JudgedSeries:
    """A timed cell. `changed`: the commit that changed its binary, None if none did."""
    results = tuple(
        Result(
            f"c{at}",
            Point(at, value, 4e-4, f"binary {changed is not None and at >= changed}", '{"driver": "580"}'),
        )
        for at, value in enumerate(values)
    )
    return events.JudgedSeries(name, {}, {"machine": machine}, False, False, results)


def history_of(*factors: float, length: int = 16) -> list[float]:
    """Values with a little noise, times a factor from the 8th on, another from the 12th on."""
    levels = [1.0] * STEP + [factors[0]] * 4 + [factors[-1]] * (length - STEP - 4)
    return [1e-5 * level * (1 + NOISE[at * 5 % len(NOISE)]) for at, level in enumerate(levels)]


def judged_events(series: list[events.JudgedSeries]) -> list[events.Event]:
    moves = common.moves(series)
    changes = [change for each in common.without(series, moves) for change in each.changes()]
    return events.events([*changes, *(change for move in moves for change in move.changes)])


def test_what_many_unchanged_cells_do_too_is_the_environments() -> None:
    """All cells are 3 % slower from one commit on, which changed the binaries of three; one of these is slower by 5 %
    more."""
    same = [judged_cell(f"same {at}", history_of(1.03), None) for at in range(CELLS)]
    moved = [judged_cell(f"moved {at}", history_of(1.03), STEP) for at in range(2)]
    slower = judged_cell("slower", history_of(1.03 * 1.05), STEP)
    regression, environment = sorted(judged_events([*same, *moved, slower]), key=lambda event: -len(event.kind))[::-1]
    assert (regression.kind, environment.kind) == ("regression", "environment")
    assert [change.series.benchmark for change in regression.changes] == ["slower"]
    (step,) = [change.step for change in regression.changes]
    assert step.change == pytest.approx(0.05, abs=1e-3)
    assert step.after == pytest.approx(1.03 * 1.05e-5, rel=1e-3)  # as recorded
    assert {change.series.benchmark for change in environment.changes} == {f"same {at}" for at in range(CELLS)}
    elsewhere = [
        dataclasses.replace(each, own={"c3"}) for each in same
    ]  # a branch that has the commit from another one
    assert [move.changes for move in common.moves(elsewhere)] == [()]
    assert environment.why == f"{CELLS} of {CELLS} cells whose binary is the same moved by +3.03% too"
    alone = judged_events([*moved, slower])
    assert [(event.kind, len(event.changes)) for event in alone] == [("regression", 3)]


def test_what_comes_back_is_the_environments_twice() -> None:
    same = [judged_cell(f"same {at}", history_of(1.03, 1.0), None) for at in range(CELLS)]
    changed = judged_cell("changed", history_of(1.03, 1.0), STEP)
    assert [(event.kind, event.last) for event in judged_events([*same, changed])] == [
        ("environment", "c12"),
        ("environment", "c8"),
    ]


def test_a_cell_that_the_environment_did_not_move_is_not_corrected() -> None:
    same = [judged_cell(f"same {at}", history_of(1.03), None) for at in range(CELLS)]
    still = judged_cell("still", history_of(1.0), STEP)
    assert {event.kind for event in judged_events([*same, still])} == {"environment"}


def drifting_events(others: Sequence[float]) -> list[str]:
    """The kinds of the changes of a cell that slows down by 0.1 % at each of a hundred commits that change its binary,
    beside cells of the same binary that take so much longer in the end."""

    def values(rise: float, seed: int) -> list[float]:
        noise = np.random.default_rng(seed).standard_normal(140)
        return list(np.exp(math.log1p(rise) * np.clip((np.arange(140) - 20) / 100, 0, 1) + 4e-4 * noise))

    series = [judged_cell(f"same {at}", values(rise, at), None) for at, rise in enumerate(others)]
    grown = judged_cell("grown", values(0.105, 100), 60)
    changes = common.drifts([change for each in [*series, grown] for change in each.changes()], [*series, grown])
    own = [change for change in changes if change.series is grown]
    for change in own:
        assert change.step.change == pytest.approx(0.105, abs=0.005)
        assert abs(change.last.point.commit - 120) <= 3
    return [change.kind for change in own]


def test_what_one_cell_alone_does_slowly_is_its_own_and_what_most_do_the_machines() -> None:
    assert drifting_events([0.0] * CELLS) == ["regression"]
    assert drifting_events([0.1] * CELLS) == ["environment"]
    assert drifting_events([0.1] * 4 + [0.0] * 5) == ["regression"]
    assert drifting_events([-0.1] * CELLS) == ["regression"]
    assert drifting_events([0.1] * 4) == ["regression"]  # too few to tell


def test_the_environment_may_move_after_another_one_began() -> None:
    """The driver changed before the common move: the commits on both sides of the move have the same one."""
    same = [judged_cell(f"same {at}", history_of(1.03), None) for at in range(CELLS)]
    for at, each in enumerate(same):
        old = [
            dataclasses.replace(one, point=dataclasses.replace(one.point, conditions='{"driver": "570"}'))
            for one in each.results[:3]
        ]
        same[at] = dataclasses.replace(each, results=(*old, *each.results[3:]))
    (move,) = common.moves(same)
    assert (move.place[2:], len(move.changes)) == ((STEP - 1, STEP), CELLS)


@pytest.mark.parametrize("different", ["few", "machine", "conditions", "directions"])
def test_what_few_do_or_others_do_elsewhere_is_no_common_move(different: str) -> None:
    same = [judged_cell(f"same {at}", history_of(1.03), None) for at in range(CELLS)]
    still = [judged_cell(f"still {at}", history_of(1.0), None) for at in range(CELLS + 1)]
    if different == "few":
        same += still
    elif different == "machine":
        same = [dataclasses.replace(each, place={"machine": str(at % 4)}) for at, each in enumerate(same)]
    elif different == "directions":
        same[::2] = [judged_cell(f"faster {at}", history_of(0.97), None) for at in range(CELLS // 2)]
        same += still[:1]
    else:
        for at, each in enumerate(same):
            results = list(each.results)
            results[STEP:] = [
                dataclasses.replace(one, point=dataclasses.replace(one.point, conditions='{"driver": "590"}'))
                for one in results[STEP:]
            ]
            same[at] = dataclasses.replace(each, results=tuple(results))
    changed = judged_cell("changed", history_of(1.03), STEP)
    assert common.moves([*same, changed]) == []
    assert "regression" in {event.kind for event in judged_events([*same, changed])}
