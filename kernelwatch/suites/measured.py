"""The suites whose group is measured together with those of the other suites that asv runs for the same commit."""

import importlib
from typing import ClassVar

from kernelwatch.plan.project import Project
from kernelwatch.run.group import measure
from kernelwatch.run.outcome import Group
from kernelwatch.system.options import Options


class Measured:
    """A suite of the group of an op on a device."""

    project: ClassVar[Project]
    op: ClassVar[str]
    device: ClassVar[str]

    def measure(self, options: Options | None = None) -> Group:
        """Measure the group at the commit under test. `options`: by default those of this process."""
        options = options or Options.here()
        return measure(self.project, self.op, self.device, options, self._together(options))

    @classmethod
    def _together(cls, options: Options) -> list[str]:
        """The ops on this suite's device whose suites asv runs for this commit."""
        root = cls.__module__.partition(".")[0]  # asv names suites without the folder of the benchmarks
        places = [name.rpartition(".") for name in options.suites.split(",") if name]
        suites = [
            getattr(importlib.import_module(f"{root}.{module}"), name, None) for module, _, name in places if module
        ]
        return [
            suite.op
            for suite in suites
            if isinstance(suite, type)
            and issubclass(suite, Measured)
            and (suite.project, suite.device) == (cls.project, cls.device)
        ]
