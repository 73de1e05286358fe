"""Second opinions: the pairs, the rules that judge them, nvbench's files, the tables of docs/research/opinions.md."""

import dataclasses
import json
import math
import struct
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from kernelwatch.history import links
from kernelwatch.system.errors import UserError
from kernelwatch.timing.record import Measurement
from lab import figures, opinions
from lab.opinions import Pair, State
from lab.planted import changes_in

RESULT = json.loads(opinions.JSON.read_text(encoding="utf-8"))
QUIET = (1.0, 1.0003, 0.9998, 1.0001, 0.9999, 1.0002)


def side(*seconds: float, canary_s: float = 1e-3, clock_mhz: float | None = 1980.0) -> tuple[Measurement, ...]:
    """The measurements of one process each."""
    return tuple(
        cast(
            Measurement,
            {
                "seconds": each,
                "launches": 100,
                "quartiles_s": [0.999 * each, 1.001 * each],
                "canary_s": {"memory": canary_s, "compute": canary_s},
                "clock64_mhz": clock_mhz,
            },
        )
        for each in seconds
    )


def pair(factor: float, noise: float = 1.0, **after: Any) -> Pair:
    """A cell whose second side takes `factor` times as long. `noise`: in multiples of a quiet one's."""
    own = [1 + noise * (each - 1) for each in QUIET]
    moved = side(*(factor * each for each in own[::-1]), **after)
    return Pair("a history", "0123abcd", "a cell", side(*own), moved, "same")


# --- the pairs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planted() -> list[Pair]:
    results, labels = opinions.LABELED["planted"]
    (folder,) = (path for path in results.iterdir() if path.is_dir())
    return opinions.pairs_of("planted", folder, changes_in(labels))


def test_a_pair_is_unchanged_or_has_the_label_of_its_commit(planted: list[Pair]) -> None:
    assert Counter(each.truth for each in planted) == {"same": 366, "slower": 8, "faster": 3}
    assert all((each.size > 0) is (each.truth == "slower") for each in planted if each.truth != "same")
    for each in planted:
        identities = {one.get("identity") for one in (*each.before, *each.after)}
        assert len(identities) == (1 if each.truth == "same" else 2)
        assert list(map(len, each.sides)) == [opinions.PROCESSES] * 2


def test_a_pair_that_is_made_slower_keeps_its_first_side(planted: list[Pair]) -> None:
    slower = opinions.grown(planted[0], 0.02)
    assert slower.before == planted[0].before
    assert slower.truth == "slower"
    for old, new in zip(planted[0].after, slower.after, strict=True):
        assert new["seconds"] == pytest.approx(1.02 * old["seconds"])
        assert new["quartiles_s"] == pytest.approx([1.02 * each for each in old["quartiles_s"]])


def test_runs_of_one_binary_are_joined_by_turns() -> None:
    runs = [side(at + 0.1, at + 0.2) for at in range(5)]
    chain = [Pair("h", "", "a cell", before, after, "same") for before, after in pairwise(runs)]
    (long,) = opinions.joined(chain, 4)
    assert opinions.seconds(long.before) == [0.1, 0.2, 2.1, 2.2]
    assert opinions.seconds(long.after) == [1.1, 1.2, 3.1, 3.2]
    assert not opinions.joined(chain, 5)
    assert not opinions.joined([*chain[:1], *chain[2:]], 4)  # a run between them is missing


# --- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "word"), [(1.0, "same"), (1.05, "slower"), (0.95, "faster")])
def test_the_rule_of_versus(factor: float, word: str) -> None:
    assert opinions.ours(pair(factor), 1)[0] == word


def test_the_rule_of_versus_stops_at_the_look_that_decides() -> None:
    assert opinions.ours(pair(1.05), 1) == ("slower", 4)
    assert opinions.ours(pair(1.01, noise=10), 1) == ("undecided", 6)


def test_the_rule_of_versus_blames_no_kernel_for_what_its_canaries_do() -> None:
    assert opinions.ours(pair(1.05, canary_s=1.05e-3), 1)[0] == "undecided"


def test_cells_that_share_a_chance_of_error_are_decided_later() -> None:
    assert opinions.ours(pair(1.02, noise=3), 1)[0] == "slower"
    assert opinions.ours(pair(1.02, noise=3), 10_000)[0] == "undecided"


@pytest.mark.parametrize(
    ("before_s", "after_s", "word"),
    [
        (1.234e-3, 1.229e-3, "same"),  # 1.23 ms both
        (1.236e-3, 1.234e-3, "faster"),
        (1.234e-3, 1.236e-3, "slower"),
        (33.31e-6, 33.34e-6, "same"),
        (33.34e-6, 33.36e-6, "slower"),
    ],
)
def test_kernelbench_compares_three_digits(before_s: float, after_s: float, word: str) -> None:
    assert opinions.fast_1(before_s, after_s) == word


