"""What becomes of a run when a kernel is wrong, crashes, hangs or is slow."""

import signal
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.project import PROJECT
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.run import group
from kernelwatch.run.outcome import Outcome
from kernelwatch.run.processes import Run
from kernelwatch.run.workers import Worker
from kernelwatch.system import patience
from kernelwatch.system.options import Options
from kernelwatch.timing import clocks
from kernelwatch.timing import cpu as cpu_module
from kernelwatch.timing.record import Measurement
from kernelwatch.timing.replay import LOW_CLOCK
from tests.groups import (
    BUDGET,
    FOR_EVER,
    NO_C,
    RIGHT,
    SEGFAULT,
    WRONG,
    Package,
    assert_failed,
    assert_measured,
    assert_only_failed,
    cells,
    few_processes,
    measured,
    outcomes,
    package,
    write,
)

__all__ = ["package"]  # a fixture


def test_a_pass_is_what_the_measured_commit_repeats(package: Package) -> None:
    """The checkout's ladder says once; the commit repeats its work 64 times a launch: its seconds are of one pass."""
    once, repeated = package("once", c=RIGHT), package("repeated")
    write(repeated, "c", f"    for (volatile int i = 0; i < REPEATS; ++i) {{\n{RIGHT}\n    }}")
    ladder = repeated / "gpukernels" / "ladder.toml"
    entry = '[[transpose.rungs]]\nname = "c"\n'
    assert ladder.read_text().count(entry) == 1
    ladder.write_text(ladder.read_text().replace(entry, f"{entry}repeats = 64\n"))
    mine = [cell for cell in cells() if cell.rung == "c"]
    runs = [Run(PROJECT, mine, "cpu", str(folder), BUDGET) for folder in (once, repeated)]
    for seed in range(4):  # in turns: a busy machine slows both
        for run in runs:
            run.measure_all(seed)
    taken = [min(outcomes(run)["c"].by_process("seconds").values()) for run in runs]
    ratio = taken[1] / taken[0]
    assert 1 / 8 < ratio < 8  # of the two in one run, on a busy machine; 64 where the checkout's count is taken


def test_processes_measure_every_cell_once(package: Package) -> None:
    run = measured(package(), times=2)
    for outcome in outcomes(run).values():
        assert_measured(outcome, 2)
        assert set(outcome.by_process("seconds")) == {0, 1}
        assert outcome.by_process("launch_seconds") == {}
    assert run.group.facts["packages"]["numpy"] == np.__version__
    assert run.group.facts["compiler"]
    assert run.group.facts["openmp"] == cpu_module.environment()
    assert run.group.name == "transpose cpu"


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What processes are sent from here on."""
    sent, send = list[Any](), Worker.send

    def keep(worker: Worker, line: Any) -> None:
        sent.append(line)
        send(worker, line)

    monkeypatch.setattr(Worker, "send", keep)
    return sent


def test_a_process_is_told_the_clocks_and_the_seconds_of_those_before(package: Package, jobs: list[Any]) -> None:
    """The clocks are planted, as if read on a GPU. What the caller knows stays where no process knows more."""
    run = measured(package(), times=2)
    for measurement, clock in zip(outcomes(run)["c"].measurements, (1890.0, 1880.0), strict=True):
        measurement["clock64_mhz"] = clock
    jobs.clear()
    (key,) = (cell.key for cell in run.cells if cell.rung == "c")
    run.budget = replace(run.budget, clocks_mhz={key: 9.0, "other": 1700.0}, seconds={key: 9.0, "other": 2.0})
    run.measure_all(2)
    (budget,) = (job["budget"] for job in jobs if isinstance(job, dict))
    assert budget["clocks_mhz"] == {key: 1885.0, "other": 1700.0}
    before = {cell.key: [*outcomes(run)[cell.rung].by_process("seconds").values()][:2] for cell in run.cells}
    assert budget["seconds"] == {"other": 2.0} | {each: statistics.median(own) for each, own in before.items()}
    assert_measured(outcomes(run)["c"], 3)


def test_limited_cells_are_measured_once_more(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks are planted, as if read on a GPU: in one process that of one cell was low, that of another one a step
    lower than in the others."""
    run, said = measured(package(), times=3), list[str]()
    run.note = said.append
    own, limited, odd, *others = outcomes(run).values()
    planted = ((own, (1890.0, 1891.0, 1889.0)), (limited, (1980.0, 1400.0, 1979.0)), (odd, (1965.0, 1979.0, 1980.0)))
    for outcome, read in planted:
        for measurement, clock in zip(outcome.measurements, read, strict=True):
            measurement["throttled"] = [LOW_CLOCK] if clock < 1900 else []
            measurement["clock64_mhz"] = clock
    slow_s = limited.measurements[1]["seconds"] = 1.0
    retaken = clocks.retaken

    def on_a_gpu(known: Sequence[Measurement], fresh: Measurement) -> list[Measurement]:
        fresh["clock64_mhz"] = 1979.0
        return retaken(known, fresh)

    monkeypatch.setattr(clocks, "retaken", on_a_gpu)
    group.retake(run, 3)
    for outcome in (own, *others):
        assert_measured(outcome, 3)
    assert [one["process"] for one in limited.measurements] == [0, 3, 2]
    assert [one["process"] for one in odd.measurements] == [3, 1, 2]
    assert limited.measurements[1]["instead_of"]["seconds"] == slow_s
    assert limited.measurements[1]["seconds"] < slow_s
    assert len(said) == 1
    assert said[0].startswith(
        f"2 of {len(run.cells)} cells of transpose cpu are measured again: the SM clock was limited"
    )


