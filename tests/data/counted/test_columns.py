"""The gate: the kernel is there."""

from pathlib import Path


def test_the_kernel_has_its_name() -> None:
    assert "scale_naive(" in Path(__file__).with_name("columns").joinpath("scale.cu").read_text()
