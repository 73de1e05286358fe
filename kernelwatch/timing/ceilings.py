"""The roofs of a GPU: how fast each of its units repeats its instruction, and how fast L2 and memory copy.

The kernels of ceilings.cu do nothing else, on random operands, and are timed as cells are: graph replays of some
milliseconds, each after a rest. A roof that the power limit holds down is taken at the clock that it leaves, which
stands beside it.
"""

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from kernelwatch.plan.binaries import of_cuda
from kernelwatch.system.holding import holding
from kernelwatch.timing.nvml import Nvml
from kernelwatch.timing.replay import REST_S, Graph, Replayer

SOURCE = Path(__file__).with_name("ceilings.cu")
WARP = 32
NODE_S = 5e-4  # a launch
NODES, REPLAYS, SAMPLES = 4, 1, 3
TAKES = 7  # each after a rest
COPY_BYTES = 1 << 30  # of memory, read and written
L2_SHARE = 0.5  # of the L2 cache: what is read and written there
L2_BLOCK_BYTES = 2 * 256 * 4 * 16  # read and written by a block in a round
L2_BLOCKS = 4  # on a multiprocessor


@dataclass(frozen=True)
class Unit:
    """A unit that computes, and the loop that fills it.

    `name`: of the kernel after "ceiling_"; `title`; `sass`: the instruction's name in machine code, `count` of which
    are in the loop; `operations`: of one of them; `scope`: the threads that issue it together; `block`: threads, and
    `blocks` of them on a multiprocessor; `shared_bytes`: of a block.
    """

    name: str
    title: str
    sass: str
    count: int
    operations: int
    scope: int
    block: int
    blocks: int
    shared_bytes: int = 0

    def per_round(self) -> int:
        """The operations of a block in a round of the loop."""
        return self.count * self.operations * self.block // self.scope


def _scalar(name: str, title: str, sass: str, blocks: int) -> Unit:
    return Unit(name, title, sass, 64, 2, 1, 256, blocks)


def _warp(name: str, title: str, sass: str, m: int, n: int, k: int, blocks: int = 2) -> Unit:
    return Unit(name, title, sass, 8, 2 * m * n * k, WARP, 256, blocks)


def _group(name: str, title: str, sass: str, k: int) -> Unit:
    return Unit(name, title, sass, 8, 2 * 64 * 256 * k, 4 * WARP, 256, 1, 96 << 10)


def units(capability: int) -> tuple[Unit, ...]:
    """The units of a GPU of a compute capability such as 90, in the order in which they are shown."""
    plain = (_scalar("fp32", "FP32", "FFMA", 8), _scalar("fp64", "FP64", "DFMA", 4))
    if capability < 80:
        return plain
    if capability == 90:
        return (
            *plain,
            _warp("fp64_tensor", "FP64, tensor cores", "DMMA.16x8x16", 16, 8, 16, 1),
            _group("tf32", "TF32", "HGMMA.64x256x8.F32.TF32", 8),
            _group("fp16", "FP16", "HGMMA.64x256x16.F32", 16),
            _group("bf16", "BF16", "HGMMA.64x256x16.F32.BF16", 16),
            _group("fp8", "FP8", "QGMMA.64x256x32.F32.E4M3.E4M3", 32),
            _group("int8", "INT8", "IGMMA.64x256x32.S8.S8", 32),
        )
    fp8 = _warp("fp8", "FP8", "QMMA.16832.F32.E4M3.E4M3", 16, 8, 32)
    return (
        *plain,
        _warp("fp64_tensor", "FP64, tensor cores", "DMMA.8x8x4" if capability >= 100 else "DMMA.884", 8, 8, 4),
        _warp("tf32", "TF32", "HMMA.1688.F32.TF32", 16, 8, 8),
        _warp("fp16", "FP16", "HMMA.16816.F32", 16, 8, 16),
        _warp("bf16", "BF16", "HMMA.16816.F32.BF16", 16, 8, 16),
        *((fp8,) if capability == 89 or capability >= 120 else ()),
        _warp("int8", "INT8", "IMMA.16832.S8.S8", 16, 8, 32),
    )


