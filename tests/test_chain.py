"""The levels of linked launches: what single links, anchors, reverts and several GPUs say together."""

import math
import random
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.project import PROJECT
from kernelwatch.detect.chain import Chain, _blocks, chains
from kernelwatch.detect.events import JudgedSeries, events
from kernelwatch.detect.judging import LEVEL, judge
from kernelwatch.detect.linked import linked, verdict_on, verdicts_of
from kernelwatch.detect.testing import FLOOR
from kernelwatch.history.links import NOT_DESCRIBED, Link, Session, gone, gone_id
from kernelwatch.publish.lines import Line
from kernelwatch.publish.linked import compared, compared_with, still
from kernelwatch.publish.linked import failing as failing_of
from lab.planted import commit, commits, run

CELL = "op/rung float32 64x64 cold"
COMMITS = [f"{number:040x}" for number in range(200)]
POSITIONS = {commit: at for at, commit in enumerate(COMMITS)}


def a_link(log: float, error: float = 0.0002, identities: tuple[str, str] = ("", ""), cell: str = CELL) -> Link:
    return Link(cell, log, error, 5, (log,) * 6, (1e-5, 1e-5 * math.exp(log)), identities)


def a_session(before: int, after: int, *links: Link, gpu: str = "a", kind: str = "step", **more: object) -> Session:
    made = Session(
        kind, COMMITS[before], COMMITS[after], f"2026-11-{1 + after // 10:02}T00:00:{after % 60:02}", 1.0,  # type: ignore[arg-type]
        {"gpu": "H200", "nvml_uuid_sha256": gpu}, 3, links=links,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def a_chain(*sessions: Session) -> Chain:
    return chains(sessions, POSITIONS)[CELL]


def test_steps_add_up_whichever_gpu_measured_them() -> None:
    chain = a_chain(a_session(3, 4, a_link(0.02), gpu="a"), a_session(8, 9, a_link(-0.05), gpu="b"))
    assert [round(float(level), 9) for level in chain.levels] == [0, 0.02, -0.03]
    log, error = chain.span(0, 2)
    assert log == pytest.approx(-0.03)
    assert error == pytest.approx(math.hypot(0.0002, 0.0002))


def test_links_that_agree_by_chance_are_no_surer_than_each_says() -> None:
    chain = a_chain(*(a_session(1, 2, a_link(0.02), gpu=gpu) for gpu in "abcd"))
    assert chain.errors[-1] == pytest.approx(0.0002 / 2)


def test_a_commit_that_changed_nothing_makes_no_launch() -> None:
    chain = a_chain(a_session(3, 4, a_link(0.02)), a_session(5, 6), a_session(8, 9, a_link(0.01)))
    assert [node.commit for node in chain.nodes] == [COMMITS[4], COMMITS[9]]


def test_an_anchor_ends_the_drift_of_the_links_between() -> None:
    """Ten links that are all too large by 0.1 %: without the anchor the level is off by 1 %."""
    steps = [a_session(at, at + 1, a_link(0.001, 0.001)) for at in range(10)]
    assert float(a_chain(*steps).levels[-1]) == pytest.approx(0.01)
    anchored = a_chain(*steps, a_session(0, 10, a_link(0.0, 0.0002), kind="anchor"))
    assert abs(float(anchored.levels[-1])) < 0.0005
    assert anchored.errors[-1] < 0.001  # not 0.0002: the links and the anchor disagree


def test_a_link_of_one_launch_with_itself_moves_no_level() -> None:
    """An anchor between two commits whose launch is the same, as far as sessions tell."""
    chain = a_chain(a_session(1, 2, a_link(0.02)), a_session(5, 9, a_link(0.001), kind="anchor"))
    assert float(chain.levels[-1]) == pytest.approx(0.02)
    assert len(chain.edges) == 1


def test_a_step_is_compared_with_the_launch_just_before_it() -> None:
    """Another session compared the same commit with an older one, since the cell had failed between them there."""
    both = [a_session(2, 3, a_link(0.01), gpu="a"), a_session(1, 3, a_link(0.03), gpu="b")]
    for order in (both, both[::-1]):
        chain = a_chain(a_session(1, 2, a_link(0.02)), *order)
        assert (chain.start(2), [edge.session.gpu for edge in chain.at_node(2)]) == (1, ["H200 a"])


def test_a_launch_that_is_back_is_as_fast_as_before_whatever_its_links_measured() -> None:
    chain = a_chain(
        a_session(1, 2, a_link(0.030, identities=("old", "new"))),
        a_session(5, 6, a_link(-0.028, identities=("new", "old"))),
    )
    assert float(chain.levels[2]) == pytest.approx(0, abs=1e-5)
    assert chain.alike == [(0, 2)]


def test_a_launch_that_one_compiler_changed_and_another_one_did_not_has_the_level_that_was_measured() -> None:
    """The newer compiler makes of commits 1 and 2 what the older one makes of commit 1: it links neither."""
    old, new = ({"gpu": "H200", "nvml_uuid_sha256": each, "compiler": each} for each in "ab")
    own = [
        a_session(1, 2, a_link(0.03, identities=("plain", "unrolled")), conditions=old),
        a_session(5, 6, a_link(0.02, identities=("plain", "else")), conditions=new),
    ]
    chain = a_chain(*own)
    assert chain.alike == []
    assert chain.levels.tolist() == pytest.approx([0, 0.03, 0.05])
    [series] = linked([], {"m": {CELL: chain}}, "main")
    assert [change.step.change for change in series.changes()] == pytest.approx([math.expm1(0.03), math.expm1(0.02)])
    between = a_session(2, 3, a_link(0.01, identities=("unrolled", "other")), conditions=old)
    assert [round(float(level), 9) for level in a_chain(own[0], between, own[1]).levels] == [0, 0.03, 0.04, 0.06]


def test_what_could_not_be_measured_breaks_the_chain() -> None:
    chain = a_chain(
        a_session(1, 2, a_link(0.01)),
        a_session(3, 4, unjudged={"op/rung": "failed: wrong"}),
        a_session(5, 6, a_link(0.02)),
    )
    assert chain.pieces == [0, 0, 2, 2]
    assert math.isnan(chain.span(0, 3)[0])
    assert chain.nodes[1].why == "failed: wrong"


def a_run(before: int, after: int, log: float, error: float = 0.001, identities: tuple[str, str] = ("", "")) -> Session:
    """What two full runs of one GPU say of the cell."""
    own = replace(a_link(log, error, identities), control=bool(identities[0]) and identities[0] == identities[1])
    return a_session(before, after, own, kind="full runs")


def test_full_runs_join_what_no_link_joins_and_are_no_verdict() -> None:
    own = [
        a_session(1, 2, a_link(0.01)),
        a_session(3, 4, unjudged={"op/rung": "failed: wrong"}),
        a_session(5, 6, a_link(0.02)),
    ]
    chain = chains(own, POSITIONS, runs=[a_run(2, 5, 0.5), a_run(1, 5, 0.7, error=0.01)])[CELL]
    assert chain.pieces == [0, 0, 0, 0]
    assert [round(float(chain.levels[node]), 9) for node in (1, 3)] == [0.01, 0.51 + 0.02]  # not of the worse one, 0.72
    assert [edge.link.log for edge in chain.joins] == [0.5]
    assert chain.span(1, 3)[1] == pytest.approx(math.hypot(0.001, 0.0002), rel=0.01)
    [series] = linked([], {"m": {CELL: chain}}, "main")
    assert [change.last.commit for change in series.changes()] == [COMMITS[2], COMMITS[6]]
    assert {commit for _, _, commit in series.verdicts()} == {COMMITS[2], COMMITS[6]}


def test_full_runs_tell_of_a_commit_that_was_not_asked() -> None:
    own = [a_session(1, 2, a_link(0.01)), a_session(8, 9, a_link(0.02))]

    def told(*runs: Session) -> Chain:
        return chains(own, POSITIONS, [COMMITS[5], COMMITS[6]], runs)[CELL]

    assert told().pieces == [0, 0, 2, 2]
    changed = told(a_run(3, 7, 0.5, identities=("old", "new")))
    assert [(node.at, node.before_at, node.why) for node in changed.nodes] == [(2, 1, ""), (7, 3, ""), (9, 8, "")]
    assert float(changed.levels[-1]) == pytest.approx(0.53)
    same = told(a_run(3, 7, 0.5, identities=("old", "old")))
    assert [node.at for node in same.nodes] == [2, 9]
    assert float(same.levels[-1]) == pytest.approx(0.03)
    beside = [*own, a_session(3, 4, a_link(0.1))]  # which of the commits made it so much slower, nobody tells
    assert chains(beside, POSITIONS, [COMMITS[5]], [a_run(3, 7, 0.5)])[CELL].nodes[2].at == 5
    half = told(a_run(3, 5, 0.5))  # of the other commit nobody tells
    assert half.pieces == [0, 0, 0, 3, 3]


def test_full_runs_from_before_the_links_are_the_beginning_of_the_line() -> None:
    own, runs = [a_session(8, 9, a_link(0.02))], [a_run(0, 2, 0.5), a_run(2, 7, 0.1)]
    chain = chains(own, POSITIONS, [COMMITS[at] for at in (1, 4)], runs)[CELL]
    assert [(node.at, node.before_at) for node in chain.nodes] == [(2, 0), (7, 2), (9, 8)]
    assert float(chain.levels[-1]) == pytest.approx(0.62)
    assert chain.gradual() == []
    gap = chains(own, POSITIONS, [COMMITS[at] for at in (1, 4, 8)], runs)[CELL]  # after the last full run
    assert gap.pieces == [0, 0, 0, 3, 3]
    other = [replace(each, links=(replace(each.links[0], cell="op/b float32 64x64 cold"),)) for each in runs]
    assert [node.at for node in chains(own, POSITIONS, [COMMITS[1]], other)[CELL].nodes] == [9]


def test_full_runs_say_nothing_where_links_do() -> None:
    own = [a_session(1, 2, a_link(0.01)), a_session(4, 5, a_link(0.0015)), a_session(5, 6, a_link(0.0015))]
    alone = a_chain(*own)
    chain = chains(own, POSITIONS, runs=[a_run(0, 3, 0.9), a_run(3, 7, 0.9), a_run(2, 3, 0.9)])[CELL]
    assert (chain.joins, chain.nodes) == ([], alone.nodes)
    assert chain.levels.tolist() == alone.levels.tolist()


def test_no_gradual_change_leads_over_full_runs() -> None:
    slow = [a_session(at, at + 1, a_link(0.0015, 0.0003)) for at in range(10)]
    gap = a_session(20, 21, unjudged={"op/rung": "failed: wrong"})
    later = [a_session(at, at + 1, a_link(0.0015, 0.0003)) for at in range(30, 40)]
    chain = chains([*slow, gap, *later], POSITIONS, runs=[a_run(15, 25, 0.5)])[CELL]
    assert chain.pieces[-1] == 0
    assert chain.gradual() == [(0, 10), (11, 21)]


@pytest.mark.parametrize("earlier", [(), (0.05,)], ids=["the first change", "after another one"])
def test_links_of_several_gpus_are_taken_together_and_one_that_disagrees_is_named(earlier: tuple[float, ...]) -> None:
    own = [a_session(1, 2, a_link(log), gpu=gpu) for log, gpu in ((0.0101, "a"), (0.0099, "b"), (0.0100, "c"))]
    own += [a_session(0, 1, a_link(log)) for log in earlier]
    chain = a_chain(*own)
    assert float(chain.levels[-1]) == pytest.approx(sum(earlier, 0.01), abs=1e-4)
    assert chain.word(1 + len(earlier)) == "worse"
    assert chain.disagreeing() == []
    [(edge, how_far)] = a_chain(*own, a_session(1, 2, a_link(0.036), gpu="sick")).disagreeing()
    assert edge.session.gpu == "H200 sick"
    assert how_far == pytest.approx(0.026, abs=1e-3)


def test_many_small_steps_are_one_gradual_change_and_noise_is_none() -> None:
    slow = a_chain(*(a_session(at, at + 1, a_link(0.0015, 0.0003)) for at in range(20)))
    assert slow.gradual() == [(0, 20)]
    rng = random.Random(1)
    told = 0
    for _ in range(200):
        noise = [a_session(at, at + 1, a_link(rng.gauss(0, 0.0004), 0.0004)) for at in range(40)]
        told += len(a_chain(*noise).gradual())
    assert told == 0


def test_a_gradual_change_is_found_on_either_side_of_a_gap() -> None:
    slow = [a_session(at, at + 1, a_link(0.0015, 0.0003)) for at in range(10)]
    gap = a_session(20, 21, unjudged={"op/rung": "failed: wrong"})
    later = [a_session(at, at + 1, a_link(0.0015, 0.0003)) for at in range(30, 40)]
    assert a_chain(*slow, gap, *later).gradual() == [(0, 10), (11, 21)]


def test_a_gradual_change_leads_over_commits_at_which_the_launch_failed() -> None:
    """Each third commit fails, and the next one is linked with the last one that had it."""
    own = [a_session(0, 1, a_link(-0.05))]  # told by itself
    for at in range(2, 60, 3):
        own += [
            a_session(at - 1, at, unjudged={"op/rung": "failed: wrong"}),
            a_session(at, at + 1, unjudged={CELL: "repaired: wrong"}),
            a_session(at - 1, at + 1, a_link(0.002, 0.0003)),
            a_session(at + 1, at + 2, a_link(0.002, 0.0003)),
        ]
    chain = a_chain(*own)
    assert chain.gradual() == [(1, 61)]
    [series] = linked([], {"m": {CELL: chain}}, "main")
    _, slower = series.changes()
    told = [POSITIONS[result.commit] for result in (slower.before, slower.first, slower.last)]
    assert told == [1, 3, 61]
    assert slower.step.change == pytest.approx(math.expm1(40 * 0.002))
    assert slower.interval[0] > 0.07


@pytest.mark.parametrize("apart", [0.01, 0.05])
def test_gpus_that_contradict_each_other_at_one_commit_hide_nothing_of_others(apart: float) -> None:
    slow = [a_session(at, at + 1, a_link(0.002, 0.0003)) for at in range(30)]
    contradicting = [a_session(40, 41, a_link(sign * apart), gpu=f"{sign}") for sign in (1, -1)]
    later = a_session(50, 51, a_link(0.03))
    chain = a_chain(*slow, *contradicting, later)
    assert chain.word(31) == "cannot tell"
    [(first, last)] = chain.gradual()
    assert (first, last) in ((0, 30), (0, 31))  # the next link may take part, if the sum is known with it
    [series] = linked([], {"m": {CELL: chain}}, "main")
    crept, slower = series.changes()
    assert crept.step.change == pytest.approx(math.expm1(0.06), rel=1e-3)
    assert slower.interval == pytest.approx(a_chain(later).edges[0].judged.bounds)
    assert chain.half(30, 31) > apart / 2


def test_what_disagrees_within_an_anchor_makes_the_launches_between_less_certain_and_no_others() -> None:
    steps = [a_session(at, at + 1, a_link(0.001, 0.0002)) for at in range(20)]
    chain = a_chain(*steps, a_session(0, 10, a_link(0.0, 0.0002), kind="anchor"))
    assert chain.half(3, 4) > 5 * chain.half(13, 14)
    assert chain.half(13, 14) == pytest.approx(a_chain(*steps).half(13, 14))


def test_pairs_that_lie_on_one_circle_are_a_block() -> None:
    pairs = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (3, 4), (4, 5), (5, 6), (6, 4), (7, 8)]
    together = {frozenset(pairs[number] for number in block) for block in _blocks(pairs)}
    assert together == {
        frozenset(own) for own in ({(0, 1), (1, 2), (2, 0)}, {(2, 3)}, {(3, 4)}, {(4, 5), (5, 6), (6, 4)}, {(7, 8)})
    }
    assert sorted(number for block in _blocks(pairs) for number in block) == [*range(len(pairs))]
    assert len(_blocks(list(pairwise(range(10_000))))) == 9_999


