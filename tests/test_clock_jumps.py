"""The system's time is set back and forth during a run: what waits or times does not notice."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kernelwatch.commands import phases
from kernelwatch.system import cache
from kernelwatch.system.patience import Patience
from tests.groups import ROOT

JUMPS = Path(__file__).with_name("jumping_clock.c")
RUN = """
import json, time
from benchmarks.project import PROJECT
from kernelwatch.run import group
from kernelwatch.run.processes import Run
from kernelwatch.plan.devices import Budget

times = [time.time() for _ in range(4)]
assert max(times) - min(times) > 86400, "the system's time does not jump"
cells = group.plan(PROJECT.op("transpose"), "cpu", only="transpose/(c|numpy) float32 256x256 hot")
run = Run(PROJECT, cells, "cpu", ROOT, Budget(samples=3, sample_s=0.0002), silence_s=10.0)
notes = []
run.note = notes.append
run.measure_all(0)
found = {key: [one.state, one.reason, one.by_process("seconds")] for key, one in run.group.outcomes.items()}
print(json.dumps({"notes": notes, "found": found}))
"""


@pytest.fixture(scope="module")
def jumping(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library that makes the system's time jump."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if sys.platform != "linux" or not compiler:
        pytest.skip("a library is compiled that comes before Linux's own")
    library = tmp_path_factory.mktemp("jumps") / "jumps.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(JUMPS)], check=True)
    return str(library)


def test_a_run_whose_clock_jumps(jumping: str) -> None:
    """No patience ends early, and no figure is negative or a day long: in this process and in its workers."""
    variables = os.environ | {"LD_PRELOAD": jumping, "PYTHONPATH": str(ROOT)}
    code = RUN.replace("ROOT", repr(str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["notes"] == []
    assert len(told["found"]) == 2
    for state, reason, seconds in told["found"].values():
        assert (state, reason) == ("ok", "")
        assert 0 < seconds["0"] < 1


def test_a_measurement_and_a_campaign_whose_clock_jumps(jumping: str, tmp_path: Path) -> None:
    """The commands, each with its processes: no figure is negative or a day long, and nothing waits for a day."""
    (tmp_path / "own.py").write_text(
        "import numpy as np, time\n"
        "times = [time.time() for _ in range(4)]\nassert max(times) - min(times) > 86400\n"
        "def double(x): return 2 * x\ndef inputs(): return np.random.default_rng().random(1 << 16)\n"
    )
    (tmp_path / "added.py").write_text("def double(x): return x + x\n")
    variables = os.environ | {"LD_PRELOAD": jumping, "PYTHONPATH": str(ROOT)}

    def command(*arguments: str) -> dict[str, object]:
        line = [sys.executable, "-m", "kernelwatch", *arguments, "--json"]
        done = subprocess.run(
            line, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode in (0, 1, 2), done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found

    measured: Any = command("measure", "own.py:double", "--args", "inputs", "--seconds", "0.1")["measured"]
    assert 0 < measured["seconds"] < 1
    assert 0 < measured["conditions"]["took_s"] < 60
    command("campaign", "start", "search.jsonl", "own.py:double", "--args", "inputs", "--seconds", "0.1")
    command("campaign", "try", "search.jsonl", "added.py:double")
    entry = json.loads((tmp_path / "search.jsonl").read_text().splitlines()[1])
    assert entry["verdict"] in ("faster", "slower", "same", "cannot tell")
    assert 0 < entry["candidate_s"] < 1


def test_the_caches_of_a_tree_stay_if_the_time_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the tree that is measured would be the oldest, and be removed under its compilers."""
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    monkeypatch.setattr(cache, "KEPT_MOST", 3)
    ahead = time.time() + 86400
    for at in range(4):
        cache.of_tree(f"{at}")
        os.utime(tmp_path / "compiled" / f"{at}", (ahead + at, ahead + at))
    cache.of_tree("now")
    assert sorted(path.name for path in (tmp_path / "compiled").iterdir()) == ["2", "3", "now"]


def test_a_silence_is_not_counted_by_the_system_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 0 <= Patience(os.getpid(), 10.0, 20.0).silent_s < 10


def test_minutes_are_not_counted_by_the_system_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    steps = iter([1e9, 0.0, 2e9, -5.0] * 4)
    monkeypatch.setattr(time, "time", lambda: next(steps))
    taken = phases.Phases(tmp_path / "durations.json", "")
    with taken.phase("gate"):
        pass
    assert 0 <= taken.taken_s["gate"] < 60