def arch(capability: int) -> str:
    """The architecture that the kernels are compiled for: on Hopper the one with instructions of a warp group."""
    return "sm_90a" if capability == 90 else f"sm_{capability}"


def compiled(capability: int) -> Path:
    """The cubin of all kernels; needs no GPU. Raises: NotHere."""
    return of_cuda(SOURCE, "ceiling_fp32", arch(capability), 256, std="c++17").path


# What NVIDIA's datasheets state without sparsity, in 1e12 operations and 1e12 bytes a second.
_HOPPER = {"fp32": 67.0, "fp64": 34.0, "fp64_tensor": 67.0, "tf32": 494.5, "fp16": 989.5, "bf16": 989.5, "fp8": 1979.0}
_HOPPER |= {"int8": 1979.0}
_AMPERE = {"fp32": 19.5, "fp64": 9.7, "fp64_tensor": 19.5, "tf32": 156.0, "fp16": 312.0, "bf16": 312.0, "int8": 624.0}
DATASHEETS: dict[str, dict[str, float]] = {
    "NVIDIA H200": _HOPPER | {"memory": 4.8},
    "NVIDIA H100 80GB HBM3": _HOPPER | {"memory": 3.35},
    "NVIDIA A100-SXM4-80GB": _AMPERE | {"memory": 2.039},
    "NVIDIA A100-SXM4-40GB": _AMPERE | {"memory": 1.555},
}


class Ceiling(TypedDict):
    """A measured roof.

    `unit`, `title`, `instruction`; `rate`: operations or bytes a second, the median of takes; `of`: "FLOP/s", "OP/s" or
    "B/s"; `spread`: standard deviation over mean of the takes; `clock_mhz`: of the SM, the median; `per_clock`:
    operations of a multiprocessor in a cycle, None of copies; `datasheet`: what the datasheet states, None if it does
    not or is not known; `limits`: what held the clocks down.
    """

    unit: str
    title: str
    instruction: str
    rate: float
    of: str
    spread: float
    clock_mhz: float | None
    per_clock: float | None
    datasheet: float | None
    limits: list[str]