def test_links_without_a_circle_need_no_graph_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    steps = [a_session(at, at + 1, a_link(0.001)) for at in range(5)]
    assert a_chain(*steps).half(0, 5) > 0
    with pytest.raises(ImportError, match="networkx"):
        a_chain(*steps, a_session(0, 5, a_link(0.0))).half(0, 5)


def test_a_gradual_change_that_has_ended_keeps_its_end_and_its_name() -> None:
    drawn = random.Random(1)
    slow = [a_session(at, at + 1, a_link(drawn.gauss(0.002, 0.0003), 0.0003)) for at in range(20)]
    still = [a_session(at, at + 1, a_link(drawn.gauss(0.0, 0.0003), 0.0003)) for at in range(20, 60)]
    assert {tuple(a_chain(*slow, *still[:more]).gradual()) for more in (0, 1, 2, 3, 9, 40)} == {((0, 20),)}


def test_the_interval_of_a_change_rests_on_its_own_links_and_not_on_later_ones() -> None:
    """A link of six turns has five degrees of freedom, however many links follow."""
    steps = [a_session(at, at + 1, a_link(0.02 if at == 2 else 0.0)) for at in range(20)]
    alone, long = a_chain(steps[2]), a_chain(*steps)
    assert long.half(2, 3) == pytest.approx(alone.half(0, 1))
    assert long.half(2, 3) == pytest.approx(2.5706 * 0.0002, rel=1e-4)
    assert long.half(0, 20) == pytest.approx(2.0003 * math.sqrt(20) * 0.0002, rel=1e-4)


