"""The judge: honest functions are measured, all others are refused by name, each in a process of its own."""

import ctypes
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kernelwatch
from kernelwatch.api import campaigns, trials
from kernelwatch.api.arguments import ALIGNMENT, up
from kernelwatch.api.cpu import Cpu
from kernelwatch.api.judge import judging, memory, player, runner
from kernelwatch.api.judge.judging import Judge, Rules
from kernelwatch.api.judge.layout import GUARD_BYTES, layout_of
from kernelwatch.api.judge.player import children
from kernelwatch.api.judge.values import Reference, Values
from kernelwatch.api.judged import Case, compared
from kernelwatch.api.result import Compared, Judgment, Measured, MeasureError, Refused
from kernelwatch.api.trials import Trial
from kernelwatch.timing import launch
from tests import cheaters
from tests.cheaters import add
from tests.schemas import check
from tests.test_api_results import result

FILE = str(Path(cheaters.__file__))
COUNT = 1000  # so that the last bytes of an output are followed by a gap


def arrays() -> tuple[Any, ...]:
    random = np.random.default_rng(1)
    return random.random(COUNT), random.random(COUNT), np.zeros(COUNT)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    """A judge of functions that add two arrays, with few sets and rounds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "SETS_MOST", 40)
        patch.setattr(judging, "ROUNDS_LEAST", 4)
        patch.setattr(judging, "CONTROLS_MOST", 4)
        patch.setattr(judging, "LATE_S", 2 * cheaters.LATE_S)
        patch.setattr(memory, "cache_bytes", lambda: 1 << 20)
        made = Judge(Cpu(), f"{FILE}:add", add, arrays(), {}, Rules(seconds=0.01))
        with made.sitting():
            yield made


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "raises raises KeyError: 'nothing'"),
        ("skips_half", r"skips_half: set \d+ of 40: array argument 2: 1000 of 1000 elements wrong"),
        ("keeps_by_place", r"keeps_by_place: set \d+ of 40: array argument 2: 1000 of 1000 elements wrong"),
        ("keeps_everything", r"keeps_everything: set \d+ of 40: array argument 2: 1000 of 1000 elements wrong"),
        ("overwrites_input", r"overwrites_input: set \d+ of 40: it wrote its input, array argument 0"),
        ("writes_beyond", r"writes_beyond: set \d+ of 40: it wrote outside of its arrays"),
        ("says_done_early", "says_done_early still wrote its output after it had said that it was done"),
        ("dies", "dies: its process ended with -9 in place of saying done"),
        ("exits", "exits: its process ended with 1 in place of saying done: so it ends"),
        ("forks", "forks left 1 process behind"),
        ("leaves", "leaves: its process ended with 1 in place of saying done: TypeError: 'NoneType' object is not cal"),
        ("talks", r"talks: its process says '\]0;done  x{9,400}' in place of done"),
        ("nothing", "names no function"),
    ],
)
def test_who_cheats_is_refused_by_name(judge: Judge, name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "says_done_early":
        monkeypatch.setattr(judging, "LATE_S", 10 * cheaters.LATE_S)  # a busy machine may start its thread late
    before = children(os.getpid())  # of the tests that this process ran before
    with pytest.raises(Refused, match=said):
        judge.judge(f"{FILE}:{name}")
    assert judge.control
    assert children(os.getpid()) <= before | {judge.control.process.pid}


def test_who_never_answers_is_refused(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    play = player.Player.play

    def briefly(one: player.Player, done: Any) -> float:
        with monkeypatch.context() as patch:
            if one is not judge.control:  # which a busy machine may hold up for longer
                patch.setattr(player, "ROUND_S", 0.5)
            return play(one, done)

    monkeypatch.setattr(player.Player, "play", briefly)
    with pytest.raises(Refused, match=r"never_answers did not answer within 0.5 s"):
        judge.judge(f"{FILE}:never_answers")


def test_what_it_says_is_never_unpickled_or_printed_raw() -> None:
    assert player._printable(b"\x1b[31mred\x07\n") == "[31mred"


def test_an_output_that_comes_after_the_look_is_too_late(judge: Judge) -> None:
    """All is right when it is compared, and was not when the clock stopped."""

    def play(done: Any) -> float:
        done()
        for at in range(judge.sets):
            add(*judge.values.layout.arguments(judge.memory, at * judge.values.layout.set_bytes)[0])
        return 0.001

    hurried: Any = SimpleNamespace(name="hurried", play=play, hold=lambda: None, stood=lambda: True)
    with pytest.raises(Refused, match="hurried still wrote its output after it had said that it was done"):
        judge._round(hurried)


# --- who is honest ----------------------------------------------------------------------------------------------------


def test_a_function_is_timed_by_a_clock_that_it_cannot_reach(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "_controls", lambda: [1e-6] * 4)  # a busy machine may make them longer than the rests
    for name in ("rests", "patches_clocks"):
        found = judge.judge(f"{FILE}:{name}")
        assert found.seconds > 0.9 * cheaters.REST_S
        assert min(found.samples) > 0.9 * cheaters.REST_S


def test_an_honest_function_is_measured(judge: Judge) -> None:
    found = judge.judge(f"{FILE}:honest")
    assert (found.name, found.method, found.cache, len(found.samples)) == ("honest", "judge", "cold", 4)
    assert found.bytes == 3 * 8 * COUNT
    assert found.judged
    assert found.judged.reference == "add"
    assert (found.judged.rounds, found.judged.sets, found.judged.checked) == (4, 40, 4 * 32)
    assert (1 - found.judged.unseen) ** (4 * 32) == pytest.approx(0.01)
    assert 0 < found.seconds <= found.judged.at_most_s


def test_a_figure_is_a_round_less_the_control_over_its_sets(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that stands: a round of the candidate takes 10 ms, one of the control 9 ms, of which its calls take
    7 ms."""
    seen: list[tuple[str, float, float]] = []

    def play(one: player.Player, done: Any) -> float:
        began = time.perf_counter()
        one.channel.send(runner.GO)
        for process in one.held:
            os.kill(process, signal.SIGCONT)
        told = one._answer(runner.DONE, 10)
        done()
        seen.append((one.name, float(told or 0), time.perf_counter() - began))
        one.told = b"0.007" if one is judge.control else b""
        return 0.009 if one is judge.control else 0.010

    monkeypatch.setattr(player.Player, "play", play)
    found = judge.judge(f"{FILE}:honest")
    assert found.seconds == pytest.approx((0.010 - 0.002) / 40)
    assert found.judged
    assert found.judged.at_most_s == pytest.approx(0.010 / 40)
    assert found.judged.fixed_s == pytest.approx(0.002 / 40)
    assert found.judged.resolution_s == pytest.approx(0)
    assert found.judged.shortest_s == pytest.approx(0.002 / 40 / 0.05)
    assert "5 % of its time or more may be fixed costs of a round" in found.warnings[0]
    assert {name for name, *_ in seen} == {"add", "honest"}
    for name, told, round_s in seen:  # only the control is asked, and its calls take some time
        assert (0 < told < round_s) if name == "add" else told == 0


