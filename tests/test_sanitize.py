"""kernelwatch sanitize with the real compute-sanitizer: the shipped rungs are clean, planted faults are found."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.project import PROJECT
from kernelwatch.__main__ import run
from kernelwatch.commands import sanitize
from kernelwatch.system.errors import CANNOT

ROOT = Path(__file__).resolve().parent.parent
PADDED = "gpukernels/transpose/padded.cu"

needs_sanitizer = pytest.mark.skipif(
    shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not on the PATH"
)


@pytest.mark.gpu
@needs_sanitizer
@pytest.mark.parametrize("tool", sanitize.TOOLS)
def test_every_rung_is_clean(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sanitize.main(PROJECT, "scripts/lab/sanitize", ["--tool", tool]) == 0
    said = capsys.readouterr().out
    assert f"{tool}: clean" in said
    assert all((f"left out: {name}: " in said) == (other == tool) for other, name in PROJECT.unsanitized)


@pytest.mark.gpu
@needs_sanitizer
@pytest.mark.parametrize(
    ("tool", "right", "wrong", "words"),
    [
        ("memcheck", "if (row < M && column < N)\n            out[", "out[", "Invalid __global__ write"),
        ("racecheck", "__syncthreads();", "", "hazard"),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, tool: str, right: str, wrong: str, words: str) -> None:
    """In a project of its own, with the checkout's description and engine."""
    for name in ("gpukernels", "benchmarks", "kernelwatch"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "asv.conf.json", tmp_path)
    (tmp_path / ".git").mkdir()
    source = tmp_path / PADDED
    text = source.read_text()
    assert right in text
    source.write_text(text.replace(right, wrong))
    command = sanitize.command("compute-sanitizer", tool, tmp_path, "transpose/padded")
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode not in (0, 1), done.stdout + done.stderr
    assert words in done.stdout
    assert "transpose_padded" in done.stdout


NO_CALL = "========= Error: Target application terminated before first instrumented API call"
NO_ERROR = "========= ERROR SUMMARY: 0 errors"


@pytest.mark.parametrize(
    ("says", "code", "end"), [(NO_CALL, sanitize.FOUND, ""), (NO_ERROR, 0, "; ERROR SUMMARY: 0 errors")]
)
def test_a_rung_that_a_tool_cannot_judge_is_neither_clean_nor_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], says: str, code: int, end: str
) -> None:
    """With a sanitizer that only runs the program, which launches nothing. That is an error for the real one, unless
    the program calls CUDA for something else."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(
        f'#!/bin/sh\nwhile [ "$1" != {sys.executable} ]; do shift; done\n'
        f'"$@" || code=$?\necho "{says}"\nexit ${{code:-{code}}}\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    name = "matmul/fp16x3"
    assert sanitize.main(PROJECT, "scripts/lab/sanitize", ["--tool", "racecheck", "--only", name]) == 0
    reason = PROJECT.unsanitized["racecheck", name]
    assert capsys.readouterr().out == f"racecheck: not judged: left out: {name}: {reason}; 0 launches{end}\n"
    assert sanitize.main(PROJECT, "scripts/lab/sanitize", ["--tool", "racecheck", "--only", "no/such"]) == 1


def test_without_the_tool_it_says_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    if shutil.which("compute-sanitizer"):
        pytest.skip("compute-sanitizer lies beside the interpreter")
    assert run("sanitize", [], "scripts/lab/sanitize") == CANNOT
    said = capsys.readouterr().err
    assert said.startswith("scripts/lab/sanitize: ")
    assert "comes with the CUDA toolkit" in said
