"""What held the SM clock of a cell: its own work, or what makes its figure doubtful; on made-up and recorded cells."""

from pathlib import Path
from typing import cast

import pytest

from kernelwatch.history import records
from kernelwatch.run.outcome import Outcome
from kernelwatch.timing import clocks
from kernelwatch.timing.nvml import Others
from kernelwatch.timing.record import Measurement
from kernelwatch.timing.replay import LOW_CLOCK

ROOT = Path(__file__).resolve().parent.parent
H200 = "nvidia-h200.intel-xeon-processor.x86-64.linux"
WGMMA_MHZ = (1895.0, 1896.0, 1901.0, 1899.0, 1898.0, 1897.0)
POWER_CAP = "software power cap"
IDLE: Others = {"processes": [], "utilisation_percent": 0}
USED: Others = {"processes": [{"pid": 4711, "memory_bytes": None}], "utilisation_percent": None}


def taken(mhz: tuple[float | None, ...], seconds: tuple[float, ...] = (), *limits: str) -> list[Measurement]:
    """A measurement for each clock; by default all take the same time. `limits`: met by all of them."""
    seconds = seconds or (9.1e-6,) * len(mhz)
    values = [
        {"process": at, "seconds": one, "clock64_mhz": clock, "throttled": list(limits)}
        for at, (clock, one) in enumerate(zip(mhz, seconds, strict=True))
    ]
    return cast("list[Measurement]", values)


def test_without_a_limit_there_is_nothing_to_say() -> None:
    assert clocks.clock(taken((1980.0, 1700.0), (1e-6, 2e-6))) == clocks.Clock()
    assert clocks.clock([]) == clocks.Clock()


@pytest.mark.parametrize("limits", [(LOW_CLOCK,), (POWER_CAP,), (LOW_CLOCK, POWER_CAP)])
def test_a_clock_that_all_processes_share_is_the_kernels_own(limits: tuple[str, ...]) -> None:
    found = clocks.clock(taken(WGMMA_MHZ, (), *limits), IDLE)
    assert found == clocks.Clock(own_mhz=1897.5)


def test_seconds_that_agree_say_so_too() -> None:
    """The clock may differ where it does not matter, as under a kernel that waits for memory."""
    differing = (1700.0, 1750.0, 1800.0)
    assert clocks.clock(taken(differing, (), LOW_CLOCK)).own_mhz == 1750.0
    found = clocks.clock(taken(differing, (9.1e-6, 9.0e-6, 8.8e-6), LOW_CLOCK))
    assert found.limits == (clocks.DIFFERS,)
    assert found.own_mhz is None
    assert found.doubt == pytest.approx(100 / 1750 / 2)


def test_one_process_under_a_limit_is_a_limit() -> None:
    found = clocks.clock([*taken((1980.0,) * 5, (9.1e-6,) * 5), *taken((1890.0,), (9.5e-6,), POWER_CAP)])
    assert found.limits == (clocks.DIFFERS, POWER_CAP)


@pytest.mark.parametrize("limit", ["hardware slowdown", "software thermal slowdown", "hardware power brake"])
def test_what_comes_from_outside_is_a_limit_however_well_all_agree(limit: str) -> None:
    found = clocks.clock(taken(WGMMA_MHZ, (), limit, LOW_CLOCK))
    assert (found.limits, found.doubt) == ((limit,), clocks.DOUBT_LEAST)


def test_another_program_on_the_gpu_is_a_limit() -> None:
    assert clocks.clock(taken(WGMMA_MHZ, (), LOW_CLOCK), USED).limits == (clocks.BESIDE,)
    assert clocks.clock(taken(WGMMA_MHZ), USED) == clocks.Clock()  # at the full clock; reported for the whole run


def test_an_unknown_clock_is_nobodys_own() -> None:
    assert clocks.clock(taken((None, None), (), POWER_CAP)).limits == (POWER_CAP,)
    assert clocks.clock(taken((None, 1800.0), (), LOW_CLOCK)).limits == (LOW_CLOCK,)
    assert clocks.clock(taken((None,), (), LOW_CLOCK)).limits == (LOW_CLOCK,)


def test_a_limited_figure_is_less_certain() -> None:
    figures = [1.0, 1.02, 0.98, 1.0]
    assert records.spread(figures, 0.02) == pytest.approx((records.spread(figures) ** 2 + 0.02**2) ** 0.5)


