"""The code of launched kernels: which of the loaded modules a kernel is from, and what it makes of the identity."""

from typing import Any

import pytest

from kernelwatch.analysis import launched
from kernelwatch.timing.record import Code, Measurement

CODES: list[Code] = [
    {"kernel": "axpy", "registers": 24, "static_shared_bytes": 0, "code": "aa", "instructions": 40},
    {"kernel": "axpy", "registers": 32, "static_shared_bytes": 0, "code": "bb", "instructions": 80},
    {"kernel": "sum", "registers": 24, "static_shared_bytes": 0, "code": "cc", "instructions": 90},
]


def measured(registers: int, **others: Any) -> Measurement:
    """A measurement of a cell that copies, then runs axpy with so many registers."""
    ran = {"kernel": "axpy", "registers": registers, "static_shared_bytes": 0, "grid": [8, 1, 1], "block": [64, 1, 1]}
    return {"sources": "0123", "identity": "0123", "kernels": [{"kind": "copy"}, ran], **others}  # type: ignore[typeddict-item]


def noted(registers: int, codes: list[Code], **others: Any) -> Measurement:
    found = measured(registers, **others)
    launched.note(found, codes)
    return found


@pytest.mark.parametrize(("registers", "code", "instructions"), [(24, "aa", 40), (32, "bb", 80)])
def test_an_autotuned_kernel_has_the_code_of_its_own_configuration(
    registers: int, code: str, instructions: int
) -> None:
    copy, ran = noted(registers, CODES)["kernels"]
    assert copy == {"kind": "copy"}
    assert (ran["code"], ran["instructions"], ran["grid"]) == (code, instructions, [8, 1, 1])


def test_the_identity_covers_what_was_launched() -> None:
    changed: list[Code] = [{**code, "code": "dd"} for code in CODES]
    found = [
        noted(24, CODES),
        noted(32, CODES),
        noted(24, changed),
        noted(24, CODES, sources="4567"),
        noted(24, CODES, configurations=["axpy: BLOCK: 64"]),
        noted(40, CODES),  # no module has it: known by what the driver says of it
    ]
    assert len({one["identity"] for one in found}) == len(found)
    assert noted(24, CODES)["identity"] == found[0]["identity"]
    assert "code" not in found[-1]["kernels"][1]
