"""The devices: each way of launching cells, and what the engine asks of it, in one table.

A project's problems may name further devices, such as several GPUs (kernelwatch/extras). The engine knows none of
them: it asks `Project.devices`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Holds = Literal["", "CPU", "GPU", "GPUs"]
SILENCE_S = 60.0  # a worker that sends nothing and does not work for this long hangs


@dataclass(frozen=True)
class Budget:
    """How long a measurement takes: `samples` samples of about `sample_s` seconds each, with at least one launch.

    `takes`: at most so many of a quick cold cell whose SM clock is not lowered, until they agree, with other cells in
    between as long as there are some.
    `clocks_mhz`: by the cell's key, the SM clock at which earlier processes measured it; no higher one is waited for.
    `seconds`: by the cell's key, the time of a pass that they measured. They had checked what they timed.
    """

    samples: int
    sample_s: float
    takes: int = 1
    clocks_mhz: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Device:
    """A way of launching cells. A subclass with `places` is a further one, whose cells have its name as cache state.

    `name`: in the names of groups and in `Cell.device`.
    `measures`: "module:class", imported on demand, so that a job for the CPU loads no CUDA library. The class is called
    with the project, its package, the cells, the budget of each and a seed, and is a run/worker.Measurer.
    `holds`: what a process has to itself while it measures: the CPU, the current GPU, or all GPUs; "" for exact
    figures, which do not depend on what else runs.
    `processes`: the number of fresh processes that time a cell, 0 if nothing is timed; `quick_processes`: for a first
    look, 0 if it leaves out this device.
    `budget`, `quick_budget`: of one measurement.
    `silence_s`: seconds without an event after which a worker hangs.
    `where`: the `where` of the rungs that it launches.
    `alone`: whether a process by itself can launch them.
    """

    name: str
    measures: str
    holds: Holds = ""
    processes: int = 0
    quick_processes: int = 0
    budget: Budget = Budget(0, 0.0)
    quick_budget: Budget = Budget(0, 0.0)
    silence_s: float = SILENCE_S
    where: str = "device"
    alone: bool = True

    @property
    def on_gpu(self) -> bool:
        """Whether it needs CUDA."""
        return self.holds in ("GPU", "GPUs")

    def places(self, problem: Any) -> Iterable[tuple[str, str, tuple[int, ...]]]:
        """The rung, type and shape of each of its cells of a Problem, if this is a further device."""
        return ()


DEVICES = {
    device.name: device
    for device in (
        Device(
            "gpu",
            "kernelwatch.timing.gpu:Gpu",
            holds="GPU",
            processes=6,
            quick_processes=2,
            budget=Budget(samples=5, sample_s=0.002, takes=16),
            quick_budget=Budget(samples=3, sample_s=0.002),
        ),
        Device(
            "cpu",
            "kernelwatch.timing.cpu:Cpu",
            holds="CPU",
            processes=3,
            quick_processes=2,
            budget=Budget(samples=7, sample_s=0.004),
            quick_budget=Budget(samples=3, sample_s=0.004),
        ),
        Device("static", "kernelwatch.analysis.compiled:Compiler"),
        Device("access", "kernelwatch.analysis.counted:Counter"),
        Device("launched", "kernelwatch.analysis.launched:Launched", holds="GPU"),
        Device("identified", "kernelwatch.analysis.identified:Identifier"),
        Device("explained", "kernelwatch.analysis.explained:Explainer"),
    )
}
