"""What a full run spends its time on, and what other rules would cost (scripts/lab/minutes)."""

import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kernelwatch.history.records import Measured, measured
from kernelwatch.run.outcome import FINE, LEAST, Outcome
from kernelwatch.timing.clocks import ODD_CLOCK
from kernelwatch.timing.record import Measurement
from kernelwatch.timing.replay import REST_S, SHORT_REST_S
from lab import minutes
from lab.minutes import NONE, NOW, SAMPLES, WHOLE, More, Rule, of
from lab.sampling import factor

HIGHEST, POWER, TENSOR = 1980.0, 1600.0, 1800.0  # MHz: the highest clock, at the power limit, of tensor cores
STEADY, NOISY = (1e-5, 1.0001e-5, 1.0002e-5, 1e-5, 1e-5, 1e-5), (1e-5, 1.02e-5, 0.98e-5, 1.02e-5, 0.98e-5, 1e-5)


def cell(seconds: tuple[float, ...] = STEADY, mhz: float = HIGHEST, retakes: int = 0, cache: str = "cold") -> Measured:
    """A cell; `retakes`: of its first process."""
    taken: list[Measurement] = [
        {"process": at, "seconds": each, "clock64_mhz": mhz, "launches": 1000, "retakes": 0 if at else retakes}
        for at, each in enumerate(seconds)
    ]
    return measured(f"copy/a float32 8 {cache}", Outcome("ok", "", taken), "copy gpu")


def run(*cells: Measured, each_s: float = 0.05) -> minutes.Run:
    """A run whose measurements take `each_s` beyond what is modeled."""
    made = minutes.Run([*cells], HIGHEST, 0.0)
    count = sum(len(one.seconds) for one in cells)
    return dataclasses.replace(made, seconds=count * (each_s - made.unexplained_s()))


@pytest.mark.parametrize(
    ("mhz", "cache", "before", "now"),
    [
        (HIGHEST, "cold", 0.0, 0.0),
        (POWER, "cold", REST_S, REST_S),
        (TENSOR, "cold", REST_S, SHORT_REST_S),
        (POWER, "hot", SAMPLES * REST_S, (2 - 1 / SAMPLES) * REST_S),
        (TENSOR, "hot", SAMPLES * REST_S, (2 - 1 / SAMPLES) * SHORT_REST_S),
    ],
)
def test_a_later_process_rests_before_the_clock_that_is_known(
    mhz: float, cache: str, before: float, now: float
) -> None:
    one = cell(mhz=mhz, cache=cache)
    assert WHOLE.rested(one, 1, HIGHEST) == pytest.approx((before, 0.0))
    assert NOW.rested(one, 1, HIGHEST) == pytest.approx((now, 0.0))
    assert NONE.rested(one, 1, HIGHEST) == NONE.rested(cell(mhz=mhz, retakes=3), 0, HIGHEST) == (0.0, 0.0)


def test_the_first_process_rests_before_what_it_takes_again() -> None:
    assert WHOLE.rested(cell(mhz=POWER, retakes=2), 0, HIGHEST) == pytest.approx((0.0, 2 * REST_S))
    hot = cell(mhz=POWER, retakes=SAMPLES, cache="hot")  # each settling; now the first one's clock spares the others
    assert WHOLE.rested(hot, 0, HIGHEST) == pytest.approx((0.0, SAMPLES * REST_S))
    assert NOW.rested(hot, 0, HIGHEST) == pytest.approx(((1 - 1 / SAMPLES) * REST_S, REST_S))


def test_the_parts_of_a_run_add_up_to_it() -> None:
    made = run(cell(mhz=POWER, retakes=1), cell(NOISY, cache="hot"), each_s=0.05)
    assert made.unexplained_s() == pytest.approx(0.05)
    rows = [[text.strip() for text in line.strip("|").split("|")] for line in minutes.by_part(made).splitlines()[2:]]
    assert rows[0] == ["measurements", "2", "4", "6", "12", ""]
    assert rows[1][:5] == ["rest", "0 s", "0 s", "0 s", "0 s"]
    assert (rows[-2][-1], rows[-1][-1]) == ("50 ms", f"{made.seconds / 12 * 1e3:.0f} ms")


