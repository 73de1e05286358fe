"""Measures rungs of several GPUs of this machine, with a process for each GPU: checks them first, then times them.

All ranks begin a sample at the same moment of the machine's clock. It ends when the last of them has finished, so the
time of a launch is the time until all of the output is there. The rung of one GPU with which the others are compared is
measured in the same way by the first rank alone.
"""

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from kernelwatch.extras.several.ranks import RankError, Ranks
from kernelwatch.plan import tree
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.package import NotHere, Package
from kernelwatch.plan.project import Project
from kernelwatch.timing.check import WrongOutput
from kernelwatch.timing.device import RunDevice
from kernelwatch.timing.nvml import Nvml
from kernelwatch.timing.record import Facts, Measurement, quartiles
from kernelwatch.timing.replay import throttled

ENGINE = Path(__file__).resolve().parents[2]
# Imports the engine from its folder, as a worker does: the checkout is not on the path.
START = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location(
    "kernelwatch", sys.argv[1] + "/__init__.py", submodule_search_locations=[sys.argv[1]]
)
sys.modules["kernelwatch"] = engine = importlib.util.module_from_spec(spec)
spec.loader.exec_module(engine)
from kernelwatch.extras.several.rank import main
main()
"""
GPUS_LEAST = 2
LEAD_S = 0.01  # from a request to the moment at which all ranks begin
SLOW_S = 2.0  # a launch that takes longer is not warmed up again
CELL_S = 2.0  # a cell gets as many samples as fit in this, at least one
SILENCE_S = 60.0  # far less than a worker may be silent, since its parent would only know that the worker hangs
# A rank may be killed at any time. NCCL must not hold NVLink multicast then: it may not be freed before a reset.
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0"}


class Timer(RunDevice):
    """All CUDA devices that this process sees, each with a rank of its own."""

    def __init__(self, project: Project, package: Package, cells: list[Cell], budget: Budget, seed: int) -> None:
        super().__init__(project)
        self.budget = budget
        self.seed = seed
        guard = tree.guard()
        self.tree = str(guard.places.folder) if guard else str(project.repository)
        self.count = int(self.cupy.cuda.runtime.getDeviceCount())
        self._running: Ranks | None = None
        self.warm_up()

    def facts(self) -> Facts:
        """As RunDevice, of the first GPU; and the hashed UUIDs of all GPUs."""
        return {**super().facts(), "gpus": [str(gpu.facts()["uuid_sha256"]) for gpu in self._gpus()]}

    def _gpus(self) -> list[Nvml]:
        return [Nvml(self.cupy.cuda.Device(at).pci_bus_id) for at in range(self.count)]

    def _ranks(self) -> Ranks:
        """The ranks, started if there are none."""
        if self._running is None:
            command = [sys.executable, "-P", "-c", START, str(ENGINE)]
            self._running = Ranks(command, self.count, {**os.environ, **ENVIRONMENT}, SILENCE_S)
            (id,) = self._running.ask([{"do": "id"}])
            job = {"do": "join", "project": str(self.project.here.parent), "tree": self.tree, "id": id}
            self._running.ask([{**job, "rank": rank, "ranks": self.count} for rank in range(self.count)])
        return self._running

    def _sample(self, ranks: int, count: int) -> dict[str, Any]:
        """Seconds of one of `count` launches, and the state of the GPUs while they ran."""
        request = {"do": "sample", "at": time.monotonic() + LEAD_S, "count": count}
        taken = self._ranks().ask([request] * ranks)
        seconds = max(each["end"] for each in taken) - min(each["start"] for each in taken)
        clocks = [each["clock_mhz"] for each in taken if each["clock_mhz"]]
        most = self.nvml_facts["sm_clock_max_mhz"]
        limits = {limit for each in taken for limit in throttled(each["state"], each["clock_mhz"], most)}
        return {
            "seconds": seconds / count,
            "clock_mhz": min(clocks, default=None),
            "state": taken[0]["state"],
            "throttled": limits,
        }

    def _measure(self, cell: Cell) -> Measurement:
        """Measure a cell once. The first launch is checked by every rank on its own part; "seconds" is the median over
        the samples after it.

        Raises: WrongOutput, NotHere, RankError; no rank is left then.
        """
        if self.count < GPUS_LEAST:
            raise NotHere(f"needs {GPUS_LEAST} GPUs, this machine has {self.count}")
        try:
            return self._measured(cell)
        except BaseException as error:
            if self._running is not None:
                self._running.close()
                self._running = None
            if isinstance(error, RankError) and error.kind == "WrongOutput":
                raise WrongOutput(str(error)) from error
            if isinstance(error, RankError) and error.kind == "NotHere":
                raise NotHere(str(error)) from error
            raise

    def _measured(self, cell: Cell) -> Measurement:
        problem = self.project.ops[cell.op]
        ranks = 1 if problem.device_of(problem.rung(cell.rung)).alone else self.count
        job = {"do": "prepare", "cell": cell.as_json(), "seed": self.seed, "ranks": ranks}
        first = self._ranks().ask([job] * ranks)
        once = max(float(each["seconds"]) for each in first)
        if once < SLOW_S:  # the first launch loaded libraries and connected the GPUs
            once = self._sample(ranks, 1)["seconds"]
        count = max(1, round(self.budget.sample_s / once))
        samples = max(1, min(self.budget.samples, round(CELL_S / (once * count))))
        taken = [self._sample(ranks, count) for _ in range(samples)]
        self._ranks().ask([{"do": "free"}] * ranks)
        seconds = [float(each["seconds"]) for each in taken]
        return {
            "seconds": statistics.median(seconds),
            "quartiles_s": quartiles(seconds),
            "launches": count * samples,
            "identity": first[0]["identity"],
            "clock64_mhz": taken[-1]["clock_mhz"],
            "state": taken[-1]["state"],
            "throttled": sorted({limit for each in taken for limit in each["throttled"]}),
            "retakes": 0,
            "canary_s": self.canary_seconds(),
        }