class Bench(Replayer):
    """The current CUDA device, whose roofs are measured."""

    def __init__(self) -> None:
        import cupy

        self.bus = cupy.cuda.Device().pci_bus_id
        super().__init__(Nvml(self.bus))
        self.capability = int(cupy.cuda.Device().compute_capability)
        self.multiprocessors = int(self.properties["multiProcessorCount"])
        self.module = cupy.RawModule(path=str(compiled(self.capability)))

    def all(self, waiting: Callable[[str], None]) -> Iterator[Ceiling]:
        """The roofs, one by one, while no other run of the engine measures on this GPU. `waiting`: called once with who
        does. Raises: RuntimeError if a kernel computed zero or NaN."""
        with holding(self.bus, waiting), self.stream:
            self.warm_up()
            for unit in units(self.capability):
                yield self._unit(unit)
            yield self._l2()
            yield self._memory()

    def _unit(self, unit: Unit) -> Ceiling:
        blocks = self.multiprocessors * unit.blocks
        kernel = self.module.get_function(f"ceiling_{unit.name}")
        if unit.shared_bytes:
            kernel.max_dynamic_shared_size_bytes = unit.shared_bytes
        types = {"fp64": "float64", "fp64_tensor": "float64", "int8": "int32"}
        out = self.cupy.zeros(blocks * unit.block, types.get(unit.name, "float32"))

        def launch(rounds: int) -> None:
            kernel((blocks,), (unit.block,), (out, np.int32(rounds)), shared_mem=unit.shared_bytes)

        launch(16)
        values = out.get(stream=self.stream).astype(np.float64)
        if not np.isfinite(values).all() or not np.any(values):
            raise RuntimeError(f"ceiling_{unit.name} computed zero or NaN: it does not do what it should")
        rounds = self._rounds(launch)
        done = blocks * unit.per_round() * rounds
        taken = self._taken(self.graph([lambda: launch(rounds)], NODES))
        return self._ceiling(
            unit.name, unit.title, unit.sass, done, taken, "OP/s" if unit.name == "int8" else "FLOP/s", True
        )

    def _rounds(self, launch: Any) -> int:
        """So many rounds that a launch takes about NODE_S."""
        rounds = 64
        while True:
            seconds = self.take(self._direct(launch, rounds), 1, 1, 1)["seconds"][0]
            if seconds > NODE_S / 4 or rounds > 1 << 26:
                return max(1, round(rounds * NODE_S / seconds))
            rounds *= 2

    def _direct(self, launch: Any, rounds: int) -> Graph:
        return self.graph([lambda: launch(rounds)], 1)

    def _l2(self) -> Ceiling:
        blocks = max(1, min(self.multiprocessors * L2_BLOCKS, int(L2_SHARE * self.l2_bytes) // L2_BLOCK_BYTES))
        memory = self._random(blocks * L2_BLOCK_BYTES)
        half = memory.nbytes // 2
        kernel = self.module.get_function("ceiling_l2")

        def launch(rounds: int) -> None:
            kernel((blocks,), (256,), (memory[:half], memory[half:], np.int32(rounds)))

        launch(1)
        rounds = self._rounds(launch)
        taken = self._taken(self.graph([lambda: launch(rounds)], NODES))
        return self._ceiling("l2", "L2 cache", "copy", memory.nbytes * rounds, taken, "B/s")

    def _memory(self) -> Ceiling:
        free = int(self.cupy.cuda.runtime.memGetInfo()[0])
        memory = self._random(min(COPY_BYTES, free // 4) // 8192 * 8192)
        half = memory.nbytes // 2
        kernel = self.module.get_function("ceiling_memory")

        def launch() -> None:
            kernel((half // 4096,), (256,), (memory[:half], memory[half:]))

        launch()
        return self._ceiling("memory", "Memory", "copy", memory.nbytes, self._taken(self.graph([launch], NODES)), "B/s")

    def _random(self, count: int) -> Any:
        memory = self.cupy.empty(count, self.cupy.uint8)
        self.module.get_function("fill_random")((4096,), (256,), (memory, np.int64(count // 4)))
        return memory

    def _taken(self, graph: Graph) -> list[Any]:
        """Takes of a graph, each after a rest, but for a first one that is not used."""
        self.take(graph, REPLAYS, NODES, SAMPLES)
        return [self._rested(REST_S, graph, REPLAYS, NODES, SAMPLES, ()) for _ in range(TAKES)]

    def _ceiling(
        self, unit: str, title: str, instruction: str, work: float, taken: list[Any], of: str, computes: bool = False
    ) -> Ceiling:
        """`work`: operations or bytes of a launch."""
        rates = [work / statistics.median(take["seconds"]) for take in taken]
        clocks = [take["clock64_mhz"] for take in taken if take["clock64_mhz"]]
        rate, clock = statistics.median(rates), statistics.median(clocks) if clocks else None
        sheet = DATASHEETS.get(self.gpu, {}).get(unit)
        return {
            "unit": unit,
            "title": title,
            "instruction": instruction,
            "rate": rate,
            "of": of,
            "spread": statistics.stdev(rates) / math.fsum(rates) * len(rates),
            "clock_mhz": clock,
            "per_clock": rate / (clock * 1e6 * self.multiprocessors) if clock and computes else None,
            "datasheet": sheet and sheet * 1e12,
            "limits": sorted({limit for take in taken for limit in take["throttled"]}),
        }