@pytest.mark.parametrize(("commit", "met"), [("46ae8df7", 200), ("cdf67321", 200), ("284c1fc3", 20)])
def test_few_cells_of_an_idle_h200_are_limited(commit: str, met: int) -> None:
    record = records.read(next((ROOT / "results" / H200).glob(f"{commit}-*.facts.jsonl")))
    cold = [cell for cell in record.cells.values() if cell.group.endswith(" gpu") and cell.key.endswith(" cold")]
    timed = [cell for cell in cold if cell.seconds]
    lowered = [cell for cell in timed if any(each.get("throttled") for each in cell.measurements)]
    limited = [cell for cell in timed if cell.limits]
    assert len(lowered) > met
    assert len(limited) <= 0.05 * len(timed)
    assert {cell.key for cell in limited} < {cell.key for cell in lowered}
    if wgmma := record.cells.get("matmul/wgmma float16->float32 512x512x512 cold"):
        assert wgmma.own_clock_mhz is None or 1890 < wgmma.own_clock_mhz < 1910
        assert wgmma.limits == ()


@pytest.mark.parametrize("at", range(3))
def test_a_retake_takes_the_place_of_the_one_that_agrees_least(at: int) -> None:
    """What only the first process knows stays; so does what was replaced."""
    cell = taken((1895.0, 1895.0, 1896.0), (9.1e-6, 9.1e-6, 9.1e-6), LOW_CLOCK)
    cell[at] |= {"seconds": 9.9e-6, "clock64_mhz": 1700.0}
    cell[0]["kernels"] = [{"kernel": "wgmma"}]
    (fresh,) = taken((1897.0,), (9.1e-6,), LOW_CLOCK)
    fresh["process"] = 3
    found = clocks.retaken(cell, fresh)
    assert [each["process"] for each in found] == [3 if place == at else place for place in range(3)]
    assert found[0]["kernels"] == [{"kernel": "wgmma"}]
    assert found[at]["instead_of"] == {
        "process": at, "seconds": 9.9e-6, "clock64_mhz": 1700.0, "throttled": [LOW_CLOCK]
    }  # fmt: skip
    assert clocks.clock(found).own_mhz in (1895.0, 1896.0)


def test_a_retake_that_agrees_no_better_replaces_nothing() -> None:
    cell = taken((1700.0, 1895.0, 1896.0), (9.9e-6, 9.1e-6, 9.1e-6), LOW_CLOCK)
    (fresh,) = taken((1690.0,), (9.95e-6,), LOW_CLOCK)
    found = clocks.retaken(cell, fresh)
    assert [(each["process"], each.get("retakes")) for each in found] == [(0, 1), (1, None), (2, None)]
    assert clocks.clock(found).limits == (clocks.DIFFERS,)


def test_a_process_that_ran_a_step_below_the_others_is_taken_again() -> None:
    """As the first one of `tiled_32` at 2048 in the record of 5e02dca1, whose other five agree within 0.01 %."""
    cell = taken((1950.0, 1979.0, 1979.0, 1980.0), (2897.3e-6, 2862.6e-6, 2863.4e-6, 2863.2e-6), POWER_CAP)
    assert clocks.odd(cell) == 0
    assert clocks.clock(cell).limits == ()  # a fact, no doubt: all clocks lie within 2 %
    (fresh,) = taken((1979.0,), (2862.8e-6,))
    found = clocks.retaken(cell, fresh)
    assert [each["seconds"] for each in found] == [2862.8e-6, 2862.6e-6, 2863.4e-6, 2863.2e-6]
    assert clocks.odd(found) is None


def test_clocks_that_lie_close_or_spread_are_not_odd() -> None:
    assert clocks.odd(taken((1971.0, 1979.0, 1980.0, 1980.0))) is None
    assert clocks.odd(taken((1400.0, 1402.0, 1406.0, 1402.0), (), LOW_CLOCK)) is None
    assert clocks.odd(taken((1950.0, 1980.0))) is None  # which of two is odd?
    assert clocks.odd(taken((1774.0, 1754.0, 1774.0, 1758.0))) is None  # there are two clocks


def test_a_process_that_ran_a_step_above_the_others_is_odd() -> None:
    assert clocks.odd(taken((1829.0, 1814.0, 1813.0, 1814.0))) == 0
    assert clocks.odd(taken((1814.0, 1813.0, 1829.0))) == 2