def test_a_rule_ends_a_cell_and_what_it_lacks_is_drawn() -> None:
    made = run(cell(), dataclasses.replace(cell(NOISY), key="copy/b float32 8 cold"))
    for rule, steady, noisy in (
        (Rule("as in a run"), 3, 6),
        (Rule("4 at least", least=4), 4, 6),
        (Rule("8 at most", most=8), 3, 8),
        (Rule("an interval of 0.02 %", narrow=0.0002), 4, 6),
        (Rule("any interval", narrow=1.0), 3, 3),
    ):
        seconds, cells = minutes.applied(rule, made)
        assert [len(one.seconds) for one in cells.values()] == [steady, noisy], rule.title
        assert seconds > 0.05 * (steady + noisy)
    assert next(iter(cells.values())).seconds == STEADY[:3]


def test_the_cost_of_a_launch_had_to_be_known_as_well() -> None:
    """By the rule that was an interval; a run needs the time alone."""
    known = cell(STEADY[:3])
    taken = [{**one, "launch_seconds": 1e-6 * (1 + at / 10)} for at, one in enumerate(known.measurements)]
    narrow, now = Rule("an interval of 0.1 %", narrow=0.001), Rule("as in a run")
    assert narrow.ends(known.measurements)
    assert not narrow.ends(taken)  # type: ignore[arg-type]
    assert now.ends(known.measurements)
    assert now.ends(taken)  # type: ignore[arg-type]


def test_wider_is_counted_in_the_cells_of_both_records() -> None:
    old = {"a": cell(STEADY), "b": cell(NOISY), "c": cell(STEADY[:1])}
    assert minutes.wider({"a": cell(NOISY), "b": cell(STEADY), "c": cell(NOISY), "d": cell(NOISY)}, old) == 0.5
    assert minutes.wider({"a": cell(NOISY), "b": cell(STEADY)}, old, beyond=0.1) == 0.0
    assert math.isnan(minutes.wider({"d": cell(NOISY)}, old))


def test_each_process_has_a_row_of_what_it_spent() -> None:
    told = [cell(STEADY[:2]), cell(STEADY[:1])]
    for one in (one for each in told for one in each.measurements):
        one["spent_s"] = {"rest": 2.0, "replay": 1.0, "bind": 0.5, "check": 0.5}
    told[1].measurements[0]["instead_of"] = {"process": 1, "spent_s": {"rest": 2.0, "fill": 2.0}}
    found = [[text.strip() for text in line.split("|")[1:-1]] for line in minutes.by_process(told).splitlines()]
    assert found[0] == ["process", "measurements", "rest", "replay", "others", "all", "a measurement"]
    assert found[2:] == [
        ["0", "2", "4 s", "2 s", "2 s", "8 s", "4000 ms"],
        ["1", "2", "4 s", "1 s", "3 s", "8 s", "4000 ms"],
        ["all", "4", "8 s", "3 s", "5 s", "16 s", "4000 ms"],
    ]


def test_measurements_say_what_they_spent_their_time_on() -> None:
    assert minutes.spent([cell()]) == {}
    assert minutes.by_part_spent({}, 6) == ""
    told = cell(STEADY[:2])
    for at, one in enumerate(told.measurements):
        one["spent_s"] = {"before": 4.0 - 4 * at, "rest": 0.5}
    assert [line.split("|")[1:4] for line in minutes.by_part_spent(minutes.spent([told]), 2).splitlines()[2:]] == [
        [" before ", " 4 s ", " 2000 ms "],
        [" rest ", " 1 s ", " 500 ms "],
    ]


