"""Measuring rungs that take their operands from the host's memory; NumPy stands in for CuPy, and for the GPU."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.project import PROJECT
from kernelwatch.extras.streamed.timer import Timer
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.devices import Budget
from kernelwatch.timing import l2
from kernelwatch.timing.check import WrongOutput
from kernelwatch.timing.spent import Spent

STREAMED = "streamed"
CELL = Cell("matmul", "between_grids", "float32", (48, 32, 40), STREAMED, STREAMED)
STATE = {"event_reasons": 0}


class Numpy:
    """CuPy's names that are used, on the host."""

    cuda = SimpleNamespace(memory=SimpleNamespace(OutOfMemoryError=MemoryError))

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def get_default_memory_pool(self) -> Any:
        return SimpleNamespace(free_all_blocks=lambda: None)


@dataclass
class Package:
    """A package whose only kernel calls `product(a, b, out)`; its launch returns what that does."""

    product: Callable[[Any, Any, Any], object]

    def load(self, *_: str) -> Any:
        def bind(a: Any, b: Any, out: Any) -> Any:
            class Launch:
                identity = "a product"

                def __call__(self) -> object:
                    return package.product(a, b, out)

            return Launch()

        package = self
        return SimpleNamespace(bind=bind)


def device(product: Callable[[Any, Any, Any], object]) -> Timer:
    streamed: Any = Timer.__new__(Timer)
    streamed.project, streamed.package, streamed.cupy = PROJECT, Package(product), Numpy()
    streamed.spent = Spent()
    streamed.budget, streamed.random = Budget(3, 0.0), np.random.default_rng(5)
    streamed.nvml = SimpleNamespace(state=lambda: STATE, uncorrected_errors=lambda: None)
    streamed.canary_seconds = lambda: {"memory": 1.0}
    return streamed  # type: ignore[no-any-return]


def test_a_right_product_is_timed_after_its_first_call() -> None:
    calls: list[int] = []

    def product(a: Any, b: Any, out: Any) -> float:
        calls.append(1)
        np.matmul(a, b, out=out)
        return 0.1 * len(calls)

    measurement: Any = device(product).measure(CELL)
    assert len(calls) == 4
    assert measurement["launches"] == 3
    assert measurement["seconds"] > 0
    assert measurement["hidden_share"] == pytest.approx(0.3)
    assert measurement["identity"] == "a product"


def test_lines_that_persist_in_the_l2_are_reset_before_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def product(a: Any, b: Any, out: Any) -> None:
        done.append("call")
        np.matmul(a, b, out=out)

    monkeypatch.setattr(l2, "reset_persisting", lambda: done.append("reset"))
    device(product).measure(CELL)
    assert done == ["call", *["reset", "call"] * 3]


def test_what_a_launch_does_not_say_is_not_recorded() -> None:
    measurement = device(lambda a, b, out: np.matmul(a, b, out=out)).measure(CELL)
    assert "hidden_share" not in measurement


@pytest.mark.parametrize(
    ("product", "words"),
    [
        (lambda a, b, out: None, "1536 of 1536 elements wrong, the first at [0, 0]; 1536 never written"),
        (lambda a, b, out: np.matmul(a[:, :-1], b[:-1], out=out), "elements wrong, the first at "),
    ],
)
def test_a_wrong_product_yields_no_figure(product: Callable[[Any, Any, Any], object], words: str) -> None:
    with pytest.raises(WrongOutput) as error:
        device(product).measure(CELL)
    assert words in str(error.value)
