"""The values of asv's own benchmarks, whose series show no cell: one file for each benchmark."""

from collections.abc import Iterable

import numpy as np

from kernelwatch.detect.events import JudgedSeries
from kernelwatch.publish.record import Json, rounded
from kernelwatch.publish.writer import Writer

QUANTILE = 1.96  # of the normal distribution: the pages show intervals of 95 %


def write(writer: Writer, told: Iterable[tuple[JudgedSeries, Json]], branch: str) -> None:
    """Write the values of the series on a branch, and note the file and the place in it of each. `told`: the series,
    each with what the file series.json says of it."""
    files: dict[str, list[Json]] = {}
    for own, entry in told:
        if own.place.get("branch") == branch:
            names = files.setdefault(own.benchmark, [])
            entry["file"] = f"values/{list(files).index(own.benchmark)}"
            entry["index"] = len(names)
            names.append(_columns(own))
    for number, (benchmark, content) in enumerate(files.items()):
        writer.write(f"values/{number}", {"benchmark": benchmark, "series": content})


def _columns(series: JudgedSeries) -> Json:
    points = series.points
    known = np.flatnonzero(np.isfinite(points.value))
    value, half = points.value[known], QUANTILE * np.abs(points.value[known]) * points.spread[known]
    columns: Json = {"at": points.commit[known].tolist(), "value": _rounded(value)}
    if half.any():
        columns |= {"low": _rounded(value - half), "high": _rounded(value + half)}
    return columns


def _rounded(values: Iterable[float]) -> list[float | None]:
    return [rounded(float(value)) for value in values]
