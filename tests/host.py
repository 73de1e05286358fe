"""Index arithmetic of a kernel, compiled for this machine."""

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kernelwatch.system.errors import ToolMissing
from kernelwatch.system.tools import cxx_compiler


def library(text: str, folder: Path) -> Any:
    """C++ as a shared library in a folder; skips without a compiler."""
    source, built = folder / "host.cpp", folder / "host.so"
    source.write_text(text, encoding="utf-8")
    try:
        compiler = cxx_compiler().command
    except ToolMissing as error:
        pytest.skip(str(error))
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", built, source], check=True)
    return ctypes.CDLL(str(built))