@pytest.mark.parametrize("test", [opinions.welch, opinions.mann_whitney])
def test_a_plain_test_finds_what_lies_beyond_the_noise(test: Any) -> None:
    moved = [1.01 * each for each in QUIET]
    assert test(QUIET, moved, 0.01) == "slower"
    assert test(moved, QUIET, 0.01) == "faster"
    assert test(QUIET, QUIET[::-1], 0.05) == "undecided"
    assert test(QUIET, moved, 0.0) == "undecided"


def test_one_process_rules_judge_each_process_against_one() -> None:
    told = opinions.told_by_rules([pair(1.05)])
    assert told["KernelBench fast_1"][0].words == {"slower": 6}
    assert told["KernelBench fast_1"][0].processes == 12
    assert told["Welch, 1 %"][0].words == {"slower": 1}
    assert told["kernelwatch versus: one cell"][0].processes == 8
    busy_s = sum(100 * each["seconds"] for one in pair(1.05).sides for each in one[:4])
    assert told["kernelwatch versus: one cell"][0].busy_s == pytest.approx(busy_s)


@pytest.mark.parametrize(("log", "word"), [(0.0, "same"), (0.05, "slower"), (-0.05, "faster")])
def test_the_rule_of_links_is_not_told_that_both_sides_are_alike(log: float, word: str, tmp_path: Path) -> None:
    logs = tuple(log + each for each in (0.0002, -0.0002, 0.0001, -0.0001))
    alike = links.Link("a", log, 1e-4, 3, logs, (1e-3, 1e-3 * math.exp(log)), ("x", "x"), control=True)
    other = dataclasses.replace(alike, cell="b", identities=("x", "y"), control=False)
    session = links.Session("step", "a" * 40, "b" * 40, "2026-01-01T00:00:00+00:00", 1.0, {}, 0, links=(alike, other))
    links.save(tmp_path, session)
    told = opinions.told_by_turns([tmp_path])
    assert (told["links"], told["turns"]) == (1, 4)
    assert told["rules"]["kernelwatch, the rule of links"] == {word: 1}
    assert told["rules"]["KernelBench fast_1"] == {word: 4}


# --- nvbench's files and programs ------------------------------------------------------------------------------------


