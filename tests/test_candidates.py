"""What a campaign compares: functions by their names, their outputs, and candidates in fresh processes."""

import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelwatch.api import trials
from kernelwatch.api.campaigns import Campaign
from kernelwatch.api.named import known, resolve
from kernelwatch.api.outputs import Outputs, differ, left, values, why_other
from kernelwatch.api.processes import CORES_LEAST, Ahead, each
from kernelwatch.api.result import MeasureError

# --- functions by their names -----------------------------------------------------------------------------------------


def test_an_edited_file_is_imported_anew_though_size_and_time_are_the_same(tmp_path: Path) -> None:
    """An agent edits a file faster than the time in its compiled form tells."""
    file = tmp_path / "edited_kernel.py"
    for number in (4, 8):
        file.write_text(f"def f(): return {number}\n")
        os.utime(file, (1e9, 1e9))
        name, function = resolve(f"{file}:f")
        assert (name, function(), Path(inspect.getfile(function))) == ("f", number, file)
    sys.path.remove(str(tmp_path))


def test_a_file_that_fails_is_no_module(tmp_path: Path) -> None:
    file = tmp_path / "failing_kernel.py"
    file.write_text("1 / 0\n")
    for _ in range(2):
        with pytest.raises(MeasureError, match=r"failing_kernel.py:f cannot be imported: ZeroDivisionError"):
            known(f"{file}:f")
    sys.path.remove(str(tmp_path))


# --- outputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "rtol", "atol", "said"),
    [
        (np.array([1.0, math.nan, math.inf]), 0, 0, ""),
        (np.array([1.001, math.nan, math.inf]), 0, 0, "1 of 3 elements wrong, the first at [0]: 1.001 is not 1.0"),
        (np.array([1.001, math.nan, math.inf]), 0.002, 0, ""),
        (np.array([1.001, math.nan, math.inf]), 0, 0.002, ""),
        (np.array([1.001, math.nan, math.inf]), 0.0005, 0, "1 of 3 elements wrong"),
        (np.array([1.0, 2.0, math.inf]), 1, 1, "1 of 3 elements wrong, the first at [1]"),
        (np.array([math.nan, math.nan, math.inf]), 1, 1, "1 of 3 elements wrong, the first at [0]"),
        (np.array([1.0, math.nan, 5.0]), 1, 1, "1 of 3 elements wrong, the first at [2]"),
        (np.array([1.0, math.nan, -math.inf]), 1, 1, "1 of 3 elements wrong, the first at [2]"),
        (np.array([1.0, math.nan]), 0, 0, "it is float64 of shape (2,), float64 of shape (3,) is expected"),
        (np.array([1, 2, 3]), 9, 9, "it is int64 of shape (3,), float64"),
    ],
)
def test_outputs_are_compared_within_the_tolerance(own: Any, rtol: float, atol: float, said: str) -> None:
    found = differ(np.array([1.0, math.nan, math.inf]), own, rtol, atol)
    assert found.startswith(said) if said else not found


def test_large_integers_and_texts_are_compared_exactly() -> None:
    assert differ(np.array([2**60]), np.array([2**60 + 1]), 0, 0)
    assert not differ(np.array([2**60]), np.array([2**60 + 1]), 1e-9, 0)
    assert differ(np.array(["a"]), np.array(["b"]), 1, 1)
    assert differ(np.array(1 + 1j), np.array(1 - 1j), 0, 0.1)
    assert not differ(np.array(1 + 1j), np.array(1 + 1.01j), 0, 0.1)
    for type in ("int64", "uint64"):  # as float64 they would all be equal
        assert differ(np.array([2**60], type), np.array([2**60 + 3], type), 0, 1)
        assert not differ(np.array([2**60], type), np.array([2**60 + 3], type), 0, 3)
    assert differ(np.array([-(2**63)]), np.array([2**63 - 1]), 0, 1)
    assert differ(np.array(10**400), np.array(10**400 + 1), 0, 0)
    long = np.ones(1, np.longdouble)
    assert differ(long, long + np.finfo(np.longdouble).eps, 0, 0)