def test_what_is_measured_again_is_told_what_the_others_know(package: Package, jobs: list[Any]) -> None:
    run = measured(package(), times=3)
    limited = outcomes(run)["c"].measurements
    for measurement, clock, seconds in zip(limited, (1980.0, 1400.0, 1979.0), (1.0, 2.0, 3.0), strict=True):
        measurement |= {"throttled": [LOW_CLOCK], "clock64_mhz": clock, "seconds": seconds}
    jobs.clear()
    group.retake(run, 3)
    (job,) = (each for each in jobs if isinstance(each, dict))
    (key,) = (cell.key for cell in run.cells if cell.rung == "c")
    assert (job["budget"]["clocks_mhz"], job["budget"]["seconds"]) == ({key: 1979.0}, {key: 2.0})


def test_a_run_replaces_what_ran_at_another_clock_and_ends_there(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clocks and times are planted, as if read on a GPU: the first process ran a step too high."""
    note, noted = Run._note, list[int]()

    def on_a_gpu(run: Run, event: dict[str, Any], process: int) -> None:
        noted.append(process)
        event["measurement"] |= {"clock64_mhz": 1814.0 + process, "seconds": 1.6e-6}
        if not process:
            event["measurement"] |= {"clock64_mhz": 1829.0, "seconds": 1.58e-6}
        note(run, event, process)

    monkeypatch.setattr(Run, "_note", on_a_gpu)
    few_processes(monkeypatch, 6)
    options = Options(only="transpose/c float32 256x256 hot", tree=str(package()))
    (found,) = group.measure(PROJECT, "transpose", "cpu", options).outcomes.values()
    assert noted == [0, 1, 2, 3]
    assert [one["process"] for one in found.measurements] == [3, 1, 2]
    assert found.measurements[0]["instead_of"]["seconds"] == 1.58e-6


def test_a_limited_cell_that_is_wrong_when_measured_again_has_failed(package: Package) -> None:
    run = measured(package(), times=2)
    cell = outcomes(run)["c"]
    for measurement, clock in zip(cell.measurements, (1980.0, 1400.0), strict=True):
        measurement |= {"throttled": [LOW_CLOCK], "clock64_mhz": clock, "seconds": clock}
    write(Path(run.tree), "c", WRONG)
    group.retake(run, 2)
    failed = {name for name, outcome in outcomes(run).items() if outcome.state == "failed"}
    assert failed == {"c"}
    assert_failed(cell, "elements wrong")


def test_cold_cells_rotate_over_more_than_the_cache(package: Package) -> None:
    run = Run(PROJECT, cells("cpu", "cold"), "cpu", str(package()), BUDGET)
    run.measure_all(0)
    for outcome in outcomes(run).values():
        assert_measured(outcome)
        assert outcome.measurements[0]["slots"] * 2 * 256 * 256 * 4 >= 2 * run.group.facts["cache_bytes"]


def test_kernels_that_are_wrong_or_do_not_compile(package: Package) -> None:
    some = RIGHT.replace("n = 0; n < N", "n = 1; n < N")
    found = outcomes(measured(package(c_blocked=WRONG, c=some, c_openmp=NO_C)))
    # What is 1 too much need not be another float32, but here it is: inputs lie in [-1, 1).
    said = "transpose/c_blocked at (256, 256) float32: 1 of 65536 elements wrong, the first at [4, 31]; 0 never written"
    assert_failed(found["c_blocked"])
    assert found["c_blocked"].reason == f"WrongOutput: {said}"
    assert_failed(found["c"], ": 256 of 65536 elements wrong, the first at [0, 0]; 256 never written")
    compiled = "KernelError: transpose/c_openmp float32: ", "does not compile it", "error: expected", "c_openmp.c:2"
    assert_failed(found["c_openmp"], *compiled)
    assert_measured(found["numpy"])


def test_kernels_that_end_their_process_fail_once_and_alone(package: Package, tmp_path: Path) -> None:
    """One segfaults, one exits, one does not compile; no later process tries them again."""
    mark = f'FILE *file = fopen("{tmp_path}/launches", "a"); fputs("{{}}", file); fclose(file);\n    '
    crash = "*(volatile char *)0 = 1;"
    bodies = {
        "c": SEGFAULT.replace(crash, mark.format("segfault ") + crash),
        "c_blocked": SEGFAULT.replace(crash, mark.format("exit ") + 'fputs("out of luck\\n", stderr); _exit(7);'),
    }
    folder = package(head="#include <stdio.h>\nvoid _exit(int);\n", **bodies, c_openmp=NO_C)
    found = outcomes(measured(folder, times=2))
    assert_failed(found["c"], f"its process died with exit code {-signal.SIGSEGV}")
    assert_failed(found["c_blocked"], "its process died with exit code 7: out of luck")
    assert_failed(found["c_openmp"], "does not compile it")
    assert_measured(found["numpy"], 2)
    assert sorted((tmp_path / "launches").read_text().split()) == ["exit", "segfault"]


@pytest.fixture
def looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent processes are, so that a short limit is noticed soon after it has passed."""
    monkeypatch.setattr(patience, "LOOK_S", 0.2)


def test_a_kernel_that_hangs(package: Package) -> None:
    folder = package(c=SEGFAULT.replace("*(volatile char *)0 = 1;", "pause();"), head="int pause(void);\n")
    mine = [cell for cell in cells() if cell.rung == "c"]
    run = Run(PROJECT, mine, "cpu", str(folder), BUDGET, silence_s=2)
    run.measure_all(0)
    assert_only_failed(run, "c", "it hung: it has not worked for 2 s, its process was killed")


def test_a_slow_kernel_is_said_to_be_slow(package: Package) -> None:
    """It is silent for longer than a worker may be that does not work."""
    wait = "    const clock_t start = clock(); while (clock() - start < CLOCKS_PER_SEC * 5 / 4);\n"
    folder = package(c=wait + RIGHT, head="#include <time.h>\n")
    mine = [cell for cell in cells() if cell.rung == "c"]
    run, said = Run(PROJECT, mine, "cpu", str(folder), BUDGET, silence_s=1), list[str]()
    run.note = said.append
    run.measure_all(0)
    assert_measured(outcomes(run)["c"])
    assert f"slow: {mine[0].key} has taken 1 s and still works" in said


@pytest.mark.usefixtures("looked_at_often")
def test_a_rung_that_does_not_end_is_not_tried_again(package: Package, tmp_path: Path) -> None:
    mark = f'    FILE *file = fopen("{tmp_path}/launches", "a"); fputs("x", file); fclose(file);\n'
    folder = package(head="#include <stdio.h>\n", c=mark + FOR_EVER)
    also = [cell for cell in plan(PROJECT.op("vector_add"), "cpu", quick=True) if cell.rung == "c"]
    mine = [cell for cell in cells("cpu", "hot", "cold") if cell.rung == "c"]
    others = [cell for cell in cells() if cell.rung != "c"]
    run = Run(PROJECT, [*mine, *others, *also], "cpu", str(folder), BUDGET, endless_s=3)
    run.group.outcomes[also[1].key] = Outcome("na", "never hot")
    for seed in range(2):
        run.measure_all(seed)
    assert (tmp_path / "launches").read_text() == "x"
    hung, other = sorted((run.group.outcomes[cell.key].reason, cell.key) for cell in mine)
    assert hung[0] == "it is endless or very slow: it has worked for 3 s, its process was killed"
    assert other[0] == f"not tried: {hung[1]} did not end"
    assert {run.group.outcomes[cell.key].state for cell in mine} == {"failed"}
    for cell in others:
        assert_measured(run.group.outcomes[cell.key], 2)
    assert_measured(run.group.outcomes[also[0].key], 2)  # another op's rung of the same name
    assert run.group.outcomes[also[1].key] == Outcome("na", "never hot")


def test_no_compiler_is_not_the_kernels_fault(monkeypatch: pytest.MonkeyPatch, package: Package) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    found = outcomes(measured(package()))
    assert_measured(found.pop("numpy"))
    for outcome in found.values():
        assert (outcome.state, outcome.measurements) == ("na", [])
        assert "no C compiler: no-such-compiler not found; install one or set CC" in outcome.reason


def test_noise_on_stdout_is_no_event(package: Package) -> None:
    noise = '    printf("{\\"event\\": \\"end\\"}\\n"); fflush(stdout);\n' + RIGHT
    run = measured(package(head="#include <stdio.h>\n", c=noise))
    for outcome in outcomes(run).values():
        assert_measured(outcome)


def test_one_wrong_answer_is_enough(package: Package) -> None:
    folder = package()
    run = measured(folder)
    assert_measured(outcomes(run)["c"])
    write(folder, "c", WRONG)
    run.measure_all(1)
    found = outcomes(run)
    assert (found["c"].state, found["c"].measurements) == ("failed", [])
    assert_measured(found["c_blocked"], 2)
    write(folder, "c", RIGHT)
    run.measure_all(2)
    assert (found["c"].state, found["c"].measurements) == ("failed", [])  # and stays so
    assert_measured(found["c_blocked"], 3)


def test_what_was_measured_stays_when_a_later_process_cannot_start(package: Package) -> None:
    folder = package(c=WRONG)
    run = measured(folder)
    (folder / "gpukernels" / "__init__.py").write_text("def load(:\n")
    run.measure_all(1)
    run.measure_all(2)
    assert_only_failed(run, "c", "WrongOutput: ")
    assert "SyntaxError: " in run.unavailable


def test_every_process_has_an_order_of_its_own(package: Package) -> None:
    def order(seed: int) -> list[str]:
        run = Run(PROJECT, cells(), "cpu", "", BUDGET)
        seen: list[str] = []

        def worker(left: list[Cell], seed: int, tick: Callable[[], None], more: bool) -> int:
            seen.extend(cell.rung for cell in left)
            return len(left)

        run._worker = worker  # type: ignore[assignment, method-assign]
        run.measure_all(seed)
        return seen

    orders = [order(seed) for seed in range(6)]
    assert all(sorted(one) == sorted(orders[0]) for one in orders)
    assert len({tuple(one) for one in orders}) > 1
    assert order(3) == orders[3]