def test_the_clock_stops_after_the_judge_has_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that work which goes on after "done" is in the time, or missing in what is seen."""
    now = [0.0]

    def passes(seconds: float) -> bytes:
        now[0] += seconds
        return b""

    clock = SimpleNamespace(perf_counter=lambda: now[0], sleep=passes)
    monkeypatch.setattr(player, "time", clock)
    channel = SimpleNamespace(send=lambda word: passes(0.25))
    own = SimpleNamespace(poll=lambda: None)
    one = SimpleNamespace(channel=channel, spins=False, _answer=lambda *_: passes(1.0), told=b"", process=own, held={})
    assert player.Player.play(one, lambda: passes(5.0)) == pytest.approx(0.25 + 1.0 + 5.0)  # type: ignore[arg-type]


def test_the_smaller_control_counts(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """What slows the control down, such as a candidate that left work behind, flatters no figure."""
    controls = iter([[0.002] * 4, [0.009] * 4, [0.009] * 4, [0.002] * 4])
    monkeypatch.setattr(judge, "_controls", lambda: next(controls))
    monkeypatch.setattr(judge, "_round", lambda player: (0.010, ()))
    for _ in range(2):
        assert judge.judge(f"{FILE}:honest").seconds == pytest.approx((0.010 - 0.002) / 40)


def test_a_call_that_is_too_short_is_an_upper_bound(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "_controls", lambda: [0.002] * 4)
    monkeypatch.setattr(judge, "_round", lambda player: (0.0015, ()))
    found = judge.judge(f"{FILE}:honest")
    assert found.seconds == pytest.approx(0.0015 / 40)
    assert "too short for the judge" in found.warnings[0]


def test_settings_that_change_end_it(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = iter([{"power_limit_w": 700.0}, {"power_limit_w": 500.0}])
    monkeypatch.setattr(judge.device, "settings", lambda: next(settings))
    with pytest.raises(MeasureError, match=r"changed while honest ran: power_limit_w from 700.0 to 500.0"):
        judge.judge(f"{FILE}:honest")


def test_another_user_of_the_device_is_said(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "GONE_S", 0.1)
    users: Iterator[set[int]] = itertools.chain([{1}], itertools.repeat({1, 4711}))
    monkeypatch.setattr(judge.device, "users", lambda: next(users))
    assert "processes began to use the GPU meanwhile: 4711" in judge.judge(f"{FILE}:honest").warnings


# --- what a candidate gets --------------------------------------------------------------------------------------------


def test_its_process_gets_little(judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "of the user")
    (tmp_path / "looks.py").write_text(
        "import json, os\nimport numpy as np\n"
        f"status = open('/proc/self/status').read()\n"
        "told = {'environment': dict(os.environ), 'folder': os.getcwd(),\n"
        "        'no_new_privileges': 'NoNewPrivs:\\t1' in status, 'leads': os.getsid(0) == os.getpid(),\n"
        "        'descriptors': len(os.listdir('/proc/self/fd'))}\n"
        f"open({str(tmp_path / 'told')!r}, 'w').write(json.dumps(told))\n"
        "def f(a, b, out): np.add(a, b, out=out)\n"
    )
    with (tmp_path / "open").open("w"):
        judge.judge(f"{tmp_path}/looks.py:f")
    told = json.loads((tmp_path / "told").read_text())
    assert "A_SECRET" not in told["environment"]
    assert told["environment"]["HOME"] == told["folder"]
    assert not Path(told["folder"]).exists()
    assert told["no_new_privileges"]
    assert told["leads"]
    assert told["descriptors"] == 7  # the standard ones, the channel, the arena slow, the listing itself


def test_what_ends_its_process_is_named(judge: Judge, tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text("def leaves(a, b, out): raise SystemExit(0)\n")
    with pytest.raises(Refused, match=r"^leaves: SystemExit: 0$"):
        judge.judge(f"{tmp_path}/leaving.py:leaves")


def test_inputs_differ_by_set_and_round_and_are_made_again_alike(judge: Judge) -> None:
    known = []
    for _ in range(2):
        judge._fill()
        first, second = (
            judge.values.layout.arguments(judge.memory, at * judge.values.layout.set_bytes)[0] for at in (0, 1)
        )
        known += [first[0].copy(), first[1].copy(), second[0].copy()]
        made = judge.reference.of(1, judge.turn)
        assert (made[0] == second[0]).all()
        assert (made[2] == second[0] + second[1]).all()
    for one, other in itertools.combinations(known, 2):
        assert (one != other).mean() > 0.99
    assert all(0 <= one.min() < 0.1 and 0.9 < one.max() <= 1 for one in known)  # where the examples lie


def test_the_judge_looks_in_outputs_of_the_chosen_sets_alone(judge: Judge) -> None:
    chosen = judge._chosen()
    assert len(set(chosen)) == 32
    begins = judge._places(chosen) * judging.LOOK_BYTES
    sets, within = begins // judge.values.layout.set_bytes, begins % judge.values.layout.set_bytes
    out = judge.values.layout.places[2]
    assert set(sets.tolist()) <= set(chosen)
    assert len(set(sets.tolist())) > 16
    assert ((out.start <= within) & (within < out.start + out.span)).all()
    assert any(judge._chosen() != chosen for _ in range(3))


def test_arrays_keep_their_strides_types_and_names() -> None:
    turned = np.arange(12.0).reshape(3, 4).T[::2]
    small = np.array([True, False, True])
    layout = layout_of((turned, 7, turned), {"mask": small}, "cpu", np, 512)
    data = np.zeros(3 * layout.set_bytes, np.uint8)
    (a, number, same_), named = layout.arguments(data, layout.set_bytes)
    a[...] = turned
    named["mask"][...] = small
    assert (a.strides, a.dtype, a.shape, number) == (turned.strides, turned.dtype, turned.shape, 7)
    assert (same_ == turned).all()
    assert same_.ctypes.data == a.ctypes.data
    assert (named["mask"] == small).all()
    assert not data[: layout.set_bytes].any()
    assert not data[2 * layout.set_bytes :].any()
    assert sum(end - begin for begin, end in layout.gaps) == layout.set_bytes - (16 + 2 * 32 + 8) - small.nbytes


@pytest.mark.parametrize(("arrays", "pages"), [(1, 3), (2, 3), (3, 5)])
def test_large_sets_of_a_judge_lie_an_odd_number_of_pages_apart(arrays: int, pages: int) -> None:
    """A page each, and one for the bytes that are guarded behind the last. A CPU has no pages."""
    page, large = 2 << 20, [np.zeros(2 << 20, np.uint8) for _ in range(arrays)]
    assert layout_of(large, {}, "cpu", np, page).set_bytes == pages * page
    size = layout_of(large, {}, "cpu", np, ALIGNMENT).set_bytes
    assert size == arrays * page + up(GUARD_BYTES, ALIGNMENT)


def test_a_seeded_maker_makes_all_inputs() -> None:
    def made(seed: int) -> Any:
        random = np.random.default_rng(seed)
        return np.sort(random.integers(0, 50, 20)), random.random(20), np.zeros(20)

    def gathered(index: Any, values: Any, out: Any) -> None:
        np.take(values, index % 20, out=out)

    device = memory.Host(Cpu())
    values = Values(device, made(0), {}, made)
    reference = Reference(device, "gathered", gathered, values)
    first, other = ({at: array.copy() for at, array in reference.of(number, 1).items()} for number in (0, 1))
    assert (np.diff(first[0]) >= 0).all()
    assert (first[0] != other[0]).any()
    assert (first[2] == first[1][first[0] % 20]).all()


WORDS = """
struct uint4 { unsigned x, y, z, w; };
struct Extent { unsigned x; } blockIdx, threadIdx, blockDim{1}, gridDim{1};
#define __device__
#define __global__
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
"""


@pytest.mark.skipif(not shutil.which("g++"), reason="it needs g++")
def test_the_numbers_of_a_gpu_are_philox(tmp_path: Path) -> None:
    """Known answers of Random123. The words of one place are the same, wherever a launch begins."""
    source = Path(memory.__file__).with_name("random.cu")
    (tmp_path / "words.cpp").write_text(f'{WORDS}\n#include "{source}"\n')
    subprocess.run(["g++", "-shared", "-fPIC", "-o", "words.so", "words.cpp"], cwd=tmp_path, check=True)
    kernel = ctypes.CDLL(str(tmp_path / "words.so")).words
    kernel.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64]

    def words(count: int, key: int, stream: int, first: int) -> list[int]:
        out = np.zeros(count, np.uint64)
        kernel(out.ctypes.data, count // 2, key, stream, first)
        return [int(half) for half in out.view(np.uint32)]

    most = 2**64 - 1
    assert words(2, 0, 0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert words(2, most, most, most) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    assert words(8, 7, 3, 10)[8:] == words(4, 7, 3, 12)


@pytest.mark.parametrize(
    ("function", "given", "said"),
    [
        (lambda a: a + 1, (np.zeros(4),), "writes none of its array arguments"),
        (lambda a, out: out.fill(1), (np.arange(4.0), np.zeros(4)), "writes the same for other inputs"),
        (
            lambda a, out: np.multiply(a, time.perf_counter(), out=out),
            (np.arange(4.0), np.zeros(4)),
            "give a tolerance",
        ),
        (lambda a, out: 1 / 0, (np.arange(4.0), np.zeros(4)), "raises ZeroDivisionError"),
        (lambda a: None, (3,), "no array is among the arguments"),
        (lambda a: None, (np.array(["a"]),), r"arrays of numbers with at .* got one of shape \(1,\) and type <U1"),
        (lambda a: None, (np.zeros((0, 2)),), r"got one of shape \(0, 2\) and type float64"),
    ],
)
def test_a_reference_that_shows_nothing_is_said(function: Any, given: Any, said: str) -> None:
    device = memory.Host(Cpu())
    with pytest.raises(MeasureError, match=said):
        Reference(device, "reference", function, Values(device, given, {}))


def test_an_array_that_is_updated_is_an_input_too() -> None:
    def step(w: Any, gradient: Any) -> None:
        w -= 0.5 * gradient

    device = memory.Host(Cpu())
    values = Values(device, (np.arange(4.0), np.arange(4.0)), {})
    reference = Reference(device, "step", step, values)
    assert (reference.writes, values.kept) == ([0], set())


# --- for users --------------------------------------------------------------------------------------------------------

OWN = """
import time
import numpy as np

