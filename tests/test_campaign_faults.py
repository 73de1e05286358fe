"""Faults while a candidate is measured: it hangs, the driver holds it, the GPU is lost, its memory fails."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import kernelwatch
from kernelwatch.api import measuring, processes, trials
from kernelwatch.api.campaigns import Campaign
from kernelwatch.api.result import MeasureError
from tests import faulty_gpu
from tests.fake_gpu import Device
from tests.faulty_gpu import FALLS_OFF, FAULT_AT, CUDARuntimeError, Fault
from tests.repositories import wait_until
from tests.test_api_gpu import array, copying, device  # noqa: F401 (the last is a fixture)

ORIGINAL = """
import numpy as np

def double(x): return 2 * x
def inputs(): return (np.random.default_rng().random(4096),)
"""


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    """One with a try."""
    (tmp_path / "own.py").write_text(ORIGINAL)
    (tmp_path / "fine.py").write_text("def double(x): return x + x\n")
    begun = Campaign.start(tmp_path / "search.jsonl", f"{tmp_path / 'own.py'}:double", args="inputs", seconds=0.05)
    begun.attempt(f"{tmp_path / 'fine.py'}:double")
    return begun


def gone(said: Path) -> bool:
    """Whether the process whose number a file holds has ended."""
    try:
        return " Z " in Path("/proc", said.read_text(), "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_candidate_that_hangs_is_killed_with_what_it_started(
    campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a call of the driver does that never returns."""
    limit_s, said = 5.0, tmp_path / "child"

    class Begun(subprocess.Popen[Any]):
        """Its time is over as soon as the candidate hangs, however long a busy machine takes until it does."""

        def communicate(self, input: Any = None, timeout: float | None = None) -> Any:
            while timeout == limit_s:
                try:
                    return super().communicate(input, 0.05)
                except subprocess.TimeoutExpired:
                    input = None
                    if said.exists() and said.stat().st_size:
                        raise
            return super().communicate(input, timeout)

    monkeypatch.setattr(processes, "HUNG_S", limit_s)
    monkeypatch.setattr(processes, "HUNG_TIMES", 0.0)
    monkeypatch.setattr(subprocess, "Popen", Begun)
    (tmp_path / "hangs.py").write_text(
        "import subprocess, time\n\ndef double(x):\n"
        "    child = subprocess.Popen(['sleep', '1200'])\n"
        f"    open({str(said)!r}, 'w').write(str(child.pid))\n"
        "    time.sleep(600)\n"
    )
    found = campaign.attempt(f"{tmp_path / 'hangs.py'}:double")
    assert found.verdict == "refused"
    assert found.why == "it hung, or a call of the driver did: its process gave no result within 5 s, and was killed"
    assert wait_until(lambda: gone(said))
    kept = Campaign(campaign.file)
    assert [one.number for one in kept.tries] == [1, 2]
    assert kept.tries[0].verdict != "refused"


def test_nothing_that_a_candidate_left_goes_on_in_later_tries(campaign: Campaign, tmp_path: Path) -> None:
    """Nor is it waited for, though it holds what its process would say."""
    (tmp_path / "leaves.py").write_text(
        "import subprocess\n"
        "left = subprocess.Popen(['sleep', '1200'])\n"
        f"open('{tmp_path}/left', 'w').write(str(left.pid))\n"
        "def double(x): return x + x\n"
    )
    found = campaign.attempt(f"{tmp_path / 'leaves.py'}:double")
    assert found.verdict != "refused"
    assert wait_until(lambda: gone(tmp_path / "left"))


