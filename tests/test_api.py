"""kernelwatch.measure and kernelwatch.compare on the CPU, and what they say of their results."""

import math
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.lib.array_utils import byte_bounds

import kernelwatch
from kernelwatch.api import arguments, cpu, turns
from kernelwatch.api.arguments import LARGE, Original, Rotation, device_of
from kernelwatch.api.rounds import Round
from kernelwatch.api.statistics import Verdict, level
from kernelwatch.comparison.paired import LOOKS
from kernelwatch.system import clock
from tests.test_api_results import result

CACHE = 1 << 20
VIEWED = np.zeros(1 << 14)
BRIEF = 0.01  # seconds to measure: nothing here depends on how exact a figure is


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache so small that copies larger than it are quickly made."""
    monkeypatch.setattr(cpu, "cache_bytes", lambda: CACHE)


def doubled(x: Any, out: Any) -> None:
    np.multiply(x, 2, out=out)


def arrays(count: int = 1 << 14) -> tuple[Any, Any]:
    return np.arange(count, dtype=np.float32), np.zeros(count, np.float32)


now = [0.0]  # of a clock that only these two move


def slow(x: Any) -> None:
    now[0] += 1e-2


def quick(x: Any) -> None:
    now[0] += 1e-4


# --- measure -------------------------------------------------------------------------------------------------------


def test_the_engine_is_imported_without_numpy() -> None:
    code = "import sys, kernelwatch; print(sorted({'numpy', 'cupy', 'scipy', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert {"measure", "compare", "MeasureError"} <= set(dir(kernelwatch))
    with pytest.raises(AttributeError, match="'kernelwatch' has no attribute 'mesure'"):
        _ = kernelwatch.mesure


def test_a_function_on_the_cpu() -> None:
    x, out = arrays()
    found = kernelwatch.measure(doubled, x, out, flops=x.size, seconds=BRIEF)
    assert found.name == "doubled"
    assert 0 < found.interval[0] <= found.seconds <= found.interval[1] < math.inf
    assert found.seconds == pytest.approx(level(found.samples)[0])
    assert found.bytes == x.nbytes + out.nbytes
    assert found.bytes_per_s == (x.nbytes + out.nbytes) / found.seconds
    assert found.flops_per_s == x.size / found.seconds
    assert (found.cache, found.method, found.clock_mhz, found.warnings) == ("cold", "host", None, ())
    assert found.conditions["copies"] == 2 * CACHE // (x.nbytes + out.nbytes)
    assert found.conditions["calls"] >= len(found.samples) >= 3
    assert found.conditions["harness"]


def test_a_result_that_a_call_makes_is_moved_too() -> None:
    x, out = arrays()
    assert kernelwatch.measure(np.negative, x, seconds=BRIEF).bytes == 2 * x.nbytes
    assert kernelwatch.measure(np.negative, x, out, seconds=BRIEF).bytes == 2 * x.nbytes  # it returns out
    assert kernelwatch.measure(np.negative, x, x, seconds=BRIEF).bytes == x.nbytes
    assert kernelwatch.measure(np.negative, x, bytes=7, seconds=BRIEF).bytes == 7
    assert kernelwatch.measure(lambda: np.negative(x), seconds=BRIEF).bytes is None  # what it reads is not known


@pytest.mark.parametrize("cache", ["cold", "hot"])
def test_calls_rotate_over_copies(cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, out = arrays()
    places: list[tuple[int, int]] = []

    def look(x: Any, out: Any, factor: int) -> None:
        assert factor == 3
        assert not np.shares_memory(x, mine)
        assert (x == mine).all()
        places.append((x.ctypes.data, out.ctypes.data))
        out += 1
        now[0] += 6e-4

    monkeypatch.setattr(clock, "perf_counter", lambda: now[0])
    mine = x
    found = kernelwatch.measure(look, x, out, 3, cache=cache, seconds=BRIEF)
    sets = found.conditions["copies"]
    assert sets == (2 * CACHE // (x.nbytes + out.nbytes) if cache == "cold" else 1)
    timed = places[2:]  # after the first calls
    assert len(timed) == found.conditions["calls"]
    assert len(set(timed[:sets])) == len(set(timed)) == sets
    assert all(timed[at] == timed[at % sets] for at in range(len(timed)))
    assert (out == 0).all()


def test_copies_as_large_as_the_cache_of_a_cpu_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other case is tested on a fake GPU."""
    made: list[Rotation] = []
    fresh = Rotation.fresh

    def counted(self: Rotation) -> list[tuple[Any, ...]]:
        made.append(self)
        return fresh(self)

    monkeypatch.setattr(Rotation, "fresh", counted)
    found = kernelwatch.measure(doubled, *arrays(), seconds=BRIEF)
    assert len(found.samples) >= 3
    assert len(made) == 1