def test_a_file_of_nvbench_holds_summaries_and_samples(tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    opinions.write_nvbench(path, [State({"time/gpu/median": 2.5e-6}, [(2.5e-6, 1.98e9), (2.75e-6, 1.5e9)]), State({})])
    root = json.loads(path.read_text())
    assert root["meta"]["version"]["json"]["string"] == "1.0.0"
    assert root["devices"][0]["id"] == 0
    (benchmark,) = root["benchmarks"]
    first, second = benchmark["states"]
    assert [axis["value"] for state in (first, second) for axis in state["axis_values"]] == ["0", "1"]
    assert second["summaries"] == []
    by_tag = {one["tag"]: {each["name"]: each for each in one["data"]} for one in first["summaries"]}
    assert by_tag["nv/cold/time/gpu/median"]["value"] == {"name": "value", "type": "float64", "value": "2.5e-06"}
    for tag, values in (
        ("nv/json/bin:nv/cold/sample_times", (2.5e-6, 2.75e-6)),
        ("nv/json/freqs-bin:nv/cold/sample_freqs", (1.98e9, 1.5e9)),
    ):
        assert by_tag[tag]["size"] == {"name": "size", "type": "int64", "value": "2"}
        binary = Path(by_tag[tag]["filename"]["value"]).read_bytes()
        assert struct.unpack("<2f", binary) == pytest.approx(values)


def test_many_states_are_several_benchmarks(tmp_path: Path) -> None:
    opinions.write_nvbench(tmp_path / "x.json", [State({})] * (opinions.BATCH + 1))
    benchmarks = json.loads((tmp_path / "x.json").read_text())["benchmarks"]
    assert [len(each["states"]) for each in benchmarks] == [opinions.BATCH, 1]
    assert len({each["name"] for each in benchmarks}) == 2


def test_the_summaries_of_one_process_put_the_least_sample_where_they_say() -> None:
    (measurement,) = side(1.0)
    narrow, wide = (opinions.of_process(measurement, low).summaries for low in (0.0, 1.5))
    assert narrow["time/gpu/min"] == narrow["time/gpu/q1"] == 0.999
    assert wide["time/gpu/min"] == pytest.approx(0.999 - 1.5 * 0.002)
    assert narrow["time/gpu/iqr/relative"] == pytest.approx(0.002)
    assert narrow["time/gpu/stdev/relative"] == pytest.approx(0.002 / 1.349)
    assert narrow["sm_clock_rate/mean"] == 1.98e9
    assert "sm_clock_rate/mean" not in opinions.of_process(side(1.0, clock_mhz=None)[0], 0.0).summaries


def test_the_medians_of_processes_are_samples_with_their_clocks() -> None:
    state = opinions.of_processes(side(3.0, 1.0, 2.0, 6.0, 4.0, 5.0))
    figures_of = [state.summaries[f"time/gpu/{name}"] for name in ("min", "q1", "median", "q3", "max", "mean")]
    assert figures_of == [1.0, 2.0, 4.0, 5.0, 6.0, 3.5]  # the ranks are nvbench's: rounded, half up
    assert state.samples == [(each, 1.98e9) for each in (3.0, 1.0, 2.0, 6.0, 4.0, 5.0)]
    assert opinions.of_processes(side(1.0, 2.0, clock_mhz=None)).samples == ()


ROBUST = """
|  pair  |  Ref Time  |  Cmp Time  |  %Change  |  Status   |
|:------:|-----------:|-----------:|----------:|:---------:|
|   0    |   1.000 us |   0.950 us |    -5.00% | \U0001f7e2 FAST |
|   1    |   1.000 us |   1.050 us |     5.00% | \U0001f534 SLOW |
|   2    |   1.000 us |   1.000 us |           | \U0001f535 SAME |
|   3    |   1.000 us |   1.004 us |           | \U0001f7e1 AMBG |
|   4    |        n/a |   1.004 us |           | \U0001f7e1 ???? |
# Summary
- Total Matches: 5
| 5 | SAME | SLOW |
"""


def test_the_rows_of_nvbench_are_read() -> None:
    words = {0: "faster", 1: "slower", 2: "same", 3: "undecided", 4: "undecided"}
    assert opinions.statuses(ROBUST) == words


@pytest.mark.parametrize(("judged", "complaint"), [(2, ""), (1, "x judged 1 of 2 pairs, exit code 3: it fell")])
def test_a_program_of_nvbench_must_judge_every_pair(judged: int, complaint: str, tmp_path: Path) -> None:
    program = tmp_path / "x"
    rows = "".join(f"echo '| {at} | SLOW |'\n" for at in range(judged))
    program.write_text(f'#!/bin/sh\n[ "$1 $2" = "--no-color --preset" ] || exit 9\n{rows}echo it fell >&2\nexit 3\n')
    program.chmod(0o755)
    states = [State({})] * 2
    if complaint:
        with pytest.raises(UserError, match=complaint):
            opinions.nvbench(program, states, states, "--preset", "strict")
    else:
        assert opinions.nvbench(program, states, states, "--preset", "strict") == ["slower"] * 2


def test_without_nvbench_the_script_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no nvbench-compare-robust in .*: install cuda-bench\[compare\]"):
        opinions.main(["--tools", str(tmp_path)])


# --- the record and the page -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", opinions.BLOCKS)
def test_the_page_holds_the_tables_of_the_record(name: str) -> None:
    begin, end = figures.marks(name, opinions.WRITER)
    block = opinions.PAPER.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]
    assert block.strip() == opinions.BLOCKS[name](RESULT)


def test_the_record_is_that_of_the_planted_history(planted: list[Pair]) -> None:
    known = [each for each in planted if each.truth != "same"]
    made = opinions.outcome(known, opinions.told_by_rules(known))["planted"]
    kept = [each for each in RESULT["planted"] if each["history"] == "planted"]
    assert len(kept) == len(made)
    for old, new in zip(kept, made, strict=True):
        assert {name: old["rules"][name] for name in opinions.RULES} == new["rules"]
        assert {name: value for name, value in old.items() if name != "rules"} == {
            name: pytest.approx(value) if name == "size" else value for name, value in new.items() if name != "rules"
        }


def test_the_tables_count_what_was_said() -> None:
    rule = {"words": {"faster": 1, "slower": 2, "same": 5, "undecided": 2}, "processes": 40, "busy_s": 0.5}
    result = {
        "unchanged": {"a": {"rules": {"r": rule}}, "b": {"rules": {"r": rule | {"words": {"same": 10}}}}},
        "planted": [
            {"truth": "slower", "size": 0.02, "rules": {"r": {"slower": 3, "faster": 1}}},
            {"truth": "faster", "size": -0.2, "rules": {"r": {"faster": 2, "same": 1, "undecided": 1}}},
        ],
        "grown": {"1 %": {"r": {"slower": 3, "same": 1}}},
    }
    row = opinions.unchanged_table(result).splitlines()[-1]
    assert row == "| r | 20 | 1 (5 %) | 2 (10 %) | 75 % | 10 % | 30.0 / 0.0 | 4.0 | 50 ms |"
    row = opinions.planted_table(result).splitlines()[-1]
    assert row == "| r | 3 of 4 | 0 of 0 | 2 of 4 | 1 (12 %) | 1 (12 %) | 1 (12 %) |"
    assert opinions.grown_table(result).splitlines()[-1] == "| r | 75 / 25 / 0 |"