def test_a_gradual_change_of_two_links_is_judged_by_their_own_freedom() -> None:
    """0.9 % with a standard error of 0.11 %: t is 6.0 with four degrees of freedom and 3.5 with 60."""
    rough = [replace(a_link(0.0045, 0.0008), freedom=2) for _ in range(2)]
    own = [a_session(at, at + 1, rough[at - 5] if at in (5, 6) else a_link(0.2 if at % 2 else -0.2, 0.0001))
           for at in (*range(1, 5), 5, 6, *range(7, 30))]  # fmt: skip
    assert a_chain(*own).gradual() == []
    exact = [replace(link, freedom=30) for link in rough]
    own[4:6] = [a_session(5, 6, exact[0]), a_session(6, 7, exact[1])]
    assert a_chain(*own).gradual() == [(4, 6)]


def a_series(cell: str = CELL) -> JudgedSeries:
    return JudgedSeries("suite.GPU.track_seconds", {}, {"machine": "m", "branch": "main"}, False, False, [], cell)


def test_an_event_of_links_has_one_size_everywhere() -> None:
    """The two links of a change and its revert do not agree: the event and its verdict tell the same figure."""
    sessions = [
        a_session(1, 2, a_link(0.030, identities=("old", "new"))),
        a_session(5, 6, a_link(-0.026, identities=("new", "old"))),
    ]
    [series] = linked([a_series()], {"m": chains(sessions, POSITIONS)}, "main")
    slower, faster = series.changes()
    assert [change.kind for change in (slower, faster)] == ["regression", "improvement"]
    assert slower.back is not None
    assert [change.before.commit for change in (slower, faster)] == [COMMITS[1], COMMITS[5]]
    for change in (slower, faster):
        _, verdict = verdict_on(change)
        assert (verdict.word, verdict.change) == ("confirmed", change.step.change)
        assert verdict.low is not None
        assert verdict.high is not None
        assert verdict.low < change.step.change < verdict.high
        assert (verdict.low, verdict.high) == change.interval
    assert slower.step.change == pytest.approx(math.expm1(0.028))
    assert len(events([slower, faster])) == 2


