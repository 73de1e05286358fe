"""How the clock of tensor cores moves with the heat (scripts/lab/heat): two sidecars, and a page of recorded runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from kernelwatch.history.records import Measured, Record, measured
from kernelwatch.run.outcome import Outcome
from kernelwatch.system.errors import UserError
from kernelwatch.timing.record import Facts, Measurement
from lab import heat

HIGHEST = 1980.0
WGMMA, COPY = "matmul/wgmma float16->float32 256x256x256 cold", "transpose/copy float32 256x256 cold"


def taken(process: int, seconds: float, mhz: float | None, celsius: float, watts: float) -> Measurement:
    state = {"temperature_c": celsius, "power_w": watts}
    return cast(Measurement, {"process": process, "seconds": seconds, "clock64_mhz": mhz, "state": state})


def cell(key: str, *measurements: Measurement) -> Measured:
    return measured(key, Outcome("ok", measurements=[*measurements]), "matmul gpu")


def record(mhz: float, seconds: float, celsius: float, commit: str = "1" * 8, gpu: str = "one") -> Record:
    """A kernel on tensor cores, and enough copies at the highest clock to tell which that is."""
    cells = [cell(WGMMA, *(taken(at, seconds, mhz, celsius, 200.0) for at in range(3)))]
    cells += [
        cell(COPY.replace("copy", f"copy{one}"), *(taken(at, 2e-6, HIGHEST, celsius, 100.0) for at in range(3)))
        for one in range(9)
    ]
    facts = cast("dict[str, Facts]", {"matmul gpu": {"nvml_uuid_sha256": gpu}})
    return Record("machine", commit, facts, {each.key: each for each in cells})


def cells_of(line: str) -> list[str]:
    return [text.strip() for text in line.split("|")[1:-1]]


def test_what_changed_beside_others_is_told_by_what_held_the_clock() -> None:
    lines = heat.pair(record(1800.0, 3.03e-6, 38.0), record(1818.0, 3e-6, 42.0))
    assert [line["held_by"] for line in lines] == [heat.TENSOR] + [heat.NOTHING] * 9
    lowered, highest = map(cells_of, heat.by_side(lines).splitlines()[2:])
    assert lowered[1:] == ["1", "38.0, 200 W", "42.0, 200 W", "+1.00 %", "-0.99 %", "100 %"]
    assert highest[1:] == ["9", "38.0, 100 W", "42.0, 100 W", "+0.00 %", "+0.00 %", "0 %"]


def test_without_a_kernel_on_tensor_cores_there_is_nothing_to_compare() -> None:
    with pytest.raises(UserError, match="no cold cell of both sidecars has a clock that tensor cores lowered"):
        heat.pair(record(1700.0, 3e-6, 38.0), record(1700.0, 3e-6, 42.0))
    limited, _ = map(cells_of, heat.by_side([
        {"held_by": held, "alone": heat.readings(own), "among": heat.readings(own)}
        for held in (heat.POWER, heat.NOTHING)
        for own in [record(1700.0, 3e-6, 38.0).cells[WGMMA].measurements]
    ]).splitlines()[2:])  # fmt: skip
    assert limited[0] == heat.POWER


@pytest.mark.parametrize("other", [{"commit": "2" * 8}, {"gpu": "another"}])
def test_nothing_but_the_other_cells_may_differ(other: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="not of one commit and one GPU"):
        heat.pair(record(1800.0, 3e-6, 38.0), record(1800.0, 3e-6, 38.0, **other))


def test_a_row_for_each_process() -> None:
    """Which ran hotter, at another clock; a process that measured none of the cells has nothing to tell."""
    before = record(1800.0, 3e-6, 40.0)
    hot = [
        taken(at, 3e-6 * (0.99 if at < 2 else 1.01), 1818.0 if at < 2 else 1782.0, 44.0 - at, 200.0)
        for at in (0, 1, 3, 4)
    ]
    four = replace(before, cells={**before.cells, WGMMA: cell(WGMMA, *hot)})
    assert set(cells_of(heat.by_process([four]).splitlines()[2])[1:]) == {"n/a"}  # too few processes
    five = replace(four, cells={**four.cells, WGMMA: cell(WGMMA, *hot, taken(5, 3e-6, 1800.0, 39.0, 200.0))})
    rows = [cells_of(line) for line in heat.by_process([five]).splitlines()[2:]]
    assert rows[0] == ["0", "44.0", "200", "+1.00 %", "-1.00 %"]
    assert rows[2] == ["2", *["n/a"] * 4]
    assert rows[3] == ["3", "41.0", "200", "-1.00 %", "+1.00 %"]


def test_the_page_has_the_tables() -> None:
    page = heat.PAGE.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in heat.RECORD.read_text(encoding="utf-8").splitlines()]
    assert heat.by_side(lines) in page
    assert heat.by_process(heat.shown()) in page


def test_one_sidecar_is_no_pair(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        heat.main([str(Path("one.facts.jsonl"))])
    assert "takes two sidecars, or none, got 1" in capsys.readouterr().err