def test_an_array_that_is_passed_twice_is_one_copy() -> None:
    x, _ = arrays()
    seen = []
    kernelwatch.measure(lambda a, b: seen.append(a is b), x, x, seconds=BRIEF)
    assert seen
    assert all(seen)


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ((), {}, "no array is among the arguments"),
        (([np.zeros(4)],), {}, "no array is among the arguments (those within a list or another object do not count)"),
        ((VIEWED, VIEWED[1:]), {}, "arrays among the arguments share memory, and their copies do not"),
        ((np.zeros((0, 3)),), {}, "the arrays have no elements: what is timed is the call"),
        ((np.zeros(4),), {}, "the arrays are so small that 512 copies of them (0.0156 MiB) fit in the cache (1 MiB)"),
        ((np.zeros(1 << 16),), {"free": 3 << 18}, "the free memory (0.75 MiB) has room for 1 of 4 copies"),
        (
            (np.zeros(1 << 16),),
            {"free": 1 << 18},
            "room for 0 of 4 copies of the arrays: the arrays themselves are used",
        ),
    ],
)
def test_what_makes_a_figure_doubtful_is_said(
    given: tuple[Any, ...], options: dict[str, int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if options:
        monkeypatch.setattr(cpu, "free_bytes", lambda: options["free"])
    found = kernelwatch.measure(lambda *arrays: None, *given, seconds=BRIEF)
    assert len(found.warnings) == 1
    assert said in found.warnings[0]
    assert f"warning: {found.warnings[0]}" in repr(found)


def test_large_capacities_are_written_out() -> None:
    assert [arguments.mib(size << 20) for size in (3, 1000, 1 << 20)] == ["3 MiB", "1000 MiB", "1048576 MiB"]


def test_what_cannot_be_measured() -> None:
    x = np.zeros(CACHE, np.uint8)

    def fails(x: Any) -> None:
        raise ValueError("no such shape")

    def fails_later(x: Any) -> None:
        calls.append(1)
        if len(calls) > 2:
            raise OSError("gone")

    calls: list[int] = []
    unmeasured: tuple[tuple[Any, dict[str, Any], str], ...] = (
        (fails, {}, "fails raises ValueError: no such shape"),
        (fails_later, {}, "fails_later raises OSError when it is repeated: gone"),
        (doubled, {"cache": "hot"}, r"cache='hot': the arrays \(1 MiB\) do not fit in half of the cache \(1 MiB\)"),
        ("no_such_module:name", {}, "'no_such_module:name' names no function as 'module:function' does: No module"),
        ("numpy:no_such", {}, "'numpy:no_such' names no function"),
        ("numpy", {}, "'numpy' names no function"),
        ("numpy:pi", {}, "'numpy:pi' names no function, but an object of type float"),
    )
    for function, options, said in unmeasured:
        with pytest.raises(kernelwatch.MeasureError, match=said):
            kernelwatch.measure(function, x, seconds=BRIEF, **options)
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"cache": "warm"}, "cache must be one of cold, hot; got 'warm'"),
        ({"seconds": 0}, "seconds must be a number above 0; got 0"),
        ({"seconds": math.nan}, "seconds must be a number above 0; got nan"),
        ({"seconds": math.inf}, "seconds must be a number above 0; got inf"),
        ({"seconds": "1"}, "seconds must be a number above 0; got '1'"),
        ({"processes": 0}, "processes must be a whole number, at least 1; got 0"),
        ({"processes": 1.5}, "processes must be a whole number, at least 1; got 1.5"),
        ({"bytes": -1}, "bytes must be a number, at least 0, or None; got -1"),
        ({"flops": "1e9"}, "flops must be a number, at least 0, or None; got '1e9'"),
        ({"device": "cuda"}, "device must be gpu, cpu or None; got 'cuda'"),
    )
    for options, said in wrong:
        with pytest.raises(ValueError, match=said):
            kernelwatch.measure(doubled, x, **options)
    for within in (0, -0.01, "1 %"):
        with pytest.raises(ValueError, match=f"within must be a number above 0, such as 0.01 .* got {within!r}"):
            kernelwatch.compare(doubled, doubled, x, within=within)  # type: ignore[arg-type]
    swapped: Any = x
    with pytest.raises(TypeError, match=r"measure takes a function \(.*\) before the arguments; got ndarray"):
        kernelwatch.measure(swapped, doubled)
    with pytest.raises(TypeError, match=r"compare takes two functions \(.*\) before the arguments; got ndarray"):
        kernelwatch.compare(doubled, swapped)


