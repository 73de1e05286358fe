"""asv plugin: measure the groups of all suites together, and run a series for all its parameters in one process.

asv prepares one suite after the other. `run_benchmarks` tells the suites of a commit to the processes that prepare
them, so that the first one can measure for all.

asv starts one process for each combination of parameters, some 8 ms apiece. Benchmarks with the attribute `at_once` run
in one. `kernelwatch.suites.series` sets it on series that read a group which is already measured; called without
parameters, they return a list. The patch uses runner._run_benchmark_single_param and BenchmarkResult.
"""

import itertools
import math
from pathlib import Path
from typing import Any

from asv import runner

from kernelwatch.asv.patches import replace
from kernelwatch.history.failures import suite_of
from kernelwatch.system.options import Options, hand_on

_run_benchmarks = runner.run_benchmarks
one_by_one = runner.run_benchmark


def _run_all(benchmarks: Any, *arguments: Any, **options: Any) -> Any:
    """asv.runner.run_benchmarks of a commit. What another commit's suites left and asv did not save is removed."""
    folder = Options.here().facts
    for path in Path(folder).glob("*.jsonl") if folder else ():
        path.unlink()
    hand_on(suites=",".join(dict.fromkeys(map(suite_of, benchmarks))))
    return _run_benchmarks(benchmarks, *arguments, **options)


def run_benchmark_together(benchmark: dict[str, Any], spawner: Any, profile: bool, **options: Any) -> Any:
    """asv.runner.run_benchmark, by one call if the benchmark allows it."""
    extra = options.get("extra_params") or {}
    allowed = benchmark.get("at_once") and benchmark["params"]
    if not allowed or profile or isinstance(extra, list):
        return one_by_one(benchmark, spawner, profile, **options)
    reply = runner._run_benchmark_single_param(
        {**benchmark, "params": []}, spawner, None, profile=False, extra_params=extra, cwd=options.get("cwd")
    )
    combinations = list(itertools.product(*benchmark["params"]))
    answers = reply.result[0]
    if not isinstance(answers, list) or len(answers) != len(combinations):
        # The process died or ran out of time (its output is reported once), or it has other parameters than asv knows.
        empty = [None] * len(combinations)
        return reply._replace(result=empty, samples=empty, number=empty, errcode=reply.errcode or 1)
    selected = options.get("selected_idx")
    results, samples, numbers, errors = [], [], [], []
    for index, (params, answer) in enumerate(zip(combinations, answers, strict=True)):
        wanted = selected is None or index in selected
        value: Any = answer.get("value") if wanted else math.nan
        has_samples = isinstance(value, dict)
        results.append(True if has_samples else value)
        samples.append(value["samples"] if has_samples else None)
        numbers.append(value["number"] if has_samples else None)
        if wanted and "error" in answer:
            errors.append(f"For parameters: {', '.join(params)}\n{answer['error']}")
    return reply._replace(
        result=results,
        samples=samples,
        number=numbers,
        errcode=reply.errcode or int(bool(errors)),
        stderr="\n\n".join(filter(None, [reply.stderr, *errors])),
    )


def setup() -> None:
    """Called by asv when it loads the plugin."""
    replace("asv.commands.run:run_benchmarks", _run_all)
    replace("asv.runner:run_benchmark", run_benchmark_together)