def test_a_change_of_one_link_has_the_interval_of_that_link_however_many_follow() -> None:
    own = [a_session(at, at + 1, a_link(0.03 if at == 0 else 0.0)) for at in range(20)]
    chain = chains(own, POSITIONS)[CELL]
    assert chain.half(0, 1) == pytest.approx(chain.edges[0].judged.half())
    [series] = linked([], {"m": {CELL: chain}}, "main")
    [change] = series.changes()
    assert change.interval == pytest.approx(chain.edges[0].judged.bounds)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_change_of_a_link_says_by_how_much_its_interval_and_its_control_pass(sign: int) -> None:
    control = replace(a_link(0.001, cell="op/other float32 8x8 cold"), control=True)
    loud = replace(a_link(0.02, cell="op/c float32 8x8 cold"), control=True, device="cpu")  # says nothing of a GPU
    session = a_session(1, 2, a_link(0.03 * sign), control, loud)
    [series] = linked([], {"m": chains([session], POSITIONS)}, "main")
    [change] = series.changes()
    interval, against = change.step.tests
    own = judge(session)[CELL]
    assert (interval.name, interval.bound, against.name) == ("interval", FLOOR, "control")
    assert interval.value == pytest.approx(math.expm1(0.03 - own.half(LEVEL)))
    assert (against.value, against.bound) == pytest.approx((math.expm1(0.03), math.expm1(0.001)))


