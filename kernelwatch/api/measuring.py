"""Measures a callable on its arguments, and compares two of them in turns."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache as remembered
from numbers import Real
from typing import Any, Literal

from kernelwatch.api.arguments import device_of
from kernelwatch.api.cpu import Cpu
from kernelwatch.api.gpu import Gpu, current_device
from kernelwatch.api.named import Function
from kernelwatch.api.processes import Ahead, each
from kernelwatch.api.result import Compared, Measured, MeasureError
from kernelwatch.api.rounds import Sets, Subject, Timer
from kernelwatch.api.statistics import Verdict, log_ratios, pooled
from kernelwatch.api.turns import take_turns
from kernelwatch.plan.cells import CACHES


def measure(
    function: Function,
    /,
    *arguments: object,
    bytes: int | None = None,
    flops: float | None = None,
    cache: Literal["cold", "hot"] = "cold",
    seconds: float = 0.2,
    processes: int = 1,
    device: Literal["gpu", "cpu"] | None = None,
    **keywords: object,
) -> Measured:
    """Measure the seconds of `function(*arguments, **keywords)`.

    `arguments`, `keywords`: arrays are copied, and the calls rotate over the copies; everything else is passed as it
    is. A keyword argument with the name of a parameter here goes into a lambda. If an array is in a GPU's memory, the
    function is timed on that GPU, else on the CPU (`device` overrides this).
    `function`: enqueues its work on the current stream of CuPy and PyTorch; with several processes a function that
    they can import, or its name as "module:function".
    `bytes`: that a call moves, by default each array among the arguments and what is returned, once.
    `flops`: the operations of a call.
    `cache`: "cold" rotates over more memory than the last-level cache holds, "hot" stays within it.
    `seconds`: about how long to measure, in each process, after what is done once: raising the clocks, compiling.
    `processes`: more than 1 measures in so many fresh processes and gives the interval between them.

    Raises: MeasureError if the function raises, if an array cannot be copied, or if it cannot be measured here.
    """
    given: dict[str, Any] = {"bytes": bytes, "flops": flops, "cache": cache, "seconds": seconds, "device": device}
    check((function,), processes, **given)
    if processes > 1:
        on_gpu = (device or _device((*arguments, *keywords.values()))) == "gpu"
        with Ahead(processes, on_gpu) as ahead:
            return pooled(each(measure, (function,), arguments, given | keywords, processes, seconds, ahead))
    timer = timer_of((*arguments, *keywords.values()), device)
    with timer.current():
        (measured,) = take_turns(
            timer,
            [function],
            arguments,
            keywords,
            bytes=bytes,
            flops=flops,
            cache=cache,
            seconds=seconds,
            enough=lambda _, late: late,
        )
    return measured


def compare(
    a: Function,
    b: Function,
    /,
    *arguments: object,
    bytes: int | None = None,
    flops: float | None = None,
    cache: Literal["cold", "hot"] = "cold",
    seconds: float = 1.0,
    processes: int = 1,
    within: float | None = None,
    device: Literal["gpu", "cpu"] | None = None,
    **keywords: object,
) -> Compared:
    """Measure `a(*arguments, **keywords)` and `b(*arguments, **keywords)` in turns (a b b a ...) on the same copies,
    and say whether b is faster.

    `within`: the largest relative change that is "same", by default 0.01 on a GPU and 0.02 on a CPU.
    `seconds`: after which a comparison that is undecided ends, in each process; at least four turns are taken.
    `processes`: more than 1 makes a turn of each fresh process, of which a verdict needs four.
    The other parameters are those of `measure`, which both share.

    Raises: MeasureError if a function raises, if an array cannot be copied, or if it cannot be measured here.
    """
    given: dict[str, Any] = {"bytes": bytes, "flops": flops, "cache": cache, "seconds": seconds, "device": device}
    given["within"] = within
    check((a, b), processes, **given)
    if processes > 1:
        where = device or _device((*arguments, *keywords.values()))
        verdict = Verdict(where, within)
        with Ahead(processes, where == "gpu") as ahead:
            results = each(compare, (a, b), arguments, given | keywords, processes, seconds, ahead)
        logs = [math.log(result.ratio) for result in results]
        return verdict.compared([pooled([getattr(result, side) for result in results]) for side in "ab"], logs)
    return compare_here(a, b, arguments, keywords, **given)


def compare_here(
    a: Function,
    b: Function,
    arguments: Sequence[object],
    keywords: Mapping[str, object],
    *,
    seconds: float,
    within: float | None,
    device: Literal["gpu", "cpu"] | None,
    afterwards: Callable[[list[Subject], Sets, list[list[float]]], object] = lambda *_: None,
    **given: Any,
) -> Compared:
    """What `compare` does in this process. `afterwards`: see `take_turns`; the arguments are as there."""
    timer = timer_of((*arguments, *keywords.values()), device)
    with timer.current():
        verdict = Verdict(timer.device, within)
        both = take_turns(
            timer,
            [a, b],
            tuple(arguments),
            keywords,
            **{"bytes": None, "flops": None, **given},
            seconds=seconds,
            enough=verdict.reached,
            afterwards=afterwards,
        )
    return verdict.compared(both, log_ratios(*(one.samples for one in both)))


def check(
    functions: Sequence[object],
    processes: Any,
    *,
    cache: object,
    seconds: Any,
    bytes: Any,
    flops: Any,
    device: object,
    within: Any = None,
    **tolerances: Any,
) -> None:
    """Raises: TypeError if a function cannot be one; ValueError if a parameter has no meaning."""
    for function in functions:
        if not callable(function) and not isinstance(function, str):
            takes = "measure takes a function" if len(functions) == 1 else "compare takes two functions"
            raise TypeError(f"{takes} (or 'module:function') before the arguments; got {type(function).__name__}")
    if cache not in CACHES:
        raise ValueError(f"cache must be one of {', '.join(CACHES)}; got {cache!r}")
    if device not in (None, "gpu", "cpu"):
        raise ValueError(f"device must be gpu, cpu or None; got {device!r}")
    if not (_is_number(seconds) and seconds > 0):
        raise ValueError(f"seconds must be a number above 0; got {seconds!r}")
    if not (isinstance(processes, int) and processes >= 1):
        raise ValueError(f"processes must be a whole number, at least 1; got {processes!r}")
    for name, tolerance in tolerances.items():
        if not (_is_number(tolerance) and tolerance >= 0):
            raise ValueError(f"{name} must be a number, at least 0; got {tolerance!r}")
    for name, count in (("bytes", bytes), ("flops", flops)):
        if not (count is None or (_is_number(count) and count >= 0)):
            raise ValueError(f"{name} must be a number, at least 0, or None; got {count!r}")
    if not (within is None or (_is_number(within) and within > 0)):
        raise ValueError(f"within must be a number above 0, such as 0.01 for 1 %, or None; got {within!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


# --- the device and the function -----------------------------------------------------------------------------------


def _device(arguments: Sequence[object]) -> str:
    """The device that the arguments ask for; without an array, the GPU if CuPy or PyTorch uses it already."""
    devices = {device_of(one) for one in arguments}
    if "gpu" in devices or "cpu" in devices:
        return "gpu" if "gpu" in devices else "cpu"
    torch = sys.modules.get("torch")
    return "gpu" if torch is not None and torch.cuda.is_initialized() else "cpu"


@remembered
def _cpu() -> Cpu:
    return Cpu()


@remembered
def _gpu(_number: int) -> Gpu:
    return Gpu()


def timer_of(arguments: Sequence[object], device: str | None) -> Timer:
    """The device that times, one for all calls in this process. Raises: MeasureError if it is not here."""
    if (device or _device(arguments)) == "cpu":
        return _cpu()
    number = current_device()
    for one in arguments:
        if device_of(one) == "gpu" and hasattr(one, "__dlpack_device__") and one.__dlpack_device__()[1] != number:
            raise MeasureError(
                f"an array is on GPU {one.__dlpack_device__()[1]}, but the current device is GPU {number}: measure "
                "within `with cupy.cuda.Device(...)`"
            )
    return _gpu(number)
