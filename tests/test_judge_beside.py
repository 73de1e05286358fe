"""The judge against what a candidate does beside its calls: before the clock starts, to others, and when it ends."""

# ruff: noqa: F811 (fixtures)

import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelwatch.api.judge import memory, player
from kernelwatch.api.judge.judging import Judge
from kernelwatch.api.result import MeasureError, Refused
from kernelwatch.timing import l2
from tests.repositories import wait_until
from tests.test_judge import FILE, judge, own  # noqa: F401 (fixtures)


@pytest.mark.parametrize("name", ["computes_ahead", "loses_its_first_thread"])
def test_nothing_is_computed_before_the_clock_starts(judge: Judge, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its thread and its grandchild see the numbers come, and have time enough."""
    told: list[bool] = []

    def flush() -> None:
        before = judge.memory.copy()
        time.sleep(0.1)
        told.append(bool((judge.memory == before).all()))

    monkeypatch.setattr(judge.device, "flush", flush)
    with pytest.raises(Refused, match=f"{name} left 1 process behind"):
        judge.judge(f"{FILE}:{name}")
    assert all(told)


def test_who_goes_on_by_itself_before_the_clock_starts_is_refused(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge.device, "flush", lambda: time.sleep(0.3))  # in which one of its timers ends
    said = r"wakes_itself(: its processes do not stand still| was at work before its clock started,) while its numbers"
    with pytest.raises(Refused, match=said):
        judge.judge(f"{FILE}:wakes_itself")


def test_the_caches_are_full_of_other_data_when_the_numbers_are_there(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After all writing: else what was written last would be in the cache when the clock starts."""
    passed: list[tuple[str, int]] = []
    scratch = judge.device.scratch  # type: ignore[attr-defined]
    for one, name in ((judge.values, "noise"), (judge.values, "fill"), (judge.device, "flush")):
        real = getattr(one, name)

        def noted(*given: Any, real: Any = real, name: str = name) -> None:
            real(*given)
            passed.append((name, int(scratch[-1])))

        monkeypatch.setattr(one, name, noted)
    before = int(scratch[-1])
    judge._fill()
    assert passed == [("noise", before), ("fill", before), ("flush", before + 1)]
    assert (scratch == before + 1).all()
    assert scratch.nbytes >= 1 << 20  # what the judge here takes the cache for


def test_lines_that_persist_in_the_l2_are_reset_before_it_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="which resets them")
    done: list[str] = []

    class Scratch:
        def __iadd__(self, _: int) -> "Scratch":
            done.append("filled")
            return self

    def reset() -> tuple[Any]:
        done.append("reset")
        return (driver.CUresult.CUDA_ERROR_NOT_SUPPORTED,)

    monkeypatch.setattr(driver, "cuCtxResetPersistingL2Cache", reset)
    device: Any = object.__new__(memory.OnDevice)
    device.scratch = Scratch()
    stream = SimpleNamespace(synchronize=lambda: done.append("waited"))
    device.gpu = SimpleNamespace(replayer=SimpleNamespace(stream=stream))
    device.flush()
    assert done == ["reset", "filled", "waited"]
    assert device.unreset == "CUDA_ERROR_NOT_SUPPORTED"


def test_a_judge_says_that_lines_may_persist_in_the_l2(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="which resets them")
    code = driver.CUresult.CUDA_ERROR_NOT_SUPPORTED
    monkeypatch.setattr(driver, "cuCtxResetPersistingL2Cache", lambda: (code,))
    flush = judge.device.flush

    def flushed() -> None:
        flush()
        judge.device.unreset = l2.reset_persisting()

    monkeypatch.setattr(judge.device, "flush", flushed)
    warnings = judge.judge(f"{FILE}:honest").warnings
    assert any("could not be reset (CUDA_ERROR_NOT_SUPPORTED)" in text for text in warnings)


def test_a_candidate_that_takes_something_from_what_is_started_next_ends_it(judge: Judge) -> None:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (min(before[1], 4096) if before[1] >= 0 else 4096, before[1]))
    try:
        with pytest.raises(MeasureError, match=r"changed while slows_others ran: RLIMIT_CORE from \(4096, .* to \(0, "):
            judge.judge(f"{FILE}:slows_others")
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)


