"""A run whose worker takes some cells several times: the last measurement counts, and the cell once."""

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.project import PROJECT
from kernelwatch.plan.cells import plan
from kernelwatch.plan.devices import DEVICES
from kernelwatch.run import processes
from kernelwatch.run.processes import Run
from kernelwatch.run.workers import Workers
from kernelwatch.timing.gpu import APART, SLOW_S, TAKES_LEAST
from tests.groups import BUDGET as CPU_BUDGET
from tests.groups import ROOT, assert_failed, assert_measured, cells, outcomes

WORKER = """
import json, os, sys
job = json.loads(sys.stdin.readline())
def say(**event):
    print(json.dumps(event), flush=True)
def cell(key, seconds):
    say(event="begin", key=key)
    say(event="cell", key=key, state="ok", measurement=dict(seconds=seconds, spent_s=dict(replay=seconds)))
keys = ["/".join([one["op"], one["rung"]]) + one["type"] for one in job["cells"]]
"""


def told(body: str) -> Callable[..., Any]:
    """Workers that run this in the place of the real script, whose `keys` are those of the job's cells."""
    return lambda keys: f"{WORKER}\nkeys = {keys!r}[-len(job['cells']):]\n{body}"


def run_of(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, list[str]]:
    mine, ticks = cells(), list[str]()
    script = tmp_path / "worker.py"
    script.write_text(told(body)([one.key for one in mine]))
    monkeypatch.setattr("kernelwatch.run.workers.WORKER", script)
    run = Run(PROJECT, mine, "cpu", str(ROOT), CPU_BUDGET, workers=Workers({}))
    monkeypatch.setattr(run, "_order", lambda seed: mine)
    run.measure_all(0, lambda: ticks.append("tick"))
    return run, ticks


def test_the_last_measurement_of_a_process_counts_and_the_cell_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "for key in [*keys, keys[0], keys[1], keys[0]]:\n    cell(key, 1.0 + keys.index(key))\ncell(keys[0], 7.0)\n"
    times = itertools.count()  # each event comes a second after the one before
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: float(next(times))))
    run, ticks = run_of(f"{body}say(event='end')", tmp_path, monkeypatch)
    assert len(ticks) == len(run.cells)
    assert [one.measurements[0]["seconds"] for one in outcomes(run).values()][:2] == [7.0, 2.0]
    for one in outcomes(run).values():
        assert_measured(one)
        assert set(one.measurements[0]["spent_s"]) == {"before", "replay"}
    assert [one.measurements[0]["spent_s"]["before"] for one in outcomes(run).values()][:3] == [4.0, 2.0, 1.0]


def test_a_further_take_of_a_cell_that_has_failed_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
for key in keys[1:]:
    cell(key, 2.0)
say(event="begin", key=keys[0])
say(event="cell", key=keys[0], state="failed", reason="it used a file of another tree")
cell(keys[0], 1.0)
say(event="begin", key=keys[0])
say(event="cell", key=keys[0], state="failed", reason="another reason")
say(event="end")
"""
    run, ticks = run_of(body, tmp_path, monkeypatch)
    first, *others = outcomes(run).values()
    assert_failed(first, "it used a file of another tree")
    for one in others:
        assert_measured(one)
    assert len(ticks) == len(run.cells)


def test_a_process_that_dies_while_it_takes_a_cell_again_costs_that_cell_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process goes on with the first cell that has no measurement."""
    once = f"""
if not os.path.exists({str(tmp_path / "died")!r}):
    open({str(tmp_path / "died")!r}, "w").close()
    cell(keys[0], 1.0)
    cell(keys[1], 1.0)
    say(event="begin", key=keys[0])
    sys.exit("it crashed")
for key in keys:
    cell(key, 2.0)
say(event="end")
"""
    run, ticks = run_of(once, tmp_path, monkeypatch)
    first, second, *others = outcomes(run).values()
    assert_failed(first, "died with exit code 1", "it crashed")
    assert [one["seconds"] for one in second.measurements] == [1.0]
    for one in others:
        assert_measured(one)
        assert one.measurements[0]["seconds"] == 2.0
    assert len(ticks) == len(run.cells)


@pytest.mark.gpu
def test_a_gpu_takes_its_cells_at_the_highest_clock_until_they_agree() -> None:
    """Some sums and transposes run at it on any GPU that no limit holds down."""
    chosen = [
        each
        for op, problem in PROJECT.ops.items()
        for each in plan(problem, "gpu")
        if op != "matmul" and each.type == "float32" and each.cache == "cold" and not each.reference
    ]
    run = Run(PROJECT, chosen, "gpu", str(ROOT), DEVICES["gpu"].budget)
    run.measure_all(1)
    measured = [one.measurements[0] for one in run.group.outcomes.values() if one.measurements]
    assert len(measured) > APART
    several = [one for one in measured if "takes_s" in one]
    if not several:
        cupy = pytest.importorskip("cupy")
        free, total = cupy.cuda.runtime.memGetInfo()
        held = [one["throttled"] for one in measured if one["throttled"]]
        assert held or 2 * free < total, "no cell was taken again, though no limit was met and memory is free"
        pytest.skip(f"a limit holds the clock down in {len(held)} of {len(measured)} cells, or memory is used")
    highest = max(one["clock64_mhz"] or 0.0 for one in measured)
    for one in several:
        assert TAKES_LEAST <= len(one["takes_s"]) <= DEVICES["gpu"].budget.takes
        assert min(one["takes_s"]) <= one["seconds"] <= max(one["takes_s"])
        assert (one["clock64_mhz"] or 0.0) > 0.98 * highest
    single = [one for one in measured if "takes_s" not in one and one["seconds"] < SLOW_S and not one["throttled"]]
    assert len(several) > len(single), "what allocates its outputs is taken once"
