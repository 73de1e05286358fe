"""The asv suite of the rungs of several GPUs."""

from typing import ClassVar

from kernelwatch.identity import TIMED
from kernelwatch.plan.cells import key, plan
from kernelwatch.plan.problem import Shape, extents, label
from kernelwatch.run.outcome import Group
from kernelwatch.suites.series import Samples, samples, series
from kernelwatch.suites.timed import Flops


class Several(Flops):
    """The rungs of several GPUs, and the vendor's rung on one of them, by type and shape."""

    device = "several"
    param_names: ClassVar[list[str]] = ["rung", "type", "shape"]

    @classmethod
    def parameters(cls) -> list[list[str]]:
        cells = plan(cls.project.op(cls.op), cls.device)
        names = ([cell.rung for cell in cells], [cell.type for cell in cells], [label(cell.shape) for cell in cells])
        return [list(dict.fromkeys(each)) for each in names]

    def place(self, *where: str) -> tuple[str, str, Shape, str]:
        rung, type, shape = where
        return rung, type, extents(shape), self.device

    @series(TIMED, "% of all GPUs", higher_is_better=True)
    def track_share_of_gpus(self, group: Group, *where: str) -> Samples:
        """The rate over that of the vendor's rung on one GPU, in the same process, times the number of GPUs, in
        percent."""
        rung, type, shape, cache = self.place(*where)
        vendor = self.problem.vendor.get("gpu", "")
        if rung == vendor:
            return samples({})
        gpus = len(group.facts.get("gpus", ()))
        alone = key(self.op, vendor, type, shape, cache)
        return self.beside(group, where, alone, lambda seconds, base: 100 * base / (gpus * seconds))