def test_arguments_go_by_name() -> None:
    """An array among them is copied and rotates; two functions that are compared share them."""
    x, out = arrays()
    places: set[int] = set()

    def scaled(x: Any, /, *, factor: float, out: Any) -> None:
        places.add(out.ctypes.data)
        np.multiply(x, np.float32(factor), out=out)

    found = kernelwatch.measure(scaled, x, factor=3, out=out, seconds=BRIEF)
    assert found.bytes == x.nbytes + out.nbytes
    assert len(places) == found.conditions["copies"] > 1
    assert (out == 0).all()
    assert found.name == "scaled"
    assert kernelwatch.compare(scaled, scaled, x, factor=3, out=out, seconds=BRIEF).b.bytes == found.bytes
    with pytest.raises(kernelwatch.MeasureError, match=r"scaled raises TypeError: .*'second'"):
        kernelwatch.measure(scaled, x, factor=3, out=out, second=1)
    assert kernelwatch.measure("numpy:sqrt", x, out=out, processes=2, seconds=BRIEF).bytes == found.bytes


def yields(x: Any) -> Any:
    yield np.sort(x)


class Nowhere(np.ndarray[Any, Any]):
    def __dlpack_device__(self) -> Any:
        raise BufferError("no device")


class Unshared:
    """An array of another library whose memory it does not hand out."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("it is not shared")

    def __dlpack_device__(self) -> Any:
        return (1, 0)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        (np.array([None]), "numpy.ndarray cannot be copied: its elements are Python's objects"),
        (np.ma.masked_array(np.zeros(3), [False, True, False]), "numpy.*MaskedArray cannot be copied: it has a mask"),
        (np.zeros(3).view(Nowhere), "Nowhere cannot be copied: no device"),
        (Unshared(), "Unshared cannot be copied: it is not shared"),
        (yields(3), "builtins.generator cannot be copied: one call uses it up"),
        (map(str, [1]), "builtins.map cannot be copied: one call uses it up"),
    ],
)
def test_what_cannot_be_copied_cannot_be_measured(argument: object, said: str) -> None:
    with pytest.raises(kernelwatch.MeasureError, match=f"^an argument of type .*{said}$"):
        kernelwatch.measure(lambda x: None, argument, seconds=BRIEF)
    with pytest.raises(kernelwatch.MeasureError, match=f"^an argument of type .*{said}$"):
        kernelwatch.measure(lambda x: None, x=argument, seconds=BRIEF)


def test_a_tensor_that_has_no_strides_cannot_be_copied() -> None:
    torch = pytest.importorskip("torch", reason="makes tensors on the CPU")
    for tensor, said in (
        (torch.eye(3).to_sparse(), "its layout is torch.sparse_coo"),
        (torch.ones(3, device="meta"), ""),
    ):
        with pytest.raises(
            kernelwatch.MeasureError, match=f"^an argument of type torch.Tensor cannot be copied: {said}"
        ):
            kernelwatch.measure(lambda x: None, tensor, seconds=BRIEF)


def test_a_gpu_that_is_not_there(no_gpu: str) -> None:
    with pytest.raises(
        kernelwatch.MeasureError,
        match=r"^no GPU can be used here: (CuPy cannot be imported|no NVIDIA driver|\w+Error: )",
    ):
        kernelwatch.measure(doubled, device="gpu", seconds=BRIEF)


# --- the copies ----------------------------------------------------------------------------------------------------

WHOLE = np.arange(24, dtype=np.int16).reshape(4, 6)


@pytest.mark.parametrize(
    "array",
    [WHOLE, WHOLE.T, WHOLE[::2, 1:5], WHOLE[::-1, ::-2], WHOLE[0, 0], np.broadcast_to(WHOLE[0], (1, 6)), WHOLE[:0]],
    ids=["whole", "transposed", "pitched", "reversed", "scalar", "broadcast", "empty"],
)
def test_a_copy_has_the_strides_of_its_original(array: Any) -> None:
    array = np.asarray(array)
    original = Original(array, np)
    memory = np.full(original.span + 64, 0xA5, np.uint8)
    (copy,) = original.views(memory, [0])
    original.fill(copy)
    assert copy.dtype == array.dtype
    assert copy.shape == array.shape
    assert copy.strides == array.strides
    assert (copy == array).all()
    assert (memory[original.span :] == 0xA5).all()
    if array.size:
        low, high = byte_bounds(copy)
        assert (low, high) == (memory.ctypes.data, memory.ctypes.data + original.span)
    assert not np.shares_memory(copy, array) or not array.size


class Foreign:
    """An array of another library, known by DLPack alone."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_which_arguments_are_arrays() -> None:
    cuda = type("Cuda", (), {"__cuda_array_interface__": {}})()
    given = [np.zeros(3), Foreign(np.zeros(3)), cuda, 3, "x", None, np.ndarray, np.array([None]), np.float32]
    assert [device_of(one) for one in given] == ["cpu", "cpu", "gpu", "", "", "", "", "", ""]
    seen: list[Any] = []
    kernelwatch.measure(seen.append, Foreign(np.arange(5)), seconds=BRIEF)
    assert all(isinstance(one, np.ndarray) and one.tolist() == [0, 1, 2, 3, 4] for one in seen)


