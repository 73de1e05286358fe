"""Rungs of several GPUs: how parts are made, checked and timed. NumPy stands in for CuPy, and small programs for the
processes."""

import dataclasses
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpukernels
from benchmarks.matmul import Several as Suite
from benchmarks.parts import EXACT_BITS, PARTS, VECTORS, wrong_rows
from benchmarks.project import PROJECT
from kernelwatch.extras.several import timer
from kernelwatch.extras.several.device import part
from kernelwatch.extras.several.rank import Rank
from kernelwatch.extras.several.ranks import RankError
from kernelwatch.extras.several.timer import ENVIRONMENT, Timer
from kernelwatch.plan.cells import Cell, key
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.package import NotHere
from kernelwatch.plan.problem import Operands, dtypes
from kernelwatch.run import worker
from kernelwatch.run.outcome import Group, Outcome, alike, conditions
from kernelwatch.run.processes import Run
from kernelwatch.system import holding
from kernelwatch.system.files import locked
from kernelwatch.timing.check import WrongOutput
from kernelwatch.timing.device import MemoryFault
from kernelwatch.timing.spent import Spent
from tests import fake_gpu
from tests.test_ranks import gone

SHAPE = (13, 9, 40)
SEVERAL = PARTS.name
CELL = Cell("matmul", "nccl", "float32", SHAPE, SEVERAL, SEVERAL)
ALONE = dataclasses.replace(CELL, rung="cublas")


# --- parts, and their check ----------------------------------------------------------------------------------------


def made(type: str, shape: tuple[int, ...], count: int) -> tuple[list[list[Any]], Any]:
    """The parts of A and B in exact numbers, and the whole product."""
    M, N, K = shape
    rng = np.random.default_rng(1)
    bits, into = EXACT_BITS[dtypes(type)[0].name], dtypes(type)[0]
    a, b = (
        np.ldexp(rng.integers(-(1 << few), 1 << few, extents), -few).astype(into)
        for few, extents in zip(bits, ((M, K), (K, N)), strict=True)
    )
    cut = [part(N, rank, count) for rank in range(count)]
    parts_a = [a[part(M, rank, count).start : part(M, rank, count).stop] for rank in range(count)]
    product = (a.astype(np.float64) @ b.astype(np.float64)).astype(dtypes(type)[1])
    return [parts_a, [b[:, own.start : own.stop] for own in cut]], product


