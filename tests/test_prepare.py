"""What the preparations of launches share, without a GPU."""

import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")

import gpukernels
from gpukernels import prepare
from gpukernels.kernel import Launch, python_function


class Event:
    """CUDA's event, which has passed when the test says so."""

    made: list["Event"] = []  # noqa: RUF012 (of the test)

    def __init__(self, **_options: object) -> None:
        self.done = False
        self.stream: object = None
        self.made.append(self)

    def record(self, stream: object) -> None:
        self.stream = stream


class Memory:
    pass


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = SimpleNamespace(is_capturing=lambda: False)
    cuda = SimpleNamespace(get_current_stream=lambda: found, Event=Event)
    monkeypatch.setattr(prepare, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(Event, "made", [])
    monkeypatch.setattr(prepare, "_in_flight", type(prepare._in_flight)())
    return found


def test_what_a_launch_uses_lives_until_it_has_run(stream: Any) -> None:
    first, second = Memory(), Memory()
    alive = weakref.ref(first), weakref.ref(second)
    prepare.keep_until_run(first)
    prepare.keep_until_run(second)
    del first, second
    assert all(ref() is not None for ref in alive)
    assert [event.stream for event in Event.made] == [stream, stream]
    Event.made[0].done = True
    prepare.keep_until_run()
    assert alive[0]() is None
    assert alive[1]() is not None
    Event.made[1].done = True
    prepare.keep_until_run()
    assert alive[1]() is None


def test_a_capture_keeps_nothing(stream: Any) -> None:
    stream.is_capturing = lambda: True
    memory = Memory()
    alive = weakref.ref(memory)
    prepare.keep_until_run(memory)
    del memory
    assert alive() is None
    assert not Event.made


@pytest.mark.parametrize(
    ("columns", "itemsize", "wanted"),
    [(1, 2, 64), (64, 2, 64), (65, 2, 128), (4104, 2, 4160), (4099, 4, 4128), (5, 4, 32), (129, 1, 256)],
)
def test_rows_are_padded_to_whole_cache_lines(columns: int, itemsize: int, wanted: int) -> None:
    assert prepare.padded(columns, itemsize) == wanted


@pytest.mark.parametrize(
    ("name", "edge", "blocks", "overlaps"),
    [
        ("wgmma", 2048, 128, True),  # 128 tiles
        ("wgmma", 4096, 128, False),  # 512 tiles, four for each block
        ("wgmma_persistent", 2048, 128, True),
        ("wgmma_stages", 2048, 128, False),  # its kernel does not wait for the launch before
        ("wgmma_specialized", 2048, 128, False),
        ("wgmma_specialized", 4096, 512, False),  # a block for each
        ("wgmma_128x192", 1536, 96, True),
        ("wgmma_128x192", 3072, 128, False),  # 384 tiles, three for each block
        ("wgmma_128x128", 2048, 128, False),
        ("wgmma_64x128", 1024, 128, True),
        ("wgmma_64x128", 1536, 96, False),  # 288 tiles, three for each block
        ("wgmma_64x64", 512, 64, True),
        ("wgmma_64x64", 1024, 128, False),  # 256 tiles, two for each block
        ("wgmma_fp8_64x128", 1024, 128, True),
        ("wgmma_fp8_64x64", 512, 64, True),
        ("tf32_64x128", 1024, 128, True),
        ("wgmma_multicast", 2048, 128, True),  # 128 tiles, two for each cluster
        ("wgmma_multicast", 4096, 128, False),  # 512 tiles in four turns of 64 clusters
        ("wgmma_split_k", 512, 128, True),
        ("wgmma_split_k", 1024, 512, False),
        ("wgmma_k_major", 1024, 32, True),
    ],
)
def test_a_launch_overlaps_the_one_before_it_if_all_its_tiles_fit_on_the_gpu(
    monkeypatch: pytest.MonkeyPatch, name: str, edge: int, blocks: int, overlaps: bool
) -> None:
    found = gpukernels.rung("matmul", name)
    assert found.preparation
    grids: dict[str, list[int]] = {"overlapping": [], "plain": []}

    def overlapping(_function: object, grid: tuple[int, ...], *_rest: object) -> Any:
        return lambda: grids["overlapping"].append(grid[0])

    def plain(grid: tuple[int, ...], *_rest: object) -> None:
        grids["plain"].append(grid[0])

    monkeypatch.setattr(prepare, "tensor_map", lambda *_arguments: np.uint32(0))
    monkeypatch.setattr(prepare, "overlapping", overlapping)
    device = SimpleNamespace(attributes={"MultiProcessorCount": 132})
    matrix = SimpleNamespace(
        shape=(edge, edge), strides=(2 * edge, 2), itemsize=2, data=SimpleNamespace(ptr=512), device=device
    )
    make = python_function(found, found.preparation)
    enqueue: Any = plain
    make(prepare.Call(found, None, enqueue, (), (128, 3), (matrix, matrix, matrix), (np.int64(edge),) * 3))()
    assert grids == {"overlapping": [blocks] if overlaps else [], "plain": [] if overlaps else [blocks]}


@pytest.mark.parametrize(("has_memory", "capturing"), [(True, False), (False, True), (True, True)])
def test_a_call_in_a_capture_is_refused_if_its_launch_has_memory(has_memory: bool, capturing: bool) -> None:
    """The call would drop the launch, and with it memory that the graph still writes to."""
    ran: list[str] = []
    stream = SimpleNamespace(is_capturing=lambda: capturing)

    class Called(gpukernels.Kernel):
        def _array_module(self) -> Any:
            return SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: stream))

        def bind(self, *_inputs: Any, out: Any = None) -> Launch:
            return Launch(out, "", lambda: ran.append("run"), has_memory)

    kernel = Called(gpukernels.rung("matmul", "split_tail"), "float32")
    if has_memory and capturing:
        with pytest.raises(gpukernels.KernelError, match=r"matmul/split_tail: .* bind it before the capture"):
            kernel(out=1)
        assert not ran
    else:
        assert kernel(out=1) == 1
        assert ran == ["run"]