def test_a_pair_is_measured_by_two_harnesses_and_a_side_may_follow_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    harnesses: list[str] = []

    def measure(
        harness: Path, tree: Path, commit: str, label: str, out: Path, only: str, quick: bool = False
    ) -> tuple[Path, float]:
        assert quick is (label == "warm")
        harnesses.append(label)
        lines: list[dict[str, Any]] = [
            {"group": "copy gpu", "record": "run", "facts": {"gpu": "A", "nvml_driver": "1"}}
        ]
        one = cell(STEADY if label == "after" else NOISY)
        taken: list[Any] = [{**each, "spent_s": {"rest": 0.5}} for each in one.measurements]
        told = {"key": one.key, "state": "ok", "reason": "", "visits": taken}
        lines.append({"group": "copy gpu", "record": "cell", **told})
        path = out / f"{commit[:8]}-{label}.facts.jsonl"
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return path, {"before": 600.0, "after": 300.0}.get(label, 60.0)

    monkeypatch.setattr(minutes, "measure", measure)
    monkeypatch.setattr(minutes, "_git", lambda *arguments: "12345678" if arguments[0] == "rev-parse" else "")
    minutes.main(["--pair", "HEAD~1", "--out", str(tmp_path), "--side", "before", "--warm"])
    assert "before: 10.0 minutes" in (said := capsys.readouterr().out)
    assert "wider" not in said
    minutes.main(["--pair", "HEAD~1", "--out", str(tmp_path), "--side", "after"])
    said = capsys.readouterr().out
    assert harnesses == ["warm", "before", "after"]
    assert "| before | 10.0 | 1 | 6 | 1.88 % |" in said
    assert "| after | 5.0 | 1 | 6 | 0.01 % |" in said
    assert f"--aa {tmp_path}/12345678-before.facts.jsonl {tmp_path}/12345678-after.facts.jsonl" in said
    assert "| rest | 3 s | 500 ms |" in said
    assert "A, driver 1; the cells of 12345678." in said
    assert minutes.by_side(json.loads((tmp_path / minutes.PAIR.name).read_text())) in said


def spread_within(one: Measured, error: float, spent_s: float = 0.1) -> Measured:
    """A cell whose processes have this relative sampling error, and spent so many seconds on a measurement."""
    for each in one.measurements:
        half = error / factor(SAMPLES) / 2
        each |= {
            "quartiles_s": [(1 - half) * each["seconds"], (1 + half) * each["seconds"]],
            "slots": 10,
            "spent_s": {"before": 9.0, "replay": spent_s},
        }
    return one


def test_more_samples_lessen_what_is_sampled_and_nothing_else() -> None:
    seconds = (1e-5, 1.002e-5, 0.998e-5)
    alone = cell(seconds)
    for error, left in ((alone.spread, 0.5), (0.6 * alone.spread, math.sqrt(0.64 + 0.36 / 4)), (1e-9, 1.0)):
        scale = More("", 4 * SAMPLES, REST_S).scale(spread_within(cell(seconds), error))
        assert scale == pytest.approx(left, rel=1e-3)
    assert More("", SAMPLES, REST_S).scale(spread_within(alone, alone.spread)) == 1.0


def test_a_cell_that_ends_sooner_saves_what_a_process_spent_on_it() -> None:
    """By more samples the third process ends the cell, not the sixth. Each of the three takes longer instead."""
    noisy = (1e-5, 1.002e-5, 0.998e-5, 1.002e-5, 0.998e-5, 1e-5)
    one = spread_within(cell(noisy), cell(noisy).spread)
    whole = minutes.Run([one], HIGHEST, 60.0)
    assert minutes.sampled(More("", SAMPLES, REST_S), whole)[0] == 60.0
    seconds, cells = minutes.sampled(More("", 16 * SAMPLES, REST_S), whole)
    (ended,) = cells.values()
    assert len(ended.seconds) == 3
    assert ended.spread == pytest.approx(cell(noisy[:3]).spread / 4, rel=1e-3)
    assert seconds == pytest.approx(60.0 - 3 * 0.1 + 3 * 15 * 1000 * 1e-5, rel=1e-3)


@pytest.mark.parametrize(("mhz", "rests_s"), [(HIGHEST, 0.0), (TENSOR, SHORT_REST_S), (POWER, REST_S)])
def test_cells_have_more_samples_by_how_long_they_rest(mhz: float, rests_s: float) -> None:
    whole, one = minutes.Run([], HIGHEST, 60.0), spread_within(cell(mhz=mhz), 0.001)
    for most_s in (0.0, SHORT_REST_S, REST_S):
        assert More("", 10, most_s).takes(whole, one) is (rests_s <= most_s)
    assert not More("", 10, REST_S).takes(whole, spread_within(cell(cache="hot"), 0.001))
    assert not More("", 10, REST_S).takes(whole, dataclasses.replace(one, limits=("heat",)))
    extra_s = More("", 2 * SAMPLES, REST_S).extra_s(whole, one, one.measurements[1])
    assert extra_s == pytest.approx(1000 * STEADY[1] + (REST_S if rests_s == REST_S else 0.0))


