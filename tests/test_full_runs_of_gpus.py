"""Full runs of one commit on several GPUs: their record and its tables (scripts/lab/full_runs)."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.project import PROJECT
from kernelwatch.history.records import CellChange, Measured, measured, read, sidecars
from kernelwatch.history.same import MOVED_MOST
from kernelwatch.run.outcome import Outcome
from kernelwatch.system.errors import UserError
from kernelwatch.timing.nvml import POWER_CAP
from kernelwatch.timing.record import Measurement
from kernelwatch.timing.replay import LOW_CLOCK
from lab import full_runs
from lab.full_runs import FullRun
from lab.minutes import timed
from lab.quiet import WORST, cold, meeting, summary

HEAT = "hardware thermal slowdown"
STEADY = (1e-5, 1.0001e-5, 1.0002e-5)


def visits(seconds: Sequence[float], mhz: float, *limits: str) -> list[Measurement]:
    """Measurements that spent a second each, and met these limits."""
    return [
        {
            "process": at,
            "seconds": each,
            "clock64_mhz": mhz,
            "throttled": [*limits],
            "spent_s": {"rest": 0.75, "replay": 0.25},
        }
        for at, each in enumerate(seconds)
    ]


def cell(name: str, seconds: Sequence[float] = STEADY, mhz: float = 1980.0, *limits: str) -> Measured:
    return measured(f"copy/{name} float32 8 cold", Outcome("ok", "", visits(seconds, mhz, *limits)), "copy gpu")


def full_run(*cells: Measured, gpu: str = "one", taken_s: float = 60.0) -> FullRun:
    """A run whose cells took a second for each measurement."""
    facts = {**dict.fromkeys(full_runs.FACTS), "nvml_uuid_sha256": gpu}
    spent = {each.key: float(len(each.seconds)) for each in cells}
    return full_runs.full_run("12345678", facts, "cold", taken_s, cells, spent)


def folder(path: Path, gpu: str, measured_at: str, commit: str = "12345678") -> Path:
    """The results of a run of two cells, in each of which a measurement replaced another one."""
    path.mkdir()
    facts = {"gpu": "NVIDIA H200", "nvml_uuid_sha256": gpu, "nvml_driver": "580", "measured_at": measured_at}
    taken = visits(STEADY, 1980.25)
    taken[2]["instead_of"] = cast("dict[str, Any]", visits((2e-5,), 1700.0)[0])
    told: dict[str, Any] = {"group": "copy gpu", "record": "cell", "state": "ok", "reason": "", "visits": taken}
    lines: list[dict[str, Any]] = [{"group": "copy gpu", "record": "run", "facts": facts}]
    lines += [{**told, "key": f"copy/{name} float32 8 cold"} for name in "ab"]
    (path / f"{commit}-x.facts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (path / f"{commit}-x.json").write_text(json.dumps({"durations": {"<setup_cache copy:8>": 30.0}}))
    return path


def rows_of(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines()[2:]]


def test_folders_are_added_to_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: dict[str, str] = {}
    monkeypatch.setattr(full_runs, "RECORD", tmp_path / "full_runs.jsonl")
    monkeypatch.setattr(full_runs, "then_cells", lambda: ["copy/a float32 8 cold"])
    monkeypatch.setattr(full_runs, "write_block", lambda page, name, text, writer: blocks.update({name: text}))
    one, two, other = (
        folder(tmp_path / name, gpu, at)
        for name, gpu, at in (("1.1", "one", "9:00"), ("1.2", "one", "9:10"), ("2.1", "two", "9:00"))
    )
    assert full_runs.main(["--add", str(one), str(other)]) == full_runs.main(["--add", str(two)]) == 0
    runs = full_runs.load(full_runs.RECORD.read_text())
    assert [(run.gpu, run.caches, run.taken_s, run.measurements) for run in runs] == [
        ("one", "cold", 30.0, 6),
        ("two", "cold", 30.0, 6),
        ("one", "warm", 30.0, 6),
    ]
    assert runs[0].spent_s == dict.fromkeys(runs[0].record.cells, 4.0)  # with the replaced one
    assert [row[0] for row in rows_of(blocks["full_runs"])][:3] == ["GPU A, run 1", "GPU A, run 2", "GPU B, run 1"]
    with pytest.raises(UserError, match=r"2\.1 is in the record already"):
        full_runs.main(["--add", str(other)])
    new = folder(tmp_path / "new", "one", "9:20", "22345678")
    with pytest.raises(UserError, match="a run of 22345678, but the record has runs of 12345678: begin it anew"):
        full_runs.main(["--add", str(new)])
    for how in ("--add", "--new"):
        with pytest.raises(UserError, match="the sidecar of one run, not 0"):
            full_runs.main([how, str(tmp_path)])
    assert full_runs.load(full_runs.RECORD.read_text()) == runs
    assert full_runs.main(["--new", str(new)]) == 0
    (run,) = full_runs.load(full_runs.RECORD.read_text())
    assert (run.record.commit, run.caches) == ("22345678", "cold")


def test_the_record_tells_what_held_the_clocks() -> None:
    first = full_run(cell("a"), cell("own", STEADY, 1700.0, LOW_CLOCK, POWER_CAP), cell("hot", STEADY, 1500.0, HEAT))
    second = full_run(cell("a", mhz=1979.6), cell("none", STEADY[:2]), gpu="two")
    a, own, hot = (back := full_runs.load(full_runs.written([first, second])))[0].record.cells.values()
    assert (a.own_clock_mhz, own.own_clock_mhz, own.limits) == (None, 1700.0, ())
    assert (hot.own_clock_mhz, hot.limits) == (None, (HEAT,))
    assert {key: each.seconds for key, each in back[1].record.cells.items()} == {
        "copy/a float32 8 cold": STEADY,
        "copy/none float32 8 cold": STEADY[:2],
    }
    assert back[1].record.cells[a.key].measurements[0]["clock64_mhz"] == 1980
    assert rows_of(full_runs.by_run(back))[0][4:] == [
        *("1", "0.010 %", "0.010 %", "0.010 %", "0"),
        *("1", "0.010 %", "0.010 %", "0.010 %", "33.3 %"),
    ]


def test_the_record_keeps_all_that_a_cell_says() -> None:
    """The run whose sidecar is in results/ has the same clocks and limits, and the same spread within the rounding. The
    page says which one it is, and its GPU's number among the records."""
    runs = full_runs.load(full_runs.RECORD.read_text(encoding="utf-8"))
    record = read(next(path for path in sidecars(PROJECT.results, "h200") if path.name.startswith("b8ee5444")))
    group = next(iter(record.facts.values()))
    titles = {title for title, run in full_runs.titled(runs) if run.facts["measured_at"] == group["measured_at"]}
    assert titles == {"GPU A, run 2"}
    run = runs[1]
    whole = {each.key: each for each in timed(record)}
    assert [*run.record.cells] == [*whole]
    for key, kept in run.record.cells.items():
        assert (kept.group, kept.limits) == (whole[key].group, whole[key].limits)
        assert kept.own_clock_mhz == pytest.approx(whole[key].own_clock_mhz, abs=0.51)
        assert kept.spread == pytest.approx(whole[key].spread, abs=1e-5)


