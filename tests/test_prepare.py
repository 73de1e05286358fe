"""What the preparations of launches share, without a GPU."""

import weakref
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")

from gpukernels import prepare


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
    ("columns", "itemsize", "wanted"), [(1, 2, 8), (8, 2, 8), (9, 2, 16), (4099, 2, 4104), (5, 4, 8), (4, 4, 4)]
)
def test_rows_are_padded_to_what_the_copy_engine_takes(columns: int, itemsize: int, wanted: int) -> None:
    assert prepare.padded(columns, itemsize) == wanted