def test_what_the_next_link_will_show_follows_from_the_typical_one() -> None:
    errors = (0.0001, 0.0004, 0.003)
    chain = a_chain(*(a_session(at, at + 1, a_link(0.0, error)) for at, error in enumerate(errors)))
    [series] = linked([], {"m": {CELL: chain}}, "main")
    assert series.smallest == pytest.approx(math.exp(2 * chain.edges[1].judged.half()) * (1 + FLOOR) - 1)


def test_links_confirm_and_refute_what_a_full_run_flagged() -> None:
    known = verdicts_of([a_session(1, 2, a_link(0.03)), a_session(3, 4, a_link(0.0001))])
    assert known[CELL, COMMITS[1], COMMITS[2]].word == "confirmed"
    assert known[CELL, COMMITS[3], COMMITS[4]].word == "refuted"


def test_what_leads_over_a_gap_is_known_as_well_as_the_link_that_spans_it() -> None:
    chain = a_chain(
        a_session(1, 2, a_link(0.01)),
        a_session(3, 4, unjudged={"op/rung": "failed: wrong"}),
        a_session(0, 9, a_link(0.03), kind="anchor"),
    )
    assert chain.at_node(2) == []
    assert chain.freedom(1, 2) == 5


def test_links_of_another_branch_are_not_joined() -> None:
    assert chains([a_session(1, 2, a_link(0.03))], {COMMITS[1]: 0}) == {}


