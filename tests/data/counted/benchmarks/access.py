"""Counted accesses."""

from kernelwatch.run.outcome import Group
from kernelwatch.suites import counted

from .project import PROJECT


class Scale(counted.Access, project=PROJECT, op="scale"):
    def setup_cache(self) -> Group:
        return self.measure()