def test_a_cell_moves_by_more_than_can_be_detected() -> None:
    before = full_run(cell("a"), cell("b"), cell("noisy", (1e-5, 1.1e-5, 1.2e-5)), cell("gone"))
    after = full_run(cell("a"), cell("b", [1.01 * each for each in STEADY]), cell("noisy", (1.2e-5, 1.1e-5, 1.3e-5)))
    (row,) = rows_of(full_runs.again([before, full_run(cell("a"), gpu="two"), after]))
    assert row == ["GPU A, run 2 against 1", "3", "1.00 %", "9.09 %", "9.09 %", "1 (33.3 %)"]


def test_gpus_are_compared_by_cells_at_the_same_kind_of_clock() -> None:
    slow = [1.02 * each for each in STEADY]
    first = [full_run(cell("a"), cell("b"), cell("own", STEADY, 1700.0, LOW_CLOCK), cell("lone")) for _ in range(2)]
    second = full_run(cell("a", slow), cell("b", STEADY, 1700.0, LOW_CLOCK), cell("own", slow, 1700.0, LOW_CLOCK))
    assert rows_of(full_runs.between([*first, replace(second, facts={**second.facts, "nvml_uuid_sha256": "two"})])) == [
        ["GPU B", "highest", "1", "2.00 %", "2.00 %", "2.00 %", "+2.00 %"],
        ["GPU B", "own", "1", "2.00 %", "2.00 %", "2.00 %", "+2.00 %"],
    ]