def test_copies_begin_where_allocators_put_them() -> None:
    memory = np.zeros(1 << 25, np.uint8)
    small, large = np.arange(300, dtype=np.uint8), np.arange(LARGE, dtype=np.uint8)
    rotation = Rotation(
        [small, large, 7], "cpu", np, lambda size: memory[:size], cache="cold", cache_bytes=1 << 20,
        cold_bytes=1 << 22, hot_bytes=1 << 8, free_bytes=1 << 30, page=1 << 21,
    )  # fmt: skip
    sets = rotation.fresh()
    assert len(sets) == 4
    for at, (one, other, seven) in enumerate(sets):
        assert (one == small).all()
        assert (other == large).all()
        assert seven == 7
        begin = at * (6 << 20)  # 4 MiB are an even number of pages, at which many sets have one kind of place
        assert one.ctypes.data - memory.ctypes.data == begin
        assert other.ctypes.data - memory.ctypes.data == begin + (2 << 20)


# --- rounds under a limit of the clocks ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limited", "seconds", "said"),
    [
        (0, 1.0, ""),
        (2, 1.0, "the clocks were lowered in 2 of 5 rounds (power cap), which are left out"),
        (3, 2.0**0.6, "the clocks were lowered in 3 of 5 rounds (power cap)"),
    ],
)
def test_rounds_under_a_limit_count_if_they_are_most(limited: int, seconds: float, said: str) -> None:
    rounds = [Round(2.0, 1, 1000.0, ("power cap",)) for _ in range(limited)]
    rounds += [Round(1.0, 1, 1980.0) for _ in range(5 - limited)]
    timer: Any = SimpleNamespace(name="a GPU")
    subject: Any = SimpleNamespace(method="graph", peak_allocated_bytes=None)
    found = turns.result_of(timer, "f", subject, rounds, bytes=1, flops=None, cache="cold", warnings=[], conditions={})
    assert found.seconds == pytest.approx(seconds)
    assert found.clock_mhz == (1000.0 if limited == 3 else 1980.0)
    assert found.warnings == ((said,) if said else ())
    assert len(found.samples) == 5


# --- compare -------------------------------------------------------------------------------------------------------


def test_a_hundredfold_work_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "perf_counter", lambda: now[0])
    x = np.random.default_rng(1).random(1 << 10)
    found = kernelwatch.compare(quick, slow, x, seconds=10)
    assert found.verdict == "slower"
    assert found.ratio == pytest.approx(100)
    assert found.interval[0] <= found.ratio <= found.interval[1]
    assert (found.a.name, found.b.name) == ("quick", "slow")
    assert len(found.samples) == len(found.a.samples) == len(found.b.samples) == LOOKS[0]
    turned = kernelwatch.compare(slow, quick, x, seconds=10)
    assert turned.verdict == "faster"
    assert turned.ratio == pytest.approx(0.01)