def test_a_program_may_raise_upon_faults_of_floating_point() -> None:
    with np.errstate(all="raise"):
        assert differ(np.array([1e-310, 1.0]), np.array([1.1e-310, 1.0]), 1e-5, 0)
        assert not differ(np.array([1e-310, 1.0]), np.array([1e-310, 1.0 + 1e-6]), 1e-5, 0)


PAIR = np.dtype([("a", "f8"), ("b", "i4")])


@pytest.mark.parametrize(
    ("own", "expected", "said"),
    [
        (
            np.ma.array([1.0, 9, 9], mask=[False, True, True]),
            np.ma.array([1.0, 2, 3], mask=[False, False, False]),
            "its mask: 2 of 3 elements",
        ),
        (np.array([1.0, 2.0]), np.ma.array([1.0, 2.0], mask=[False, True]), "its mask: 1 of 2 elements wrong"),
        (np.ma.array([1.0, 9.0], mask=[False, True]), np.ma.array([1.0, 2.0], mask=[False, True]), ""),
        (
            np.ma.array([3.0, 9.0], mask=[False, True]),
            np.ma.array([1.0, 2.0], mask=[False, True]),
            "1 of 2 elements wrong",
        ),
        (np.array([(math.nan, 1)], PAIR), np.array([(math.nan, 1)], PAIR), ""),
        (np.array([(math.nan, 2)], PAIR), np.array([(math.nan, 1)], PAIR), "field b: 1 of 1 elements wrong"),
        (np.array([(1 + 1e-12, 1)], PAIR), np.array([(1.0, 1)], PAIR), ""),
        (np.array(["NaT"], "M8[s]"), np.array(["NaT"], "M8[s]"), ""),
        (np.array(["NaT"], "M8[s]"), np.array(["2020"], "M8[s]"), "1 of 1 elements wrong"),
    ],
)
def test_masks_fields_and_times_are_compared(own: Any, expected: Any, said: str) -> None:
    found = differ(expected, own, 1e-9, 0)
    assert found.startswith(said) if said else not found


X, Y = np.arange(3.0), np.ones(2)


@pytest.mark.parametrize(
    ("own", "expected", "said"),
    [
        ({"b": Y, "a": X}, {"a": X, "b": Y}, ""),
        ({"c": Y, "a": X}, {"a": X, "b": Y}, "it returns nothing that is compared at ['b'], an array or number is"),
        (((X, Y), X), (X, (Y, X)), "it returns nothing that is compared at [0], an array or number is expected"),
        ([X], X, "it returns nothing that is compared, an array or number is expected"),
        ([X, Y], (X, Y), ""),
        ((X, None), (X, None), ""),
        ((X, print), (X, None), ""),
        (("b", X), ("a", X), "it returns 'b' at [0], 'a' is expected"),
        ((b"a" * 99, X), (None, X), f"it returns b'{'a' * 58}... at [0], nothing that is compared is expected"),
        ((Fraction(1, 3), X), (Fraction(1, 2), X), "it returns Fraction(1, 3) at [0], Fraction(1, 2) is expected"),
        (np.array(["b", None, 1.0], object), np.array(["a", None, 1.0], object), "it returns 'b' at [0], 'a' is"),
        (np.array([None, 2.0], object), np.array([None, 1.0], object), "output 0: 1 of 1 elements wrong"),
    ],
)
def test_what_is_returned_has_the_same_form(own: Any, expected: Any, said: str) -> None:
    found = why_other(left(expected, ()), left(own, ()), 0, 0)
    assert found.startswith(said) if said else not found


def test_all_that_is_returned_counts() -> None:
    own = values((np.arange(2), [3.0, {"a": np.arange(3), "b": None}], "text", True))
    assert [each.tolist() for each in own] == [[0, 1], 3.0, [0, 1, 2], True]
    one, two = Outputs(values(1.0), [], True), Outputs(values((1.0, 2.0)), [], True)
    assert why_other(one, two, 0, 0) == "it returns 2 arrays and numbers, 1 are expected"
    changed = Outputs([], [np.ones(1)], True)
    assert why_other(changed, Outputs([], [np.zeros(1)], True), 0, 0).startswith("array argument 0: 1 of 1 elements")