def test_sessions_that_are_not_believed_move_no_level_and_tell_nothing_together() -> None:
    """Two GPUs on which a control moved by as much as the launch did."""
    control = replace(a_link(0.05, identities=("x", "x"), cell="op/rung float32 64x64 hot"), control=True)
    doubtful = [a_session(1, 2, a_link(0.05), control, gpu=gpu) for gpu in "ab"]
    assert [edge.judged.word for edge in a_chain(*doubtful).edges] == ["cannot tell"] * 2
    assert a_chain(*doubtful).word(1) == "cannot tell"
    believed = a_chain(*doubtful, a_session(1, 2, a_link(0.0001), gpu="c"))
    assert believed.word(1) == "no change"
    assert float(believed.levels[1]) == pytest.approx(0.0001, abs=1e-4)
    slow = [a_session(at, at + 1, a_link(0.003), control if at == 3 else a_link(0, cell="other")) for at in range(3, 6)]
    assert a_chain(*slow, a_session(6, 7, a_link(0.0))).gradual() == []


def test_sessions_that_contradict_each_other_decide_nothing() -> None:
    sessions = [a_session(1, 2, a_link(log), gpu=gpu) for log, gpu in ((0.05, "a"), (-0.05, "b"))]
    chain = a_chain(*sessions)
    assert chain.word(1) == "cannot tell"
    assert len(chain.disagreeing()) == 2
    [series] = linked([], {"m": {CELL: chain}}, "main")
    assert series.changes() == []
    told = verdicts_of(sessions, [series])[CELL, COMMITS[1], COMMITS[2]]
    assert told.word == "not decided"
    assert told.change == pytest.approx(0, abs=1e-3)


def test_the_verdict_is_that_of_all_sessions_of_a_commit() -> None:
    sessions = [a_session(1, 2, a_link(0.03), gpu=gpu) for gpu in "ab"]
    sessions.append(a_session(1, 2, a_link(0.0, 0.02), gpu="c", at="2027-01-01"))
    [series] = linked([], {"m": chains(sessions, POSITIONS)}, "main")
    told = verdicts_of(sessions, [series])[CELL, COMMITS[1], COMMITS[2]]
    assert told.word == "confirmed"
    assert told.change == pytest.approx(series.changes()[0].step.change, rel=1e-9)


def test_a_broken_tree_breaks_every_chain() -> None:
    chain = a_chain(
        a_session(1, 2, a_link(0.01)),
        a_session(3, 4, unjudged={COMMITS[4][:8]: "ImportError"}),
        a_session(5, 6, unjudged={COMMITS[5][:8]: "ImportError"}),
        a_session(7, 8, a_link(0.01)),
    )
    assert chain.pieces == [0, 0, 2, 3, 3]
    assert [node.why for node in chain.nodes] == ["", "ImportError", "ImportError", ""]


def test_a_commit_that_was_not_asked_breaks_the_chain_unless_the_launch_is_the_same() -> None:
    for identity, launches, pieces in (("new", [2, 9], [0, 0, 0]), ("other", [2, 6, 9], [0, 0, 2, 2])):
        own = [a_session(1, 2, a_link(0.01, identities=("old", "new")))]
        own.append(a_session(8, 9, a_link(0.01, identities=(identity, "newest"))))
        chain = chains(own, POSITIONS, [COMMITS[4], COMMITS[6]])[CELL]
        assert [node.commit for node in chain.nodes] == [COMMITS[at] for at in launches]
        assert chain.pieces == pieces
    assert chains(own, POSITIONS, [COMMITS[0]])[CELL].pieces[0] == 0  # nothing lies before it


