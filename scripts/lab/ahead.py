"""Compiles rungs before they are timed, in parallel processes."""

import multiprocessing
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

import gpukernels
from gpukernels import compile_cuda


def _compiled(op: str, name: str, type: str, arch: str) -> str:
    """Compile a rung into the cache; why it cannot be, or ""."""
    try:
        compile_cuda(gpukernels.rung(op, name), type, arch)
    except gpukernels.KernelError as error:
        return str(error)
    return ""


def compile_ahead(wanted: Iterable[tuple[str, str, str]], arch: str, workers: int | None = None) -> None:
    """Compile CUDA rungs (op, rung, type) into the cache, in parallel processes. What fails there fails again, and is
    told, when it is loaded."""
    jobs = [each for each in wanted if gpukernels.rung(*each[:2]).source.suffix == ".cu"]
    if not jobs:
        return
    with ProcessPoolExecutor(workers or os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        for (op, name, type), done in [
            ((op, name, type), pool.submit(_compiled, op, name, type, arch)) for op, name, type in jobs
        ]:
            if why := done.result():
                print(f"{op}/{name} {type}: {why}", file=sys.stderr, flush=True)
