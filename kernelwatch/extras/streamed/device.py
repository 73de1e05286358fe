"""What a problem says of rungs that stream operands from the host's memory.

A call of such a launch returns when the work is done. It returns the share of the copies' time that was hidden under
other work, from 0 to 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from kernelwatch.plan.devices import Budget, Device, Holds
from kernelwatch.plan.problem import Problem, Shape
from kernelwatch.timing.record import Measurement

BUDGET = Budget(samples=5, sample_s=0.0)


class StreamedMeasurement(Measurement, total=False):
    """`hidden_share`: the share of the copies' time that was hidden under other work."""

    hidden_share: float


@dataclass(frozen=True)
class Streamed(Device):
    """The current GPU, for the rungs with `where="host"`, at each of `shapes`."""

    name: str = "streamed"
    measures: str = "kernelwatch.extras.streamed.timer:Timer"
    holds: Holds = "GPU"
    processes: int = 3
    budget: Budget = BUDGET
    where: str = "host"
    shapes: tuple[Shape, ...] = field(kw_only=True)

    def places(self, problem: Problem) -> Iterator[tuple[str, str, Shape]]:
        for rung in problem.rungs:
            if rung.where == self.where:
                yield from ((rung.name, problem.main_type(rung.name), shape) for shape in self.shapes)
