"""Copies of the measured package with planted kernels, and what their cells become in a run."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.project import PROJECT
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.plan.devices import DEVICES, Budget
from kernelwatch.run.outcome import Outcome
from kernelwatch.run.processes import Run
from kernelwatch.run.workers import WORKER

ROOT = Path(__file__).resolve().parents[1]
BUDGET = Budget(samples=3, sample_s=0.0002)
SHAPE = (256, 256)

C = "void transpose_{name}(const T *restrict in, T *restrict out, long long M, long long N) {{\n{body}\n}}\n"
RIGHT = "    for (long long m = 0; m < M; ++m) for (long long n = 0; n < N; ++n) out[n * M + m] = in[m * N + n];"
WRONG = RIGHT + "\n    out[4 * M + 31] += 1;"
SEGFAULT = "    (void)in, (void)out, (void)M, (void)N;\n    *(volatile char *)0 = 1;"
FOR_EVER = "    (void)in, (void)out, (void)M, (void)N;\n    for (volatile int i = 1; i;);"
NO_C = "    out[0] = in[0]  // the semicolon is missing"

Package = Callable[..., Path]


@pytest.fixture
def package(tmp_path: Path) -> Package:
    """A copy of the package under a folder, with bodies planted in its C rungs of transpose."""

    def plant(name: str = "commit", head: str = "", **bodies: str) -> Path:
        folder = tmp_path / name
        shutil.copytree(ROOT / "gpukernels", folder / "gpukernels", ignore=shutil.ignore_patterns("__pycache__"))
        for rung, body in bodies.items():
            write(folder, rung, body, head)
        return folder

    return plant


def write(folder: Path, rung: str, body: str, head: str = "") -> None:
    (folder / "gpukernels" / "transpose" / f"{rung}.c").write_text(head + C.format(name=rung, body=body))


def cells(device: str = "cpu", *caches: str) -> list[Cell]:
    """One cell a rung of transpose (and cache: hot unless told), small."""
    found = plan(PROJECT.op("transpose"), device, quick=True)
    return [cell for cell in found if cell.shape == SHAPE and cell.cache in (caches or ("hot",)) and not cell.reference]


def few_processes(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let a run time each cell in this many processes."""
    for name in ("cpu", "gpu"):
        monkeypatch.setitem(DEVICES, name, replace(DEVICES[name], processes=count))


def measured(folder: Path, *, times: int = 1, endless_s: float = 60.0, device: str = "cpu") -> Run:
    run = Run(PROJECT, cells(device), device, str(folder), BUDGET, endless_s=endless_s)
    for seed in range(times):
        run.measure_all(seed)
    return run


def outcomes(run: Run) -> dict[str, Outcome]:
    """By rung."""
    return {cell.rung: run.group.outcomes[cell.key] for cell in run.cells}


def assert_measured(outcome: Outcome, processes: int = 1) -> None:
    assert (outcome.state, outcome.reason) == ("ok", "")
    assert [one["process"] for one in outcome.measurements] == list(range(processes))
    assert all(one["seconds"] > 0 for one in outcome.measurements)


def assert_failed(outcome: Outcome, *words: str) -> None:
    assert (outcome.state, outcome.measurements) == ("failed", [])
    for one in words:
        assert one in outcome.reason


def assert_only_failed(run: Run, rung: str, *words: str) -> None:
    """This rung failed with these words; every other one was measured."""
    for name, outcome in outcomes(run).items():
        if name != rung:
            assert_measured(outcome)
    assert_failed(outcomes(run)[rung], *words)


def all_alike(run: Run) -> Outcome:
    """The outcome that every cell has; the message of an exception in a worker is cut to its end."""
    found = list(outcomes(run).values())
    assert found
    assert all(outcome == found[0] for outcome in found)
    assert found[0].measurements == []
    return found[0]


def workers_of(parent: int) -> list[int]:
    """The living worker processes that this process started."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            state, above = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (entry / "cmdline").read_bytes()
        except OSError:  # it has gone
            continue
        if int(above) == parent and str(WORKER).encode() in command and state != "Z":
            found.append(int(entry.name))
    return found


def lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
