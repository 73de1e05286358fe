"""Measures and compares functions that are not trusted, by a judge in a process that never imports them."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal, NamedTuple

from kernelwatch.api.judge.judging import Judge, Rules
from kernelwatch.api.measuring import check, timer_of
from kernelwatch.api.named import importable, known, made, maker
from kernelwatch.api.processes import each
from kernelwatch.api.result import Compared, Measured
from kernelwatch.api.statistics import Verdict, log_ratios, pooled
from kernelwatch.comparison.paired import LOOKS
from kernelwatch.system import lifeline


class Case(NamedTuple):
    """What functions are judged by. `args`: the name of what makes their arguments; `device`: "gpu", "cpu" or None for
    where the arrays are; `within`: the largest relative change that is "same", None for the usual one."""

    args: str
    rules: Rules
    device: str | None
    within: float | None = None


def judge(
    function: str,
    reference: str,
    *,
    args: str,
    against: str = "",
    rtol: float = 0.0,
    atol: float = 0.0,
    bytes: int | None = None,
    flops: float | None = None,
    seconds: float = 0.2,
    processes: int = 1,
    within: float | None = None,
    device: Literal["gpu", "cpu"] | None = None,
) -> Measured | Compared:
    """Measure a function that is not trusted, or compare it with another one (`against`), which is not trusted either.

    It runs in a process of its own, gets fresh inputs in each round, and is timed and checked from outside. All
    functions are given by name, "module:function" or "FILE.py:function", and write into their array arguments.
    `reference`: a trusted function of the same arguments, whose outputs are right.
    `args`: the name of the function that makes the arguments; without a module it is in that of the reference. Its
    arrays say shapes, types and ranges, and the judge makes the numbers. Or it takes a `seed`, and makes all of them.
    `rtol`, `atol`: how far an element of an output may be off: by `atol` + `rtol` times its size.
    `seconds`: about how long rounds are taken in each process. `processes`: fresh ones of each function; a comparison
    takes at least four. The other parameters are those of `kernelwatch.measure` and `kernelwatch.compare`.

    Raises: Refused, a MeasureError, if a function is wrong or cheats; MeasureError if it cannot be judged.
    """
    check(
        (),
        processes,
        cache="cold",
        seconds=seconds,
        bytes=bytes,
        flops=flops,
        device=device,
        within=within,
        rtol=rtol,
        atol=atol,
    )
    name = importable(reference)
    case = Case(maker(args, name), Rules(rtol, atol, seconds), device, within)
    given = (importable(function), importable(against) if against else "", case, processes)
    found: Measured | Compared = each(judged_here, (name,), given, {}, 1)[0]
    if isinstance(found, Compared):
        return replace(found, a=_with(found.a, bytes, flops), b=_with(found.b, bytes, flops))
    return _with(found, bytes, flops)


def _with(one: Measured, bytes: int | None, flops: float | None) -> Measured:
    return replace(one, bytes=one.bytes if bytes is None else bytes, flops=flops)


def judged_here(reference: str, function: str, against: str, case: Case, processes: int) -> Measured | Compared:
    """What `judge` does in a fresh process."""
    with sitting(reference, case) as judge:
        if against:
            return compared(judge, against, function, case, max(processes, LOOKS[0]))
        results = [judge.judge(function) for _ in range(processes)]
        return results[0] if processes == 1 else pooled(results)


@contextmanager
def sitting(reference: str, case: Case) -> Iterator[Judge]:
    """A judge, by the name of the reference. If its process is killed, so is all that a candidate has started, which
    may be stopped and would stay so."""
    function, makes = known(reference), known(case.args) if case.args else None
    positional, named = made(case.args)
    timer = timer_of((*positional, *named.values()), case.device)
    with timer.current(), lifeline.tied(nested=True):
        judge = Judge(timer, reference, function, positional, named, case.rules, makes)
        with judge.sitting():
            yield judge


def compared(judge: Judge, a: str, b: str, case: Case, turns: int, *, b_first: bool = False) -> Compared:
    """Two functions, each in a fresh process in each turn (a b b a ...): neither lives while the other is measured, so
    that it could slow it down. `turns`: at least so many; more are taken until the verdict is certain, unless it is 1.
    """
    verdict = Verdict(judge.timer.device, case.within)
    results: tuple[list[Measured], list[Measured]] = ([], [])
    until = time.perf_counter() + case.rules.seconds

    def enough() -> bool:
        samples = [[one.seconds for one in own] for own in results]
        return len(samples[0]) >= turns and (turns == 1 or verdict.reached(samples, time.perf_counter() >= until))

    while not enough():
        sides = ((0, a), (1, b)) if len(results[0]) % 2 == int(b_first) else ((1, b), (0, a))
        for side, name in sides:
            results[side].append(judge.judge(name))
        # A gain that may come from hiding fixed costs of the rounds is none.
        verdict.floor = max(verdict.floor, hidden(results[0][-1], results[1][-1]))
    logs = log_ratios(*([one.seconds for one in own] for own in results))
    both = [pooled(own) if len(own) > 1 else own[0] for own in results]
    return verdict.compared(both, logs)


def hidden(one: Measured, other: Measured) -> float:
    """How much faster than the slower of two functions the faster one may seem and not be: it may have hidden all that
    was taken off its figure. The figure of a slower one that is too short lacks nothing, and is too long by as much."""
    fast, slow = sorted((one, other), key=lambda each: each.seconds)
    assert fast.judged
    assert slow.judged
    slow_s = slow.judged.at_most_s - slow.judged.fixed_s
    return max(fast.judged.at_most_s / fast.seconds, slow.seconds / slow_s if slow_s > 0 else math.inf) - 1
