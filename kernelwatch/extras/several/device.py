"""What a problem says of rungs of several GPUs of one host.

Such a rung is loaded and bound by a process for each GPU, to parts of the arrays. Its `bind` also takes `communicator`,
CuPy's NcclCommunicator of these processes; their launches make the whole output together.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kernelwatch.plan.devices import Budget, Device, Holds
from kernelwatch.plan.problem import Array, Problem, Shape

BUDGET = Budget(samples=5, sample_s=0.1)


def part(extent: int, rank: int, ranks: int) -> range:
    """Part `rank` of `ranks` of an extent; the parts differ by at most 1."""
    return range(extent * rank // ranks, extent * (rank + 1) // ranks)


@dataclass(frozen=True)
class Several(Device):
    """All GPUs, for the rungs with `where="several"`, and the vendor's rung on one GPU beside them. Each GPU holds a
    part (see `part`) of every array.

    `shapes`: timed with every type of the rungs.
    `axes`: the axis along which each array is cut, the inputs first.
    `exact_bits(type)`: as in Computation, for these shapes.
    `wrong(inputs, out, rank, ranks, random, xp)`: for each row of the part of the output on GPU `rank`, whether it is
    wrong. `inputs[i][r]` makes GPU r's part of input i anew; `random` is a NumPy generator, `xp` the arrays' module.
    """

    name: str = "several"
    measures: str = "kernelwatch.extras.several.timer:Timer"
    holds: Holds = "GPUs"
    processes: int = 3
    budget: Budget = BUDGET
    silence_s: float = 240.0  # the class that measures watches its own processes, and names the one that hangs
    where: str = "several"
    alone: bool = False
    shapes: tuple[Shape, ...] = field(kw_only=True)
    axes: tuple[int, ...] = field(kw_only=True)
    exact_bits: Callable[[str], tuple[int, ...]] = field(kw_only=True)
    wrong: Callable[..., Array] = field(kw_only=True)

    def places(self, problem: Problem) -> Iterator[tuple[str, str, Shape]]:
        own = [
            (rung.name, type, shape)
            for rung in problem.rungs
            if rung.where == self.where
            for type in rung.types
            for shape in self.shapes
        ]
        yield from own
        if vendor := problem.vendor.get("gpu", ""):
            yield from dict.fromkeys((vendor, type, shape) for _, type, shape in own)