@pytest.mark.parametrize("type", ["float32", "bfloat16->float32"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_check_of_a_part(type: str, count: int) -> None:
    inputs, product = made(type, (70, 41, 300), count)
    for rank in range(count):
        own = part(41, rank, count)
        out = product[:, own.start : own.stop].copy()

        def wrong(out: Any = out, rank: int = rank) -> list[int]:
            found = wrong_rows(inputs, out, rank, count, np.random.default_rng(3), np)
            assert found.shape == (70,)
            return list(np.flatnonzero(found))

        assert wrong() == []
        assert (out == product[:, own.start : own.stop]).all()
        for row, column in ((0, 0), (69, len(own) - 1), (35, 3)):
            right = out[row, column].copy()
            out[row, column] = np.nextafter(right, np.float32(np.inf))  # the smallest mistake there is
            assert wrong() == [row]
            out[row, column] = np.nan
            assert wrong() == [row]
            out[row, column] = right
        out[[4, 5]] = out[[5, 4]]
        assert wrong() == [4, 5]
        out[[4, 5]] = out[[5, 4]]
        out[:, [0, 1]] = out[:, [1, 0]]
        assert len(wrong()) > 60


def test_tf32_does_not_pass() -> None:
    inputs, product = made("float32", (64, 32, 256), 1)
    cut = (inputs[0][0].view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    wrong = wrong_rows(inputs, cut @ inputs[1][0], 0, 1, np.random.default_rng(3), np)
    assert wrong.all()
    assert not wrong_rows(inputs, product, 0, 1, np.random.default_rng(3), np).any()


@pytest.mark.parametrize("type", EXACT_BITS)
def test_the_check_is_exact_at_every_shape(type: str) -> None:
    """The largest numbers that it can meet fit in float64; sums of products, in float32, up to 12 deviations."""
    a_bits, b_bits = EXACT_BITS[type]
    for _, N, K in PARTS.shapes:
        assert 2 ** (53 - a_bits - b_bits) >= 16 * N * K
        assert 2 ** (24 - a_bits - b_bits) >= 12 * (K / 9) ** 0.5
    assert 32.0**-VECTORS < 1e-9  # that a wrong row is not seen
    assert a_bits > {"float32": 11, "bfloat16": 4}[type]  # the bits of TF32, and of an 8-bit type


# --- one rank ------------------------------------------------------------------------------------------------------


class Whole:
    """NCCL's place: what the parts of A are in the other processes."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def product(self, bits: tuple[int, ...], b: Any) -> Any:
        parts = [self.rank.input(0, owner, bits[0]) for owner in range(self.rank.ranks)]
        return np.vstack(parts).astype(np.float64) @ b.astype(np.float64)


def rank_of(count: int, at: int, product: Callable[[Rank, Any, Any, Any], object] | None = None) -> Rank:
    """Rank `at` of `count` on a GPU that is not there. `product(rank, a, b, out)`: in place of the right one."""
    device = fake_gpu.Device()
    cupy = fake_gpu.Cupy(device)
    said: list[str] = []
    rank = Rank(said.append)
    rank.cupy, rank.rank, rank.project = cupy, at, PROJECT
    rank.communicator = "all"
    rank.on = SimpleNamespace(  # type: ignore[assignment]
        stream=fake_gpu.Stream(device),
        kernels={name: cupy.function(name) for name in ("fill", "fill_short", "stamp")},
        stamps=np.zeros((2, 3), np.int64).view(fake_gpu.Memory),
        nvml=SimpleNamespace(state=lambda: fake_gpu.SILENT),
    )

    class Package:
        def load(self, op: str, name: str, type: str) -> Any:
            def bind(a: Any, b: Any, out: Any, **options: Any) -> Any:
                assert options == ({"communicator": "all"} if name == "nccl" else {})

                class Launch:
                    identity = f"{op}/{name} {type}"

                    def __call__(self) -> None:
                        if product:
                            product(rank, a, b, out)
                        else:
                            out[...] = Whole(rank).product(PARTS.exact_bits(type), b)

                return Launch()

            return SimpleNamespace(bind=bind)

    rank.package = Package()  # type: ignore[assignment]
    return rank


WORK_S = 5.0  # of a launch, on the clock of the stand-in's GPU


@pytest.mark.parametrize(("count", "at"), [(1, 0), (2, 0), (2, 1), (3, 2)])
def test_a_rank_holds_its_parts_and_finds_its_output_right(count: int, at: int) -> None:
    shapes: list[tuple[int, ...]] = []

    def product(rank: Rank, a: Any, b: Any, out: Any) -> None:
        rank.on.stream.device.host_s += WORK_S
        if not shapes:  # the first launch, which is checked
            assert (a == rank.input(0, at, 12)).all()
        shapes[:] = [a.shape, b.shape, out.shape]
        out[...] = Whole(rank).product((12, 2), b)

    rank = rank_of(count, at, product)
    found = rank.prepare((CELL if count > 1 else ALONE).as_json(), seed=4, ranks=count)
    M, N, K = SHAPE
    assert shapes == [(len(part(M, at, count)), K), (K, len(part(N, at, count))), (M, len(part(N, at, count)))]
    assert found["identity"] == f"matmul/{'nccl' if count > 1 else 'cublas'} float32"
    at_s = time.monotonic() + 0.05
    taken = rank.sample(at_s, 3)
    assert at_s <= taken["start"]
    assert taken["end"] - taken["start"] == pytest.approx(3 * WORK_S, abs=0.1)  # by the GPU's clock, not the host's
    assert taken["state"] == fake_gpu.SILENT
    rank.free()


def test_all_ranks_agree_on_an_input_and_every_process_has_others() -> None:
    ranks = [rank_of(2, at) for at in range(2)]
    for rank in ranks:
        rank.prepare(CELL.as_json(), seed=4, ranks=2)
    for owner in range(2):
        assert (ranks[0].input(0, owner, 12) == ranks[1].input(0, owner, 12)).all()
    first = ranks[0].input(0, 0, 12)
    assert (first != ranks[0].input(0, 1, 12)[: len(first)]).mean() > 0.9
    ranks[0].prepare(CELL.as_json(), seed=5, ranks=2)
    assert (first != ranks[0].input(0, 0, 12)).mean() > 0.9


def nothing(rank: Rank, a: Any, b: Any, out: Any) -> None:
    pass


def lacks_a_panel(rank: Rank, a: Any, b: Any, out: Any) -> None:
    out[:6] = Whole(rank).product((12, 2), b)[:6]


@pytest.mark.parametrize(
    ("product", "words"),
    [
        (nothing, "13 of 13 rows of its part wrong, the first is row 0; 65 of 65 elements never written"),
        (lacks_a_panel, "7 of 13 rows of its part wrong, the first is row 6; 35 of 65 elements never written"),
    ],
)
def test_a_wrong_part_yields_no_figure(product: Callable[[Rank, Any, Any, Any], object], words: str) -> None:
    with pytest.raises(WrongOutput) as error:
        rank_of(2, 1, product).prepare(CELL.as_json(), seed=4, ranks=2)
    assert str(error.value) == f"matmul/nccl at {SHAPE} float32: {words}"


def test_what_is_written_after_a_part_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = rank_of(2, 1)
    set_memory = rank._set

    def overrun(array: Any, value: int) -> None:
        set_memory(array, value)
        if array.dtype == np.uint8:  # what follows the output
            array[5] = 0

    monkeypatch.setattr(rank, "_set", overrun)
    with pytest.raises(WrongOutput, match="wrote 1 of the 4096 bytes after its output"):
        rank.prepare(CELL.as_json(), seed=4, ranks=2)


# --- the device ----------------------------------------------------------------------------------------------------

# Ranks that answer as the real ones do; FAULT is a statement that rank 1 runs when it is to sample.
STAND_IN = """
import json, os, sys, time
rank, ranks = 0, 0
for line in sys.stdin:
    request = json.loads(line)
    do = request.pop("do")
    found = None
    if do == "id":
        found = "ab12"
    elif do == "join":
        rank = request["rank"]
        assert request["id"] == "ab12" and request["ranks"] == 2
    elif do == "prepare":
        ranks, seed = request["ranks"], request["seed"]
        found = {"seconds": 0.5, "identity": os.environ["NCCL_NVLS_ENABLE"] + " " + str(ranks) + " " + str(seed)}
    elif do == "sample":
        if rank == 1:
            FAULT
        end = [10.0 + request["count"] * 0.05, 9.5][rank]
        found = {"start": 10.0 - rank, "end": end, "clock_mhz": 1500 - rank, "state": {"event_reasons": 4 * rank}}
    print(json.dumps({"result": found}), flush=True)
"""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Timer]]:
    every: list[Timer] = []

    def make(fault: str = "pass", count: int = 2) -> Timer:
        program = STAND_IN.replace("FAULT", fault)
        monkeypatch.setattr(timer, "START", program)
        made = Timer.__new__(Timer)
        made.project, made.tree, made.count, made._running = PROJECT, "/package", count, None
        made.spent = Spent()
        made.budget, made.seed, made.nvml_facts = Budget(3, 0.1), 7, {"sm_clock_max_mhz": 1980}
        monkeypatch.setattr(made, "_gpus", lambda: ())
        monkeypatch.setattr(made, "canary_seconds", lambda: {"memory": 1.0})
        every.append(made)
        return made

    yield make
    for made in every:
        if made._running is not None:
            made._running.close()


def processes_of(device: Timer) -> list[int]:
    return [rank.process.pid for rank in device._running._ranks] if device._running else []


def test_a_sample_lasts_from_the_first_start_to_the_last_end(device: Callable[..., Timer]) -> None:
    made = device()
    measured = made.measure(CELL)
    # A launch lasts from 9.0 to 9.5 on rank 1, and from 10.0 to 10.05 on rank 0.
    assert measured["seconds"] == pytest.approx(1.05)
    assert measured["launches"] == 2  # as many as fit in CELL_S
    assert measured["clock64_mhz"] == 1499
    assert measured["throttled"] == ["software power cap"]
    assert measured["identity"] == "0 2 7"
    assert ENVIRONMENT == {"NCCL_NVLS_ENABLE": "0"}
    processes = processes_of(made)
    alone = made.measure(ALONE)
    assert alone["identity"] == "0 1 7"
    assert alone["seconds"] == pytest.approx(0.05)
    assert alone["launches"] == 6  # three samples of two launches
    assert alone["throttled"] == []
    assert processes_of(made) == processes  # the same ranks


def test_uncorrected_errors_of_any_gpu_fail_a_cell(
    device: Callable[..., Timer], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = device()
    monkeypatch.delattr(made, "_gpus")
    made.cupy = SimpleNamespace(cuda=SimpleNamespace(Device=lambda at: SimpleNamespace(pci_bus_id=at)))
    errors: dict[int, list[int | None]] = {0: [None, None], 1: [1, 3]}
    monkeypatch.setattr(timer, "Nvml", lambda bus: SimpleNamespace(uncorrected_errors=lambda: errors[bus].pop(0)))
    with pytest.raises(MemoryFault, match="2 uncorrected ECC errors"):
        made.measure(CELL)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("os._exit(3)", RankError, "rank 1 of 2 died with exit code 3"),
        (
            'print(json.dumps({"error": "3 rows wrong", "kind": "WrongOutput"}), flush=True)',
            WrongOutput,
            "rank 1 of 2: 3 rows wrong",
        ),
        ('print(json.dumps({"error": "no memory", "kind": "NotHere"}), flush=True)', NotHere, "rank 1 of 2: no memory"),
    ],
)
def test_after_a_lost_rank_the_next_cell_gets_new_ones(
    device: Callable[..., Timer], monkeypatch: pytest.MonkeyPatch, fault: str, kind: type[Exception], words: str
) -> None:
    made = device(fault)
    made.measure(ALONE)
    processes = processes_of(made)
    with pytest.raises(kind, match=words):
        made.measure(CELL)
    assert gone(processes)
    monkeypatch.setattr(timer, "START", STAND_IN.replace("FAULT", "pass"))
    assert made.measure(CELL)["seconds"] > 0


def test_one_gpu_is_not_enough(device: Callable[..., Timer]) -> None:
    made = device(count=1)
    with pytest.raises(NotHere, match=r"^needs 2 GPUs, this machine has 1$"):
        made.measure(CELL)
    assert made._running is None


def test_without_a_gpu_the_cells_are_not_available(no_gpu: str) -> None:
    run = Run(PROJECT, [CELL], SEVERAL, str(PROJECT.root), Budget(1, 0.0))
    run.measure_all(0)
    assert run.group.outcomes[CELL.key].state == "na"
    assert run.group.outcomes[CELL.key].reason.startswith("no GPU here")


# --- the locks, the conditions, the series ----------------------------------------------------------------------------


def test_all_gpus_are_locked_in_one_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELWATCH_LOCKS", str(tmp_path))
    buses = ["0000:9B:00.0", "0000:1A:00.0"]
    cuda = SimpleNamespace(
        Device=lambda at=0: SimpleNamespace(pci_bus_id=buses[at]), runtime=SimpleNamespace(getDeviceCount=lambda: 2)
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    taken: list[str] = []  # not by the files' times, which may be the same
    real = locked

    def noted(path: Path, *given: Any) -> Any:
        taken.append(path.name)
        return real(path, *given)

    monkeypatch.setattr(holding, "locked", noted)
    locks = {"gpu": [0], SEVERAL: [1, 0]}
    for name, wanted in locks.items():
        taken.clear()
        with worker._alone(PROJECT.devices[name], {"cells": [], "alone": True}, sys.stdout):
            pass
        assert taken == [f"kernelwatch-{buses[at].replace(':', '-').replace('.', '-')}.lock" for at in wanted]
        assert {path.name for path in tmp_path.iterdir()} >= set(taken)


def test_other_gpus_are_other_conditions() -> None:
    two, four, none = ({"gpu": "H200", "gpus": gpus} for gpus in (["a", "b"], ["a", "b", "c", "d"], None))
    del none["gpus"]
    told = [conditions(facts) for facts in (two, four, none)]  # type: ignore[arg-type]
    assert not alike(told[0], told[1])
    assert alike(told[0], told[2])  # the other groups do not know it


def test_the_share_is_of_all_gpus() -> None:
    suite = Suite()
    shape = PARTS.shapes[0]
    names = {rung: key("matmul", rung, "float32", shape, SEVERAL) for rung in ("nccl", "cublas")}
    outcomes = {
        names["nccl"]: Outcome("ok", "", [{"process": 0, "seconds": 2.0}, {"process": 1, "seconds": 2.5}]),
        names["cublas"]: Outcome("ok", "", [{"process": 0, "seconds": 3.6}, {"process": 1, "seconds": 4.0}]),
    }
    group = Group("matmul several", outcomes, {"gpus": ["a", "b"]})
    where = ("float32", "x".join(map(str, shape)))
    assert suite.track_share_of_gpus(group, "nccl", *where) == {"samples": [90.0, 80.0], "number": 1}
    assert np.isnan(suite.track_share_of_gpus(group, "cublas", *where))  # type: ignore[arg-type]
    assert suite.track_flops(group, "nccl", *where)["samples"][0] == pytest.approx(2 * 16384**3 / 2.0 / 1e9)  # type: ignore[index]


def test_operands_are_those_of_the_problem() -> None:
    """Each array has an axis along which it is cut."""
    operands: Operands = PROJECT.op("matmul").computation.operands(SHAPE, "float32")
    assert len(PARTS.axes) == len(operands.arrays)
    assert all(axis < len(array.shape) for axis, array in zip(PARTS.axes, operands.arrays, strict=True))


def test_the_ranks_are_given_up_before_the_worker_is() -> None:
    assert PARTS.silence_s > 2 * timer.SILENCE_S


# --- on GPUs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpus(gpu: None) -> int:
    """How many GPUs there are, at least two."""
    import cupy

    count = int(cupy.cuda.runtime.getDeviceCount())
    if count < 2:
        pytest.skip(f"needs 2 GPUs, this machine has {count}")
    return count


def of_shape(shape: tuple[int, ...], type: str, rung: str = "nccl") -> Cell:
    return Cell("matmul", rung, type, shape, SEVERAL, SEVERAL)


@pytest.mark.gpu
@pytest.mark.xdist_group("several")
def test_products_of_every_type_are_measured(gpus: int) -> None:
    shapes = [(1031, 517, 773), (2048, 1024, 4096), (3, 130, 33), (1, 1, 1)]
    types = PROJECT.op("matmul").rung("nccl").types
    cells = [of_shape(shape, type, rung) for shape in shapes for type in types for rung in ("nccl", "cublas")]
    cells = [cell for cell in cells if cell.rung == "nccl" or min(cell.shape) > 1]
    run = Run(PROJECT, cells, SEVERAL, str(PROJECT.root), Budget(2, 0.001))
    run.measure_all(0)
    for name, outcome in run.group.outcomes.items():
        assert (name, outcome.state, outcome.reason) == (name, "ok", "")
        assert outcome.measurements[0]["seconds"] > 0
    assert len(set(run.group.facts["gpus"])) == gpus


# What rank 1 does in place of a launch, or of its preparation.
FAULTS = {
    "raise ValueError('a part is missing')": "rank 1 of {gpus}: ValueError: a part is missing",
    "time.sleep(600)": "rank 1 of {gpus} hangs: nothing for 12 s",
    "os.kill(os.getpid(), 9)": "rank 1 of {gpus} was killed by SIGKILL",
}


@pytest.mark.gpu
@pytest.mark.xdist_group("several")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_lost_rank_frees_all_gpus(gpus: int, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    monkeypatch.setattr(timer, "SILENCE_S", 12.0)
    package = tmp_path / "gpukernels"
    shutil.copytree(PROJECT.root / "gpukernels", package)
    source = package / "matmul" / "nccl.py"
    text, at = source.read_text(), "    rank, ranks = communicator.rank_id(), communicator.size()\n"
    assert at in text
    source.write_text(text.replace(at, f"{at}    import os, time\n    if rank == 1:\n        {fault}\n"))
    measuring = Timer(PROJECT, gpukernels, [], Budget(1, 0.1), 0)  # type: ignore[arg-type]
    cell = of_shape((4096, 4096, 4096), "float32")
    free = [cupy.cuda.Device(at).mem_info[0] for at in range(gpus)]
    measuring.tree = str(tmp_path)
    with pytest.raises(RankError) as error:
        measuring.measure(cell)
    assert str(error.value) == FAULTS[fault].format(gpus=gpus)
    assert all(cupy.cuda.Device(at).mem_info[0] >= free[at] - (16 << 20) for at in range(gpus))
    measuring.tree = str(PROJECT.root)
    assert measuring.measure(cell)["seconds"] > 0
    assert measuring._running is not None
    measuring._running.close()


@pytest.mark.gpu
@pytest.mark.xdist_group("several")
def test_a_rank_that_is_killed_under_work_frees_all_gpus(gpus: int) -> None:
    """The others wait for it on the GPU, in NCCL."""
    import cupy

    measuring = Timer(PROJECT, gpukernels, [], Budget(1000, 0.1), 0)  # type: ignore[arg-type]
    cell = of_shape((8192, 8192, 8192), "float32")
    assert measuring.measure(cell)["seconds"] > 0
    processes = processes_of(measuring)
    assert measuring._running is not None
    killer = threading.Timer(1.0, lambda: os.kill(processes[1], signal.SIGKILL))
    killer.start()

    def go_on() -> None:
        for _ in range(100):
            measuring.measure(cell)

    with pytest.raises(RankError, match=f"rank 1 of {gpus} was killed by SIGKILL"):
        go_on()
    killer.join()
    assert gone(processes)
    assert cupy.cuda.Device(1).mem_info[0] > 0.9 * cupy.cuda.Device(1).mem_info[1]
