"""kernelwatch.measure and kernelwatch.compare on the CPU: unusual functions, and unusual arguments."""

import sys
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import kernelwatch
from kernelwatch.api import cpu
from kernelwatch.system import clock
from tests.test_api import BRIEF, VIEWED, arrays, now, small_cache, yields

__all__ = ["small_cache"]  # the fixture, which is used in each test here


def test_arguments_may_have_any_name() -> None:
    x, out = arrays()
    names: dict[str, Any] = {"function": 3, "a": x, "b": out}
    assert kernelwatch.measure(lambda **given: given["b"], **names, seconds=BRIEF).bytes == 2 * x.nbytes
    found = kernelwatch.compare(lambda a, b, function: a + b, lambda a, b, function: b, seconds=BRIEF, **names)
    assert found.a.bytes == 3 * x.nbytes


def test_a_type_or_an_image_is_no_array() -> None:
    class Image:
        """As of Pillow: an array whose bytes are handed out, in place of their address."""

        __array_interface__: ClassVar = {"shape": (2,), "typestr": "|u1", "data": b"\1\2", "version": 3}

    assert kernelwatch.measure(np.zeros, 100, np.float32, seconds=BRIEF).bytes is None
    assert kernelwatch.measure(lambda image: image, Image(), seconds=BRIEF).bytes is None


class Proxy:
    """An object that has every attribute, as one of another machine may have."""

    def __getattr__(self, name: str) -> "Proxy":
        return self

    def __call__(self, *_: object) -> "Proxy":
        return self


def test_an_object_with_every_attribute_is_no_array() -> None:
    found = kernelwatch.measure(Proxy(), np.zeros(3), seconds=BRIEF)
    assert (found.name, found.bytes) == ("Proxy", 24)
    assert "Proxy" in repr(found)


async def waits(x: Any) -> Any:
    return np.sort(x)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (waits, "waits returns a coroutine, which is computed later: measure a function that waits for the result"),
        (yields, "yields returns a generator, which"),
        (partial(map, np.sort), "partial returns a map, which"),
        (lambda x: Future(), "<lambda> returns a Future, which"),
    ],
)
def test_what_computes_later_has_no_figure(function: Any, said: str) -> None:
    x = np.zeros((3, 4))
    with pytest.raises(kernelwatch.MeasureError, match=said):
        kernelwatch.measure(function, x, seconds=BRIEF)
    with pytest.raises(kernelwatch.MeasureError, match=said):
        kernelwatch.compare(np.sort, function, x, seconds=BRIEF)


class Scaled(np.ndarray[Any, Any]):
    """An array with an attribute, as one with a unit has."""

    unit: str | None = None

    def __array_finalize__(self, other: Any) -> None:
        self.unit = getattr(other, "unit", None)


def test_a_copy_is_of_the_class_of_its_original() -> None:
    matrix = np.array([[1, 2], [3, 4]]).view(np.matrix)
    record = np.rec.array([(1, 2.0)], dtype=[("i", int), ("x", float)])
    scaled = np.arange(6.0).view(Scaled)
    scaled.unit = "m"
    seen: list[tuple[Any, Any, Any]] = []
    kernelwatch.measure(lambda *copies: seen.append(copies), matrix, record, scaled[1::2], seconds=BRIEF)
    for m, r, s in seen[:3]:
        assert [type(one) for one in (m, r, s)] == [np.matrix, np.recarray, Scaled]
        assert m.A1.tolist() == [1, 2, 3, 4]
        assert (r.x.tolist(), r[0].i) == ([2.0], 1)
        assert (s.tolist(), s.strides, s.unit) == ([1, 3, 5], (16,), "m")
        assert not np.shares_memory(m, matrix)


def test_arrays_that_lie_between_each_other_share_no_memory() -> None:
    found = kernelwatch.measure(lambda *halves: None, VIEWED[::2], VIEWED[1::2], seconds=BRIEF)
    assert found.warnings == ()


def test_what_calls_leave_in_cycles_is_freed_between_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would fill the memory: no garbage is collected while calls are timed."""
    live: set[int] = set()
    most = 0

    class Cycle:
        def __init__(self) -> None:
            self.own = self

    def leaves() -> None:
        nonlocal most
        made = Cycle()
        live.add(id(made))
        weakref.finalize(made, live.discard, id(made))
        most = max(most, len(live))
        now[0] += 1e-3

    monkeypatch.setattr(clock, "perf_counter", lambda: now[0])
    found = kernelwatch.measure(leaves, seconds=0.2)
    assert len(found.samples) == 50
    assert most <= 2 + 2 * found.conditions["calls"] // len(found.samples)


def after(first: dict[int, float], usual_s: float) -> Callable[[Any], None]:
    """A function each of whose calls takes `usual_s` by the clock that it moves, but `first` by their number."""
    count = 0

    def called(x: Any) -> None:
        nonlocal count
        count += 1
        now[0] += first.get(count, usual_s)

    return called


@pytest.mark.parametrize(
    "first", [{2: 0.01}, {1: 0.1, 2: 0.1, 3: 0.1, 4: 0.1}, {number: 1e-5 for number in range(1, 60)}, {2: 1e-8}]
)
def test_unusual_first_calls_move_no_figure(first: dict[int, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes as long as a call: a sample of one call would take twice as long."""

    def look() -> float:
        now[0] += 1e-7
        return now[0]

    monkeypatch.setattr(clock, "perf_counter", look)
    x = np.zeros(8)
    found = kernelwatch.compare(after({}, 1e-7), after(first, 1e-7), x)
    assert found.verdict == "same within 2 %"
    assert found.b.seconds == pytest.approx(1e-7, rel=1e-3)
    before = now[0]
    kernelwatch.measure(after({number: 1e-8 for number in range(1, 3)}, 3.0), x, seconds=BRIEF)
    assert now[0] - before < 3.0 * 2 * cpu.GROWTH  # and not 40,000 calls


def test_a_process_that_cannot_make_an_argument_anew_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scaled, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Scaled", Scaled, raising=False)
    said = "a fresh process cannot make the function or its arguments anew, put what they need into a module: Attribute"
    with pytest.raises(kernelwatch.MeasureError, match=f"^{said}.* 'Scaled'"):
        kernelwatch.measure("builtins:len", [Scaled(3)], processes=2, seconds=BRIEF)


def test_a_module_that_reads_its_input_takes_no_job(tmp_path: Path) -> None:
    (tmp_path / "reads.py").write_text("import sys\nsaid = sys.stdin.read()\ndef f(x): assert not said\n")
    assert kernelwatch.measure(f"{tmp_path}/reads.py:f", np.zeros(3), processes=2, seconds=BRIEF).processes == 2