def inputs():
    return np.random.default_rng().random(5000), np.zeros(5000)

def root(x, out):
    time.sleep(0.001)
    np.sqrt(x, out=out)
def slow(x, out):  # by more than a busy machine lets a process wait when its rest is over
    time.sleep(0.005)
    np.sqrt(x, out=out)
def near(x, out):
    time.sleep(0.001)
    np.multiply(np.sqrt(x), 1 + 1e-7, out=out)
def wrong(x, out):
    np.cbrt(x, out=out)
"""


@pytest.fixture
def own(tmp_path: Path, small_engine: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Functions, which processes judge by an engine that takes the cache for small, so that it is soon flushed, and
    that compares in two turns."""
    monkeypatch.syspath_prepend(str(small_engine))
    monkeypatch.setenv("PYTHONPATH", str(small_engine))
    (tmp_path / "own_roots.py").write_text(OWN)
    return f"{tmp_path}/own_roots.py"


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "kernelwatch", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_command_measures_by_a_judge(own: str, tmp_path: Path) -> None:
    done = run(
        tmp_path, "measure", f"{own}:root", "--judge", f"{own}:root", "--args", "inputs", "--seconds", "0.01", "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    check(found, "measure")
    assert (found["measured"]["method"], found["measured"]["judged"]["reference"]) == ("judge", "root")
    refused = run(
        tmp_path, "measure", f"{own}:wrong", "--judge", f"{own}:root", "--args", "inputs", "--seconds", "0.01"
    )
    assert refused.returncode == 128
    assert "kernelwatch measure: wrong: set " in refused.stderr


def test_functions_are_compared_by_a_judge(own: str) -> None:
    given: dict[str, Any] = {"args": "inputs", "seconds": 0.01, "rtol": 1e-6}
    found = kernelwatch.judge(f"{own}:near", f"{own}:root", against=f"{own}:slow", **given)
    assert isinstance(found, Compared)
    assert (found.a.name, found.b.name, found.b.processes) == ("slow", "near", len(found.samples))
    assert len(found.samples) >= 2
    assert found.ratio < 1
    alone = kernelwatch.judge(f"{own}:near", f"{own}:root", flops=1e6, **given)
    assert isinstance(alone, Measured)
    assert alone.flops == 1e6
    with pytest.raises(kernelwatch.Refused, match="5000 of 5000 elements wrong"):
        kernelwatch.judge(f"{own}:wrong", f"{own}:root", **given)


def test_a_campaign_judges_its_candidates(own: str, tmp_path: Path) -> None:
    start = ["campaign", "start", "search.jsonl", f"{own}:slow", "--args", "inputs", "--judge", "--seconds", "0.02"]
    begun = run(tmp_path, *start, "--rtol", "1e-6", "--processes", "4", "--json")
    assert begun.returncode == 0, begun.stderr
    check(json.loads(begun.stdout), "campaign")
    campaign = kernelwatch.Campaign(tmp_path / "search.jsonl")
    assert campaign.head.setting.judge
    tried = campaign.attempt(f"{own}:near")
    assert tried.ratio is not None
    assert tried.ratio < 1
    with pytest.raises(MeasureError, match=r"takes FILE.py:FUNCTION"):
        campaign.attempt("own_roots:near")
    (confirmed,) = campaign.crown()
    assert confirmed.turns == 4
    assert confirmed.ratio is not None
    assert confirmed.ratio < 1


def test_a_campaign_that_began_before_there_was_a_judge_is_open(own: str, tmp_path: Path) -> None:
    campaign = kernelwatch.Campaign.start(tmp_path / "search.jsonl", f"{own}:root", args="inputs")
    lines = campaign.file.read_text()
    campaign.file.write_text(lines.replace(', "judge": false', ""))
    assert '"judge"' not in campaign.file.read_text()
    assert not kernelwatch.Campaign(campaign.file).head.setting.judge


def test_a_judge_needs_arguments_and_cold_arrays(own: str, tmp_path: Path) -> None:
    done = run(tmp_path, "measure", f"{own}:root", "--judge", f"{own}:root")
    assert done.returncode == 128
    assert "--judge gives cold arrays that --args makes" in done.stderr
    done = run(tmp_path, "measure", f"{own}:root", "--rtol", "0.1")
    assert "nothing else compares outputs here" in done.stderr
    with pytest.raises(ValueError, match="cold arrays"):
        kernelwatch.Campaign.start(tmp_path / "x.jsonl", f"{own}:root", args="inputs", judge=True, cache="hot")


def test_what_runs_beside_cannot_read_the_judge() -> None:
    with player.guarded():
        assert _dumpable() == 0
    assert _dumpable() == 1


def _dumpable() -> int:
    return int(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))