# --- in fresh processes -----------------------------------------------------------------------------------------------

OWN = """
import os
import numpy as np
from kernelwatch.system import clock

calls = 0

def inputs():
    return {"x": np.arange(64.0), "out": np.zeros(64)}

def original(x, out):
    clock.sleep(2e-2)
    np.sqrt(x, out=out)

def nothing(x, out):
    pass

def sets(x, out):
    np.sqrt(x, out=out)
    return {"set": {1}, "out": out}

def says(x, out):
    return "text"

def drifts(x, out):
    global calls
    calls += 1
    out[:] = calls
"""
CANDIDATES = """
import os
import numpy as np
from kernelwatch.system import clock

def fast(x, out):
    clock.sleep(1e-3)
    np.sqrt(x, out=out)

def near(x, out):
    fast(x, out)
    out *= 1 + 1e-9

def wrong(x, out):
    np.sqrt(x, out=out)
    out[7] += 1

def returns(x, out):
    np.sqrt(x, out=out)
    return out

def raises(x, out):
    raise KeyError("nothing")

def ends(x, out):
    os._exit(3)
"""


@pytest.fixture
def own(tmp_path: Path, exact_api: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What fresh processes measure by an exact clock."""
    (tmp_path / "own_original.py").write_text(OWN)
    (tmp_path / "candidates.py").write_text(CANDIDATES)
    monkeypatch.chdir(tmp_path)
    paths = list(sys.path)
    sys.path.insert(0, str(exact_api))
    yield tmp_path
    sys.path[:] = paths


def test_candidates_are_refused_by_name_and_a_faster_one_is_crowned(own: Path) -> None:
    given: dict[str, Any] = {"args": "inputs", "rtol": 1e-6, "seconds": 0.01, "processes": 4}
    campaign = Campaign.start("search.jsonl", "own_original.py:original", **given)
    for name, why in (
        ("wrong", "array argument 1: 1 of 64 elements wrong, the first at [7]: 3.6457513110645907 is not 2.6457513"),
        ("returns", "it returns 1 arrays and numbers, 0 are expected"),
        ("raises", "it raises KeyError: 'nothing'"),
        ("ends", "a fresh process ended with 3: no message"),
    ):
        found = campaign.attempt(f"candidates.py:{name}")
        assert (found.verdict, found.why[: len(why)]) == ("refused", why)
    seen = campaign.attempt("candidates.py:near")
    assert [each.number for each in campaign.finalists] == [seen.number]
    (crowned,) = campaign.crown()
    assert crowned == Campaign("search.jsonl").crowned
    assert crowned.candidate.name == "candidates.py:near"
    assert crowned.ratio is not None
    assert crowned.ratio < 0.5
    assert crowned.candidate_s is not None
    assert crowned.original_s is not None
    assert crowned.candidate_s < crowned.original_s


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("nothing", "nothing returns no array or number and changes no array: there is no output to compare"),
        ("drifts", r"drifts differs from itself when it is called again: array argument 1: .* give a tolerance"),
        (
            "sets",
            r"sets returns a builtins.set at \['set'\], which nobody can compare: it should return arrays, numbers",
        ),
        ("absent", "names no function"),
    ],
)
def test_an_original_whose_output_cannot_be_compared_is_refused(own: Path, function: str, said: str) -> None:
    with pytest.raises(MeasureError, match=said):
        Campaign.start("search.jsonl", f"own_original.py:{function}", args="inputs")
    assert not Path("search.jsonl").exists()


def test_text_is_an_output(own: Path) -> None:
    """What only returns text can be compared, and another text is wrong."""
    campaign = Campaign.start("search.jsonl", "own_original.py:says", args="inputs", seconds=0.02)
    (own / "others.py").write_text('def says(x, out):\n    return "texts"\n')
    found = campaign.attempt("others.py:says")
    assert "it returns 'texts', 'text' is expected" in found.told()


# --- fresh processes that start ahead ---------------------------------------------------------------------------------


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ahead]:
    """Of three jobs on a GPU."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    with Ahead(3, on_gpu=True) as own:
        yield own


def job(ahead: Ahead, what: Any = os.getpid, *arguments: object) -> Any:
    return each(what, (), arguments, {}, 1, 1.0, ahead)[0]


def waiting(ahead: Ahead) -> int | None:
    return ahead._waiting[1].process.pid if ahead._waiting else None


def test_a_process_waits_for_each_job_that_follows(ahead: Ahead) -> None:
    first = job(ahead)
    second = waiting(ahead)
    assert second not in (None, first)
    assert job(ahead) == second
    third = waiting(ahead)
    assert job(ahead) == third
    assert waiting(ahead) is None, "no job follows"


def test_no_process_waits_where_its_imports_would_disturb(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, on_gpu in ((8, False), (CORES_LEAST - 1, True), (None, True)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        with Ahead(3, on_gpu) as own:
            job(own)
            assert waiting(own) is None


def test_the_process_that_waits_ends_without_a_word(ahead: Ahead) -> None:
    job(ahead)
    assert ahead._waiting
    worker = ahead._waiting[1]
    worker.process.communicate(timeout=600)  # its stdin is closed, as where this process was killed
    worker.said.seek(0)
    assert (worker.said.read(), worker.process.returncode) == (b"", 0)


def test_a_process_that_died_while_it_waited_takes_no_job(ahead: Ahead) -> None:
    job(ahead)
    assert ahead._waiting
    died = ahead._waiting[1].process
    died.kill()
    died.wait()
    assert job(ahead) != died.pid


def test_a_process_that_waits_elsewhere_takes_no_job(
    ahead: Ahead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would import other files, or compile with other options."""
    changes: dict[str, Callable[[], None]] = {
        "folder": lambda: monkeypatch.chdir(tmp_path),
        "variables": lambda: monkeypatch.setenv("OWN_OPTION", "1"),
        "path": lambda: monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path]),
    }
    for change in changes.values():
        ahead.jobs = 3
        job(ahead)
        before = waiting(ahead)
        assert before
        change()
        assert job(ahead) != before
        assert not Path("/proc", str(before)).exists()


def test_a_process_that_waits_imports_what_the_one_before_it_did(
    ahead: Ahead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cupy.py").write_text("")
    (tmp_path / "own_job.py").write_text(
        "import sys\n\ndef early(*names): return [name in sys.modules for name in names]\n"
        "def late():\n    import cupy\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    own_job = importlib.import_module("own_job")
    assert job(ahead, own_job.early, "cupy", "kernelwatch.api.trials") == [False, False]
    job(ahead, own_job.late)
    assert ahead.modules == ["cupy"]
    ahead.jobs = 3
    job(ahead, own_job.late)
    assert job(ahead, own_job.early, "cupy", "torch", "kernelwatch.api.trials") == [True, False, True]


def test_a_campaign_tells_the_next_process_to_wait_on_a_gpu_only(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, bool]] = []

    def take(self: Ahead) -> Any:
        seen.append((self.jobs, self.on_gpu))
        return taken(self)

    taken = Ahead.take
    monkeypatch.setattr(Ahead, "take", take)
    campaign = Campaign.start("search.jsonl", "own_original.py:original", args="inputs", rtol=1e-6, seconds=0.01)
    told = list(campaign.attempts(["candidates.py:wrong", "candidates.py:raises"]))
    assert [(one.number, one.verdict) for one in told] == [(1, "refused"), (2, "refused")]
    assert seen == [(1, False), (2, False), (1, False)]
    monkeypatch.setattr(trials, "each", lambda *_: [trials.Trial((), "gpu")])
    for judge in (False, True):
        own_ahead = Ahead(2)
        trials.trial("a:b", "c:d", campaign.head.setting._replace(judge=judge), ahead=own_ahead)
        assert own_ahead.on_gpu is not judge
