"""The GPU of a measuring run: its facts, its other users, and the ceilings that its process measured."""

import hashlib
import statistics
import uuid
from abc import abstractmethod
from collections.abc import Callable, Sequence

from kernelwatch.plan.cells import Cell
from kernelwatch.plan.project import Project
from kernelwatch.timing import l2, usage
from kernelwatch.timing.check import packages
from kernelwatch.timing.nvml import Nvml
from kernelwatch.timing.record import Facts, Measurement
from kernelwatch.timing.replay import CANARY_NODES, CANARY_ROUNDS, Replayer

COPY_BYTES = 512 << 20  # the size of the copy whose rate is the ceiling of the memory


class MemoryFault(Exception):
    """The memory of the GPU changed what it held; the message says how often."""


class RunDevice(Replayer):
    """The current CUDA device, on which a process measures cells of a project."""

    def __init__(self, project: Project) -> None:
        import cupy

        nvml = Nvml(cupy.cuda.Device().pci_bus_id)
        self.others = nvml.others()  # while this process does nothing yet
        self.neighbors = nvml.neighbors()
        super().__init__(nvml)
        self.project = project

    def warm_up(self) -> None:
        """Make the canaries, run them until the clocks are up, and measure the ceilings."""
        super().warm_up()
        with self.stream:
            self.ceilings = self._ceilings()

    def measure(self, cell: Cell) -> Measurement:
        """Measure a cell once. Raises: MemoryFault if its operands, or its code, may have changed meanwhile; what the
        kind of device raises."""
        return self._watched(lambda: self._measure(cell))

    def _watched(self, work: Callable[[], Measurement]) -> Measurement:
        """What some work of the GPU measured, with the seconds that it took. Raises: MemoryFault."""
        self.spent.begin()
        gpus = self._gpus()
        before = [gpu.uncorrected_errors() for gpu in gpus]
        with l2.set_aside_as_before():
            measurement = work()
        after = [gpu.uncorrected_errors() for gpu in gpus]
        known = [
            (early, late) for early, late in zip(before, after, strict=True) if early is not None and late is not None
        ]
        new = sum(max(0, late - early) for early, late in known)
        if new:
            raise MemoryFault(f"{new} uncorrected ECC errors in the GPU's memory while it was measured")
        measurement["spent_s"] = self.spent.seconds()
        return measurement

    def _gpus(self) -> Sequence[Nvml]:
        """The GPUs whose memory a cell uses."""
        return (self.nvml,)

    @abstractmethod
    def _measure(self, cell: Cell) -> Measurement: ...

    def facts(self) -> Facts:
        """The GPU, its driver, the packages, other users of the GPU, and the ceilings that this process measured."""
        runtime = self.cupy.cuda.runtime
        return {
            "gpu": self.gpu,
            "compute_capability": self.cupy.cuda.Device().compute_capability,
            "multiprocessors": int(self.properties["multiProcessorCount"]),
            "l2_bytes": self.l2_bytes,
            "cuda_driver": runtime.driverGetVersion(),
            "cuda_runtime": runtime.runtimeGetVersion(),
            "packages": packages(usage.conditions(self.project)),
            "nvml": self.nvml.why_not or "ok",
            "l2_reset": l2.reset_persisting() or "ok",
            "others": self.others,
            "neighbors": self.neighbors,
            "ceilings": self.ceilings,
            **{f"nvml_{key}": value for key, value in self.nvml_facts.items()},  # type: ignore[typeddict-item]
            **self._instance(),
        }

    def _instance(self) -> Facts:
        """With MIG, the hashed UUID of the instance, which CUDA knows: NVML tells that of the whole card."""
        own = self.properties.get("uuid")
        if not (self.nvml_facts.get("mig") and own):
            return {}
        return {"nvml_uuid_sha256": hashlib.sha256(f"MIG-{uuid.UUID(bytes=bytes(own))}".encode()).hexdigest()[:16]}

    def _ceilings(self) -> dict[str, float]:
        """The rate in bytes/s of a large copy by the harness's kernel, and the rates in FLOP/s of multiply-adds in
        registers, by type. Frees the memory that it used."""
        size = min(COPY_BYTES, int(self.cupy.cuda.runtime.memGetInfo()[0]) // 8)
        memory = self.cupy.empty(2 * size, self.cupy.uint8)
        copy = self.vector_copy(memory[:size], memory[size:])
        copy()
        graphs = {
            "copy_bytes_per_s": (self.graph([copy], CANARY_NODES), 2 * size),
            "float32_flops_per_s": (self.canaries["compute"], 0),
            "float64_flops_per_s": (self.arithmetic("peak_float64"), 0),
        }
        # 8 blocks of 256 threads on each multiprocessor, each thread with four chains; a multiply-add is 2 operations
        operations = int(self.properties["multiProcessorCount"]) * 8 * 256 * 4 * 2 * CANARY_ROUNDS
        rates = {
            name: CANARY_NODES * (amount or operations) / statistics.median(self.replay(graph, 1, 3)[0])
            for name, (graph, amount) in graphs.items()
        }
        del memory, copy, graphs
        self.cupy.get_default_memory_pool().free_all_blocks()
        return rates
