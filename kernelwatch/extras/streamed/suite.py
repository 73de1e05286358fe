"""The asv suite of the rungs whose operands come from the host's memory."""

from typing import ClassVar

from kernelwatch.identity import TIMED
from kernelwatch.plan.cells import plan
from kernelwatch.plan.problem import Shape, extents, label
from kernelwatch.run.outcome import Group
from kernelwatch.suites.series import Samples, samples, series
from kernelwatch.suites.timed import Flops


class Streamed(Flops):
    """The rungs whose operands come from the host's memory, by shape."""

    device = "streamed"
    param_names: ClassVar[list[str]] = ["rung", "shape"]

    @classmethod
    def parameters(cls) -> list[list[str]]:
        cells = plan(cls.project.op(cls.op), cls.device)
        names = ([cell.rung for cell in cells], [label(cell.shape) for cell in cells])
        return [list(dict.fromkeys(each)) for each in names]

    def place(self, *where: str) -> tuple[str, str, Shape, str]:
        rung, shape = where
        return rung, self.problem.main_type(rung), extents(shape), self.device

    @series(TIMED, "% of copies", higher_is_better=True)
    def track_hidden_copies(self, group: Group, *where: str) -> Samples:
        """The share of the copies' time that was hidden under other work, in percent."""
        hidden = self.outcome(group, *where).by_process("hidden_share")
        return samples({process: 100 * value for process, value in hidden.items()})
