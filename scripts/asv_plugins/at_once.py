"""Have a series answer for all its parameters in one process: asv starts one for each, some 8 ms apiece.

Only what reads a group that is measured already may be asked so: benchmarks with the attribute `at_once`, which
`benchmarks._suites.series` gives and which answer a call without parameters with a list. asv is patched under one name,
runner.run_benchmark, and uses of it runner._run_benchmark_single_param and BenchmarkResult.
"""

import itertools
import math
from typing import Any

from asv import runner

_one_by_one = runner.run_benchmark


def _run_benchmark(benchmark: dict[str, Any], spawner: Any, profile: bool, **options: Any) -> Any:
    """asv.runner.run_benchmark, by one call where the benchmark allows it."""
    extra = options.get("extra_params") or {}
    if not (benchmark.get("at_once") and benchmark["params"]) or profile or isinstance(extra, list):
        return _one_by_one(benchmark, spawner, profile, **options)
    told = runner._run_benchmark_single_param(
        {**benchmark, "params": []}, spawner, None, profile=False, extra_params=extra, cwd=options.get("cwd")
    )
    combinations = list(itertools.product(*benchmark["params"]))
    answers = told.result[0]
    if not isinstance(answers, list) or len(answers) != len(combinations):
        # The process died, or its time was up: what it said is said once. Or it has other parameters than asv knows.
        empty = [None] * len(combinations)
        return told._replace(result=empty, samples=empty, number=empty, errcode=told.errcode or 1)
    chosen = options.get("selected_idx")
    results, samples, numbers, words = [], [], [], [told.stderr]
    for at, (where, answer) in enumerate(zip(combinations, answers, strict=True)):
        value: Any = answer.get("value") if chosen is None or at in chosen else math.nan
        spread = isinstance(value, dict)
        results.append(True if spread else value)
        samples.append(value["samples"] if spread else None)
        numbers.append(value["number"] if spread else None)
        if "error" in answer and (chosen is None or at in chosen):
            words.append(f"For parameters: {', '.join(where)}\n{answer['error']}")
    return told._replace(
        result=results,
        samples=samples,
        number=numbers,
        errcode=told.errcode or int(len(words) > 1),
        stderr="\n\n".join(filter(None, words)),
    )


def setup() -> None:
    """Called by asv when it loads the plugin."""
    runner.run_benchmark = _run_benchmark
