"""Pictures of the ladder and the roofline: what is drawn is what was recorded."""

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.project import PROJECT
from kernelwatch.commands import ladder
from kernelwatch.extras import picture
from kernelwatch.history import records
from kernelwatch.history.records import Record
from kernelwatch.report.rows import sections
from kernelwatch.system.errors import UserError

pytestmark = [pytest.mark.xdist_group("picture"), pytest.mark.usefixtures("pyplot")]  # one process imports it


@pytest.fixture(scope="module")
def pyplot() -> Any:
    return pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")


def newest(op: str) -> Record:
    """The newest record of this project in which an op was timed."""
    return records.newest(records.sidecars(PROJECT.results, "h200"), [f"{op} gpu"])[0]


@pytest.fixture(scope="module")
def record() -> Record:
    return newest("matmul")


@pytest.fixture
def axes(pyplot: Any, record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The axes of the picture of the matrix products."""
    drawn: list[Any] = []
    monkeypatch.setattr(pyplot, "close", drawn.append)
    picture.draw(record, PROJECT, "matmul", "gpu", "cold", None, tmp_path / "a.svg")
    yield drawn[0].axes
    monkeypatch.undo()
    pyplot.close(drawn[0])


def test_the_ladder_is_what_was_recorded(axes: Any, record: Record) -> None:
    shown = [section for section in sections(record, PROJECT, ["matmul"]) if section.group.endswith("cold, GPU")]
    places = [text.get_text() for text in axes[0].get_xticklabels()]
    assert len(places) == len(shown) > 5
    drawn = {bars.get_label(): bars.lines[0].get_xydata() for bars in axes[0].containers}
    for place, section in enumerate(shown):
        for row in section.rows:
            (rate,) = (y for x, y in drawn[row.rung] if x == place)
            assert rate == pytest.approx(row.rate / 1e9)
    assert sum(map(len, drawn.values())) == sum(len(section.rows) for section in shown)


def test_an_op_without_arithmetic_is_below_its_bandwidths(
    pyplot: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = newest("transpose")
    drawn: list[Any] = []
    monkeypatch.setattr(pyplot, "close", drawn.append)
    picture.draw(record, PROJECT, "transpose", "gpu", "cold", None, tmp_path / "a.svg")
    (axes,) = drawn[0].axes
    facts: Any = record.facts["transpose gpu"]
    bounds = [facts["ceilings"]["copy_bytes_per_s"] / 1e9, facts["nvml_theoretical_bandwidth_bytes_per_s"] / 1e9]
    assert [line.get_ydata()[0] for line in axes.lines if line.get_marker() == "None"][-2:] == bounds
    assert [text.get_text() for text in axes.texts] == [
        f"copy, measured, {bounds[0]:.0f} GB/s",
        f"theoretical bandwidth, {bounds[1]:.0f} GB/s",
    ]
    monkeypatch.undo()
    pyplot.close(drawn[0])


def test_no_two_rungs_look_alike(axes: Any) -> None:
    lines = [bars.lines[0] for bars in axes[0].containers]
    styles = {(line.get_color(), line.get_marker(), line.get_linestyle(), line.get_markerfacecolor()) for line in lines}
    assert len(styles) == len(lines) > len(picture.COLORS)
    rungs = [line for line in lines if line.get_color() != "#777777"]
    assert len({(line.get_color(), str(line._unscaled_dash_pattern)) for line in rungs}) == len(
        rungs
    )  # without looking at symbols


def test_the_roofline_is_below_its_ceilings(axes: Any, record: Record) -> None:
    *points, roof = axes[1].lines
    points = [line for line in points if line.get_marker() != "None"]
    ceilings = record.facts["matmul gpu"]["ceilings"]
    assert max(roof.get_ydata()) == pytest.approx(ceilings["float32_flops_per_s"] / 1e9)
    intensity, rate = roof.get_xydata()[0]
    assert rate == pytest.approx(intensity * ceilings["copy_bytes_per_s"] / 1e9)
    bandwidth = ceilings["copy_bytes_per_s"]
    assert all(y < x * bandwidth / 1e9 for line in points for x, y in line.get_xydata())
    faster = [line for line in points if max(line.get_ydata()) > max(roof.get_ydata())]
    names = [name for bars in axes[0].containers if " " not in (name := bars.get_label())]
    assert {names[points.index(line)].removesuffix("_64x128") for line in faster} == {
        "bf16x6",
        "fp16x3",
        "tf32",
        "cublas_tf32",
    }  # on tensor cores
    assert axes[1].get_title().endswith("\nabove them: tensor cores")
    cell = record.cells["matmul/thread_tile_2d float32 4096x4096x4096 cold"]
    n = 4096
    expected = (2 * n**3 / (3 * 4 * n**2), 2 * n**3 / cell.median_s / 1e9)
    assert any(tuple(point) == pytest.approx(expected) for line in points for point in line.get_xydata())


def test_the_command_writes_both_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    png, svg = tmp_path / "a.png", tmp_path / "a.svg"
    assert ladder.main(PROJECT, "ladder", ["transpose", "--machine", "H200", "--png", str(png), "--svg", str(svg)]) == 0
    assert capsys.readouterr().out == f"drawn: {png}\ndrawn: {svg}\n"
    assert png.read_bytes().startswith(b"\x89PNG")
    text = svg.read_text()
    for word in ("naive_write", "vector_copy", "NVIDIA H200", "16411x8209", "GB/s", "95 % interval"):
        assert word in text


@pytest.mark.parametrize(
    ("op", "device", "cache", "name", "why"),
    [
        ("transpose", "gpu", "cold", "a.xyz", "cannot be written"),
        ("transpose", "gpu", "cold", "no/such/folder/a.svg", "cannot be written"),
        ("matmul", "tpu", "cold", "a.svg", "matmul was not timed cold on the TPU at "),
    ],
)
def test_what_cannot_be_drawn_is_told(tmp_path: Path, op: str, device: str, cache: str, name: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        picture.draw(newest(op), PROJECT, op, device, cache, None, tmp_path / name)


def test_without_matplotlib_it_is_named(record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match="pip install matplotlib"):
        picture.draw(record, PROJECT, "transpose", "gpu", "cold", None, tmp_path / "a.svg")


def test_a_picture_is_of_one_op(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        ladder.main(PROJECT, "ladder", ["--machine", "h200", "--png", str(tmp_path / "a.png")])
    assert f"a picture shows one op: name one of {', '.join(PROJECT.ops)}" in capsys.readouterr().err