def seen(seconds: float, hidden: float, taken_off: bool = True) -> Measured:
    """`hidden`: the fixed costs over the seconds that are left without them; `taken_off`: whether these are told."""
    judged = Judgment("f", 12, 40, 384, 0.01, hidden * seconds, 0, 0, (1 + hidden) * seconds)
    told = seconds if taken_off else judged.at_most_s
    return result(seconds=told, method="judge", judged=judged, conditions={"took_s": 1.0})


# A candidate can leave so much out of its rounds that they are 5 % shorter, or a third; or is too short for the judge,
# and its figure has all of them. If the original is, its figure is no lower bound.
@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (seen(1e-5, 0.001), seen(0.95e-5, 0.001), "faster"),
        (seen(1e-5, 0.001), seen(0.95e-5, 0.1), "cannot tell"),
        (seen(1e-5, 0.0505), seen(0.95e-5, 0.0505 / 0.9495), "cannot tell"),
        (seen(1e-5, 0.5), seen(0.51e-5, 1.0), "cannot tell"),
        (seen(1e-5, 0.5), seen(0.4e-5, 1.0), "faster"),
        (seen(1e-5, 0.5), seen(1e-7, 50, taken_off=False), "faster"),
        (seen(1e-7, 50, taken_off=False), seen(1e-7, 50), "cannot tell"),
    ],
)
def test_a_gain_that_may_be_hidden_fixed_costs_is_none(a: Measured, b: Measured, verdict: str) -> None:
    order: list[str] = []

    def judged(name: str) -> Measured:
        order.append(name)
        return {"a": a, "b": b}[name]

    judge: Any = SimpleNamespace(judge=judged, timer=SimpleNamespace(device="gpu"))
    found = compared(judge, "a", "b", Case("", Rules(), None), 4)
    assert found.verdict == verdict
    assert "".join(order[:8]) == "abbaabba"
    order.clear()
    for first in (False, True):
        one = compared(judge, "a", "b", Case("", Rules(), None), 1, b_first=first)
        assert one.ratio == pytest.approx(b.seconds / a.seconds)
        assert (Trial((), "gpu", "", one).hidden < a.seconds / b.seconds - 1) is (verdict == "faster")
    assert "".join(order) == "abba"


