"""Draw the ladder of an op, and its roofline if it computes, as a picture for a paper or a talk."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwatch.history.records import Record
from kernelwatch.plan.problem import Problem, Shape, label
from kernelwatch.plan.project import Project
from kernelwatch.report.rows import Row, Section, sections
from kernelwatch.report.texts import device_text
from kernelwatch.system.errors import UserError
from kernelwatch.timing.record import Facts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The colors of Okabe and Ito, which color-blind readers can tell apart; no rung is told by its color alone.
LINES: tuple[Any, ...] = ("-", ":", "-.", (0, (5, 1)), (0, (1, 3)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (2, 4)))
HEIGHT, LEGEND_LINE = 4.6, 0.15  # inches, of a picture at least, and of a rung's name beside it
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "os^Dv<>Pp*hX"


def draw(record: Record, project: Project, op: str, device: str, cache: str, type: str | None, path: Path) -> None:
    """Write a picture, in the format that the file's name ends with (.png, .svg, .pdf).

    Raises: UserError without matplotlib, if nothing was timed, or if the file cannot be written.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise UserError("pictures need matplotlib: pip install matplotlib") from None
    mpl.use("Agg")
    from matplotlib import pyplot

    problem = project.op(op)
    found = [section for section in sections(record, project, [op], None, type) if section.cache == cache]
    shown = [section for section in found if section.device == device]
    if not shown:
        known = ", ".join(dict.fromkeys(f"{section.device} {section.cache}" for section in found)) or "nothing"
        raise UserError(f"{op} was not timed {cache} on the {device.upper()} at {record.commit}; there is {known}")
    own = type or problem.types[0]
    computes = problem.computation.flops is not None
    ceilings = _ceilings(record, device) if computes and own == "float32" else {}
    with mpl.rc_context({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "kernelwatch"}):
        height = max(HEIGHT, LEGEND_LINE * len(_rungs(shown)))
        figure, axes = pyplot.subplots(
            1, 2 if ceilings else 1, figsize=(11 if ceilings else 7, height), layout="constrained", squeeze=False
        )
        _ladder(
            axes[0][0], problem, shown, {} if computes else _bandwidths(record.facts.get(f"{op} {device}", Facts()))
        )
        if ceilings:
            _roofline(axes[0][1], problem, own, shown, ceilings)
        about = f"{op} {own}, {cache}, commit {record.commit}; bars: 95 % interval over processes"
        figure.suptitle(f"{about}\n{device_text(record, device)}", fontsize=8)
        try:
            figure.savefig(path, dpi=200, metadata={"Date": None} if path.suffix == ".svg" else None)
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be written: {error}") from None
        finally:
            pyplot.close(figure)


def _rungs(shown: list[Section]) -> dict[str, list[tuple[Shape, Row]]]:
    """By rung, its rows that have a figure, by shape."""
    found: dict[str, list[tuple[Shape, Row]]] = {}
    for section in shown:
        for row in section.rows:
            if row.cell.seconds:
                found.setdefault(row.rung, []).append((section.shape, row))
    return found


def _half(row: Row) -> float:
    """Half the interval of a row, as a share of its figure; 0 for a single process, which has none."""
    high = row.cell.interval[1]
    return 0.0 if math.isnan(high) else high / row.cell.median_s - 1


def _is_reference(problem: Problem, row: Row) -> bool:
    return row.idea == "reference line" or row.rung in problem.vendor.values()


def _style(at: int, reference: bool) -> dict[str, Any]:
    """The style of a line. When the colors begin again, lines are broken in another way, and symbols hollow or full."""
    again = at // len(COLORS)  # the round of colors
    return {
        "color": "#777777" if reference else COLORS[at % len(COLORS)],
        "marker": MARKERS[at % len(MARKERS)],
        "markerfacecolor": "white" if again % 2 else None,
        "linestyle": "--" if reference else LINES[again % len(LINES)],
    }