def test_a_parent_that_ends_is_no_change_of_settings(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a shell whose user logs out: the new parent has other limits, and may not tell all of them."""
    limits = lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # noqa: E731
    parents = [subprocess.Popen(["sleep", "1000"], preexec_fn=each) for each in (None, limits)]  # noqa: PLW1509
    told = iter(parents)
    monkeypatch.setattr(os, "getppid", lambda: next(told).pid)
    try:
        assert judge.judge(f"{FILE}:honest").seconds > 0
    finally:
        for parent in parents:
            parent.kill()
            parent.wait()


def test_the_parent_of_a_judge_is_watched_too(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it starts next, such as the process of the next try, takes its limits over."""
    with subprocess.Popen(["sleep", "600"]) as parent:
        monkeypatch.setattr(os, "getppid", lambda: parent.pid)
        before = judge.device.settings()
        resource.prlimit(parent.pid, resource.RLIMIT_NOFILE, (64, 64))
        now = judge.device.settings()
        parent.kill()
    changed = {name for name in now if now[name] != before[name]}
    assert changed == {
        f"RLIMIT_NOFILE of its parent, process {parent.pid}",
        f"RLIMIT_OFILE of its parent, process {parent.pid}",
    }


def test_a_candidate_cannot_write_into_the_control_and_what_that_says_is_possible(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control whose calls took longer than its rounds would make the figure of an original longer than its rounds."""
    other = judge._start(f"{FILE}:says_whether_it_can_be_read", 1, tells=True)
    other.hold()
    with pytest.raises(Refused, match="dumpable: 0"):
        other.play(lambda: None)
    other.kill()
    assert judge.control
    monkeypatch.setattr(judge.control, "play", lambda _: 0.01)
    monkeypatch.setattr(judge.control, "told", b"3.5")
    with pytest.raises(MeasureError, match=r"the control's calls took 3.5 s of a round of 0.01 s, as it says"):
        judge._controls()


def test_a_child_that_ends_with_its_process_is_not_left_behind(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player, "LEFT_S", 60.0)  # it is not awaited longer than it takes
    assert judge.judge(f"{FILE}:lingers").seconds > 0


def test_a_candidate_that_is_gone_between_rounds_is_refused(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = player.Player.hold

    def gone(one: player.Player) -> None:
        if one is not judge.control:
            one.process.kill()
            one.process.wait()
        hold(one)

    monkeypatch.setattr(player.Player, "hold", gone)
    with pytest.raises(Refused, match="honest: its process ended with -9 in place of saying done"):
        judge.judge(f"{FILE}:honest")


def test_no_candidate_is_refused_for_its_original_or_the_control(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """An original that is wrong now and then, or whose process the system ends."""
    assert judge.control
    with monkeypatch.context() as patch:
        patch.setattr(judge, "name", f"{FILE}:skips_half")
        with pytest.raises(MeasureError, match=r"the reference itself is refused, .*: skips_half: set ") as seen:
            judge.judge(f"{FILE}:skips_half")
        assert not isinstance(seen.value, Refused)
        patch.setattr(judge, "control", judge._start(f"{FILE}:dies", 1, tells=True))
        with pytest.raises(MeasureError, match="the control, a process of the reference, failed: dies: its ") as seen:
            judge.judge(f"{FILE}:honest")
        assert not isinstance(seen.value, Refused)
        judge.control.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_stopped_if_the_judge_ends_first(own: str, tmp_path: Path, number: signal.Signals) -> None:
    """A child of the candidate, which stands still while the numbers are made: by Ctrl-C, or as the system ends it."""
    told = tmp_path / "child"
    (tmp_path / "forking.py").write_text(FORKING.format(told=str(told)))
    command = [
        "measure",
        f"{tmp_path}/forking.py:root",
        "--judge",
        f"{own}:root",
        "--args",
        "inputs",
        "--seconds",
        "600",
    ]
    begun = subprocess.Popen([sys.executable, "-m", "kernelwatch", *command], cwd=tmp_path, stderr=subprocess.DEVNULL)

    def state(process: int) -> str:
        with suppress(OSError):
            return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        return "gone"

    try:
        child, judge = map(int, wait_until(lambda: told.is_file() and told.read_text().split()))
        wait_until(lambda: state(child) == "T", pause_s=0.0)
        os.kill(begun.pid if number == signal.SIGINT else judge, number)
        begun.wait()
        assert wait_until(lambda: state(child) in ("gone", "Z"))
    finally:
        begun.kill()
        with suppress(OSError, UnboundLocalError):
            os.kill(child, signal.SIGKILL)


FORKING = """
import os, time
import numpy as np

def root(x, out):
    np.sqrt(x, out=out)

judge, child = os.getppid(), os.fork()
if child == 0:
    os.setsid()
    time.sleep(3600)
with open({told!r} + ".new", "w") as file:
    file.write(f"{{child}} {{judge}}")
os.rename({told!r} + ".new", {told!r})
"""


def test_numbers_that_were_made_beside_a_thread_at_work_are_made_anew(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that is told to stand still may leave its core only a little later: that refuses nobody."""
    turns: list[int] = []
    answers = [False, True, False, False] + [True] * 1000

    def stood(_self: player.Player) -> bool:
        turns.append(judge.turn)
        return answers.pop(0)

    monkeypatch.setattr(player.Player, "stood", stood)
    assert judge.judge(f"{FILE}:honest").seconds > 0
    assert turns == sorted(set(turns))
    answers[:] = [False] * 3
    with pytest.raises(MeasureError, match=r"the control, a process of the reference, failed: .* was at work before"):
        judge.judge(f"{FILE}:honest")


def test_a_thread_that_ends_meanwhile_hides_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    if player._listed(os.getpid()) is None:
        pytest.skip("this kernel does not list the children of a process")
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: ["999999999", *listdir(path)])
    assert player._listed(os.getpid()) is not None


@pytest.mark.parametrize("lists", [True, False])
def test_all_that_a_process_has_started_is_found(monkeypatch: pytest.MonkeyPatch, lists: bool) -> None:
    """By the kernel's lists, which take no longer on a machine of many processes, or by all processes without them."""
    if not lists:
        monkeypatch.setattr(player, "_listed", lambda _of: None)
    elif player._listed(os.getpid()) is None:
        pytest.skip("this kernel does not list the children of a process")
    else:
        monkeypatch.setattr(player, "_parents", dict)
    with subprocess.Popen(
        [sys.executable, "-c", TWO_CHILDREN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout
        parent.stdout.readline()
        try:
            assert parent.pid in player.children(os.getpid())
            found = player.children(parent.pid)
            assert len(found) == 2
            os.kill(ended := found.pop(), signal.SIGKILL)
            while player._parent(ended) is not None:
                time.sleep(0.01)
            assert player.children(parent.pid) == found
        finally:
            for child in player.children(parent.pid):
                os.kill(child, signal.SIGKILL)
            parent.kill()
    assert player.children(parent.pid) == set()


TWO_CHILDREN = """
import subprocess, threading
thread = threading.Thread(target=lambda: subprocess.Popen(["sleep", "60"]))
thread.start()
thread.join()
subprocess.Popen(["sleep", "60"])
print(flush=True)
input()
"""


@pytest.mark.parametrize("counts", ["0 0 0\n", None, "900 50 3\n"])
def test_a_thread_that_ran_has_had_a_turn_more(tmp_path: Path, counts: str | None) -> None:
    """Whether the kernel counts turns, has zeros in their place, or has no such file."""

    def thread(turn: int) -> player.Thread:
        (tmp_path / "stat").write_text("7 (a name) T 1 7 7")
        (tmp_path / "status").write_text(f"voluntary_ctxt_switches:\t4\nnonvoluntary_ctxt_switches:\t{turn}\n")
        if counts:
            (tmp_path / "schedstat").write_text(counts.replace("3", f"{turn}"))
        return player._thread(tmp_path)

    assert thread(1) == thread(1)
    assert thread(1) != thread(2)