def test_the_minutes_of_some_cells_are_what_their_measurements_spent() -> None:
    run = full_run(cell("a"), cell("b"), taken_s=12.0)
    assert rows_of(full_runs.five([run], ["copy/a float32 8 cold", "copy/gone float32 8 cold"])) == [
        ["GPU A, run 1", "cold", "1", "0.05", "0.15", "2", "0.10", "0.20"]
    ]


def test_the_page_has_the_tables_and_says_what_they_show() -> None:
    page = full_runs.PAGE.read_text(encoding="utf-8")
    runs = full_runs.load(full_runs.RECORD.read_text(encoding="utf-8"))
    for name, text in full_runs.blocks(runs).items():
        assert text in page, name
    highest = [[each.spread for each in run.unmarked(own=False).values()] for run in runs]
    sums = [summary(spreads) for spreads in highest]
    assert [text.split(":")[0] for text in meeting(full_runs.BARS, highest)] == ["0 of 6", "3 of 6", "0 of 6"]
    assert all(run.marked <= full_runs.MARKED_MOST for run in runs)
    said = " ".join(page.split())
    assert f"the best median is {min(100 * one[0] for one in sums):.3f} %" in said
    assert f"the best worst cell has {min(100 * one[2] for one in sums):.2f} %" in said
    above = [{key for key, one in run.unmarked(own=False).items() if one.spread > WORST} for run in runs]
    assert {*map(len, above)} == {4, 5, 6}
    assert set.intersection(*above) == {"matmul/thread_tile_2d float32 4000x4104x4040 cold"}
    medians = {run.gpu: [one[0] for each, one in zip(runs, sums, strict=True) if each.gpu == run.gpu] for run in runs}
    first, *others = medians.values()
    assert min(first) > max(max(each) for each in others)


def test_the_page_says_how_runs_and_gpus_compare() -> None:
    runs = full_runs.load(full_runs.RECORD.read_text(encoding="utf-8"))
    first, *others = gpus = [*full_runs.by_gpu(runs).values()]
    for before, after in gpus:
        changes, count = full_runs.moved(before, after)
        assert count <= MOVED_MOST * len(changes)
        old, new = before.record.cells, after.record.cells
        pairs = {each.key: CellChange.between(old[each.key], new[each.key]) for each in cold(before.record)}
        most = max(pairs, key=lambda key: abs(pairs[key].ratio - 1))
        assert " 8192x8192x8192 " in most
        assert not pairs[most].verdict
    assert "| b8ee5444, GPU 16 |" in full_runs.PAGE.read_text(encoding="utf-8")
    longer = sorted(round(cold_caches.taken_s - warm.taken_s) for cold_caches, warm in gpus)
    said = full_runs.PAGE.read_text(encoding="utf-8")
    assert f"took {longer[0]} to {longer[-1]} s longer [with cold caches]" in said
    same = max(summary(full_runs.moved(*own)[0])[0] for own in gpus)
    for other in others:
        highest, own = ([*map(abs, full_runs.apart(first, other, clock))] for clock in (False, True))
        assert summary(highest)[0] < 1.5 * same
        middle, ninety, _ = summary(own)
        assert round(100 * middle, 1) == 0.4
        assert ninety > 0.02


