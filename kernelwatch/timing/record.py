"""The records in a sidecar: the figures that one process measured of one cell, and the facts of a group."""

import statistics
from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from kernelwatch.timing.nvml import Neighbors, Others, State

FAR = 0.2  # of the median: what an L2 cache settles into differs by up to an eighth
CellState = Literal["waiting", "ok", "na", "failed"]  # not measured yet; measured; not measurable; wrong or died


class Code(TypedDict, total=False):
    """A kernel as it was compiled. `kernel`: the name of the function; `code`: a hash of its SASS; `only_threads`: the
    size of the only block that it takes, 0 if it takes several; the figures of its instructions are as in
    analysis/sass.py."""

    kernel: str
    code: str
    only_threads: int
    registers: int
    static_shared_bytes: int
    stack_bytes: int
    instructions: int
    mix: dict[str, int]
    shared_load_bytes: int
    spill_load_bytes: int
    spill_store_bytes: int


class Ran(Code, total=False):
    """A node of a launch's graph, with its code if that is known. `kind`: of a node that is no kernel, such as "copy".

    `grid`, `block`: in x, y, z. `local_bytes`: of a thread, for spills and arrays.
    """

    kind: str
    grid: list[int]
    block: list[int]
    dynamic_shared_bytes: int
    local_bytes: int
    blocks_per_multiprocessor: int


class Measurement(TypedDict, total=False):
    """What one process measured of one cell. Times are in seconds.

    Timed: `seconds` of one pass; `samples`: how many there were, and `quartiles_s` over them; `launches` in all;
    `slots`: sets of buffers; `identity` of the launch; `clock64_mhz` and NVML's `state` during the last sample;
    `throttled`: the limits that were met; `retakes`; `takes_s`: the time in each take, if there were several, over
    which `clock64_mhz` is the mean then; `instead_of`: what another process had measured that this one replaced;
    `canary_s` after the measurement; `host_loop_seconds` and `launch_seconds`: the cost of a launch; `spent_s`: the
    seconds that it took, by part (timing/spent.py), and "before", those since the measurement before: the start of the
    process, and cells that gave no figure.
    Of what a launch does: `timed_by`, "events" if it cannot be captured in a CUDA graph; `peak_allocated_bytes`, the
    most device memory that it allocates at once, if any (older records have `allocated_bytes`, the sum of what it asks
    for); the `kernels` that it runs; `configurations` that autotuners chose; `sources`: the identity of the sources, if
    `identity` covers what was launched as well; `launch`: the identity of what was launched alone, if all of it is
    known.
    Launched: `codes` of the kernels, a digest of their `arguments`, the identity of the `launch` ("" if unknown).
    Identified: `files` of the tree that were used, with digests; the `identities` of its launches by type and shape;
    those that were `skipped`, with the reasons; `error`: why there was no launch; `absent`: no such rung exists.
    Compiled: the figures of the cubin. Counted: tallies by kind of access.
    """

    process: int
    seconds: float
    samples: int
    quartiles_s: list[float]
    takes_s: list[float]
    launches: int
    slots: int
    identity: str
    throttled: list[str]
    retakes: int
    instead_of: dict[str, Any]
    clock64_mhz: float | None
    state: State
    canary_s: dict[str, float]
    host_loop_seconds: float
    spent_s: dict[str, float]
    launch_seconds: float
    timed_by: str
    peak_allocated_bytes: int
    allocated_bytes: int
    kernels: list[Ran]
    configurations: list[str]
    sources: str
    launch: str
    codes: list[Code]
    arguments: str
    # identified
    files: dict[str, str]
    identities: dict[str, str]
    skipped: dict[str, str]
    error: str
    absent: bool
    # compiled
    cubin: str
    symbol: str
    plain: str
    cubin_sha256: str
    block_threads: int
    dynamic_shared_bytes: int
    static_shared_bytes: int
    shared_bytes: int
    registers: int
    stack_bytes: int
    occupancy_percent: float
    instructions: int
    mix: dict[str, int]
    shared_load_bytes: int
    spill_load_bytes: int
    spill_store_bytes: int
    # counted
    global_load: dict[str, int]
    global_store: dict[str, int]
    shared_load: dict[str, int]
    shared_store: dict[str, int]
    moved_bytes: int
    compulsory_bytes: int
    blocks: int
    barriers: int
    repeats: int


class Facts(TypedDict, total=False):
    """The machine, the packages and the versions with which a group was measured; constant during a run. None stands
    for what NVML does not report."""

    gpu: str
    cpu: str
    machine: str
    cores: list[int]
    cache_bytes: int
    compiler: str | None
    openmp: dict[str, str | None]
    compute_capability: str
    multiprocessors: int
    l2_bytes: int
    cuda_driver: int
    cuda_runtime: int
    packages: dict[str, str]
    imports: dict[str, str]
    nvml: str
    l2_reset: str
    others: Others | None
    neighbors: Neighbors | None
    ceilings: dict[str, float]
    harness: str
    emulator: str
    counts: str
    codes: str
    resumed: int  # how many of the processes measured before the run was interrupted
    measured_at: str
    nvml_uuid_sha256: str | None
    gpus: list[str]  # the hashed UUIDs of all GPUs, if cells ran on more than one
    nvml_driver: str | None
    nvml_theoretical_bandwidth_bytes_per_s: float | None


def near(seconds: Sequence[float]) -> list[float]:
    """The samples of a launch that are not FAR from their median: what is, was disturbed, such as by another program's
    work. Of two that are far apart the shorter one stays."""
    middle = statistics.median_low(seconds)
    return [value for value in seconds if abs(value - middle) <= FAR * middle]


def typical(seconds: Sequence[float]) -> float:
    """The time that samples of a launch tell: the mean of those that are near, since each may have its own level."""
    return statistics.mean(near(seconds))


def quartiles(seconds: list[float]) -> list[float]:
    """The lower and the upper quartile."""
    lower, _, upper = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
    return [lower, upper]


def number(measurement: Measurement | dict[str, Any], *names: str) -> float | None:
    """A number in a measurement; each further name goes one dictionary deeper. None if there is no number."""
    value: object = measurement
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, (int, float)) else None