# The first one ran a step too high, as that of `wgmma_tma_store` at 1024 in the record of 686b6c50.
ODD_MHZ, ODD_S = (1829.0, 1814.0, 1813.0, 1812.0), (16.09e-6, 16.23e-6, 16.24e-6, 16.23e-6)


def in_order(mhz: float | None, seconds: float, process: int) -> Measurement:
    (one,) = taken((mhz,), (seconds,), LOW_CLOCK)
    return {**one, "process": process, "spent_s": {"rest": 0.1 * process}}


@pytest.mark.parametrize("at", range(4))
def test_a_process_at_another_clock_than_all_others_is_left_out(at: int) -> None:
    """The last process takes its place, or the one before it that of the last; nothing of it is lost."""
    order = [*range(1, 4)]
    order.insert(at, 0)
    cell = [in_order(ODD_MHZ[one], ODD_S[one], process) for process, one in enumerate(order)]
    cell[0]["kernels"] = [{"kernel": "wgmma"}]
    assert clocks.odd(cell) == at
    assert not Outcome("ok", measurements=cell).wanted(4)  # the cell has ended
    found = clocks.settled(cell)
    assert [each["process"] for each in found] == [[3, 1, 2], [0, 3, 2], [0, 1, 3], [0, 1, 2]][at]
    assert sorted(each["seconds"] for each in found) == sorted(ODD_S[1:])
    (told,) = (each["instead_of"] for each in found if "instead_of" in each)
    assert told == {
        "process": at, "seconds": ODD_S[0], "clock64_mhz": ODD_MHZ[0], "throttled": [LOW_CLOCK],
        "spent_s": {"rest": 0.1 * at},
    }  # fmt: skip
    assert found[0]["kernels"] == [{"kernel": "wgmma"}]
    assert [Outcome("ok", measurements=found).wanted(process) for process in range(4)] == [False] * 4


@pytest.mark.parametrize(
    "mhz",
    [
        (1774.0, 1754.0, 1774.0, 1758.0, 1756.0, 1757.0),  # as of `wmma` at 64 x 65536 x 256 there
        (1810.0, 1810.0, 1810.0, 1795.0, 1810.0, 1795.0),
        (1829.0, 1814.0, 1813.0),  # too few others to tell
        (1829.0, 1814.0, 1813.0, None),
    ],
)
def test_both_clocks_of_a_cell_that_has_two_are_kept(mhz: tuple[float | None, ...]) -> None:
    cell = [in_order(one, 16e-6, process) for process, one in enumerate(mhz)]
    assert clocks.agreeing(cell) == clocks.settled(cell) == cell


def test_a_second_replacement_tells_of_the_first() -> None:
    loud = [in_order(mhz, 16e-6 * (1 + at / 100), at) for at, mhz in enumerate(ODD_MHZ)]
    cell = clocks.settled(loud)
    hot = "hardware thermal slowdown"
    cell[0]["throttled"] = [hot]
    found = clocks.retaken(cell, in_order(1813.0, 16e-6, 6))
    assert (found[0]["process"], found[0]["instead_of"]["process"]) == (6, 3)
    assert found[0]["instead_of"]["instead_of"]["process"] == 0
    known = Outcome("ok", measurements=found)
    assert [process for process in range(8) if known.wanted(process)] == [4, 5, 7]  # no one measures a cell twice


def test_a_retake_that_read_no_clock_replaces_no_measurement_that_has_one() -> None:
    """Nothing tells that it agrees better; one that has a clock takes the place of one without."""
    odd = taken((1950.0, 1979.0, 1980.0), (2897.3e-6, 2862.6e-6, 2863.2e-6), POWER_CAP)
    blind: Measurement = {"process": 3, "seconds": 2890.0e-6}
    assert [each["seconds"] for each in clocks.retaken(odd, blind)] == [2897.3e-6, 2862.6e-6, 2863.2e-6]
    (fresh,) = taken((1979.0,), (2862.8e-6,))
    assert [each["seconds"] for each in clocks.retaken([*odd[1:], blind], fresh)][2] == 2862.8e-6


def test_the_one_under_a_limit_from_outside_is_taken_again_first() -> None:
    hot = "hardware thermal slowdown"
    cell = [*taken((1700.0, 1900.0)), *taken((1895.0,), (9.1e-6,), hot)]
    (fresh,) = taken((1898.0,))
    found = clocks.retaken(cell, fresh)
    assert found[2]["instead_of"]["throttled"] == [hot]
    assert clocks.clock(found) == clocks.Clock()
