"""The roofs: each loop is full of the instruction that it measures and of nothing that moves data."""

import re

import pytest

from kernelwatch.analysis.sass import disassemble
from kernelwatch.plan.cubin import read_cubin
from kernelwatch.timing import ceilings

CAPABILITIES = (75, 80, 86, 89, 90, 100, 120)
OTHERS_MOST = 6  # beside them and what the uniform unit does: the counter, the branch, the waits of a warp group


def loop(instructions: list[tuple[str, str]], start: int) -> list[str]:
    """The names in the last loop of a kernel: from the target of the last backward branch on; without its padding.
    `start`: the kernel's first instruction in the listing."""
    for at, (name, operands) in reversed(list(enumerate(instructions))):
        target = re.search(r"0x([0-9a-f]+)", operands) if name.startswith("BRA") else None
        if target and (first := int(target[1], 16) // 16 - start) < at:
            return [name for name, _ in instructions[first : at + 1] if name != "NOP"]
    raise AssertionError("no loop")


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_loop_holds_the_instruction_of_its_unit(capability: int) -> None:
    cubin, arch = ceilings.compiled(capability).read_bytes(), f"sm_{capability}"
    units = ceilings.units(capability)
    codes = [read_cubin(cubin, f"ceiling_{unit.name}", arch) for unit in units]
    start = 0
    for unit, code, instructions in zip(units, codes, disassemble([c.code for c in codes], arch), strict=True):
        names = loop(instructions, start)
        start += len(instructions)
        assert names.count(unit.sass) == unit.count, (unit.name, names)
        assert not [name for name in names if re.match(r"LD|ST|ATOM|RED|LDSM", name)], (unit.name, names)
        assert sum(not name.startswith("U") for name in names) <= unit.count + OTHERS_MOST, (unit.name, names)
        assert not code.stack_bytes, unit.name
        assert any(name.startswith("STG") for name, _ in instructions), f"{unit.name}: nothing keeps the result alive"


def test_what_a_round_computes_follows_from_the_shape_of_the_instruction() -> None:
    for capability in CAPABILITIES:
        for unit in ceilings.units(capability):
            shape = re.search(r"\.(\d+)x(\d+)x(\d+)", unit.sass)
            if shape:
                m, n, k = map(int, shape.groups())
                assert unit.operations == 2 * m * n * k, unit


def test_gpus_of_a_datasheet_are_named_with_every_unit() -> None:
    """A roof without its datasheet's figure is shown as n/a: none of those that are known may be."""
    for gpu, figures in ceilings.DATASHEETS.items():
        capability = 80 if "A100" in gpu else 90
        assert set(figures) == {unit.name for unit in ceilings.units(capability)} | {"memory"}, gpu
