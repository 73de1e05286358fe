"""What counts of a shared library is what a process loads of it."""

import subprocess
from pathlib import Path

import pytest

from kernelwatch.plan import sources
from kernelwatch.plan.library import loaded
from kernelwatch.system.errors import ToolMissing
from kernelwatch.system.tools import cxx_compiler

SOURCE = "extern int known; int known = {value}; int twice(int a) {{ return {times} * a; }}\n"


def built(folder: Path, *, value: int = 1, times: int = 2) -> Path:
    """A library with debug information, whose source lies in this folder."""
    try:
        compiler = cxx_compiler().command
    except ToolMissing as error:
        pytest.skip(str(error))
    folder.mkdir()
    source, library = folder / "twice.cpp", folder / "libtwice.so"
    source.write_text(SOURCE.format(value=value, times=times))
    subprocess.run([*compiler, "-g", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def test_the_same_sources_in_two_folders_are_the_same_library(tmp_path: Path) -> None:
    here, there = built(tmp_path / "here"), built(tmp_path / "in another folder")
    assert here.read_bytes() != there.read_bytes()
    assert sources.digest(here) == sources.digest(there)


def test_other_code_and_other_data_are_another_library(tmp_path: Path) -> None:
    known = {
        sources.digest(built(tmp_path / name, **other))
        for name, other in {"one": {}, "code": {"times": 3}, "data": {"value": 7}}.items()
    }
    assert len(known) == 3


def test_what_is_no_whole_library_counts_as_it_is(tmp_path: Path) -> None:
    content = built(tmp_path / "whole").read_bytes()
    for damaged in (b"", b"text", content[:3], content[:64], content[: len(content) // 2]):
        assert loaded(damaged) == damaged
