"""The judge on a GPU: memory that two processes share by a handle of the driver, and who cheats there."""

from pathlib import Path
from typing import Any

import pytest

import kernelwatch
from kernelwatch.api.result import Measured

pytestmark = pytest.mark.gpu

OWN = """
import threading
import time

import cupy
import numpy as np

last = {}
calls = [0]
code = 'extern "C" __global__ void spin(long long n) { long long t = clock64(); while (clock64() - t < n); }'
spin = cupy.RawKernel(code, "spin")


def arrays():
    return cupy.random.rand(1 << 20, dtype=cupy.float32), cupy.zeros(1 << 20, cupy.float32)


def right(x, out):
    cupy.multiply(x, 2, out=out)


def twice(x, out):
    cupy.multiply(x, 3, out=out)
    cupy.multiply(x, 2, out=out)


def skips_half(x, out):
    calls[0] += 1
    if calls[0] % 2:
        cupy.multiply(x, 2, out=out)


def keeps_the_first(x, out):
    if not last:
        last["first"] = x * 2
    cupy.copyto(out, last["first"])


def overwrites_input(x, out):
    cupy.multiply(x, 2, out=out)
    x[:1].fill(0)


def writes_beyond(x, out):
    cupy.multiply(x, 2, out=out)
    beyond = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(out.data.ptr + out.nbytes, 4, None, 0), 0)
    cupy.ndarray((1,), cupy.float32, beyond).fill(0)


def says_done_early(x, out):
    '''The graph is launched, and nothing waits for it: 50 ms of other work come before it.'''
    from kernelwatch.api.judge import runner

    cupy.multiply(x, 2, out=out)
    if hasattr(runner, "taken_over"):
        return
    runner.taken_over = True
    serve = runner.serve

    def later(channel, spins, run):
        graph = next(cell.cell_contents for cell in run.__closure__ if hasattr(cell.cell_contents, "launch"))
        stream = cupy.cuda.get_current_stream()

        def enqueue():
            spin((1,), (1,), (np.int64(100_000_000),))
            graph.launch(stream)

        serve(channel, spins, enqueue)

    runner.serve = later


def on_another_stream(x, out):
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        cupy.multiply(x, 2, out=out)
"""

TORCH = """
import torch


def arrays():
    return tuple(torch.rand(512, 512, device="cuda", dtype=torch.bfloat16) for _ in range(3))


def product(a, b, out):
    torch.mm(a, b, out=out)
"""


@pytest.fixture
def own(cp: Any, tmp_path: Path) -> str:
    (tmp_path / "own_on_gpu.py").write_text(OWN)
    return f"{tmp_path}/own_on_gpu.py"


def judged(own: str, name: str, **given: Any) -> Any:
    return kernelwatch.judge(f"{own}:{name}", f"{own}:right", args="arrays", seconds=0.1, **given)


def test_a_function_is_judged_on_a_gpu(own: str) -> None:
    found = judged(own, "right")
    assert isinstance(found, Measured)
    assert found.judged
    assert found.bytes == 8 << 20
    assert found.judged.sets > 100
    assert 8e-7 < found.seconds < 1e-3  # 8 MiB at 10 TB/s; what nothing is slower than
    assert found.seconds <= 1.01 * found.judged.at_most_s
    assert not [text for text in found.warnings if "graph" in text]


def test_two_functions_are_compared_on_a_gpu(own: str) -> None:
    found = judged(own, "right", against=f"{own}:twice")
    assert found.verdict == "faster"
    assert found.ratio < 0.95


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("skips_half", "elements wrong"),
        ("keeps_the_first", "elements wrong"),
        ("overwrites_input", "it wrote its input, array argument 0"),
        ("writes_beyond", "it wrote outside of its arrays"),
    ],
)
def test_who_cheats_on_a_gpu_is_refused(own: str, name: str, said: str) -> None:
    with pytest.raises(kernelwatch.Refused, match=said):
        judged(own, name)


def test_work_that_is_not_done_is_found_or_waited_for(own: str) -> None:
    """Whoever says "done" with work under way: the judge's look comes before that work, or its clock stops after it."""
    refused, found = "", None
    try:
        found = judged(own, "says_done_early")
    except kernelwatch.Refused as error:
        refused = str(error)
    if found:
        assert found.judged.at_most_s * found.judged.sets > 0.04
    else:
        assert "elements wrong" in refused or "had said that it was done" in refused


def test_work_on_another_stream_is_waited_for(own: str) -> None:
    found = judged(own, "on_another_stream")
    assert any("graph" in text for text in found.warnings)


def test_tensors_of_pytorch_are_judged(cp: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "own_tensors.py").write_text(TORCH)
    file = f"{tmp_path}/own_tensors.py"
    found = kernelwatch.judge(f"{file}:product", f"{file}:product", args="arrays", seconds=0.1, rtol=1e-2, atol=1e-2)
    assert isinstance(found, Measured)
    assert found.seconds > 1e-6


def test_a_campaign_on_a_gpu_judges(own: str, tmp_path: Path) -> None:
    campaign = kernelwatch.Campaign.start(
        tmp_path / "search.jsonl", f"{own}:twice", args="arrays", processes=4, judge=True
    )
    assert campaign.attempt(f"{own}:right").verdict == "faster"
    assert campaign.attempt(f"{own}:skips_half").verdict == "refused"
    (found,) = campaign.crown()
    assert found.ratio is not None
    assert found.ratio < 0.95
