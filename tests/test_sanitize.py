"""scripts/sanitize with the real compute-sanitizer: the shipped rungs are clean, planted faults are found."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import _environment, _sanitize

ROOT = Path(__file__).resolve().parent.parent
PADDED = "gpukernels/transpose/padded.cu"

needs_sanitizer = pytest.mark.skipif(
    shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not on the PATH"
)


@pytest.mark.gpu
@needs_sanitizer
@pytest.mark.parametrize("tool", _sanitize.TOOLS)
def test_every_rung_is_clean(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _sanitize.main(["--tool", tool]) == 0
    assert f"{tool}: clean" in capsys.readouterr().out


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
    shutil.copytree(ROOT / "gpukernels", tmp_path / "gpukernels")
    source = tmp_path / PADDED
    text = source.read_text()
    assert right in text
    source.write_text(text.replace(right, wrong))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), _environment.with_root()["PYTHONPATH"]])}
    command = _sanitize.command("compute-sanitizer", tool, "transpose/padded")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode not in (0, 1), done.stdout
    assert words in done.stdout
    assert "transpose_padded" in done.stdout


def test_without_the_tool_it_says_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    if shutil.which("compute-sanitizer"):
        pytest.skip("compute-sanitizer lies beside the interpreter")
    assert _sanitize.main([]) == 1
    assert "comes with the CUDA toolkit" in capsys.readouterr().err