def test_a_gradual_change_ends_with_its_last_link_and_not_with_a_commit_that_was_not_asked() -> None:
    slow = [a_session(at, at + 1, a_link(0.004, identities=(f"{at}", f"{at + 1}"))) for at in (1, 2)]
    fast = a_session(7, 8, a_link(-0.5, identities=("3", "8")))
    chain = chains([*slow, fast], POSITIONS, [COMMITS[5]])[CELL]
    assert [(first, chain.nodes[last - 1].commit) for first, last in chain.gradual()] == [(0, COMMITS[3])]


def test_each_piece_has_the_seconds_of_its_own_gpu_and_undoes_no_other_one() -> None:
    slow = a_link(0.1)
    sessions = [
        a_session(1, 2, slow),
        a_session(3, 4, unjudged={"op/rung": "failed: wrong"}),
        a_session(5, 6, replace(a_link(-0.1), seconds=(2e-6, 1e-6)), gpu="faster"),
    ]
    [series] = linked([], {"m": chains(sessions, POSITIONS)}, "main")
    slower, faster = series.changes()
    assert slower.step.before == pytest.approx(slow.seconds[0])
    assert slower.step.after == pytest.approx(slow.seconds[1])
    assert slower.back is None
    assert faster.step.after == pytest.approx(1e-6)


def test_a_cell_that_no_full_run_measured_has_its_events() -> None:
    [series] = linked([], {"m": chains([a_session(1, 2, a_link(0.03))], POSITIONS)}, "main")
    [change] = series.changes()
    assert (change.kind, change.series.cell, change.series.place["machine"]) == ("regression", CELL, "m")


def test_what_one_session_left_and_another_measured_is_no_gap() -> None:
    left = a_session(1, 2, unjudged={"op/rung": "CPU cells were not asked for"})
    known = a_session(1, 2, same=4)
    chain = a_chain(a_session(0, 1, a_link(0.01)), left, known, a_session(2, 3, a_link(0.01)))
    assert chain.pieces == [0, 0, 0]
    assert a_chain(a_session(0, 1, a_link(0.01)), left, a_session(2, 3, a_link(0.01))).pieces == [0, 0, 2, 2]


def test_a_launch_fails_until_a_later_commit_says_better() -> None:
    def step(at: int, *links: Link, **told: Any) -> Session:
        return a_session(at, at + 1, *links, **told)

    wrong, other = {"row/a x": "failed: wrong"}, {"row/b": "failed: it hung"}

    def failing(*steps: Session) -> list[tuple[str, int, str]]:
        return [(each["cell"], each["at"], each["why"]) for each in failing_of(steps, POSITIONS)]

    first = step(0, unjudged=wrong | other)
    assert failing(first) == [("row/a x", 1, "wrong"), ("row/b", 1, "it hung")]
    assert failing(step(1), first) == failing(first)  # prose
    assert failing(first, step(1, unjudged={"row/a x": "repaired: c0: wrong"})) == [("row/b", 1, "it hung")]
    assert failing(first, step(1, gone=("row/a", "row/b"))) == []
    assert failing(first, step(1, unjudged=wrong)) == [("row/b", 1, "it hung"), ("row/a x", 2, "wrong")]
    tree = "c" * 8  # of a commit as a whole: one of prose, which nobody asks, may lie between it and the next one
    broken = replace(step(0, unjudged={tree: "failed: ImportError"}), after=tree * 5)
    positions = POSITIONS | {broken.after: 1}
    assert [each["cell"] for each in failing_of([broken], positions)] == [tree]
    assert failing_of([broken, a_session(2, 3, a_link(0.0, cell="row/a x"))], positions) == []
    elsewhere = a_session(2, 3, a_link(0.0, cell="row/a x"), conditions={"environment": "py3.12"})
    assert [each["cell"] for each in failing_of([broken, elsewhere], positions)] == [tree]
    linked_again = step(1, a_link(0.0, cell="row/a x"))
    assert failing(linked_again, first) == [("row/b", 1, "it hung")]


@pytest.mark.parametrize(
    ("later", "is_gone"),
    [
        ({}, True),
        ({"new": ("row/a x",)}, False),
        ({"new": ("row/a",)}, False),  # the whole rung
        ({"new": ("row/ab",)}, True),
        ({"links": (a_link(0.0, cell="row/a x"),)}, False),
        ({"links": (a_link(0.0, cell="row/a y"),)}, True),
        ({"links": (replace(a_link(0.0, cell="row/a x"), control=True),)}, True),  # of the commits beside it
    ],
)
def test_a_cell_is_gone_until_it_is_back(later: dict[str, Any], is_gone: bool) -> None:
    sessions = [a_session(0, 1, gone=("row/a x",)), replace(a_session(1, 2), **later)]
    assert gone(sessions) == ({"row/a x": COMMITS[1]} if is_gone else {})


