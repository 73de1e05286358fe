"""The judge: which numbers it makes, and which parameters it takes."""

from typing import Any

import numpy as np
import pytest

import kernelwatch
from kernelwatch.api.cpu import Cpu
from kernelwatch.api.judge import memory
from kernelwatch.api.judge.values import Values
from kernelwatch.api.result import MeasureError
from tests.cheaters import add
from tests.test_judge import FILE


@pytest.mark.parametrize(
    ("type", "low", "high"),
    [
        (">f8", 0.25, 0.75), (">c16", -1, 1), (">i4", -9, 9), ("bool", 0, 1), ("int8", -128, 127),
        ("int64", -(2**63), 2**63 - 1), ("uint64", 2**64 - 50, 2**64 - 1), ("M8[D]", 0, 400),
    ],
)  # fmt: skip
def test_numbers_lie_where_those_of_the_array_do(type: str, low: int, high: int) -> None:
    given = np.array([low, high] * 50).astype(type)
    values = Values(memory.Host(Cpu()), (given,), {})
    data = np.zeros(4 * values.layout.set_bytes, np.uint8)
    values.fill(data, 0, 4, 1)
    (made,) = values.layout.arguments(data, values.layout.set_bytes)[0]
    assert made.dtype == given.dtype
    assert len(set(made.tolist())) > (1 if high - low == 1 else 15)
    parts = made.view(">f8") if type == ">c16" else made
    assert (given.real.min() <= parts).all()
    assert (parts <= given.real.max()).all()


@pytest.mark.parametrize(
    "given",
    [
        {"rtol": float("inf")}, {"rtol": float("nan")}, {"atol": -1}, {"seconds": 0}, {"processes": 0}, {"within": 0},
        {"device": "tpu"}, {"bytes": -1},
    ],
)  # fmt: skip
def test_a_rule_without_a_meaning_is_refused(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(ValueError, match=f"^{name} must be .*; got {given[name]!r}"):
        kernelwatch.judge("no_file.py:f", "no_file.py:f", args="inputs", **given)


def test_a_judge_takes_functions_by_name() -> None:
    with pytest.raises(MeasureError, match=r"^<function add .*> names no function: it should be MODULE:FUNCTION or"):
        kernelwatch.judge(add, f"{FILE}:add", args="inputs")  # type: ignore[arg-type]