def test_the_page_has_the_tables_of_the_records() -> None:
    page = minutes.PAGE.read_text(encoding="utf-8")
    runs, olds = minutes.runs(), minutes.olds()
    assert minutes.by_side(json.loads(minutes.PAIR.read_text(encoding="utf-8"))) in page
    assert minutes.by_part(runs[minutes.RECORD]) in page
    assert minutes.by_process(minutes.recorded(minutes.path_of(minutes.SINCE)).cells) in page
    assert minutes.by_band(runs) in page
    assert minutes.by_rule(runs[minutes.RECORD], olds) in page
    assert minutes.by_samples(minutes.told()) in page


def _replaced(commit: str) -> list[list[Any]]:
    """Of each cell of a record, what others replaced."""
    cells = minutes.recorded(minutes.path_of(commit)).cells
    return [[told for one in cell.measurements if (told := one.get("instead_of"))] for cell in cells]


def test_what_the_page_says_of_the_search_for_garbage_is_in_the_records() -> None:
    counts = []
    for commit in ("b8ee5444", minutes.SINCE, "7df92825"):
        late = 0
        for cell in minutes.recorded(minutes.path_of(commit)).cells:
            bound = [(one["process"], one.get("spent_s", {}).get("bind", 0.0)) for one in cell.measurements]
            if len(bound) >= LEAST:
                middle = statistics.median(seconds for _, seconds in bound)
                late += sum(process > 0 and seconds - middle >= 0.07 for process, seconds in bound)
        counts.append(late)
    assert counts == [16, 21, 0]
    page = " ".join(minutes.PAGE.read_text(encoding="utf-8").split())
    assert (
        "16 times in b8ee5444 and 21 times in 14db415d. In 7df92825, the first record with this change, it never"
        in page
    )


def test_what_the_page_says_of_launch_costs_and_odd_clocks_is_in_the_records() -> None:
    page = " ".join(minutes.PAGE.read_text(encoding="utf-8").split())
    timed = [one for one in minutes.recorded(minutes.path_of("686b6c50")).cells if one.measurements]

    def known(taken: Sequence[Measurement]) -> bool:
        return of(taken).detectable <= FINE

    launched = [one.measurements for one in timed if "launch_seconds" in one.measurements[0]]
    held = [own for own in launched if len(own) == 6 and any(known(own[:count]) for count in (3, 4, 5))]
    assert f"It kept {len(held)} of {len(launched)} hot cells at six processes in 686b6c50" in page
    loops = [[one["host_loop_seconds"] for one in own] for own in launched if len(own) > 2]
    assert 1 / 7 < statistics.median(statistics.stdev(own) / statistics.mean(own) for own in loops) < 1 / 5  # a sixth
    cells = minutes.recorded(minutes.path_of(minutes.SINCE)).cells
    replaced = sum(map(len, _replaced(minutes.SINCE)))
    assert f"It has the {replaced} measurements that others replaced, too" in page
    assert len([*minutes.by_visit(cells)]) == sum(len(cell.measurements) for cell in cells) + replaced
    least = [sum(parts.values()) for process, parts in minutes.by_visit(cells) if process < LEAST]
    assert 240 < sum(least) < 270, "more than four minutes"
    before = [*minutes.by_visit(minutes.recorded(minutes.path_of("b8ee5444")).cells)]
    for commit, visits in ((minutes.SINCE, [*minutes.by_visit(cells)]), ("b8ee5444", before)):
        apart = [(process, {**parts, "rest": 0.0, "before": 0.0}) for process, parts in visits]
        seconds = {process: sum(sum(parts.values()) for own, parts in apart if own == process) for process in range(7)}
        shown = (
            f"{sum(seconds.values()):.0f}",
            f"{seconds[0]:.0f}",
            f"{sum(parts.get('bind', 0) for _, parts in apart):.0f}",
        )
        assert shown == {minutes.SINCE: ("209", "65", "33"), "b8ee5444": ("217", "79", "26")}[commit]
    assert "took 209 s, and those of b8ee5444 217 s. The first process took 65 s of them, and 79 s before" in page
    assert "it bound launches for 33 s instead of 26" in page
    twice = [[told["clock64_mhz"] for told in own] for own in _replaced("1376bf80") if len(own) == 2]
    agreed = [own for own in twice if max(own) - min(own) <= ODD_CLOCK * max(own)]
    assert (len(twice), len(agreed)) == (5, 4)
    assert "Five cells lost two measurements, in four of which these two agreed" in page