def test_both_get_the_same_copies_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []

    def call(name: str, x: Any) -> None:
        seen.append((name, x.ctypes.data))
        now[0] += 1e-3

    monkeypatch.setattr(clock, "perf_counter", lambda: now[0])
    x = np.zeros(1 << 18)  # one copy of twice the cache
    functions = [partial(call, name) for name in "ab"]
    found = kernelwatch.compare(*functions, x, seconds=BRIEF)
    assert len({place for _, place in seen}) == 1
    turns = len(found.samples)
    calls = {name: one.conditions["calls"] // turns for name, one in (("a", found.a), ("b", found.b))}
    expected = "".join(name * calls[name] for turn in range(turns) for name in ("ba" if turn % 2 else "ab"))
    assert "".join(name for name, _ in seen) == "aabb" + expected


@pytest.mark.parametrize(
    ("ratios", "word"),
    [
        ([1.1, 1.101, 1.099, 1.1], "slower"),
        ([0.9, 0.901, 0.899, 0.9], "faster"),
        ([1.0, 1.001, 0.999, 1.0], "same within 1 %"),
        ([1.0, 1.2, 0.8, 1.1], "cannot tell"),
        ([1.1, 1.1, 1.1], "cannot tell"),
    ],
)
def test_the_verdict_on_ratios(ratios: list[float], word: str) -> None:
    found = Verdict("gpu", None).compared([result(), result()], np.log(ratios).tolist())
    assert found.verdict == word
    assert bool(found.why) is (word == "cannot tell")
    assert found.samples == pytest.approx(ratios)
    assert found.interval[0] <= found.ratio <= found.interval[1]


def test_a_comparison_ends_when_it_is_decided_or_late() -> None:
    same, apart = [1.0, 1.001, 0.999, 1.0], [1.0, 1.2, 0.8, 1.1]
    ones = [1.0] * 4
    assert not Verdict("gpu", None).reached([ones[:3], same[:3]], False)
    assert not Verdict("gpu", None).reached([ones[:3], same[:3]], True)  # at least the first look
    assert Verdict("gpu", None).reached([ones, same], False)
    assert not Verdict("gpu", None).reached([ones, apart], False)
    assert Verdict("gpu", None).reached([ones, apart], True)
    assert not Verdict("gpu", None).reached([[*ones, 1.0], [*same, 1.0]], False)  # no look after five
    assert Verdict("gpu", None).reached([ones * 9, apart * 9], False)  # the last look
    assert Verdict("gpu", 0.5).judge(np.log(apart).tolist()).word == "cannot tell"
    assert Verdict("gpu", 0.5).judge(np.log([1.0, 1.02, 1.01, 1.01]).tolist()).word == "no change"


# --- processes -----------------------------------------------------------------------------------------------------

MODULE = """
import os
import numpy as np
from kernelwatch.system import clock

def doubled(x, out):
    np.multiply(x, 2, out=out)

def rests(x, out):
    clock.sleep(2e-4)

def rests_longer(x, out):
    clock.sleep(2e-2)

def fails(x, out):
    raise KeyError("nothing")

def dies(x, out):
    os._exit(7)
"""


@pytest.fixture
def module(tmp_path: Path, exact_api: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What fresh processes measure by an exact clock."""
    monkeypatch.syspath_prepend(str(exact_api))
    (tmp_path / "own_functions.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_functions"


def test_several_processes(module: str) -> None:
    x, out = arrays()
    found = kernelwatch.measure(f"{module}:doubled", x, out, processes=2, seconds=BRIEF)
    assert (found.name, found.processes, len(found.samples)) == ("doubled", 2, 2)
    assert found.seconds == pytest.approx(level(found.samples)[0])
    assert found.bytes == x.nbytes + out.nbytes
    assert "2 processes" in repr(found)


def test_a_verdict_of_several_processes(module: str) -> None:
    import own_functions  # type: ignore[import-not-found]

    found = kernelwatch.compare(
        own_functions.rests, f"{module}:rests_longer", *arrays(1 << 10), processes=4, seconds=BRIEF
    )
    assert found.verdict == "slower"
    assert len(found.samples) == found.a.processes == 4
    assert "in 4 processes" in repr(found)


def test_what_a_process_cannot_measure(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(kernelwatch.MeasureError, match=r"^fails raises KeyError: 'nothing'"):
        kernelwatch.measure(f"{module}:fails", *arrays(), processes=2)
    with pytest.raises(kernelwatch.MeasureError, match="a fresh process ended with 7: no message"):
        kernelwatch.measure(f"{module}:dies", *arrays(), processes=2)
    with pytest.raises(kernelwatch.MeasureError, match="a fresh process cannot be handed the function"):
        kernelwatch.measure(lambda x: None, *arrays(), processes=2)
    monkeypatch.setattr(doubled, "__module__", "__main__")
    with pytest.raises(kernelwatch.MeasureError, match="doubled is defined in the main program"):
        kernelwatch.measure(doubled, *arrays(), processes=2)