def _ladder(axes: "Axes", problem: Problem, shown: list[Section], bandwidths: dict[str, float]) -> None:
    """Each rung's rate at each shape. `bandwidths`: the roof of an op that only moves bytes, name -> bytes/s."""
    from matplotlib.ticker import LogLocator, NullFormatter

    places = [label(section.shape) for section in shown]
    for at, (rung, rows) in enumerate(_rungs(shown).items()):
        rates = [row.rate / 1e9 for _, row in rows]
        errors = [rate * _half(row) for rate, (_, row) in zip(rates, rows, strict=True)]
        style = _style(at, _is_reference(problem, rows[0][1]))
        axes.errorbar(
            [places.index(label(shape)) for shape, _ in rows], rates, yerr=errors, label=rung, linewidth=1,
            markersize=4, **style
        )  # fmt: skip
    for name, rate in bandwidths.items():
        axes.axhline(rate / 1e9, color="black", linewidth=1, linestyle="-" if "measured" in name else "-.")
        axes.annotate(
            f"{name}, {rate / 1e9:.0f} GB/s", (0, rate / 1e9), textcoords="offset points", xytext=(2, 2), fontsize=6.5
        )
    axes.set_xticks(range(len(places)), places, rotation=25, ha="right")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.set_ylabel("GFLOP/s" if problem.computation.flops else "GB/s")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y", which="both", alpha=0.25)
    axes.legend(fontsize=6.5, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _bandwidths(facts: Facts) -> dict[str, float]:
    """What bounds an op that only moves bytes: the device's measured copy, and the theoretical bandwidth."""
    found = {
        "copy, measured": facts.get("ceilings", {}).get("copy_bytes_per_s"),
        "theoretical bandwidth": facts.get("nvml_theoretical_bandwidth_bytes_per_s"),
    }
    return {name: rate for name, rate in found.items() if rate}


def _ceilings(record: Record, device: str) -> dict[str, float]:
    """The measured ceilings of the device."""
    facts = [facts for group, facts in record.facts.items() if group.endswith(f" {device}")]
    found = next((facts["ceilings"] for facts in facts if facts.get("ceilings")), {})
    return found if {"copy_bytes_per_s", "float32_flops_per_s"} <= found.keys() else {}


def _roofline(axes: "Axes", problem: Problem, type: str, shown: list[Section], ceilings: dict[str, float]) -> None:
    """Operations per second over operations per compulsory byte, below the measured ceilings."""
    bandwidth, peak = ceilings["copy_bytes_per_s"], ceilings["float32_flops_per_s"]
    every = []
    for at, (rung, rows) in enumerate(_rungs(shown).items()):
        points = [
            (problem.flops(rung, shape) / problem.bytes_moved(rung, type, shape), row.rate / 1e9)
            for shape, row in rows
            if " " not in rung  # of this type
        ]
        every += points
        if points:
            style = _style(at, _is_reference(problem, rows[0][1])) | {"linestyle": ""}
            axes.plot(*zip(*points, strict=True), markersize=4, **style)
    ridge, fastest = peak / bandwidth, max((y * 1e9 for _, y in every), default=0.0)
    above = ""
    if fastest > peak:  # no ceiling of tensor cores is measured; the copy's bounds them, too
        above = "\nabove them: tensor cores"
        xs = [ridge, fastest / bandwidth]
        axes.plot(xs, [x * bandwidth / 1e9 for x in xs], color="black", linewidth=1, linestyle=":")
    xs = [min([ridge, *(x for x, _ in every)]) / 3, ridge, max([ridge, *(x for x, _ in every)]) * 2]
    axes.plot(xs, [min(x * bandwidth, peak) / 1e9 for x in xs], color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per compulsory byte")
    axes.set_ylabel("GFLOP/s")
    title = f"ceilings: measured copy, {bandwidth / 1e9:.0f} GB/s; FP32 units, {peak / 1e12:.1f} TFLOP/s{above}"
    axes.set_title(title, fontsize=8)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
