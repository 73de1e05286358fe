"""Tests that need much of a GPU's memory, on a GPU that is not there: turns, and what is skipped."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gpu_memory import gpu_memory
from tests.repositories import ROOT

GIB = 1 << 30


class OutOfMemoryError(MemoryError):
    pass


@pytest.fixture
def gpu_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """A GPU of 80 GiB with so much free, and what was given back to it."""

    def made(free: int) -> Any:
        given_back: list[None] = []
        runtime = SimpleNamespace(memGetInfo=lambda: (free, 80 * GIB))
        pool = SimpleNamespace(free_all_blocks=lambda: given_back.append(None))
        cuda = SimpleNamespace(runtime=runtime, memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError))
        cupy = SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: pool, given_back=given_back)
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        monkeypatch.setenv("GPUKERNELS_CACHE", str(tmp_path / "kernels"))
        return cupy

    return made


def test_what_is_free_is_used_and_given_back(gpu_with: Callable[..., Any]) -> None:
    fake, ran = gpu_with(20 * GIB), False
    with gpu_memory(20 * GIB):
        ran = True
    assert ran
    assert len(fake.given_back) == 2


def test_what_is_not_free_is_skipped(gpu_with: Callable[..., Any]) -> None:
    gpu_with(20 * GIB)
    said = "needs 21 GiB of GPU memory, 20 GiB are free"
    with pytest.raises(pytest.skip.Exception, match=said), gpu_memory(21 * GIB):
        pytest.fail("it runs")


def test_memory_that_others_take_is_no_failure_and_a_kernel_that_takes_too_much_is(
    gpu_with: Callable[..., Any],
) -> None:
    gpu_with(40 * GIB)
    said = "others use the GPU, 40 of 80 GiB were free: 50 bytes"
    with pytest.raises(pytest.skip.Exception, match=said), gpu_memory(1 * GIB):
        raise OutOfMemoryError("50 bytes")
    gpu_with(79 * GIB)
    with pytest.raises(OutOfMemoryError), gpu_memory(1 * GIB):
        raise OutOfMemoryError("50 bytes")


PROCESS = """
import sys, time
from types import SimpleNamespace
pool = SimpleNamespace(free_all_blocks=lambda: None)
runtime = SimpleNamespace(memGetInfo=lambda: (2, 2))
memory = SimpleNamespace(OutOfMemoryError=MemoryError)
cuda = SimpleNamespace(runtime=runtime, memory=memory)
sys.modules["cupy"] = SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: pool)
from tests.gpu_memory import gpu_memory
with gpu_memory(1):
    with open(sys.argv[1], "a") as log:
        print("in", file=log, flush=True)
        time.sleep(0.2)
        print("out", file=log, flush=True)
"""


def test_processes_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUKERNELS_CACHE", str(tmp_path / "kernels"))
    log = tmp_path / "log"
    command = [sys.executable, "-c", PROCESS, str(log)]
    both = [subprocess.Popen(command, cwd=ROOT) for _ in range(3)]
    assert [one.wait() for one in both] == [0, 0, 0]
    assert log.read_text().split() == ["in", "out"] * 3
