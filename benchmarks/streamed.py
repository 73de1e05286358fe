"""Matrix products whose operands stay in the host's memory: how a commit's rung is loaded and bound for them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernelwatch.plan.package import Absent
from kernelwatch.plan.problem import Array

SHARE = 3  # a streamed rung may use device memory for this fraction, 1/3, of its operands' bytes


@dataclass(frozen=True)
class Streaming:
    """A launch of matmul/between_grids. A call returns the share of the copies' time that was hidden, from 0 to 1."""

    identity: str
    call: Callable[[], object]
    reports: list[Any]

    def __call__(self) -> float:
        self.call()
        return float(self.reports[-1].hidden_share)


@dataclass(frozen=True)
class Streamed:
    """A rung on operands in the host's memory, with device memory for only a third of them."""

    module: Any
    op: str
    rung: str
    type: str

    def bind(self, *inputs: Array, out: Array, **_scalars: Any) -> Streaming:
        """As in Kernel. Raises: Absent if the commit's rung does not take the memory limit."""
        limit_bytes = sum(array.nbytes for array in (*inputs, out)) // SHARE
        reports: list[Any] = []
        options = {"limit_bytes": limit_bytes, "report": reports.append}
        try:
            kernel = self.module.load(self.op, self.rung, self.type, **options)
        except self.module.LadderError as error:  # the commit does not have this option yet
            raise Absent(f"at this commit {error}") from error
        launch = kernel.bind(*inputs, out=out)
        return Streaming(launch.identity, launch, reports)
