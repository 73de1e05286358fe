"""Takes rounds of one or two callables in turns, and makes results of them."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelwatch.api.named import Function, resolve
from kernelwatch.api.result import Measured, MeasureError
from kernelwatch.api.rounds import Round, Sets, Subject, Timer
from kernelwatch.api.statistics import level
from kernelwatch.identity import TIMED
from kernelwatch.system import clock as time

ROUNDS_LEAST = 3


def take_turns(
    timer: Timer,
    functions: Sequence[Function],
    arguments: tuple[object, ...],
    keywords: Mapping[str, object],
    *,
    bytes: int | None,
    flops: float | None,
    cache: str,
    seconds: float,
    enough: Callable[[list[list[float]], bool], bool],
    afterwards: Callable[[list[Subject], Sets, list[list[float]]], object] = lambda *_: None,
) -> list[Measured]:
    """Measure functions, each once in every turn, until `enough` says so.

    It is told the seconds of each function's rounds, and whether `seconds` are over since the functions were called for
    the first time, which may compile and load. `afterwards` is given the subjects, the sets of the last round, and the
    seconds of each one's rounds.

    Raises: MeasureError if a function raises.
    """
    began = time.perf_counter()
    rotation = timer.rotation((*arguments, *keywords.values()), cache)
    named = [(name, _by_name(function, tuple(keywords))) for name, function in map(resolve, functions)]
    sets = rotation.fresh()
    subjects = [timer.subject(name, function, sets[0]) for name, function in named]
    rounds: list[list[Round]] = [[] for _ in subjects]
    turn, until = 0, time.perf_counter() + seconds
    while turn < ROUNDS_LEAST or not enough(
        [[one.seconds for one in own] for own in rounds], time.perf_counter() >= until
    ):
        if timer.renews and turn:
            sets = []  # the memory of the turn before is free when that of this one is taken
            sets = rotation.fresh()
        numbers = range(len(subjects))
        for at in numbers if turn % 2 == 0 else reversed(numbers):
            rounds[at].append(_round(named[at][0], subjects[at], sets))
        turn += 1
    afterwards(subjects, sets, [[one.seconds for one in own] for own in rounds])
    disturbed = timer.disturbed()
    conditions = {
        **timer.conditions(),
        TIMED.fact: TIMED.version,
        "copies": len(sets),
        "took_s": time.perf_counter() - began,
    }
    return [
        result_of(
            timer,
            name,
            subject,
            own,
            bytes=rotation.nbytes and rotation.nbytes + subject.returned if bytes is None else bytes,
            flops=flops,
            cache=cache,
            warnings=[*rotation.warnings, *subject.warnings, *([disturbed] if disturbed else [])],
            conditions={**conditions, "calls": sum(one.calls for one in own)},
        )
        for (name, _), subject, own in zip(named, subjects, rounds, strict=True)
    ]


def _by_name(function: Callable[..., object], names: tuple[str, ...]) -> Callable[..., object]:
    """A function whose last arguments go by these names. That costs the host some tenths of a microsecond in a call."""
    count = len(names)

    def call(*arguments: object) -> object:
        return function(*arguments[:-count], **dict(zip(names, arguments[-count:], strict=True)))

    return call if names else function


def _round(name: str, subject: Subject, sets: Sets) -> Round:
    try:
        return subject.round(sets)
    except Exception as error:
        raise MeasureError(f"{name} raises {type(error).__name__} when it is repeated: {error}") from error


def result_of(
    timer: Timer,
    name: str,
    subject: Subject,
    rounds: list[Round],
    *,
    bytes: int,
    flops: float | None,
    cache: str,
    warnings: list[str],
    conditions: dict[str, Any],
) -> Measured:
    """The result of one function. Rounds in which a limit lowered the clocks count only if most are such rounds."""
    limited = [one for one in rounds if one.limits]
    counted = rounds
    if limited:
        names = ", ".join(dict.fromkeys(limit for one in limited for limit in one.limits))
        text = f"the clocks were lowered in {len(limited)} of {len(rounds)} rounds ({names})"
        if len(rounds) - len(limited) >= max(ROUNDS_LEAST, len(limited)):
            counted, text = [one for one in rounds if not one.limits], f"{text}, which are left out"
        warnings = [*warnings, text]
    clocks = [one.clock_mhz for one in counted if one.clock_mhz]
    seconds, bounds = level([one.seconds for one in counted])
    return Measured(
        name=name,
        seconds=seconds,
        interval=bounds,
        samples=tuple(one.seconds for one in rounds),
        bytes=bytes or None,
        flops=flops,
        clock_mhz=statistics.median(clocks) if clocks else None,
        warnings=tuple(warnings),
        device=timer.name,
        cache=cache,
        method=subject.method,
        peak_allocated_bytes=subject.peak_allocated_bytes,
        conditions=conditions,
    )
