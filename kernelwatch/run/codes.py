"""What cells launch, as a process sees it that times nothing: for cells whose identity is of their sources."""

from collections.abc import Iterable

from kernelwatch.plan.cells import Cell
from kernelwatch.run.processes import Run
from kernelwatch.timing.record import Measurement


def of_sources(run: Run) -> list[Cell]:
    """The cells whose identity is of their sources."""
    outcomes = run.group.outcomes
    return [cell for cell in run.cells if any("sources" in each for each in outcomes[cell.key].measurements)]


def look(run: Run, cells: list[Cell]) -> dict[str, Measurement]:
    """What another process of a run, which times nothing, sees cells launch, by key."""
    if not cells:
        return {}
    from kernelwatch.analysis import launched  # here, since it imports all that measures on a GPU

    looked = Run(run.project, cells, launched.DEVICE, run.tree, run.budget, workers=run.workers)
    looked.note = run.note
    looked.measure_all(0)
    if looked.unavailable:
        run.group.facts["codes"] = looked.unavailable
    return {key: each for key, outcome in looked.group.outcomes.items() for each in outcome.measurements}


def note_codes(run: Run) -> None:
    """Add the code of the kernels to the measurements of cells whose identity is of their sources."""
    for key, seen in look(run, of_sources(run)).items():
        note(run.group.outcomes[key].measurements, seen)


def note(measurements: Iterable[Measurement], seen: Measurement) -> None:
    """Add what a process saw a cell launch to the measurements of that cell."""
    from kernelwatch.analysis import launched

    for measurement in measurements:
        if seen["codes"] and "kernels" in measurement:
            launched.note(measurement, seen)