def test_what_ends_with_a_candidate_may_end_by_itself(
    campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what tracks the resources of Python's multiprocessing does, which then removes what was left."""
    monkeypatch.setattr(processes, "LEFT_S", 60.0)  # it is not awaited longer than it takes
    (tmp_path / "tracks.py").write_text(
        "import subprocess\n"
        f"told = open('{tmp_path}/told', 'w')\n"
        "tracker = subprocess.Popen(['sh', '-c', 'cat; sleep 0.1; echo done'], stdin=subprocess.PIPE, stdout=told)\n"
        "def double(x): return x + x\n"
    )
    assert campaign.attempt(f"{tmp_path / 'tracks.py'}:double").verdict != "refused"
    assert (tmp_path / "told").read_text() == "done\n"


def test_a_process_that_the_driver_holds_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    held = []

    class Held(subprocess.Popen[Any]):
        def communicate(self, input: Any = None, timeout: float | None = None) -> Any:
            assert timeout is not None, "this would wait for ever"
            held.append(self)
            raise subprocess.TimeoutExpired("worker", timeout)

    monkeypatch.setattr(subprocess, "Popen", Held)
    with pytest.raises(processes.Died, match=r"the driver hangs: process \d+ cannot be killed"):
        kernelwatch.measure("numpy:sqrt", np.ones(16), processes=2)
    assert len(held) == 2
    held[0].wait()
    for stream in filter(None, (held[0].stdin, held[0].stderr)):
        stream.close()


def test_a_call_that_is_interrupted_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    class Interrupted(subprocess.Popen[Any]):
        def communicate(self, input: Any = None, timeout: float | None = None) -> Any:
            begun.append(self)
            if len(begun) == 1:
                raise KeyboardInterrupt
            return super().communicate(input, timeout)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        kernelwatch.measure("numpy:sqrt", np.ones(16), processes=2)
    assert begun[0].returncode == -9


# --- a GPU, by stand-ins -------------------------------------------------------------------------------------------


@pytest.fixture
def one_trial(device: Device, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:  # noqa: F811
    """What a process sees of a candidate beside a copy."""

    def tried(candidate: Any, original: Any = None) -> Any:
        own = ModuleType("functions_with_a_fault")
        made = lambda: (array(), 0 * array())  # noqa: E731
        vars(own).update(copy=original or copying(device), candidate=candidate, arrays=made)
        monkeypatch.setitem(sys.modules, own.__name__, own)
        setting = trials.Setting(f"{own.__name__}:arrays", 0.0, 0.0, "cold", None, 0.1, None)
        return trials.one_trial(f"{own.__name__}:copy", f"{own.__name__}:candidate", setting, False)

    return tried


def fails(*_: object) -> None:
    raise CUDARuntimeError("cudaErrorLaunchFailure: unspecified launch failure")


def fall_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on NVML says that the GPU is lost."""
    (folder / "fault").write_text(FALLS_OFF)
    (folder / "begun").write_text("." * (FAULT_AT + 1))
    monkeypatch.setitem(sys.modules, "pynvml", faulty_gpu.pynvml(Fault(folder)))


def test_a_gpu_that_falls_off_the_bus_is_not_the_candidates_fault(
    one_trial: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert one_trial(fails).refused == "it raises CUDARuntimeError: cudaErrorLaunchFailure: unspecified launch failure"
    fall_off(tmp_path, monkeypatch)
    said = r"the device was lost: CUDARuntimeError: .*launch failure; NVML of GPU 0: GPU is lost"
    with pytest.raises(MeasureError, match=said):
        one_trial(fails)


def test_a_gpu_that_falls_off_under_the_original(
    one_trial: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: Device,  # noqa: F811
) -> None:
    fall_off(tmp_path, monkeypatch)
    with pytest.raises(MeasureError, match=r":copy raises CUDARuntimeError: .*; NVML of GPU 0: GPU is lost"):
        one_trial(copying(device), fails)


def test_uncorrected_errors_of_the_memory_refuse_no_candidate(
    one_trial: Callable[..., Any],
    device: Device,  # noqa: F811
) -> None:
    """Its wrong output may be theirs."""
    errors = iter([4, 7])
    (timer,) = {measuring.timer_of([array()], "gpu")}
    timer.replayer.nvml.uncorrected_errors = lambda: next(errors)  # type: ignore[attr-defined]
    with pytest.raises(MeasureError, match=r"3 uncorrected ECC errors in the GPU's memory while .*:candidate was meas"):
        one_trial(lambda source, out: None)