def test_a_confirmation_knows_what_could_be_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("original", "candidate"):
        (tmp_path / f"{name}.py").write_text(f"def f(x): '{name}'\n")
    verdicts = []
    for hidden in (0.001, 0.1):

        def trial(original: str, candidate: str, *_: Any, hidden: float = hidden, **__: Any) -> Trial:
            sources = tuple(trials._file_of(one) for one in (original, original, candidate) if one)
            both = seen(1e-5, hidden), seen(0.95e-5, hidden)
            compared_ = Compared(*both, 0.95, (0.94, 0.96), "faster", "", 0.01, (0.95,) * 4)
            return Trial(sources, "gpu", "", compared_ if candidate else None)

        monkeypatch.setattr(campaigns, "trial", trial)
        file = tmp_path / f"{hidden}.jsonl"
        campaign = kernelwatch.Campaign.start(file, f"{tmp_path}/original.py:f", args="f", processes=4, judge=True)
        campaign.attempt(f"{tmp_path}/candidate.py:f")
        verdicts.append(campaign.crown()[0].verdict)
    assert verdicts == ["faster", "cannot tell"]


def test_pytorch_that_a_call_imports_has_the_stream_of_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph of PyTorch's or Triton's launches is only captured on PyTorch's current stream."""
    entered: list[bool] = []  # of each context that is open: whether PyTorch was there

    @contextmanager
    def current(_stream: object) -> Iterator[None]:
        entered.append("torch" in sys.modules)
        yield
        entered.pop()

    def call() -> None:
        monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))

    runtime = SimpleNamespace(deviceSynchronize=lambda: None)
    cuda = SimpleNamespace(Stream=lambda non_blocking: SimpleNamespace(synchronize=None), runtime=runtime)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(launch, "current", current)
    monkeypatch.setattr(runner, "mapped", lambda _handle: None)
    monkeypatch.setattr(runner, "known", lambda _name: call)
    seen: list[bool] = []

    def in_graph(*_: object) -> object:
        seen.append(entered[-1])
        return call

    monkeypatch.setattr(runner, "in_graph", in_graph)
    layout = SimpleNamespace(set_bytes=0, arguments=lambda *_: ((), {}))
    _, _, how = runner.prepared(runner.Job("own.py:call", layout, 2, {"ipc": b""}))  # type: ignore[arg-type]
    assert how == "graph"
    assert seen == [True]