def test_the_page_says_for_which_cells_five_minutes_are_reached() -> None:
    runs = full_runs.load(full_runs.RECORD.read_text(encoding="utf-8"))
    then, said = full_runs.then_cells(), " ".join(full_runs.PAGE.read_text(encoding="utf-8").split())
    assert all(key in run.record.cells for key in then for run in runs)
    assert f"newest record, with {len(then)} GPU cells" in said
    most = max(full_runs.minutes_of(run, then)["at most"] for run in runs) / 60
    least = min(run.taken_s for run in runs) / 60
    assert most < 5.0 < least
    assert f"whose largest figure is {most:.2f} minutes" in said
    assert f"the shortest run took {least:.2f} minutes" in said


def dipped(name: str, *mhz: float, spread: float = 1e-3) -> Measured:
    """A cell whose processes ran at these clocks."""
    each = cell(name, [1e-5 * (1 + spread * at) for at in range(len(mhz))])
    for one, clock in zip(each.measurements, mhz, strict=True):
        one["clock64_mhz"] = clock
    return each


def test_cells_at_the_whole_clock_are_told_apart() -> None:
    """Within a megahertz of it; a reading that is too high is no clock of the GPU."""
    steady = [dipped(f"steady{at}", 1980.0, 1979.0, 1980.0, spread=1e-4) for at in range(20)]
    run = full_run(*steady, dipped("wrong", 1979.0, 1980.0, 1990.0), dipped("dips", 1980.0, 1974.0, 1980.0))
    full, below = full_runs.by_full_clock(run)
    assert (len(full), [*below]) == (21, ["copy/dips float32 8 cold"])
    unread = dipped("unread", 1980.0, 1980.0, 1980.0)
    unread.measurements[1]["clock64_mhz"] = None
    assert "copy/unread float32 8 cold" in full_runs.by_full_clock(full_run(*steady, unread))[1]
    row = full_runs.by_clock([run]).splitlines()[2]
    assert row == "| GPU A, run 1 | 21 | 0.010 % | 0.010 % | 0.100 % | 1 | 0.100 % | 0.100 % | 0.100 % |"
    assert "1 of 1: 0.03 %" in full_runs.by_clock([run]).splitlines()[3]


def test_the_same_cells_at_the_whole_clock_and_not() -> None:
    """In either run; what is at it in both, or in none, says nothing of the clock."""
    both = [dipped(f"both{at}", 1980.0, 1980.0, 1980.0) for at in range(20)]
    none = dipped("none", 1980.0, 1974.0, 1980.0)
    first = full_run(
        *both, none, dipped("one", 1980.0, 1980.0, 1980.0, spread=1e-4), dipped("other", 1974.0, 1980.0, 1980.0)
    )
    again = full_run(
        *both, none, dipped("one", 1980.0, 1970.0, 1980.0), dipped("other", 1980.0, 1980.0, 1980.0, spread=2e-4)
    )
    rows = full_runs.once_full([first, again]).splitlines()
    assert rows[2:] == ["| GPU A | 2 | 0.015 % | 0.020 % | 0.100 % | 0.100 % |"]
    assert len(full_runs.once_full([first, full_run(*both, none, gpu="two")]).splitlines()) == 2  # the header alone


def test_the_page_says_what_the_clock_explains() -> None:
    runs = full_runs.load(full_runs.RECORD.read_text(encoding="utf-8"))
    page = full_runs.PAGE.read_text(encoding="utf-8")
    assert full_runs.by_clock(runs) in page
    assert full_runs.once_full(runs) in page
    shares = [
        [summary([cell.spread for cell in side.values()])[0] for side in full_runs.by_full_clock(run)] for run in runs
    ]
    assert all(other > full for full, other in shares)
    assert f"by {100 * max(full for full, _ in shares):.3f} % at most in the median" in " ".join(page.split())
    rows = [line.strip("| ").split(" | ") for line in full_runs.once_full(runs).splitlines()[2:]]
    times = [float(row[4].rstrip(" %")) / float(row[2].rstrip(" %")) for row in rows]
    assert f"are {min(times):.1f} to {max(times):.1f} times as noisy" in " ".join(page.split())
