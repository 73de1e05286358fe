"""The suites of compile-time figures: exact figures of every CUDA rung's binary, with and without a GPU."""

import math
from typing import Any, ClassVar

from kernelwatch.analysis.compiled import DEVICE, compiled, plan, read, target
from kernelwatch.analysis.occupancy import ARCHES
from kernelwatch.analysis.sass import CLASSES
from kernelwatch.identity import COMPILED
from kernelwatch.plan.project import Project
from kernelwatch.run.group import measure_once, save
from kernelwatch.run.outcome import Group
from kernelwatch.suites.series import Suite, outcome_of, series
from kernelwatch.system.options import Options


def measure(project: Project, op: str, options: Options | None = None) -> Group:
    """Measure the compile-time figures of an op's rungs at the commit under test, for every type and architecture, and
    save the group. `options`: by default those of this process."""
    options = options or Options.here()
    targets = {cell.key: cell for cell in plan(project.op(op), options.only)}
    group = measure_once(project, op, DEVICE, list(targets.values()), options)
    measured = {
        key: (targets[key].arch, measurement)
        for key, outcome in group.outcomes.items()
        for measurement in outcome.measurements
    }
    wrong, missing = read(measured)
    for key, why in wrong.items():
        outcome = group.outcomes[key]
        outcome.state, outcome.reason, outcome.measurements = "failed", why, []
    group.facts.update(missing)  # type: ignore[typeddict-item]  # the figures that this machine lacks, and why
    save(group, options)
    return group


class Compiled(Suite):
    """Compile-time figures of a problem's rungs; one compilation feeds all series."""

    may_miss = ("occupancy", "instructions ")

    def measure(self, options: Options | None = None) -> Group:
        return measure(self.project, self.op, options)

    def cell(self, *where: str) -> str:
        rung, type, arch = where
        return target(self.op, rung, type, arch).key

    def figure(self, group: Group, rung: str, type: str, arch: str, *names: str) -> float:
        """One figure of a target, or NaN; each further name goes one dictionary deeper. Raises: RuntimeError if the
        target does not compile."""
        outcome = outcome_of(group, target(self.op, rung, type, arch).key)
        value: Any = outcome.measurements[0] if outcome.measurements else {}
        for name in names:
            value = value.get(name, {})
        return math.nan if value == {} else float(value)


class Static(Compiled):
    """The figures by rung, element type and architecture."""

    param_names: ClassVar[list[str]] = ["rung", "type", "arch"]

    @classmethod
    def parameters(cls) -> list[list[str]]:
        problem = cls.project.op(cls.op)
        known = {type for types in compiled(problem).values() for type in types}
        return [list(compiled(problem)), [type for type in problem.types if type in known], list(ARCHES)]

    @series(COMPILED, "registers", higher_is_better=None)
    def track_registers(self, group: Group, *where: str) -> float:
        """Registers of a thread."""
        return self.figure(group, *where, "registers")

    @series(COMPILED, "bytes", higher_is_better=False, judged="exact")
    def track_spill_bytes(self, group: Group, *where: str) -> float:
        """Bytes of local memory that a thread loads and stores; each instruction counts once."""
        return sum(self.figure(group, *where, f"spill_{way}_bytes") for way in ("load", "store"))

    @series(COMPILED, "bytes", higher_is_better=None)
    def track_shared_bytes(self, group: Group, *where: str) -> float:
        """Bytes of shared memory of a block, static and dynamic, without those that the hardware reserves."""
        return self.figure(group, *where, "shared_bytes")

    @series(COMPILED, "instructions", higher_is_better=None)
    def track_instructions(self, group: Group, *where: str) -> float:
        """Number of SASS instructions of the kernel, without the NOPs that pad it."""
        return self.figure(group, *where, "instructions")

    @series(COMPILED, "% of warps", higher_is_better=True, judged="exact")
    def track_occupancy(self, group: Group, *where: str) -> float:
        """Theoretical occupancy: the share of an SM's warps that can be resident, in percent."""
        return self.figure(group, *where, "occupancy_percent")


class Mix(Compiled):
    """Instructions by class, for each rung with its main type. asv takes 5 ms for each figure, so this is for one
    architecture only; the sidecar has the others."""

    arch = "sm_90"
    param_names: ClassVar[list[str]] = ["rung", "class"]

    @classmethod
    def parameters(cls) -> list[list[str]]:
        return [list(compiled(cls.project.op(cls.op))), list(CLASSES)]

    def cell(self, *where: str) -> str:
        rung, _ = where
        return target(self.op, rung, self.problem.main_type(rung), self.arch).key

    @series(COMPILED, "instructions", higher_is_better=None)
    def track_class(self, group: Group, rung: str, kind: str) -> float:
        """Number of SASS instructions of one class."""
        return self.figure(group, rung, self.problem.main_type(rung), self.arch, "mix", kind)