def test_a_rung_that_is_gone_is_back_with_any_of_its_cells() -> None:
    assert gone([a_session(0, 1, gone=("row/a",)), a_session(1, 2, a_link(0.0, cell="row/a x"))]) == {}
    assert gone_id("c" * 40, "time_it(1) [py3.11]") == gone_id("c" * 40, "time_it(1)")  # whichever environment


def test_what_was_described_later_is_asked_again_unless_it_was_told() -> None:
    session = a_session(0, 1, a_link(0.0, cell="row/a x"), described={"row/a": "old"})
    assert [session.lacks(f"row/a {cell}", hash) for cell in "xy" for hash in ("old", "new")] == [False] * 3 + [True]
    assert not replace(session, unjudged={"row/a": "failed: wrong"}).lacks("row/a y", "new")
    assert replace(session, unjudged={"row/a": NOT_DESCRIBED}).lacks("row/a y", "old")


def test_the_newest_launches_are_compared_with_those_of_an_earlier_commit() -> None:
    """Cells whose launch stayed do not count, and those that nothing links are told apart."""
    other = "op/other float32 64x64 cold"
    sessions = [
        a_session(0, 1, a_link(0.1), a_link(0.3, 0.02, cell=other)),
        a_session(3, 4, a_link(0.02)),
        a_session(5, 6, unjudged={CELL: "failed: wrong"}),
        a_session(7, 8, a_link(0.01, 0.02)),
    ]
    known = list(chains(sessions, POSITIONS).values())
    half, half_of_other = (chain.half(chain.pieces[-1], len(chain.nodes)) for chain in known)
    assert min(half, half_of_other) > 0.03  # so that a wrong mean of them is seen

    def told(at: int | None) -> Any:
        return compared(known, at)["op gpu"]

    assert told(0) == [pytest.approx(0.3, abs=1e-6), pytest.approx(half_of_other, abs=0.001), 1, 1]
    assert told(7) == [pytest.approx(0.01, abs=1e-6), pytest.approx(half, abs=0.001), 1, 0]
    assert told(None) == [
        pytest.approx((0.3 + 0.01) / 2, abs=1e-6),
        pytest.approx(math.hypot(half, half_of_other) / 2, abs=0.001),
        2,
        0,
    ]
    assert compared(known, 8) == {}
    of_a_gap = list(chains(sessions, POSITIONS, unasked=[COMMITS[9]]).values())
    assert compared(of_a_gap, None)["op gpu"] == [None, None, 0, 2]


def test_an_op_of_which_no_launch_changed_is_still() -> None:
    every = {f"{op.name} {device}" for op in PROJECT.problems for device in ("gpu", "cpu")}

    def moved(sessions: list[Session], *unlinked: str) -> set[str]:
        told = still([*chains(sessions, POSITIONS).values()], [(COMMITS[4], name) for name in unlinked], PROJECT)
        assert told == sorted(told)
        return every - {*told}

    of_gpu = a_session(3, 4, a_link(0.0, cell="transpose/padded float32 4096x4096 cold"))
    assert moved([]) == set()
    assert moved([of_gpu]) == {"transpose gpu"}
    assert moved([of_gpu], "vector_add/c", "matmul/initial float32 8192x8192x8192 cold") == {
        "transpose gpu",
        "vector_add cpu",
        "matmul gpu",
    }
    assert moved([], "transpose/of_old float32 64x64 cold") == {"transpose gpu", "transpose cpu"}


def test_the_newest_commit_is_compared_with_a_release_a_week_and_the_one_before(tmp_path: Path) -> None:
    run(tmp_path, "git", "init", "-q", "-b", "main")
    for hours in (0, 1, 2, 24 * 7 + 2, 24 * 7 + 3):
        (tmp_path / "file").write_text(str(hours))
        commit(tmp_path, str(hours), hours)
    line = Line("main", commits(tmp_path))
    run(tmp_path, "git", "tag", "v1", line.commits[1])
    run(tmp_path, "git", "tag", "v2", line.commits[-1])  # the newest is not compared with itself
    project: Any = SimpleNamespace(root=tmp_path)
    first, release, week, before, _ = line.commits
    assert compared_with(project, line, first) == {"first": first, "release": release, "week": week, "commit": before}
    assert compared_with(project, line, before) == {"first": before, "commit": before}  # links reach no further
