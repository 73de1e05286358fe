"""The suites; asv tells them by the lines of `setup_cache`."""

from kernelwatch.suites import compiled, timed

from .project import PROJECT


class Sgemm(timed.GpuFlops, project=PROJECT, op="sgemm"):
    def setup_cache(self):
        return self.measure()


class Static(compiled.Static, project=PROJECT, op="sgemm"):
    def setup_cache(self):
        return self.measure()
